"""Columns as inputs: finite numbers whatever the table holds, the same for a row alone as among others."""

import datetime
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mercer.io.tables import TableError, read_table
from mercer.tabular import Columns


def describe(**columns):
    return Columns.describe(read_table(columns))


def encode(columns, **values):
    """The inputs, and the notes."""
    notes = []
    return columns.encode(read_table(values), notes=notes), notes


NOON = datetime.datetime(2020, 1, 1, 12)


def days(*numbers):
    return [None if number is None else NOON + datetime.timedelta(days=number) for number in numbers]


def cells(kind):
    """A column of ten values of a kind, some of them missing."""
    value = {
        "number": st.floats(allow_nan=True, allow_infinity=True),
        "text": st.sampled_from(["a", "b", "c", "", "missing", "other"]),
        "boolean": st.booleans(),
        "date": st.datetimes(min_value=datetime.datetime(1600, 1, 1), max_value=datetime.datetime(2200, 1, 1)),
    }[kind]
    return st.lists(value | st.none(), min_size=10, max_size=10)


training_tables = st.fixed_dictionaries({kind: cells(kind) for kind in ("number", "text", "boolean", "date")})


@given(training_tables, training_tables, st.sampled_from([np.float64, np.float32]))
def test_inputs_are_finite_and_row_by_row(training, new, dtype):
    training, new = (read_table(table | {"z": list(range(10))}) for table in (training, new))
    columns = Columns.describe(training)
    for table in (training, new):
        X = columns.encode(table, dtype)
        assert (X.shape, X.dtype, X.flags.c_contiguous) == ((10, len(columns.features)), dtype, True)
        assert np.isfinite(X).all()
        some = [7, 2, 2]
        np.testing.assert_array_equal(columns.encode(table.rows(some), dtype), X[some])


@given(training_tables)
def test_every_feature_varies_in_training(training):
    training = read_table(training | {"z": list(range(10))})
    columns = Columns.describe(training)
    assert (np.ptp(columns.encode(training).astype(np.longdouble), axis=0) > 0).all()
    assert len(set(columns.features)) == len(columns.features)


def test_a_description_is_a_value_without_parameters():
    columns = describe(a=[1.0, None], b=["x", "y"], c=days(0, 1))
    assert columns == describe(a=[1.0, None], b=["x", "y"], c=days(0, 1))
    assert jax.tree.leaves(columns) == []


def test_numbers_are_filled_with_the_median():
    columns = describe(age=[1.0, None, 3.0, 10.0], size=[1, 2, 3, 4])
    assert columns.features == ("age", "age is missing", "size")
    assert columns.used == ("age", "size")
    note = "column 'age': 1 of 4 values are missing; filled with the median 3, with an indicator column"
    assert columns.notes == (note,)
    X, notes = encode(columns, age=[2.0, np.nan], size=[1, None])
    np.testing.assert_array_equal(X, [[2.0, 0.0, 1.0], [3.0, 1.0, 2.5]])
    assert notes == ["column 'size': 1 of 2 values are missing, and none was in training; filled with its median there"]


def test_infinite_numbers_are_missing():
    columns = describe(a=[1.0, np.inf, 3.0, -np.inf])
    assert columns.notes[0] == "column 'a': 2 of 4 values are infinite; they count as missing"
    np.testing.assert_array_equal(encode(columns, a=[np.inf, 1.0])[0], [[2.0, 1.0], [1.0, 0.0]])


def test_huge_numbers_stay_finite():
    columns = describe(a=[1.7e308, 1.6e308, 1e300, 1.7e308, None])
    assert np.isfinite(encode(columns, a=[None, 1.7e308])[0]).all()
    np.testing.assert_array_equal(columns.encode(read_table({"a": [1e300]}), np.float32), [[np.finfo("f4").max, 0.0]])


def test_what_is_constant_where_present_only_tells_that_it_is_missing():
    columns = describe(a=[1.0, None, 1.0])
    assert columns.features == ("a is missing",)
    assert "only whether it is missing is used" in columns.notes[0]
    np.testing.assert_array_equal(encode(columns, a=[5.0, None])[0], [[0.0], [1.0]])


