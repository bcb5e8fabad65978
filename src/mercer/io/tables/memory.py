"""Tables from arrays and lists in memory."""

import datetime
import decimal
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from mercer.io.tables.columns import Column, Kind, TableError, in_utc
from mercer.io.tables.table import Table


def of_arrays(source: str, names: Iterable[Any], length: int, array: Callable[[int], np.ndarray]) -> Table:
    """The table whose columns, by position, are arrays."""

    def load(name: str, position: int, start: int, stop: int) -> Column:
        return _of_values(name, array(position)[start:stop], source)

    return Table.of(source, names, length, load)


def of_mapping(columns: Mapping[Any, Any]) -> Table:
    """The table of a mapping of names to values."""
    arrays = [_array(values) for values in columns.values()]
    lengths = sorted({len(array) for array in arrays})
    if len(lengths) > 1:
        raise TableError(f"the table has columns of different lengths, from {lengths[0]} to {lengths[-1]}")
    return of_arrays("the table", columns, max(lengths, default=0), arrays.__getitem__)


def _array(values: Any) -> np.ndarray:
    """One column of a mapping; what is not an array yet keeps the types of its values."""
    if hasattr(values, "to_numpy"):
        return values.to_numpy()
    if not hasattr(values, "__array__"):
        items = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else [values]
        values = np.empty(len(items), dtype=object)
        values[:] = items
    values = np.asarray(values)
    if values.ndim != 1:
        raise TableError(f"a column of the table must be one-dimensional, got shape {values.shape}")
    return values


def _of_values(name: str, values: np.ndarray, source: str) -> Column:
    kind = values.dtype.kind
    if kind == "m":
        return Column(name, "number", values / np.timedelta64(1, "s"), source=source)
    if kind == "M":
        return Column(name, "date", values.astype("datetime64[us]"), source=source)
    if kind in "biuf":
        values = values.astype(np.float64, copy=False)
        return Column(name, "boolean" if kind == "b" else "number", values, kind in "iu", source)
    return of_objects(name, values.tolist(), source)


def of_objects(name: str, values: list, source: str) -> Column:
    """The narrowest kind that holds all the objects that are not missing."""
    values = [None if _is_missing(value) else value for value in values]
    present = [value for value in values if value is not None]

    def all_are(*types: type) -> bool:
        return all(isinstance(value, types) for value in present)

    if not present or all_are(numbers.Real, decimal.Decimal, np.bool_):
        kind: Kind = "boolean" if present and all_are(bool, np.bool_) else "number"
        return Column(name, kind, np.array(values, dtype=float), all_are(numbers.Integral), source)
    if all_are(datetime.date, np.datetime64):
        return Column(name, "date", np.array([in_utc(value) for value in values], "datetime64[us]"), source=source)
    texts = np.empty(len(values), dtype=object)
    texts[:] = [None if value is None else str(value) for value in values]
    return Column(name, "text", texts, source=source)


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, float | np.floating | decimal.Decimal):
        return value != value
    return isinstance(value, np.datetime64) and bool(np.isnat(value))
