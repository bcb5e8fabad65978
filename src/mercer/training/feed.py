"""What the steps of a run see: all of the data, minibatches of data that are in memory, or rows that a source reads.

A feed has an `example`, the batch that checks and shapes are taken from (all of the data, where they are in memory), `data`, what
the compiled loop holds of it, and `chunk`, what it is given for some steps.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mercer.inducing.functionals import is_functional
from mercer.objectives.base import Batch, Objective, as_batch
from mercer.training.identity import description
from mercer.training.minibatches import Minibatches
from mercer.training.sources import Rows, Source


class Indices(NamedTuple):
    """What the compiled loop is given for some steps: the numbers of their rows, of data in memory, [steps, size]."""

    numbers: np.ndarray

    def batch(self, data: Any, i: Array) -> Batch:
        """The batch of the i-th of these steps."""
        return data.rows(self.numbers[i])


class Read(NamedTuple):
    """What the compiled loop is given for some steps: their rows themselves, with axes [steps, size]."""

    rows: Batch

    def batch(self, data: Any, i: Array) -> Batch:
        """The batch of the i-th of these steps."""
        return jax.tree.map(lambda leaf: leaf[i], self.rows)


@dataclasses.dataclass(frozen=True)
class Whole:
    """All of the data, or minibatches of them, in memory."""

    example: Batch
    minibatches: Minibatches | None

    @property
    def data(self) -> Batch:
        return self.example

    @property
    def batch_size(self) -> int | None:
        """Rows of a step; None for all of them."""
        return None if self.minibatches is None else self.minibatches.size

    @property
    def order(self) -> tuple[Any, ...]:
        """What decides on the rows of each step: feeds with the same order give the same chunks."""
        return () if self.minibatches is None else self.minibatches.order

    def chunk(self, first: int, count: int, every: int) -> Indices | None:
        """What the loop is given for `count` steps, in the shape of `every` of them."""
        if self.minibatches is None:
            return None
        numbers = np.zeros((every, self.minibatches.size), np.int32)
        numbers[:count] = self.minibatches.indices(first, count)
        return Indices(numbers)

    def identity(self) -> dict[str, str]:
        """What tells these data from others."""
        return description(self.example, "data") | {"batch_size": str(self.batch_size)}


@dataclasses.dataclass(frozen=True)
class Streamed:
    """Minibatches that a source reads. Each chunk passes the checks that data in memory pass at the start."""

    objective: Objective
    model: Any
    source: Source
    example: Batch
    batch_size: int
    seed: tuple[int, ...]
    data: None = None

    @property
    def order(self) -> tuple[Any, ...]:
        """What decides on the rows of each step."""
        return self.source.identity(), self.batch_size, self.seed

    def chunk(self, first: int, count: int, every: int) -> Read:
        """What the loop is given for `count` steps, in the shape of `every` of them."""
        rows = self.source.batches(first, count, self.batch_size, self.seed)
        flat = jax.tree.map(lambda leaf: np.reshape(leaf, (-1, *np.shape(leaf)[2:])), rows)
        self.objective.checked(self.model, _batch(flat, self.source.num_data))
        padded = jax.tree.map(lambda leaf: np.pad(leaf, [(0, every - count)] + [(0, 0)] * (np.ndim(leaf) - 1)), rows)
        return Read(_batch(padded, self.source.num_data))

    def identity(self) -> dict[str, str]:
        """What tells these data from others."""
        return {"data": self.source.identity(), "batch_size": str(self.batch_size)}


def _batch(rows: Rows, num_data: int) -> Batch:
    X, Y, weights, index = jax.tree.map(jnp.asarray, rows)
    return Batch(X, Y, num_data, complete=False, weights=weights, index=index)


def feed_of(
    objective: Objective,
    model: Any,
    data: Any,
    batch_size: int | None,
    seed: tuple[int, ...],
    held: Sequence[Any] = (),
) -> Whole | Streamed:
    """The feed of a run, after all checks of the data. `held` are the arrays of the model that it does not move."""
    if isinstance(data, Source):
        return _streamed(objective, model, data, batch_size, seed)
    batch = objective.checked(model, data)
    _check_size(batch_size, batch.num_data)
    if batch_size is None or batch_size == batch.num_data:
        return Whole(objective.prepare_for(model, batch, held), None)
    if is_functional(batch.X):
        raise ValueError(f"{type(batch.X).__name__} are observed together, not in minibatches: leave batch_size out")
    return Whole(objective.prepare_for(model, batch, held), Minibatches(batch.num_data, batch_size, seed))


def _streamed(objective, model, source, batch_size, seed) -> Streamed:
    name = type(source).__name__
    if objective.needs_data:
        raise ValueError(f"{type(objective).__name__} looks at all of the data in each step: {name} does not hold them")
    if batch_size is None:
        raise ValueError(f"batch_size: data of a {name} come in minibatches, say of how many rows")
    _check_size(batch_size, source.num_data)
    rows = source.example()
    example = _batch(rows, source.num_data)
    as_batch((rows.X, rows.Y, rows.weights))
    objective.checked(model, example)
    return Streamed(objective, model, source, example, batch_size, seed)


def _check_size(batch_size: int | None, num_data: int) -> None:
    if batch_size is not None and not 1 <= batch_size <= num_data:
        raise ValueError(f"batch_size must be between 1 and the number of data, {num_data}, got {batch_size}")
