"""Targets: the task that a person would name on seeing the column, and labels that come back as they went in."""

import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mercer.io.tables import TableError, read_table
from mercer.tabular import detect

RNG = np.random.default_rng(0)


def column(values):
    return read_table({"y": values}).column("y")


TASKS = {
    "texts of two kinds": (["yes", "no", "no"], "binary"),
    "texts of three kinds": (["a", "b", "c", "a"], "multiclass"),
    "truth": ([True, False], "binary"),
    "0 and 1": ([0, 1, 1, 0], "binary"),
    "0.0 and 1.0": ([0.0, 1.0, np.nan], "binary"),
    "-1 and 1": ([-1, 1, 1], "binary"),
    "classes from 0": (np.repeat([0, 1, 2], 50), "multiclass"),
    "few of each class": (np.repeat([0, 1, 2], 2), "multiclass"),
    "classes from 1": (np.repeat([1, 2, 3, 4, 5, 6, 7], [300, 400, 50, 5, 10, 20, 30]), "multiclass"),
    "digits": (RNG.integers(0, 10, 500), "multiclass"),
    "stars": (np.repeat([1, 2, 3, 4, 5], [20, 30, 80, 200, 300]), "multiclass"),
    "a rank for each row": (np.arange(1, 13), "regression"),
    "decimals": (RNG.standard_normal(50), "regression"),
    "decimals without fraction": (np.repeat([0.0, 1.0, 2.0], 50), "regression"),
    "wine quality": (np.repeat([3, 4, 5, 6, 7, 8], [10, 53, 681, 638, 199, 18]), "regression"),
    "ages": (np.clip(RNG.normal(38, 14, 2000).round(), 0, 95).astype(int), "regression"),
    "ages of a growing country": (RNG.triangular(0, 0, 90, 2000).astype(int), "regression"),
    "years": (RNG.integers(1950, 2020, 500), "regression"),
    "marks": (RNG.binomial(100, RNG.beta(7, 3, 2000)), "regression"),
    "percent": (RNG.integers(0, 101, 2000), "regression"),
    "dollars": (RNG.gamma(2.0, 20_000.0, 500).astype(int), "regression"),
    "negative integers": (RNG.integers(-3, 4, 500), "regression"),
    "huge integers": ([10**30, 10**20, 5], "regression"),
    "some events": ([0, 0, 1, 0, 3, 12], "counts"),
    "rare events": (RNG.poisson(0.3, 300), "counts"),
    "events": (RNG.poisson(2.0, 300), "counts"),
    "more events": (RNG.poisson(5.0, 1000), "counts"),
    "events in bursts": (RNG.negative_binomial(1, 0.1, 500), "counts"),
    "many events in bursts": (RNG.negative_binomial(2, 0.08, 500), "counts"),
    "often nothing": (RNG.poisson(6.0, 500) * (RNG.random(500) < 0.4), "counts"),
}


@pytest.mark.parametrize("name", TASKS)
def test_the_task_is_recognised(name):
    values, task = TASKS[name]
    target = detect(column(values))
    assert target.task == task
    assert target.reason.startswith(f"'y': {task}, as it ") and "--" not in target.reason
    assert (target.classes != ()) == (task in ("binary", "multiclass"))


@pytest.mark.parametrize("seed", range(20))
def test_counts_and_classes_are_told_apart_in_any_sample(seed):
    rng = np.random.default_rng(seed)
    for rate in (0.5, 1.0, 3.0, 5.0):
        assert detect(column(rng.poisson(rate, 500))).task == "counts"
    for classes in (3, 5, 10):
        assert detect(column(rng.integers(0, classes, 200))).task == "multiclass"


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([2, 10, 1] * 9, ("1", "2", "10")),
        (["2", "10", "1"] * 9, ("1", "2", "10")),
        ([0.5, 2.0], ("0.5", "2")),
        (["b", "a", None], ("a", "b")),
        ([True, False], ("false", "true")),
    ],
)
def test_classes_are_sorted_and_written_plainly(values, classes):
    assert detect(column(values), "multiclass").classes == classes


