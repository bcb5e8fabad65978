"""What sweeps gave: which cells they have, what became of each, and their scores as a table.

sweeps/NAME.json       the cells of a sweep, in their order, each with the labels of its choices
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from mercer.experiments.cells import State, Store
from mercer.experiments.running import as_file_name
from mercer.experiments.sweep import Sweep
from mercer.experiments.text import ConfigurationError
from mercer.io.atomic import replacing


@dataclasses.dataclass(frozen=True)
class Planned:
    """A cell as a sweep has it."""

    identity: str
    labels: dict[str, str]
    state: State


def planned(sweep: Sweep, root: str | Path, *, write: bool = False) -> tuple[list[Planned], list[Planned]]:
    """The cells of a sweep, and those of the last run of it that are no longer among them. The plan can be written down."""
    root = Path(root)
    store, path = Store(root), _path(root, sweep.name)
    before = read_plan(root, sweep.name) if path.is_file() else []
    cells = [Planned(cell.identity, cell.labels, store.state(cell.identity)) for cell in sweep.cells]
    if write:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = [{"identity": cell.identity, "labels": cell.labels} for cell in cells]
        with replacing(path) as file:
            file.write(json.dumps({"name": sweep.name, "cells": content}, indent=1).encode())
    now = {cell.identity for cell in cells}
    return cells, [cell for cell in before if cell.identity not in now]


def read_plan(root: str | Path, name: str | None = None) -> list[Planned]:
    """The cells of a sweep that was run in a folder; its name can be left out where there is one."""
    root = Path(root)
    names = sorted(path.stem for path in (root / "sweeps").glob("*.json"))
    if name is None and len(names) == 1:
        name = names[0]
    if name is None or not _path(root, name).is_file():
        raise ConfigurationError(f"{root} has no sweep {name or 'of its own'}; there are {', '.join(names) or 'none'}")
    store = Store(root)
    content = json.loads(_path(root, name).read_text())["cells"]
    return [Planned(cell["identity"], cell["labels"], store.state(cell["identity"])) for cell in content]


def results(folder: str | Path, sweep: str | None = None) -> Any:
    """A data frame (polars) of a sweep: a row for each cell, with its labels, state, scores, hash, and why it failed."""
    import polars

    root = Path(folder)
    store = Store(root)
    rows = []
    for cell in read_plan(root, sweep):
        scores = store.scores(cell.identity) or {}
        flat = {f"{part} {name}": value for part, found in scores.items() for name, value in found.items()}
        reason = store.failure(cell.identity)["reason"] if cell.state == "failed" else None
        rows.append({**cell.labels, "state": cell.state, **flat, "reason": reason, "cell": cell.identity})
    columns = list(dict.fromkeys(name for row in rows for name in row))
    last = ["reason", "cell"]
    columns = [name for name in columns if name not in last] + last
    return polars.DataFrame([{name: row.get(name) for name in columns} for row in rows], infer_schema_length=None)


def _path(root: Path, name: str) -> Path:
    return root / "sweeps" / f"{as_file_name(name)}.json"
