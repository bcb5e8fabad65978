"""The commands `mercer sweep run`, `status`, `resume`, `retry`: many settings of one experiment."""

import collections
import dataclasses
import functools
from pathlib import Path
from typing import Annotated, Any

import jax
import rich.progress
import typer

from mercer.cli.commands import Quiet
from mercer.cli.console import ERR, OUT, counted, visible
from mercer.cli.experiments import Imports, app, experiments

sweeps = typer.Typer(no_args_is_help=True)
app.add_typer(sweeps, name="sweep")

_File = Annotated[Path, typer.Argument(metavar="SWEEP", help="A YAML file.")]
_Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where cells and stages lie.")]
_Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes of this machine; by default, one for each GPU or core.")
]
_Memory = Annotated[str | None, typer.Option(metavar="SIZE", help="The memory of each worker, such as 4GiB.")]
_Seconds = Annotated[float | None, typer.Option(min=0.0, metavar="SECONDS", help="The time limit of a cell.")]
_Scheduler = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Of a Dask cluster that runs already.")]
_FailFast = Annotated[bool, typer.Option("--fail-fast", help="End at the first cell that fails.")]
_RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Run cells that failed again.")]
_Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Of a sweep, where there are several.")]
_By = Annotated[
    str | None, typer.Option(metavar="SCORE", help="To sort by; by default the first on the validation data.")
]
_Over = Annotated[
    list[str] | None, typer.Option(metavar="KEY.PATH", help="A setting to average over; may be repeated.")
]
_Each = Annotated[
    list[str] | None, typer.Option(metavar="KEY.PATH", help="The best for each of its values; may be repeated.")
]
_FAILED = 3  # the exit code where a cell failed


@sweeps.callback()
def _sweep() -> None:
    """Many settings of one experiment, on many workers."""
    # This process plans, waits and draws. JAX would take most of a GPU's memory for it, which the workers need.
    jax.config.update("jax_platforms", "cpu")


@sweeps.command(epilog="Try:\n\nmercer sweep run rates.yaml --dry-run\n\nmercer sweep run rates.yaml --seconds 600")
def run(
    sweep: _File,
    out: _Out = Path("runs"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the cells, and run none.")] = False,
    retry_failed: _RetryFailed = False,
    fail_fast: _FailFast = False,
    workers: _Workers = None,
    memory: _Memory = None,
    seconds: _Seconds = None,
    scheduler: _Scheduler = None,
    imports: Imports = None,
    quiet: Quiet = False,
) -> None:
    """Run the cells of a sweep that are not finished. The exit code is 3 where a cell failed."""
    packages = experiments(imports)
    asked = packages.Sweep.read(sweep)
    if dry_run:
        plan, _ = packages.planned(asked, out)
        _count(plan.cells, quiet)
        OUT.print(f"{counted(packages.planned_groups(asked.cells), 'program')} to compile", soft_wrap=True)
        return
    plan, stale = packages.planned(asked, out, write=True)
    if stale and not quiet:
        ERR.print(f"{counted(stale, 'cell')} of the last run of {asked.name} {'is' if len(stale) == 1 else 'are'} stale: not in "
                  "the sweep any more, and left where they are", soft_wrap=True)  # fmt: skip
    options = packages.Options(workers, memory, seconds, scheduler, fail_fast, tuple(imports or ()))
    with _Bar(plan.cells, retry_failed, quiet) as bar:
        states = packages.run_sweep(asked, out, options, retry_failed=retry_failed, watch=bar.over)
    _count([dataclasses.replace(cell, state=states.get(cell.identity, cell.state)) for cell in plan.cells], quiet)
    failed = [identity for identity, state in states.items() if state == "failed"]
    if failed:
        ERR.print(f"{counted(failed, 'cell')} failed; `mercer sweep status --failed` says why", soft_wrap=True)
        raise typer.Exit(_FAILED)


@functools.wraps(run)
def _retry(**options: Any) -> None:
    run(**options | {"retry_failed": True})


sweeps.command("resume", help="Go on with a sweep: `run`, by another name.")(run)
sweeps.command("retry", help="Go on with a sweep, and run the cells that failed again.")(_retry)


@sweeps.command()
def script(sweep: _File) -> None:
    """Print what is handed to the queue for each worker, by the block `cluster` of a sweep."""
    cluster = experiments().Sweep.read(sweep).blocks.cluster
    if cluster is None:
        raise experiments().ConfigurationError(
            f"{sweep} has no block cluster: its workers are processes of this machine"
        )
    print(cluster.script())


@sweeps.command()
def status(
    name: _Name = None,
    out: _Out = Path("runs"),
    failed: Annotated[bool, typer.Option("--failed", help="Say why cells failed.")] = False,
) -> None:
    """Say how many cells are finished, failed, running and missing."""
    packages = experiments()
    cells = packages.read_plan(out, name).cells
    _count(cells, False)
    for cell in cells if failed else ():
        if cell.state == "failed":
            said = packages.Store(out).failure(cell.identity)
            OUT.print(
                visible(f"\n{cell.identity} {_labels(cell)}\n{said['time']} {said['reason']}\n{said['traceback']}"),
                soft_wrap=True,
            )


@sweeps.command()
def table(
    name: _Name = None,
    out: _Out = Path("runs"),
) -> None:
    """Print the scores of all cells as csv."""
    print(experiments().results(out, name).write_csv(), end="")


@sweeps.command(epilog="Try:\n\nmercer sweep best\n\nmercer sweep best --by 'test rmse' --over seed --each data.number")
def best(
    name: _Name = None,
    out: _Out = Path("runs"),
    by: _By = None,
    over: _Over = None,
    each: _Each = None,
    num: Annotated[int, typer.Option(min=1, help="How many rows.")] = 20,
    plot: Annotated[Path | None, typer.Option(metavar="PNG", help="A picture of each row, into a file.")] = None,
    imports: Imports = None,
) -> None:
    """Print the best settings of a sweep as csv, with means and standard errors over repeats."""
    packages = experiments(imports)
    found = packages.leaderboard(out, name, by=by, over=over, each=each or ()).head(num)
    print(found.write_csv(), end="")
    if plot is not None:
        packages.draw_best(out, found, plot, num_names=len(each or ()))


@sweeps.command(
    epilog="Try:\n\nmercer sweep report\n\nmercer sweep report --by 'test rmse' --over seed --each data.number"
)
def report(
    name: _Name = None,
    out: _Out = Path("runs"),
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="HTML", help="What to write; by default in the folder.")
    ] = None,
    by: _By = None,
    over: _Over = None,
    each: _Each = None,
    details: Annotated[int, typer.Option(min=0, help="How many of the best have a learning curve and a picture.")] = 20,
    imports: Imports = None,
    quiet: Quiet = False,
) -> None:
    """Write one HTML file with all that a sweep gave, which opens without a network."""
    found = experiments(imports).report(out, name, file, by=by, over=over, each=each or (), details=details)
    if not quiet:
        OUT.print(visible(str(found)), soft_wrap=True)


