"""The picture of a run: the fit where there is one input, calibration elsewhere."""

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from mercer.io.atomic import replacing
from mercer.model import Model

if TYPE_CHECKING:
    from mercer.experiments.experiment import Problem

_COLOURS = {"train": "tab:blue", "validation": "tab:green", "test": "tab:orange"}


def draw(model: Model, problem: "Problem", path: str | os.PathLike[str]) -> None:
    """Writes a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    one_curve = problem.data.X.shape[1] == 1 and problem.data.Y.shape[1] == 1 and not model.likelihood.discrete
    (_fit if one_curve else _calibration)(axes, model, problem)
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=110)


def _fit(axes: Any, model: Model, problem: "Problem") -> None:
    """Mean and two standard deviations of an observation, with the data of the three parts, in their own units."""
    standard, original = problem.data.X[:, 0], problem.original.X[:, 0]
    order = np.argsort(standard)
    grid, shown = (
        np.interp(np.linspace(0, len(order) - 1, 400), np.arange(len(order)), x[order]) for x in (standard, original)
    )
    said = model.predict(grid[:, None].astype(problem.data.X.dtype))
    mean, sd = (np.asarray(part)[:, 0] * problem.scale[0] for part in (said.mean, np.sqrt(said.variance)))
    mean = mean + problem.centre[0]
    axes.fill_between(shown, mean - 2.0 * sd, mean + 2.0 * sd, color="0.85", label="two standard deviations")
    axes.plot(shown, mean, color="black", lw=1.2)
    for part, colour in _COLOURS.items():
        X, Y = problem.original.part(part)
        axes.plot(X[:, 0], Y[:, 0], ".", ms=3, color=colour, label=part)
    axes.legend(frameon=False, fontsize=8)
    axes.set(xlabel="x", ylabel="y")


def _calibration(axes: Any, model: Model, problem: "Problem") -> None:
    """For intervals of each level, the share of test data (or of others, where there are none) that they hold."""
    from scipy.stats import norm

    part = next(name for name in ("test", "validation", "train") if len(problem.data.part(name)[0]))
    X, Y = problem.data.part(part)
    said = model.predict(X)
    levels = np.linspace(0.02, 0.98, 49)
    off = np.abs(Y - np.asarray(said.mean)) / np.sqrt(np.maximum(np.asarray(said.variance), 1e-30))
    held = [np.mean(off <= norm.ppf(0.5 + 0.5 * level)) for level in levels]
    axes.plot([0, 1], [0, 1], color="0.7", lw=1)
    axes.plot(levels, held, color="tab:blue")
    axes.set(xlabel="level of the interval", ylabel=f"share of {part} data in it", xlim=(0, 1), ylim=(0, 1))
