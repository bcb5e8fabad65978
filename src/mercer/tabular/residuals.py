"""Residuals: how far observations really are from predictions, in predicted standard deviations.

A Gaussian process with Gaussian noise knows how uncertain it is, but real noise has heavier tails, and hyperparameters
that were fitted make it a little sure of itself. Both show in the standardised residuals z of data that a prediction did not
use (leave-one-out). From them come three corrections: the standard deviation is scaled by the root of the mean of z^2; the
density is a Student t fitted to z; and intervals are as wide as the quantiles of |z| say. As the hyperparameters have seen
the data, which makes the residuals of few data too small, these quantiles are mixed with those of a normal distribution.
"""

import numpy as np
from jaxtyping import Array, Float
from scipy import optimize, stats

from mercer.parameters import Module, constant

_PSEUDO = 20  # standard normal residuals added, so that few data change little
_TRUSTED = 500  # residuals whose quantiles count as much as the normal ones
_LEVELS = np.concatenate([np.linspace(0.0, 0.9, 46), np.linspace(0.905, 0.995, 19), [0.999]])
_LIGHTEST = 200.0  # degrees of freedom that count as normal
_HEAVIEST = 2.2


class Residuals(Module):
    """The distribution of standardised residuals of each of P outputs."""

    deviation: Float[Array, " P"] = constant()
    scale: Float[Array, " P"] = constant()
    freedom: Float[Array, " P"] = constant()
    widths: Float[Array, "Q P"] = constant()  # of intervals, to each side, at _LEVELS

    @classmethod
    def of(cls, z: Float[np.ndarray, "N P"]) -> "Residuals":
        """The distribution of residuals that were seen."""
        return cls(*(np.stack(parts, axis=-1) for parts in zip(*(_describe(column) for column in z.T), strict=True)))

    def half_width(self, level: float) -> Float[np.ndarray, " P"]:
        """How many predicted standard deviations to each side hold the share `level` of observations."""
        seen = np.array([np.interp(level, _LEVELS, column) for column in np.asarray(self.widths).T])
        tail = stats.t.ppf(0.5 + 0.5 * level, np.asarray(self.freedom), scale=np.asarray(self.scale))
        return np.maximum(seen, tail) if level > _LEVELS[-1] else seen

    def log_density(self, z: Float[np.ndarray, "N P"]) -> Float[np.ndarray, "N P"]:
        """The log density of standardised residuals."""
        return stats.t.logpdf(z, np.asarray(self.freedom), scale=np.asarray(self.scale))


def _describe(z: np.ndarray) -> tuple[float, float, float, np.ndarray]:
    z = z[np.isfinite(z)]
    trust = len(z) / (len(z) + _TRUSTED)
    z = np.concatenate([z, stats.norm.ppf((np.arange(_PSEUDO) + 0.5) / _PSEUDO)])
    widths = trust * np.quantile(np.abs(z), _LEVELS) + (1.0 - trust) * stats.norm.ppf(0.5 + 0.5 * _LEVELS)

    def loss(parameters):
        log_scale, log_excess = parameters
        return -np.mean(stats.t.logpdf(z, _HEAVIEST + np.exp(log_excess), scale=np.exp(log_scale)))

    found = optimize.minimize(loss, [0.0, 2.0], method="L-BFGS-B", bounds=[(-12.0, 12.0), (-4.0, np.log(_LIGHTEST))])
    scale, freedom = np.exp(found.x[0]), _HEAVIEST + np.exp(found.x[1])
    largest = np.abs(z).max()  # whose square may be too large for a float
    return float(largest * np.sqrt(np.mean((z / largest) ** 2))), float(scale), float(freedom), widths
