"""Functions that are values: feature maps of kernels, and draws of processes."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.linalg.products import matmul
from mercer.parameters import Module, constant
from mercer.validation import AnyArray

Features = Callable[[Float[Array, "N D"]], Float[Array, "N F"]]


class Map(Module):
    """A function that is a value, with numbers of its own. As other functions it is equal to itself alone, for `jax.jit(f)`."""

    @abc.abstractmethod
    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N F"]:
        """The function at each row of X."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class Draw(Map):
    """A function drawn from a process of mean zero, [N, D] -> [N, P].

    Where it is made of other functions (of latent ones, of one on patches), `latent` is these, as one map to [N, L].
    """

    function: Callable[[Float[Array, "N D"]], Float[Array, "N P"]] = constant()
    latent: Callable[[Float[Array, "N D"]], Float[Array, "N L"]] | None = constant(default=None)

    def __call__(self, X: Float[AnyArray, "N D"]) -> Float[Array, "N P"]:
        return self.function(jnp.asarray(X))


class SideBySide(Map):
    """The outputs of several functions."""

    draws: tuple[Draw, ...]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        return jnp.concatenate([draw(X) for draw in self.draws], axis=1)


class SumOfFeatures(Map):
    """Independent functions with one kernel, each a sum of `num_features` random features with normal weights."""

    kernel: Any = constant()
    key: PRNGKeyArray = constant()
    num_features: int = eqx.field(static=True)
    num_outputs: int = eqx.field(static=True)

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        key_features, key_weights = jax.random.split(self.key)
        keys = jax.random.split(key_features, self.num_outputs)
        maps = [self.kernel.features(self.num_features, key=k) for k in keys]
        weights = jax.random.normal(key_weights, (self.num_outputs, self.num_features))
        columns = [matmul(phi(X), w.astype(X.dtype)) for phi, w in zip(maps, weights, strict=True)]
        return jnp.stack(columns, axis=1)
