"""The commands `mercer fit`, `mercer predict` and `mercer show`: results go to standard output, all else to standard error.

What a command needs is imported when it runs, so that help and mistakes in its arguments do not wait for it.
"""

import enum
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

import mercer
from mercer.cli.console import ERR, OUT, Printer, Progress, counted, leftovers
from mercer.io import FormatError
from mercer.io.atomic import replacing
from mercer.io.tables import TableError, read_table

if TYPE_CHECKING:
    from mercer.tabular.places import Places
    from mercer.tabular.table_model import TableModel

app = typer.Typer(
    help="Gaussian processes for tables: fit a model to a csv or parquet file, predict with it, look into it. And experiments "
    "with any model, from YAML.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Try:\n\nmercer fit houses.csv --target price\n\nmercer predict houses.mercer new.csv --out prices.csv\n\n"
    "mercer show houses.mercer --plot houses.png",
)


class _Task(enum.StrEnum):
    regression = "regression"
    binary = "binary"
    multiclass = "multiclass"
    counts = "counts"


class _Method(enum.StrEnum):
    auto = "auto"
    exact = "exact"
    sparse = "sparse"


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
_File = Annotated[Path, typer.Argument(metavar="FILE", help="A model that `mercer fit` has saved.")]


def _version(asked: bool) -> None:
    if asked:
        OUT.print(f"mercer {mercer.__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog="Examples:\n\nmercer fit houses.csv --target price\n\n"
    "mercer fit visits.parquet --target count --task counts --exclude id --model visits.mercer\n\n"
    "A run that was cut off goes on where it was when the same command is given again."
)
def fit(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A csv or parquet file.")],
    target: Annotated[str, typer.Option("--target", "-t", metavar="COLUMN", help="The column to predict.")],
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", metavar="FILE", help="Where to save; by default, DATA's name with .mercer."),
    ] = None,
    task: Annotated[_Task | None, typer.Option(help="What the target is; by default, what it looks like.")] = None,
    holdout: Annotated[float, typer.Option(min=0.0, max=0.5, help="The share of rows held out for the scores.")] = 0.1,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A column not to predict from; may be repeated.")
    ] = None,
    globe: Annotated[
        bool,
        typer.Option(
            "--globe",
            help="Take latitude and longitude as a place on the globe; by default, where longitudes span more than 180"
            " degrees, or a latitude is beyond 75.",
        ),
    ] = False,
    flat: Annotated[
        bool, typer.Option("--flat", help="Take latitude and longitude as two numbers, never as a place.")
    ] = False,
    method: Annotated[_Method, typer.Option(help="auto: exact up to 2000 rows, sparse beyond.")] = _Method.auto,
    inducing: Annotated[int | None, typer.Option(min=1, help="Inducing points of a sparse model, at most.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the optimiser, at most.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="What all random choices follow from.")] = 0,
    quiet: Quiet = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not go on with a run that was cut off.")] = False,
) -> None:
    """Fit a model to a table, score it on rows held out, and save it."""
    if globe and flat:
        raise typer.BadParameter("they contradict each other; leave out one of the two", param_hint="--globe, --flat")
    places: Places = "globe" if globe else "flat" if flat else "auto"

    from mercer.tabular.table_model import Problem
    from mercer.tabular.training import Settings

    table = read_table(data)
    file = Path(data.name.removesuffix(".gz")).with_suffix(".mercer") if model is None else model
    _check_output(file, data)
    checkpoint = file.with_name(f".{file.name}.training")
    if fresh:
        _remove(checkpoint)
    max_exact = {"auto": Settings.max_exact, "exact": sys.maxsize, "sparse": 0}[method]
    progress = Progress(checkpoint, quiet)
    given = {"num_inducing": inducing, "steps": steps}
    settings = Settings(
        max_exact=max_exact,
        seed=seed,
        checkpoint=checkpoint,
        watch=progress.watch,
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )
    problem = Problem.of(
        table,
        target,
        task=None if task is None else task.value,
        exclude=exclude or (),
        places=places,
        holdout=holdout,
        settings=settings,
    )
    if method is _Method.exact and problem.target.task != "regression":
        raise TableError(f"{problem.target.reason}; only regression can be exact, so leave out --method exact")
    say = Printer(quiet)
    say(f"{data}: {counted(table, 'row')}, {counted(table.names, 'column')}")
    say.notes(problem.notes)
    say(problem.target.reason + (" (--task changes this)" if task is None else ""))
    for latitude, longitude in problem.columns.pairs:
        say(f"{latitude!r} and {longitude!r}: a place on the globe, by their names and values (--flat changes this)")
    for latitude, longitude in problem.flat_pairs:
        why = "as they lie on one half of the globe and not near a pole"
        say(f"{latitude!r} and {longitude!r}: two numbers, {why} (--globe changes this)")
    if globe and not problem.columns.pairs:
        say("--globe changes nothing, as no two columns are a latitude and a longitude by their names and values")
    say(f"{counted(problem.columns.used, 'column')} to predict from, as {counted(problem.columns.features, 'feature')}")
    say(f"{problem.method}; {problem.held_out}")
    try:
        with progress:
            made = problem.solve(progress.announce)
            progress.announce("saving")
            mercer.save(file, made)
    except KeyboardInterrupt:
        Printer(quiet, ERR)("interrupted: the same command will go on from here")
        raise
    _remove(checkpoint)
    if made.report.held_out is not None:
        say.scores(made.report.held_out, f"scores on {made.report.held_out.num_rows} rows held out")
    say(f"saved as {file} ({os.path.getsize(file) / 1e6:.2g} MB) after {made.report.seconds:.0f} s")
    name, picture = shlex.quote(str(file)), shlex.quote(f"{file.stem}.png")
    say(f"next: mercer predict {name} NEW.csv --out predictions.csv, or mercer show {name} --plot {picture}")


@app.command(
    epilog="Examples:\n\nmercer predict houses.mercer new.csv\n\n"
    "mercer predict houses.mercer new.parquet --level 0.5 --out prices.parquet"
)
def predict(
    file: _File,
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="A csv or parquet file with the columns of the training data.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="A .csv or .parquet file; by default, csv is printed."),
    ] = None,
    level: Annotated[float, typer.Option(help="The share of values that intervals should hold.")] = 0.9,
    quiet: Quiet = False,
) -> None:
    """Predict the rows of a table: mean, standard deviation and interval; or the probability of each class."""
    if not 0.0 < level < 1.0:
        raise typer.BadParameter(f"it is between 0 and 1, got {level:g}", param_hint="'--level'")
    if out is not None:
        if out.suffix.lower() not in (".csv", ".parquet", ".pq"):
            raise TableError(f"{out} should end in .csv or .parquet; change --out")
        _check_output(out, file, new)
    model, table, notes = _load(file).cached(), read_table(new), list[str]()
    _write(model.predict_slices(table, level, notes), out)
    say = Printer(quiet, ERR)
    say.notes(notes, len(notes))
    if model.target.column in table.names:
        try:
            evaluation = model.evaluate(table)
            say.scores(evaluation, f"scores on {evaluation.num_rows} rows of {new}")
        except TableError as error:
            say(f"no scores: {error}")
    if out is not None:
        say(f"{len(table)} rows of predictions are in {out}")


