"""Additive kernels: a function that is a sum of functions of one input each (Duvenaud, Nickisch and Rasmussen, 2011)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mercer.kernels.base import Kernel
from mercer.kernels.stationary import Matern52, Stationary
from mercer.parameters import cast, constant, param, positive


class Additive(Kernel):
    """sum_d variance_d base(|x_d - x'_d| / lengthscale_d), base a stationary kernel whose own parameters are held still.

    `lengthscale` and `variance` are numbers, or vectors with one for each input dimension.
    """

    lengthscale: Array = param(positive, default=1.0)
    variance: Array = param(positive, default=1.0)
    base: Stationary = constant(default_factory=Matern52)

    def __check_init__(self):
        self._check_ranks(lengthscale=1, variance=1)
        if not isinstance(self.base, Stationary) or jnp.ndim(self.base.lengthscale) != 0:
            raise ValueError(f"Additive: base expects a stationary kernel with one lengthscale, got {self.base!r}")

    def _scaled(self, X):
        return X / (self.per_column("lengthscale", X) * self.base.lengthscale)

    def _variances(self, X):
        return jnp.broadcast_to(self.per_column("variance", X), X.shape[1:])

    def _matrix(self, X, X2):
        A = self._scaled(X)
        B = A if X2 is None else self._scaled(X2)

        # One dimension after the other, each worked out again for the derivative: memory does not grow with D.
        @jax.checkpoint
        def add(total, dimension):
            a, b, variance = dimension
            return total + variance * self.base.of_squared_distance((a[:, None] - b) ** 2), None

        return jax.lax.scan(add, jnp.zeros((len(A), len(B)), A.dtype), (A.T, B.T, self._variances(X)))[0]

    def _diagonal(self, X):
        return jnp.full(len(X), jnp.sum(self._variances(X)) * self.base.variance)

    def _features(self, key, num, X):
        kernel = cast(self, X.dtype)
        terms = [variance * kernel.base.on(d) for d, variance in enumerate(kernel._variances(X))]
        return sum(terms[1:], start=terms[0]).features(num, key=key)(X / kernel.per_column("lengthscale", X))
