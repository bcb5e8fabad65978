"""Targets: what kind of question a column asks, and its values as numbers.

Texts and truth values are classes. Numbers are a regression, but for three patterns: two different values are two classes; a
few consecutive integers from 0 or 1 are classes; and integers from 0 or 1 upwards that thin out as events do are counts.
For the last, the yardstick is a negative binomial with the mean m and the variance v of the data, whose skewness is
(2 v / m - 1) / sqrt(v): 1 / sqrt(m) for a Poisson, and for the spread of ages or scores far more than they have.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, get_args

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Real, Shaped

from mercer.io.tables import Column, TableError
from mercer.parameters import Module
from mercer.tabular.encoders import is_identifier

Task = Literal["regression", "binary", "multiclass", "counts"]
MAX_CLASSES = 50


class Target(Module):
    """A column to be predicted: the task, and for classes their labels."""

    column: str = eqx.field(static=True)
    task: Task = eqx.field(static=True)
    classes: tuple[str, ...] = eqx.field(static=True)  # in ascending order; none unless the task is one of classes
    reason: str = eqx.field(static=True)

    def encode(self, column: Column) -> tuple[Float[np.ndarray, " n"], Bool[np.ndarray, " N"]]:
        """The targets that are present as numbers (classes as 0, 1, ...), and which of the rows they are of."""
        if not self.classes:
            return _quantities(column, self.task), ~np.isnan(column.numbers())
        texts = column.texts()
        keep = ~column.missing
        codes = {label: float(code) for code, label in enumerate(self.classes)}
        unknown = sorted(set(texts[keep]) - set(codes))
        if unknown:
            raise column.error(
                f"holds {unknown[0]!r}, which is not one of the classes {_listed(self.classes)}; correct it"
            )
        return np.array([codes[text] for text in texts[keep]]), keep

    def decode(self, indices: Sequence[int] | Real[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        """The labels of classes 0, 1, ..."""
        return np.array(self.classes, dtype=object)[np.asarray(indices, dtype=int)]


def detect(column: Column, task: Task | None = None) -> Target:
    """The target in a column: its task is `task`, or what its values look like."""
    name, num_present = column.name, int((~column.missing).sum())
    if task not in (None, *get_args(Task)):
        raise TableError(f"there is no task {task!r}; it is one of {', '.join(get_args(Task))}")
    if column.kind == "date":
        raise column.error("holds dates, which cannot be predicted; turn them into a number, such as days")
    if num_present < 2:
        raise column.error(f"has too few values ({num_present}) to learn from; add rows or choose another column")
    if task in ("regression", "counts"):
        try:
            _levels(column, _quantities(column, task))
        except TableError as error:
            raise TableError(f"{error}, or leave out task={task!r}") from None
        return Target(name, task, (), f"{name!r}: {task}, as asked for")
    if column.kind == "number":
        _quantities(column, "regression")
    levels = _levels(column, column.values[~column.missing])
    found, why = (task, "as asked for") if task else _recognised(column, levels)
    if found == "binary" and len(levels) != 2:
        raise column.error(f"has {len(levels)} different values, and a binary target has two; use task='multiclass'")
    if found not in ("binary", "multiclass"):
        return Target(name, found, (), f"{name!r}: {found}, {why}")
    if len(levels) > MAX_CLASSES or is_identifier(len(levels), num_present):
        raise column.error(
            f"has {len(levels)} different values in {num_present} rows, too many for classes; "
            + ("use task='regression'" if column.kind == "number" else "if it is an identifier, choose another column")
        )
    return Target(name, found, _labels(column, levels), f"{name!r}: {found}, {why}")


def _quantities(column: Column, task: str) -> Float[np.ndarray, " n"]:
    """The values that are present, as numbers that the task can have."""
    values = column.numbers()
    values = values[~np.isnan(values)]
    if np.isinf(values).any():
        row = np.argmax(np.isinf(column.numbers())) + 1
        raise column.error(f"is infinite in row {row}; correct it or leave it empty")
    impossible = (values < 0) | (values != np.round(values)) if task == "counts" else np.zeros(0, dtype=bool)
    if impossible.any():
        raise column.error(f"holds {values[impossible][0]:g}, which is no count; correct it")
    return values


def _levels(column: Column, values: np.ndarray) -> np.ndarray:
    """The different values, of which there must be two, in ascending order."""
    levels = np.array(sorted(set(values)), dtype=object) if values.dtype == object else np.unique(values)
    if len(levels) < 2:
        raise column.error("has one value only, so that there is nothing to predict; choose another column")
    return levels


def _labels(column: Column, levels: np.ndarray) -> tuple[str, ...]:
    """The levels as texts, in ascending order: as numbers where all of them are."""
    labels = tuple(dataclasses.replace(column, values=levels).texts())
    try:
        return tuple(sorted(labels, key=float))
    except ValueError:
        return labels


def _recognised(column: Column, levels: np.ndarray) -> tuple[Task, str]:
    """The task that the values look like, and why."""
    if len(levels) == 2:
        return "binary", f"as it has two different values, {' and '.join(_labels(column, levels))}"
    if column.kind == "text":
        return "multiclass", f"as it holds {len(levels)} different texts"
    if not column.integer:
        return "regression", "as it holds numbers with a decimal point"
    values = column.values[~column.missing]
    low, high = int(levels[0]), int(levels[-1])
    consecutive = low in (0, 1) and 3 <= len(levels) <= 20 and high - low + 1 == len(levels)
    if consecutive and len(values) >= 2 * len(levels):
        frequencies = np.bincount(values.astype(int))[low:]
        rises_from_one = frequencies[0] < frequencies.max()  # a first class is seldom the rarest, a count of 1 may be
        if (low == 0 or rises_from_one) and _dispersion(values) >= 0.5 and _fades(frequencies):
            return "counts", f"as it holds the integers {low} to {high}, large ones rarely"
        return "multiclass", f"as it holds the integers {low} to {high}"
    if low in (0, 1) and high <= 1000 and len(levels) < 100 and _dispersion(values) >= 0.5 and _is_skewed(values):
        return "counts", f"as it holds integers from {low} to {high}, most of them small"
    first, last = _labels(column, levels[[0, -1]])
    return (
        "regression",
        f"as it holds integers from {first} to {last}, neither classes nor counts by their looks",
    )


def _dispersion(values: np.ndarray) -> float:
    """Variance over mean: 1 for a Poisson."""
    return float(values.var() / values.mean())


def _fades(frequencies: np.ndarray) -> bool:
    """Whether a histogram has one peak, and a twentieth of it or less at the upper end; both up to sampling noise."""
    peak = int(frequencies.argmax())
    rises = np.concatenate([-np.diff(frequencies[: peak + 1]), np.diff(frequencies[peak:])])  # away from the peak
    little = 0.05 * frequencies[peak]
    one_peak = (rises <= 3.0 * np.sqrt(frequencies[:-1] + frequencies[1:])).all()
    return bool(one_peak and frequencies[-1] <= little + 2.0 * np.sqrt(little))


def _is_skewed(values: np.ndarray) -> bool:
    """Whether the skewness is beyond 1, or half that of a negative binomial with this mean and variance."""
    deviation = values - values.mean()
    scale = values.std()
    return bool(np.mean((deviation / scale) ** 3) >= min(1.0, 0.5 * (2.0 * _dispersion(values) - 1.0) / scale))


def _listed(classes: tuple[str, ...]) -> str:
    return ", ".join(classes[:10]) + (", ..." if len(classes) > 10 else "")
