"""Runs of experiments: `run(experiment, out)` does the stages that are not done and writes one folder.

    out/NAME-HASH/     configuration.yaml, versions.json, data.json, log.txt, history.csv, model.mercer, scores.json, fit.png
    out/stages/HASH    what a stage gave, for every experiment that has it

A history has each step of a stage, or the means over 1,000 spans of steps where there are more. (Steps are counted from 0; a
span has the number of its last.)

The folder is written under another name and renamed when it is whole, so that it is there with everything in it or not at all. A
run that was killed goes on where it was: stages that are done are read, and training goes on from its checkpoint.
"""

import contextlib
import csv
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

import mercer
from mercer.experiments.building import Builder
from mercer.experiments.claims import claim
from mercer.experiments.experiment import FORMAT, Experiment, Problem
from mercer.experiments.pictures import draw
from mercer.experiments.scores import scores_of
from mercer.experiments.stages import Context
from mercer.experiments.text import ConfigurationError
from mercer.io import load, save
from mercer.io.atomic import replacing
from mercer.model import Model
from mercer.training import Fit, Progressed

PARTS = ("train", "validation", "test")
# The ends of names of checkpoints: of a stage that is trained alone, and of one that is trained in a group.
ALONE, TOGETHER = ".checkpoint", ".together"
_ROWS = 1000  # of a stage in a history
_PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The folder of a run, its scores by part and name, and the stages that were done for it, not read."""

    folder: Path
    scores: dict[str, dict[str, float]]
    done: tuple[str, ...]

    @property
    def model(self) -> Any:
        """What the last stage gave."""
        return load(self.folder / "model.mercer")


def run(
    experiment: Experiment, out: str | os.PathLike[str] = "runs", watch: Callable[[str], None] | None = None
) -> Outcome:
    """Runs an experiment, or what is left of it, into a folder of `out`; `watch` gets each line of its log."""
    with experiment.precision():
        problem = experiment.load()
        hashes = experiment.hashes(problem)
        name = f"{as_file_name(experiment.said.name)}-{identity(experiment, hashes)[:12]}"
        return run_into(Path(out) / name, experiment, problem, hashes, Path(out) / "stages", watch)


def run_into(
    folder: Path,
    experiment: Experiment,
    problem: Problem,
    hashes: dict[str, str],
    store: Path,
    watch: Callable[[str], None] | None = None,
    *,
    picture: bool = True,
    remark: str | None = None,
) -> Outcome:
    """Runs an experiment into a folder, which is there with everything in it when this returns.

    `store` holds stages; a `remark` is the first line of the log.
    """
    if (found := scores_in(folder)) is not None:
        return Outcome(folder, found, ())
    partial = folder.with_name(f"{folder.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    with _log(partial / "log.txt", watch) as log:
        if remark is not None:
            log(remark)
        made, done = do_stages(experiment, problem, hashes, store, log)
        if picture:
            draw(model_of(experiment, made), problem, partial / "fit.png")
        scores = _write(experiment, problem, hashes, made, partial, log)
    _finish(partial, folder)
    return Outcome(folder, scores, tuple(done))


def scores_in(folder: Path) -> dict[str, dict[str, float]] | None:
    """The scores of a run that is finished; None where it is not, and where a copy of its folder was cut off."""
    try:
        return json.loads((folder / "scores.json").read_text())["scores"]
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def identity(experiment: Experiment, hashes: dict[str, str]) -> str:
    """The hash of a whole experiment: its stages, and what is scored."""
    content = {"format": FORMAT, "stages": hashes, "scores": experiment.said.scores}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def do_stages(
    experiment: Experiment,
    problem: Problem,
    hashes: dict[str, str],
    store: Path,
    log: Callable[[str], None],
    before: str | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """What each stage gave, and which had to be done; all of them, or those before one."""
    values: dict[str, Any] = problem.values()
    made: dict[str, Any] = {}
    done: list[str] = []
    builder = Builder(experiment.document, values, jax.random.key(experiment.said.seed))
    for name, said in itertools.takewhile(lambda item: item[0] != before, experiment.stages.items()):
        path, place = store / hashes[name], ("stages", name)
        while not path.is_file():
            with claim(path.with_suffix(".claim")) as ours:
                if not ours:  # another run has this stage, too
                    time.sleep(0.1)
                elif not path.is_file():
                    begin = time.perf_counter()
                    watch = functools.partial(_report, log, name)
                    context = context_of(problem, key_of(builder, name), path.with_suffix(ALONE), watch)
                    settings = builder.arguments(said, place)
                    values[name] = made[name] = builder.called(said.entry.target, (context,), settings, place)
                    save(path, made[name])
                    for suffix in (ALONE, TOGETHER):
                        path.with_suffix(suffix).unlink(missing_ok=True)
                    done.append(name)
                    log(f"{name}: done in {time.perf_counter() - begin:.1f} s, {hashes[name][:12]}")
        if name not in made:
            values[name] = made[name] = load(path)
            log(f"{name}: read, {hashes[name][:12]}")
    return made, done


def context_of(problem: Problem, key: jax.Array, checkpoint: Path | None = None, watch: Any = None) -> Context:
    """What a stage is given of the data, with its key."""
    return Context(*problem.data.part("train"), problem.data.part("validation"), key, problem.scale, checkpoint, watch)


def key_of(builder: Builder, name: str) -> jax.Array:
    """The random key of a stage."""
    return builder.key_at(("stages", name, "key"))


def _report(log: Callable[[str], None], name: str, seen: Progressed) -> None:
    best = "" if seen.best is None else f"; validated, {float(seen.best.number):.6g} after step {int(seen.best.step)}"
    log(f"{name}: step {seen.step}, {float(np.mean(seen.history[-100:])):.6g}{best}")


def _write(experiment, problem, hashes, made, folder: Path, log) -> dict[str, dict[str, float]]:
    """Everything in the folder of a run but its log; the scores last."""
    model = model_of(experiment, made)
    ready = model.cached()
    scores: dict[str, dict[str, float]] = {}
    for part in PARTS:
        X, Y = problem.data.part(part)
        if len(X):
            scores[part] = scores_of(ready, X, Y, problem.scale, experiment.said.scores)
            log(f"{part}: " + ", ".join(f"{name} {value:.4g}" for name, value in scores[part].items()))
    rows = {part: len(problem.data.part(part)[0]) for part in PARTS}
    data = {"fingerprint": problem.original.fingerprint(), "rows": rows, "inputs": problem.data.X.shape[1]}
    save(folder / "model.mercer", model)
    _text(folder / "configuration.yaml", experiment.yaml())
    _text(folder / "versions.json", json.dumps(versions(), indent=2) + "\n")
    _text(folder / "data.json", json.dumps(data, indent=2) + "\n")
    _text(folder / "history.csv", _history(made))
    _text(folder / "scores.json", json.dumps({"scores": scores, "stages": hashes, "format": FORMAT}, indent=2) + "\n")
    return scores


def model_of(experiment: Experiment, made: dict[str, Any]) -> Model:
    """What the last stage gave, which is a model."""
    last = list(made.values())[-1]
    model = last.model if isinstance(last, Fit) else last
    if not isinstance(model, Model):
        name = experiment.document.name
        raise ConfigurationError(f"{name}: the last stage gives no model, but {type(last).__name__}")
    return model


@functools.cache
def versions() -> dict[str, str]:
    """Of this library, of what it stands on, and of the machine."""
    found = {name: metadata.version(name) for name in _PACKAGES}
    device = jax.devices()[0]
    return {**found, "mercer": mercer.__version__, "python": platform.python_version(), "device": device.device_kind}


def _history(made: dict[str, Any]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["stage", "step", "objective"])
    for name, value in made.items():
        if isinstance(value, Fit):
            ends, means = means_of_spans(np.asarray(value.history, float), _ROWS)
            writer.writerows((name, end - 1, repr(float(mean))) for end, mean in zip(ends, means, strict=True))
    return text.getvalue()


def means_of_spans(values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The means of values over consecutive spans, at most so many, and where each span ends."""
    ends = np.unique(np.linspace(0, len(values), min(most, len(values)) + 1).astype(int))[1:]
    return ends, np.add.reduceat(values, [0, *ends[:-1]]) / np.diff(ends, prepend=0)


def _text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())


def _finish(partial: Path, folder: Path) -> None:
    """Gives the folder its name, in the place of one that is not whole. Where another run was faster, its folder stays: they hold
    the same.
    """
    if folder.is_dir() and scores_in(folder) is None:
        shutil.rmtree(folder)
    try:
        os.rename(partial, folder)
    except OSError:
        if scores_in(folder) is None:
            raise
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _log(path: Path, watch: Callable[[str], None] | None) -> Iterator[Callable[[str], None]]:
    with open(path, "a", encoding="utf-8") as file:

        def log(line: str) -> None:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
            file.flush()
            if watch is not None:
                watch(line)

        yield log


def as_file_name(name: str) -> str:
    """A name without what means something in a path."""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in name)[:60] or "experiment"
