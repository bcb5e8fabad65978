"""Expectations under Gaussian marginals: the one quadrature and the one Monte Carlo rule behind every likelihood.

Gauss-Hermite quadrature for functions of one latent: E[g(f)] = sum_k w_k g(mean + sqrt(var) z_k), exact for polynomials
of degree 2 K - 1. Randomised quasi-Monte Carlo for functions of several: Sobol's points, shifted at random modulo one
(Cranley and Patterson, 1976), so that each point is uniform, the average unbiased, and its error several times smaller
than that of independent draws.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp, ndtri
from jaxtyping import Array, Float, PRNGKeyArray

Elementwise = Callable[[Float[Array, "..."]], Float[Array, "..."]]
Moments = tuple[Float[Array, "..."], Float[Array, "..."]]


def standard_deviation(var: Float[Array, "..."]) -> Float[Array, "..."]:
    """sqrt(var), with derivative 0 where the variance is 0 (or negative by rounding)."""
    return jnp.sqrt(jnp.maximum(var, jnp.finfo(var.dtype).tiny))


def _nodes(mean, var, num_points):
    """f_k = mean + sqrt(var) z_k, the nodes along a new first axis, and their log weights [K]."""
    z, weights = np.polynomial.hermite_e.hermegauss(num_points)
    z, log_weights = jnp.asarray(z, mean.dtype), jnp.asarray(np.log(weights / weights.sum()), mean.dtype)
    return mean + standard_deviation(var) * z.reshape(-1, *[1] * mean.ndim), log_weights


def expectation(
    function: Elementwise, mean: Float[Array, "..."], var: Float[Array, "..."], num_points: int
) -> Float[Array, "..."]:
    """E[g(f)], f ~ N(mean, var), element by element. `function` sees one more axis, in front."""
    f, log_weights = _nodes(mean, var, num_points)
    return jnp.tensordot(jnp.exp(log_weights), function(f), axes=1)


def log_expectation(
    log_function: Elementwise, mean: Float[Array, "..."], var: Float[Array, "..."], num_points: int
) -> Float[Array, "..."]:
    """log E[exp(h(f))], f ~ N(mean, var), element by element."""
    f, log_weights = _nodes(mean, var, num_points)
    return logsumexp(log_function(f) + log_weights.reshape(-1, *[1] * mean.ndim), axis=0)


def moments(
    conditional: Callable[[Float[Array, "..."]], Moments],
    mean: Float[Array, "..."],
    var: Float[Array, "..."],
    num_points: int,
) -> Moments:
    """E[y] and Var[y] = E[Var[y | f]] + Var[E[y | f]], from `conditional`: f -> (E[y | f], Var[y | f])."""
    f, log_weights = _nodes(mean, var, num_points)
    weights, (y_mean, y_var) = jnp.exp(log_weights), conditional(f)
    average = jnp.tensordot(weights, y_mean, axes=1)
    return average, jnp.tensordot(weights, y_var + (y_mean - average) ** 2, axes=1)


@functools.cache
def _sobol(num_samples: int, dimension: int) -> np.ndarray:
    """The first points of Sobol's sequence, in [0, 1), [S, L]."""
    from scipy.stats import qmc  # half a second to import, and only a few likelihoods sample

    return qmc.Sobol(dimension, scramble=False).random_base2((num_samples - 1).bit_length())[:num_samples]


def samples(
    mean: Float[Array, "N L"], var: Float[Array, "N L"], num_samples: int, key: PRNGKeyArray | None
) -> Float[Array, "S N L"]:
    """Draws of f ~ N(mean, var).

    With a key every row has its own random shift: averages are unbiased, and independent between rows. With none, all
    rows share one fixed shift: the same numbers in every call, whichever rows come together.
    """
    num_rows, dimension = mean.shape
    points = jnp.asarray(_sobol(num_samples, dimension), mean.dtype)[:, None, :]
    if key is None:
        shift = jnp.full((1, dimension), 0.5 / num_samples, mean.dtype)
    else:
        shift = jax.random.uniform(key, (num_rows, dimension), mean.dtype)
    edge = jnp.finfo(mean.dtype).eps
    z = ndtri(jnp.clip((points + shift) % 1.0, edge, 1.0 - edge))
    return mean + standard_deviation(var) * z
