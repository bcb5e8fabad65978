"""Cells that share a program: those that differ in numbers alone (a learning rate, a start, data of the same shapes).

A plan groups cells by what their configurations say; whether the models that they make are of one form is seen when they are
made. On the CPU the cells of a group are run one after another by one process: what the first one compiled, the others use
(`mercer.training.tunable`), and each has, to the last bit, the numbers that it has alone. Trained at once, under one `vmap`, they
would take as long (measured), and sums would round differently for each number of cells: after some hundred steps, in the
sixth digit.

On a GPU they are trained at once. What a group gives are then the results of the stages `fit` of its cells, put where each cell
finds them: so a cell is finished as it always is, and one that could not be trained with the others (its loss was not finite)
is trained alone, and says why.
"""

import contextlib
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from mercer.errors import MercerError
from mercer.experiments.building import Builder
from mercer.experiments.catalogue import Optimiser
from mercer.experiments.claims import claim, holds
from mercer.experiments.running import ALONE, TOGETHER, context_of, do_stages, key_of
from mercer.experiments.schema import Spec
from mercer.experiments.stages import Context, Validation, number_for, rows_for, validation_of
from mercer.experiments.sweep import Cell
from mercer.experiments.text import ConfigurationError
from mercer.io import save
from mercer.training.checkpoint import steps_in
from mercer.training.run import Run
from mercer.training.together import form_of, train_together

LARGEST = 64  # cells in a group
# What is wrong with a cell, not with the place where it is run.
FAULTS = (ConfigurationError, MercerError, ValueError, TypeError, FloatingPointError)
# Settings of `fit` under which cells can be trained together.
_SHARED = ("steps", "batch_size", "frozen", "every", "validate", "patience")


def planned_groups(cells: Sequence[Cell], workers: int = 1) -> list[list[Cell]]:
    """The cells in groups, each for one program, with something to do for every worker."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(signature(cell), []).append(cell)
    largest = min(LARGEST, max(1, -(-len(cells) // max(workers, 1))))
    return [group[i : i + largest] for group in found.values() for i in range(0, len(group), largest)]


def signature(cell: Cell) -> str:
    """What a cell has in common with those that it may be trained with; its own hash where there is nothing to train."""
    if not stages_to_group(cell):
        return cell.identity
    X, Y = cell.problem.data.part("train")
    shapes = [list(X.shape), list(Y.shape), str(X.dtype)]
    stages = cell.experiment.document.value["stages"]
    return json.dumps([shapes, _without_numbers(stages), cell.experiment.said.scores], sort_keys=True)


def stages_to_group(cell: Cell) -> list[str]:
    """The stages that train and can be shared."""
    stages = cell.experiment.stages.items()
    return [name for name, said in stages if said.entry.name == "fit" and _is_shared(said)]


def _is_shared(said: Spec) -> bool:
    given = said.arguments()
    optimiser = given.get("optimiser")
    natural = isinstance(optimiser, Spec) and optimiser.entry.gives is not Optimiser
    searches = isinstance(optimiser, Spec) and optimiser.entry.name in ("lbfgs", "polyak_sgd")
    return not (natural or searches) and given.get("restarts", 1) == 1


def train_group(cells: Sequence[Cell], store: Path) -> int:
    """Trains the stages `fit` of cells that have not got them; how many were trained in programs with others."""
    names = [stages_to_group(cell) for cell in cells]
    rounds = itertools.zip_longest(*names)
    return sum(_train_stage([pair for pair in zip(cells, one, strict=True) if pair[1]], store) for one in rounds)


def _train_stage(stages: Sequence[tuple[Cell, str]], store: Path) -> int:
    """Trains one stage of each cell, where those before it are there."""
    trained = 0
    with contextlib.ExitStack() as stack:
        jobs = [job for cell, name in stages for job in _jobs(cell, name, store, stack)]
        for group in _of_one_form(jobs):
            if len(group) > 1:
                steps = group[0][0].settings.get("steps", 1000)
                fitted = train_together([run for _, run in group], steps, [job.checkpoint for job, _ in group])
                for (job, _), fit in zip(group, fitted, strict=True):
                    if fit is not None:
                        save(job.path, fit)
                        job.checkpoint.unlink(missing_ok=True)
                        trained += 1
    return trained


class _Job(NamedTuple):
    path: Path  # where the result belongs
    model: Any
    objective: Any
    data: tuple[Any, ...]
    key: Any
    optimiser: Any
    settings: dict[str, Any]
    told: str  # of the settings
    validate: Validation | None

    @property
    def checkpoint(self) -> Path:
        """Of training in a group, which takes no notice of one of a run alone."""
        return self.path.with_suffix(TOGETHER)


def _jobs(cell: Cell, name: str, store: Path, stack: contextlib.ExitStack) -> Iterator[_Job]:
    """What there is to train in a stage of a cell, if it is ours to do."""
    before = itertools.takewhile(lambda other: other != name, stages_to_group(cell))
    missing = [path for other in before if not (path := store / cell.hashes[other]).is_file()]
    if not all(holds(path.with_suffix(".claim")) for path in missing):
        return  # nobody trains what is missing: the cell is to be run alone
    if (path := store / cell.hashes[name]).is_file():
        return
    if not stack.enter_context(claim(path.with_suffix(".claim"))) or path.with_suffix(ALONE).exists():
        return
    problem, said = cell.problem, cell.experiment.stages[name]
    with contextlib.suppress(*FAULTS):  # of a cell, which tells them when it is run alone
        made, _ = do_stages(cell.experiment, problem, cell.hashes, store, lambda line: None, name)
        values = problem.values() | made
        builder = Builder(cell.experiment.document, values, jax.random.key(cell.experiment.said.seed))
        settings = builder.arguments(said, ("stages", name))
        yield _job(settings, path, context_of(problem, key_of(builder, name)))


def _job(settings: dict[str, Any], path: Path, context: Context) -> _Job:
    data = rows_for(settings.get("rows"), context.X, context.Y, key=context.key)
    validate = validation_of(settings.get("validate"), context)
    shared = {key: settings[key] for key in _SHARED if key in settings}
    shared["batch_size"] = number_for(settings.get("batch_size"), len(data[0]))
    told = json.dumps({key: str(value) for key, value in shared.items()})
    model, objective, optimiser = settings["model"], settings["objective"], settings.get("optimiser")
    return _Job(path, model, objective, data, context.key, optimiser, shared, told, validate)


def _of_one_form(jobs: Sequence[_Job]) -> list[list[tuple[_Job, Run]]]:
    """Jobs with their runs, in groups that are of one form, and have come to the same step."""
    found: dict[Any, list[tuple[_Job, Run]]] = {}
    for job in jobs:
        options = {key: value for key, value in job.settings.items() if key != "steps"} | {"validate": job.validate}
        run = Run(job.model, job.objective, job.data, job.optimiser, key=job.key, **options)
        found.setdefault((job.told, form_of(run), steps_in(job.checkpoint)), []).append((job, run))
    return list(found.values())


def _without_numbers(value: Any) -> Any:
    """A configuration with 0 in the place of each number that is no integer; `1` and `1.0` are the same number."""
    if isinstance(value, dict):
        return {key: _without_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_numbers(item) for item in value]
    return 0.0 if isinstance(value, float) else value
