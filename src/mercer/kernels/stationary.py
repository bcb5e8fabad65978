"""Stationary kernels: functions of the scaled distance r of two inputs, r^2 = sum_d (x_d - x'_d)^2 / lengthscale_d^2.

The lengthscale is one number, or a vector with one number for each input dimension (automatic relevance determination).
Distances are computed by one matrix product. Rasmussen and Williams (2006), chapter 4.
"""

import abc
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.deprecation import key_by_name
from mercer.kernels.base import Kernel
from mercer.linalg.products import matmul
from mercer.parameters import cast, param, positive
from mercer.roots import safe_sqrt


@jax.custom_jvp
def squared_distance(
    X: Float[Array, "N D"], X2: Float[Array, "N2 D"], weights: Float[Array, " D"]
) -> Float[Array, "N N2"]:
    """sum_d weights_d (x_d - x'_d)^2 for all pairs, never negative.

    It is one product, [w x, w.x^2, 1] . [-2 x', 1, w.x'^2], and so are its derivatives, with the sums over rows and columns
    inside them.
    """
    X, X2 = _centred(X, X2)
    left = _columns(X * weights, matmul(X**2, weights), jnp.ones(len(X), X.dtype))
    right = _columns(-2.0 * X2, jnp.ones(len(X2), X.dtype), matmul(X2**2, weights))
    return jnp.maximum(matmul(left, right.T), 0.0)


def _centred(X, X2):
    # Distances do not change under a shift, rounding does: it grows with the distance from the origin.
    shift = jnp.mean(X2, axis=0)
    return X - shift, X2 - shift


def _columns(*parts):
    return jnp.concatenate([part if part.ndim == 2 else part[:, None] for part in parts], axis=1)


@squared_distance.defjvp
def _squared_distance_jvp(primals, tangents):
    # The derivative of the product, not of the maximum: at coincident points it is 0 without a mask to keep. In X and the
    # weights it is one product with [1, x', x'^2], so that its transpose is one pass over the cotangent.
    (X, X2, w), (dX, dX2, dw) = primals, tangents
    distance = squared_distance(X, X2, w)
    X, X2 = _centred(X, X2)
    ones, ones2 = jnp.ones(len(X), X.dtype), jnp.ones(len(X2), X.dtype)
    by_one = jnp.sum(2.0 * w * X * dX + X**2 * dw, axis=1)
    by_X2 = -2.0 * (w * dX + X * dw)
    change = matmul(_columns(by_one, by_X2, jnp.broadcast_to(dw, X.shape)), _columns(ones2, X2, X2**2).T)
    change2 = matmul(_columns(-2.0 * X * w, ones), _columns(dX2, jnp.sum(2.0 * w * X2 * dX2, axis=1)).T)
    return distance, change + change2


