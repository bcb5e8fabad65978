"""Regression from a table: raw inputs to calibrated predictions in the units of the target."""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.inducing import Points
from mercer.likelihoods import Gaussian
from mercer.model import Model
from mercer.objectives.sums import Sums
from mercer.parameters import Module, constant
from mercer.processes import GP, Conditioned, Sparse
from mercer.processes.conditioned import CachedConditioned
from mercer.tabular.inputs import Inputs
from mercer.tabular.residuals import Residuals
from mercer.tabular.training import (
    DEFAULT,
    Settings,
    check_prediction,
    checked,
    double_precision,
    forget,
    greedy_points,
    in_blocks,
    learn_prior,
    merged,
)

_OPERATIONS = 2e12  # N M^2 that conditioning a sparse model may take: minutes
_CALIBRATION = 4000  # rows that the residuals of a sparse model are found from


class Regression(Module):
    """A trained regression on raw inputs X [N, D], with P outputs."""

    inputs: Inputs
    centre: Float[Array, " P"] = constant()
    scale: Float[Array, " P"] = constant()
    model: Model
    residuals: Residuals
    history: Float[Array, " S"] = constant()

    @property
    def exact(self) -> bool:
        """Whether the posterior is exact."""
        return isinstance(self.model.posterior, Conditioned | CachedConditioned)

    def predict(self, X: Float[np.ndarray, "N D"]) -> tuple[Float[np.ndarray, "N P"], Float[np.ndarray, "N P"]]:
        """The mean and the standard deviation of new observations."""
        mean, deviation = self._standard(X)
        return self._raw(mean), deviation * np.asarray(self.residuals.deviation) * np.asarray(self.scale)

    def interval(
        self, X: Float[np.ndarray, "N D"], level: float = 0.9
    ) -> tuple[Float[np.ndarray, "N P"], Float[np.ndarray, "N P"]]:
        """The lower and the upper end of intervals that hold a share `level` of new observations."""
        mean, deviation = self._standard(X)
        half = deviation * self.residuals.half_width(level)
        return self._raw(mean - half), self._raw(mean + half)

    def log_density(self, X: Float[np.ndarray, "N D"], Y: Float[np.ndarray, "N P"]) -> Float[np.ndarray, " N"]:
        """The log density of observations, in nats, in the units of the target."""
        mean, deviation = self._standard(X)
        z = ((Y - np.asarray(self.centre)) / np.asarray(self.scale) - mean) / deviation
        return np.sum(self.residuals.log_density(z) - np.log(deviation * np.asarray(self.scale)), axis=1)

    def covariance(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "P N N"]:
        """The covariance of new observations at different inputs, for each output."""
        with double_precision():
            latent = self.model.posterior.predict(self.inputs(X), "inputs")
            noise = np.broadcast_to(np.asarray(self.model.likelihood.variance), len(self.scale))  # type: ignore[attr-defined]
        check_prediction(np.asarray(latent.cov))
        joint = np.asarray(latent.cov) + noise[:, None, None] * np.eye(len(X))
        return joint * (np.asarray(self.scale) * np.asarray(self.residuals.deviation))[:, None, None] ** 2

    def sample(self, key: PRNGKeyArray, X: Float[np.ndarray, "N D"], num: int = 1) -> Float[np.ndarray, "S N P"]:
        """Joint draws of new observations."""
        mean, covariance = self.predict(X)[0], self.covariance(X)
        with double_precision():
            normal = np.asarray(jax.random.normal(key, (num, len(covariance), len(X))))
        roots = np.linalg.cholesky(covariance + 1e-10 * np.mean(np.diagonal(covariance.T)) * np.eye(len(X)))
        return mean + np.einsum("pnm,spm->snp", roots, normal)

    def condition(
        self,
        X: Float[np.ndarray, "N D"],
        Y: Float[np.ndarray, "N P"],
        weights: Float[np.ndarray, " N"] | None = None,
        settings: Settings = DEFAULT,
    ) -> "Regression":
        """The same prior with other data: nothing is learned but the posterior and the residuals."""
        with double_precision():
            posterior = self.model.posterior
            prior = posterior.prior
            standard = (Y - np.asarray(self.centre)) / np.asarray(self.scale)
            noise = np.asarray(self.model.likelihood.variance)  # type: ignore[attr-defined]
            model, z = _condition(prior, noise, self.inputs(X), standard, weights, settings)
            return checked(Regression(self.inputs, self.centre, self.scale, model, Residuals.of(z), self.history))

    def cached(self) -> "Regression":
        """The same regression with what prediction needs worked out once, for repeated prediction."""
        with double_precision():
            return eqx.tree_at(lambda own: own.model, self, self.model.cached())

    def _raw(self, standard: np.ndarray) -> np.ndarray:
        return standard * np.asarray(self.scale) + np.asarray(self.centre)

    def _standard(self, X):
        """Mean and standard deviation of new observations, both in standardised units."""
        with double_precision():
            mean, variance = in_blocks(self.model.predict, self.inputs(X))
        return mean, np.sqrt(np.maximum(variance, 1e-300))


