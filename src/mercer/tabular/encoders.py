"""Encoders: how a column becomes numbers, as the training table has it: a number, a category, a date."""

import abc
import itertools
from collections import Counter
from collections.abc import Callable

import equinox as eqx
import numpy as np
from jaxtyping import Float

from mercer.io.tables import Column, Table
from mercer.parameters import Module

MAX_LEVELS = 20
_DAY = np.timedelta64(1, "D")


class Encoder(Module):
    """How a column, or several together, become features."""

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """What a reader knows them as."""

    @property
    @abc.abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""

    @property
    @abc.abstractmethod
    def features(self) -> tuple[str, ...]:
        """The name of each feature."""

    @abc.abstractmethod
    def encode(self, table: Table, out: Float[np.ndarray, "N F"], notes: list[str]) -> None:
        """Writes the features of a table into `out`: finite numbers, whatever is missing. Says in `notes` what is new."""


class _OfOneColumn(Encoder):
    """How one column becomes features."""

    column: str = eqx.field(static=True)

    @property
    def title(self) -> str:
        return self.column

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


class Number(_OfOneColumn):
    """A number or a truth value: the number itself, `fill` where it is missing; and 1 where it is missing, 0 elsewhere."""

    fill: float = eqx.field(static=True)
    varies: bool = eqx.field(static=True)  # whether the number is a feature
    indicator: bool = eqx.field(static=True)  # whether its absence is one

    @classmethod
    def describe(cls, column: Column, notes: list[str]) -> "Number | str":
        """The encoder of a column, or why it is of no use; and notes."""
        values = column.numbers()
        infinite = int(np.isinf(values).sum())
        if infinite:
            notes.append(f"column {column.name!r}: {count_of(infinite, values)} infinite; they count as missing")
        fill = _median(values)
        if column.kind == "boolean":
            return cls.of_values(column.name, values, float(fill > 0.5), "the more frequent value", notes)
        return cls.of_values(column.name, values, fill, f"the median {fill:.6g}", notes)

    @classmethod
    def of_values(cls, name: str, values: np.ndarray, fill: float, said: str, notes: list[str]) -> "Number | str":
        """As `describe`, for values of which those that are not finite are missing and become `fill`, which is `said`."""
        present = _finite(values)
        missing = len(values) - len(present)
        if not len(present):
            return "no value is present"
        varies = bool((present != present[0]).any())
        if not varies and not missing:
            return "it is constant"
        if missing and varies:
            filled = f"filled with {said}, with an indicator column"
            notes.append(f"column {name!r}: {count_of(missing, values)} missing; {filled}")
        elif missing:
            notes.append(f"column {name!r} is constant where it is present; only whether it is missing is used")
        return cls(name, fill, varies, missing > 0)

    @property
    def features(self) -> tuple[str, ...]:
        return (self.column,) * self.varies + (f"{self.column} is missing",) * self.indicator

    def encode(self, table, out, notes):
        self.encode_values(table.column(self.column).numbers(), out, notes)

    def encode_values(self, values: Float[np.ndarray, " N"], out: Float[np.ndarray, "N F"], notes: list[str]) -> None:
        """As `encode`, for values of which those that are not finite are missing."""
        missing = ~np.isfinite(values)
        if missing.any() and not self.indicator:
            said = f"{count_of(missing.sum(), values)} missing, and none was in training; filled with its median there"
            notes.append(f"column {self.column!r}: {said}")
        if self.varies:
            largest = np.finfo(out.dtype).max
            np.clip(values, -largest, largest, out=out[:, 0], casting="same_kind")
            out[missing, 0] = np.clip(self.fill, -largest, largest)
        if self.indicator:
            out[:, -1] = missing


class Category(_OfOneColumn):
    """One of some levels: for each 1 where it is the value and 0 elsewhere. Of two levels, the second alone is a feature.

    Being missing, or any other level than those listed, is a level of its own where it occurred in training.
    Elsewhere both are 0 in all features.
    """

    levels: tuple[str, ...] = eqx.field(static=True)  # by falling frequency
    missing: bool = eqx.field(static=True)
    other: bool = eqx.field(static=True)

    @classmethod
    def describe(cls, column: Column, notes: list[str]) -> "Category | str":
        """The encoder of a column, or why it is of no use; and notes."""
        name, counts = column.name, Counter(column.values.tolist())
        missing = counts.pop(None, 0)
        present = counts.total()
        if not present:
            return "no value is present"
        if is_identifier(len(counts), present):
            said = f"{len(counts)} of its {present} texts are different: an identifier or free text"
            return f"{said}; number the levels or write dates as 2024-12-31 to use it"
        if len(counts) == 1 and not missing:
            return "it is constant"
        levels = sorted(counts, key=lambda level: (-counts[level], level))
        room = MAX_LEVELS - (missing > 0)
        kept = levels if len(levels) <= room else levels[: room - 1]
        if missing:
            notes.append(f"column {name!r}: {count_of(missing, column.values)} missing; that is a level of its own")
        if len(kept) < len(levels):
            rarest = f"the {len(levels) - len(kept)} rarest are taken as one, other"
            notes.append(f"column {name!r} has {len(levels)} levels; {rarest}")
        return cls(name, tuple(kept), missing > 0, len(kept) < len(levels))

    @property
    def _level_names(self) -> tuple[str, ...]:
        named = tuple(f"{self.column}={level}" for level in self.levels)
        return named + (f"{self.column} is missing",) * self.missing + (f"{self.column}: other",) * self.other

    @property
    def features(self) -> tuple[str, ...]:
        return self._level_names[1:] if len(self._level_names) == 2 else self._level_names

    def encode(self, table, out, notes):
        column = table.column(self.column)
        texts, known = column.texts(), len(self.levels)
        of_other = known + self.missing if self.other else -1
        codes = {level: code for code, level in enumerate(self.levels)} | {None: known if self.missing else of_other}
        code = np.fromiter((codes.get(text, of_other) for text in texts), dtype=np.int64, count=len(texts))
        for feature in range(out.shape[1]):
            out[:, feature] = code == feature + len(self._level_names) - out.shape[1]
        absent = 0 if self.missing else int(column.missing.sum())
        if absent:
            notes.append(f"column {self.column!r}: {count_of(absent, texts)} missing, and none was in training")
        unseen = 0 if self.other else int((code < 0).sum()) - absent
        if unseen:
            first = next(text for text in texts if text is not None and text not in codes)
            levels = f"levels that training did not have (first: {first!r})"
            notes.append(f"column {self.column!r}: {count_of(unseen, texts)} of {levels}")


