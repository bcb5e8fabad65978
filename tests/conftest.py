"""Tests run in double precision, so that a law that fails by more than rounding is false."""

import contextlib
import gc
import os
from importlib.metadata import version
from pathlib import Path

import equinox as eqx
import jax
import pytest
from hypothesis import settings
from jaxtyping import config, install_import_hook

# Every type and shape that a signature of the library names is checked, at every call.
install_import_hook("mercer", "checked_types.checked")
_raises = pytest.raises


@contextlib.contextmanager
def _unchecked_signatures():
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)


@contextlib.contextmanager
def _refused_by_the_library(*args, **kwargs):
    """`pytest.raises`, with signatures that are not checked: a wrong argument is to meet the library's own error."""
    with _raises(*args, **kwargs) as caught, _unchecked_signatures():
        yield caught


pytest.raises = _refused_by_the_library


@pytest.fixture
def unchecked_signatures():
    with _unchecked_signatures():
        yield


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs the command `mercer` with some arguments: the exit code, standard output, standard error."""
    from mercer.cli import main

    monkeypatch.delenv("MERCER_DEBUG", raising=False)

    def command(*arguments):
        with pytest.raises(SystemExit) as exit, jax.enable_x64(False):  # as a process of its own has it
            main([str(argument) for argument in arguments])
        return exit.value.code, *capsys.readouterr()

    return command


jax.config.update("jax_enable_x64", True)
# Most of the time goes into compiling functions that run once: XLA should not try hard.
jax.config.update("jax_disable_most_optimizations", True)
_FLAGS = ["--xla_cpu_parallel_codegen_split_count=1"]
if version("jaxlib").startswith("0.10."):  # later ones know no such flag, and stop at it
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")  # which take twice as long to compile
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_FLAGS]).strip()

settings.register_profile("all", deadline=None, max_examples=25, derandomize=True)
settings.register_profile("some", settings.get_profile("all"), max_examples=6)


def pytest_configure(config):
    settings.load_profile("some" if config.option.markexpr == "not slow" else "all")


# What is traced and compiled lives long: looking for what does not, as often as Python does, takes a tenth of the time.
gc.freeze()
gc.set_threshold(50_000, 20, 100)

_MANY = 30_000  # of the 65,530 pieces of memory that Linux grants a process; each compiled function takes some


@pytest.fixture(scope="module", autouse=True)
def _let_go_of_what_was_compiled():
    yield
    with contextlib.suppress(OSError):  # where there is no such file there is no such limit
        if Path("/proc/self/maps").read_bytes().count(b"\n") > _MANY:
            jax.clear_caches()


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """A context in which the library takes the ways that are for a GPU. The code still runs on the CPU.

    All of it asks `jax.default_backend`, when it is traced. JAX itself does not ask there.
    """

    @contextlib.contextmanager
    def context():
        jax.clear_caches()  # what was traced for the CPU
        with monkeypatch.context() as patch:
            patch.setattr(jax, "default_backend", lambda: "gpu")
            yield
        jax.clear_caches()

    return context


@pytest.fixture
def both_ways(as_on_a_gpu):
    """What a function gives by the ways for the CPU, and by those for a GPU, which must be other ones."""

    def evaluate(function, *arguments):
        def compiled():
            return eqx.filter_jit(lambda *args: function(*args)).lower(*arguments)

        on_cpu = compiled()
        with as_on_a_gpu():
            on_gpu = compiled()
        assert on_cpu.as_text() != on_gpu.as_text()
        return on_cpu.compile()(*arguments), on_gpu.compile()(*arguments)

    return evaluate


def pytest_collection_modifyitems(items):
    """Marks the cases that `slow_cases.txt` lists."""
    folder = Path(__file__).parent
    listed = {line for line in (folder / "slow_cases.txt").read_text().splitlines() if not line.startswith("#")}
    for item in items:
        if item.nodeid in listed:
            item.add_marker(pytest.mark.slow)