@given(
    st.lists(st.sampled_from(["a", "b", "Ü", "3"]), min_size=3, max_size=20)
    | st.lists(st.integers(0, 4), min_size=3, max_size=20)
    | st.lists(st.booleans(), min_size=3, max_size=20),
    st.sets(st.integers(0, 19)),
)
def test_labels_come_back(values, absent):
    values = [None if row in absent else value for row, value in enumerate(values)]
    given = column(values)
    if len(set(values) - {None}) < 2:
        return
    target = detect(given, "multiclass")
    y, keep = target.encode(given)
    assert y.dtype == np.float64 and keep.tolist() == [value is not None for value in values]
    np.testing.assert_array_equal(target.decode(y), given.texts()[keep])
    np.testing.assert_array_equal(target.decode(y.astype(int)[:, None]), given.texts()[keep][:, None])


@pytest.mark.parametrize("task", ["regression", "counts"])
def test_numbers_stay_numbers(task):
    given = column([3.0, np.nan, 0.0, 7.0])
    y, keep = detect(given, task).encode(given)
    np.testing.assert_array_equal(y, [3.0, 0.0, 7.0])
    np.testing.assert_array_equal(keep, [True, False, True, True])


def test_a_task_that_is_given_is_taken():
    assert detect(column([0, 1, 1]), "regression").task == "regression"
    assert detect(column([0, 1, 1]), "counts").task == "counts"
    assert detect(column([True, False]), "regression").classes == ()
    assert detect(column(["1", "2.5"]), "regression").task == "regression"
    assert detect(column([3, 4, 5, 5]), "multiclass").classes == ("3", "4", "5")
    assert detect(column([5.5, 7.0]), "binary").classes == ("5.5", "7")


@pytest.mark.parametrize(
    ("values", "task", "message"),
    [
        (["a", "a", None], None, "has one value only"),
        ([1.5, 1.5], None, "has one value only"),
        ([1.5, 1.5], "regression", "has one value only"),
        ([None, None], None, r"has too few values \(0\)"),
        ([1.0], None, r"has too few values \(1\)"),
        ([1.0, np.inf, 2.0], None, "is infinite in row 2"),
        ([1.0, np.inf, 2.0], "regression", "is infinite in row 2"),
        ([f"id {row % 60}" for row in range(600)], None, "60 different values in 600 rows, too many for classes"),
        ([f"id {row}" for row in range(30)], None, "30 different values in 30 rows.*choose another column"),
        (RNG.standard_normal(100), "multiclass", "100 different values.*use task='regression'"),
        ([datetime.datetime(2020, 1, 1), datetime.datetime(2021, 1, 1)], None, "holds dates"),
        (["a", "b", "c"], "binary", "3 different values, and a binary target has two; use task='multiclass'"),
        ([0, 1, -1], "counts", "holds -1, which is no count; correct it, or leave out task='counts'"),
        ([0, 1.5], "counts", "holds 1.5, which is no count"),
        (["1", "b"], "regression", "row 2 holds 'b'; correct it, or leave out task='regression'"),
        ([0, 1], "ranking", "no task 'ranking'; it is one of regression, binary"),
    ],
)
def test_targets_that_cannot_be(values, task, message):
    with pytest.raises(TableError, match=message):
        detect(column(values), task)


def test_new_values_that_the_task_does_not_have():
    with pytest.raises(TableError, match="holds 'c', which is not one of the classes a, b"):
        detect(column(["a", "b"])).encode(column(["a", "c"]))
    with pytest.raises(TableError, match="holds -1, which is no count"):
        detect(column([0, 1]), "counts").encode(column([-1]))
    with pytest.raises(TableError, match="is infinite in row 1"):
        detect(column([0.5, 1, 2])).encode(column([np.inf]))
