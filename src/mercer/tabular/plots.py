"""Pictures of a model: the fit itself where there is one input; otherwise calibration, predictions and relevance."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from mercer.io.atomic import replacing
from mercer.tabular import describe
from mercer.tabular.evaluation import Evaluation
from mercer.tabular.scores import reliability
from mercer.tabular.table_model import TableModel

_BLUE, _GREY = "#1f77b4", "#777777"
_MAX_BARS = 15


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Refuses a name whose suffix is not that of a picture."""
    formats = sorted(_figure(1).canvas.get_supported_filetypes().keys() - {"pgf"})  # a text for LaTeX
    if _suffix(path) not in formats:
        raise ValueError(
            f"{path} does not end like a picture; choose one of {', '.join('.' + name for name in formats)}"
        )


def _suffix(path: str | os.PathLike[str]) -> str:
    return Path(path).suffix.lower().removeprefix(".")


def draw(model: TableModel, path: str | os.PathLike[str], evaluation: Evaluation | None) -> None:
    """Writes the picture that suits a model; `evaluation` is of the rows that it shows."""
    check_suffix(path)
    panels = _panels(model, evaluation)
    figure = _figure(len(panels))
    for axes, (panel, *arguments) in zip(figure.axes, panels, strict=True):
        panel(axes, *arguments)
    with replacing(path) as file:
        figure.savefig(file, format=_suffix(path), dpi=150)


def _panels(model: TableModel, evaluation: Evaluation | None) -> list[tuple]:
    """What to draw: functions, each with its arguments after the axes."""
    classes = model.target.classes
    if not classes and len(model.columns.features) == 1 and len(model.report.points):
        return [(_fit, model)]
    if evaluation is None:
        return [(_relevance, model)]
    if classes:
        return [(_reliability, evaluation), (_confusion, evaluation, classes), (_relevance, model)]
    return [(_calibration, evaluation), (_predicted, evaluation), (_residuals, evaluation), (_relevance, model)]


def _figure(num_panels: int) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'mercer[plot]'") from error
    rows = 1 if num_panels < 4 else 2
    columns = -(-num_panels // rows)
    figure = Figure(figsize=(8.0, 4.5) if num_panels == 1 else (4.5 * columns, 4.0 * rows), layout="constrained")
    for position in range(num_panels):
        figure.add_subplot(rows, columns, position + 1)
    return figure


def _fit(axes: Any, model: TableModel) -> None:
    """Data, mean, and the intervals of 50 and of 90 %, over the one input."""
    x, y = np.asarray(model.report.points).T
    margin = 0.05 * (x.max() - x.min())
    grid = np.linspace(x.min() - margin, x.max() + margin, 400)[:, None]
    predicted: Any = model.predictor.cached().predictive(grid)
    for level, opacity in ((0.9, 0.2), (0.5, 0.35)):
        lower, upper = predicted.interval(level)
        label = f"{100 * level:g} % interval"
        axes.fill_between(grid[:, 0], lower[:, 0], upper[:, 0], color=_BLUE, alpha=opacity, linewidth=0, label=label)
    axes.plot(grid[:, 0], predicted.mean[:, 0], color=_BLUE, label="mean")
    axes.plot(x, y, ".", color="black", markersize=3, alpha=0.5, label="data")
    _name(axes, "", _plain(model.columns.features[0]), _plain(model.target.column))
    axes.legend(loc="best", frameon=False)


def _calibration(axes: Any, evaluation: Evaluation) -> None:
    said, seen = np.asarray(evaluation.calibration)
    _diagonal(axes, 0.0, 1.0)
    axes.plot(said, seen, "o-", color=_BLUE)
    _name(axes, "Calibration", "share that intervals should hold", "share that they hold")


def _predicted(axes: Any, evaluation: Evaluation) -> None:
    truth, (mean, deviation) = np.asarray(evaluation.truth), np.asarray(evaluation.predicted).T
    _diagonal(axes, min(truth.min(), mean.min()), max(truth.max(), mean.max()))
    axes.errorbar(mean, truth, xerr=deviation, fmt=".", color=_BLUE, alpha=0.5, elinewidth=0.5)
    _name(axes, "Predictions, with one standard deviation", "predicted", "true")


def _residuals(axes: Any, evaluation: Evaluation) -> None:
    truth, (mean, deviation) = np.asarray(evaluation.truth), np.asarray(evaluation.predicted).T
    axes.axhline(0.0, color=_GREY, linewidth=1)
    for end in (-1.645, 1.645):
        axes.axhline(end, color=_GREY, linewidth=1, linestyle="--")
    axes.plot(mean, (truth - mean) / deviation, ".", color=_BLUE, alpha=0.5)
    _name(axes, "Residuals (dashed: 90 % of a normal)", "predicted", "residual in standard deviations")


def _reliability(axes: Any, evaluation: Evaluation) -> None:
    said, seen, share = reliability(np.asarray(evaluation.truth), np.asarray(evaluation.predicted))
    _diagonal(axes, 0.0, 1.0)
    axes.plot(said, seen, "-", color=_BLUE, linewidth=1)
    axes.scatter(said, seen, s=20.0 + 400.0 * share, color=_BLUE, alpha=0.7)
    _name(axes, "Reliability (size: share of rows)", "probability of the most probable class", "how often it is true")


def _confusion(axes: Any, evaluation: Evaluation, classes: tuple[str, ...]) -> None:
    num, truth = len(classes), np.asarray(evaluation.truth).astype(int)
    counts = np.zeros((num, num), int)
    np.add.at(counts, (truth, np.asarray(evaluation.predicted).argmax(axis=1)), 1)
    axes.imshow(counts, cmap="Blues")
    for (i, j), count in np.ndenumerate(counts) if num <= 12 else ():
        axes.text(j, i, str(count), ha="center", va="center", color="white" if count > 0.5 * counts.max() else "black")
    if num <= 20:
        labels = [_plain(label) for label in classes]
        axes.set_xticks(range(num), labels, rotation=45, ha="right")
        axes.set_yticks(range(num), labels)
    _name(axes, "Confusion", "predicted", "true")


def _relevance(axes: Any, model: TableModel) -> None:
    bars = dict(list(describe.relevances(model).items())[:_MAX_BARS])
    axes.barh(range(len(bars)), list(bars.values()), color=_BLUE)
    axes.set_yticks(range(len(bars)), [_plain(name) for name in bars])
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    _name(axes, "Relevance of columns", "share of the change of the function", "")


def _diagonal(axes: Any, low: float, high: float) -> None:
    axes.plot([low, high], [low, high], color=_GREY, linewidth=1)


def _name(axes: Any, title: str, x: str, y: str) -> None:
    axes.set(title=title, xlabel=x, ylabel=y)


def _plain(text: str) -> str:
    """A text of the user's, short, and without what matplotlib takes for mathematics."""
    text = text if len(text) <= 30 else f"{text[:29]}…"
    return text.replace("$", r"\$")
