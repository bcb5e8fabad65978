"""Columns as inputs: what each column of a training table says of a row, in numbers.

`Columns.describe` looks at a table once, column by column, and decides: a number is taken as it is; a category is 0 or 1 for
each of its levels; a date is a number of days and, where the data cover more than two of a cycle, a point on the circle of
that cycle; a latitude and a longitude together are a point on the globe. What tells nothing (a constant, an identifier) is
left out. Every decision is a sentence in `notes`. The result is a value that is saved with the model, so that new tables are
encoded as the training table was.
"""

from collections.abc import Collection
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from mercer.io.tables import Column, Table, TableError
from mercer.parameters import Module
from mercer.tabular.encoders import Category, Date, Encoder, Number
from mercer.tabular.places import Place


class Columns(Module):
    """The columns that are used, each with its encoder; and notes on what was done with all of them."""

    encoders: tuple[Encoder, ...]
    notes: tuple[str, ...] = eqx.field(static=True)

    @classmethod
    def describe(
        cls, table: Table, exclude: Collection[str] = (), pairs: Collection[tuple[str, str]] = ()
    ) -> "Columns":
        """How to encode the columns of a training table, but for those in `exclude`.

        Each of the `pairs` holds the latitude and the longitude of a place (see `mercer.tabular.pairs_of_coordinates`).
        """
        encoders: list[Encoder] = []
        notes: list[str] = []
        pair_of = {name: pair for pair in pairs for name in pair}
        for name in table.names:
            if name in exclude:
                continue
            if name in pair_of:
                pair = pair_of[name]
                if name == min(pair, key=table.names.index):
                    encoders.append(Place.describe(table, *pair, notes))
                continue
            described = _describe(table.column(name), notes)
            if isinstance(described, str):
                notes.append(f"column {name!r} is dropped: {described}")
            else:
                encoders.append(described)
        if not encoders:
            reasons = "; ".join(notes) or "it has no other columns"
            raise TableError(f"{table.source} has no column to predict from: {reasons}")
        return cls(tuple(encoders), tuple(notes))

    @property
    def used(self) -> tuple[str, ...]:
        """The names of the columns that a table to be encoded must have."""
        return tuple(name for encoder in self.encoders for name in encoder.columns)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the D features."""
        return tuple(feature for encoder in self.encoders for feature in encoder.features)

    @property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """The numbers of the features that each column, or place, becomes, by its title."""
        ends = np.cumsum([len(encoder.features) for encoder in self.encoders]).tolist()
        each = zip(self.encoders, [0, *ends], ends, strict=False)
        return {encoder.title: tuple(range(start, end)) for encoder, start, end in each}

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The names of the columns of latitude and longitude of each place."""
        return tuple((place.latitude, place.longitude) for place in self.encoders if isinstance(place, Place))

    @property
    def places(self) -> dict[str, tuple[int, ...]]:
        """The numbers of the three features that are the unit vector of each place, by its title."""
        titles = [encoder.title for encoder in self.encoders if isinstance(encoder, Place)]
        return {title: self.groups[title][:3] for title in titles}

    def encode(self, table: Table, dtype: Any = np.float64, notes: list[str] | None = None) -> Float[np.ndarray, "N D"]:
        """The inputs X [N, D]: finite. What the table holds that training did not is said in `notes`."""
        X = _aligned((len(table), len(self.features)), np.dtype(dtype))
        notes, first = [] if notes is None else notes, 0
        for encoder in self.encoders:
            last = first + len(encoder.features)
            encoder.encode(table, X[:, first:last], notes)
            first = last
        return X


def _describe(column: Column, notes: list[str]) -> Encoder | str:
    encoders: dict[str, type[Number] | type[Category] | type[Date]]
    encoders = {"number": Number, "boolean": Number, "text": Category, "date": Date}
    return encoders[column.kind].describe(column, notes)


def _aligned(shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """An array that begins at a multiple of 64 bytes, which is what JAX asks of one that it is to use where it lies."""
    memory = np.empty(shape[0] * shape[1] * dtype.itemsize + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : len(memory) - 64 + start].view(dtype).reshape(shape)
