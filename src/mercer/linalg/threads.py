"""Keeping BLAS threads out of XLA's way.

On the CPU, XLA calls LAPACK in SciPy's OpenBLAS, whose worker threads spin for a while after each call and take the cores
from XLA's own. Matrix products are XLA's and stay parallel; only the factorisations are limited to one thread.
"""

import contextlib
import functools
from collections.abc import Iterator

import jax
from threadpoolctl import ThreadpoolController


@functools.cache
def _controller() -> ThreadpoolController:
    # Loads the OpenBLAS that XLA will call, so that it can be limited; here, as it takes long to import.
    import scipy.linalg.cython_lapack  # noqa: F401

    return ThreadpoolController()


@contextlib.contextmanager
def quiet_blas() -> Iterator[None]:
    """One BLAS thread inside, whatever there was before outside. The computation must end inside."""
    if jax.default_backend() != "cpu":
        yield
        return
    with _controller().limit(limits=1, user_api="blas"):
        yield
