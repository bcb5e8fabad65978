"""Kernels of a dot product: linear and polynomial regression, and infinitely wide networks of rectified units.

A weight is one number, or a vector with one number for each input dimension.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.kernels.arc_cosine import angular, cosines
from mercer.kernels.base import Kernel
from mercer.linalg.products import matmul
from mercer.parameters import cast, param, positive


def _rows(X: Float[Array, "N D"], weight: Array, bias: Array) -> Float[Array, "N D+1"]:
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
        return _rows(X, self.per_column("variance", X), self.offset)

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


class ArcCosine(Kernel):
    """variance / pi * (|x| |x'|)^order J_order(t): a network of infinitely many units max(0, w . x)^order.

    The norms and the angle t are those of the inner product sum_d weight_variance_d x_d x'_d + bias_variance, and
    J_0 = pi - t, J_1 = sin t + (pi - t) cos t, J_2 = 3 sin t cos t + (pi - t)(1 + 2 cos^2 t) (Cho and Saul, 2009).
    With greater depth, the kernel of one layer (of variance 1) is the inner product of the next. A layer takes a
    squared norm d to d^order J(0) / pi and a cosine c to J(c) / J(0), so norms and cosines pass through it apart.
    """

    order: int = eqx.field(static=True, default=1)
    depth: int = eqx.field(static=True, default=1)
    weight_variance: Array = param(positive, default=1.0)
    bias_variance: Array = param(positive, default=1.0)
    variance: Array = param(positive, default=1.0)

    def __check_init__(self):
        if not isinstance(self.order, int) or self.order not in (0, 1, 2):
            raise ValueError(f"ArcCosine: order expects 0, 1 or 2, got {self.order!r}")
        if not isinstance(self.depth, int) or self.depth < 1:
            raise ValueError(f"ArcCosine: depth expects a whole number of at least 1, got {self.depth!r}")
        self._check_ranks(weight_variance=1, bias_variance=0, variance=0)

    def rough_part(self, dim):
        return None if dim is None or self.order else "ArcCosine of order 0"

    def _augmented(self, X):
        return _rows(X, self.per_column("weight_variance", X), self.bias_variance)

    def _last_norm(self, norm: Float[Array, "..."]) -> Float[Array, "..."]:
        """|x| at the last layer."""
        for _ in range(self.depth):
            norm = norm**self.order * (1.0, 1.0, 3.0**0.5)[self.order]
        return norm

    def _matrix(self, X, X2):
        rows = [self._augmented(A) for A in ((X,) if X2 is None else (X, X2))]
        norms = [jnp.sqrt(jnp.sum(A**2, axis=1, keepdims=True)) for A in rows]
        units = [A / norm for A, norm in zip(rows, norms, strict=True)]
        c = cosines(matmul(units[0], units[-1].T), terms=X.shape[1] + 1)
        for _ in range(self.depth):
            c = cosines(angular(self.order, c), terms=1)
        return self.variance * self._last_norm(norms[0]) * self._last_norm(norms[-1]).T * c

    def _diagonal(self, X):
        norm = jnp.sqrt(jnp.sum(self._augmented(X) ** 2, axis=1))
        return self.variance * self._last_norm(norm) ** 2

    def _check_features(self):
        if self.depth > 1:
            super()._features(jax.random.key(0), 1, jnp.zeros((1, 1)))  # which says that there are none

    def _features(self, key, num, X):
        """The units of the network, sqrt(2 variance / num) max(0, w . x)^order; of one layer only."""
        kernel = cast(self, X.dtype)
        w = jax.random.normal(key, (num, X.shape[1] + 1), X.dtype)
        inputs = matmul(kernel._augmented(X), w.T)
        return jnp.sqrt(2.0 * kernel.variance / num) * jnp.where(inputs > 0.0, inputs**self.order, 0.0)
