"""Functions of one variable that keep their digits where two Gaussians are nearly equal, and where they are far apart.

Divergences between Gaussians are differences of nearly equal numbers in the first case, and of numbers of very different size in
the second. With s = log v_q - log v_p both are harmless, given the functions here. Each has its derivative written down,
because that of a formula in pieces would see the pieces that were not chosen.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_SMALL = 0.25  # below it a power series, with as many terms as float64 can see


def _horner(x: Array, coefficients: list[float]) -> Array:
    """sum_k coefficients[k] x^k."""
    return functools.reduce(lambda total, c: total * x + c, reversed(coefficients), jnp.zeros_like(x))


@jax.custom_jvp
def log_ratio(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """log a - log b, for positive numbers of the same shape."""
    near = (a > 0.5 * b) & (a < 2.0 * b)
    return jnp.where(near, jnp.log1p(jnp.where(near, (a - b) / b, 0.0)), jnp.log(a) - jnp.log(b))


@log_ratio.defjvp
def _log_ratio_jvp(primals, tangents):
    (a, b), (da, db) = primals, tangents
    return log_ratio(a, b), da / a - db / b


@jax.custom_jvp
def exp_excess(s: Float[Array, "..."]) -> Float[Array, "..."]:
    """exp(s) - 1 - s: never negative, s^2 / 2 near 0."""
    small = jnp.abs(s) < _SMALL
    series = s * s * _horner(jnp.where(small, s, 0.0), [1.0 / math.factorial(k) for k in range(2, 16)])
    return jnp.where(small, series, jnp.expm1(s) - s)


@exp_excess.defjvp
def _exp_excess_jvp(primals, tangents):
    (s,), (ds,) = primals, tangents
    return exp_excess(s), jnp.expm1(s) * ds


@jax.custom_jvp
def log1p_deficit(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x - log(1 + x): never negative, x^2 / 2 near 0, where log(1 + x) = 2 artanh(u), u = x / (2 + x), and x - 2 u = x u."""
    small = jnp.abs(x) < _SMALL
    near = jnp.where(small, x, 0.0)
    u = near / (2.0 + near)
    series = near * u - 2.0 * u**3 * _horner(u * u, [1.0 / (2 * k + 3) for k in range(10)])
    return jnp.where(small, series, x - jnp.log1p(x))


@log1p_deficit.defjvp
def _log1p_deficit_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return log1p_deficit(x), x / (1.0 + x) * dx


@jax.custom_jvp
def log_cosh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """log cosh(x): x^2 / 2 near 0, |x| - log 2 far from it."""
    size = jnp.abs(x)
    near = jnp.log1p(2.0 * jnp.sinh(0.5 * jnp.minimum(size, 1.0)) ** 2)
    return jnp.where(size < 1.0, near, size + jnp.log1p(jnp.exp(-2.0 * size)) - math.log(2.0))


@log_cosh.defjvp
def _log_cosh_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return log_cosh(x), jnp.tanh(x) * dx


def renyi_excess(alpha: Float[Array, ""], s: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(alpha + (1 - alpha) exp(s)) / (1 - alpha) - s, which is exp(s) - 1 - s at alpha = 1; infinite where undefined.

    With w = 1 - alpha and e = exp(s) - 1 it is log(1 + w e) / w - s, near s = 0 as exp_excess(s) - log1p_deficit(w e) / w. These
    two cancel as alpha tends to 0; then it is alpha / (1 - alpha) times the same of 1 - alpha and -s.
    """
    swap = alpha < 0.5
    w, t = jnp.where(swap, alpha, 1.0 - alpha), jnp.where(swap, -s, s)
    scale = jnp.where(swap, alpha / jnp.where(swap, 1.0 - alpha, 1.0), 1.0)
    near, is_limit = jnp.abs(t) < 1.0, w == 0.0
    divisor = jnp.where(is_limit, 1.0, w)

    def w_e(t):
        """w e, at least -1; a stand-in where that is too little."""
        x = w * jnp.expm1(t)
        return x > -1.0, jnp.where(x > -1.0, x, 0.0)

    excess, x_near = exp_excess(jnp.where(near | is_limit, t, 0.0)), w_e(jnp.where(near, t, 0.0))[1]
    defined, x = w_e(t)
    close, far = excess - log1p_deficit(x_near) / divisor, jnp.log1p(x) / divisor - t
    value = jnp.where(is_limit, excess, jnp.where(near, close, far))
    return jnp.where(defined, scale * value, jnp.inf)
