"""Data of an experiment: where they come from, and which rows are for what.

    {type: csv, path: houses.csv, target: price}             also parquet; all other columns that are numbers are inputs
    {type: npz, path: sets.npz, inputs: X, targets: y}       arrays of a file of NumPy, with rows or entries held out
    {type: images, path: mnist.npz, validation: 5000}        pictures and their classes
    {type: curve, number: 1}                                 one of the ten curves of paper 000

A path is that of a file here, or in the folder that the variable MERCER_DATA names. A split says which rows are to train on, to
choose by, and to test on; data that come with parts need none.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from mercer.datasets import NUM_CURVES, toy_curve


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """Rows, and the numbers of those in each part, which are None before a split. NaN in Y means not observed.

    `made` is for data that are drawn: what they are drawn from. Their last bits depend on the machine, and are not what they are.
    `hidden` says which entries of Y are for the test: the other parts do not see them, and the test sees no others.
    """

    X: Float[np.ndarray, "N D"]
    Y: Float[np.ndarray, "N P"]
    train: Int[np.ndarray, " A"] | None = None
    validation: Int[np.ndarray, " B"] | None = None
    test: Int[np.ndarray, " C"] | None = None
    made: str | None = None
    hidden: Bool[np.ndarray, "N P"] | None = None

    def part(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """X and Y of a part."""
        rows = getattr(self, name)
        if self.hidden is None:
            return self.X[rows], self.Y[rows]
        return self.X[rows], np.where(self.hidden[rows] == (name == "test"), self.Y[rows], np.nan)

    def fingerprint(self) -> str:
        """A hash of all that is in here."""
        values = (self.X, self.Y) if self.made is None else ()
        digest = hashlib.sha256((self.made or "").encode())
        masks = () if self.hidden is None else (self.hidden,)
        for array in (*values, self.train, self.validation, self.test, *masks):
            digest.update(b"-" if array is None else f"{array.dtype}{array.shape}".encode())
            digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Split:
    """Shares of the rows for validation and for the test, at random; the rest is to train on.

    Parts that the data come with stay as they are, and a part that is missing is taken from the rows to train on: with test
    rows given, this makes validation rows alone.
    """

    validation: float = 0.1
    test: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.validation >= 0.0 and self.test >= 0.0 and self.validation + self.test < 1.0):
            raise ValueError(f"the shares {self.validation} and {self.test} leave nothing to train on")

    def __call__(self, data: Data) -> Data:
        """The data in three parts."""
        rows = np.arange(len(data.X)) if data.train is None else data.train
        given = {
            name: part for name in ("test", "validation") if (part := getattr(data, name)) is not None and len(part)
        }
        if len(given) == 2:
            raise ValueError("the data come with rows for validation and for the test: there is nothing to split")
        order = np.random.default_rng(self.seed).permutation(rows)
        shares = [0.0 if name in given else getattr(self, name) for name in ("test", "validation")]
        first, second = (round(share * len(order)) for share in (shares[0], sum(shares)))
        test, validation, train = map(np.sort, np.split(order, [first, second]))
        return dataclasses.replace(data, **{"train": train, "validation": validation, "test": test, **given})


def curve(number: int, num: int = 1000, noise: float = 0.5, seed: int = 0) -> Data:
    """One of the ten curves of paper 000 with noise, segments held out for the test, and rows for validation."""
    if not 1 <= number <= NUM_CURVES:
        raise ValueError(f"number expects one of 1 to {NUM_CURVES}, got {number}")
    made = toy_curve(number, num=num, noise=noise, key=jax.random.key(seed))
    validation, test = np.flatnonzero(made.validated), np.flatnonzero(made.held_out)
    train = np.setdiff1d(np.arange(num), np.concatenate([validation, test]))
    told = json.dumps(["curve", number, num, noise, seed])
    return Data(np.asarray(made.X, float), np.asarray(made.Y, float), train, validation, test, told)


def npz(
    path: str,
    inputs: str | None = "X",
    targets: str = "y",
    train: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    fold: str | None = None,
    number: int | None = None,
    hidden: str | list[list[int]] | None = None,
    shown: float | None = None,
    last: int | None = None,
) -> Data:
    """Arrays of a file of NumPy, by their names; without `inputs`, they are the numbers of the rows.

    `train`, `validation` and `test` name arrays of row numbers, if there are any; where these have a row for each of several
    splits, `number` says which. `fold` names an array with the split in which each row is tested. `hidden` names a mask of the
    entries of the targets that are tested, or has [first row, row after the last, column] for each gap. `shown` is the share of
    entries in the rows to train on that are observed, chosen at random. `last` takes the last rows of the file.
    """
    parts = {"train": train, "validation": validation, "test": test}
    masks = [hidden] if isinstance(hidden, str) else []
    with np.load(_existing(path), allow_pickle=False) as file:
        asked = [name for name in (inputs, targets, fold, *parts.values(), *masks) if name is not None]
        missing = [name for name in asked if name not in file]
        if missing:
            raise ValueError(f"{path} has no array {missing[0]!r}; it has {', '.join(file.files)}")
        arrays = {name: file[name] for name in asked}
    rows = _parts(path, arrays, parts, fold, number)
    first = 0 if last is None else len(arrays[targets]) - last
    Y = np.array(arrays[targets][first:], float)
    Y = Y.reshape(len(Y), -1)
    X = np.arange(float(len(Y))) if inputs is None else np.asarray(arrays[inputs][first:], float)
    mask = _hidden(arrays[hidden][first:] if isinstance(hidden, str) else hidden, Y)
    if mask is not None:
        observed = ~np.isnan(Y)
        rows = {
            name: np.flatnonzero((observed & seen).any(axis=1)) for name, seen in (("train", ~mask), ("test", mask))
        }
        rows["validation"] = np.zeros(0, int)
    if shown is not None:
        chosen = np.random.default_rng(0).uniform(size=(len(rows["train"]), Y.shape[1])) < shown
        Y[rows["train"]] = np.where(chosen, Y[rows["train"]], np.nan)
    return Data(X.reshape(len(X), -1), Y, **rows, hidden=mask)


def _parts(path, arrays, parts: dict[str, str | None], fold: str | None, number: int | None) -> dict[str, Any]:
    """The row numbers of each part; None for all where there is nothing to tell."""
    if fold is not None:
        tested = arrays[fold] == (number or 0)
        return {"train": np.flatnonzero(~tested), "validation": np.zeros(0, int), "test": np.flatnonzero(tested)}
    rows: dict[str, Any] = {part: np.zeros(0, int) if parts["train"] is not None else None for part in parts}
    for part, name in parts.items():
        if name is not None:
            if number is not None and not 0 <= number < len(arrays[name]):
                raise ValueError(f"{path} has splits 0 to {len(arrays[name]) - 1}, got number {number}")
            found = arrays[name] if number is None else arrays[name][number]
            rows[part] = np.flatnonzero(found) if found.dtype == bool else found.astype(int)
    return rows


def _hidden(said: Any, Y: np.ndarray) -> np.ndarray | None:
    """A mask of entries, from a mask or from gaps."""
    if said is None or isinstance(said, np.ndarray):
        return said
    mask = np.zeros(Y.shape, bool)
    for first, after, column in said:
        mask[first:after, column] = True
    return mask


def images(path: str, validation: int = 0, num: int | None = None) -> Data:
    """Pictures of a file of NumPy with the arrays x_train, y_train, x_test, y_test: rows of pixels, each with mean 0 and
    standard deviation 1, and the numbers of their classes.

    The last `validation` rows to train on are for validation. `num` takes the first rows to train on only.
    """
    with np.load(_existing(path), allow_pickle=False) as file:
        names = [f"{array}_{part}" for part in ("train", "test") for array in "xy"]
        missing = [name for name in names if name not in file]
        if missing:
            raise ValueError(f"{path} has no array {missing[0]!r}; it has {', '.join(file.files)}")
        x, y, x_test, y_test = (file[name] for name in names)
    x, y = x[:num], y[:num]
    if not 0 <= validation < len(x):
        raise ValueError(f"validation expects a number of at least 0 and less than {len(x)}, got {validation}")
    pixels = np.concatenate([x, x_test]).reshape(len(x) + len(x_test), -1).astype(float)
    spread = pixels.std(axis=1, keepdims=True)
    X = (pixels - pixels.mean(axis=1, keepdims=True)) / np.where(spread > 0.0, spread, 1.0)
    train, chosen, test = np.split(np.arange(len(X)), [len(x) - validation, len(x)])
    return Data(X, np.concatenate([y, y_test]).astype(float)[:, None], train, chosen, test)


def csv(path: str, target: str | Sequence[str], inputs: Sequence[str] | None = None) -> Data:
    """Columns of numbers of a table; all but the targets are inputs unless they are named. (`mercer fit` takes other columns.)"""
    from mercer.io.tables import read_table

    table = read_table(_existing(path))
    targets = [target] if isinstance(target, str) else list(target)
    chosen = [name for name in table.names if name not in targets] if inputs is None else list(inputs)
    return Data(_numbers(table, chosen, path), _numbers(table, targets, path))


def parquet(path: str, target: str | Sequence[str], inputs: Sequence[str] | None = None) -> Data:
    """As `csv`, of a parquet file."""
    return csv(path, target, inputs)


def _existing(path: str) -> Path:
    folder = os.environ.get("MERCER_DATA")
    places = [Path(path)] + ([Path(folder) / path] if folder else [])
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        hint = "" if folder else "; the variable MERCER_DATA may name a folder of data, and is not set"
        raise ValueError(f"there is no file {' or '.join(map(str, places))}{hint}")
    return found


def _numbers(table, names: Sequence[str], path: str) -> Float[np.ndarray, "N D"]:
    columns = np.stack([table.column(name).numbers() for name in names], axis=1)
    gone = np.flatnonzero(np.isnan(columns).any(axis=0))
    if len(gone):
        raise ValueError(f"{path}: column {names[gone[0]]!r} has missing values")
    return columns
