"""Tables from polars: data frames, and parquet files, which are read one column at a time."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mercer.io.tables.columns import Column, Kind, TableError
from mercer.io.tables.memory import of_objects
from mercer.io.tables.table import Table


def import_polars() -> Any:
    """The module polars, an optional dependency."""
    try:
        import polars
    except ImportError as error:
        raise ImportError("reading csv and parquet files needs polars: pip install 'mercer[tables]'") from error
    return polars


def collected(read: Callable[[], Any], source: str) -> Any:
    """What polars reads from `source`; where it cannot, the error says so."""
    pl = import_polars()
    try:
        return read()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise TableError(f"{source} cannot be read ({reason}); write it again") from error


def of_polars(frame: Any, source: str) -> Table:
    """The table of a LazyFrame, of which each column is collected when it is asked for."""
    pl = import_polars()

    def load(name: str, position: int, start: int, stop: int) -> Column:
        column = frame.select(pl.nth(position)).slice(start, stop - start)
        return _of_series(name, collected(lambda: column.collect().to_series(), source), source)

    names = collected(lambda: frame.collect_schema().names(), source)
    return Table.of(source, names, collected(lambda: frame.select(pl.len()).collect().item(), source), load)


def _of_series(name: str, series: Any, source: str) -> Column:
    pl = import_polars()
    dtype = series.dtype
    if dtype.is_numeric() or dtype in (pl.Boolean, pl.Null):
        kind: Kind = "boolean" if dtype == pl.Boolean else "number"
        return Column(name, kind, series.cast(pl.Float64).to_numpy(), dtype.is_integer(), source)
    if dtype == pl.Duration:
        return Column(name, "number", series.dt.total_microseconds().cast(pl.Float64).to_numpy() / 1e6, source=source)
    if dtype in (pl.Date, pl.Datetime):
        if getattr(dtype, "time_zone", None):
            series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        return Column(name, "date", series.cast(pl.Datetime("us")).to_numpy(), source=source)
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        # One Python string for each level, however many rows hold it.
        levels = series.cast(pl.String).unique().drop_nulls()
        codes = series.cast(pl.String).cast(pl.Enum(levels)).to_physical().cast(pl.Int64).fill_null(-1)
        texts = np.array([level if level.strip() else None for level in levels] + [None], dtype=object)
        return Column(name, "text", texts[codes.to_numpy()], source=source)
    return of_objects(name, series.to_list(), source)
