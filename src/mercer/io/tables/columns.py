"""Columns: values of one of four kinds, some of them missing; and how texts are read as numbers and dates."""

import dataclasses
import datetime
import itertools
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Shaped

from mercer.errors import MercerError

Kind = Literal["number", "text", "boolean", "date"]
MISSING = frozenset(
    ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NaT", "null", "NULL", "None", "none", "?", "-", "."]
)
TRUTH = {"true": 1.0, "false": 0.0}


class TableError(MercerError):
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
        texts = (
            self._parsed(moment_of, None, "a date such as 2024-12-31") if self.kind == "text" else [None] * len(self)
        )
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
    return TRUTH[text.strip().lower()] if text.strip().lower() in TRUTH else float(text)


def moment_of(text: str) -> datetime.datetime:
    """The moment that an ISO text names, in UTC."""
    return in_utc(datetime.datetime.fromisoformat(text.strip()))


def in_utc(moment: Any) -> Any:
    """A moment without a time zone; one that has none stays as it is."""
    return moment.astimezone(datetime.UTC).replace(tzinfo=None) if getattr(moment, "tzinfo", None) else moment
