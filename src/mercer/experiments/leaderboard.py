"""The best settings of a sweep: scores averaged over repeats, with their spread, and the best of each of some choices."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mercer.experiments.cells import Store
from mercer.experiments.messages import nearest
from mercer.experiments.pictures import draw_panels
from mercer.experiments.results import Plan, flat_scores, picture, read_plan
from mercer.experiments.scores import distance
from mercer.experiments.text import ConfigurationError

_REPEATS = ("seed", "split", "fold")  # settings that are repeats of the same thing, where one of these is in the name


def leaderboard(
    folder: str | Path,
    sweep: str | None = None,
    *,
    by: str | None = None,
    over: Sequence[str] | None = None,
    each: Sequence[str] = (),
) -> Any:
    """A data frame (polars) with a row for each setting that has finished cells, the best by a score first.

    Scores are means over the settings in `over` (by default those with seed, split or fold in their names), with a standard
    error where there are several cells, of which `cell` is the best. With `each`, only the best row for each of the values of
    these settings.
    """
    import polars

    plan, store = read_plan(folder, sweep), Store(Path(folder))
    over = averaged(plan, over, each)
    kept = [*each, *(setting.path for setting in plan.settings if setting.path not in (*over, *each))]
    found: dict[tuple[str | None, ...], dict[str, dict[str, float]]] = {}
    for cell in plan.cells:
        if cell.state == "finished":
            cells = found.setdefault(tuple(cell.labels.get(path) for path in kept), {})
            cells[cell.identity] = flat_scores(store, cell)
    names = list(dict.fromkeys(name for cells in found.values() for scores in cells.values() for name in scores))
    by = score_to_sort_by(by, names)
    short, rows = dict(zip(kept, short_names(kept), strict=True)), []
    for labels, cells in found.items():
        row: dict[str, Any] = {short[path]: label for path, label in zip(kept, labels, strict=True)}
        row["cells"] = len(cells)
        for name in names:
            values = np.array([scores.get(name, np.nan) for scores in cells.values()])
            error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
            row |= {name: float(np.mean(values)), f"{name} ±": float(error)}
        row["cell"] = min(cells, key=lambda cell: _distance(by, cells[cell]))
        rows.append(row)
    rows.sort(key=lambda row: _distance(by, row))
    if each:
        best: dict[tuple[str, ...], dict[str, Any]] = {}
        for row in rows:
            best.setdefault(tuple(row[short[path]] for path in each), row)
        order = [next(setting.labels for setting in plan.settings if setting.path == path) for path in each]
        rows = [
            best[key]
            for key in sorted(best, key=lambda key: [labels.index(x) for labels, x in zip(order, key, strict=True)])
        ]
    frame = polars.DataFrame(rows, infer_schema_length=None)
    return frame.drop([name for name in frame.columns if name.endswith(" ±") and frame[name].is_nan().all()])


def draw_best(folder: str | Path, table: Any, path: str | Path, *, num_names: int | None = None) -> None:
    """Writes a PNG file with a picture for each row of a leaderboard, under its settings, or the first few of them."""
    if len(table) == 0:
        raise ConfigurationError("there is nothing to draw: no cell is finished")
    store, names = Store(Path(folder)), table.columns[: num_names or table.columns.index("cells")]
    panels = []
    for row in table.iter_rows(named=True):
        title = ", ".join(f"{name} {row[name]}" for name in names)
        panels.append((textwrap.fill(title, 40), *picture(store.folder(row["cell"]))))
    draw_panels(panels, path)


def _distance(by: str | None, scores: dict[str, Any]) -> float:
    """How far a score is from what it should be."""
    return 0.0 if by is None else distance(by.split()[-1], scores.get(by, np.nan))


def averaged(plan: Plan, over: Sequence[str] | None, each: Sequence[str]) -> list[str]:
    """The settings to average over: as asked, or those that are repeats."""
    paths = [setting.path for setting in plan.settings]
    for asked in (*(over or ()), *each):
        if asked not in paths:
            raise ConfigurationError(f"{plan.name} has no setting {asked}{nearest(asked, paths)}")
    if over is None:
        return [path for path in paths if any(word in path.lower() for word in _REPEATS) and path not in each]
    return list(over)


def score_to_sort_by(by: str | None, names: Sequence[str]) -> str | None:
    """The score to sort by: as asked, or the first on the validation data, on the test data, on any."""
    if by is not None and by not in names:
        raise ConfigurationError(f"no cell has a score {by!r}{nearest(by, names)}")
    parts = ("validation", "test", "")
    return by or next((name for part in parts for name in names if name.startswith(part)), None)


def short_names(paths: Sequence[str]) -> list[str]:
    """The end of each path that tells it from the others, and is more than a letter or two."""

    def end(path: str, num: int) -> str:
        return ".".join(path.split(".")[-num:])

    def short(path: str) -> str:
        num = 1 if len(end(path, 1)) > 2 else 2
        while num < path.count(".") + 1 and sum(end(other, num) == end(path, num) for other in paths) > 1:
            num += 1
        return end(path, num)

    return [short(path) for path in paths]
