"""Objectives that are expectations under a posterior q(f): the evidence lower bound, and the predictive log likelihood.

The bound on log p(Y) is sum_n E_q[log p(y_n | f_n)] - KL[q(u) || p(u)] (paper 004, equation 21; Hensman et al., 2013). Its
terms need only the marginals of q at each datum, so that a minibatch gives an unbiased estimate.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Real

from mercer.inducing.functionals import is_functional
from mercer.inputs import LatentRows, Normal
from mercer.layouts import Layout
from mercer.likelihoods.of_predictions import expected_log_prob, log_predictive
from mercer.linalg import quiet_blas
from mercer.model import Model, align
from mercer.objectives.base import Batch, Objective
from mercer.parameters import all_concrete, is_concrete
from mercer.processes import Gaussian, Mixture
from mercer.validation import AnyArray


def check_model(objective: Objective, model: Any) -> None:
    if not isinstance(model, Model) or not model.posterior.knows_kl():
        raise ValueError(
            f"{type(objective).__name__} expects a Model whose posterior has a kl(), such as Sparse, got {type(model).__name__}"
            + (f" with {type(model.posterior).__name__}" if isinstance(model, Model) else "")
        )


def latent_values(
    model: Model,
    batch: Batch,
    key: PRNGKeyArray | None,
    covariance: Layout | None = None,
    closed_form: bool = False,
) -> Gaussian | Mixture:
    """The posterior at a batch, in a layout, by default the likelihood's. Of the key it has a part of its own.

    Uncertain inputs are averaged over in closed form if only the first two moments of function values count.
    """
    key = None if key is None else jax.random.fold_in(key, 1)
    rows = latent_rows(model, batch)
    X: Any = batch.X if rows is None else rows.inputs()
    X = X.in_training(closed_form) if isinstance(X, Normal) else X
    return model.posterior.in_training().predict(X, covariance or model.likelihood.layout, key=key)


def latent_rows(model: Model, batch: Batch) -> LatentRows | None:
    """The inputs of a batch where they are latent."""
    return model.posterior.latent_inputs(batch.X, batch.Y, batch.index)


def drawn_inputs(model: Model, batch: Batch, key: PRNGKeyArray | None) -> Any:
    """The inputs of a batch; where they are uncertain, one draw of them."""
    rows, X = latent_rows(model, batch), batch.X
    X = X if rows is None else rows.inputs()
    if not isinstance(X, Normal):
        return X
    key = jax.random.key(0) if key is None else jax.random.fold_in(key, 2)
    return Normal(*X.arrays, num_samples=1).draws(key=key)[0]


def divergence_of_inputs(model: Model, batch: Batch) -> Float[Array, ""] | float:
    """The mean over rows of KL[q(x_n) || p(x_n)], of latent inputs."""
    rows = latent_rows(model, batch)
    return 0.0 if rows is None else jnp.mean(batch.weighted(rows.divergence()))


class ELBO(Objective):
    """Minus the evidence lower bound, per datum: -mean_n E_q[log p(y_n | f_n)] + KL[q || p] / N."""

    def checked(self, model, data):
        check_model(self, model)
        return super().checked(model, data)

    def _value(self, model, batch, key):
        return -jnp.mean(batch.weighted(_terms(model, batch, key))) + model.posterior.kl() / batch.num_data


class PredictiveLogLikelihood(Objective):
    """-mean_n log E_q[p(y_n | f_n)] + weight KL[q || p] / N (Jankowiak, Pleiss and Gardner, 2020).

    It scores what will be predicted, not a bound on the evidence: better calibrated where the model is wrong.
    """

    weight: float = eqx.field(static=True, default=1.0)

    def checked(self, model, data):
        check_model(self, model)
        return super().checked(model, data)

    def _value(self, model, batch, key):
        terms = log_predictive(model.likelihood, latent_values(model, batch, key), batch.Y, batch.inputs, key)
        kl = divergence_of_inputs(model, batch) + model.posterior.kl() / batch.num_data
        return -jnp.mean(batch.weighted(terms)) + self.weight * kl


def _terms(model: Model, batch: Batch, key: PRNGKeyArray | None) -> Float[Array, " B"]:
    """E[log p(y_n | f(x_n))], less the divergence of q(x_n) from its prior where x_n is latent."""
    latent = latent_values(model, batch, key, closed_form=model.likelihood.quadratic)
    terms = expected_log_prob(model.likelihood, latent, batch.Y, batch.inputs, key)
    rows = latent_rows(model, batch)
    return terms if rows is None else terms - rows.divergence()


def bounds_of_rows(
    model: Model, X: Any, Y: Real[AnyArray, "N P"], *, key: PRNGKeyArray | None = None
) -> Float[Array, " N"]:
    """What each row adds to the bound: E[log p(y_n | f(x_n))], less KL[q(x_n) || p(x_n)] where x_n is latent."""
    batch = ELBO().checked(model, (X, Y))
    aligned: Any = align(model, batch.dtype)
    return _compiled_terms(aligned, batch, key)


_compiled_terms = eqx.filter_jit(_terms)


@eqx.filter_jit
def _total(model, batch, key):
    return jnp.sum(batch.weighted(_terms(model, batch, key)))


@eqx.filter_jit
def _kl(model):
    return model.posterior.kl()


def elbo(
    model: Model,
    X: Any,
    Y: Real[AnyArray, "N P"],
    weights: Float[AnyArray, " N"] | None = None,
    *,
    key: PRNGKeyArray | None = None,
    batch_size: int = 8192,
) -> Float[Array, ""]:
    """The evidence lower bound itself, in nats over all the data, worked out `batch_size` rows at a time.

    A row counts as often as its weight says.
    """
    batch = ELBO().checked(model, (X, Y, weights))
    model = align(model, batch.dtype)
    if not all_concrete(batch.X) or not all(is_concrete(leaf) for leaf in jax.tree.leaves(model) if eqx.is_array(leaf)):
        return jnp.sum(batch.weighted(_terms(model, batch, key))) - model.posterior.kl()
    with quiet_blas():
        if is_functional(batch.X):  # functionals are worked out together
            return jax.block_until_ready(_total(model, batch, key) - _kl(model))
        starts = range(0, batch.num_data, batch_size)
        parts = [_total(model, batch.rows(jnp.arange(batch.num_data)[i : i + batch_size]), key) for i in starts]
        return jax.block_until_ready(sum(parts) - _kl(model))
