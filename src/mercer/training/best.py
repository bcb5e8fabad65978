"""The best model on the way: by a number that is asked for between chunks of steps, such as the error on data held out."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mercer.training.steps import Params


class Best(NamedTuple):
    """The lowest number so far, after how many steps it was found, and the parameters there. Arrays, as checkpoints hold them."""

    number: np.ndarray
    step: np.ndarray
    params: Params

    @classmethod
    def none(cls, params: Params) -> "Best":
        """Before anything was asked for."""
        return cls(np.asarray(np.inf), np.asarray(0), params)

    @property
    def found(self) -> bool:
        """Whether there was a finite number at all."""
        return bool(np.isfinite(self.number))

    def is_old(self, patience: int | None, step: int) -> bool:
        """Whether it was found at least `patience` steps ago."""
        return patience is not None and step - int(self.step) >= patience


def better(best: Best, validate: Callable[[Any], Any], model: Any, params: Params, step: int) -> Best:
    """The better of two: the best so far, and a model with its parameters after so many steps."""
    number = np.asarray(validate(model), float)
    if number.shape != ():
        raise ValueError(
            f"validate expects a function from the model to one number, which gave an array {number.shape}"
        )
    return Best(number, np.asarray(step), params) if np.isfinite(number) and number < best.number else best
