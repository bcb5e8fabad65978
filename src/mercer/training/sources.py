"""Sources: where `fit` takes the rows of a step from, be it arrays in memory or files that are larger than memory.

A source is asked by the number of the step. What a step sees depends on the seed and its number alone, so that an interrupted
run goes on with the rows that it would have seen, and nothing before them has to be read again.
"""

import abc
import glob
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import jax
import numpy as np

from mercer.io.tables import TableError, collected, import_polars, similar
from mercer.training.identity import text_of_array
from mercer.training.minibatches import Minibatches, row_dtype

Seed = tuple[int, ...]

_EXAMPLE = 1000  # rows
_BYTES = 2**22  # that are digested at a time


class Rows(NamedTuple):
    """Some rows of data: X, Y and weights, and the numbers that the rows have in the whole data set."""

    X: Any
    Y: Any
    weights: Any
    index: np.ndarray  # type: ignore[assignment]  # hides a method of tuples


class Source(abc.ABC):
    """Rows of data that `fit` draws by the number of the step. `num_data` is how many there are."""

    num_data: int

    @abc.abstractmethod
    def example(self) -> Rows:
        """The first rows, up to 1000: what is looked at before anything is compiled."""

    @abc.abstractmethod
    def batches(self, first_step: int, num_steps: int, size: int, seed: Seed) -> Rows:
        """The rows of some consecutive steps, with leading axes [num_steps, size]."""

    @abc.abstractmethod
    def identity(self) -> str:
        """What the data are, with a digest of all of them: a run goes on from a checkpoint if it is the same."""

    def close(self) -> None:
        """Lets go of what was read ahead. The source can be used again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class InMemory(Source):
    """Arrays of NumPy or JAX. X may be any tree of arrays with a row for each row of Y, or None."""

    def __init__(self, X: Any, Y: Any, weights: Any = None):
        lengths = {len(leaf) if np.ndim(leaf) else 0 for leaf in jax.tree.leaves((X, Y, weights))}
        if len(lengths) > 1 or 0 in lengths:
            raise ValueError(f"X, Y and weights must have equally many rows, at least 1, got {sorted(lengths)}")
        self.X, self.Y, self.weights, self.num_data = X, Y, weights, len(Y)
        self._minibatches: Minibatches | None = None  # the last that was asked for, with its order of the rows

    def _rows(self, index: np.ndarray) -> Rows:
        X, Y, weights = jax.tree.map(lambda leaf: leaf[index], (self.X, self.Y, self.weights))
        return Rows(X, Y, weights, index)

    def example(self) -> Rows:
        return self._rows(np.arange(min(self.num_data, _EXAMPLE), dtype=row_dtype(self.num_data)))

    def batches(self, first_step: int, num_steps: int, size: int, seed: Seed) -> Rows:
        known = self._minibatches
        if known is None or (known.size, known.seed) != (size, seed):
            self._minibatches = known = Minibatches(self.num_data, size, seed)
        return self._rows(known.indices(first_step, num_steps))

    def identity(self) -> str:
        arrays = jax.tree.leaves((self.X, self.Y, self.weights))
        return f"arrays in memory, {', '.join(text_of_array(array) for array in arrays)}"


class Parquet(Source):
    """The columns of parquet files, read while the device works, a bounded amount at a time.

    - `path`: a file, a list of files, a pattern such as `"data/*.parquet"`, or a folder of files named `*.parquet`. Rows are
      numbered through the files in the order of their names.
    - `inputs`, `outputs`, `weights`: the columns of X and of Y, and the column of weights, if there is one. A null or a NaN
      among outputs means not observed.
    - `block`, `window`: in each pass over the data the blocks, of up to `block` rows that follow each other in a file, come in
      a new random order, and the rows of `window` blocks at a time are shuffled together.

    Two windows are in memory: the one that rows are taken from, and the next one. Together they take
    2 * window * block * (columns * itemsize + 8) bytes, by default 170 MB for eight inputs and an output in float64, to
    which come the batches of a call and one block that is being read.
    """

    def __init__(
        self,
        path: str | os.PathLike | Sequence[str | os.PathLike],
        inputs: Sequence[str],
        outputs: Sequence[str],
        weights: str | None = None,
        dtype: Literal["float32", "float64"] = "float64",
        block: int = 131072,
        window: int = 8,
    ):
        for name, value in (("block", block), ("window", window)):
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        if dtype not in ("float32", "float64"):
            raise ValueError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
        for name, columns in (("inputs", inputs), ("outputs", outputs)):
            if isinstance(columns, str) or not len(columns) or not all(isinstance(column, str) for column in columns):
                raise ValueError(f"{name} must be a list of at least one name of a column, got {columns!r}")
        self.inputs, self.outputs, self.weights = tuple(inputs), tuple(outputs), weights
        self.dtype, self.block, self.window = np.dtype(dtype), int(block), int(window)
        self._columns = [*inputs, *outputs, *([] if weights is None else [weights])]
        if len(set(self._columns)) < len(self._columns):
            raise ValueError(f"inputs, outputs and weights must be different columns, got {self._columns}")
        self._paths = _files(path)
        self._lengths = [self._checked_length(file) for file in self._paths]
        self.num_data = sum(self._lengths)
        if self.num_data == 0:
            raise ValueError(f"path: there are no rows in {', '.join(map(str, self._paths[:3]))}")
        offsets = [np.arange(0, length, self.block) for length in self._lengths]
        # of each block: its file, the row of the file that it begins with, its number of rows, and the number of its first row
        self._file = np.repeat(np.arange(len(offsets)), [len(each) for each in offsets])
        self._offset = np.concatenate(offsets)
        self._size = np.minimum(self.block, np.asarray(self._lengths)[self._file] - self._offset)
        self._first = np.cumsum(self._size) - self._size
        self._reader, self._ahead = _reader(), dict[tuple[Seed, int, int], Future[Rows]]()

    def _checked_length(self, path: Path) -> int:
        """The number of rows of a file, which has the columns."""
        pl = import_polars()
        scan = pl.scan_parquet(path, glob=False)
        schema = collected(scan.collect_schema, str(path))
        for column in self._columns:
            if column not in schema:
                hint = similar(column, schema.names(), "its columns are")
                raise TableError(f"{path} has no column {column!r}; {hint}")
            if not schema[column].is_numeric():
                raise TableError(f"{path}: column {column!r} must hold numbers, got {schema[column]}")
        return collected(lambda: scan.select(pl.len()).collect().item(), str(path))

    def example(self) -> Rows:
        file = next(i for i, length in enumerate(self._lengths) if length)
        values = self._read(file, 0, min(_EXAMPLE, self._lengths[file]))
        return self._split(values, np.arange(len(values), dtype=row_dtype(self.num_data)))

    def batches(self, first_step: int, num_steps: int, size: int, seed: Seed) -> Rows:
        start, stop = first_step * size, (first_step + num_steps) * size
        rows = self._empty(stop - start)
        position = start
        while position < stop:
            number, within = divmod(position, self.num_data)
            edges = self._edges(seed, number)
            window = int(np.searchsorted(edges, within, side="right")) - 1
            first = within - int(edges[window])
            count = min(int(edges[window + 1]) - within, stop - position)
            for into, part in zip(rows, self._take(seed, number, window), strict=True):
                if into is not None:
                    into[position - start : position - start + count] = part[first : first + count]
            position += count
        return jax.tree.map(lambda leaf: leaf.reshape(num_steps, size, *leaf.shape[1:]), rows)

    def _empty(self, count: int) -> Rows:
        X, Y = (np.empty((count, len(columns)), self.dtype) for columns in (self.inputs, self.outputs))
        weights = None if self.weights is None else np.empty(count, self.dtype)
        return Rows(X, Y, weights, np.empty(count, row_dtype(self.num_data)))

    def _split(self, values: np.ndarray, index: np.ndarray) -> Rows:
        """Values [N, columns] as rows, without a copy."""
        D, P = len(self.inputs), len(self.outputs)
        return Rows(values[:, :D], values[:, D : D + P], None if self.weights is None else values[:, -1], index)

    def _order(self, seed: Seed, number: int) -> np.ndarray:
        """The order of the blocks in a pass."""
        return _random(seed, number).permutation(len(self._size))

    def _edges(self, seed: Seed, number: int) -> np.ndarray:
        """How many rows of a pass come before each window, and after the last."""
        before = np.concatenate([[0], np.cumsum(self._size[self._order(seed, number)])])
        return np.append(before[:-1][:: self.window], before[-1])

    def _take(self, seed: Seed, number: int, window: int) -> Rows:
        """The rows of a window in their order, while the window after it is being read."""
        last = window == -(-len(self._size) // self.window) - 1
        wanted, following = (seed, number, window), (seed, number + last, 0 if last else window + 1)
        for key in self._ahead.keys() - {wanted, following}:
            self._ahead[key].cancel()
        self._ahead = {
            key: self._ahead.get(key) or self._reader.submit(self._read_window, *key) for key in (wanted, following)
        }
        try:
            return self._ahead[wanted].result()
        except BaseException:
            self.close()
            raise

    def _read_window(self, seed: Seed, number: int, window: int) -> Rows:
        blocks = self._order(seed, number)[window * self.window :][: self.window]
        ends = np.cumsum(self._size[blocks])
        places = np.split(_random(seed, number, window).permutation(ends[-1]), ends[:-1])
        values = np.empty((ends[-1], len(self._columns)), self.dtype)
        index = np.empty(len(values), row_dtype(self.num_data))
        for block, place in zip(blocks, places, strict=True):
            values[place] = self._read(self._file[block], int(self._offset[block]), len(place))
            index[place] = self._first[block] + np.arange(len(place))
        return self._split(values, index)

    def _read(self, file: int | np.integer, offset: int, count: int) -> np.ndarray:
        """Some rows of a file, [count, columns], checked."""
        pl, path = import_polars(), self._paths[file]
        columns = [pl.col(name).cast(pl.Float32 if self.dtype == np.float32 else pl.Float64) for name in self._columns]
        scan = pl.scan_parquet(path, glob=False).slice(offset, count).select(columns)
        values = collected(scan.collect, str(path)).to_numpy(order="c")
        if len(values) != count:
            raise TableError(f"{path} has fewer rows than when it was opened; open it again")
        D, P = len(self.inputs), len(self.outputs)
        wrong = ~np.isfinite(values)
        wrong[:, D : D + P] = np.isinf(values[:, D : D + P])
        wrong[:, D + P :] |= values[:, D + P :] <= 0.0
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            rule = [*["finite"] * D, *["finite or missing"] * P, "positive and finite"][column]
            held = f"row {offset + row} (from 0) of the file holds {values[row, column]}"
            raise TableError(f"{path}: column {self._columns[column]!r} must be {rule}, {held}")
        return values

    def identity(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for path, length in zip(self._paths, self._lengths, strict=True):
            digest.update(f"{path.name} {length}\n".encode())
            with path.open("rb") as file:
                while piece := file.read(_BYTES):
                    digest.update(piece)
        order = f"blocks of {self.block} in windows of {self.window}"
        columns = f"{list(self.inputs)} to {list(self.outputs)}, weights {self.weights}, {self.dtype}"
        return f"parquet, {self.num_data} rows in {len(self._paths)} files, {columns}, {order}, {digest.hexdigest()}"

    def close(self) -> None:
        self._ahead = {}
        self._reader.shutdown(cancel_futures=True)
        self._reader = _reader()


def _reader() -> ThreadPoolExecutor:
    """One thread, which begins with the first task."""
    return ThreadPoolExecutor(1, "mercer-parquet")


def _random(seed: Seed, *place: int) -> np.random.Generator:
    """Random numbers that belong to a pass, or to a window of a pass."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=place)))


def _files(path: Any) -> list[Path]:
    """The files that a path, a pattern, a folder or a list of paths stands for, by name."""
    if not isinstance(path, str | os.PathLike):
        files = sorted({file for one in path for file in _files(one)})
        if not files:
            raise ValueError(f"path must be a file, a folder, a pattern or a list of files, got {path!r}")
        return files
    path = Path(path)
    if path.is_dir():
        files = sorted(path.glob("*.parquet"))
        if not files:
            raise ValueError(f"path: there are no files *.parquet in the folder {path}")
        return files
    if path.is_file():
        return [path]
    files = sorted(Path(found) for found in glob.glob(str(path), recursive=True) if os.path.isfile(found))
    if not files:
        siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = similar(path.name, siblings, "the folder holds") if siblings else "check the path"
        raise ValueError(f"path: there is no file {path}; {hint}")
    return files
