"""The command: what it prints and writes, how it fails, and that a run that is killed goes on."""

import dataclasses
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import polars as pl
import pytest

import mercer as mc
from mercer.cli import main
from mercer.io import registry
from mercer.io.tables import TableError

RNG = np.random.default_rng(0)
N = 48
DATA = pl.DataFrame(
    {
        "Länge [cm]": RNG.normal(size=N),
        "kind": ["x", "y", None] * (N // 3),
        "price": 50.0 + RNG.normal(size=N),
    }
)
QUICK = ("--steps", "3", "--inducing", "10")


@pytest.fixture
def refused(command):
    """The one sentence that a command fails with."""

    def refused(*arguments, code=1):
        found, out, err = command(*arguments)
        assert found == code and out == "" and err.startswith("mercer: ") and err.count("\n") == 1, (found, out, err)
        assert "Traceback" not in err and "bug" not in err
        return err.removeprefix("mercer: ").rstrip("\n")

    return refused


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    DATA.write_csv("data.csv")
    return tmp_path


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """The bytes of a model that `mercer fit` wrote."""
    folder = tmp_path_factory.mktemp("fitted")
    DATA.write_csv(folder / "data.csv")
    with pytest.raises(SystemExit), jax.enable_x64(False):
        main(["fit", str(folder / "data.csv"), "-t", "price", "-m", str(folder / "m.mercer"), "--quiet", *QUICK])
    return (folder / "m.mercer").read_bytes()


@pytest.fixture
def model(folder, content):
    (folder / "m.mercer").write_bytes(content)
    return folder / "m.mercer"


def test_from_a_table_to_predictions(command, folder):
    code, out, err = command("fit", "data.csv", "--target", "price", *QUICK)
    assert (code, err) == (0, "")
    for said in [
        "data.csv: 48 rows, 3 columns",
        "missing; that is a level of its own",
        "'price': regression, as it holds numbers with a decimal point (--task changes this)",
        "2 columns to predict from, as 4 features",
        "exact inference, as 48 rows are few enough; 9 rows, drawn at random, are held out",
        "scores on 9 rows held out",
        "RMSE",
        "log-likelihood",
        "in the 90 % interval",
        "linear",
        "saved as data.mercer",
        "next: mercer predict data.mercer",
    ]:
        assert said in out, said
    assert sorted(os.listdir(folder)) == ["data.csv", "data.mercer"]

    code, out, err = command("predict", "data.mercer", "data.csv")
    assert code == 0 and "scores on 48 rows of data.csv" in err
    assert out.splitlines()[0] == "mean,std,lower,upper" and len(out.splitlines()) == N + 1

    # In order, all rows, without the target, to files of both kinds, and with a narrower interval.
    DATA.drop("price").write_parquet("new.parquet")
    assert command("predict", "data.mercer", "new.parquet", "--out", "p.csv", "--quiet") == (0, "", "")
    assert (folder / "p.csv").read_text() == out
    code, out, err = command("predict", "data.mercer", "new.parquet", "--out", "p.parquet", "--level", "0.5")
    assert (code, out, err) == (0, "", "48 rows of predictions are in p.parquet\n")
    wide, narrow = pl.read_csv("p.csv"), pl.read_parquet("p.parquet")
    assert wide["mean"].to_numpy() == pytest.approx(narrow["mean"].to_numpy())
    assert (wide["upper"] > narrow["upper"]).all()


@pytest.mark.slow
def test_quiet_classes_and_options(command, folder):
    DATA.with_columns(price=pl.when(pl.col("price") > 50.0).then(pl.lit("high")).otherwise(pl.lit("low"))).write_csv(
        "c.csv"
    )
    fitted = command(
        "fit", "c.csv", "-t", "price", "-q", "--exclude", "kind", "--holdout", "0", "-m", "c.model", *QUICK
    )
    assert fitted == (0, "", "")
    out = command("predict", "c.model", "c.csv", "-q")[1]
    assert out.splitlines()[0] == "prediction,p(high),p(low)"
    loaded = mc.load("c.model")
    assert loaded.columns.used == ("Länge [cm]",) and loaded.report.held_out is None
    out = command("show", "c.model")[1]
    assert "probit" in out and "inducing points" in out and "scores" not in out


def test_show(command, model):
    code, out, err = command("show", model)
    assert (code, err) == (0, "")
    for said in [
        "a smooth function (Matérn 5/2)",
        "Länge [cm]",
        "relevance",
        "noise: standard deviation",
        "exact, given 48 rows",
        "objective: █",
        "in 3 steps",
        "scores on 9 rows held out",
        f"fitted by mercer {mc.__version__} to 48 rows",
    ]:
        assert said in out, said
    assert "scores on 48 rows of data.csv" in command("show", model, "--data", "data.csv")[1]
    assert command("show", model, "--quiet") == (0, "", "")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture(suffix, command, model):
    pytest.importorskip("matplotlib")
    code, out, _ = command("show", model, "--plot", f"picture.{suffix}")
    assert code == 0 and f"the picture is in picture.{suffix}" in out
    assert os.path.getsize(f"picture.{suffix}") > 10_000


def test_pictures_that_cannot_be(refused, model):
    pytest.importorskip("matplotlib")
    assert "picture.xyz does not end like a picture; choose one of .avif" in refused(
        "show", model, "--plot", "picture.xyz"
    )
    assert "there is no folder no" in refused("show", model, "--plot", "no/picture.png")


class TestHelp:
    def test_examples(self, command):
        code, out, _ = command("--help")
        assert code == 0 and "mercer fit houses.csv --target price" in out
        for name in ("fit", "predict", "show"):
            code, out, _ = command(name, "--help")
            assert code == 0 and "Examples:" in out and f"mercer {name} houses" in out

    def test_version(self, command):
        assert command("--version") == (0, f"mercer {mc.__version__}\n", "")

    def test_without_arguments(self, command):
        assert "Usage: mercer" in "".join(command()[1:])

    @pytest.mark.parametrize(
        "wrong", [["fit"], ["fit", "data.csv"], ["fits"], ["fit", "--stepz"], ["predict", "m", "n", "--level", "2"]]
    )
    def test_usage_errors(self, wrong, command):
        code, _, err = command(*wrong)
        assert code == 2 and "Traceback" not in err


class TestRefusals:
    def test_files(self, refused, folder):
        assert refused("fit", "dat.csv", "-t", "y") == "there is no file dat.csv; did you mean 'data.csv'?"
        assert refused("fit", ".", "-t", "y") == ". is a folder; name the csv or parquet file in it"
        assert "no column 'prize'; did you mean 'price'?" in refused("fit", "data.csv", "-t", "prize")
        assert "there is no file 'm.mercer'" in refused("show", "m.mercer")
        assert "is not a file written by mercer.save" in refused("show", "data.csv")

    def test_where_a_result_cannot_be(self, refused, model):
        fit = ("fit", "data.csv", "-t", "price", "--model")
        assert refused(*fit, "no/m.mercer") == "there is no folder no for m.mercer; make it, or name another one"
        assert refused(*fit, "data.csv") == "data.csv would be overwritten; name another file for the result"
        assert refused(*fit, ".") == ". is a folder; name a file in it"
        assert "should end in .csv or .parquet" in refused("predict", model, "data.csv", "--out", "p.xlsx")
        assert "would be overwritten" in refused("predict", model, "data.csv", "--out", "data.csv")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_permissions(self, refused, model, folder):
        folder.chmod(0o500)
        assert "cannot be written" in refused("fit", "data.csv", "-t", "price")

    def test_a_file_that_holds_something_else(self, refused, folder):
        mc.save("kernel.mercer", mc.kernels.RBF())
        said = "'kernel.mercer' holds a mercer.kernels.stationary.RBF, not a model that `mercer fit` has saved"
        for arguments in (["show", "kernel.mercer"], ["predict", "kernel.mercer", "data.csv"]):
            assert refused(*arguments).startswith(said)

    def test_a_table_without_the_columns(self, refused, model, folder):
        DATA.rename({"kind": "kinds"}).write_csv("other.csv")
        assert "other.csv has no column 'kind'; did you mean 'kinds'?" in refused("predict", model, "other.csv")
        assert not os.path.exists("p.csv")

    @pytest.mark.parametrize(
        "text, said",
        [
            ("", "is empty"),
            ("a,y\n", "has a header and no rows"),
            ("a,y\n1,2\n", "has too few values (1)"),
            ("y\n1.5\n2.5\n3.5\n", "has no column to predict from"),
            ("a,y,y\n1,2,3\n2,3,4\n", "has more than one column 'y'"),
            ("a,y\n1,yes\n2,yes\n3,yes\n", "has one value only"),
            ("a,y\n1,2024-01-01\n2,2024-01-02\n", "holds dates"),
            ("a,b,y\n1,x,1.5\n1,x,2.5\n1,x,3.5\n", "it is constant"),
            ("a,b,y\n,,1.5\n,,2.5\n,,3.5\n", "no value is present"),
            ("a,y\n1,1.5\n2,inf\n3,2.5\n", "is infinite in row 2"),
            ("a,y\n" + "".join(f"{i},name {i}\n" for i in range(40)), "too many for classes"),
            ('a,y\n1,"2\n3,4\n', "quote"),
            ("a,y\n1,yes\n2,no\n3,yes\n", "only regression can be exact"),
            ("a,y\n1,2,3\n4,5\n", "line 2 has 3 fields and the header has 2"),
        ],
    )
    def test_tables(self, text, said, refused, folder):
        (folder / "odd.csv").write_text(text)
        message = refused("fit", "odd.csv", "--target", "y", *(["--method", "exact"] if "exact" in said else []))
        assert said in message and ("odd.csv" in message or "'y'" in message)
        assert sorted(os.listdir(folder)) == ["data.csv", "odd.csv"]

    def test_arguments_of_the_library_are_options_here(self, refused, folder):
        (folder / "odd.csv").write_text("a,y\n1,u\n2,v\n3,w\n")
        said = refused("fit", "odd.csv", "--target", "y", "--task", "binary")
        assert "a binary target has two; use --task multiclass" in said
        (folder / "odd.csv").write_text("a,y\n" + "".join(f"{i},{i}.5\n" for i in range(23_000)))
        said = refused("fit", "odd.csv", "--target", "y", "--method", "exact")
        assert "too many rows (23000) for an exact model; leave out --method exact" in said

    def test_predict_says_why_there_are_no_scores(self, command, model):
        DATA.with_columns(price=pl.lit("unknown")).write_csv("odd.csv")
        code, out, err = command("predict", model, "odd.csv")
        assert code == 0 and len(out.splitlines()) == N + 1
        assert "no scores: odd.csv: column 'price' should hold a number in every row" in err


def test_the_library_names_no_options():
    """Its errors are for Python, too: they name arguments, and the command translates them."""
    package = Path(mc.__file__).parent
    others = {package / "experiments" / "clusters.py"}  # which has those of other commands
    files = [
        file for file in package.rglob("*.py") if file.relative_to(package).parts[0] != "cli" and file not in others
    ]
    assert [file.name for file in files if re.search(r"(?<![\w-])--[a-z]", file.read_text())] == []


class TestNet:
    """What no command foresaw."""

    @pytest.mark.parametrize(
        "error, code, said",
        [
            (TableError("a sentence\nin two lines"), 1, "a sentence in two lines"),
            (
                PermissionError(13, "Permission denied", "x.csv"),
                1,
                "x.csv cannot be read or written (Permission denied)",
            ),
            (ImportError("pictures need it: pip install 'mercer[plot]'"), 1, "pip install 'mercer[plot]'"),
            (MemoryError(), 1, "memory"),
            (
                ValueError("shapes do not match"),
                70,
                "this is a bug (ValueError: shapes do not match); run it with MERCER_DEBUG=1",
            ),
            (KeyError("x"), 70, "this is a bug"),
            (KeyboardInterrupt(), 130, ""),
        ],
    )
    def test_errors(self, error, code, said, command, folder, monkeypatch):
        def fail(*args):
            raise error

        monkeypatch.setattr("mercer.cli.commands.read_table", fail)
        found, out, err = command("fit", "data.csv", "-t", "price")
        assert (found, out) == (code, "") and said in err and "Traceback" not in err and err.count("\n") <= 1

    def test_debug(self, folder, monkeypatch):
        monkeypatch.setenv("MERCER_DEBUG", "1")
        with pytest.raises(TableError):
            main(["fit", "nothing.csv", "-t", "y"])

    @pytest.mark.parametrize("missing", ["typer", "rich"])
    def test_a_missing_package(self, missing, refused, monkeypatch):
        monkeypatch.setitem(sys.modules, missing, None)
        assert refused("--help") == "the command mercer needs typer and rich: pip install 'mercer[cli]'"

    def test_missing_polars_and_matplotlib(self, refused, model, monkeypatch):
        monkeypatch.setitem(sys.modules, "polars", None)
        assert "pip install 'mercer[tables]'" in refused("predict", model, "data.csv")
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        assert "pip install 'mercer[plot]'" in refused("show", model, "--plot", "p.png")


def altered(content, rng):
    """A file that is random, cut off, or has a bit, a byte or a block that is not as it was."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randbytes(rng.choice([0, 1, 8, 100, 5000]))
    if kind == 1:
        return content[: rng.randrange(len(content))]
    changed, at = bytearray(content), rng.randrange(len(content) if kind == 2 else 2000)
    if kind == 3:
        changed[at : at + 50] = rng.randbytes(rng.randrange(100))
    else:
        changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed)


def test_altered_files(refused, model, content):
    """One hundred of them: one sentence each, at once."""
    rng = random.Random(0)
    for i in range(100):
        model.write_bytes(altered(content, rng))
        begin = time.perf_counter()
        said = refused(*(["show", model] if i % 2 else ["predict", model, "data.csv"]))
        assert time.perf_counter() - begin < 5.0 and "m.mercer" in said


def test_what_a_terminal_would_obey_is_not_printed(command, model):
    loaded = mc.load(model)
    report = dataclasses.replace(loaded.report, notes=("\x1b[2J\x07",), source="\x1b]0;title\x07")
    target = dataclasses.replace(loaded.target, reason="[red]\x9b31m")
    mc.save(model, dataclasses.replace(loaded, report=report, target=target))
    code, out, _ = command("show", model)
    assert code == 0 and "[red]" in out and all(c.isprintable() or c == "\n" for c in out)


def subprocess_environment(**changes):
    return os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "JAX_PLATFORMS": "cpu"} | changes


def words(*arguments):
    return [sys.executable, "-m", "mercer.cli", *map(str, arguments)]


def test_a_process_of_its_own(model, content):
    """Exit codes and messages as a shell sees them, and text that the terminal cannot show."""
    environment = subprocess_environment(PYTHONIOENCODING="ascii", PYTHONWARNINGS="always")
    options = dict(capture_output=True, text=True, timeout=120, env=environment)
    shown = subprocess.run(words("show", model), **options)
    assert (shown.returncode, shown.stderr) == (0, "") and "L?nge" in shown.stdout
    model.write_bytes(content[:-1])
    damaged = subprocess.run(words("show", model), **options)
    assert damaged.returncode == 1 and damaged.stdout == "" and damaged.stderr.count("\n") == 1


@pytest.mark.slow  # by default tests/training/test_checkpoints.py kills a run
def test_killed_and_run_again(command, folder):
    """SIGKILL after the first checkpoint, and the same command again: it goes on, to the same predictions."""
    arguments = ("fit", "data.csv", "--target", "price", "--steps", "60", "--seed", "3")
    code, _, _ = command(*arguments, "-m", "whole.mercer", "-q")
    assert code == 0
    checkpoint = folder / ".data.mercer.training.prior"
    process = subprocess.Popen(words(*arguments), env=subprocess_environment(), stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120.0
        while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert checkpoint.exists() and not (folder / "data.mercer").exists()
    code, _, err = command(*arguments)
    assert code == 0 and err.startswith("going on from step ") and "of 60 (prior)" in err
    assert sorted(os.listdir(folder)) == ["data.csv", "data.mercer", "whole.mercer"]
    resumed, whole = (mc.load(name).predict("data.csv") for name in ("data.mercer", "whole.mercer"))
    for name, values in whole.items():
        np.testing.assert_allclose(resumed[name], values, rtol=1e-6)
    # What another run left, with other data, is of no use; and --fresh does not even look at it.
    for options, changed in ([], 1.0), (["--fresh"], 0.0):
        checkpoint.write_bytes(b"of a run that was")
        DATA.with_columns(price=pl.col("price") + changed).write_csv("data.csv")
        code, _, err = command(*arguments, *options)
        assert (code, err) == (0, "")
    for name, values in mc.load("data.mercer").predict("data.csv").items():
        np.testing.assert_allclose(values, whole[name], rtol=1e-6)


def test_ctrl_c(command, folder, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("mercer.tabular.table_model._learn", interrupted)
    code, _, err = command("fit", "data.csv", "-t", "price")
    assert code == 130 and err == "interrupted: the same command will go on from here\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, make",
    {
        "huge": lambda i: (f"{(-1) ** i * i}e300", f"{i % 7}.5e300"),
        "one huge": lambda i: (1e300 if i == 3 else i + 0.5, 1e300 if i == 5 else i % 7 + 0.5),
        "tiny": lambda i: (f"{i + 1}e-300", f"{i % 7}.5e-300"),
        "dates": lambda i: (f"2024-{i % 12 + 1:02d}-{i % 28 + 1:02d}", i % 7 + 0.5),
        "equal rows": lambda i: (i % 2, i % 3 + 0.5),
        "five": lambda i: (i, i * i + 0.5) if i < 5 else None,
        "two": lambda i: (i, i + 0.5) if i < 2 else None,
        "counts": lambda i: (i, i % 4 if i % 5 else 9),
    }.items(),
)
def test_odd_tables(name, make, command, folder):
    rows = [row for row in map(make, range(40)) if row is not None]
    (folder / "odd.csv").write_text("a,y\n" + "".join(f"{a},{y}\n" for a, y in rows))
    code, _, err = command("fit", "odd.csv", "-t", "y", *QUICK)
    assert (code, err) == (0, "")
    code, out, _ = command("predict", "odd.mercer", "odd.csv", "-q")
    assert code == 0 and len(out.splitlines()) == len(rows) + 1 and "nan" not in out.lower()


def test_the_name_in_files():
    from mercer.tabular.table_model import TableModel

    assert registry.class_name(TableModel) == "mercer.tabular.TableModel"
