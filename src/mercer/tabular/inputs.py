"""Inputs on a common footing: each column bent towards a normal distribution, centred and scaled.

A column is standardised, mapped by the Yeo-Johnson transformation with the power that fits a normal best (Yeo and Johnson,
2000), and standardised again. Kernels of one lengthscale per column suit columns of any unit and of skewed distribution then.
The three columns of a place on the globe are not bent, and have one scale together: distances between places keep their ratios.
"""

from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Array, Float
from scipy import stats

from mercer.parameters import Module, constant

_MIN_LEVELS = 10  # different values below which a column is not bent
_ROWS = 10_000  # rows that the power is found from
_FAR = 1e6  # standard deviations at which new inputs are cut off


class Inputs(Module):
    """A map of inputs X [N, D], column by column, found from training inputs. A constant column becomes 0."""

    centre: Float[Array, " D"] = constant()
    scale: Float[Array, " D"] = constant()
    power: Float[Array, " D"] = constant()
    bent_centre: Float[Array, " D"] = constant()
    bent_scale: Float[Array, " D"] = constant()

    @classmethod
    def of(cls, X: Float[np.ndarray, "N D"], places: Collection[Sequence[int]] = ()) -> "Inputs":
        """The map for training inputs. Each of the `places` is the numbers of three columns that are a unit vector."""
        columns = [_describe(column) for column in np.asarray(X, dtype=float).T]
        for place in places:
            # The variance of a column of a flat map, as the sphere is of two dimensions.
            scale = float(np.sqrt(np.sum(np.var(X[:, list(place)], axis=0)) / 2.0))
            for d in place:
                columns[d] = (float(np.mean(X[:, d])), scale if scale > 1e-12 else 1.0, 1.0, 0.0, 1.0)
        return cls(*(np.array(values) for values in zip(*columns, strict=True)))

    def __call__(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
        """The inputs as the model sees them."""
        X = np.asarray(X, dtype=float)
        centre, scale, power, bent_centre, bent_scale = (np.asarray(values) for values in _fields(self))
        standard = np.clip((X / scale - centre / scale), -_FAR, _FAR)
        for d in np.flatnonzero(power != 1.0):
            standard[:, d] = _bend(standard[:, d], power[d])
        return np.clip((standard - bent_centre) / bent_scale, -_FAR, _FAR)


def _fields(inputs: Inputs) -> tuple:
    return inputs.centre, inputs.scale, inputs.power, inputs.bent_centre, inputs.bent_scale


def _describe(column: np.ndarray) -> tuple[float, float, float, float, float]:
    """Centre, scale, power, and centre and scale of the bent column."""
    size = max(float(np.abs(column).max()), np.finfo(float).tiny)
    with np.errstate(over="ignore"):
        centre, scale = float(np.mean(column / size)) * size, float(np.std(column / size)) * size
    if scale <= 1e-12 * size:
        return centre, max(size, 1.0), 1.0, 0.0, 1.0
    standard = column / scale - centre / scale
    power = _power(standard)
    bent = _bend(standard, power)
    if not np.isfinite(bent).all() or bent.std() < 1e-6:
        return centre, scale, 1.0, 0.0, 1.0
    return centre, scale, power, float(bent.mean()), float(bent.std())


def _power(standard: np.ndarray) -> float:
    """The power of the Yeo-Johnson transformation; 1, which bends nothing, where there is little to learn it from."""
    some = standard[:: max(len(standard) // _ROWS, 1)]
    if len(np.unique(some)) < _MIN_LEVELS:
        return 1.0
    with np.errstate(all="ignore"):
        power = stats.yeojohnson_normmax(some)
    return float(power) if -3.0 < power < 5.0 else 1.0


def _bend(x: np.ndarray, power: float) -> np.ndarray:
    """((1 + x)^p - 1) / p for x >= 0, and (1 - (1 - x)^(2 - p)) / (2 - p) for x < 0."""

    def grow(size, p):
        return np.log1p(size) if abs(p) < 1e-8 else np.expm1(p * np.log1p(size)) / p

    return np.where(x >= 0.0, grow(np.maximum(x, 0.0), power), -grow(np.maximum(-x, 0.0), 2.0 - power))
