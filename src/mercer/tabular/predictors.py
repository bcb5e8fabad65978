"""Predictors: trained models from raw inputs to the distribution of the target, in its units."""

import abc
from typing import Any, Self

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from mercer.model import Model
from mercer.parameters import Module
from mercer.processes import Conditioned
from mercer.tabular.inputs import Inputs
from mercer.tabular.predictive import Ends, NumberPredictive, Predictive
from mercer.tabular.training import DEFAULT, Settings, double_precision


class Predictor(Module):
    """A trained model on raw inputs X [N, D]."""

    inputs: eqx.AbstractVar[Inputs]
    model: eqx.AbstractVar[Model]
    history: eqx.AbstractVar[Float[Array, " S"]]

    @abc.abstractmethod
    def predictive(self, X: Float[np.ndarray, "N D"]) -> Predictive:
        """The distribution of new targets."""

    @abc.abstractmethod
    def condition(
        self,
        X: Float[np.ndarray, "N D"],
        y: Float[np.ndarray, "..."],
        weights: Float[np.ndarray, " N"] | None = None,
        settings: Settings = DEFAULT,
    ) -> Self:
        """The same prior with other data: only what depends on them is learned."""

    @abc.abstractmethod
    def noise_in_words(self, target: str) -> str:
        """What the likelihood says of an observation of the column `target`, given the function."""

    @property
    def posterior(self) -> Any:
        """The posterior of the function, without what was worked out of it for prediction."""
        return getattr(self.model.posterior, "process", self.model.posterior)

    @property
    def exact(self) -> bool:
        """Whether the posterior is exact."""
        return isinstance(self.posterior, Conditioned)

    def log_density(self, X: Float[np.ndarray, "N D"], y: Float[np.ndarray, "..."]) -> Float[np.ndarray, " N"]:
        """The log density (of counts and classes, the log probability) of targets, in nats."""
        return self.predictive(X).log_density(y)

    def cached(self) -> Self:
        """The same predictor with what prediction needs worked out once, for repeated prediction."""
        with double_precision():
            return self.with_model(self.model.cached())

    def with_model(self, model: Model) -> Self:
        """The same predictor with another model in its place."""
        return eqx.tree_at(lambda own: own.model, self, model)


class NumberPredictor(Predictor):
    """A predictor of numbers, counts among them."""

    @abc.abstractmethod
    def predictive(self, X: Float[np.ndarray, "N D"]) -> NumberPredictive:
        """The distribution of new targets."""

    def predict(self, X: Float[np.ndarray, "N D"]) -> Ends:
        """The mean and the standard deviation of new targets, [N, P] each."""
        predicted = self.predictive(X)
        return predicted.mean, predicted.sd

    def interval(self, X: Float[np.ndarray, "N D"], level: float = 0.9) -> Ends:
        """The lower and the upper ends, [N, P] each, of intervals that hold a share `level` of new targets."""
        return self.predictive(X).interval(level)
