"""Kernels of a dot product: linear and polynomial regression.

A weight is one number, or a vector with one number for each input dimension.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.kernels.base import Kernel
from mercer.linalg.products import matmul
from mercer.parameters import cast, param, positive


def augmented(X: Float[Array, "N D"], weight: Array, bias: Array) -> Float[Array, "N D+1"]:
    """[sqrt(weight) x, sqrt(bias)], whose dot products are sum_d weight_d x_d x'_d + bias."""
    ones = jnp.ones((len(X), 1), X.dtype)
    return jnp.concatenate([jnp.sqrt(weight) * X, jnp.sqrt(bias) * ones], axis=1)


class Linear(Kernel):
    """sum_d variance_d x_d x'_d: linear functions through the origin."""

    variance: Array = param(positive, default=1.0)

    def __check_init__(self):
        self._check_ranks(variance=1)

    def _scaled(self, X):
        return jnp.sqrt(self.per_column("variance", X)) * X

    def _matrix(self, X, X2):
        left = self._scaled(X)
        return matmul(left, (left if X2 is None else self._scaled(X2)).T)

    def _diagonal(self, X):
        return jnp.sum(self._scaled(X) ** 2, axis=1)

    def _features(self, key, num, X):
        """Projections of sqrt(variance) x onto random signs, whose covariance is the identity."""
        w = jax.random.rademacher(key, (num, X.shape[1]), X.dtype)
        return matmul(cast(self, X.dtype)._scaled(X), w.T) / jnp.sqrt(float(num))


class Polynomial(Kernel):
    """(sum_d variance_d x_d x'_d + offset)^degree: all monomials up to a degree."""

    degree: int = eqx.field(static=True, default=3)
    variance: Array = param(positive, default=1.0)
    offset: Array = param(positive, default=1.0)

    def __check_init__(self):
        if not isinstance(self.degree, int) or self.degree < 1:
            raise ValueError(f"Polynomial: degree expects a whole number of at least 1, got {self.degree!r}")
        self._check_ranks(variance=1, offset=0)

    def _augmented(self, X):
        return augmented(X, self.per_column("variance", X), self.offset)

    def _matrix(self, X, X2):
        left = self._augmented(X)
        return matmul(left, (left if X2 is None else self._augmented(X2)).T) ** self.degree

    def _diagonal(self, X):
        return jnp.sum(self._augmented(X) ** 2, axis=1) ** self.degree

    def _features(self, key, num, X):
        """Products of `degree` independent projections onto random signs (Kar and Karnick, 2012)."""
        w = jax.random.rademacher(key, (self.degree, num, X.shape[1] + 1), X.dtype)
        projections = matmul(cast(self, X.dtype)._augmented(X), w.mT)  # [degree, N, num]
        return jnp.prod(projections, axis=0) / jnp.sqrt(float(num))
