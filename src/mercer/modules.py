"""Foreign modules (of `equinox.nn`, or any function) as functions of the rows of X."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float

Module = Callable[[Float[Array, " D"]], Float[Array, " P"]]


def check_module(module: Any, owner: str) -> None:
    """Refuses what cannot be called. `owner` is who was given it."""
    if not callable(module):
        raise ValueError(f"{owner}: module expects a function of a row of X, got {module!r}")
    refuse_state(module, owner)


def refuse_state(tree: Any, owner: str) -> None:
    """Refuses layers of `equinox.nn` that keep a state outside of themselves, which nothing here carries along."""
    for leaf in jax.tree.leaves(tree, is_leaf=_has_state):
        if _has_state(leaf):
            raise ValueError(
                f"{owner}: {type(leaf).__name__} has a state of its own, which training does not carry from step to step; "
                "take a layer without one, such as equinox.nn.LayerNorm"
            )


def _has_state(node: Any) -> bool:
    return isinstance(node, eqx.Module) and any(isinstance(part, eqx.nn.StateIndex) for part in vars(node).values())


def of_rows(module: Module, X: Float[Array, "N D"], owner: str) -> Float[Array, "N P"]:
    """The values of a module, which takes a row [D] to a vector [P], at each row."""
    values = jax.vmap(module)(X)
    if values.ndim != 2:
        raise ValueError(f"{owner}: module expects to return a vector for a row of X, got shape {values.shape[1:]}")
    return values
