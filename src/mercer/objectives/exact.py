"""Objectives of exact Gaussian process regression, where the posterior is known and only the prior is learned."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from mercer.likelihoods import Gaussian
from mercer.model import Model
from mercer.objectives.base import Batch, Objective
from mercer.processes import Conditioned, Process


def conditioned(model: Any, batch: Batch) -> Conditioned:
    """The exact posterior of a model given a batch."""
    if isinstance(model, Conditioned):
        return model.prior.condition(batch.X, batch.Y, _weighted_noise(model.noise, batch), batch.complete)
    prior = model.posterior.prior if isinstance(model.posterior, Conditioned) else model.posterior
    return prior.condition(batch.X, batch.Y, gaussian_noise(model, batch), batch.complete)


def gaussian_noise(model: Model, batch: Batch):
    """The noise variance of a Gaussian likelihood: as it is, or [N, P] where it is a function of the input.

    A row that counts w times is one whose mean was observed, with noise / w.
    """
    if model.likelihood.variance is not None:
        return _weighted_noise(model.likelihood.variance, batch)
    return _weighted_noise(model.likelihood.noise_variance(batch.Y.shape, batch.inputs), batch)


def _weighted_noise(noise: Array, batch: Batch) -> Array:
    return noise if batch.weights is None else noise / batch.weights[:, None]


def log_density_of_repeats(noise: Array, batch: Batch) -> Array:
    """What rows that count w times add to a marginal likelihood that took them once, with noise / w (given as `noise`).

    N(y; f, s)^w = N(y; f, s / w) (2 pi s)^((1 - w) / 2) w^(-1/2).
    """
    if batch.weights is None:
        return jnp.zeros((), batch.Y.dtype)
    w = batch.weights[:, None]
    terms = (1.0 - w) * jnp.log(2.0 * jnp.pi * w * noise) - jnp.log(w)
    return 0.5 * jnp.sum(jnp.where(jnp.isnan(batch.Y), 0.0, terms))


class _Exact(Objective):
    minibatched = False

    def checked(self, model, data):
        is_pair = isinstance(model, Model) and isinstance(model.likelihood, Gaussian) and _is_exact(model.posterior)
        if not is_pair and not isinstance(model, Conditioned):
            raise ValueError(
                f"{type(self).__name__} expects a Conditioned, or a Model of a GP prior and a Gaussian likelihood, "
                f"got {type(model).__name__}"
            )
        return super().checked(model, data)

    def finish(self, model, batch):
        """The exact posterior given the data, as it is or in a `Model`."""
        posterior = conditioned(model, batch)
        return posterior if isinstance(model, Conditioned) else Model(posterior, model.likelihood)


def _is_exact(posterior: Process) -> bool:
    """Whether it is a prior, or its exact posterior, of which the prior is trained."""
    return posterior.is_prior or isinstance(posterior, Conditioned)


class MarginalLikelihood(_Exact):
    """-log p(Y) / N, for a `Conditioned` or a `Model` of a GP prior and a Gaussian likelihood.

    `fit` gives back the exact posterior of the trained prior given the data: a `Conditioned`, or a `Model` of one, whose
    `posterior.prior` is the trained prior. Fitted again, the prior is trained again.
    """

    def _value(self, model, batch, key):
        posterior = conditioned(model, batch)
        repeats = log_density_of_repeats(posterior.noise, batch)
        return -(posterior.log_marginal_likelihood() + repeats) / batch.num_data


class LeaveOneOut(_Exact):
    """-mean_n log p(y_n | all other data) (Rasmussen and Williams, 2006, section 5.4.2)."""

    def checked(self, model, data):
        batch = super().checked(model, data)
        if batch.weights is not None:
            raise ValueError("LeaveOneOut takes no weights: a row that counts twice would be predicted from itself")
        return batch

    def _value(self, model, batch, key):
        loo = conditioned(model, batch).leave_one_out()
        observed = ~jnp.isnan(batch.Y)
        # Masked before it is squared: a NaN must not reach the derivative.
        missed = jnp.where(observed, batch.Y - loo.mean, 0.0)
        terms = -0.5 * (jnp.log(2.0 * jnp.pi * loo.cov) + missed**2 / loo.cov)
        return -jnp.sum(jnp.where(observed, terms, 0.0)) / batch.num_data
