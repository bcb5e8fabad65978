"""Scores of a model on a part of the data, in the units of the data."""

from collections.abc import Callable

import numpy as np

from mercer.model import Model
from mercer.tabular import scores as of_tables

Score = Callable[[Model, np.ndarray, np.ndarray, np.ndarray, np.ndarray], float]


def nlpd(model: Model, X: np.ndarray, Y: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> float:
    """Minus the mean log density of the observations."""
    return float(np.sum(np.log(scale)) - np.mean(np.asarray(model.log_density(X, Y))))


def rmse(model: Model, X: np.ndarray, Y: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> float:
    """The root of the mean squared error."""
    return of_tables.rmse((scale * Y).ravel(), (scale * np.asarray(model.predict(X).mean)).ravel())


def mae(model: Model, X: np.ndarray, Y: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> float:
    """The mean absolute error."""
    return of_tables.mae((scale * Y).ravel(), (scale * np.asarray(model.predict(X).mean)).ravel())


def coverage(model: Model, X: np.ndarray, Y: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> float:
    """The share of observations in intervals of 90 %."""
    said = model.predict(X)
    half = 1.6448536269514722 * np.sqrt(np.asarray(said.variance))
    mean = np.asarray(said.mean)
    return of_tables.coverage(Y.ravel(), (mean - half).ravel(), (mean + half).ravel())


def accuracy(model: Model, X: np.ndarray, Y: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> float:
    """The share of right classes."""
    return of_tables.accuracy(Y[:, 0], _probabilities(model, X))


def calibration_error(model: Model, X: np.ndarray, Y: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> float:
    """How far the probabilities of classes are from their frequencies."""
    return of_tables.calibration_error(Y[:, 0], _probabilities(model, X))


SCORES: dict[str, Score] = {score.__name__: score for score in (nlpd, rmse, mae, coverage, accuracy, calibration_error)}


def _probabilities(model: Model, X: np.ndarray) -> np.ndarray:
    """[N, C]; of one column, that of class 1."""
    found = np.asarray(model.predict(X).mean)
    return np.concatenate([1.0 - found, found], axis=1) if found.shape[1] == 1 else found
