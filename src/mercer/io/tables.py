"""Tables: csv and parquet files, data frames, mappings and arrays, as named columns of four kinds.

A column holds numbers, texts, truth values or dates, and says which of its values are missing. A parquet file (or a polars
LazyFrame) is read one column at a time, when the column is asked for; a csv file is read whole, as text, and each column is
then taken for the narrowest kind that all of its values belong to. What was assumed on the way is in `Table.notes`.
Rows are counted from 1 in messages, without the header; lines of a file with it.
"""

import csv
import dataclasses
import datetime
import decimal
import difflib
import gzip
import io
import itertools
import numbers
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Shaped

Kind = Literal["number", "text", "boolean", "date"]
MISSING = frozenset(
    ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NaT", "null", "NULL", "None", "none", "?", "-", "."]
)
_WORDS = frozenset(["None", "none"])  # among texts they are more often a value ("no garage") than a missing one
_THOUSANDS = r"^[+-]?\d{1,3}(,\d{3})+(\.\d*)?$"
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_TRUTH = {"true": 1.0, "false": 0.0}


class TableError(ValueError):
    """A table that cannot be used as it is: one sentence that names the file, the column and the fix."""


@dataclasses.dataclass(frozen=True, eq=False)
class Column:
    """One column. Numbers and truth values are float64 (NaN: missing), texts are objects (None), dates datetime64[us] (NaT)."""

    name: str
    kind: Kind
    values: Shaped[np.ndarray, " N"]
    integer: bool = False  # whether every value present was stored as an integer
    source: str = "the table"

    def __len__(self) -> int:
        return len(self.values)

    @property
    def missing(self) -> Bool[np.ndarray, " N"]:
        """Which values are missing."""
        return self.values == np.array(None) if self.kind == "text" else np.isnan(self.values)

    def error(self, message: str) -> TableError:
        """The error that says `message` of this column."""
        return TableError(f"{self.source}: column {self.name!r} {message}")

    def numbers(self) -> Float[np.ndarray, " N"]:
        """The values as float64; text is parsed."""
        if self.kind == "date":
            raise self.error("should hold numbers and holds dates; write them as numbers, or fit the model anew")
        return np.array(self._parsed(_number, np.nan, "a number")) if self.kind == "text" else self.values

    def dates(self) -> Shaped[np.ndarray, " N"]:
        """The values as datetime64[us]; text is parsed."""
        if self.kind in ("number", "boolean") and not self.missing.all():
            raise self.error("should hold dates and holds numbers; write them as 2024-12-31 or 2024-12-31 23:59:59")
        if self.kind == "date":
            return self.values
        texts = self._parsed(_moment, None, "a date such as 2024-12-31") if self.kind == "text" else [None] * len(self)
        return np.array(texts, "datetime64[us]")

    def texts(self) -> Shaped[np.ndarray, " N"]:
        """The values as they are written: 1 rather than 1.0, true and false, ISO dates; None where missing."""
        if self.kind == "text":
            return self.values
        levels, level = np.unique(self.values, return_inverse=True)
        written = np.array([_WRITTEN[self.kind](value) for value in levels.tolist()], dtype=object)
        written[np.isnan(levels)] = None
        return written[level]

    def _parsed(self, parse: Callable[[str], Any], missing: Any, expected: str) -> list:
        def one(row: int, value: str | None) -> Any:
            if value is None or value.strip() in MISSING:
                return missing
            try:
                return parse(value)
            except (ValueError, OverflowError):
                held = f"should hold {expected} in every row, row {row} holds {value!r}; correct it"
                raise self.error(held) from None

        return list(itertools.starmap(one, enumerate(self.values, 1)))


_WRITTEN: dict[str, Callable[[Any], str]] = {
    "number": lambda value: str(int(value)) if abs(value) < 1e16 and value == int(value) else repr(value),
    "boolean": lambda value: "true" if value else "false",
    "date": lambda value: str(value).removesuffix(" 00:00:00"),
}


def _number(text: str) -> float:
    return _TRUTH[text.strip().lower()] if text.strip().lower() in _TRUTH else float(text)


def _moment(text: str) -> datetime.datetime:
    return _in_utc(datetime.datetime.fromisoformat(text.strip()))


