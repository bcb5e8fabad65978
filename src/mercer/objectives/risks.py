"""Risks: what predictions cost on the data, one number for each row. With a divergence they make up `GVI` (paper 000, 4.3).

A risk is a loss averaged over q(f), the Gaussian (or mixture of Gaussians) of the latent values at a row. The loss of Bayes'
rule is -log p(y | f); others count an outlier less, or score what is predicted. Rows are scored on their own, and a NaN in Y
drops out, so that the mean over a minibatch is an unbiased estimate of that over the data.
"""

import abc
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.likelihoods import Gaussian as GaussianNoise
from mercer.likelihoods import HeteroskedasticGaussian, Likelihood, PerOutput, RobustMax
from mercer.likelihoods.of_predictions import expected_log_prob, log_predictive, observations
from mercer.parameters import Module, cast, constant, is_concrete
from mercer.processes import Gaussian, Mixture
from mercer.validation import AnyArray

__all__ = [
    "Risk",
    "ExpectedNegativeLogLikelihood",
    "NegativeLogPredictive",
    "CrossEntropy",
    "SquaredError",
    "BetaDivergence",
    "GammaDivergence",
]


class Risk(Module):
    """A cost for each row of data. A new risk says `_terms`, and in `check` which likelihoods it is for."""

    expected: ClassVar[bool] = False  # whether it is an expectation of log p(y | f)

    def __call__(
        self,
        likelihood: Likelihood,
        latent: Gaussian | Mixture,
        Y: Float[AnyArray, "B P"],
        X: Float[Array, "B D"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, " B"]:
        """The cost of each row, summed over the outputs that are not NaN; `latent` is q(f) in the likelihood's layout."""
        self.check(likelihood)
        return self._terms(cast(likelihood, latent.mean.dtype), latent, jnp.asarray(Y, latent.mean.dtype), X, key)

    @abc.abstractmethod
    def _terms(
        self, likelihood: Any, latent: Gaussian | Mixture, Y: Array, X: Array | None, key: PRNGKeyArray | None
    ) -> Array:
        """The cost of each row, of arrays in one dtype."""

    def check(self, likelihood: Likelihood) -> None:
        """Refuses a likelihood that the risk has no meaning for. Called before anything is compiled."""


def _refuse(risk: Risk, expected: str, likelihood: Any) -> None:
    raise ValueError(f"{type(risk).__name__} expects {expected}, got {type(likelihood).__name__}")


class ExpectedNegativeLogLikelihood(Risk):
    """-E_q[log p(y | f)], in nats: the loss of Bayes' rule. With KL, `GVI` is then minus the evidence lower bound."""

    expected = True

    def _terms(self, likelihood, latent, Y, X, key):
        return -expected_log_prob(likelihood, latent, Y, X, key)


class NegativeLogPredictive(Risk):
    """-log E_q[p(y | f)], in nats: minus the log density that is predicted."""

    def _terms(self, likelihood, latent, Y, X, key):
        return -log_predictive(likelihood, latent, Y, X, key)


class CrossEntropy(Risk):
    """-log(p_y / sum_c p_c), in nats, with p_c the predicted probability of class c.

    For `Bernoulli`, `Ordinal`, `RobustMax` and `Softmax`. The probabilities of `RobustMax` are by quadrature and may miss a
    sum of 1; those of the others have it, and this is their `NegativeLogPredictive`.
    """

    def check(self, likelihood):
        if likelihood.num_classes is None:
            _refuse(self, "a Bernoulli, Ordinal, RobustMax or Softmax likelihood", likelihood)

    def _terms(self, likelihood, latent, Y, X, key):
        terms = NegativeLogPredictive()._terms(likelihood, latent, Y, X, key)
        if not isinstance(likelihood, RobustMax):
            return terms
        total = jnp.sum(observations(likelihood, latent, X, key).mean, axis=1)
        return terms + jnp.where(jnp.isnan(Y[:, 0]), 0.0, jnp.log(total))


class SquaredError(Risk):
    """E_q (y - f)^2 = (y - m)^2 + v, in the units of y squared; the noise of the likelihood plays no part."""

    def check(self, likelihood):
        parts = likelihood.likelihoods if isinstance(likelihood, PerOutput) else (likelihood,)
        if any(part.discrete or isinstance(part, HeteroskedasticGaussian) for part in parts):
            _refuse(self, "a likelihood of real numbers with one latent for each output", likelihood)

    def _terms(self, likelihood, latent, Y, X, key):
        _check_shape(latent, Y)
        return _sum_observed(lambda y: (y - latent.mean) ** 2 + latent.variance, Y)


class _Robust(Risk):
    """A loss that is bounded in y, for a Gaussian likelihood; of each output on its own."""

    def check(self, likelihood):
        if not isinstance(likelihood, GaussianNoise):
            _refuse(self, "a Gaussian likelihood", likelihood)

    def _terms(self, likelihood, latent, Y, X, key):
        _check_shape(latent, Y)
        noise = likelihood.noise_variance(Y.shape, X)

        def terms(q):
            return _sum_observed(lambda y: self._loss(y - q.mean, jnp.maximum(q.variance, 0.0), noise), Y)

        return latent.average(terms)

    @abc.abstractmethod
    def _loss(self, residual: Array, var: Array, noise: Array) -> Array:
        """E_q of the loss, element by element."""


class BetaDivergence(_Robust):
    """-E_q[p(y | f)^(beta - 1)] / (beta - 1) + (1 / beta) int p^beta dy, beta > 1 (Knoblauch, Jewson and Damoulas, 2022).

    Plus 1 / (beta - 1) - 1 it tends to -log p as beta tends to 1. It is bounded in y: an outlier costs as much as any other.
    """

    beta: Array = constant(default=1.5)

    def __check_init__(self):
        _check_power(self, "beta")

    def _loss(self, residual, var, noise):
        beta = jnp.asarray(self.beta, residual.dtype)
        power = jnp.exp(_log_expected_power(beta - 1.0, residual, var, noise))
        return -power / (beta - 1.0) + jnp.exp(_log_integral(beta, noise)) / beta


class GammaDivergence(_Robust):
    """-gamma / (gamma - 1) E_q[p(y | f)^(gamma - 1)] / (int p^gamma dy)^((gamma - 1) / gamma), gamma > 1.

    Knoblauch, Jewson and Damoulas (2022). Plus 1 / (gamma - 1) + 1 it tends to -log p as gamma tends to 1. It is bounded in y.
    """

    gamma: Array = constant(default=1.5)

    def __check_init__(self):
        _check_power(self, "gamma")

    def _loss(self, residual, var, noise):
        gamma = jnp.asarray(self.gamma, residual.dtype)
        rest = gamma - 1.0
        log_power = _log_expected_power(rest, residual, var, noise) - rest / gamma * _log_integral(gamma, noise)
        return -gamma / rest * jnp.exp(log_power)


def _check_power(risk: Risk, name: str) -> None:
    value = getattr(risk, name)
    if np.shape(value) != () or (is_concrete(value) and not 1.0 < np.asarray(value) < np.inf):
        raise ValueError(f"{type(risk).__name__}: {name} expects a finite number greater than 1, got {value}")


def _log_expected_power(c: Array, residual: Array, var: Array, noise: Array) -> Array:
    """log E[N(y; f, noise)^c], f ~ N(y - residual, var)."""
    scale = -0.5 * (c * jnp.log(2.0 * jnp.pi * noise) + jnp.log1p(c * var / noise))
    return scale - 0.5 * c * residual**2 / (noise + c * var)


def _log_integral(power: Array, noise: Array) -> Array:
    """log int N(y; f, noise)^power dy."""
    return -0.5 * ((power - 1.0) * jnp.log(2.0 * jnp.pi * noise) + jnp.log(power))


def _check_shape(latent: Gaussian | Mixture, Y: Array) -> None:
    if Y.shape != latent.mean.shape:
        raise ValueError(f"Y expects the shape {latent.mean.shape} of the latent values, got {Y.shape}")


def _sum_observed(terms: Any, Y: Float[Array, "B P"]) -> Float[Array, " B"]:
    """The sum of the terms of the outputs that are not NaN, which reaches neither the value nor the derivative."""
    missing = jnp.isnan(Y)
    return jnp.sum(jnp.where(missing, 0.0, terms(jnp.where(missing, 0.0, Y))), axis=1)
