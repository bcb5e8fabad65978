"""Sources: every pass sees every row once, and what a step sees depends on the seed and its number alone."""

import subprocess
import sys
import threading

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from mercer.training import InMemory, Parquet, Source
from mercer.training.minibatches import Minibatches, row_dtype

SEED = (1, 2)
LENGTHS = (10, 7, 0, 12)  # rows of the files
NUM_DATA = sum(LENGTHS)


def table(num_data=NUM_DATA):
    random = np.random.default_rng(0)
    X, Y = random.normal(size=(num_data, 2)), random.normal(size=(num_data, 2))
    Y[3, 1] = np.nan
    return X, Y, random.uniform(0.5, 2.0, num_data)


def write(folder, X, Y, weights, lengths=LENGTHS):
    columns = {"x1": X[:, 0], "x2": X[:, 1], "y1": Y[:, 0], "y2": Y[:, 1], "w": weights}
    frame = pl.DataFrame(columns).with_columns(pl.col("y2").fill_nan(None), name=pl.lit("text"))
    for number, (stop, length) in enumerate(zip(np.cumsum(lengths), lengths, strict=True)):
        frame.slice(stop - length, length).write_parquet(folder / f"part-{number}.parquet", row_group_size=3)
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path, *table())


def parquet(folder, **options):
    columns = dict(inputs=["x1", "x2"], outputs=["y1", "y2"], weights="w")
    return Parquet(folder, **(columns | dict(block=4, window=3) | options))


def sources(folder):
    X, Y, weights = table()
    return {"parquet": parquet(folder), "numpy": InMemory(X, Y, weights), "jax": InMemory(*map(jnp.asarray, table()))}


KINDS = ["parquet", "numpy", "jax"]


def same(a, b):
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_sees_every_row_once(folder, kind):
    source = sources(folder)[kind]
    assert source.num_data == NUM_DATA
    seen = source.batches(0, NUM_DATA, 3, SEED).index.reshape(3, NUM_DATA)
    for one_pass in seen:
        np.testing.assert_array_equal(np.sort(one_pass), np.arange(NUM_DATA))
    assert not np.array_equal(seen[0], seen[1])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_their_index(folder, kind):
    rows = sources(folder)[kind].batches(2, 4, 5, SEED)
    assert rows.index.shape == (4, 5) and rows.index.dtype == np.int32
    for got, array in zip(rows, table(), strict=False):
        np.testing.assert_array_equal(got, array[rows.index])


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_alone_is_the_step_in_a_chunk(folder, kind):
    whole = sources(folder)[kind].batches(0, 30, 4, SEED)
    again = sources(folder)[kind]
    for step in (17, 0, 29, 6, 7):
        assert same(again.batches(step, 1, 4, SEED), [leaf[step : step + 1] for leaf in whole])
    resumed = sources(folder)[kind].batches(11, 8, 4, SEED)
    assert same(resumed, [leaf[11:19] for leaf in whole])


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_is_another_order(folder, kind):
    source = sources(folder)[kind]
    first, other = (source.batches(0, 7, 4, seed).index for seed in (SEED, (1, 3)))
    assert not np.array_equal(first, other)
    np.testing.assert_array_equal(source.batches(0, 7, 4, SEED).index, first)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_may_be_larger_than_a_window_and_than_the_data(folder, kind):
    source = sources(folder)[kind]
    np.testing.assert_array_equal(np.bincount(source.batches(0, 1, 2 * NUM_DATA, SEED).index.ravel()), 2)


def test_rows_of_a_window_are_shuffled_together_and_blocks_in_each_pass_anew(folder):
    source = parquet(folder, window=2)
    index = source.batches(0, 2, NUM_DATA, SEED).index
    # Blocks: rows 0-3, 4-7, 8-9 of the first file, 0-3, 4-6 of the second, three of four rows of the last.
    starts = np.array([0, 4, 8, 10, 14, 17, 21, 25])
    blocks = np.searchsorted(starts, index, side="right") - 1
    for number, order in enumerate(blocks):
        windows = np.split(order, source._edges(SEED, number)[1:-1])
        assert [len(np.unique(window)) for window in windows] == [2, 2, 2, 2]
        assert len(np.unique(np.concatenate([np.unique(window) for window in windows]))) == len(starts)
        assert np.sum(np.diff(order) != 0) > len(starts)  # mixed, not one block after another
    assert not np.array_equal(blocks[0], blocks[1])


@pytest.mark.parametrize("block, window", [(1, 1), (5, 1), (3, 100), (1000, 8)])
def test_any_block_and_window(folder, block, window):
    index = parquet(folder, block=block, window=window).batches(0, 2, NUM_DATA, SEED).index
    np.testing.assert_array_equal(np.sort(index, axis=1), [np.arange(NUM_DATA)] * 2)


