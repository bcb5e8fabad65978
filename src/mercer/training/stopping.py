"""Early stopping, as a callback of `fit`."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class EarlyStopping:
    """Ends training when the mean objective of `window` steps has not come down by `tolerance` for `patience` steps.

    It looks at the history alone, so that a run that is resumed stops where the uninterrupted one would.
    """

    patience: int = 500
    tolerance: float = 1e-4
    window: int = 100

    def __call__(self, progressed) -> bool:
        # With restarts, the best of those that are still finite.
        history = np.nanmin(progressed.history.reshape(len(progressed.history), -1), axis=1)
        count = len(history) // self.window
        windows = history[: count * self.window].reshape(count, self.window).mean(axis=1)
        recent = -(-self.patience // self.window)
        if count <= recent:
            return False
        return bool(np.min(windows[-recent:]) > np.min(windows[:-recent]) - self.tolerance)
