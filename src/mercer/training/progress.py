"""A progress bar with the objective: tqdm where it is installed, else a line now and then on standard error."""

import sys

import numpy as np


class Progress:
    """Shows how far training is. Does nothing unless asked to."""

    def __init__(self, steps: int, done: int, show: bool):
        self.steps, self.done, self.show, self._bar = steps, done, show, None

    def __enter__(self) -> "Progress":
        if self.show:
            try:
                from tqdm.auto import tqdm

                self._bar = tqdm(total=self.steps, initial=self.done, unit="step")
            except ImportError:
                pass
        return self

    def __exit__(self, *exception) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, done: int, loss: np.floating | float) -> None:
        """`done` steps are taken, the last objective was `loss`."""
        if self._bar is not None:
            self._bar.set_postfix(objective=f"{loss:.4g}", refresh=False)
            self._bar.update(done - self.done)
        elif self.show:
            print(f"step {done} of {self.steps}: objective {loss:.4g}", file=sys.stderr)
        self.done = done
