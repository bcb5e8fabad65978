"""Classification from a table: raw inputs to probabilities of classes."""

import numpy as np
from jaxtyping import Float

from mercer.likelihoods import Bernoulli, Softmax
from mercer.tabular.predictive import ClassPredictive
from mercer.tabular.training import DEFAULT, Settings, double_precision, in_blocks, merged
from mercer.tabular.variational import Variational, variational


class Classification(Variational):
    """A trained classifier on raw inputs X [N, D], of C classes 0, 1, ..., C - 1: a probit for two, a softmax for more."""

    def predictive(self, X: Float[np.ndarray, "N D"]) -> ClassPredictive:
        """The probability of each class."""
        with double_precision():
            p = in_blocks(self.model.predict, self.inputs(X))[0]
        p = np.concatenate([1.0 - p, p], axis=1) if p.shape[1] == 1 else p
        p = np.clip(p, 1e-12, None)
        return ClassPredictive(p / p.sum(axis=1, keepdims=True))

    def probabilities(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N C"]:
        """The probability of each class."""
        return self.predictive(X).probabilities

    def noise_in_words(self, target):
        if self.posterior.num_outputs == 1:
            return "the probability of a class is a probit of the function"
        return "the probabilities of classes are a softmax of functions, one for each"


def classification(
    X: Float[np.ndarray, "N D"],
    y: Float[np.ndarray, " N"],
    num_classes: int,
    weights: Float[np.ndarray, " N"] | None = None,
    settings: Settings = DEFAULT,
) -> Classification:
    """A classifier learned from raw inputs and classes 0, 1, ..., `num_classes` - 1."""
    X, Y, weights = merged(X, y[:, None], weights)
    binary = num_classes == 2
    with double_precision():
        likelihood = Bernoulli() if binary else Softmax(num_classes)
        indicators = Y if binary else (np.arange(num_classes) == Y).astype(float)
        num_inducing = 500 if binary else 300
        return Classification(*variational(X, Y, weights, settings, likelihood, indicators, 4.0, 0.0, num_inducing))
