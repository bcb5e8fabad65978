"""Measurement points: where a network is compared with what it should become. They are drawn anew in each step.

Paper 002, section 3.3: uniformly in a box for few dimensions, near the training data for many.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from mercer import validation
from mercer.parameters import Module, constant, is_concrete
from mercer.validation import AnyArray


class Measurement(Module):
    """A distribution of `num` points. A new one says `_draw`."""

    num: eqx.AbstractVar[int]

    def __check_init__(self):
        if not isinstance(self.num, int) or self.num < 1:
            raise ValueError(f"{type(self).__name__}: num expects a whole number, at least 1, got {self.num!r}")

    @abc.abstractmethod
    def _draw(self, X: Float[Array, "N D"], key: PRNGKeyArray) -> Float[Array, "M D"]:
        """Points, given the inputs of the data."""

    def draw(self, X: Float[Array, "N D"], *, key: PRNGKeyArray) -> Float[Array, "M D"]:
        """`num` points, given the inputs of the data, in their dtype."""
        return jnp.asarray(self._draw(X, key), X.dtype)

    def check(self, X: Float[Array, "N D"]) -> None:
        """Refuses points that do not fit the inputs. Called before anything is compiled."""
        try:
            found = jax.eval_shape(self._draw, X, jax.random.key(0))
        except Exception as error:
            brief = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(f"{type(self).__name__}: drawing measurement points failed: {brief}") from error
        shape = getattr(found, "shape", None)
        if shape != (self.num, X.shape[1]):
            raise ValueError(
                f"{type(self).__name__} expects measurement points of shape {(self.num, X.shape[1])}, got {shape or found}"
            )


class Box(Measurement):
    """Uniform in a box, from `low` to `high`, numbers or one for each column."""

    low: Array = constant()
    high: Array = constant()
    num: int = eqx.field(static=True)

    def __check_init__(self):
        if is_concrete(self.low) and is_concrete(self.high) and not bool(np.all(self.low < self.high)):
            raise ValueError(f"Box: low expects to be below high, got {self.low} and {self.high}")

    def _draw(self, X, key):
        low, high = (jnp.broadcast_to(edge, X.shape[1:]).astype(X.dtype) for edge in (self.low, self.high))
        return low + (high - low) * jax.random.uniform(key, (self.num, X.shape[1]), X.dtype)


class Data(Measurement):
    """Inputs of the data, any of them equally often (of the batch, where the data are not in memory)."""

    num: int = eqx.field(static=True)

    def _draw(self, X, key):
        return X[jax.random.randint(key, (self.num,), 0, len(X))]


class Convolved(Measurement):
    """Inputs of the data plus N(0, lengthscale^2 / 2): their distribution convolved with an RBF kernel.

    `lengthscale` is a number or one for each column. It is not trained along with the prior.
    """

    lengthscale: Array = constant()
    num: int = eqx.field(static=True)

    def __check_init__(self):
        if is_concrete(self.lengthscale) and not bool(np.all(np.asarray(self.lengthscale) > 0.0)):
            raise ValueError(f"Convolved: lengthscale expects positive numbers, got {self.lengthscale}")

    def _draw(self, X, key):
        key_rows, key_noise = jax.random.split(key)
        rows = X[jax.random.randint(key_rows, (self.num,), 0, len(X))]
        scale = (jnp.broadcast_to(self.lengthscale, X.shape[1:]) / jnp.sqrt(2.0)).astype(X.dtype)
        return rows + scale * jax.random.normal(key_noise, rows.shape, X.dtype)


class Points(Measurement):
    """The same points in each step."""

    X: Float[Array, "M D"] = constant()

    def __init__(self, X: Float[AnyArray, "M D"]):
        self.X = validation.inputs(X)

    @property
    def num(self) -> int:  # type: ignore[override]
        """M."""
        return len(self.X)

    def _draw(self, X, key):
        return self.X


class Sampler(Measurement):
    """function(X, key), which returns points [num, D]; X are the inputs of the data."""

    function: Callable[[Any, Any], Any] = constant()
    num: int = eqx.field(static=True)

    def __check_init__(self):
        if not callable(self.function):
            raise ValueError(f"Sampler: function expects a function of X and a key, got {self.function!r}")

    def _draw(self, X, key):
        return self.function(X, key)