class Date(_OfOneColumn):
    """A date: days since `origin`, and the sine and cosine of where it is in each of the `cycles`."""

    origin: str = eqx.field(static=True)
    days: Number
    cycles: tuple[str, ...] = eqx.field(static=True)

    @classmethod
    def describe(cls, column: Column, notes: list[str]) -> "Date | str":
        """The encoder of a column, or why it is of no use; and notes."""
        dates = column.dates()
        present = dates[~np.isnat(dates)]
        origin = present.min() if len(present) else np.datetime64(0, "us")
        since = (dates - origin) / _DAY
        fill = _median(since)
        median = _after(origin, fill).astype("datetime64[D]")
        days = Number.of_values(column.name, since, fill, f"the median {median}", notes)
        if isinstance(days, str):
            return days
        span = (present.max() - origin) / _DAY
        cycles = [name for name, (period, phase) in _CYCLES.items() if span > 2 * period and _varies(phase(present))]
        return cls(column.name, str(origin), days, tuple(cycles))

    @property
    def features(self) -> tuple[str, ...]:
        waves = itertools.product(self.cycles, ("sin", "cos"))
        return self.days.features + tuple(f"{self.column}: {cycle} ({wave})" for cycle, wave in waves)

    def encode(self, table, out, notes):
        dates, first = table.column(self.column).dates(), len(self.days.features)
        origin = np.datetime64(self.origin, "us")
        self.days.encode_values((dates - origin) / _DAY, out[:, :first], notes)
        dates = np.where(np.isnat(dates), _after(origin, self.days.fill), dates)
        for position, cycle in enumerate(self.cycles):
            angle = 2.0 * np.pi * _CYCLES[cycle][1](dates)
            out[:, first + 2 * position] = np.sin(angle)
            out[:, first + 2 * position + 1] = np.cos(angle)


def _time_of_year(dates: np.ndarray) -> np.ndarray:
    year = dates.astype("datetime64[Y]")
    start, end = year.astype("datetime64[us]"), (year + np.timedelta64(1, "Y")).astype("datetime64[us]")
    return (dates - start) / (end - start)


def _day_of_week(dates: np.ndarray) -> np.ndarray:
    day = dates.astype("datetime64[D]").astype(np.int64)
    return (day + 3) % 7 / 7.0  # day 0 was a Thursday, and weeks begin on Mondays


def _hour_of_day(dates: np.ndarray) -> np.ndarray:
    return (dates - dates.astype("datetime64[D]")) / _DAY


# The length of each cycle in days, and where in it (from 0 to 1) a date is.
_CYCLES: dict[str, tuple[float, Callable[[np.ndarray], np.ndarray]]] = {
    "time of year": (365.2425, _time_of_year),
    "day of week": (7.0, _day_of_week),
    "hour of day": (1.0, _hour_of_day),
}


def _varies(phase: np.ndarray) -> bool:
    """Whether points on a circle are more than about a hundredth of it apart: the length of their mean is below 1."""
    return bool(abs(np.exp(2j * np.pi * phase).mean()) < 0.999)


def is_identifier(distinct: int, present: int) -> bool:
    """Whether nearly every text is different, so that none of them tells anything of the next row."""
    return distinct > MAX_LEVELS and distinct > 0.9 * present


def _finite(values: np.ndarray) -> np.ndarray:
    """The finite values; no copy where all are."""
    finite = np.isfinite(values)
    return values if finite.all() else values[finite]


def _median(values: np.ndarray) -> float:
    """The median of the finite values. It is found by its half where the sum of two huge values overflows."""
    present = _finite(values)
    with np.errstate(over="ignore"):
        median = float(np.median(present)) if len(present) else 0.0
    return median if np.isfinite(median) else 2.0 * float(np.median(0.5 * present))


def _after(origin: np.datetime64, days: float) -> np.datetime64:
    return origin + np.timedelta64(round(days * 86_400e6), "us")


def count_of(count: int | np.integer, values: np.ndarray) -> str:
    """How many of some values are (missing, say)."""
    return f"{count} of {len(values)} {'values are' if len(values) > 1 else 'value is'}"
