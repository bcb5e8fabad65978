"""Tables: whatever the source, the same columns; whatever the file, columns or one sentence that helps."""

import csv
import datetime
import gzip
import io
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mercer.io import tables
from mercer.io.tables import TableError, read_table


@pytest.fixture
def read(tmp_path):
    """Reads a file with the given content."""

    def read(content, name="data.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_table(path)

    return read


def content(table):
    """What is in a table, with None for missing."""

    def listed(column):
        return [None if absent else value for value, absent in zip(column.values.tolist(), column.missing, strict=True)]

    return {name: listed(table.column(name)) for name in table.names}


def kinds(table):
    return [table.column(name).kind for name in table.names]


SMALL = {
    "n": [1.5, None],
    "i": [1, 2],
    "t": ["x", None],
    "b": [True, False],
    "d": [datetime.datetime(2020, 1, 2), None],
}


def written(frame, path):
    (frame.write_parquet if path.suffix == ".parquet" else frame.write_csv)(path)
    return path


@pytest.mark.parametrize("source", ["mapping", "pandas", "polars", "lazy", "csv", "parquet"])
def test_all_sources_give_the_same_columns(source, tmp_path):
    frame = pl.DataFrame(SMALL)
    table = read_table(
        {
            "mapping": lambda: SMALL,
            "pandas": lambda: pd.DataFrame(SMALL),
            "polars": lambda: frame,
            "lazy": lambda: frame.lazy(),
            "csv": lambda: str(written(frame, tmp_path / "data.csv")),
            "parquet": lambda: written(frame, tmp_path / "data.parquet"),
        }[source]()
    )
    assert (len(table), table.notes, table.duplicated) == (2, (), frozenset())
    assert kinds(table) == ["number", "number", "text", "boolean", "date"]
    assert content(table) == SMALL
    assert [table.column(name).integer for name in "ni"] == [False, True]
    assert [table.column(name).values.dtype for name in table.names] == ["f8", "f8", "O", "f8", "M8[us]"]


def test_an_array_has_numbered_columns():
    table = read_table(np.array([[1.0, np.inf], [np.nan, 4.0]]))
    assert content(table) == {"x1": [1.0, None], "x2": [np.inf, 4.0]}


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (pd.Series([1, None], dtype="Int64"), "number", [1.0, None]),
        (pd.Series([1, None], dtype="category"), "number", [1.0, None]),
        (pd.Series(["a", None], dtype="string"), "text", ["a", None]),
        (pd.Series(["a", " "]), "text", ["a", None]),
        (pd.to_datetime(["2020-01-01T02:00+02:00", None]), "date", [datetime.datetime(2020, 1, 1), None]),
        (pd.to_timedelta(["1h", None]), "number", [3600.0, None]),
        (pl.Series(["a", None], dtype=pl.Categorical), "text", ["a", None]),
        (pl.Series([b"a", None]), "text", ["b'a'", None]),
        (pl.Series([[1], None]), "text", ["[1]", None]),
        (pl.Series([None, None]), "number", [None, None]),
        (pl.Series([1, None]).cast(pl.Decimal(10, 2)), "number", [1.0, None]),
        (pl.Series([3_600_000, None]).cast(pl.Duration("ms")), "number", [3600.0, None]),
        (pl.Series([datetime.date(2020, 1, 1), None]), "date", [datetime.datetime(2020, 1, 1), None]),
        (["a", 1], "text", ["a", "1"]),
        ([True, None], "boolean", [1.0, None]),
        ([10**30, None], "number", [1e30, None]),
    ],
)
def test_types_of_frames(values, kind, expected):
    library = {"pandas": pd.DataFrame, "polars": pl.DataFrame}.get(type(values).__module__.partition(".")[0], dict)
    table = read_table(library({"x": values}))
    assert (kinds(table), content(table)) == ([kind], {"x": expected})


