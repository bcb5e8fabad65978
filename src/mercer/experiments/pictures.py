"""The picture of a run: the fit where there is one input, calibration elsewhere. As numbers, and as a file."""

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.stats import norm

from mercer.experiments.scores import Scored
from mercer.io.atomic import replacing
from mercer.model import Model
from mercer.tabular.scores import reliability

if TYPE_CHECKING:
    from mercer.experiments.experiment import Problem

_COLOURS = {"train": "tab:blue", "validation": "tab:green", "test": "tab:orange"}


@dataclasses.dataclass(frozen=True)
class FitLine:
    """Mean and standard deviation of an observation along the one input, in the units of the data."""

    x: np.ndarray
    mean: np.ndarray
    sd: np.ndarray


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What is said and what is seen on a part of the data. Of intervals: their levels, and the share of observations in them. Of
    classes: the probabilities of those that are most likely, and how many of them are right.
    """

    part: str
    levels: np.ndarray
    held: np.ndarray
    of: Literal["intervals", "classes"] = "intervals"

    @property
    def axes(self) -> tuple[str, str]:
        """The names of both."""
        if self.of == "classes":
            return "probability of the class", f"share of right ones in {self.part} data"
        return "level of the interval", f"share of {self.part} data in it"


def fit_or_calibration(model: Model, problem: "Problem") -> FitLine | Calibration:
    """What there is to draw."""
    one_curve = problem.data.X.shape[1] == 1 and problem.data.Y.shape[1] == 1 and not model.likelihood.discrete
    return _fit(model, problem) if one_curve else _calibration(model, problem)


def _fit(model: Model, problem: "Problem") -> FitLine:
    standard, original = problem.data.X[:, 0], problem.original.X[:, 0]
    order = np.argsort(standard)
    grid, shown = (
        np.interp(np.linspace(0, len(order) - 1, 400), np.arange(len(order)), x[order]) for x in (standard, original)
    )
    said = model.predict(grid[:, None].astype(problem.data.X.dtype))
    mean, sd = (np.asarray(part)[:, 0] * problem.scale[0] for part in (said.mean, np.sqrt(said.variance)))
    return FitLine(shown, mean + problem.centre[0], sd)


def _calibration(model: Model, problem: "Problem") -> Calibration:
    """Of the test data, or of others where there are none."""
    part = next(name for name in ("test", "validation", "train") if len(problem.data.part(name)[0]))
    X, Y = problem.data.part(part)
    scored = Scored(model, X, Y, problem.scale)
    if scored.of_classes:
        said, right, _ = reliability(Y[:, 0], scored.probabilities)
        return Calibration(part, said, right, "classes")
    if not scored.of_numbers:  # classes beside other outputs
        return Calibration(part, np.zeros(0), np.zeros(0))
    mean, variance = scored.numbers
    levels = np.linspace(0.02, 0.98, 49)
    off = (np.abs(Y - mean) / np.sqrt(np.maximum(variance, 1e-30)))[scored.seen]
    return Calibration(part, levels, np.array([np.mean(off <= norm.ppf(0.5 + 0.5 * level)) for level in levels]))


def draw(model: Model, problem: "Problem", path: str | os.PathLike[str]) -> None:
    """Writes a PNG file with the picture of a model."""
    draw_panels([("", fit_or_calibration(model, problem), problem)], path)


def draw_panels(panels: Sequence[tuple[str, FitLine | Calibration, "Problem"]], path: str | os.PathLike[str]) -> None:
    """Writes a PNG file with some pictures, each with its title and the data that it is of."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(len(panels), 5)
    rows = -(-len(panels) // columns)
    size = (7.0, 4.0) if len(panels) == 1 else (3.2 * columns, 2.6 * rows)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    for i, (title, found, problem) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, i + 1)
        axes.set_title(title, fontsize=9)
        if isinstance(found, FitLine):
            _draw_fit(axes, found, problem)
        else:
            _draw_calibration(axes, found)
        if i == 0 and isinstance(found, FitLine):
            axes.legend(frameon=False, fontsize=8 if len(panels) == 1 else 6)
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=110)


def _draw_fit(axes: Any, line: FitLine, problem: "Problem") -> None:
    """With the data of the three parts."""
    low, high = line.mean - 2.0 * line.sd, line.mean + 2.0 * line.sd
    axes.fill_between(line.x, low, high, color="0.85", label="two standard deviations")
    axes.plot(line.x, line.mean, color="black", lw=1.2)
    for part, colour in _COLOURS.items():
        X, Y = problem.original.part(part)
        axes.plot(X[:, 0], Y[:, 0], ".", ms=3, color=colour, label=part)
    axes.set(xlabel="x", ylabel="y")


def _draw_calibration(axes: Any, found: Calibration) -> None:
    axes.plot([0, 1], [0, 1], color="0.7", lw=1)
    axes.plot(found.levels, found.held, color="tab:blue", marker="." if found.of == "classes" else None)
    x, y = found.axes
    axes.set(xlabel=x, ylabel=y, xlim=(0, 1), ylim=(0, 1))
