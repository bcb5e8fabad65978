"""A kernel that changes from one kernel to the next along one column of the input."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.kernels.base import Kernel
from mercer.parameters import cast, ordered, param, positive
from mercer.validation import OneOrMany


class ChangePoints(Kernel):
    """sum_i w_i(x) w_i(x') k_i(x, x'), where w_i rises at location i - 1 and falls at location i.

    w_i(x) = sigmoid(s_(i-1) (x - c_(i-1))) sigmoid(-s_i (x - c_i)), with c the locations and s the steepness, one
    number or one for each location; the first kernel holds from the far left and the last one to the far right. x
    stands for the column `dim` of the input. Saatchi, Turner and Rasmussen (2010); Lloyd and others (2014).
    """

    kernels: tuple[Kernel, ...]
    locations: Array = param(ordered)
    steepness: Array = param(positive)
    dim: int = eqx.field(static=True)

    def __init__(
        self,
        kernels: Sequence[Kernel],
        locations: OneOrMany,
        steepness: OneOrMany = 1.0,
        dim: int = 0,
    ):
        self.kernels, self.locations, self.steepness, self.dim = tuple(kernels), locations, steepness, dim

    def __check_init__(self):
        if not self.kernels or not all(isinstance(kernel, Kernel) for kernel in self.kernels):
            raise ValueError(f"ChangePoints: kernels expects one or more kernels, got {self.kernels!r}")
        expected = (len(self.kernels) - 1,)
        if jnp.shape(self.locations) != expected:
            raise ValueError(
                f"ChangePoints: locations expects shape {expected} for {len(self.kernels)} kernels, "
                f"got {jnp.shape(self.locations)}"
            )
        if jnp.shape(self.steepness) not in ((), expected):
            raise ValueError(
                f"ChangePoints: steepness expects a number or one for each of the {expected[0]} locations, "
                f"got shape {jnp.shape(self.steepness)}"
            )
        if self.dim < 0:
            raise ValueError(f"ChangePoints: dim expects the number of a column, got {self.dim}")

    def _weights(self, X: Float[Array, "N D"]) -> Float[Array, "K N"]:
        """w_i(x) for each kernel."""
        if self.dim >= X.shape[1]:
            raise ValueError(f"ChangePoints: dim {self.dim} expects X with more columns, got {X.shape[1]}")
        steps = jnp.atleast_1d(self.steepness)[:, None] * (X[:, self.dim] - self.locations[:, None])
        ones = jnp.ones((1, len(X)), X.dtype)
        starts = jnp.concatenate([ones, jax.nn.sigmoid(steps)])
        stops = jnp.concatenate([jax.nn.sigmoid(-steps), ones])
        return starts * stops

    def _matrix(self, X, X2):
        weights = self._weights(X)
        weights2 = weights if X2 is None else self._weights(X2)
        return sum(
            w[:, None] * w2[None, :] * kernel._matrix(X, X2)
            for w, w2, kernel in zip(weights, weights2, self.kernels, strict=True)
        )

    def _diagonal(self, X):
        return sum(w**2 * kernel._diagonal(X) for w, kernel in zip(self._weights(X), self.kernels, strict=True))

    def _features(self, key, num, X):
        """Features of the kernels, each times its weight, added with independent random signs as in a sum."""
        keys = jax.random.split(key, len(self.kernels) + 1)
        maps = [kernel.features(num, key=k)(X) for kernel, k in zip(self.kernels, keys[1:], strict=True)]
        signs = jax.random.rademacher(keys[0], (len(maps), num), X.dtype)
        weights = cast(self, X.dtype)._weights(X)
        return sum(s * w[:, None] * phi for s, w, phi in zip(signs, weights, maps, strict=True))
