"""What sweeps gave: which cells they have, what became of each, and their scores as a table.

sweeps/NAME.json       the experiment of a sweep, the choices of each setting, and the cells by the numbers of their choices
"""

import csv
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mercer.experiments.cells import State, Store
from mercer.experiments.experiment import Experiment, Problem
from mercer.experiments.pictures import Calibration, FitLine, fit_or_calibration
from mercer.experiments.running import as_file_name, means_of_spans
from mercer.experiments.sweep import Cell, Sweep, problem_of
from mercer.experiments.text import ConfigurationError
from mercer.io import load
from mercer.io.atomic import replacing

_POINTS = 200  # of a learning curve


@dataclasses.dataclass(frozen=True)
class Choices:
    """A setting of a sweep, by its path, and all that it may be: labels and values."""

    path: str
    labels: list[str]
    values: list[Any]


@dataclasses.dataclass(frozen=True)
class Planned:
    """A cell as a sweep has it. `chosen` has the number of a choice for each setting, or None where it has not got it."""

    identity: str
    labels: dict[str, str]
    chosen: tuple[int | None, ...]
    state: State


@dataclasses.dataclass(frozen=True)
class Plan:
    """A sweep as it was run in a folder: its file, that of its experiment ("" where it has none), the experiment itself, the
    choices, and the cells.
    """

    name: str
    file: str
    experiment_file: str
    experiment: dict[str, Any]
    settings: list[Choices]
    cells: list[Planned]

    def values(self, cell: Planned) -> dict[str, Any]:
        """What a cell has at each path."""
        pairs = zip(self.settings, cell.chosen, strict=True)
        return {setting.path: setting.values[number] for setting, number in pairs if number is not None}


def planned(sweep: Sweep, root: str | Path, *, write: bool = False) -> tuple[Plan, list[Planned]]:
    """The plan of a sweep, and the cells of its last run that are no longer in it. The plan can be written down."""
    root = Path(root)
    store, path = Store(root), _path(root, sweep.name)
    before = read_plan(root, sweep.name).cells if path.is_file() else []
    settings, chosen = _choices(sweep)
    cells = [
        Planned(cell.identity, cell.labels, numbers, store.state(cell.identity))
        for cell, numbers in zip(sweep.cells, chosen, strict=True)
    ]
    inside = isinstance(sweep.blocks.experiment, dict)
    plan = Plan(sweep.name, sweep.document.name, "" if inside else sweep.base.name, sweep.base.value, settings, cells)
    if write:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(_text(plan).encode())
    now = {cell.identity for cell in cells}
    return plan, [cell for cell in before if cell.identity not in now]


def _choices(sweep: Sweep) -> tuple[list[Choices], list[tuple[int | None, ...]]]:
    """All that each setting may be, and the numbers of what each cell has chosen."""
    paths = dict.fromkeys(name for cell in sweep.cells for name in cell.labels)
    settings = {name: Choices(name, [], []) for name in paths}
    number_of: dict[tuple[str, str, str], int] = {}

    def number(cell: Cell, name: str) -> int | None:
        if name not in cell.labels:
            return None
        label, value, known = cell.labels[name], cell.values[name], settings[name]
        found = number_of.setdefault((name, label, json.dumps(value)), len(known.labels))
        if found == len(known.labels):
            known.labels.append(label)
            known.values.append(value)
        return found

    return list(settings.values()), [tuple(number(cell, name) for name in paths) for cell in sweep.cells]


def _text(plan: Plan) -> str:
    content = {name: getattr(plan, name) for name in ("name", "file", "experiment_file", "experiment")}
    content["settings"] = [dataclasses.asdict(setting) for setting in plan.settings]
    cells = ",\n".join(json.dumps([cell.identity, cell.chosen]) for cell in plan.cells)
    return json.dumps(content, indent=1)[:-2] + f',\n "cells": [\n{cells}\n]}}\n'


def read_plan(root: str | Path, name: str | None = None) -> Plan:
    """A sweep that was run in a folder; its name can be left out where there is one."""
    root = Path(root)
    names = sorted(path.stem for path in (root / "sweeps").glob("*.json"))
    if name is None and len(names) == 1:
        name = names[0]
    if name is None or not _path(root, name).is_file():
        raise ConfigurationError(f"{root} has no sweep {name or 'of its own'}; there are {', '.join(names) or 'none'}")
    store = Store(root)
    content = json.loads(_path(root, name).read_text())
    settings = [Choices(**setting) for setting in content.pop("settings")]
    cells = [
        Planned(identity, _labels(settings, chosen), tuple(chosen), store.state(identity))
        for identity, chosen in content.pop("cells")
    ]
    return Plan(**content, settings=settings, cells=cells)


def results(folder: str | Path, sweep: str | None = None) -> Any:
    """A data frame (polars) of a sweep: a row for each cell, with its labels, state, scores, hash, and why it failed."""
    import polars

    root = Path(folder)
    store = Store(root)
    rows = []
    for cell in read_plan(root, sweep).cells:
        reason = store.failure(cell.identity)["reason"] if cell.state == "failed" else None
        rows.append(
            {**cell.labels, "state": cell.state, **flat_scores(store, cell), "reason": reason, "cell": cell.identity}
        )
    columns = list(dict.fromkeys(name for row in rows for name in row))
    last = ["reason", "cell"]
    columns = [name for name in columns if name not in last] + last
    return polars.DataFrame([{name: row.get(name) for name in columns} for row in rows], infer_schema_length=None)


def flat_scores(store: Store, cell: Planned) -> dict[str, float]:
    """The scores of a cell, with the part of the data in their names: `validation nlpd`."""
    scores = store.scores(cell.identity) or {}
    return {f"{part} {name}": value for part, found in scores.items() for name, value in found.items()}


def learning_curves(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """Of each stage of a finished cell that trained: steps, and the mean of the objective from one to the next."""
    with open(folder / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {}
    for stage in dict.fromkeys(row["stage"] for row in rows):
        own = [(int(row["step"]), float(row["objective"])) for row in rows if row["stage"] == stage]
        steps, values = np.array(own).T
        ends, means = means_of_spans(values, _POINTS)
        found[stage] = {"steps": steps[ends - 1].astype(int) + 1, "values": means}
    return found


def picture(folder: Path) -> tuple[FitLine | Calibration, Problem]:
    """The fit of a finished cell, or its calibration, and the data."""
    experiment = Experiment.read(folder / "configuration.yaml")
    with experiment.precision():
        problem = problem_of(experiment)
        return fit_or_calibration(load(folder / "model.mercer"), problem), problem


def _labels(settings: Sequence[Choices], chosen: Sequence[int | None]) -> dict[str, str]:
    pairs = zip(settings, chosen, strict=True)
    return {setting.path: setting.labels[number] for setting, number in pairs if number is not None}


def _path(root: Path, name: str) -> Path:
    return root / "sweeps" / f"{as_file_name(name)}.json"
