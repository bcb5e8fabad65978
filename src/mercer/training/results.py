"""What comes out of training: the trained model, what callbacks see on the way, and the error where it fails."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from mercer.errors import MercerError
from mercer.objectives.base import Objective
from mercer.training.best import Best


class Fit(eqx.Module):
    """A trained model, and the objective before each step, [steps] (with restarts: [steps] of the best).

    Unpacks as `model, history = fit(...)`. `objective` is what was made small, with the values that its own parameters have after
    training.
    """

    model: Any
    history: np.ndarray
    objective: Objective | None = None

    def __iter__(self):
        return iter((self.model, self.history))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Any:
        return (self.model, self.history)[i]


class TrainingError(MercerError):
    """The objective became NaN or infinite. `fit` holds the last good model and the history up to it."""

    def __init__(self, message: str, fit: Fit):
        super().__init__(message)
        self.fit = fit


class Progressed(NamedTuple):
    """What a callback sees after each chunk: steps done, the history so far, the model as it is (made when called), and, where
    models are validated, the best number so far and its step.
    """

    step: int
    history: np.ndarray
    model: Callable[[], Any]
    best: Best | None = None


Callback = Callable[[Progressed], bool | None]
