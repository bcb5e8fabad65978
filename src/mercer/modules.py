"""Foreign modules (of `equinox.nn`, or any function) as functions of the rows of X."""

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from mercer import parameters

Module = Callable[[Float[Array, " D"]], Float[Array, " P"]]


class OfRows(parameters.Module):
    """A function of all rows at once, which may stand where a module is expected."""

    @abc.abstractmethod
    def of_rows(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        """The values at each row."""


class Reshape(eqx.Module):
    """x in another shape, as the first layer of a `Sequential` that takes rows as images, [C, H, W] say."""

    shape: tuple[int, ...] = eqx.field(static=True, converter=tuple)

    def __call__(self, x: Float[Array, "..."], *, key: PRNGKeyArray | None = None) -> Float[Array, "..."]:
        """x with the same numbers, in the same order."""
        if math.prod(self.shape) != x.size:
            raise ValueError(f"Reshape: shape {self.shape} expects {math.prod(self.shape)} numbers, got {x.size}")
        return x.reshape(self.shape)


class ResidualBlock(eqx.Module):
    """x + f(x), f one module after another: a layer of a residual network."""

    layers: tuple[Callable[[Any], Any], ...] = eqx.field(converter=tuple)

    def __call__(self, x: Float[Array, "..."], *, key: PRNGKeyArray | None = None) -> Float[Array, "..."]:
        """In the shape of x."""
        inner = x
        for layer in self.layers:
            inner = layer(inner)
        if inner.shape != x.shape:
            raise ValueError(f"ResidualBlock: layers expect to keep the shape {x.shape}, got {inner.shape}")
        return x + inner


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
    values = module.of_rows(X) if isinstance(module, OfRows) else jax.vmap(module)(X)
    if values.ndim != 2:
        raise ValueError(f"{owner}: module expects to return a vector for a row of X, got shape {values.shape[1:]}")
    return values


def input_size(module: Any, dimension: int | None, owner: str, argument: str = "dimension") -> int:
    """How many columns a module takes: what was said, as `argument`, else what the module says of itself."""
    if dimension is not None:
        return dimension
    first = module.layers[0] if isinstance(module, eqx.nn.Sequential) else module
    said = next((getattr(first, name) for name in ("in_size", "in_features") if hasattr(first, name)), None)
    if not isinstance(said, int):
        raise ValueError(f"{owner}: say how many columns {type(module).__name__} takes, with {argument}=")
    return said


def output_size(module: Any, dimension: int, owner: str) -> int:
    """The length of the vector that a module gives for a row."""
    try:
        shape = eqx.filter_eval_shape(module, jax.ShapeDtypeStruct((dimension,), jnp.result_type(float))).shape
    except Exception as error:
        brief = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{owner}: module fails on a row of {dimension} columns: {brief}") from error
    if len(shape) != 1:
        raise ValueError(f"{owner}: module expects to return a vector for a row of X, got shape {shape}")
    return shape[0]
