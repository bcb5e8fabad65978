"""What the command prints: lines, tables of scores and of relevance, and a bar while it works."""

import contextlib
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich.box
import rich.progress
import rich.table
from rich.console import Console

if TYPE_CHECKING:  # the help of the command does not wait for them
    from mercer.tabular.evaluation import Evaluation
    from mercer.tabular.table_model import TableModel

OUT = Console(highlight=False, markup=False, emoji=False)
ERR = Console(highlight=False, markup=False, emoji=False, stderr=True)
_MAX_SHOWN = 25  # columns in the table of relevance


class Printer:
    """Prints lines and tables, or nothing."""

    def __init__(self, quiet: bool, console: Console = OUT):
        self.quiet, self.console = quiet, console

    def __call__(self, said: str) -> None:
        self._print(visible(said), soft_wrap=True)

    def _print(self, said: Any, **options: Any) -> None:
        if not self.quiet:
            self.console.print(said, **options)

    def notes(self, notes: Sequence[str], most: int = 12) -> None:
        """Notes, one in a line, of which there may be many."""
        for note in notes[:most]:
            self(f"  note: {note}")
        if len(notes) > most:
            self(f"  and {len(notes) - most} more notes, which `mercer show` lists")

    def scores(self, evaluation: "Evaluation", title: str) -> None:
        """A table of scores, with a column for each method."""
        self(title)
        table = _table("", *map(visible, evaluation.methods))
        for score, values in zip(evaluation.scores, evaluation.values.T.tolist(), strict=True):
            table.add_row(visible(score), *(_number(score, value) for value in values))
        self._print(table)

    def relevance(self, model: "TableModel") -> None:
        """A table of columns, the most relevant first, with the shortest lengthscale of its features in each part."""
        from mercer.tabular import describe

        relevances, scales = describe.relevances(model), describe.shortest_lengthscales(model)
        self(
            "\nrelevance: a column's share of how much the function changes over a standard deviation; and lengthscales"
            + " (of a place as angles at the equator, to the east / to the north)" * bool(model.columns.places)
        )
        table = _table("column", "relevance", "", *scales)
        table.columns[2].justify, table.columns[2].no_wrap = "left", True
        most = max(relevances.values()) or 1.0
        for name, share in list(relevances.items())[:_MAX_SHOWN]:
            bar = "━" * round(12 * share / most)
            table.add_row(visible(name), f"{100.0 * share:.0f} %", bar, *(values[name] for values in scales.values()))
        self._print(table)
        if len(relevances) > _MAX_SHOWN:
            self(f"  and {len(relevances) - _MAX_SHOWN} columns of less relevance")


def _table(first: str, *others: str) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", overflow="fold")
    return table


def visible(text: str) -> str:
    """A text without what a terminal would obey."""
    return "".join(character if character.isprintable() or character == "\n" else "?" for character in text)


def counted(things: Sized, name: str) -> str:
    """How many there are, with their name."""
    return f"{len(things)} {name}" + "s" * (len(things) != 1)


def _number(score: str, value: float) -> str:
    if value != value:
        return "-"
    return f"{100.0 * value:.1f} %" if score.startswith("in the") or score == "accuracy" else f"{value:.4g}"


class Progress(contextlib.AbstractContextManager):
    """A bar on standard error with the step and the objective, and a line when training goes on from a checkpoint."""

    def __init__(self, checkpoint: Path, quiet: bool):
        self.quiet, self.checkpoint = quiet, checkpoint
        self.found = {file.name: self._mark(file) for file in leftovers(checkpoint)}
        self.bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TextColumn("{task.fields[objective]}"),
            rich.progress.TimeElapsedColumn(),
            console=ERR,
            transient=True,
            disable=quiet or not ERR.is_terminal,
        )
        self.job = self.bar.add_task("reading", total=None, objective="")

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.bar.stop()

    def announce(self, said: str) -> None:
        """Says what is being done; what goes on from an earlier run, in a line that stays."""
        if said.startswith("going on"):
            self._keep(said)
        self.bar.update(self.job, description=said, total=None, objective="")

    def watch(self, stage: str, done: int, total: int, objective: float) -> None:
        """The bar of a stage of training."""
        file = self.checkpoint.with_name(f"{self.checkpoint.name}.{stage}")
        # A run that goes on is asked once before its first step, when the file is still the one that was found.
        found = self.found.pop(file.name, None)
        if found is not None and found == self._mark(file):
            self._keep(f"going on from step {done} of {total} ({stage})")
        said = f"step {done} of {total}, objective {objective:.4g}"
        self.bar.update(self.job, description=f"learning ({stage})", total=total, completed=done, objective=said)

    def _keep(self, said: str) -> None:
        if not self.quiet:
            self.bar.console.print(said, soft_wrap=True)

    @staticmethod
    def _mark(file: Path) -> tuple[int, int] | None:
        """What changes when a file is written again."""
        try:
            found = file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


def leftovers(checkpoint: Path) -> list[Path]:
    """The files that training has left at a checkpoint, in order."""
    begins = (f"{checkpoint.name}.", f".{checkpoint.name}.")  # the second: one that was being written
    return sorted(file for file in checkpoint.parent.iterdir() if file.name.startswith(begins))
