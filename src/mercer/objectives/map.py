"""Maximum a posteriori: any objective, with priors on some of the parameters."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mercer.objectives.base import Objective, TrainingObjective
from mercer.priors import Prior


class MAP(TrainingObjective):
    """objective - sum log prior(parameter) / N.

    `priors` are pairs (where, prior), such as `(lambda m: m.posterior.prior.kernel.lengthscale, LogNormal(0.0, 1.0))`. The
    densities are over the parameters themselves, not over their free images, so that the answer is the mode of what the
    priors say.
    """

    objective: Objective
    priors: tuple[tuple[Callable[[Any], Array], Prior], ...]

    def __init__(self, objective: Objective, priors: Sequence[tuple[Callable[[Any], Array], Prior]]):
        self.objective = objective
        self.priors = tuple(priors)

    @property
    def minibatched(self):  # type: ignore[override]
        return self.objective.minibatched

    @property
    def needs_data(self):  # type: ignore[override]
        return self.objective.needs_data

    @property
    def trained(self):  # type: ignore[override]
        return self.objective.trained

    def checked(self, model, data):
        return self.objective.checked(model, data)

    def prepare(self, model, batch):
        return self.objective.prepare(model, batch)

    def init(self, model, batch):
        return self.objective.init(model, batch)

    def _value_in_training(self, model, batch, key, context):
        value, state = self.objective.value_in_training(model, batch, context, key=key)
        log_prior = sum(
            jnp.sum(prior.log_prob(leaf)) for where, prior in self.priors for leaf in jax.tree.leaves(where(model))
        )
        return value - log_prior / batch.num_data, state

    def finish(self, model, batch):
        return self.objective.finish(model, batch)
