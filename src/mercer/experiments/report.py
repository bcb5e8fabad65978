"""The report of a sweep: one HTML file, which opens without a network.

What the sweep gave travels in the page as numbers; the page itself averages, filters, sorts and draws (`page/report.js`).
Learning curves and pictures are those of some cells: the best ones, and the best of each choice of each setting.
"""

import base64
import dataclasses
import gzip
import json
import math
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from mercer.experiments.cells import Store
from mercer.experiments.leaderboard import averaged, score_to_sort_by, short_names
from mercer.experiments.pictures import FitLine
from mercer.experiments.results import Plan, Planned, flat_scores, learning_curves, picture, read_plan
from mercer.experiments.running import PARTS, as_file_name
from mercer.experiments.scores import GOALS, distance
from mercer.experiments.text import written
from mercer.io.atomic import replacing

_NEEDED = "a report needs jinja2 and plotly: pip install 'mercer[report]'"


def report(
    folder: str | Path,
    sweep: str | None = None,
    path: str | Path | None = None,
    *,
    by: str | None = None,
    over: Sequence[str] | None = None,
    each: Sequence[str] = (),
    details: int = 20,
) -> Path:
    """Writes the report of a sweep that was run in a folder; where it lies.

    The leaderboard is sorted by a score (`by`, such as "validation nlpd"), averaged over some settings (`over`; by default those
    with seed, split or fold in their names), with the best for each value of others (`each`). All of it can be changed in the
    page. `details` is how many of the best cells have a learning curve and a picture, beside the best of each choice.
    """
    try:
        import jinja2
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError(_NEEDED) from error
    root = Path(folder)
    plan, store = read_plan(root, sweep), Store(root)
    scores = {cell.identity: flat_scores(store, cell) for cell in plan.cells if cell.state == "finished"}
    names = list(dict.fromkeys(name for found in scores.values() for name in found))
    by = score_to_sort_by(by, names)
    paths = [setting.path for setting in plan.settings]
    over = averaged(plan, over, each)
    content = {
        "name": plan.name,
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "experiment": as_texts(plan.experiment),
        "settings": [
            {"path": setting.path, "short": short, "labels": setting.labels, "values": as_texts(setting.values)}
            for setting, short in zip(plan.settings, short_names(paths), strict=True)
        ],
        "scores": names,
        "goals": {name: _goal(name) for name in names},
        "start": {"by": by, "over": list(over), "each": list(each)},
        "cells": [
            [
                cell.identity,
                list(cell.chosen),
                cell.state,
                [_short(scores.get(cell.identity, {}).get(n)) for n in names],
            ]
            for cell in plan.cells
        ],
        "failures": {cell.identity: store.failure(cell.identity) for cell in plan.cells if cell.state == "failed"},
        "commands": {"run": _command(plan), "resume": f"mercer sweep resume {shlex.quote(plan.file)}"},
        "versions": _versions(store, plan.cells),
        **_pictured(plan, store, _chosen(plan.cells, scores, by, details)),
    }
    page = resources.files("mercer.experiments") / "page"
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        (page / "report.html").read_text(encoding="utf-8")
    )
    packed = base64.b64encode(gzip.compress(json.dumps(content).encode(), mtime=0)).decode()
    found = template.render(
        name=plan.name,
        style=(page / "report.css").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
        script=(page / "report.js").read_text(encoding="utf-8"),
        data=packed,
    )
    path = root / f"{as_file_name(plan.name)}.html" if path is None else Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(found.encode())
    return path


def as_texts(value: Any) -> Any:
    """A configuration whose keys and single values are YAML, so that 1 and 1.0 stay what they are in a browser."""
    if isinstance(value, dict):
        return {as_texts(key): as_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_texts(item) for item in value]
    text = written([value]).strip()[1:-1]
    return json.dumps(value) if "\n" in text else text


def _goal(name: str) -> float | str:
    """As in `mercer.experiments.scores`, of a score with the name of a part before it."""
    goal = GOALS.get(name.split()[-1], -math.inf)
    return goal if math.isfinite(goal) else "larger" if goal > 0.0 else "smaller"


def _chosen(cells: Sequence[Planned], scores: dict[str, dict[str, float]], by: str | None, num: int) -> list[Planned]:
    """The best cells, and the best of each choice of each setting."""
    if by is None or num == 0:
        return []
    name = by.split()[-1]
    finished = [cell for cell in cells if by in scores.get(cell.identity, {})]
    finished.sort(key=lambda cell: distance(name, scores[cell.identity][by]))
    found = {cell.identity: cell for cell in finished[:num]}
    seen: set[tuple[int, int | None]] = set()
    for cell in finished:
        choices = set(enumerate(cell.chosen))
        if not choices <= seen:
            found[cell.identity] = cell
            seen |= choices
    return list(found.values())


def _pictured(plan: Plan, store: Store, cells: Iterable[Planned]) -> dict[str, Any]:
    """Learning curves, and fits or calibration, by cell; the data of fits by their fingerprint."""
    histories: dict[str, Any] = {}
    pictures: dict[str, Any] = {}
    data: dict[str, Any] = {}
    for cell in cells:
        folder = store.folder(cell.identity)
        histories[cell.identity] = {stage: _rounded(curve) for stage, curve in learning_curves(folder).items()}
        found, problem = picture(folder)
        if isinstance(found, FitLine):
            pictures[cell.identity] = {"data": problem.fingerprint, **_rounded(dataclasses.asdict(found))}
            parts = {part: problem.original.part(part) for part in PARTS}
            data[problem.fingerprint] = {part: _rounded({"x": X[:, 0], "y": Y[:, 0]}) for part, (X, Y) in parts.items()}
        else:
            numbers = _rounded({"levels": found.levels, "held": found.held})
            pictures[cell.identity] = {**numbers, "axes": found.axes}
    return {"histories": histories, "pictures": pictures, "data": data}


def _rounded(arrays: Mapping[str, np.ndarray]) -> dict[str, list[float | None]]:
    return {name: [_short(float(value)) for value in array] for name, array in arrays.items()}


def _short(value: float | None) -> float | None:
    """With six digits; what is no number is None, as JSON has none."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _command(plan: Plan) -> str | None:
    """The beginning of the command that makes a cell again, to which the page adds its changes."""
    return f"mercer run {shlex.quote(plan.experiment_file)}" if plan.experiment_file else None


def _versions(store: Store, cells: Sequence[Planned]) -> dict[str, str]:
    """Those of one of the cells that are finished."""
    first = next((cell for cell in cells if cell.state == "finished"), None)
    return json.loads((store.folder(first.identity) / "versions.json").read_text()) if first is not None else {}