def regression(
    X: Float[np.ndarray, "N D"],
    Y: Float[np.ndarray, "N P"],
    weights: Float[np.ndarray, " N"] | None = None,
    settings: Settings = DEFAULT,
) -> Regression:
    """A regression learned from raw inputs and targets: exact up to `settings.max_exact` rows, sparse beyond."""
    X, Y, weights = merged(X, Y, weights)
    centre, scale = _standards(Y)
    with double_precision():
        inputs = Inputs.of(X)
        A, standard = inputs(X), Y / scale - centre / scale
        max_rows = settings.max_exact if len(X) <= settings.max_exact else settings.subset
        prior, noise, history = learn_prior(A, standard, weights, settings, max_rows)
        model, z = _condition(prior, np.asarray(noise), A, standard, weights, settings)
        forget(settings, "prior")
        return checked(Regression(inputs, centre, scale, model, Residuals.of(z), history))


def _standards(Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the standard deviation of each output, also of numbers whose squares overflow."""
    size = np.maximum(np.abs(Y).max(axis=0), np.finfo(float).tiny)
    centre, scale = np.mean(Y / size, axis=0) * size, np.std(Y / size, axis=0) * size
    return centre, np.where(scale > 1e-12 * size, scale, np.maximum(size, 1.0))


class Stream(Module):
    """A sparse regression on data that come in batches: the first teaches the prior, all of them the posterior.

    Adding rows is exact. The noise and the residuals are those of the last batch.
    """

    start: Regression
    sums: Sums
    X: Float[Array, "N D"] = constant()  # of the last batch, as the model sees them
    Y: Float[Array, "N P"] = constant()
    weights: Float[Array, " N"] | None = constant()
    seed: int = eqx.field(static=True)

    @classmethod
    def begin(
        cls,
        X: Float[np.ndarray, "N D"],
        Y: Float[np.ndarray, "N P"],
        weights: Float[np.ndarray, " N"] | None = None,
        settings: Settings = DEFAULT,
    ) -> "Stream":
        """A stream after its first batch."""
        start = regression(X, Y, weights, settings)
        X, Y, weights = merged(X, Y, weights)
        with double_precision():
            posterior = start.model.posterior
            if not isinstance(posterior, Sparse):
                points = greedy_points(start.inputs(X), posterior.prior.kernel, settings.num_inducing, settings)  # type: ignore[attr-defined]
                posterior = Sparse(posterior.prior, Points(points))
            empty = Sums.of(posterior, Y.shape[1])
            return cls(start, empty, X, Y, weights, settings.seed).add(X, Y, weights)

    def add(
        self,
        X: Float[np.ndarray, "N D"],
        Y: Float[np.ndarray, "N P"],
        weights: Float[np.ndarray, " N"] | None = None,
    ) -> "Stream":
        """The stream after another batch."""
        X, Y, weights = merged(X, Y, weights)
        scale, centre = np.asarray(self.start.scale), np.asarray(self.start.centre)
        with double_precision():
            A, standard = self.start.inputs(X), Y / scale - centre / scale
            sums = self.sums.add(A, standard, weights)
            return Stream(self.start, sums, A, standard, weights, self.seed)

    def regression(self) -> Regression:
        """The regression on all rows so far."""
        X, Y = np.asarray(self.X), np.asarray(self.Y)
        weights = None if self.weights is None else np.asarray(self.weights)
        noise = float(np.mean(np.asarray(self.start.model.likelihood.variance)))  # type: ignore[attr-defined]
        with double_precision():
            model, z = _calibrated(self.sums, noise, X, Y, weights, Settings(seed=self.seed))
            first = self.start
            return checked(Regression(first.inputs, first.centre, first.scale, model, Residuals.of(z), first.history))


def _condition(prior: GP, noise, X, Y, weights, settings) -> tuple[Model, np.ndarray]:
    """The posterior on standardised data, and its standardised leave-one-out residuals."""
    if len(X) <= settings.max_exact:
        exact = Conditioned(prior, X, Y, noise if weights is None else noise / weights[:, None])
        loo = exact.leave_one_out()
        # What was left out of a row that counts w times is its mean; one observation of it has the whole noise.
        variance = np.asarray(loo.cov) + (0.0 if weights is None else noise * (1.0 - 1.0 / weights[:, None]))
        return Model(exact, Gaussian(noise)), _optimism(prior, len(X)) * (Y - np.asarray(loo.mean)) / np.sqrt(variance)
    affordable = int(np.sqrt(_OPERATIONS / len(X)))
    points = greedy_points(X, prior.kernel, min(settings.num_inducing, max(affordable, 100)), settings)
    sums = Sums.of(Sparse(prior, Points(points)), Y.shape[1]).add(X, Y, weights)
    return _calibrated(sums, float(np.mean(noise)), X, Y, weights, settings)


def _calibrated(sums: Sums, noise: float, X, Y, weights, settings) -> tuple[Model, np.ndarray]:
    """The best posterior, and the standardised residuals of rows that are predicted from all others."""
    some = settings.generator(3).permutation(len(X))[:_CALIBRATION]
    loo = sums.leave_one_out(noise, X[some], Y[some], None if weights is None else weights[some])
    z = (Y[some] - np.asarray(loo.mean)) / np.sqrt(np.asarray(loo.cov))
    seen = min(len(X), settings.subset)
    return Model(sums.best(noise), Gaussian(noise)), _optimism(sums.posterior.prior, seen) * z


def _optimism(prior: GP, num_rows: int) -> float:
    """How much larger residuals of new data are than those of data that the prior was learned from.

    Learning p parameters makes N residuals look better than they are by about 2 p / N in their mean square (Akaike, 1974).
    """
    num_parameters = sum(np.size(leaf) for leaf in jax.tree.leaves(prior.kernel))
    return float(np.sqrt(1.0 + 2.0 * min(num_parameters / num_rows, 0.5)))
