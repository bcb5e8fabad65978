"""Calibration: what a model says of its uncertainty, corrected by data that it was not trained on.

Tempering scales the variance of a posterior by a factor that makes held-out data likely (paper 000, equations 5.9 and 5.10;
Wild et al., 2022). Split-conformal intervals are as wide as held-out residuals say; if these and new data are exchangeable,
the intervals hold a new observation with the probability asked for, whatever the model (Vovk et al., 2005; Lei et al., 2018).
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real
from scipy import optimize

from mercer import validation
from mercer.kernels import Kernel
from mercer.kernels import Tempered as TemperedKernel
from mercer.likelihoods import Gaussian, Likelihood
from mercer.likelihoods.of_predictions import log_predictive, observations
from mercer.linalg import quiet_blas
from mercer.model import Model, check_latents
from mercer.parameters import Module, cast, constant, param, real
from mercer.processes import GP, Process, Tempered
from mercer.validation import AnyArray

__all__ = ["temper", "conformal", "Conformal", "ScaledVariance"]

_LARGEST = 12.0  # of |log factor|


def _held_out(model: Any, X: AnyArray, Y: AnyArray) -> tuple[Array, Array]:
    if not isinstance(model, Model):
        raise ValueError(f"model expects a mercer.Model, got {type(model).__name__}")
    if len(X) == 0:
        raise ValueError("the validation set is empty: X must have at least one row")
    X = validation.inputs(X)
    Y = validation.outputs(Y, len(X), discrete=model.likelihood.discrete).astype(X.dtype)
    check_latents(model, Y)
    model.likelihood.validate(Y)
    missing = np.flatnonzero(np.isnan(np.asarray(Y)).all(axis=0))
    if len(missing):
        raise ValueError(f"the validation set is empty for output {missing[0]}: Y holds nothing but NaN there")
    return X, Y


def temper(model: Model, X: Float[AnyArray, "N D"], Y: Real[AnyArray, "N P"]) -> Model:
    """The model with its uncertainty scaled so that held-out data (X, Y) are as likely as they can be.

    With a Gaussian likelihood, y ~ N(m, factor (v + noise)) with a factor for each output (5.10), the mean of the squared
    residuals (y - m)^2 / (v + noise). With any other the variances of the latent functions (one for each class) are scaled,
    by the factors of largest log predictive density. All else is held fixed.
    """
    X, Y = _held_out(model, X, Y)
    latent = model.posterior.predict(X)
    likelihood = cast(model.likelihood, X.dtype)
    if isinstance(likelihood, Gaussian):
        mean, variance = observations(likelihood, latent, X)
        factor = jnp.nanmean((Y - mean) ** 2 / variance, axis=0)
        return Model(_tempered(model.posterior, factor), _scaled_noise(likelihood, factor))
    if likelihood.layout != "diag":
        raise ValueError(
            f"temper: {type(likelihood).__name__} takes covariances between outputs, which have no one factor"
        )
    return Model(_tempered(model.posterior, _best_factors(likelihood, latent, Y, X)), model.likelihood)


def _best_factors(likelihood: Likelihood, latent: Any, Y: Array, X: Array) -> Float[Array, " L"]:
    """The factors of largest log predictive density, by L-BFGS in their logarithms."""

    @eqx.filter_jit
    def loss(log_factor, likelihood, latent, Y, X):
        tempered = latent.scaled(jnp.exp(0.5 * log_factor).astype(X.dtype))
        return -jnp.mean(log_predictive(likelihood, tempered, Y, X))

    gradient = eqx.filter_value_and_grad(loss)

    def at(log_factor: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = gradient(jnp.asarray(log_factor), likelihood, latent, Y, X)
        return float(value), np.asarray(slope, float)

    L = latent.mean.shape[1]
    with quiet_blas():
        found = optimize.minimize(at, np.zeros(L), jac=True, method="L-BFGS-B", bounds=[(-_LARGEST, _LARGEST)] * L)
    return jnp.asarray(np.exp(found.x), X.dtype)


def _tempered(posterior: Process, factor: Float[Array, " P"]) -> Process:
    """A `GP` of one output keeps its form; any other process is wrapped."""
    if isinstance(posterior, GP) and isinstance(posterior.kernel, Kernel) and len(factor) == 1:
        return GP(TemperedKernel(posterior.kernel, factor[0]), posterior.mean)
    return Tempered(posterior, factor)


class ScaledVariance(Module):
    """factor * function(X), [N, P]: the noise of a tempered likelihood whose variance is a function of the input."""

    function: Callable[[Float[Array, "N D"]], Float[Array, "N P"]] = param(real)
    factor: Float[Array, " P"] = constant()

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        """The variances at the rows of X."""
        return self.factor.astype(X.dtype) * self.function(X)


def _scaled_noise(likelihood: Gaussian, factor: Float[Array, " P"]) -> Gaussian:
    if likelihood.variance_function is not None:
        return Gaussian(ScaledVariance(likelihood.variance_function, factor))
    variance = jnp.asarray(likelihood.variance)
    return Gaussian((factor[0] if len(factor) == 1 else factor) * variance)


class Conformal(Module):
    """Intervals mean -+ half_width * standard deviation, from `conformal`. `half_width` [P] is in predicted deviations."""

    level: float = eqx.field(static=True)
    model: Model = constant()
    half_width: Float[Array, " P"] = constant()

    def intervals(self, X: Float[AnyArray, "N D"]) -> tuple[Float[Array, "N P"], Float[Array, "N P"]]:
        """The lower and the upper ends of the intervals for observations at X."""
        mean, variance = self.model.predict(X)
        half = self.half_width.astype(mean.dtype) * jnp.sqrt(variance)
        return mean - half, mean + half


def conformal(model: Model, X: Float[AnyArray, "N D"], Y: Real[AnyArray, "N P"], level: float = 0.9) -> Conformal:
    """Intervals that hold a new observation with probability `level` or more, by held-out data (X, Y).

    With n scores |y - m| / s, the half width is the ceil((n + 1) level)-th smallest. The coverage is at least the level,
    and at most 1 / (n + 1) more where no two scores are equal; it is an average over inputs, not a promise at each.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level expects a probability strictly between 0 and 1, got {level}")
    X, Y = _held_out(model, X, Y)
    if model.likelihood.discrete:
        raise ValueError(
            f"conformal: {type(model.likelihood).__name__} is over the integers, intervals are of real numbers"
        )
    mean, variance = jax.tree.map(np.asarray, tuple(model.predict(X)))
    scores = np.abs(np.asarray(Y) - mean) / np.sqrt(variance)
    widths = jnp.asarray([_quantile(column[~np.isnan(column)], level) for column in scores.T])
    return Conformal(level, model, widths)


def _quantile(scores: np.ndarray, level: float) -> float:
    rank = math.ceil(round((len(scores) + 1) * level, 9))  # 0.9 * 10 is 9, also in binary
    if rank > len(scores):
        needed = math.ceil(round(level / (1.0 - level), 9))
        raise ValueError(f"intervals of level {level} need at least {needed} held-out observations, got {len(scores)}")
    return float(np.sort(scores)[rank - 1])
