"""Averages under Gaussian windows and the RBF kernel: Gaussians convolved with Gaussians.

With windows of widths s and s', the squared lengthscale l^2 of each column grows to l^2 + s^2 + s'^2, and the height falls
by l / sqrt(l^2 + s^2 + s'^2). A point is a window of width 0.
"""

import jax.numpy as jnp
from jaxtyping import Array

from mercer.covariances.dispatch import Kuf, Kuu, Kuv
from mercer.covariances.weighted import inputs
from mercer.inducing.multiscale import Multiscale
from mercer.kernels.stationary import RBF
from mercer.linalg.operators import PSD, Dense
from mercer.linalg.products import matmul
from mercer.parameters import cast


@Kuu.dispatch
def _(inducing: Multiscale, kernel: RBF) -> PSD:
    return Dense(Kuv(inducing, kernel, inducing))


@Kuf.dispatch
def _(inducing: Multiscale, kernel: RBF, X) -> Array:
    X = inputs(inducing, X)
    dtype = jnp.result_type(inducing.Z, X)
    kernel, Z, widths = cast(kernel, dtype), inducing.Z.astype(dtype), inducing.widths().astype(dtype)
    lengthscale = kernel.per_column("lengthscale", Z)
    total = lengthscale**2 + widths**2
    # sum_d (z_d - x_d)^2 / total_d for all pairs, as one product; about a common centre, where rounding is least
    centre = jnp.mean(Z, axis=0)
    Z, X = Z - centre, X - centre
    left = jnp.concatenate([1.0 / total, -2.0 * Z / total, jnp.sum(Z**2 / total, axis=1, keepdims=True)], axis=1)
    right = jnp.concatenate([X**2, X, jnp.ones_like(X[:, :1])], axis=1)
    height = jnp.prod(lengthscale / jnp.sqrt(total), axis=1)
    return kernel.variance * height[:, None] * jnp.exp(-0.5 * matmul(left, right.T))


@Kuv.dispatch
def _(first: Multiscale, kernel: RBF, second: Multiscale) -> Array:
    kernel = cast(kernel, jnp.result_type(first.Z, second.Z))
    lengthscale = kernel.per_column("lengthscale", first.Z)
    total = lengthscale**2 + first.widths()[:, None] ** 2 + second.widths() ** 2
    r2 = jnp.sum((first.Z[:, None] - second.Z) ** 2 / total, axis=-1)
    return kernel.variance * jnp.prod(lengthscale / jnp.sqrt(total), axis=-1) * jnp.exp(-0.5 * r2)
