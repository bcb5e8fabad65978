"""The package `geometric-kernels`, imported when it is first asked for."""

import contextlib
import functools
import importlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np


@functools.cache
def package() -> Any:
    """The package geometric-kernels with its JAX backend, imported in silence when it is first asked for."""
    try:
        with _in_silence(), _numpy_of_before():
            for name in ("jax", "spaces", "kernels", "feature_maps"):
                importlib.import_module(f"geometric_kernels.{name}")
    except ImportError as error:
        message = "needs the package geometric-kernels: pip install 'mercer[geometric]'"
        raise ImportError(f"a kernel of this space {message} ({error})") from error
    return importlib.import_module("geometric_kernels")


@contextlib.contextmanager
def _in_silence() -> Iterator[None]:
    """The package logs and warns when it is imported, and sets up the root logger where nobody has."""
    handler, before = logging.NullHandler(), logging.root.manager.disable
    logging.root.addHandler(handler)
    logging.disable(max(before, logging.INFO))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
        logging.root.removeHandler(handler)


@contextlib.contextmanager
def _numpy_of_before() -> Iterator[None]:
    """geomstats 2.8, which the package imports, asks NumPy for `trapz`; from NumPy 2.4 on its name is `trapezoid` only."""
    names = vars(np)
    is_missing = "trapz" not in names
    if is_missing:
        names["trapz"] = names["trapezoid"]
    try:
        yield
    finally:
        if is_missing:
            del names["trapz"]


@contextlib.contextmanager
def any_precision() -> Iterator[None]:
    """The package asks for float64 also where JAX has float32 only, and JAX warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Explicitly requested dtype", category=UserWarning)
        yield


@functools.cache
def compact_kernel(name: str, size: int, levels: int) -> Any:
    """The kernel of a compact space: its tables, which take a second to read."""
    with jax.ensure_compile_time_eval():
        space = getattr(package().spaces, name)(size)
        return package().kernels.MaternKarhunenLoeveKernel(space, levels)


@functools.cache
def feature_map(name: str, size: int, num: int) -> Any:
    """The feature map of a space that is not compact. The one by rejection, which the package prefers, cannot be compiled."""
    with jax.ensure_compile_time_eval():
        return package().feature_maps.RandomPhaseFeatureMapNoncompact(getattr(package().spaces, name)(size), num)