ODD_FILES = {
    "windows line ends": ("a,b\r\n1,x\r\n", {"a": [1], "b": ["x"]}),
    "old line ends": ("a,b\r1,x\r2,y\r", {"a": [1, 2], "b": ["x", "y"]}),
    "one lone return": ("a,b\n1,x\r2,y\n", {"a": [1, 2], "b": ["x", "y"]}),
    "no end of line": ("a,b\n1,x", {"a": [1], "b": ["x"]}),
    "blank lines": ("\n\na,b\n\n1,x\n  \n2,y\n\n", {"a": [1, 2], "b": ["x", "y"]}),
    "byte order mark": ("\ufeffa,b\n1,x\n", {"a": [1], "b": ["x"]}),
    "unicode names": ("größe,名前,😀\n1,x,2\n", {"größe": [1], "名前": ["x"], "😀": [2]}),
    "names like patterns": ("^a$,*,a b\n1,x,2\n", {"^a$": [1], "*": ["x"], "a b": [2]}),
    "utf-16": ("größe,b\n1,x\n".encode("utf-16"), {"größe": [1], "b": ["x"]}),
    "end of a DOS file": (b"a,b\n1,x\n\x1a", {"a": [1], "b": ["x"]}),
    "gzip": (gzip.compress(b"a,b\n1,x\n"), {"a": [1], "b": ["x"]}),
    "semicolons": ('a;b\n1;"x;y, z"\n', {"a": [1], "b": ["x;y, z"]}),
    "tabs": ("a\tb\n1\tx, y\n", {"a": [1], "b": ["x, y"]}),
    "bars": ("a|b\n1|x\n", {"a": [1], "b": ["x"]}),
    "separators in a quoted header": ('"a;b;c",b\n1,x\n', {"a;b;c": [1], "b": ["x"]}),
    "newline in quotes": ('a,b\n1,"x\ny"\n', {"a": [1], "b": ["x\ny"]}),
    "newline in the header": ('a,"b\nc"\n1,x\n', {"a": [1], "b\nc": ["x"]}),
    "quotes in quotes": ('a,b\n1,"say ""x"""\n', {"a": [1], "b": ['say "x"']}),
    "quotes within text": ('a,b\n1,5" pipe\n2,4" pipe\n', {"a": [1, 2], "b": ['5" pipe', '4" pipe']}),
    "text after a quote": ('a,b\n1,"x"y\n', {"a": [1], "b": ["xy"]}),
    "spaces around": (' a , "b"\n 1 , "x, y" \n', {"a": [1], "b": ["x, y"]}),
    "single quotes": ("'a','b'\n1,'x, y'\n", {"a": [1], "b": ["x, y"]}),
    "apostrophes": ("a,b\n1,'tis\n2,it's\n", {"a": [1, 2], "b": ["'tis", "it's"]}),
    "quoted numbers": ('a,b\n"1",x\n"",y\n', {"a": [1, None], "b": ["x", "y"]}),
    "separator at the end of rows": ("a,b\n1,x,\n2,y,\n", {"a": [1, 2], "b": ["x", "y"]}),
    "separator at the end of lines": ("a,b,\n1,x,\n", {"a": [1], "b": ["x"]}),
    "separator at the end of the header": ("a,b,\n1,x\n", {"a": [1], "b": ["x"]}),
    "one column": ("a\n1\n\n3\n", {"a": [1, None, 3]}),
    "one row": ("a,b\n1,x\n", {"a": [1], "b": ["x"]}),
    "empty cells": ("a,b\n,\n1,x\n", {"a": [None, 1], "b": [None, "x"]}),
    "an empty column": ("a,b\n,x\n,y\n", {"a": [None, None], "b": ["x", "y"]}),
    "huge": (f"a,b\n1e300,{2**63}\n1e400,{10**25}\n", {"a": [1e300, np.inf], "b": [2.0**63, 1e25]}),
    "signs and exponents": ("a,b\n+1,-1E-3\n-.5,5.\n", {"a": [1, -0.5], "b": [-0.001, 5.0]}),
    "not numbers": ("a,b,c\n0x10,1_000,1d\n", {"a": ["0x10"], "b": ["1_000"], "c": ["1d"]}),
    "thousands without a rule": ('a\n"1,23"\n"1,234"\n', {"a": ["1,23", "1,234"]}),
    "the word none": ("a,b\nnone,none\nsome,1\n", {"a": ["none", "some"], "b": [None, 1]}),
    "truth": ("a,b\nTrue,false\nFALSE,yes\n", {"a": [1, 0], "b": ["false", "yes"]}),
}


