"""The verb: `fit` makes an objective small, for any model."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optax
from jaxtyping import PRNGKeyArray

from mercer.linalg import quiet_blas
from mercer.objectives.base import Batch, Objective
from mercer.training.natural import NaturalGradient
from mercer.training.results import Callback, Fit
from mercer.training.run import Run, check_count
from mercer.training.sources import Source


def fit(
    model: Any,
    objective: Objective,
    data: tuple[Any, ...] | Batch | Source,
    *,
    optimiser: optax.GradientTransformation | NaturalGradient | None = None,
    steps: int = 1000,
    batch_size: int | None = None,
    key: PRNGKeyArray | None = None,
    frozen: Callable[[Any], Any] | None = None,
    callbacks: Sequence[Callback] | Callback = (),
    checkpoint: str | Path | None = None,
    progress: bool = False,
    every: int = 100,
    restarts: int = 1,
    perturb: Callable[[Any, PRNGKeyArray], Any] | None = None,
    validate: Callable[[Any], Any] | None = None,
    patience: int | None = None,
) -> Fit:
    """Makes `objective` small over the parameters of `model`.

    - `data`: a pair (X, Y), or a triple (X, Y, weights) where a row counts as often as its weight says. Its dtype becomes
      the model's. Or a `mercer.training.Source`, for data that do not fit into memory.
    - `optimiser`: any of optax (by default Adam with learning rate 0.01), `optax.lbfgs()` for objectives without
      minibatches, or `mercer.training.NaturalGradient`.
    - `batch_size`: rows in a step; all of them by default. Passes over the data are shuffled.
    - `frozen`: a function from the model to the parts that are held still.
    - `callbacks`: one or several, called with a `Progressed` after every `every` steps; one that returns True ends training.
    - `checkpoint`: a file, written after every `every` steps. If it is there at the start, the run goes on from it.
    - `restarts`: how many starts are trained at once; the first is the model, the others are `perturb(model, key)`, by
      default with noise on its vectors and numbers in free space. The best at the end is returned.
    - `validate`: a function from the model, as it would be returned, to a number, such as its error on data held out. It is asked
      after every `every` steps, and the model with the lowest number is returned.
    - `patience`: training ends when this number has not come down for so many steps.

    The model that it gives back is the posterior, as the objective finishes it: with `CollapsedELBO` the best one, with
    `MarginalLikelihood` the exact one given the data.

    Raises `TrainingError` at the first loss that is not finite; it holds the last good model.
    """
    check_count("steps", steps)
    callbacks = (callbacks,) if callable(callbacks) else callbacks
    if checkpoint is not None and not Path(checkpoint).parent.is_dir():
        raise ValueError(f"checkpoint expects a file in a folder that exists, got {checkpoint}")
    run = Run(
        model,
        objective,
        data,
        optimiser,
        batch_size=batch_size,
        key=key,
        frozen=frozen,
        every=every,
        restarts=restarts,
        perturb=perturb,
        validate=validate,
        patience=patience,
    )
    with quiet_blas():
        return run.train(steps, callbacks, None if checkpoint is None else Path(checkpoint), progress)
