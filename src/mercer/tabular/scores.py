"""Scores: how good predictions are where the truth is known.

Targets y are [N], classes 0, 1, ... among them; probabilities are [N, C]. A score that the data do not define, such as
the area under the curve where only one class occurs, is NaN.
"""

import numpy as np
from jaxtyping import Float
from scipy import stats

Numbers = Float[np.ndarray, " N"]
Probabilities = Float[np.ndarray, "N C"]


def rmse(y: Numbers, mean: Numbers) -> float:
    """The root of the mean squared error."""
    return _root_mean_square(y - mean)


def mae(y: Numbers, mean: Numbers) -> float:
    """The mean absolute error."""
    return float(np.mean(np.abs(y - mean)))


def r2(y: Numbers, mean: Numbers) -> float:
    """The share of the variance of y that the predictions explain."""
    spread = _root_mean_square(y - np.mean(y))
    with np.errstate(over="ignore"):
        return float(1.0 - np.square(rmse(y, mean) / spread)) if spread > 0.0 else float("nan")


def coverage(y: Numbers, lower: Numbers, upper: Numbers) -> float:
    """The share of y that lies in its interval."""
    return float(np.mean((lower <= y) & (y <= upper)))


def accuracy(y: Numbers, probabilities: Probabilities) -> float:
    """The share of rows whose most probable class is the true one."""
    return float(np.mean(probabilities.argmax(axis=1) == y))


def auc(y: Numbers, probabilities: Probabilities) -> float:
    """The area under the ROC curve; of more than two classes, its mean over each against the rest."""
    classes = range(1, 2) if probabilities.shape[1] == 2 else range(probabilities.shape[1])
    areas = [_area(y == c, probabilities[:, c]) for c in classes]
    areas = [area for area in areas if not np.isnan(area)]
    return float(np.mean(areas)) if areas else float("nan")


def brier(y: Numbers, probabilities: Probabilities) -> float:
    """The mean squared distance of the probabilities from 1 for the true class and 0 for others; of two classes, half of it."""
    truth = y[:, None] == np.arange(probabilities.shape[1])
    distance = np.mean(np.sum((probabilities - truth) ** 2, axis=1))
    return float(distance / 2.0 if probabilities.shape[1] == 2 else distance)


def calibration_error(y: Numbers, probabilities: Probabilities, bins: int = 10) -> float:
    """How far the probability of the most probable class is from how often it is true: the mean over rows, bin by bin."""
    said, seen, share = reliability(y, probabilities, bins)
    return float(np.sum(share * np.abs(said - seen)))


def reliability(y: Numbers, probabilities: Probabilities, bins: int = 10) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The probability of the most probable class, how often it is true, and the share of rows, in each bin that has any."""
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == y
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    count, sum_said, sum_seen = (np.bincount(bin_of, values, bins) for values in (None, confidence, right))
    some = count > 0
    return sum_said[some] / count[some], sum_seen[some] / count[some], count[some] / len(y)


def _area(positive: np.ndarray, score: np.ndarray) -> float:
    """The probability that a positive has a higher score than a negative, where ties count half (Mann and Whitney)."""
    num, rest = int(positive.sum()), int((~positive).sum())
    if not num or not rest:
        return float("nan")
    return float((stats.rankdata(score)[positive].sum() - num * (num + 1) / 2) / (num * rest))


def _root_mean_square(values: np.ndarray) -> float:
    """Without overflow where the values are huge."""
    size = float(np.abs(values).max())
    return size * float(np.sqrt(np.mean((values / size) ** 2))) if size > 0.0 else 0.0