@pytest.mark.parametrize("name", ODD_FILES)
def test_odd_files(name, read):
    given, expected = ODD_FILES[name]
    table = read(given)
    assert (content(table), table.notes) == (expected, ())


@pytest.mark.parametrize("token", sorted(tables.MISSING))
def test_missing_values(token, read):
    assert content(read(f"a,b\n1,x\n{token},y\n"))["a"] == [1, None]


def test_dates(read):
    table = read(
        "a,b,c\n2020-02-29,2020-01-02T03:04:05.5Z,2020-02-30\nNA,2020-01-02 03:04+02:00,x\n2020-03-01,2020-01-02 03:04,y\n"
    )
    assert kinds(table) == ["date", "date", "text"]
    assert content(table)["a"] == [datetime.datetime(2020, 2, 29), None, datetime.datetime(2020, 3, 1)]
    expected = ["2020-01-02T03:04:05.5", "2020-01-02T01:04", "2020-01-02T03:04"]
    np.testing.assert_array_equal(table.column("b").values, np.array(expected, "datetime64[us]"))


ASSUMPTIONS = {
    "latin-1": ("größe,b\n1,é\n".encode("latin-1"), {"größe": [1], "b": ["é"]}, "read as Latin-1"),
    "windows": ("a,b\n1,5 €\n".encode("cp1252"), {"a": [1], "b": ["5 €"]}, "read as Latin-1"),
    "decimal commas": ("a;b\n1,5;x\n2;y\n", {"a": [1.5, 2], "b": ["x", "y"]}, "'a': commas are read as decimal points"),
    "thousands": ('a,b\n"1,234.5",x\n2,y\n', {"a": [1234.5, 2], "b": ["x", "y"]}, "'a': commas are read as separators"),
    "no header": ("1,2\n3,4\n", {"x1": [1, 3], "x2": [2, 4]}, "no header"),
    "empty name": ("a,,c\n1,2,3\n", {"a": [1], "column 2": [2], "c": [3]}, "column 2 has no name"),
    "duplicates": ("a,b,a\n1,2,3\n", {"a": [1], "b": [2], "a_2": [3]}, "called 'a'; column 3 is now 'a_2'"),
    "duplicates of a name like ours": ("a,a,a_2\n1,2,3\n", {"a": [1], "a_3": [2], "a_2": [3]}, "is now 'a_3'"),
}


@pytest.mark.parametrize("name", ASSUMPTIONS)
def test_assumptions_are_noted(name, read):
    given, expected, note = ASSUMPTIONS[name]
    table = read(given)
    assert content(table) == expected
    assert len(table.notes) == 1 and note in table.notes[0]


def test_duplicates_are_remembered(read):
    assert read("a,b,a\n1,2,3\n").duplicated == {"a"}
    frame = pd.DataFrame([[1, 2]], columns=["a", "a"])
    assert read_table(frame).names == ("a", "a_2") and read_table(frame).duplicated == {"a"}


def test_numbers_spoilt_by_a_few_texts(read):
    table = read("age\n" + "1\n" * 16 + "unknown\n" + "2\n" * 20 + "?\n")
    assert table.notes == ("column 'age' is read as text: 1 of 37 values are not numbers (first: 'unknown', row 17)",)
    assert read("age\n" + "1\nx\n" * 20).notes == ()


