"""Kernels that repeat or oscillate, and mixtures of them: stationary, but not functions of one distance.

All are built of matrix products: cos(a - a') is the product of [cos a, sin a] and [cos a', sin a'].
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.kernels.base import Kernel
from mercer.kernels.stationary import RBF
from mercer.linalg.products import matmul
from mercer.parameters import cast, param, positive, real


def _centred(X, X2):
    """The inputs less their mean. The kernels do not change under a shift; rounding grows with the distance from 0."""
    shift = jax.lax.stop_gradient(jnp.mean(X if X2 is None else X2, axis=0))
    return X - shift, None if X2 is None else X2 - shift


def _cosine(angle: Float[Array, " N"], angle2: Float[Array, " N2"]) -> Float[Array, "N N2"]:
    """cos(a - a') for all pairs, a product of rank 2."""
    left, right = (jnp.stack([jnp.cos(a), jnp.sin(a)], axis=1) for a in (angle, angle2))
    return matmul(left, right.T)


class Periodic(Kernel):
    """variance * exp(-2 sum_d sin^2(pi (x_d - x'_d) / period_d) / lengthscale_d^2): functions that repeat themselves.

    The RBF kernel of points on circles: each x_d goes to the angle 2 pi x_d / period_d on a circle of radius
    1 / lengthscale_d, and 4 sin^2 of half an angle is the squared chord (MacKay, 1998).
    """

    lengthscale: Array = param(positive, default=1.0)
    period: Array = param(positive, default=1.0)
    variance: Array = param(positive, default=1.0)

    def __check_init__(self):
        self._check_ranks(lengthscale=1, period=1, variance=0)

    def _circles(self, X: Float[Array, "N D"]) -> Float[Array, "N 2*D"]:
        angle = 2.0 * jnp.pi * X / self.per_column("period", X)
        radius = 1.0 / self.per_column("lengthscale", X)
        return jnp.concatenate([radius * jnp.cos(angle), radius * jnp.sin(angle)], axis=1)

    def _matrix(self, X, X2):
        X, X2 = _centred(X, X2)
        return RBF(variance=self.variance)._matrix(self._circles(X), None if X2 is None else self._circles(X2))

    def _diagonal(self, X):
        return jnp.full(len(X), self.variance)

    def _features(self, key, num, X):
        """The random Fourier features of the RBF kernel, on the circles."""
        kernel = cast(self, X.dtype)
        return RBF(variance=kernel.variance).features(num, key=key)(kernel._circles(X))


class Cosine(Kernel):
    """variance * cos(2 pi sum_d (x_d - x'_d) / lengthscale_d): one wave of random amplitude and phase."""

    lengthscale: Array = param(positive, default=1.0)
    variance: Array = param(positive, default=1.0)

    def __check_init__(self):
        self._check_ranks(lengthscale=1, variance=0)

    def _angle(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        return 2.0 * jnp.pi * jnp.sum(X / self.per_column("lengthscale", X), axis=1)

    def _matrix(self, X, X2):
        X, X2 = _centred(X, X2)
        return self.variance * _cosine(self._angle(X), self._angle(X if X2 is None else X2))

    def _diagonal(self, X):
        return jnp.full(len(X), self.variance)

    def _features(self, key, num, X):
        """sqrt(2 variance / num) cos(angle + b): the one wave, at random phases b."""
        kernel = cast(self, X.dtype)
        b = jax.random.uniform(key, (num,), X.dtype, maxval=2.0 * jnp.pi)
        return jnp.sqrt(2.0 * kernel.variance / num) * jnp.cos(kernel._angle(X)[:, None] + b)


class SpectralMixture(Kernel):
    """sum_q weights_q exp(-2 pi^2 sum_d (t_d scales_qd)^2) cos(2 pi t . means_q), t = x - x' (Wilson and Adams, 2013).

    The spectral density is a mixture of Gaussians: `means` [Q, D] and `scales` [Q, D] are frequencies, in cycles for
    each unit of input, and `weights` [Q] are variances.
    """

    weights: Array = param(positive, default=(1.0,))
    means: Array = param(real, default=((1.0,),))
    scales: Array = param(positive, default=((1.0,),))

    def __check_init__(self):
        shapes = [jnp.shape(array) for array in (self.weights, self.means, self.scales)]
        if [len(shape) for shape in shapes] != [1, 2, 2] or shapes[1] != shapes[2] or shapes[0] != shapes[1][:1]:
            raise ValueError(
                "SpectralMixture: weights, means and scales expect shapes [Q], [Q, D] and [Q, D], "
                f"got {shapes[0]}, {shapes[1]} and {shapes[2]}"
            )

    def check_columns(self, X: Float[Array, "N D"]) -> None:
        """Refuses inputs with another number of columns than the frequencies have."""
        if X.shape[1] != self.means.shape[1]:
            raise ValueError(
                f"SpectralMixture: means and scales expect one column for each of the {X.shape[1]} columns of X, "
                f"got {self.means.shape[1]}"
            )

    def _matrix(self, X, X2):
        self.check_columns(X)
        X, X2 = _centred(X, X2)
        total = 0.0
        for weight, mean, scale in zip(self.weights, self.means, self.scales, strict=True):
            envelope = RBF(1.0 / (2.0 * jnp.pi * scale), weight)._matrix(X, X2)
            angle, angle2 = (2.0 * jnp.pi * matmul(A, mean) for A in (X, X if X2 is None else X2))
            total = total + envelope * _cosine(angle, angle2)
        return total

    def _diagonal(self, X):
        return jnp.full(len(X), jnp.sum(self.weights))

    def _features(self, key, num, X):
        """Random Fourier features, each with the frequency of one component, drawn in proportion to its weight."""
        key_q, key_w, key_b = jax.random.split(key, 3)
        self.check_columns(X)
        kernel = cast(self, X.dtype)
        q = jax.random.categorical(key_q, jnp.log(kernel.weights), shape=(num,))
        w = kernel.means[q] + kernel.scales[q] * jax.random.normal(key_w, (num, X.shape[1]), X.dtype)
        b = jax.random.uniform(key_b, (num,), X.dtype, maxval=2.0 * jnp.pi)
        return jnp.sqrt(2.0 * jnp.sum(kernel.weights) / num) * jnp.cos(2.0 * jnp.pi * matmul(X, w.T) + b)
