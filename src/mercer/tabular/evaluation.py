"""Evaluation: a model on rows that it has not seen, beside baselines that any model should beat.

A baseline predicts as the models of tables do, by `predictive`, so that all are scored alike.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import stats

from mercer.parameters import Module, constant
from mercer.tabular import scores
from mercer.tabular.predictive import ClassPredictive, NumberPredictive, Predictive
from mercer.tabular.targets import Task
from mercer.tabular.training import double_precision

_KEPT = 2000  # rows whose predictions are kept
_ROWS = 20_000  # rows that a baseline learns from
_RIDGE = 1.0

Inputs = Float[np.ndarray, "N D"]


@runtime_checkable
class Predicts(Protocol):
    """A predictor, or a baseline."""

    def predictive(self, X: Inputs) -> Predictive:
        """The distribution of new targets."""


class Evaluation(Module):
    """The scores of a model and of its baselines on the same rows, and what the model predicted for some of them.

    `predicted` holds the mean and the standard deviation, or the probability of each class; `calibration`, of numbers, how
    many of them intervals should hold and how many they do.
    """

    num_rows: int = eqx.field(static=True)
    methods: tuple[str, ...] = eqx.field(static=True)  # the model first
    scores: tuple[str, ...] = eqx.field(static=True)
    values: Float[Array, "R S"] = constant(finite=False)  # NaN where a score says nothing
    truth: Float[Array, " K"] = constant()
    predicted: Float[Array, "K F"] = constant()
    calibration: Float[Array, "2 Q"] = constant()

    def __check_init__(self):
        expected = (len(self.methods), len(self.scores))
        if self.values.shape != expected or not self.methods:
            raise ValueError(f"Evaluation: values expects one for each of {expected}, got shape {self.values.shape}")

    @classmethod
    def of(
        cls, model: Predicts, baselines: Mapping[str, Predicts], X: Inputs, y: Float[np.ndarray, " N"]
    ) -> "Evaluation":
        """The evaluation of a model on rows X, y."""
        predicted = model.predictive(X)
        kept, truth = predicted.rows(slice(_KEPT)), y[:_KEPT]
        found = {"mercer": predicted.scores(y)}
        found |= {name: other.predictive(X).scores(y) for name, other in baselines.items()}
        values = np.array([list(row.values()) for row in found.values()])
        with double_precision():
            arrays = map(jnp.asarray, (values, truth, kept.numbers(), kept.calibration(truth)))
            return cls(len(y), tuple(found), tuple(found["mercer"]), *arrays)


# --- baselines ---------------------------------------------------------------------------------------------------------


def baselines(task: Task, X: Inputs, y: Float[np.ndarray, " N"], num_classes: int) -> dict[str, Predicts]:
    """The baselines of a task, learned from training rows."""
    X, y = X[:_ROWS], y[:_ROWS]
    if task == "counts":
        return {"mean": _SameCount.of(y)}
    if task == "regression":
        return {"linear": _linear(X, y), "mean": _Normal(lambda X: np.full((len(X), 1), np.mean(y)), float(np.std(y)))}
    shares = np.bincount(y.astype(int), minlength=num_classes) + 1.0
    return {"frequencies": _Frequencies(shares / shares.sum())}


@dataclasses.dataclass(frozen=True, eq=False)
class _Parametric(NumberPredictive):
    """Distributions of a family of `scipy.stats`, with its parameters for each row, [N, 1]."""

    family: Any
    log_prob: Callable[..., np.ndarray]  # of the family: `logpdf` or `logpmf`
    parameters: tuple[np.ndarray, ...]

    @property
    def mean(self):
        return self.family.mean(*self.parameters)

    @property
    def sd(self):
        return self.family.std(*self.parameters)

    def interval(self, level=0.9):
        return self.family.interval(level, *self.parameters)

    def log_density(self, y):
        return self.log_prob(y, *self.parameters)[:, 0]

    def rows(self, selection):
        return _Parametric(self.family, self.log_prob, tuple(values[selection] for values in self.parameters))


@dataclasses.dataclass(frozen=True)
class _Normal:
    """A mean for each row, and one standard deviation."""

    mean: Callable[[Inputs], Float[np.ndarray, "N 1"]]
    deviation: float

    def predictive(self, X):
        mean = self.mean(X)
        return _Parametric(stats.norm, stats.norm.logpdf, (mean, np.full_like(mean, self.deviation)))


def _linear(X: Inputs, y: Float[np.ndarray, " N"]) -> _Normal:
    """Ridge regression on standardised columns; its standard deviation is that of the leave-one-out residuals."""
    size = np.maximum(np.abs(X).max(axis=0), 1e-300)
    centre, scale = np.mean(X / size, axis=0), np.std(X / size, axis=0)
    scale = np.where(scale > 1e-12, scale, 1.0)

    def standard(X):
        return np.clip((X / size - centre) / scale, -1e3, 1e3)

    A, middle = standard(X), np.mean(y)
    inverse = np.linalg.inv(A.T @ A + _RIDGE * np.eye(A.shape[1]))
    weights = inverse @ (A.T @ (y - middle))
    leverage = np.sum((A @ inverse) * A, axis=1) + 1.0 / len(y)
    left_out = (y - middle - A @ weights) / np.maximum(1.0 - leverage, 1e-6)
    deviation = scores.rmse(left_out, np.zeros_like(left_out))
    return _Normal(lambda X: middle + (standard(X) @ weights)[:, None], max(deviation, 1e-12 * np.abs(y).max()))


@dataclasses.dataclass(frozen=True)
class _SameCount:
    """A negative binomial for all rows, with the mean and the variance of the data; a Poisson if that is no larger."""

    family: Any
    parameters: tuple[float, ...]

    @classmethod
    def of(cls, y):
        mean, variance = np.mean(y), np.var(y)
        if variance <= mean:
            return cls(stats.poisson, (mean,))
        size = mean**2 / (variance - mean)
        return cls(stats.nbinom, (size, size / (size + mean)))

    def predictive(self, X):
        parameters = tuple(np.full((len(X), 1), value) for value in self.parameters)
        return _Parametric(self.family, self.family.logpmf, parameters)


@dataclasses.dataclass(frozen=True)
class _Frequencies:
    """The same probabilities for all rows."""

    shares: Float[np.ndarray, " C"]

    def predictive(self, X):
        return ClassPredictive(np.tile(self.shares, (len(X), 1)))
