"""What is predicted of the targets of some rows, worked out once and asked for in many ways.

Of numbers: their mean, standard deviation, intervals and densities. Of classes: the probability of each. Of both: the columns of
a table of predictions, and scores where the truth is known.
"""

import abc
import dataclasses
from typing import Self

import numpy as np
from jaxtyping import Float, Shaped

from mercer.tabular import scores
from mercer.tabular.targets import Target

_COVERED = (0.5, 0.9, 0.95)
_CURVE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)

Numbers = Float[np.ndarray, "N P"]
Ends = tuple[Numbers, Numbers]


class Predictive(abc.ABC):
    """The distribution of the targets of N rows."""

    @abc.abstractmethod
    def log_density(self, y: Float[np.ndarray, "..."]) -> Float[np.ndarray, " N"]:
        """The log density (of counts and classes, the log probability) of the target of each row."""

    @abc.abstractmethod
    def rows(self, selection: slice) -> Self:
        """The distribution of the targets of some of the rows."""

    @abc.abstractmethod
    def numbers(self) -> Float[np.ndarray, "N F"]:
        """The mean and the standard deviation of each row, or the probability of each class."""

    @abc.abstractmethod
    def columns(self, target: Target, level: float) -> dict[str, Shaped[np.ndarray, " N"]]:
        """The columns of a table of predictions; `level` is the share of targets that intervals should hold."""

    @abc.abstractmethod
    def scores(self, y: Float[np.ndarray, " N"]) -> dict[str, float]:
        """How good the prediction is where the targets are y."""

    @abc.abstractmethod
    def calibration(self, y: Float[np.ndarray, " N"]) -> Float[np.ndarray, "2 Q"]:
        """Which shares of the targets y intervals should hold, and which they do; of classes, nothing."""


class NumberPredictive(Predictive):
    """The distribution of N rows of P numbers, counts among them. Tables have one: P is 1."""

    @property
    @abc.abstractmethod
    def mean(self) -> Numbers:
        """The mean."""

    @property
    @abc.abstractmethod
    def sd(self) -> Numbers:
        """The standard deviation."""

    @abc.abstractmethod
    def interval(self, level: float = 0.9) -> Ends:
        """The lower and the upper ends of intervals that hold a share `level` of the targets."""

    def numbers(self):
        return np.concatenate([self.mean, self.sd], axis=1)

    def columns(self, target, level):
        lower, upper = self.interval(level)
        found = {"mean": self.mean, "std": self.sd, "lower": lower, "upper": upper}
        return {name: values[:, 0] for name, values in found.items()}

    def scores(self, y):
        mean = self.mean[:, 0]
        return {
            "RMSE": scores.rmse(y, mean),
            "MAE": scores.mae(y, mean),
            "R2": scores.r2(y, mean),
            "log-likelihood": float(np.mean(self.log_density(y[:, None]))),
        } | {f"in the {100 * level:g} % interval": self._covered(y, level) for level in _COVERED}

    def calibration(self, y):
        return np.array([_CURVE, [self._covered(y, level) for level in _CURVE]])

    def _covered(self, y: np.ndarray, level: float) -> float:
        lower, upper = self.interval(level)
        return scores.coverage(y, lower[:, 0], upper[:, 0])


@dataclasses.dataclass(frozen=True, eq=False)
class ClassPredictive(Predictive):
    """The probability of each of C classes 0, 1, ..., C - 1, in N rows."""

    probabilities: Float[np.ndarray, "N C"]

    def log_density(self, y):
        return np.log(np.take_along_axis(self.probabilities, y.astype(int)[:, None], axis=1)[:, 0])

    def rows(self, selection):
        return ClassPredictive(self.probabilities[selection])

    def numbers(self):
        return self.probabilities

    def columns(self, target, level):
        each = {f"p({label})": self.probabilities[:, c] for c, label in enumerate(target.classes)}
        return {"prediction": target.decode(self.probabilities.argmax(axis=1))} | each

    def scores(self, y):
        p = self.probabilities
        return {
            "accuracy": scores.accuracy(y, p),
            "AUC": scores.auc(y, p),
            "log-likelihood": float(np.mean(self.log_density(y))),
            "Brier score": scores.brier(y, p),
            "calibration error": scores.calibration_error(y, p),
        }

    def calibration(self, y):
        return np.zeros((2, 0))
