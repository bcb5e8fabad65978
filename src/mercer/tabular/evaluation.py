"""Evaluation: a model on rows that it has not seen, beside baselines that any model should beat.

A baseline predicts as the models of tables do, so that one function scores them all: of numbers `predict`, `interval` and
`log_density`, of classes `probabilities` and `log_density`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import stats

from mercer.parameters import Module, constant
from mercer.tabular import scores
from mercer.tabular.targets import Task
from mercer.tabular.training import double_precision

COVERED = (0.5, 0.9, 0.95)
_CURVE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_KEPT = 2000  # rows whose predictions are kept
_ROWS = 20_000  # rows that a baseline learns from
_RIDGE = 1.0

Inputs = Float[np.ndarray, "N D"]
Column = Float[np.ndarray, "N 1"]


class OfNumbers(Protocol):
    """What predicts numbers, counts among them."""

    def predict(self, X: Inputs) -> tuple[Column, Column]: ...

    def interval(self, X: Inputs, level: float) -> tuple[Column, Column]: ...

    def log_density(self, X: Inputs, Y: Column) -> Float[np.ndarray, " N"]: ...


class OfClasses(Protocol):
    """What predicts classes."""

    def probabilities(self, X: Inputs) -> Float[np.ndarray, "N C"]: ...

    def log_density(self, X: Inputs, y: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]: ...


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
        cls, task: Task, model: Any, baselines: Mapping[str, Any], X: Inputs, y: Float[np.ndarray, " N"]
    ) -> "Evaluation":
        """The evaluation of a model on rows X, y."""
        kept, truth = X[:_KEPT], y[:_KEPT]
        score: Callable[..., dict[str, float]]
        if task in ("binary", "multiclass"):
            score, predicted, calibration = _of_classes, model.probabilities(kept), np.zeros((2, 0))
        else:
            score, predicted = _of_numbers, np.concatenate(model.predict(kept), axis=1)
            calibration = np.array([_CURVE, [_covered(model, kept, truth, level) for level in _CURVE]])
        found = {"mercer": score(model, X, y)} | {name: score(other, X, y) for name, other in baselines.items()}
        values = np.array([list(row.values()) for row in found.values()])
        with double_precision():
            arrays = map(jnp.asarray, (values, truth, predicted, calibration))
            return cls(len(y), tuple(found), tuple(found["mercer"]), *arrays)


def _of_numbers(model: OfNumbers, X: Inputs, y: Float[np.ndarray, " N"]) -> dict[str, float]:
    mean = model.predict(X)[0][:, 0]
    return {
        "RMSE": scores.rmse(y, mean),
        "MAE": scores.mae(y, mean),
        "R2": scores.r2(y, mean),
        "log-likelihood": float(np.mean(model.log_density(X, y[:, None]))),
    } | {f"in the {100 * level:g} % interval": _covered(model, X, y, level) for level in COVERED}


def _covered(model: OfNumbers, X: Inputs, y: Float[np.ndarray, " N"], level: float) -> float:
    lower, upper = model.interval(X, level)
    return scores.coverage(y, lower[:, 0], upper[:, 0])


def _of_classes(model: OfClasses, X: Inputs, y: Float[np.ndarray, " N"]) -> dict[str, float]:
    p = model.probabilities(X)
    return {
        "accuracy": scores.accuracy(y, p),
        "AUC": scores.auc(y, p),
        "log-likelihood": float(np.mean(model.log_density(X, y))),
        "Brier score": scores.brier(y, p),
        "calibration error": scores.calibration_error(y, p),
    }


# --- baselines ---------------------------------------------------------------------------------------------------------


def baselines(task: Task, X: Inputs, y: Float[np.ndarray, " N"], num_classes: int) -> dict[str, Any]:
    """The baselines of a task, learned from training rows."""
    X, y = X[:_ROWS], y[:_ROWS]
    if task == "counts":
        return {"mean": _SameCount.of(y)}
    if task == "regression":
        return {"linear": _linear(X, y), "mean": _Normal(lambda X: np.full((len(X), 1), np.mean(y)), float(np.std(y)))}
    shares = np.bincount(y.astype(int), minlength=num_classes) + 1.0
    return {"frequencies": _Frequencies(shares / shares.sum())}


@dataclasses.dataclass(frozen=True)
class _Normal:
    """A mean for each row, and one standard deviation."""

    mean: Callable[[Inputs], Column]
    deviation: float

    def predict(self, X):
        mean = self.mean(X)
        return mean, np.full_like(mean, self.deviation)

    def interval(self, X, level):
        return stats.norm.interval(level, *self.predict(X))

    def log_density(self, X, Y):
        return stats.norm.logpdf(Y, *self.predict(X))[:, 0]


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

    distribution: Any

    @classmethod
    def of(cls, y):
        mean, variance = np.mean(y), np.var(y)
        if variance <= mean:
            return cls(stats.poisson(mean))
        size = mean**2 / (variance - mean)
        return cls(stats.nbinom(size, size / (size + mean)))

    def predict(self, X):
        return tuple(np.full((len(X), 1), value) for value in (self.distribution.mean(), self.distribution.std()))

    def interval(self, X, level):
        return tuple(np.full((len(X), 1), end) for end in self.distribution.interval(level))

    def log_density(self, X, Y):
        return self.distribution.logpmf(Y)[:, 0]


@dataclasses.dataclass(frozen=True)
class _Frequencies:
    """The same probabilities for all rows."""

    shares: Float[np.ndarray, " C"]

    def probabilities(self, X):
        return np.tile(self.shares, (len(X), 1))

    def log_density(self, X, y):
        return np.log(self.shares[y.astype(int)])