BAD_FILES = {
    "empty": ("", "is empty"),
    "blank": ("\n \n", "is empty"),
    "only a header": ("a,b\n", "no rows"),
    "long line": ("a,b\n1,2\n\n3,4,5\n", "line 4 has 3 fields and the header has 2"),
    "short line": ("a,b,c\n1,2,3\n4,5\n", "line 3 has 2 fields and the header has 3"),
    "short line after a long text": ('a,b\n"x\ny",2\n3\n', "line 4 has 1 field "),
    "open quote": ('a,b\n1,2\n3,"x\n4,5\n', "line 3 opens a quote"),
    "endless quote": ('a,b\n1,2\n"x' + "\n4,5" * 50_000, "look for a quote"),
    "zero byte": (b"a,b\n1,x\0y\n", "line 2 holds the byte 0x00"),
    "picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is not text"),
    "workbook": (b"PK\x03\x04\x14\0", "save the sheet as csv"),
    "damaged gzip": (gzip.compress(b"a,b\n1,2\n")[:-4], "damaged gzip"),
    "damaged parquet": (b"PAR1 and no more", "cannot be read"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(name, read):
    given, message = BAD_FILES[name]
    with pytest.raises(TableError, match=r"data\.csv") as caught:
        read(given)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_paths_that_are_no_files(read, tmp_path):
    read("a\n1\n", "houses.csv")
    with pytest.raises(TableError, match=r"there is no file .*house\.csv; did you mean 'houses\.csv'\?"):
        read_table(tmp_path / "house.csv")
    with pytest.raises(TableError, match="is a folder"):
        read_table(str(tmp_path))
    with pytest.raises(TableError, match="there is no file"):
        read_table(tmp_path / "nowhere" / "house.csv")
    with pytest.raises(TableError, match="not a parquet file"):
        read("a,b\n1,2\n", "data.parquet")


def test_parquet_that_is_cut_off_or_altered(tmp_path):
    path = written(pl.DataFrame({"a": np.arange(1000.0)}), tmp_path / "data.parquet")
    whole = path.read_bytes()
    for altered in (whole[:-20], whole[:100], whole[:4] + bytes(60) + whole[64:], whole[:-40] + bytes(36) + whole[-4:]):
        path.write_bytes(altered)
        try:
            table = read_table(path)
            [table.column(name) for name in table.names]
        except TableError as error:
            assert "data.parquet" in str(error)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "of type int"),
        (np.zeros(3), r"an array of shape \(3,\)"),
        ([1, 2], "of type list"),
        ({"a": [1], "b": [1, 2]}, "different lengths, from 1 to 2"),
        ({"a": np.zeros((2, 2))}, "one-dimensional"),
        ({}, "no columns"),
        ({"a": []}, "no rows"),
        (pl.LazyFrame({"a": [1]}).select("b"), "cannot be read"),
    ],
)
def test_what_is_no_table(source, message):
    with pytest.raises(TableError, match=message):
        read_table(source)


def test_an_unknown_column_is_told_with_similar_names(read):
    table = read("Age,height\n1,2\n")
    with pytest.raises(TableError, match=r"data\.csv has no column 'heigth'; did you mean 'height'\?"):
        table.column("heigth")
    with pytest.raises(TableError, match=r"did you mean 'Age'\?"):
        table.column("age")
    with pytest.raises(TableError, match="its columns are 'Age', 'height'"):
        table.column("zzz")


@pytest.mark.parametrize("source", ["csv", "parquet", "array"])
def test_rows_compose(source, tmp_path):
    values = np.arange(20.0)
    frame = pl.DataFrame({"x1": values})
    table = read_table(values[:, None] if source == "array" else written(frame, tmp_path / f"data.{source}"))
    mask = values % 2 == 0
    for first in (slice(3, 17), slice(None, None, -2), slice(18, 2), mask, np.array([5, 1, -1, 1]), [0, 3, 4, 7]):
        for second in (slice(1, None, 2), np.array([0]), slice(None, None, -1), slice(0, 0)):
            if np.size(values[first]) or isinstance(second, slice):
                chosen = table.rows(first).rows(second)
                expected = values[first][second]
                assert len(chosen) == len(expected)
                np.testing.assert_array_equal(chosen.column("x1").values, expected)
    with pytest.raises(TableError, match="20 rows, and the selection is of 3"):
        table.rows([True, False, True])


