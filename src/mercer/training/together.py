"""Several runs in one program: models of one form, each with its own numbers, data, key and learning rate, under one `vmap`.

What differs may be any number that is an array of the model, of the objective or of the data, and the numbers of an optimiser
that is tunable. The numbers are those of each run alone, up to rounding: a step of a run sees what it would see alone. A run
whose loss is not finite stops, and the others go on.

Each run may have a checkpoint of its own. So those that were cut off go on together, also in other company, as long as they have
taken the same number of steps.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mercer.errors import MercerError
from mercer.linalg import quiet_blas
from mercer.objectives.base import Objective
from mercer.training import checkpoint as checkpoint_files
from mercer.training.best import Best
from mercer.training.loop import compiler_options
from mercer.training.results import Fit, TrainingError
from mercer.training.run import Run, check_count
from mercer.training.steps import finite_starts

_BETWEEN = 60.0  # seconds from one writing of checkpoints to the next


class Job(NamedTuple):
    """What a run has of its own."""

    model: Any
    objective: Objective
    data: tuple[Any, ...]
    key: Any
    optimiser: optax.GradientTransformation | None = None
    validate: Callable[[Any], Any] | None = None


def fit_together(
    jobs: Sequence[Job],
    *,
    steps: int = 1000,
    batch_size: int | None = None,
    frozen: Callable[[Any], Any] | None = None,
    every: int = 100,
    patience: int | None = None,
) -> list[Fit | None]:
    """What `fit` gives for each job; None where a loss is not finite. The jobs must be of one `form_of`."""
    options = {"batch_size": batch_size, "frozen": frozen, "every": every, "patience": patience}
    runs = [
        Run(job.model, job.objective, job.data, job.optimiser, key=job.key, validate=job.validate, **options)
        for job in jobs
    ]
    return train_together(runs, steps)


def train_together(runs: Sequence[Run], steps: int, checkpoints: Sequence[Path] | None = None) -> list[Fit | None]:
    """What each of some runs gives, all of one form.

    `checkpoints` has a file for each run, written about every minute. Files that are there at the start hold the same number
    of steps, and training goes on from them.
    """
    check_count("steps", steps)
    first = runs[0]
    if len({form_of(run) for run in runs}) > 1:
        raise ValueError("fit_together: the jobs are not of one form")
    params, arrays = _stacked([run.params for run in runs]), _stacked([run.arrays for run in runs])
    data = _stacked([run.feed.data for run in runs])
    keys, numbers = jnp.stack([run.key for run in runs]), _stacked([run.numbers for run in runs])

    state = jax.jit(jax.vmap(first.begun))(params, arrays, data, numbers)
    together = jax.vmap(first.stepped, in_axes=(0, 0, 0, 0, None, 0))
    chunk = jax.jit(together, compiler_options=compiler_options())
    history = [np.zeros((0,), first.feed.example.Y.dtype) for _ in runs]
    best = [run.no_best() for run in runs]
    files = None if checkpoints is None else _Files(checkpoints, runs)
    if files is not None:
        state, best, history = files.read(state, best, history)
    alive = np.full(len(runs), True)  # all losses are finite
    goes_on = np.array([not run.is_over(own, past) for run, own, past in zip(runs, best, history, strict=True)])
    with quiet_blas():
        for begin_at in range(len(history[0]), steps if goes_on.any() else 0, first.every):
            count = min(first.every, steps - begin_at)
            fed = _chunks(runs, begin_at, count)
            results = chunk(state, arrays, data, None if fed[0] is None else _stacked(fed), np.asarray(count), keys)
            done, state, losses = jax.block_until_ready(results)
            done, losses = np.asarray(done), np.asarray(losses)
            alive &= ~goes_on | ((done == count) & np.isfinite(losses[:, count - 1]))
            goes_on &= alive
            # On the host, as JAX would compile an index for each run.
            here = None if first.validate is None else jax.tree.map(np.asarray, state.params)
            for i in map(int, np.flatnonzero(goes_on)):
                history[i] = np.concatenate([history[i], losses[i, :count]])
                if first.validate is not None:
                    try:
                        best[i] = runs[i].better(best[i], _entry(here, i), history[i])
                    except MercerError:
                        alive[i] = goes_on[i] = False
                    goes_on[i] &= not runs[i].is_over(best[i], history[i])
            if not goes_on.any():
                break
            if files is not None:
                files.write(state, best, history, goes_on)
        state = jax.tree.map(np.asarray, state)
        return [_finished(run, state, i, history[i], best[i]) if alive[i] else None for i, run in enumerate(runs)]


class _Files:
    """The checkpoints of some runs, each in a file of its own."""

    def __init__(self, paths: Sequence[Path], runs: Sequence[Run]):
        self.paths, self.written = paths, time.monotonic()
        self.identities = [run.identity() for run in runs]

    def read(
        self, state: Any, best: list[Best | None], history: list[np.ndarray]
    ) -> tuple[Any, list[Best | None], list[np.ndarray]]:
        """The state, the best and the history of each run, where its file is there; else those that are given."""
        if not self.paths[0].exists():
            return state, best, history
        start = jax.tree.map(np.asarray, state)
        each = zip(self.paths, self.identities, best, strict=True)
        found = [checkpoint_files.load(path, own, (_entry(start, i), one)) for i, (path, own, one) in enumerate(each)]
        states, histories = zip(*found, strict=True)
        return _stacked([own for own, _ in states]), [one for _, one in states], list(histories)

    def write(
        self, state: Any, best: Sequence[Best | None], history: Sequence[np.ndarray], goes_on: np.ndarray
    ) -> None:
        """Of the runs that go on, if the last time is long ago."""
        if time.monotonic() - self.written < _BETWEEN:
            return
        state = jax.tree.map(np.asarray, state)
        for i in map(int, np.flatnonzero(goes_on)):
            checkpoint_files.save(self.paths[i], self.identities[i], (_entry(state, i), best[i]), history[i])
        self.written = time.monotonic()


def form_of(run: Run) -> Any:
    """All of a run that is not a number: runs of one form can be trained together."""
    leaves, structure = jax.tree.flatten((run.static, run.objective.trained, run.every, run.feed.batch_size))
    shapes = jax.tree.map(
        lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), (run.params, run.arrays, run.feed.data)
    )
    return (
        run.stepper,
        structure,
        tuple(map(_hashable, leaves)),
        jax.tree.structure(shapes),
        tuple(map(str, jax.tree.leaves(shapes))),
    )


def _hashable(leaf: Any) -> Any:
    try:
        hash(leaf)
    except TypeError:
        return id(leaf)
    return leaf


def _chunks(runs: Sequence[Run], begin_at: int, count: int) -> list[Any]:
    """What each run is given for some steps, worked out once for all that see the same rows."""
    feeds = {run.feed.order: run.feed for run in runs}
    found = {order: feed.chunk(begin_at, count, runs[0].every) for order, feed in feeds.items()}
    return [found[run.feed.order] for run in runs]


def _stacked(trees: Sequence[Any]) -> Any:
    """By NumPy, as JAX would compile something for each number of them and each shape."""
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack([np.asarray(leaf) for leaf in leaves])), *trees)


def _entry(state: Any, i: int) -> Any:
    """The state of one run."""
    return jax.tree.map(lambda leaf: leaf[i], state)


def _finished(run: Run, state: Any, i: int, history: np.ndarray, best: Best | None) -> Fit | None:
    own = jax.tree.map(jnp.asarray, _entry(state, i))
    over = run.is_over(best, history)  # what it became since does not count
    if not over and not bool(np.asarray(finite_starts(own.params, 1)).all()):
        return None
    try:
        return run.finished(own, history, best)
    except TrainingError:
        return None