def test_in_memory_order_is_that_of_minibatches():
    X, Y, _ = table()
    expected = Minibatches(NUM_DATA, 4, SEED).indices(3, 20)
    np.testing.assert_array_equal(InMemory(X, Y).batches(3, 20, 4, SEED).index, expected)
    # A checkpoint goes on in the order in which its run began: these numbers must never change.
    np.testing.assert_array_equal(Minibatches(10, 4, SEED).indices(1, 3), [[2, 8, 7, 4], [0, 5, 7, 5], [9, 4, 2, 1]])


def test_trees_and_nothing_in_the_place_of_inputs():
    X, Y, _ = table()
    tree = InMemory({"a": X, "b": (X[:, 0], jnp.asarray(X))}, Y).batches(0, 2, 3, SEED)
    np.testing.assert_array_equal(tree.X["b"][0], X[tree.index, 0])
    none = InMemory(None, Y)
    assert none.batches(0, 2, 3, SEED).X is None and none.example().X is None
    assert none.num_data == NUM_DATA and none.identity()


def test_the_example_is_the_first_rows(folder):
    for kind, source in sources(folder).items():
        rows = source.example()
        assert len(rows.Y) == (LENGTHS[0] if kind == "parquet" else NUM_DATA)
        np.testing.assert_array_equal(rows.index, np.arange(len(rows.Y)))
        assert same(rows[:3], [array[: len(rows.Y)] for array in table()])


def test_dtype_and_columns(folder):
    source = parquet(folder, inputs=["x2"], outputs=["x1"], weights=None, dtype="float32")
    for rows in (source.example(), source.batches(0, 2, 3, SEED)):
        assert {rows.X.dtype, rows.Y.dtype} == {np.dtype("float32")} and rows.weights is None
        np.testing.assert_array_equal(rows.X[..., 0], table()[0][rows.index, 1].astype(np.float32))


def test_integers_are_numbers_and_nulls_are_not_observed(tmp_path):
    pl.DataFrame({"x": [1, 2, 3], "y": [4, None, 6]}).write_parquet(tmp_path / "a.parquet")
    rows = Parquet(tmp_path / "a.parquet", ["x"], ["y"]).example()
    np.testing.assert_array_equal(rows.Y, [[4.0], [np.nan], [6.0]])


def test_files_folders_lists_and_patterns_are_the_same_data(folder):
    files = sorted(folder.iterdir())
    expected = parquet(folder).batches(0, 5, 4, SEED)
    for path in (str(folder), files[::-1], folder / "*.parquet", str(folder / "part-?.parquet")):
        source = parquet(path)
        assert same(source.batches(0, 5, 4, SEED), expected) and source.identity() == parquet(folder).identity()
    assert parquet(files[1]).num_data == LENGTHS[1]


# --- reading ahead ---


def test_reading_ahead_holds_two_windows_and_ends_with_close(folder):
    before = threading.active_count()
    with parquet(folder) as source:
        whole = source.batches(0, 20, 4, SEED)
        assert threading.active_count() == before + 1
        assert len(source._ahead) == 2
        assert all(future.result() for future in source._ahead.values())  # also the one that nobody has asked for
    assert threading.active_count() == before and not source._ahead
    assert same(source.batches(0, 20, 4, SEED), whole)  # it can be used again
    source.close()


def spoilt(tmp_path, **values):
    """A source whose last file, of the rows 17 to 28, has other values in its row 5."""
    X, Y, weights = table()
    column, value = next(iter(values.items()))
    {"x1": X[:, 0], "x2": X[:, 1], "y1": Y[:, 0], "w": weights}[column][22] = value
    return parquet(write(tmp_path, X, Y, weights))


@pytest.mark.parametrize(
    "value, rule",
    [
        ({"x2": np.nan}, "'x2' must be finite"),
        ({"x1": -np.inf}, "'x1' must be finite"),
        ({"y1": np.inf}, "'y1' must be finite or missing"),
        ({"w": 0.0}, "'w' must be positive and finite"),
        ({"w": np.nan}, "'w' must be positive and finite"),
    ],
)
def test_a_bad_value_names_file_column_and_row(tmp_path, value, rule):
    message = rf"part-3.parquet: column {rule}, row 5 "
    with spoilt(tmp_path, **value) as source, pytest.raises(ValueError, match=message):
        source.batches(0, 10, 4, SEED)


def test_an_error_of_the_thread_is_raised_by_the_call_that_needs_the_rows(tmp_path):
    with parquet(write(tmp_path, *table())) as first:  # closed before its files are written again: it reads ahead
        good = first.batches(0, NUM_DATA, 1, SEED)
    source = spoilt(tmp_path, x1=np.nan)
    bad = int(np.flatnonzero(good.index.ravel() == 22)[0])
    with source:
        raised = [step for step in range(NUM_DATA) if fails(source, step)]
    # From the first step of the window on that holds the row; the windows before it are as they were.
    assert bad in raised and raised == list(range(raised[0], raised[-1] + 1)) and raised[0] > 0