@sweeps.command()
def mlflow(
    name: _Name = None,
    out: _Out = Path("runs"),
    uri: Annotated[
        str | None, typer.Option(metavar="URI", help="Of the tracking server; by default MLFLOW_TRACKING_URI.")
    ] = None,
) -> None:
    """Log the cells of a sweep to MLflow, each once."""
    OUT.print(f"{counted(experiments().log_to_mlflow(out, name, uri=uri), 'cell')} logged", soft_wrap=True)


def _labels(cell: Any) -> str:
    return ", ".join(f"{name}={label}" for name, label in cell.labels.items())


def _count(cells: Any, quiet: bool) -> None:
    found = collections.Counter(cell.state for cell in cells)
    if not quiet:
        said = ", ".join(
            f"{found[state]} {state}" for state in ("finished", "failed", "running", "missing") if found[state]
        )
        OUT.print(f"{counted(cells, 'cell')}: {said}", soft_wrap=True)


class _Bar:
    """A bar on standard error with the cells that are over, and the time left; lines where it is no terminal."""

    def __init__(self, cells: Any, again: bool, quiet: bool) -> None:
        over = ("finished",) if again else ("finished", "failed")
        self.quiet, self.total = quiet, len(cells)
        self.done = sum(cell.state in over for cell in cells)
        self.labels = {cell.identity: _labels(cell) for cell in cells}
        self.bar = rich.progress.Progress(
            rich.progress.TextColumn("cells"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TextColumn("left"),
            rich.progress.TimeRemainingColumn(),
            console=ERR,
            transient=True,
            disable=quiet or not ERR.is_terminal,
        )
        self.job = self.bar.add_task("cells", total=self.total, completed=self.done)

    def __enter__(self) -> "_Bar":
        self.bar.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.bar.stop()

    def over(self, identity: str, state: str) -> None:
        """A cell is over."""
        self.done += 1
        self.bar.update(self.job, completed=self.done)
        if not self.quiet and (state == "failed" or not ERR.is_terminal):
            self.bar.console.print(
                visible(f"{self.done} of {self.total}: {self.labels[identity]} {state}"), soft_wrap=True
            )
