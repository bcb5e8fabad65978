"""Tables from csv text: its encoding, separator and quotation mark are found out, and the kind of each column."""

import csv
import dataclasses
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from mercer.io.tables.columns import MISSING, TRUTH, TableError, moment_of
from mercer.io.tables.frames import import_polars, of_polars
from mercer.io.tables.table import Table, distinct, numbered

_WORDS = frozenset(["None", "none"])  # among texts they are more often a value ("no garage") than a missing one
_THOUSANDS = r"^[+-]?\d{1,3}(,\d{3})+(\.\d*)?$"
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")


def of_csv(data: bytes, source: str) -> Table:
    """The table in the bytes of a csv file."""
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
        header = numbered(len(header))
    else:
        frame = frame.slice(1)
    if frame.is_empty():
        raise TableError(f"{source} has a header and no rows; add rows below it")
    columns = []
    names, renamed, duplicated = distinct(header)
    for series, name in zip(frame.iter_columns(), names, strict=True):
        typed, note = _typed(series, name, separator)
        columns.append(typed.alias(name))
        notes += note
    # A separator at the end of every line makes a column without name and values.
    if len(columns) > 1 and not header[-1] and columns[-1].null_count() == len(frame):
        columns.pop()
        renamed.pop()
    table = of_polars(pl.DataFrame(columns).lazy(), source)
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
    if lower.is_in([*TRUTH]).all():
        return lower == "true", []
    try:
        moments = [None if value is None else moment_of(value) for value in text]
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