def test_booleans_are_0_and_1():
    columns = describe(a=[True, False, True, None])
    assert columns.features == ("a", "a is missing")
    np.testing.assert_array_equal(encode(columns, a=[False, None])[0], [[0.0, 0.0], [1.0, 1.0]])
    np.testing.assert_array_equal(encode(columns, a=["True", "false"])[0][:, 0], [1.0, 0.0])
    np.testing.assert_array_equal(encode(columns, a=[0, 1])[0][:, 0], [0.0, 1.0])


def test_levels_are_in_order_of_frequency():
    columns = describe(c=["red", "blue", "blue", "green", "green", "blue"])
    assert columns.features == ("c=blue", "c=green", "c=red")
    X, notes = encode(columns, c=["red", "pink", "blue", None, "pink"])
    np.testing.assert_array_equal(X, [[0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]])
    assert notes == [
        "column 'c': 1 of 5 values are missing, and none was in training",
        "column 'c': 2 of 5 values are of levels that training did not have (first: 'pink')",
    ]


def test_two_levels_are_one_feature():
    columns = describe(smoker=["no", "yes", "no"], b=["x", None, None])
    assert columns.features == ("smoker=yes", "b is missing")
    np.testing.assert_array_equal(encode(columns, smoker=["no", "yes"], b=["x", None])[0], [[0, 0], [1, 1]])


def test_missing_is_a_level_of_its_own():
    columns = describe(c=["a", "b", None, "missing"])
    assert columns.features == ("c=a", "c=b", "c=missing", "c is missing")
    np.testing.assert_array_equal(encode(columns, c=[None, "missing"])[0], [[0, 0, 0, 1], [0, 0, 1, 0]])


@pytest.mark.parametrize("missing", [[], [None]])
def test_rare_levels_are_one(missing):
    frequent = [f"f{level}" for level in range(15) for _ in range(20)]
    columns = describe(c=frequent + [f"r{level}" for level in range(30)] + missing)
    assert len(columns.features) == 20 and columns.features[-1] == "c: other"
    kept = 19 - len(missing)
    assert columns.notes[-1] == f"column 'c' has 45 levels; the {45 - kept} rarest are taken as one, other"
    X, notes = encode(columns, c=["f3", "r29", "unseen"])
    np.testing.assert_array_equal(X[:, -1], [0, 1, 1])
    np.testing.assert_array_equal(X.sum(axis=1), 1)
    assert notes == []


def test_levels_are_compared_as_they_are_written():
    columns = describe(c=["1", "2", "x", "2.5", "true"])
    assert columns.features[:2] == ("c=1", "c=2")
    for values in ([1, 2], [1.0, 2.0], ["1", "2"]):
        np.testing.assert_array_equal(encode(columns, c=values)[0], np.eye(2, 5))
    np.testing.assert_array_equal(encode(columns, c=[2.5])[0], [[0, 0, 1, 0, 0]])
    np.testing.assert_array_equal(encode(columns, c=[True])[0], [[0, 0, 0, 1, 0]])


def test_dates_are_days_since_the_first():
    columns = describe(when=days(3, 1, None, 2))
    assert columns.features == ("when", "when is missing")
    assert "filled with the median 2020-01-03" in columns.notes[0]
    X, _ = encode(columns, when=days(1, None, 11.5))
    np.testing.assert_allclose(X, [[0, 0], [1, 1], [10.5, 0]])


def test_dates_arrive_as_text():
    columns = describe(when=days(0, 1))
    np.testing.assert_allclose(encode(columns, when=["2020-01-03 00:00", "2020-01-01T12:00Z"])[0], [[1.5], [0.0]])


