"""Tests run in double precision, so that a law that fails by more than rounding is false."""

import contextlib
from pathlib import Path

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_enable_x64", True)
# Most of the time goes into compiling functions that run once: XLA should not try hard.
jax.config.update("jax_disable_most_optimizations", True)

settings.register_profile("mercer", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("mercer")

_MANY = 15_000  # of the 65,530 pieces of memory that Linux grants a process; each compiled function takes some


@pytest.fixture(scope="module", autouse=True)
def _let_go_of_what_was_compiled():
    yield
    with contextlib.suppress(OSError):  # where there is no such file there is no such limit
        if Path("/proc/self/maps").read_bytes().count(b"\n") > _MANY:
            jax.clear_caches()