def _in_utc(moment: Any) -> Any:
    return moment.astimezone(datetime.UTC).replace(tzinfo=None) if getattr(moment, "tzinfo", None) else moment


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Named columns of equal length, each read when it is asked for."""

    source: str
    names: tuple[str, ...]
    notes: tuple[str, ...]  # what a reader should know: renamed columns, a guessed encoding, ...
    duplicated: frozenset[str]  # names that more than one column had, and of which only the first has kept it
    _rows: range | np.ndarray  # of the source
    _load: Callable[[int, int, int], Column]  # (position, start, stop) to the column of these rows of the source

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


def read_table(source: Any) -> Table:
    """The table in a csv or parquet file, pandas or polars frame, mapping of names to values, or array [N, D]."""
    if isinstance(source, str | os.PathLike):
        return _read_file(Path(source))
    kind = f"{type(source).__module__.partition('.')[0]} {type(source).__name__}"
    if kind in ("polars DataFrame", "polars LazyFrame"):
        return _of_polars(source.lazy(), f"the {kind}")
    if hasattr(source, "iloc") and hasattr(source, "columns"):
        return _of_arrays(f"the {kind}", source.columns, len(source), lambda j: source.iloc[:, j].to_numpy())
    if isinstance(source, Mapping):
        arrays = [_array(values) for values in source.values()]
        lengths = sorted({len(array) for array in arrays})
        if len(lengths) > 1:
            raise TableError(f"the table has columns of different lengths, from {lengths[0]} to {lengths[-1]}")
        return _of_arrays("the table", source, max(lengths, default=0), arrays.__getitem__)
    if getattr(source, "ndim", None) == 2 and hasattr(source, "__array__"):
        array = np.asarray(source)
        return _of_arrays("the array", _numbered(array.shape[1]), len(array), lambda j: array[:, j])
    came = (
        f"an array of shape {source.shape}"
        if hasattr(source, "shape")
        else f"an object of type {type(source).__name__}"
    )
    raise TableError(
        f"a table is a path, a pandas or polars data frame, a mapping of names to columns or an array [N, D], got {came}"
    )


# --- names -------------------------------------------------------------------------------------------------------------


def similar(name: str, names: Iterable[str], otherwise: str) -> str:
    """The hint that follows "there is no `name`"."""
    names = list(names)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    close = close or [other for other in names if other.lower().strip() == name.lower().strip()]
    if close:
        return "did you mean " + " or ".join(map(repr, close)) + "?"
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"{otherwise} {', '.join(map(repr, names[:10]))}{more}"


def _numbered(width: int) -> list[str]:
    return [f"x{position}" for position in range(1, width + 1)]


def _distinct(raw: Iterable[Any]) -> tuple[tuple[str, ...], list[str], frozenset[str]]:
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


def _table(source: str, raw: Iterable[Any], length: int, load: Callable[[str, int, int, int], Column]) -> Table:
    names, notes, duplicated = _distinct(raw)
    if not names or not length:
        raise TableError(f"{source} has no {'rows' if names else 'columns'}; a table needs at least one of each")
    return Table(source, names, tuple(notes), duplicated, range(length), lambda j, *span: load(names[j], j, *span))


# --- from memory -------------------------------------------------------------------------------------------------------


def _of_arrays(source: str, names: Iterable[Any], length: int, array: Callable[[int], np.ndarray]) -> Table:
    def load(name: str, position: int, start: int, stop: int) -> Column:
        return _of_values(name, array(position)[start:stop], source)

    return _table(source, names, length, load)


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
    return _of_objects(name, values.tolist(), source)


def _of_objects(name: str, values: list, source: str) -> Column:
    """The narrowest kind that holds all the objects that are not missing."""
    values = [None if _is_missing(value) else value for value in values]
    present = [value for value in values if value is not None]

    def all_are(*types: type) -> bool:
        return all(isinstance(value, types) for value in present)

    if not present or all_are(numbers.Real, decimal.Decimal, np.bool_):
        kind: Kind = "boolean" if present and all_are(bool, np.bool_) else "number"
        return Column(name, kind, np.array(values, dtype=float), all_are(numbers.Integral), source)
    if all_are(datetime.date, np.datetime64):
        return Column(name, "date", np.array([_in_utc(value) for value in values], "datetime64[us]"), source=source)
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


# --- polars: frames and parquet ----------------------------------------------------------------------------------------


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


def _of_polars(frame: Any, source: str) -> Table:
    """The table of a LazyFrame, of which each column is collected when it is asked for."""
    pl = import_polars()

    def load(name: str, position: int, start: int, stop: int) -> Column:
        column = frame.select(pl.nth(position)).slice(start, stop - start)
        return _of_series(name, collected(lambda: column.collect().to_series(), source), source)

    names = collected(lambda: frame.collect_schema().names(), source)
    return _table(source, names, collected(lambda: frame.select(pl.len()).collect().item(), source), load)


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
    return _of_objects(name, series.to_list(), source)


# --- files -------------------------------------------------------------------------------------------------------------


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
                return _of_polars(import_polars().scan_parquet(path, glob=False), str(path))
            if path.suffix.lower() in (".parquet", ".pq"):
                raise TableError(f"{path} is not a parquet file, whatever its name says; write it again")
            return _read_csv(head + file.read(), str(path))
    except OSError as error:
        raise TableError(f"{path} cannot be read ({error.strerror or error}); check the path") from error


def _read_csv(data: bytes, source: str) -> Table:
    pl = import_polars()
    data, notes = _utf8(data, source)
    separator, quote = _dialect(data[:65536].decode("utf-8", "ignore"))
    frame = _frame(data, separator, quote)
    if frame is None:
        frame = pl.DataFrame(_records(data.decode(), separator, quote, source), orient="row")
    del data
    header = [name.strip() for name in frame.row(0)]
    if all(_is_number(name) for name in header if name) and any(header):
        notes.append("the file has no header: its first line is all numbers; columns are called x1, x2, ...")
        header = _numbered(len(header))
    else:
        frame = frame.slice(1)
    if frame.is_empty():
        raise TableError(f"{source} has a header and no rows; add rows below it")
    columns = []
    names, renamed, duplicated = _distinct(header)
    for series, name in zip(frame.iter_columns(), names, strict=True):
        typed, note = _typed(series, name, separator)
        columns.append(typed.alias(name))
        notes += note
    # A separator at the end of every line makes a column without name and values.
    if len(columns) > 1 and not header[-1] and columns[-1].null_count() == len(frame):
        columns.pop()
        renamed.pop()
    table = _of_polars(pl.DataFrame(columns).lazy(), source)
    return dataclasses.replace(table, notes=(*notes, *renamed), duplicated=duplicated)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _utf8(data: bytes, source: str) -> tuple[bytes, list[str]]:
    """The text of a file in UTF-8, with one \\n at the end of each line; and a note where the encoding was guessed."""
    notes = []
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise TableError(f"{source} is a damaged gzip file ({error}); compress it again") from error
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        data = data.decode("utf-16", "replace").encode()
    data = data.removeprefix(b"\xef\xbb\xbf").rstrip(b"\x1a")
    if data.startswith(b"PK\x03\x04"):
        raise TableError(f"{source} is a workbook or a zip archive; save the sheet as csv, or unpack it")
    if control := _CONTROL.search(data):
        where = f"line {data[: control.start()].count(10) + 1} holds the byte 0x{control[0].hex()}"
        raise TableError(f"{source} is not text: {where}; save the table as csv in UTF-8")
    try:
        data.decode()
    except UnicodeDecodeError:
        try:
            data = data.decode("cp1252").encode()
        except UnicodeDecodeError:
            data = data.decode("latin-1").encode()
        notes.append("the file is not UTF-8 and is read as Latin-1; check letters with accents")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if not data.strip():
        raise TableError(f"{source} is empty; it needs a line of column names and rows below it")
    return data.rstrip(b"\n") + b"\n", notes


def _dialect(head: str) -> tuple[str, str]:
    """The separator that cuts most of the first lines into as many fields as the header; and the quotation mark."""
    quote = "'" if head.startswith("'") and '"' not in head else '"'

    def fit(separator: str) -> tuple[float, int]:
        widths = [len(record) for _, record in itertools.islice(_parsed(head, separator, quote), 200)]
        return (widths.count(widths[0]) / len(widths), widths[0]) if widths[:1] > [1] else (0.0, 0)

    return max(",;\t|", key=fit), quote


def _parsed(text: str, separator: str, quote: str) -> Iterator[tuple[int, list[str]]]:
    """Each record that is not blank, with the number of its first line."""
    reader, line = csv.reader(io.StringIO(text), delimiter=separator, quotechar=quote, skipinitialspace=True), 1
    for record in reader:
        if len(record) > 1 or any(field.strip() for field in record):
            yield line, record
        line = reader.line_num + 1


def _frame(data: bytes, separator: str, quote: str) -> Any:
    """All fields of a regular file, as text; None where polars finds it irregular, or has filled a line up."""
    pl = import_polars()
    # Polars takes a blank line for a header, and a quote after a space for a part of the text.
    if data.startswith(b"\n") or f"{separator} {quote}".encode() in data:
        return None
    options = dict(separator=separator, quote_char=quote, has_header=False, infer_schema=False, glob=False)
    try:
        frame = pl.read_csv(data, empty_string_is_null=False, **options)
    except pl.exceptions.PolarsError:
        return None
    within = sum(series.str.count_matches(separator, literal=True).sum() for series in frame.iter_columns())
    regular = data.count(separator.encode()) - within == len(frame) * (frame.width - 1)
    return frame if regular else None


def _records(text: str, separator: str, quote: str, source: str) -> list[list[str]]:
    """The records of an irregular file (blank lines, spaces around quotes, separators at the end), if they can be told."""
    records: list[tuple[int, list[str]]] = []
    try:
        for numbered in _parsed(text, separator, quote):
            records.append(numbered)
    except csv.Error as error:
        line = records[-1][0] if records else 0
        raise TableError(f"{source} cannot be read after line {line}; look for a quote that is not closed") from error
    if not records or ("\n" in records[-1][1][-1] and not text.rstrip().endswith(quote)):
        line = records[-1][0] if records else 1
        raise TableError(f"{source}: line {line} opens a quote that is never closed; close it")

    def trimmed(record: list[str], width: int) -> list[str]:
        while len(record) > width and not record[-1].strip():
            record = record[:-1]
        return record

    header = records[0][1]
    width = len(trimmed(header, 1))
    if any(len(trimmed(record, width)) > width for _, record in records):
        width = len(header)
    records = [(line, trimmed(record, width)) for line, record in records]
    for line, record in records:
        if len(record) != width:
            fields = f"{len(record)} {'field' if len(record) == 1 else 'fields'} and the header has {width}"
            fix = f"correct the line, and put quotes around texts that hold {separator!r}"
            raise TableError(f"{source}: line {line} has {fields}; {fix}")
    return [record for _, record in records]


def _typed(text: Any, name: str, separator: str) -> tuple[Any, list[str]]:
    """A column of csv text in the narrowest type that holds it, and notes."""
    pl = import_polars()
    stripped = text.str.strip_chars()

    def without(tokens: Iterable[str]) -> Any:
        keep = ~stripped.is_in(list(tokens))
        return stripped.to_frame("text").select(pl.when(keep).then(pl.col("text"))).to_series()

    def numeric(text: Any) -> Any | None:
        floats = text.cast(pl.Float64, strict=False)
        if floats.null_count() > text.null_count():
            return None
        integers = (text.cast(dtype, strict=False) for dtype in (pl.Int64, pl.Int128))
        return next((column for column in integers if column.null_count() == text.null_count()), floats)

    text = without(MISSING)
    typed = numeric(text)
    if typed is not None:
        return typed, []
    if separator != "," and (typed := numeric(text.str.replace(",", ".", literal=True))) is not None:
        return typed, [f"column {name!r}: commas are read as decimal points"]
    grouped = text.str.contains(_THOUSANDS) | ~text.str.contains(",", literal=True)
    if grouped.all() and (typed := numeric(text.str.replace_all(",", ""))) is not None:
        return typed, [f"column {name!r}: commas are read as separators of thousands"]
    lower = text.str.to_lowercase()
    if lower.is_in([*_TRUTH]).all():
        return lower == "true", []
    try:
        moments = [None if value is None else _moment(value) for value in text]
        return pl.Series(moments, dtype=pl.Datetime("us")), []
    except (ValueError, OverflowError):
        return without(MISSING - _WORDS), _almost_numeric(name, text)


def _almost_numeric(name: str, text: Any) -> list[str]:
    bad = text.is_not_null() & text.cast(import_polars().Float64, strict=False).is_null()
    present = len(text) - text.null_count()
    if bad.sum() >= 0.1 * present:
        return []
    row = bad.arg_max()
    said = f"{bad.sum()} of {present} values are not numbers (first: {text[row]!r}, row {row + 1})"
    return [f"column {name!r} is read as text: {said}"]
