"""Counts from a table: raw inputs to a distribution over 0, 1, 2, ..."""

import numpy as np
from jaxtyping import Float
from scipy import stats

from mercer.likelihoods import NegativeBinomial
from mercer.tabular.training import DEFAULT, Settings, double_precision, in_blocks, merged
from mercer.tabular.variational import Variational, variational

_NODES = np.linspace(-6.0, 6.0, 64)  # of the trapezoidal rule, in standard deviations of the latent
_WEIGHTS = stats.norm.pdf(_NODES) / stats.norm.pdf(_NODES).sum()


class Counts(Variational):
    """A trained model of counts on raw inputs X [N, D]: negative binomial, the log of its mean a Gaussian process."""

    def predict(self, X: Float[np.ndarray, "N D"]) -> tuple[Float[np.ndarray, "N 1"], Float[np.ndarray, "N 1"]]:
        """The mean and the standard deviation of new counts."""
        with double_precision():
            mean, variance = in_blocks(self.model.predict, self.inputs(X))
        return mean, np.sqrt(variance)

    def interval(
        self, X: Float[np.ndarray, "N D"], level: float = 0.9
    ) -> tuple[Float[np.ndarray, "N 1"], Float[np.ndarray, "N 1"]]:
        """The lower and the upper end of intervals that hold a share `level` of new counts, or a little more."""
        means, r = self._mixture(X)
        return tuple(_quantile(means, r, p)[:, None] for p in (0.5 - 0.5 * level, 0.5 + 0.5 * level))

    def log_density(self, X: Float[np.ndarray, "N D"], Y: Float[np.ndarray, "N 1"]) -> Float[np.ndarray, " N"]:
        """The log probability of counts."""
        with double_precision():
            return np.asarray(self.model.log_density(self.inputs(X), np.reshape(Y, (-1, 1))))

    def _mixture(self, X) -> tuple[Float[np.ndarray, "N Q"], float]:
        """The means of the negative binomials whose mixture, with weights as above, predicts; r = 1 / dispersion."""
        with double_precision():
            mean, variance = in_blocks(self.model.posterior.predict, self.inputs(X))
        latent = mean + np.sqrt(np.maximum(variance, 0.0)) * _NODES
        return np.exp(np.clip(latent, -30.0, 30.0)), 1.0 / float(self.model.likelihood.dispersion)  # type: ignore


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
