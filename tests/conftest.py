"""Tests run in double precision, so that a law that fails by more than rounding is false."""

import jax
from hypothesis import settings

jax.config.update("jax_enable_x64", True)
# Most of the time goes into compiling functions that run once: XLA should not try hard.
jax.config.update("jax_disable_most_optimizations", True)

settings.register_profile("mercer", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("mercer")
