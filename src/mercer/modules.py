"""Foreign modules (of `equinox.nn`, or any function) as functions of the rows of X."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float

Module = Callable[[Float[Array, " D"]], Float[Array, " P"]]


def check_module(module: Any, owner: str) -> None:
    """Refuses what cannot be called. `owner` is who was given it."""
    if not callable(module):
        raise ValueError(f"{owner}: module expects a function of a row of X, got {module!r}")


def of_rows(module: Module, X: Float[Array, "N D"], owner: str) -> Float[Array, "N P"]:
    """The values of a module, which takes a row [D] to a vector [P], at each row."""
    values = jax.vmap(module)(X)
    if values.ndim != 2:
        raise ValueError(f"{owner}: module expects to return a vector for a row of X, got shape {values.shape[1:]}")
    return values
