"""Made-up data to try methods on: the ten curves of paper 000, chapter 7."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from numpy import cos, pi, sin, sqrt

from mercer.deprecation import key_by_name

__all__ = ["NUM_CURVES", "ToyCurve", "toy_curve"]

_CURVES = (
    lambda x: 2.0 * sin(0.35 * pi * (x - 3.0) ** 2) + x**2,
    lambda x: 2.0 * sin(2.0 * pi * x),
    lambda x: 1.2 * cos(2.0 * pi * x) + x**2,
    lambda x: 2.0 * sin(1.5 * pi * x) + 0.6 * cos(4.5 * pi * x) + sin(3.5 * pi * x),
    lambda x: 2.0 * sin(2.0 * pi * x) + x,
    lambda x: 2.0 * sin(pi * x) + 0.5 * x**3,
    lambda x: 4.0 * sin(pi * x) + 2.0 * sin(3.0 * pi * x) - 2.0 * x,
    lambda x: 2.0 * cos(pi * x) + sin(3.0 * pi * x) - x**2,
    lambda x: sin(0.5 * pi * (x - 2.0) ** 2),
    lambda x: 3.0 * sqrt(4.0 - x**2) + sin(pi * x),
)
NUM_CURVES = len(_CURVES)
_CELLS = 20  # equal pieces of the range, some of which are held out
_HELD_OUT = 4
_VALIDATION = 0.2  # of what is not held out

Pair = tuple[Float[Array, "n 1"], Float[Array, "n 1"]]


class ToyCurve(NamedTuple):
    """N noisy values of a curve, in order of x. Each row is in one of three parts: train, validation, or test (held out)."""

    X: Float[Array, "N 1"]
    Y: Float[Array, "N 1"]
    truth: Float[Array, "N 1"]  # without noise
    held_out: Bool[np.ndarray, " N"]  # whole segments
    validated: Bool[np.ndarray, " N"]  # rows at random among the others

    def _rows(self, which: np.ndarray) -> Pair:
        return self.X[which], self.Y[which]

    @property
    def train(self) -> Pair:
        """X and Y to learn from."""
        return self._rows(~self.held_out & ~self.validated)

    @property
    def validation(self) -> Pair:
        """X and Y to choose or to calibrate by."""
        return self._rows(self.validated)

    @property
    def test(self) -> Pair:
        """X and Y of the segments that were held out."""
        return self._rows(self.held_out)


@key_by_name
def toy_curve(i: int, *, num: int = 1000, noise: float = 0.5, key: PRNGKeyArray) -> ToyCurve:
    """Curve i = 1, ..., 10 of paper 000 at `num` equal steps from -2 to 2, with Gaussian noise of standard deviation `noise`.

    Of twenty equal segments four are held out at random, none at either end; of the other rows a fifth is for validation.
    """
    if not isinstance(i, int | np.integer) or not 1 <= i <= NUM_CURVES:
        raise ValueError(f"i expects the number of a curve, 1 to {NUM_CURVES}, got {i!r}")
    if num < 2 * _CELLS:
        raise ValueError(f"num expects at least {2 * _CELLS} points, got {num}")
    if not noise >= 0.0:
        raise ValueError(f"noise expects a standard deviation, 0 or more, got {noise}")
    x = np.linspace(-2.0, 2.0, num)
    truth = _CURVES[i - 1](x)[:, None]
    key_noise, key_cells, key_rows = jax.random.split(key, 3)
    cells = 1 + np.asarray(jax.random.choice(key_cells, _CELLS - 2, (_HELD_OUT,), replace=False))
    held_out = np.isin(np.arange(num) * _CELLS // num, cells)
    left = np.flatnonzero(~held_out)
    rows = np.asarray(jax.random.choice(key_rows, len(left), (round(_VALIDATION * len(left)),), replace=False))
    validated = np.isin(np.arange(num), left[rows])
    X, f = jnp.asarray(x[:, None]), jnp.asarray(truth)
    return ToyCurve(X, f + noise * jax.random.normal(key_noise, f.shape, f.dtype), f, held_out, validated)
