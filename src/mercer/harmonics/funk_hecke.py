"""Funk-Hecke coefficients: what a function of t = x . x' does to harmonics of each degree (paper 001, theorem 6).

    integral of kappa(x . x') phi(x') over the sphere = lambda_n phi(x),      lambda_n = E[kappa(t) R_n(t)],

for every harmonic phi of degree n, with x' uniform and t a coordinate of it. So kappa(t) = sum_n lambda_n N_n R_n(t), and
the sum of lambda_n N_n is kappa(1).

Quadrature is in the angle, t = cos(theta), by Gauss and Legendre on each half of [0, pi]: kernels of the chordal distance and of
arc-cosines are smooth functions of the angle up to its ends, though not of t, and activations have their kink in the middle.

Where the n-th derivative of kappa is known, positive, Rodrigues' formula gives coefficients without any cancellation,

    lambda_n = E[kappa^(n)(t)] / (d (d + 2) ... (d + 2n - 2)),      t a coordinate of a point of the sphere in R^(d + 2n),

to full relative precision, also where they are far below the rounding of kappa(1).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import gammaln

from mercer.harmonics.gegenbauer import check_dimension, check_levels, legendre, num_harmonics

_NODES = 400  # in each half


def _gauss_legendre(num: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [-1, 1], by Newton's method for the angles of the nodes, in long doubles.

    With as many nodes as here, the weights that NumPy and SciPy give are wrong by 1e-13 near the ends.
    """
    angle = np.pi * (np.arange(num, 0, -1, dtype=np.longdouble) - 0.25) / (num + 0.5)
    for _ in range(6):
        x = np.cos(angle)
        before, last = np.ones_like(x), x
        for n in range(1, num):
            before, last = last, ((2 * n + 1) * x * last - n * before) / (n + 1)
        slope = num * (before - x * last) / np.sin(angle)  # of the polynomial, by the angle, downwards
        angle = angle + last / slope
    return np.cos(angle).astype(float), (2.0 / slope**2).astype(float)


@functools.cache
def _angles() -> tuple[np.ndarray, np.ndarray]:
    """Angles in (0, pi), and the logarithms of their weights."""
    x, w = _gauss_legendre(_NODES)
    half = 0.25 * np.pi * (x + 1.0)
    return np.concatenate([half, 0.5 * np.pi + half]), np.log(np.concatenate([w, w]) * 0.25 * np.pi)


def _log_density(dimension: float, theta: np.ndarray) -> np.ndarray:
    """log of the density of the angle theta of a uniform point of the sphere in R^d from a fixed one."""
    normaliser = gammaln(0.5 * dimension) - gammaln(0.5 * (dimension - 1.0)) - 0.5 * np.log(np.pi)
    return normaliser + (dimension - 2.0) * np.log(np.sin(theta))


@functools.lru_cache(maxsize=64)
def _rule(dimension: int, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """cos(theta) [K], and what turns values there into coefficients, [levels, K]."""
    theta, log_weights = _angles()
    weights = np.exp(_log_density(dimension, theta) + log_weights)
    return np.cos(theta), legendre(dimension, levels, np.cos(theta)) * weights


def funk_hecke(
    shape: Callable[[Float[Array, " K"]], Float[Array, " K"]], dimension: int, levels: int, dtype: Any = float
) -> Float[Array, " levels"]:
    """The coefficients lambda_n, n = 0 ... levels - 1, of shape(t) on the sphere in R^d, by quadrature.

    The error is below 1e-12 / sqrt(N_n) of the largest value of the shape, in float64 (seen: 5e-14).
    """
    check_dimension(dimension)
    check_levels(levels)
    t, weights = _rule(int(dimension), int(levels))
    # Rows of size 1 / sqrt(N_n), so that in float32 nothing is lost by their scale.
    root = np.sqrt([float(num_harmonics(dimension, n)) for n in range(levels)])
    values = shape(jnp.asarray(t, dtype))
    scaled = jnp.matmul(jnp.asarray(weights * root[:, None], values.dtype), values, precision=jax.lax.Precision.HIGHEST)
    return scaled / jnp.asarray(root, values.dtype)


def constant_coefficients(shape: Callable, dimension: int, levels: int) -> np.ndarray:
    """The coefficients of a shape without parameters, worked out at once and in double precision, whatever JAX is set to."""
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        return np.asarray(funk_hecke(shape, dimension, levels, np.float64))


@functools.lru_cache(maxsize=64)
def _rodrigues(dimension: int, levels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """1 - cos(theta) [K], the logarithms of weights [levels, K], and of d (d + 2) ... (d + 2n - 2) [levels]."""
    theta, log_weights = _angles()
    n = np.arange(levels)
    log_weights = np.stack([_log_density(dimension + 2.0 * k, theta) for k in range(levels)]) + log_weights
    divisors = n * np.log(2.0) + gammaln(0.5 * dimension + n) - gammaln(0.5 * dimension)
    return 2.0 * np.sin(0.5 * theta) ** 2, log_weights, divisors


def coefficients_of_derivatives(
    log_derivatives: Callable[[Float[Array, " K"], np.ndarray], Float[Array, "L K"]],
    dimension: int,
    levels: int,
    dtype: Any,
) -> Float[Array, " levels"]:
    """The coefficients lambda_n of a shape whose derivatives are positive, from log kappa^(n) as a function of 1 - t and of n."""
    check_dimension(dimension)
    check_levels(levels)
    gap, log_weights, divisors = _rodrigues(int(dimension), int(levels))
    logs = log_derivatives(jnp.asarray(gap, dtype), np.arange(levels)) + jnp.asarray(log_weights, dtype)
    return jnp.exp(jax.scipy.special.logsumexp(logs, axis=1) - jnp.asarray(divisors, dtype))


def rectified_coefficients(order: int, dimension: int, levels: int) -> np.ndarray:
    """The coefficients of the unit max(0, t)^order (order 0 is the step), in closed form.

    Rodrigues' formula again: up to n = order the derivatives are powers of max(0, t); above, derivatives of a delta
    function at 0, which see those of the density of t there. Every second one is 0.
    """
    d, p = float(dimension), order
    values = np.zeros(levels)
    for n in range(levels):
        D = d + 2.0 * n
        divisor = n * np.log(2.0) + gammaln(0.5 * D) - gammaln(0.5 * d)
        if n <= p:
            q = p - n
            moment = (
                gammaln(0.5 * (q + 1)) + gammaln(0.5 * D) - 0.5 * np.log(np.pi) - gammaln(0.5 * (D + q)) - np.log(2.0)
            )
            values[n] = np.exp(gammaln(p + 1) - gammaln(q + 1) + moment - divisor)
        elif (n - p) % 2 == 1:
            j, a = (n - p - 1) // 2, 0.5 * (D - 3.0)
            density = gammaln(0.5 * D) - 0.5 * np.log(np.pi) - gammaln(0.5 * (D - 1.0))
            binomial = gammaln(a + 1.0) - gammaln(j + 1.0) - gammaln(a - j + 1.0)
            log_value = gammaln(p + 1) + density + gammaln(2 * j + 1) + binomial - divisor
            values[n] = (-1.0) ** j * np.exp(log_value)
    return values