class Stationary(Kernel):
    """A kernel of the scaled distance; a subclass says only what it does to its square."""

    lengthscale: Array = param(positive, default=1.0)
    variance: Array = param(positive, default=1.0)

    def __check_init__(self):
        self._check_ranks(lengthscale=1, variance=0)

    @abc.abstractmethod
    def of_squared_distance(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        """The kernel at scaled squared distance r2."""

    def scaled(self, X: Float[Array, "N D"]) -> Float[Array, "N D"]:
        """x / lengthscale."""
        return X / self.per_column("lengthscale", X)

    def _matrix(self, X, X2):
        weights = jnp.broadcast_to(self.per_column("lengthscale", X) ** -2, X.shape[1:])
        r2 = squared_distance(X, X if X2 is None else X2, weights)
        if X2 is None:
            r2 = jnp.where(jnp.eye(len(X), dtype=bool), 0.0, r2)
        return self.of_squared_distance(r2)

    def _diagonal(self, X):
        return jnp.full(len(X), self.variance)

    @key_by_name
    def frequencies(self, shape: tuple[int, int], *, key: PRNGKeyArray) -> Float[Array, "F D"]:
        """Draws from the spectral density of the kernel at lengthscale 1: angular frequencies, `shape` = (num, D)."""
        raise ValueError(f"{type(self).__name__} has no known spectral density to draw random features from")

    def _features(self, key, num, X):
        """Random Fourier features sqrt(2 variance / num) cos(w . x / lengthscale + b) (Rahimi and Recht, 2007)."""
        key_w, key_b = jax.random.split(key)
        kernel = cast(self, X.dtype)
        w = kernel.frequencies((num, X.shape[1]), key=key_w).astype(X.dtype)
        b = jax.random.uniform(key_b, (num,), X.dtype, maxval=2.0 * jnp.pi)
        return jnp.sqrt(2.0 * kernel.variance / num) * jnp.cos(matmul(kernel.scaled(X), w.T) + b)


class RBF(Stationary):
    """variance * exp(-r^2 / 2): infinitely smooth."""

    def of_squared_distance(self, r2):
        # The variance inside the exponential: one array for the derivative to keep, where a product keeps two.
        return jnp.exp(jnp.log(self.variance) - 0.5 * r2)

    def frequencies(self, shape, *, key):
        return jax.random.normal(key, shape)


class _Matern(Stationary):
    """Matern kernels: with a = sqrt(2p + 1) r, variance * polynomial(a) * exp(-a), p times differentiable."""

    degrees_of_freedom: ClassVar[float]  # 2p + 1, of the multivariate t that is the spectral density

    def frequencies(self, shape, *, key):
        key_normal, key_chi2 = jax.random.split(key)
        nu = self.degrees_of_freedom
        chi2 = 2.0 * jax.random.gamma(key_chi2, 0.5 * nu, (shape[0], 1))
        return jax.random.normal(key_normal, shape) * jnp.sqrt(nu / chi2)


class Matern12(_Matern):
    """variance * exp(-r): continuous, nowhere differentiable."""

    degrees_of_freedom = 1.0

    def of_squared_distance(self, r2):
        return self.variance * jnp.exp(-safe_sqrt(r2))

    def rough_part(self, dim):
        return None if dim is None else type(self).__name__


class Matern32(_Matern):
    """variance * (1 + a) exp(-a), a = sqrt(3) r: once differentiable."""

    degrees_of_freedom = 3.0

    def of_squared_distance(self, r2):
        return self.variance * matern32(3.0 * r2)


class Matern52(_Matern):
    """variance * (1 + a + a^2 / 3) exp(-a), a = sqrt(5) r: twice differentiable."""

    degrees_of_freedom = 5.0

    def of_squared_distance(self, r2):
        return self.variance * matern52(5.0 * r2)


# As functions of a^2 these have derivatives without a division by a, so that the second derivatives of the kernel, the
# covariances of the process's own derivative, are right at coincident points, too.
@jax.custom_jvp
def matern32(a2):
    a = safe_sqrt(a2)
    return (1.0 + a) * jnp.exp(-a)


@matern32.defjvp
def _matern32_jvp(primals, tangents):
    (a2,), (da2,) = primals, tangents
    return matern32(a2), -0.5 * jnp.exp(-safe_sqrt(a2)) * da2


@jax.custom_jvp
def matern52(a2):
    a = safe_sqrt(a2)
    return (1.0 + a + a2 / 3.0) * jnp.exp(-a)


@matern52.defjvp
def _matern52_jvp(primals, tangents):
    (a2,), (da2,) = primals, tangents
    return matern52(a2), -matern32(a2) / 6.0 * da2


class RationalQuadratic(Stationary):
    """variance * (1 + r^2 / (2 alpha))^-alpha: RBF kernels mixed over lengthscales, RBF itself as alpha grows."""

    alpha: Array = param(positive, default=1.0)

    def __check_init__(self):
        self._check_ranks(alpha=0)

    def of_squared_distance(self, r2):
        return self.variance * jnp.exp(-self.alpha * jnp.log1p(r2 / (2.0 * self.alpha)))

    def frequencies(self, shape, *, key):
        # E exp(-precision r^2 / 2) over precision ~ Gamma(alpha, rate alpha) is the kernel.
        key_normal, key_gamma = jax.random.split(key)
        precision = jax.random.gamma(key_gamma, self.alpha, (shape[0], 1)) / self.alpha
        return jax.random.normal(key_normal, shape) * jnp.sqrt(precision)
