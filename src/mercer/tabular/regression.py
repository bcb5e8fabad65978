"""Regression from a table: raw inputs to calibrated predictions in the units of the target."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.deprecation import key_by_name, warn
from mercer.inducing import Points
from mercer.likelihoods import Gaussian
from mercer.model import Model
from mercer.objectives.sums import Sums
from mercer.parameters import Module, constant
from mercer.processes import GP, Conditioned, Sparse
from mercer.tabular.inputs import Inputs
from mercer.tabular.predictive import NumberPredictive
from mercer.tabular.predictors import NumberPredictor
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


@dataclasses.dataclass(frozen=True, eq=False)
class CalibratedPredictive(NumberPredictive):
    """Means and standard deviations in standardised units, corrected by residuals, and taken to the units of the target."""

    standard_mean: Float[np.ndarray, "N P"]
    standard_sd: Float[np.ndarray, "N P"]
    centre: Float[np.ndarray, " P"]
    scale: Float[np.ndarray, " P"]
    residuals: Residuals

    @property
    def mean(self):
        return self._raw(self.standard_mean)

    @property
    def sd(self):
        return self.standard_sd * np.asarray(self.residuals.deviation) * self.scale

    def interval(self, level=0.9):
        half = self.standard_sd * self.residuals.half_width(level)
        return self._raw(self.standard_mean - half), self._raw(self.standard_mean + half)

    def log_density(self, y):
        z = ((y - self.centre) / self.scale - self.standard_mean) / self.standard_sd
        return np.sum(self.residuals.log_density(z) - np.log(self.standard_sd * self.scale), axis=1)

    def rows(self, selection):
        mean, sd = self.standard_mean[selection], self.standard_sd[selection]
        return CalibratedPredictive(mean, sd, self.centre, self.scale, self.residuals)

    def _raw(self, standard: np.ndarray) -> np.ndarray:
        return standard * self.scale + self.centre


class Regression(NumberPredictor):
    """A trained regression on raw inputs X [N, D], with P outputs."""

    inputs: Inputs
    centre: Float[Array, " P"] = constant()
    scale: Float[Array, " P"] = constant()
    model: Model
    residuals: Residuals
    history: Float[Array, " S"] = constant()

    def predictive(self, X: Float[np.ndarray, "N D"]) -> CalibratedPredictive:
        """The distribution of new observations."""
        with double_precision():
            mean, variance = in_blocks(self.model.predict, self.inputs(X))
        sd = np.sqrt(np.maximum(variance, 1e-300))
        return CalibratedPredictive(mean, sd, np.asarray(self.centre), np.asarray(self.scale), self.residuals)

    def joint(self, X: Float[np.ndarray, "N D"]) -> tuple[Float[np.ndarray, "N P"], Float[np.ndarray, "P N N"]]:
        """The mean of new observations, and for each output their covariance at different inputs."""
        with double_precision():
            mean, covariance = map(np.asarray, self.model.posterior.predict(self.inputs(X), "inputs"))
        check_prediction(covariance)
        centre, scale, deviation = map(np.asarray, (self.centre, self.scale, self.residuals.deviation))
        noise = np.broadcast_to(self.noise, len(scale))[:, None, None] * np.eye(len(X))
        return mean * scale + centre, (covariance + noise) * (scale * deviation)[:, None, None] ** 2

    def covariance(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "P N N"]:
        """The old name of `joint(X)[1]`."""
        warn("Regression.covariance(X) is joint(X)[1] now")
        return self.joint(X)[1]

    @key_by_name
    def sample(self, X: Float[np.ndarray, "N D"], num: int = 1, *, key: PRNGKeyArray) -> Float[np.ndarray, "S N P"]:
        """Joint draws of new observations."""
        mean, covariance = self.joint(X)
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
            standard = (Y - np.asarray(self.centre)) / np.asarray(self.scale)
            model, z = _condition(self.posterior.prior, self.noise, self.inputs(X), standard, weights, settings)
            return checked(Regression(self.inputs, self.centre, self.scale, model, Residuals.of(z), self.history))

    def noise_in_words(self, target):
        deviation = float(np.sqrt(np.mean(self.noise)) * self.scale[0] * self.residuals.deviation[0])
        freedom = float(self.residuals.freedom[0])
        tails = "normal tails" if freedom > 50.0 else f"tails of a Student t with {freedom:.2g} degrees of freedom"
        return f"standard deviation {deviation:.3g} in the units of {target!r}, {tails}"

    @property
    def noise(self) -> np.ndarray:
        """The variance of the noise, in standardised units."""
        return np.asarray(self.model.likelihood.variance)  # type: ignore[attr-defined]


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
        inputs = Inputs.of(X, settings.places)
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
            posterior = start.posterior
            if start.exact:
                points = greedy_points(start.inputs(X), posterior.prior.kernel, settings.num_inducing, settings)
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
        noise = float(np.mean(self.start.noise))
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
