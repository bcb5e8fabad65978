"""Counts from a table: raw inputs to a distribution over 0, 1, 2, ..."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float
from scipy import stats

from mercer.likelihoods import NegativeBinomial
from mercer.tabular.predictive import NumberPredictive
from mercer.tabular.predictors import NumberPredictor
from mercer.tabular.training import DEFAULT, Settings, double_precision, in_blocks, merged
from mercer.tabular.variational import Variational, variational

_NODES = np.linspace(-6.0, 6.0, 64)  # of the trapezoidal rule, in standard deviations of the latent
_WEIGHTS = stats.norm.pdf(_NODES) / stats.norm.pdf(_NODES).sum()


@dataclasses.dataclass(frozen=True, eq=False)
class CountPredictive(NumberPredictive):
    """Negative binomials, the logs of whose means are normal, with these means and variances."""

    log_mean: Float[np.ndarray, "N 1"]
    log_variance: Float[np.ndarray, "N 1"]
    likelihood: NegativeBinomial

    @functools.cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        with double_precision():
            return in_blocks(self.likelihood.predict, self.log_mean, self.log_variance)

    @property
    def mean(self):
        return self._moments[0]

    @property
    def sd(self):
        return np.sqrt(self._moments[1])

    def interval(self, level=0.9):
        """The shares that intervals hold may be a little larger than `level`, as counts are whole numbers."""
        # The means of the negative binomials whose mixture, with weights as above, this is; r = 1 / dispersion.
        latent = self.log_mean + np.sqrt(np.maximum(self.log_variance, 0.0)) * _NODES
        means, r = np.exp(np.clip(latent, -30.0, 30.0)), 1.0 / float(self.likelihood.dispersion)
        return tuple(_quantile(means, r, p)[:, None] for p in (0.5 - 0.5 * level, 0.5 + 0.5 * level))

    def log_density(self, y):
        Y = np.reshape(y, (-1, 1))
        self.likelihood.validate(Y)
        with double_precision():
            return in_blocks(functools.partial(_log_density, self.likelihood), self.log_mean, self.log_variance, Y)[0]

    def rows(self, selection):
        return CountPredictive(self.log_mean[selection], self.log_variance[selection], self.likelihood)


@eqx.filter_jit
def _log_density(likelihood, log_mean, log_variance, Y):
    return (likelihood.log_predictive(log_mean, log_variance, Y),)


class Counts(Variational, NumberPredictor):
    """A trained model of counts on raw inputs X [N, D]: negative binomial, the log of its mean a Gaussian process."""

    def predictive(self, X: Float[np.ndarray, "N D"]) -> CountPredictive:
        """The distribution of new counts."""
        with double_precision():
            mean, variance = in_blocks(self.model.posterior.predict, self.inputs(X))
        return CountPredictive(mean, variance, self.model.likelihood)

    def noise_in_words(self, target):
        likelihood: Any = self.model.likelihood
        dispersion = float(likelihood.dispersion)
        return f"negative binomial, variance = mean + {dispersion:.2g} mean^2"


def _quantile(means: np.ndarray, r: float, p: float) -> np.ndarray:
    """The smallest count of which at least a share p is at or below it, by bisection."""
    low, high = np.full(len(means), -1.0), stats.nbinom.ppf(1.0 - 1e-9, r, r / (r + means.max(axis=1)))
    while (high - low > 1.0).any():
        middle = np.floor(0.5 * (low + high))
        enough = stats.nbinom.cdf(middle[:, None], r, r / (r + means)) @ _WEIGHTS >= p
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def counts(
    X: Float[np.ndarray, "N D"],
    y: Float[np.ndarray, " N"],
    weights: Float[np.ndarray, " N"] | None = None,
    settings: Settings = DEFAULT,
) -> Counts:
    """A model of counts learned from raw inputs."""
    X, Y, weights = merged(X, np.reshape(y, (len(X), 1)), weights)
    with double_precision():
        logs = np.log1p(Y)
        mean = float(np.log(np.maximum(Y.mean(), 1e-3)))
        likelihood = NegativeBinomial(0.3)
        return Counts(*variational(X, Y, weights, settings, likelihood, logs, max(float(logs.var()), 0.1), mean, 500))
