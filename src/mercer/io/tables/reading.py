"""`read_table`: a table from a file, or from what is in memory."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mercer.io.tables.columns import TableError
from mercer.io.tables.csv_text import of_csv
from mercer.io.tables.frames import import_polars, of_polars
from mercer.io.tables.memory import of_arrays, of_mapping
from mercer.io.tables.table import Table, numbered, similar


def read_table(source: Any) -> Table:
    """The table in a csv or parquet file, pandas or polars frame, mapping of names to values, or array [N, D]."""
    if isinstance(source, str | os.PathLike):
        return _read_file(Path(source))
    kind = f"{type(source).__module__.partition('.')[0]} {type(source).__name__}"
    if kind in ("polars DataFrame", "polars LazyFrame"):
        return of_polars(source.lazy(), f"the {kind}")
    if hasattr(source, "iloc") and hasattr(source, "columns"):
        return of_arrays(f"the {kind}", source.columns, len(source), lambda j: source.iloc[:, j].to_numpy())
    if isinstance(source, Mapping):
        return of_mapping(source)
    if getattr(source, "ndim", None) == 2 and hasattr(source, "__array__"):
        array = np.asarray(source)
        return of_arrays("the array", numbered(array.shape[1]), len(array), lambda j: array[:, j])
    came = (
        f"an array of shape {source.shape}"
        if hasattr(source, "shape")
        else f"an object of type {type(source).__name__}"
    )
    raise TableError(
        f"a table is a path, a pandas or polars data frame, a mapping of names to columns or an array [N, D], got {came}"
    )


def _read_file(path: Path) -> Table:
    try:
        if path.is_dir():
            raise TableError(f"{path} is a folder; name the csv or parquet file in it")
        if not path.exists():
            siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
            hint = similar(path.name, siblings, "the folder holds") if siblings else "check the path"
            raise TableError(f"there is no file {path}; {hint}")
        with path.open("rb") as file:
            head = file.read(4)
            if head == b"PAR1":
                return of_polars(import_polars().scan_parquet(path, glob=False), str(path))
            if path.suffix.lower() in (".parquet", ".pq"):
                raise TableError(f"{path} is not a parquet file, whatever its name says; write it again")
            return of_csv(head + file.read(), str(path))
    except OSError as error:
        raise TableError(f"{path} cannot be read ({error.strerror or error}); check the path") from error
