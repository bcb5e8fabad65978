"""Targets that are not Gaussian, from a table: what classes and counts have in common.

The prior comes from regression on the targets as numbers, whose marginal likelihood is exact and fast. Then the likelihood of
the targets takes the place of Gaussian noise, with a sparse posterior trained by natural gradients while the parameters of
the prior follow.
"""

import functools
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from mercer.inducing import Points
from mercer.likelihoods import Likelihood
from mercer.means import Constant
from mercer.model import Model
from mercer.objectives import ELBO
from mercer.objectives.base import Batch
from mercer.parameters import constant
from mercer.processes import GP, Sparse
from mercer.tabular.inputs import Inputs
from mercer.tabular.predictors import Predictor
from mercer.tabular.training import (
    DEFAULT,
    Settings,
    checked,
    double_precision,
    forget,
    greedy_points,
    learn,
    learn_prior,
    merged,
)
from mercer.training import EarlyStopping, Fit, NaturalGradient, fit

_SUBSET = 1000  # rows that the prior is learned from
_BATCH = 1000
_STEPS = 160
_STREAM_STEPS = 5  # on each batch of a stream


class Variational(Predictor):
    """A trained model with one target, on raw inputs X [N, D], that is sparse and whose likelihood is not Gaussian."""

    inputs: Inputs
    model: Model
    history: Float[Array, " S"] = constant()

    def condition(
        self,
        X: Float[np.ndarray, "N D"],
        y: Float[np.ndarray, " N"],
        weights: Float[np.ndarray, " N"] | None = None,
        settings: Settings = DEFAULT,
    ) -> Self:
        """The same prior and inducing points with other data: the posterior alone is trained."""
        X, Y, weights = merged(X, np.reshape(y, (len(X), 1)), weights)
        with double_precision():
            learned = _train(self.model, self.inputs(X), Y, weights, settings, "rest", _STEPS // 4, with_prior=False)
            forget(settings, "rest")
            return checked(self.with_model(learned.model))

    def update(
        self,
        X: Float[np.ndarray, "N D"],
        y: Float[np.ndarray, " N"],
        weights: Float[np.ndarray, " N"] | None,
        num_data: int,
    ) -> Self:
        """The model after some natural-gradient steps on a batch of a stream that has had `num_data` rows so far."""
        X, Y, weights = merged(X, np.reshape(y, (len(X), 1)), weights)
        with double_precision():
            # Rows that count several times make a larger part of the stream, of which the batch is a sample.
            size = len(X) if weights is None else float(np.sum(weights))
            share = min(size / num_data, 1.0)
            relative = None if weights is None else jnp.asarray(weights * len(X) / size)
            batch = Batch(jnp.asarray(self.inputs(X)), jnp.asarray(Y), round(size / share), True, relative)
            optimiser = NaturalGradient(0.5 * share)
            learned = fit(self.model, ELBO(), batch, optimiser=optimiser, steps=_STREAM_STEPS)
            return checked(self.with_model(learned.model))


def variational(
    X: Float[np.ndarray, "N D"],
    Y: Float[np.ndarray, "N 1"],
    weights: Float[np.ndarray, " N"] | None,
    settings: Settings,
    likelihood: Likelihood,
    as_numbers: Float[np.ndarray, "N P"],
    scale: float,
    mean: float,
    num_inducing: int,
) -> tuple[Inputs, Model, np.ndarray]:
    """Inputs, model and course of training for merged data.

    `as_numbers` is what the prior is learned from: a function of Y with one column for each latent of the likelihood.
    `scale` is the variance of the latents where training begins, `mean` their mean.
    """
    inputs = Inputs.of(X, settings.places)
    A = inputs(X)
    spread = np.maximum(as_numbers.std(axis=0), 1e-3)
    standard = (as_numbers - as_numbers.mean(axis=0)) / spread
    prior, _, history = learn_prior(A, standard, weights, settings, _SUBSET)
    points = greedy_points(A, prior.kernel, min(settings.num_inducing, num_inducing), settings)
    kernel: Any = prior.kernel  # of one output
    latent = GP(scale * kernel, mean=Constant(mean))
    start = Model(Sparse(latent, Points(points), as_numbers.shape[1]), likelihood)
    learned = _train(start, A, Y, weights, settings, "posterior", _STEPS, with_prior=True)
    forget(settings, "prior", "posterior")
    return inputs, checked(learned.model), np.concatenate([history, learned.history])


@functools.cache
def _optimiser(steps: int, with_prior: bool) -> NaturalGradient:
    """Natural gradients that begin and end gently, with Adam for the prior or without."""
    warm = optax.linear_schedule(0.01, 0.2, 20)
    gamma = optax.join_schedules([warm, optax.cosine_decay_schedule(0.2, steps, 0.1)], [20])
    return NaturalGradient(gamma, optax.adam(0.05) if with_prior else None)


def _train(model, X, Y, weights, settings, stage, steps, *, with_prior) -> Fit:
    """The model with its posterior trained by natural gradients; and its prior, too, but for the inducing points."""
    steps = max(min(steps, 2 * settings.steps), 2)
    return learn(
        model,
        ELBO(),
        (X, Y, weights),
        settings,
        stage,
        optimiser=_optimiser(steps, with_prior),
        steps=steps,
        batch_size=_BATCH if len(X) > _BATCH else None,
        frozen=lambda m: m.posterior.inducing,
        every=20,
        callbacks=[EarlyStopping(patience=40, tolerance=2e-3, window=20)],
    )
