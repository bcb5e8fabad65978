"""Gaussian likelihoods: noise of one variance, of a variance that varies, and correlated between outputs.

Every expectation has a closed form. With noise covariance R and f ~ N(m, V), the predictive is N(m, V + R), and
E[log N(y; f, R)] = log N(y; m, R) - tr(R^-1 V) / 2.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer.deprecation import warn
from mercer.layouts import Layout
from mercer.likelihoods import expectations
from mercer.likelihoods.base import DEFAULT_POINTS, Likelihood
from mercer.linalg import inverse_factor, matmul
from mercer.parameters import as_parameter, param, positive, positive_definite, real
from mercer.validation import OneOrMany

_LOG_2PI = float(np.log(2.0 * np.pi))


def _log_normal(y, mean, var):
    return -0.5 * (_LOG_2PI + jnp.log(var) + (y - mean) ** 2 / var)


class Gaussian(Likelihood):
    """y = f + e, e ~ N(0, variance).

    The variance is a number, a vector with one for each output, or a function of the input, X [N, D] -> [N, P] or
    [N, 1]. A function is held as `variance_function`, and `variance` is None; the parameters of a module are trained.
    """

    quadratic: ClassVar[bool] = True
    variance: Array | None = param(positive)
    variance_function: Callable | None = param(real)
    per_output: ClassVar[tuple[str, ...]] = ("variance",)

    def __init__(self, variance: OneOrMany | Callable = 0.1):
        self.variance = None if callable(variance) else as_parameter(variance)
        self.variance_function = variance if callable(variance) else None

    def noise_variance(self, shape: tuple[int, int], X: Float[Array, "N D"] | None = None) -> Float[Array, "N P"]:
        """The variance of the noise of each observation, `shape` = (N, P)."""
        if self.variance is not None:
            return jnp.broadcast_to(self.variance, shape)
        if X is None or self.variance_function is None:
            raise ValueError("Gaussian: the variance of the noise is a function of the input; pass X")
        variance = self.variance_function(X)
        if variance.shape not in (shape, (shape[0], 1)):
            raise ValueError(
                f"Gaussian: the variance at X expects shape {shape} or {(shape[0], 1)}, got {variance.shape}"
            )
        return jnp.broadcast_to(variance, shape)

    def _log_prob(self, f, y, X):
        return _log_normal(y, f, self.noise_variance(f.shape, X))

    def _expected_log_prob(self, mean, var, y, X, key):
        noise = self.noise_variance(mean.shape, X)
        return _log_normal(y, mean, noise) - 0.5 * var / noise

    def _log_predictive(self, mean, var, y, X, key):
        return _log_normal(y, mean, var + self.noise_variance(mean.shape, X))

    def _predict(self, mean, var, X, key):
        return mean, var + self.noise_variance(mean.shape, X)


class HeteroskedasticGaussian(Likelihood):
    """y = f + e, e ~ N(0, exp(g)), with two latents for each output: [f_1 ... f_P, g_1 ... g_P]."""

    num_points: int = eqx.field(static=True, default=DEFAULT_POINTS, kw_only=True)

    def num_latents(self, num_outputs):
        return 2 * num_outputs

    def _num_outputs(self, num_latents):
        return max(num_latents // 2, 1)

    def _log_prob(self, f, y, X):
        f, g = jnp.split(f, 2, axis=1)
        return _log_normal(y, f, jnp.exp(g))

    def _expected_log_prob(self, mean, var, y, X, key):
        (m_f, m_g), (v_f, v_g) = jnp.split(mean, 2, axis=1), jnp.split(var, 2, axis=1)
        # E[exp(-g)] = exp(-m_g + v_g / 2)
        return -0.5 * (_LOG_2PI + m_g + ((y - m_f) ** 2 + v_f) * jnp.exp(0.5 * v_g - m_g))

    def _log_predictive(self, mean, var, y, X, key):
        (m_f, m_g), (v_f, v_g) = jnp.split(mean, 2, axis=1), jnp.split(var, 2, axis=1)
        # Over f in closed form, over g by quadrature.
        total = v_f + (y - m_f) ** 2
        places = tuple((jnp.log(jnp.maximum(v, jnp.finfo(v.dtype).tiny)), 1.0) for v in (v_f, total))
        return expectations.log_expectation(
            lambda g: _log_normal(y, m_f, v_f + jnp.exp(g)), m_g, v_g, self.num_points, places
        )

    def _predict(self, mean, var, X, key):
        (m_f, m_g), (v_f, v_g) = jnp.split(mean, 2, axis=1), jnp.split(var, 2, axis=1)
        return m_f, v_f + jnp.exp(m_g + 0.5 * v_g)


class CorrelatedGaussian(Likelihood):
    """y = f + e, e ~ N(0, noise_covariance), correlated between the P outputs of one row.

    `var` is [N, P], or [N, P, P] where the latents are correlated too. Outputs not observed are marginalised.
    """

    noise_covariance: Float[Array, "P P"] = param(positive_definite)
    quadratic: ClassVar[bool] = True
    layout: ClassVar[Layout] = "outputs"

    def __init__(
        self,
        noise_covariance: OneOrMany | None = None,
        *,
        covariance: OneOrMany | None = None,
    ):
        if covariance is not None:
            warn("CorrelatedGaussian: covariance is called noise_covariance now")
            noise_covariance = covariance
        if noise_covariance is None:
            raise TypeError("CorrelatedGaussian expects a noise_covariance, [P, P]")
        self.noise_covariance = as_parameter(noise_covariance)

    @property
    def covariance(self) -> Any:
        """The old name of `noise_covariance`."""
        warn("CorrelatedGaussian.covariance is called noise_covariance now")
        return self.noise_covariance

    def __check_init__(self):
        if jnp.ndim(self.noise_covariance) != 2:
            raise ValueError(
                f"CorrelatedGaussian: noise_covariance expects one [P, P] matrix, got shape {jnp.shape(self.noise_covariance)}"
            )

    def num_latents(self, num_outputs):
        if num_outputs != len(self.noise_covariance):
            raise ValueError(
                f"CorrelatedGaussian: noise_covariance is of {len(self.noise_covariance)} outputs, there are {num_outputs}"
            )
        return num_outputs

    def _num_outputs(self, num_latents):
        return len(self.noise_covariance)

    def _sum_observed(self, terms, y):
        return terms(y)  # the outputs are not independent: the terms look for NaN themselves

    def _log_prob(self, f, y, X):
        return _log_marginal(y - f, self.noise_covariance)[0]

    def _expected_log_prob(self, mean, var, y, X, key):
        log_density, W, both = _log_marginal(y - mean, self.noise_covariance)
        # tr(R^-1 V) = sum of W * (W V), W = chol(R)^-1
        WV = matmul(W, jnp.where(both, _between_outputs(var), 0.0))
        return log_density - 0.5 * jnp.sum(W * WV, axis=(1, 2))

    def _log_predictive(self, mean, var, y, X, key):
        return _log_marginal(y - mean, self.noise_covariance + _between_outputs(var))[0]

    def _predict(self, mean, var, X, key):
        return mean, jnp.diagonal(self.noise_covariance + _between_outputs(var), axis1=1, axis2=2)


def _between_outputs(var):
    """[N, P] variances as [N, P, P] covariances between outputs."""
    return var if var.ndim == 3 else var[:, :, None] * jnp.eye(var.shape[1], dtype=var.dtype)


def _log_marginal(residual, covariance):
    """log N(residual; 0, covariance) over the entries that are not NaN, [N]; the inverse factor; and which pairs are observed.

    In the rows and columns of what is missing the covariance is replaced by the identity, and the residual by 0.
    """
    observed = ~jnp.isnan(residual)
    both = observed[:, :, None] & observed[:, None, :]
    W = inverse_factor(jnp.where(both, covariance, jnp.eye(residual.shape[1], dtype=residual.dtype)), always=False)
    z = matmul(W, jnp.where(observed, residual, 0.0)[:, :, None])[:, :, 0]
    log_det = -2.0 * jnp.sum(jnp.log(jnp.diagonal(W, axis1=1, axis2=2)), axis=1)
    return -0.5 * (_LOG_2PI * jnp.sum(observed, axis=1) + log_det + jnp.sum(z**2, axis=1)), W, both
