"""Gegenbauer polynomials, which are to the sphere in R^d what cosines are to the circle (paper 001, section 3.4).

With alpha = (d - 2) / 2, C_n is orthogonal to all polynomials of lower degree under the weight (1 - t^2)^(alpha - 1/2), that of
t = x . e for a uniform point x of the sphere. Divided by C_n(1) it is R_n, with |R_n| <= 1 in any dimension, and the addition
theorem reads

    sum_j phi_nj(x) phi_nj(x') = N_n R_n(x . x').

Three-term recurrences: monomial coefficients of both signs would cancel.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.validation import AnyArray


def check_dimension(dimension: Any) -> None:
    """Refuses what is not the dimension of a space with a sphere that has harmonics."""
    if not isinstance(dimension, int | np.integer) or isinstance(dimension, bool) or dimension < 2:
        raise ValueError(f"dimension expects a whole number of at least 2 (the sphere in R^d), got {dimension!r}")


def check_levels(levels: Any) -> None:
    """Refuses what is not a number of levels."""
    if not isinstance(levels, int | np.integer) or isinstance(levels, bool) or levels < 1:
        raise ValueError(f"levels expects a whole number of at least 1 (degrees 0 to levels - 1), got {levels!r}")


def num_harmonics(dimension: int, level: int) -> int:
    """N_n, how many harmonics of degree n = `level` there are on the sphere in R^d (equation 3.18)."""
    check_dimension(dimension)
    check_levels(level + 1)
    d, n = int(dimension), int(level)
    return math.comb(n + d - 1, n) - (math.comb(n + d - 3, n - 2) if n > 1 else 0)


def gegenbauer(level: int, alpha: float, t: Float[AnyArray, "*shape"]) -> Float[Array, "*shape"]:
    """C_n^(alpha)(t), n = `level`; at alpha = 0 the Chebyshev polynomial cos(n arccos t)."""
    check_levels(level + 1)
    if not alpha > -0.5:
        raise ValueError(f"alpha expects a number above -1/2, got {alpha}")
    t = jnp.asarray(t)
    if level == 0:
        return jnp.ones_like(t)
    n = np.arange(2, level + 1)
    # n C_n = 2 (n + alpha - 1) t C_{n-1} - (n + 2 alpha - 2) C_{n-2}
    by_t, by_last = (
        (2.0 * (n + alpha - 1.0) / n, (n + 2.0 * alpha - 2.0) / n) if alpha else (0.0 * n + 2.0, 0.0 * n + 1.0)
    )

    def step(pair, weights):
        before, last = pair
        return (last, weights[0] * t * last - weights[1] * before), None

    weights = jnp.asarray(np.stack([by_t, by_last], axis=1), t.dtype)
    first = (2.0 * alpha if alpha else 1.0) * t
    return jax.lax.scan(step, (jnp.ones_like(t), first), weights)[0][1]


def legendre(dimension: int, levels: int, t: np.ndarray) -> np.ndarray:
    """R_n(t) = C_n(t) / C_n(1) of the sphere in R^d for all levels, [levels, ...], as constants in double precision."""
    t = np.asarray(t, np.float64)
    values = [np.ones_like(t), t]
    for n in range(1, levels - 1):
        values.append(_by_t(dimension, n) * t * values[n] - _by_last(dimension, n) * values[n - 1])
    return np.stack(values[:levels])


# (n + d - 2) R_{n+1} = (2n + d - 2) t R_n - n R_{n-1}
def _by_t(dimension: int, n: int) -> float:
    return (2.0 * n + dimension - 2.0) / (n + dimension - 2.0)


def _by_last(dimension: int, n: int) -> float:
    return n / (n + dimension - 2.0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def zonal_series(dimension: int, weights: Float[Array, " L"], t: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """sum_n weights_n R_n(t) on the sphere in R^d.

    R_n' is n (n + d - 2) / (d - 1) times the R_{n-1} of two dimensions more: the derivative is a series, too, and nothing
    as large as all of the R_n is kept for it.
    """
    before, last, total = jnp.zeros_like(t), jnp.ones_like(t), weights[0] * jnp.ones_like(t)
    for n in range(len(weights) - 1):
        by_t, by_last = (1.0, 0.0) if n == 0 else (_by_t(dimension, n), _by_last(dimension, n))
        before, last = last, by_t * t * last - by_last * before
        total = total + weights[n + 1] * last
    return total


@zonal_series.defjvp
def _zonal_series_jvp(dimension, primals, tangents):
    (weights, t), (d_weights, dt) = primals, tangents
    n = np.arange(1, len(weights))
    if not len(n):
        return zonal_series(dimension, weights, t), d_weights[0] * jnp.ones_like(t)
    inner = weights[1:] * jnp.asarray(n * (n + dimension - 2.0) / (dimension - 1.0), weights.dtype)
    change = zonal_series(dimension + 2, inner, t) * dt + zonal_series(dimension, d_weights, t)
    return zonal_series(dimension, weights, t), change


def log_num_harmonics(dimension: int, levels: np.ndarray) -> np.ndarray:
    """log N_n of some degrees."""
    return np.array([math.log(num_harmonics(dimension, int(n))) for n in levels])


def root_num_harmonics(dimension: int, levels: int) -> np.ndarray:
    """sqrt(N_n) of degrees 0 to levels - 1."""
    return np.array([math.sqrt(num_harmonics(dimension, n)) for n in range(levels)])


def zonal_features(
    key: PRNGKeyArray, num: int, X: Float[Array, "N d"], shares: Float[Array, " L"]
) -> Float[Array, "N F"]:
    """Random functions with the covariance sum_n shares_n R_n(x . x'): sqrt(N_n) R_n(w . x) around random points w.

    By the addition theorem E[N_n R_n(w . x) R_n(w . x')] = R_n(x . x') for w uniform on the sphere. n is drawn in
    proportion to the shares.
    """
    dimension, total = X.shape[1], jnp.sum(shares)
    key_w, key_n = jax.random.split(key)
    w = jax.random.normal(key_w, (num, dimension), X.dtype)
    w = w / jnp.linalg.norm(w, axis=1, keepdims=True)
    degree = jax.random.categorical(key_n, jnp.log(jnp.where(total > 0.0, shares, 1.0)), shape=(num,))
    roots = jnp.asarray(np.exp(0.5 * log_num_harmonics(dimension, np.arange(len(shares)))), X.dtype)
    t = jnp.matmul(X, w.T, precision=jax.lax.Precision.HIGHEST)

    def step(state, n):
        before, last, chosen = state
        n = n.astype(X.dtype)
        following = ((2.0 * n + dimension - 2.0) * t * last - n * before) / (n + dimension - 2.0)
        following = jnp.where(n == 0.0, t, following)
        return (last, following, jnp.where(degree == n + 1.0, following, chosen)), None

    start = (jnp.zeros_like(t), jnp.ones_like(t), jnp.ones_like(t))
    chosen = jax.lax.scan(step, start, jnp.arange(len(shares) - 1))[0][2]
    return jnp.sqrt(total / num).astype(X.dtype) * roots[degree] * chosen
