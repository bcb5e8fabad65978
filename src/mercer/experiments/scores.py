"""Scores of a model on a part of the data, in the units of the data."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mercer.model import Model
from mercer.tabular import scores as of_tables

# Of a block: rows, each of which may be a hundred passes of a deep process, and numbers in X.
_ROWS, _ENTRIES = 2**12, 2**20


def in_blocks(function: Callable[..., tuple[Any, ...]], *arrays: np.ndarray) -> list[np.ndarray]:
    """What a function of rows gives, some rows at a time: covariances with all of them may not fit into the memory."""
    size = max(1, min(_ROWS, _ENTRIES // arrays[0].shape[1]))
    blocks = ([array[i : i + size] for array in arrays] for i in range(0, len(arrays[0]), size))
    parts = [[np.asarray(part) for part in function(*block)] for block in blocks]
    return [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]


@dataclasses.dataclass(frozen=True)
class Scored:
    """What a model says of some data in standard units, each thing asked once. y = centre + scale * (its standard value)."""

    model: Model
    X: np.ndarray
    Y: np.ndarray
    scale: np.ndarray

    @functools.cached_property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of observations, [N, P]."""

        def asked(X):
            said = self.model.predict(X)
            return said.mean, said.variance

        mean, variance = in_blocks(asked, self.X)
        return mean, variance

    @property
    def of_numbers(self) -> bool:
        """Whether there is one prediction for each observation: not so where they are probabilities of classes."""
        return self.moments[0].shape == self.Y.shape

    @property
    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """The moments, where there is one prediction for each observation."""
        if not self.of_numbers:
            said = "scores of numbers, such as rmse, are not for the probabilities of classes that"
            raise ValueError(
                f"{said} {self._likelihood} predicts: take nlpd, or accuracy where Y is one column of labels"
            )
        return self.moments

    @property
    def of_classes(self) -> bool:
        """Whether each observation is the label of a class."""
        return self.model.likelihood.num_classes is not None and self.Y.shape[1] == 1

    @functools.cached_property
    def probabilities(self) -> np.ndarray:
        """Of classes, [N, C]."""
        classes = self.model.likelihood.num_classes
        if classes is None or not self.of_classes:
            expected = f"{' and '.join(OF_CLASSES)} need a likelihood of classes and one column of labels"
            raise ValueError(f"{expected}, got {self._likelihood} and {self.Y.shape[1]}")
        if self.moments[0].shape[1] == classes:
            return self.moments[0]

        def asked(X):
            labels = (np.full((len(X), 1), float(label)) for label in range(classes))
            return (np.exp(np.stack([self.model.log_density(X, label) for label in labels], axis=1)),)

        (found,) = in_blocks(asked, self.X)
        return found

    @property
    def _likelihood(self) -> str:
        return type(self.model.likelihood).__name__

    @property
    def seen(self) -> np.ndarray:
        """Which entries are observed, [N, P]."""
        return ~np.isnan(self.Y)

    @property
    def pair(self) -> tuple[np.ndarray, np.ndarray]:
        """Observations and their means in the units of the data, in one row."""
        return (self.scale * self.Y)[self.seen], (self.scale * self.numbers[0])[self.seen]


def nlpd(scored: Scored) -> float:
    """Minus the mean log density of the rows."""
    units = np.sum(scored.seen * np.log(scored.scale), axis=1)
    (densities,) = in_blocks(lambda X, Y: (scored.model.log_density(X, Y),), scored.X, scored.Y)
    return float(np.mean(units) - np.mean(densities))


def rmse(scored: Scored) -> float:
    """The root of the mean squared error."""
    return of_tables.rmse(*scored.pair)


def mae(scored: Scored) -> float:
    """The mean absolute error."""
    return of_tables.mae(*scored.pair)


def smse(scored: Scored) -> float:
    """The mean squared error over the variance of the observations, the mean over outputs that have any."""
    mean = scored.numbers[0]
    found = [
        np.mean((y[seen] - m[seen]) ** 2) / np.var(y[seen])
        for y, m, seen in zip(scored.Y.T, mean.T, scored.seen.T, strict=True)
        if seen.any()
    ]
    return float(np.mean(found))


def coverage(scored: Scored) -> float:
    """The share of observations in intervals of 90 %."""
    mean, variance = scored.numbers
    half = 1.6448536269514722 * np.sqrt(variance)
    return of_tables.coverage(*(values[scored.seen] for values in (scored.Y, mean - half, mean + half)))


def accuracy(scored: Scored) -> float:
    """The share of right classes."""
    return of_tables.accuracy(scored.Y[:, 0], scored.probabilities)


def calibration_error(scored: Scored) -> float:
    """How far the probabilities of classes are from their frequencies."""
    return of_tables.calibration_error(scored.Y[:, 0], scored.probabilities)


SCORES: dict[str, Callable[[Scored], float]] = {
    score.__name__: score for score in (nlpd, rmse, mae, smse, coverage, accuracy, calibration_error)
}

OF_CLASSES = ("accuracy", "calibration_error")
# What a score should be: a number, or at one of the ends.
GOALS: dict[str, float] = {"coverage": 0.9, "accuracy": math.inf}


def distance(name: str, value: float) -> float:
    """How far a score is from what it should be: less is better, and what is no number is the worst."""
    goal = GOALS.get(name, -math.inf)
    found = abs(value - goal) if math.isfinite(goal) else math.copysign(1.0, -goal) * value
    return math.inf if math.isnan(found) else found


def scores_of(model: Model, X: np.ndarray, Y: np.ndarray, scale: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    """Some scores, by name."""
    scored = Scored(model, X, Y, scale)
    return {name: SCORES[name](scored) for name in names}