@app.command(
    epilog="Examples:\n\nmercer show houses.mercer\n\nmercer show houses.mercer --plot houses.png --data new.csv"
)
def show(
    file: _File,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a picture: .png, .pdf, .svg, ...")] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DATA", help="A table with the target, to score instead of the rows held out."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Show what is in a model: the kernel in words, the relevance of columns, noise, scores; and a picture."""
    from mercer.tabular import describe, plots

    if plot is not None:
        plots.check_suffix(plot)
        _check_output(plot, file)
    model, say = _load(file), Printer(quiet)
    evaluation = model.report.held_out if data is None else model.evaluate(read_table(data))
    report, history = model.report, np.asarray(model.predictor.history)
    say(f"{file}: {model.target.reason}")
    say(f"fitted by mercer {report.version} to {report.num_rows} rows of {report.source} in {report.seconds:.0f} s")
    say(report.method)
    say.notes(report.notes, len(report.notes))
    say("\nkernel, of inputs that are standardised:")
    for line in describe.in_words(describe.kernel_of(model), len(model.columns.features), describe.labels(model)):
        say(f"  {line}")
    say.relevance(model)
    say(f"\nnoise: {describe.noise(model)}")
    say(f"posterior: {describe.posterior(model)}")
    if len(history):
        course = f"from {history[0]:.4g} to {history[-1]:.4g} in {len(history)} steps"
        say(f"objective: {describe.sparkline(history)} {course}")
    if evaluation is not None:
        where = "rows held out" if data is None else f"rows of {data}"
        say.scores(evaluation, f"\nscores on {evaluation.num_rows} {where}")
    if plot is not None:
        plots.draw(model, plot, evaluation)
        say(f"the picture is in {plot}")


# --- files -------------------------------------------------------------------------------------------------------------


def _load(file: Path) -> "TableModel":
    from mercer.tabular.table_model import TableModel

    model = mercer.load(file)
    if not isinstance(model, TableModel):
        kind = f"{type(model).__module__}.{type(model).__qualname__}".removeprefix("builtins.")
        said = f"holds a {kind}, not a model that `mercer fit` has saved; use mercer.load in Python"
        raise FormatError(f"{str(file)!r} {said}")
    return model


def _check_output(path: Path, *inputs: Path) -> None:
    """Refuses a file that could not be written, before any work is done for it."""
    folder = path.parent
    if path.is_dir():
        raise TableError(f"{path} is a folder; name a file in it")
    if not folder.is_dir():
        raise TableError(f"there is no folder {folder} for {path.name}; make it, or name another one")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise TableError(f"{path} cannot be written; check the permissions, or name another file")
    if any(path.exists() and given.exists() and path.samefile(given) for given in inputs):
        raise TableError(f"{path} would be overwritten; name another file for the result")


def _remove(checkpoint: Path) -> None:
    for file in leftovers(checkpoint):
        file.unlink(missing_ok=True)


def _write(slices: Iterator[dict[str, Any]], out: Path | None) -> None:
    """Predictions to a file that appears when it is complete, or as csv to standard output."""
    import polars

    frames = (polars.DataFrame({name: values.tolist() for name, values in part.items()}) for part in slices)
    if out is None:
        for i, frame in enumerate(frames):
            sys.stdout.write(frame.write_csv(include_header=i == 0))
        sys.stdout.flush()
        return
    with replacing(out) as file:
        if out.suffix.lower() == ".csv":
            for i, frame in enumerate(frames):
                frame.write_csv(file, include_header=i == 0)
        else:
            polars.concat(frames).write_parquet(file)