CYCLES = {
    "too short": (range(14), ()),
    "three weeks": (range(21), ("day of week",)),
    "the same day of each week": (range(0, 70, 7), ()),
    "three days by the hour": (np.arange(0, 3, 1 / 24), ("hour of day",)),
    "three years by the day": (range(1100), ("time of year", "day of week")),
    "the first of each year": ([365 * year + (year + 3) // 4 for year in range(40)], ("day of week",)),
}


@pytest.mark.parametrize("name", CYCLES)
def test_cycles_that_the_data_cover_twice(name):
    numbers, cycles = CYCLES[name]
    columns = describe(when=days(*map(float, numbers)))
    expected = [f"when: {cycle} ({wave})" for cycle in cycles for wave in ("sin", "cos")]
    assert columns.features == ("when", *expected)
    X, _ = encode(columns, when=days(*map(float, numbers)))
    np.testing.assert_allclose(X[:, 1::2] ** 2 + X[:, 2::2] ** 2, 1.0)


def test_cycles_come_round():
    columns = describe(when=days(*np.arange(0, 1200, 0.25)))
    moments = [datetime.datetime(2021, 3, 1, 6), datetime.datetime(2021, 3, 8, 6), datetime.datetime(2022, 3, 1, 6)]
    X, _ = encode(columns, when=moments)
    week, hour, year = X[:, 3:5], X[:, 5:7], X[:, 1:3]
    np.testing.assert_allclose(week[0], [0.0, 1.0], atol=1e-12)  # a Monday
    np.testing.assert_allclose(hour, [[1.0, 0.0]] * 3, atol=1e-12)  # a quarter of the day
    np.testing.assert_allclose(week[0], week[1])
    np.testing.assert_allclose(year[0], year[2])
    angle = 2 * math.pi * 59.25 / 365
    np.testing.assert_allclose(year[0], [math.sin(angle), math.cos(angle)])


def test_what_tells_nothing_is_dropped():
    columns = describe(
        a=[7] * 30,
        b=["x"] * 30,
        c=[None] * 30,
        d=days(*[0] * 30),
        e=[f"id {row}" for row in range(30)],
        f=[f"id {row}" for row in range(20)] + ["id 0"] * 10,
        g=range(30),
    )
    assert columns.used == ("f", "g")
    assert [note.split(";")[0] for note in columns.notes] == [
        "column 'a' is dropped: it is constant",
        "column 'b' is dropped: it is constant",
        "column 'c' is dropped: no value is present",
        "column 'd' is dropped: it is constant",
        "column 'e' is dropped: 30 of its 30 texts are different: an identifier or free text",
    ]


def test_a_few_rows_of_different_texts_are_levels():
    assert len(describe(e=[f"id {row}" for row in range(20)]).features) == 20


@pytest.mark.parametrize(
    ("table", "exclude", "message"),
    [
        (
            {"a": [1, 1], "b": ["x", "x"]},
            (),
            "no column to predict from: column 'a' is dropped: it is constant; column 'b'",
        ),
        ({"a": [1, 2]}, ("a",), "no column to predict from: it has no other columns"),
        ({"a": [1], "b": ["x"]}, (), "no column to predict from"),
    ],
)
def test_tables_of_no_use(table, exclude, message):
    with pytest.raises(TableError, match=message):
        Columns.describe(read_table(table), exclude)


def test_the_target_is_no_input():
    table = read_table({"a": [1, 2], "y": [3, 4]})
    assert Columns.describe(table, exclude=("y",)).used == ("a",)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"heights": [1]}, "the table has no column 'height'; did you mean 'heights'?"),
        ({"height": ["1", "tall"]}, "column 'height' should hold a number in every row, row 2 holds 'tall'"),
        ({"height": days(1)}, "column 'height' should hold numbers and holds dates"),
    ],
)
def test_tables_that_do_not_fit(values, message):
    with pytest.raises(TableError) as caught:
        encode(describe(height=[1, 2]), **values)
    assert message in str(caught.value)


def test_numbers_arrive_as_text():
    np.testing.assert_array_equal(encode(describe(a=[1, 2, 4]), a=["1.5", "NA", " 1e3"])[0], [[1.5], [2.0], [1000.0]])