def fails(source, step):
    try:
        source.batches(step, 1, 1, SEED)
    except ValueError as error:
        assert "part-3.parquet" in str(error)
        return True
    return False


def test_a_file_that_goes_or_changes_while_it_is_read(folder):
    source = parquet(folder)
    pl.read_parquet(folder / "part-3.parquet").head(5).write_parquet(folder / "part-3.parquet")
    with pytest.raises(ValueError, match=r"part-3.parquet has fewer rows than when it was opened"):
        source.batches(0, 10, 4, SEED)
    (folder / "part-3.parquet").unlink()
    with pytest.raises(ValueError, match=r"part-3.parquet cannot be read"):
        source.batches(0, 10, 4, SEED)
    source.close()


# --- identity ---


def test_identity_sees_every_byte(folder, tmp_path):
    source = parquet(folder)
    assert source.identity() == parquet(folder).identity()
    others = [parquet(folder, **o) for o in (dict(block=5), dict(window=2), dict(dtype="float32"), dict(weights=None))]
    assert len({source.identity(), *(other.identity() for other in others)}) == 5
    X, Y, weights = table(5000)
    changed = Y.copy()
    changed[2500, 0] += 1.0
    memory = InMemory(X, Y, weights).identity()
    assert memory == InMemory(X.copy(order="F"), Y, weights).identity()
    assert memory == InMemory(*map(jnp.asarray, (X, Y, weights))).identity()
    assert memory != InMemory(X, changed, weights).identity()
    spoilt(folder, x1=0.123)
    assert source.identity() != parquet(folder, block=5).identity()
    assert len(source.identity().splitlines()) == 1


# --- errors ---


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(inputs=["names"]), r"part-0.parquet has no column 'names'; did you mean 'name'\?"),
        (dict(weights="weight"), r"has no column 'weight'; its columns are 'x1', 'x2'"),
        (dict(inputs=["name"]), r"part-0.parquet: column 'name' must hold numbers, got String"),
        (dict(inputs=[]), r"inputs must be a list of at least one name of a column, got \[\]"),
        (dict(inputs="x1"), r"inputs must be a list .* got 'x1'"),
        (dict(outputs=[]), r"outputs must be a list"),
        (dict(outputs=["x1"]), r"must be different columns"),
        (dict(block=0), r"block must be a positive integer, got 0"),
        (dict(block=2.0), r"block must be a positive integer, got 2.0"),
        (dict(window=True), r"window must be a positive integer, got True"),
        (dict(dtype="int32"), r"dtype must be 'float32' or 'float64', got 'int32'"),
    ],
)
def test_arguments_are_checked(folder, options, message):
    with pytest.raises(ValueError, match=message):
        parquet(folder, **options)


def test_paths_are_checked(folder, tmp_path):
    with pytest.raises(ValueError, match=r"there is no file .*part-9.parquet; did you mean 'part-"):
        parquet(folder / "part-9.parquet")
    with pytest.raises(ValueError, match=r"there are no rows in .*part-2.parquet"):
        parquet(folder / "part-2.parquet")
    with pytest.raises(ValueError, match=r"path must be a file, .* got \[\]"):
        parquet([])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"there are no files \*.parquet in the folder"):
        parquet(tmp_path / "empty")
    (tmp_path / "text.parquet").write_text("x1,x2\n1,2\n")
    with pytest.raises(ValueError, match=r"text.parquet cannot be read"):
        parquet(tmp_path / "text.parquet")


def test_arrays_are_checked():
    X, Y, weights = table()
    for arrays in ((X[1:], Y), (X, Y, weights[1:]), (X[:0], Y[:0]), (X, Y, 2.0)):
        with pytest.raises(ValueError, match=r"X, Y and weights must have equally many rows, at least 1, got \["):
            InMemory(*arrays)


def test_without_polars_the_error_says_how_to_get_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match=r"needs polars: pip install 'mercer\[tables\]'"):
        parquet(folder)


def test_many_rows_need_long_numbers():
    assert row_dtype(2**31 - 1) == np.int32 and row_dtype(2**31) == np.int64


def test_they_are_sources(folder):
    assert all(isinstance(source, Source) for source in sources(folder).values())


def test_a_program_that_closes_nothing_ends(folder):
    program = f"""
from mercer.training import Parquet
source = Parquet({str(folder)!r}, ["x1"], ["y1"], block=4, window=2)
source.batches(0, 3, 2, (0,))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
