"""Tables: named columns of equal length, each read when it is asked for; and the names of columns."""

import dataclasses
import difflib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mercer.io.tables.columns import Column, TableError


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Named columns of equal length, each read when it is asked for."""

    source: str
    names: tuple[str, ...]
    notes: tuple[str, ...]  # what a reader should know: renamed columns, a guessed encoding, ...
    duplicated: frozenset[str]  # names that more than one column had, and of which only the first has kept it
    _rows: range | np.ndarray  # of the source
    _load: Callable[[int, int, int], Column]  # (position, start, stop) to the column of these rows of the source

    @classmethod
    def of(cls, source: str, raw: Iterable[Any], length: int, load: Callable[[str, int, int, int], Column]) -> "Table":
        """A table with the names `raw`, which may need mending; `load` reads a column: (name, position, start, stop)."""
        names, notes, duplicated = distinct(raw)
        if not names or not length:
            raise TableError(f"{source} has no {'rows' if names else 'columns'}; a table needs at least one of each")
        return cls(source, names, tuple(notes), duplicated, range(length), lambda j, *span: load(names[j], j, *span))

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> Column:
        """The column `name`, of the rows selected."""
        if name not in self.names:
            raise TableError(f"{self.source} has no column {name!r}; {similar(name, self.names, 'its columns are')}")
        rows = self._rows
        within: slice | np.ndarray
        if isinstance(rows, range):
            start, stop, within = rows.start, max(rows.start, rows.stop), slice(None, None, rows.step)
        else:
            start, stop = (int(rows.min()), int(rows.max()) + 1) if len(rows) else (0, 0)
            within = rows - start
        column = self._load(self.names.index(name), start, stop)
        return dataclasses.replace(column, values=column.values[within])

    def row_number(self, position: int) -> int:
        """The number of a row in the source, of which the first is 1."""
        return int(self._rows[position]) + 1

    def rows(self, selection: slice | Sequence[int] | np.ndarray) -> "Table":
        """The table of some of the rows: a slice, positions, or a boolean for each row."""
        rows = self._rows
        if not isinstance(selection, slice):
            selection = np.asarray(selection)
            if selection.dtype == bool and len(selection) != len(self):
                raise TableError(f"{self.source} has {len(self)} rows, and the selection is of {len(selection)}")
            selection = np.flatnonzero(selection) if selection.dtype == bool else selection.astype(int)
        if isinstance(rows, range) and not (isinstance(selection, slice) and (selection.step or 1) > 0):
            rows = np.arange(rows.start, rows.stop, rows.step)
        return dataclasses.replace(self, _rows=rows[selection])  # type: ignore[arg-type]


def similar(name: str, names: Iterable[str], otherwise: str) -> str:
    """The hint that follows "there is no `name`"."""
    names = list(names)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    close = close or [other for other in names if other.lower().strip() == name.lower().strip()]
    if close:
        return "did you mean " + " or ".join(map(repr, close)) + "?"
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"{otherwise} {', '.join(map(repr, names[:10]))}{more}"


def numbered(width: int) -> list[str]:
    """The names of columns that have none: x1, x2, ..."""
    return [f"x{position}" for position in range(1, width + 1)]


def distinct(raw: Iterable[Any]) -> tuple[tuple[str, ...], list[str], frozenset[str]]:
    """Names that differ and are not empty, with notes on those that were changed; and the names that came twice."""
    given = [str(name).strip() for name in raw]
    names: dict[str, None] = {}
    notes, counts = [], Counter(given)
    for position, name in enumerate(given, 1):
        base = name or f"column {position}"
        tries = itertools.chain([base], (f"{base}_{i}" for i in itertools.count(2)))
        fresh = next(other for other in tries if other not in names and (other == name or other not in counts))
        if not name:
            notes.append(f"column {position} has no name and is called {fresh!r}")
        elif fresh != name:
            notes.append(f"more than one column is called {name!r}; column {position} is now {fresh!r}")
        names[fresh] = None
    return tuple(names), notes, frozenset(name for name, count in counts.items() if name and count > 1)