def test_numbers_dates_and_texts_convert():
    column = read_table({"x": ["1", "NA", "true", " 2.5 "]}).column("x")
    np.testing.assert_array_equal(column.numbers(), [1.0, np.nan, 1.0, 2.5])
    column = read_table({"x": [1.0, 2.5, np.nan, 1e300]}).column("x")
    assert column.texts().tolist() == ["1", "2.5", None, "1e+300"]
    column = read_table({"x": ["2020-01-02", None]}).column("x")
    np.testing.assert_array_equal(column.dates(), np.array(["2020-01-02", "NaT"], "datetime64[us]"))
    column = read_table({"x": column.dates()}).column("x")
    assert column.texts().tolist() == ["2020-01-02", None]
    with pytest.raises(
        TableError, match="column 'x' should hold a date such as 2024-12-31 in every row, row 2 holds 'y'"
    ):
        read_table({"x": ["2020-01-01", "y"]}).column("x").dates()
    with pytest.raises(TableError, match="should hold dates and holds numbers"):
        read_table({"x": [1]}).column("x").dates()
    with pytest.raises(TableError, match="should hold numbers and holds dates"):
        column.numbers()


printable = st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Z"]) | st.sampled_from(' ,;|"\n\t'), max_size=5
)


@given(st.lists(st.lists(printable, min_size=3, max_size=3), min_size=1, max_size=6), st.sampled_from(",;\t|"))
def test_what_is_written_is_read(tmp_path_factory, records, separator):
    path = tmp_path_factory.getbasetemp() / "written.csv"
    text = io.StringIO()
    header = [f"name {separator} {position}" for position in range(3)]
    csv.writer(text, delimiter=separator, quoting=csv.QUOTE_ALL).writerows([header, *records])
    path.write_bytes(text.getvalue().encode())
    table = read_table(path)
    assert (len(table), list(table.names)) == (len(records), header)
    for column, expected in zip(map(table.column, table.names), zip(*records, strict=True), strict=True):
        if column.kind == "text":
            stripped = [value.strip() for value in expected]
            assert column.values.tolist() == [
                None if value in tables.MISSING - {"none", "None"} else value for value in stripped
            ]


@settings(max_examples=200)
@given(st.text('ab1,;"\n\r\t |.', max_size=30).map(str.encode) | st.binary(max_size=30))
@example(b'"')
def test_any_file_is_a_table_or_an_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(content)
    try:
        table = read_table(path)
    except TableError as error:
        assert "any.csv" in str(error) and "\n" not in str(error)
    else:
        assert all(len(table.column(name)) == len(table) > 0 for name in table.names)


def run(code, **environment):
    environment = os.environ | environment
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)


def test_polars_is_imported_when_used_and_missed_with_a_sentence(tmp_path):
    (tmp_path / "data.csv").write_text("a\n1\n")
    code = f"""
import sys
from mercer.io import tables
assert not {{"polars", "pandas", "pyarrow"}} & set(sys.modules)
sys.modules["polars"] = None
assert len(tables.read_table({{"a": [1]}})) == 1
tables.read_table({str(tmp_path / "data.csv")!r})
"""
    assert "ImportError: reading csv and parquet files needs polars: pip install 'mercer[tables]'" in run(code).stderr


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak is read where Linux has it")
def test_parquet_is_never_in_memory_twice(tmp_path):
    """At 1M x 8 numbers, describing and encoding needs one copy, and beside it only what polars keeps."""
    rng = np.random.default_rng(0)
    path = tmp_path / "data.parquet"
    pl.DataFrame({f"c{j}": rng.standard_normal(1_000_000) for j in range(8)}).write_parquet(path)
    code = f"""
import polars as pl
from mercer.io.tables import read_table
from mercer.tabular import Columns

def peak():  # in kB, of this process alone (that of getrusage may be the parent's)
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

pl.scan_parquet({str(path)!r}).select("c0").head(1000).collect()  # threads and buffers
before = peak()
table = read_table({str(path)!r})
X = Columns.describe(table).encode(table)
assert X.shape == (1_000_000, 8) and X.flags.c_contiguous
print((peak() - before) * 1024 / X.nbytes)
"""
    # What is freed goes back at once, so that the peak is of what is alive.
    result = run(code, MALLOC_MMAP_THRESHOLD_="1000000")
    assert float(result.stdout or "inf") < 1.75, result.stdout + result.stderr
