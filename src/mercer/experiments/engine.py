"""The engine of sweeps: cells on the workers of Dask.

A task is a group of cells (`mercer.experiments.groups`) on one of the workers (`mercer.experiments.clusters`). It is
idempotent: what is finished is not run again, what another runs is left alone. So a task may be lost with its worker and given to
another, as often as it takes: Dask is told not to count. What counts is in the files, by cell: one that kills its workers, or is
over its time, has failed, and the others go on.
"""

import contextlib
import dataclasses
import importlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax

from mercer.experiments.cells import Store, error_in_words
from mercer.experiments.clusters import Cluster, client_of
from mercer.experiments.experiment import Experiment
from mercer.experiments.groups import FAULTS, planned_groups, train_group
from mercer.experiments.running import run_into
from mercer.experiments.sweep import Cell, Sweep, problem_of
from mercer.experiments.text import Document
from mercer.linalg.products import on_cpu

_LOOK = 0.3  # seconds from one look at what is over to the next
_MAPS = 0.5  # the share of its memory maps from which a process lets go of programs


@dataclasses.dataclass(frozen=True)
class Options:
    """How a sweep is run: workers, the memory of each ("4GiB"), seconds for a cell, a scheduler, whether one failure ends all,
    modules that workers import first, for what they register, and the cluster where they are.
    """

    workers: int | None = None
    memory: str | None = None
    seconds: float | None = None
    scheduler: str | None = None
    fail_fast: bool = False
    imports: tuple[str, ...] = ()
    cluster: Cluster | None = None


def run_sweep(
    sweep: Sweep,
    root: str | os.PathLike[str] = "runs",
    options: Options | None = None,
    *,
    retry_failed: bool = False,
    watch: Callable[[str, str], None] | None = None,
) -> dict[str, str]:
    """Runs the cells of a sweep that are not finished; the state of every cell at the end, by its hash."""
    store = Store(Path(root))
    states = {cell.identity: store.state(cell.identity) for cell in sweep.cells}
    if retry_failed:
        for identity in [identity for identity, state in states.items() if state == "failed"]:
            store.forget_failure(identity)
            states[identity] = "missing"
    left = [cell for cell in sweep.cells if states[cell.identity] in ("missing", "running")]
    options = options or Options()
    if options.cluster is None and sweep.blocks.cluster is not None:
        options = dataclasses.replace(options, cluster=sweep.blocks.cluster)
    found = run_cells(left, Path(root), options, watch) if left else {}
    return {**{identity: str(state) for identity, state in states.items()}, **found}


def run_cells(
    cells: Iterable[Cell], root: Path, options: Options, watch: Callable[[str, str], None] | None = None
) -> dict[str, str]:
    """Runs cells into a folder; the state of each at the end. `watch` hears of each when it is over: its hash, its state.

    What another process runs is waited for, and run if that process dies. An error of the disk is raised in the end.
    """
    store, left, session = Store(root), {cell.identity: cell for cell in cells}, secrets.token_hex(8)
    found: dict[str, str] = {}
    trouble: OSError | None = None
    with client_of(options.cluster, options.scheduler, options.workers, options.memory) as client:
        while left and trouble is None:
            groups = planned_groups(list(left.values()), len(client.scheduler_info()["workers"]))
            sent = [([_sent(cell) for cell in group], str(root.absolute()), options, session) for group in groups]
            futures = dict(zip((client.submit(run_group, *each, pure=False) for each in sent), groups, strict=True))
            while futures:
                time.sleep(_LOOK)
                for future in [future for future in futures if future.status not in ("pending", "lost")]:
                    group = futures.pop(future)
                    error = future.exception() if future.status == "error" else None
                    if isinstance(error, OSError):
                        trouble = error
                    elif error is not None:
                        for identity in filter(store.is_left, (cell.identity for cell in group)):
                            store.fail(identity, *error_in_words(error))
                for identity, state in store.over(left).items():
                    left.pop(identity)
                    found[identity] = state
                    if watch is not None:
                        watch(identity, state)
                if options.fail_fast and "failed" in found.values():
                    client.cancel(list(futures))
                    return found
            if left and trouble is None:
                time.sleep(1.0)
    if trouble is not None:
        raise trouble
    return found


def _sent(cell: Cell) -> tuple[dict[str, Any], str, str]:
    return cell.experiment.document.value, cell.experiment.document.name, cell.identity


def run_group(cells: list[tuple[dict[str, Any], str, str]], root: str, options: Options, session: str = "") -> None:
    """Runs cells one after another, with what the first of them compiled; on a GPU those that can be are trained at once.

    Where that fails, each is trained alone, and says itself what is wrong.
    """
    for module in options.imports:
        importlib.import_module(module)
    _let_go_of_programs()
    store = Store(Path(root))
    remark: str | None = None
    if len(cells) > 1 and not on_cpu():
        with contextlib.ExitStack() as stack:
            ours = [cell for cell in cells if stack.enter_context(store.claim(cell[2], session))]
            left = [
                Cell({}, {}, Experiment.valid(Document(*cell[:1], {}, cell[1])))
                for cell in ours
                if store.is_left(cell[2])
            ]
            if left and not any(store.deaths(cell.identity) for cell in left):
                seconds = options.seconds and options.seconds * len(left)
                try:
                    with _limited(seconds, lambda: None), left[0].experiment.precision():
                        train_group(left, store.stages)
                except FAULTS as error:
                    remark = f"not trained in one program with {len(left) - 1} more: {type(error).__name__}: {error}"
    for cell in cells:
        if run_cell(*cell, root, options.seconds, session, remark) == "failed" and options.fail_fast:
            return


def _let_go_of_programs() -> None:
    """Before there are too many: each takes some hundred memory maps, and Linux lets a process have 65,530."""
    with contextlib.suppress(OSError, ValueError):  # other systems do not count
        maps = Path("/proc/self/maps").read_bytes().count(b"\n")
        if maps > _MAPS * int(Path("/proc/sys/vm/max_map_count").read_text()):
            jax.clear_caches()


def run_cell(
    value: dict[str, Any],
    name: str,
    identity: str,
    root: str,
    seconds: float | None = None,
    session: str = "",
    remark: str | None = None,
) -> str:
    """Runs a cell if nobody has and nobody does; its state afterwards. What goes wrong in it is written down.

    Its log begins with a `remark`, if there is one.
    """
    store = Store(Path(root))
    with store.claim(identity, session) as ours:
        if ours and store.is_left(identity):
            with _limited(seconds, lambda: store.fail(identity, f"it was stopped after {seconds:g} s, its time limit")):
                try:
                    experiment = Experiment.valid(Document(value, {}, name))
                    with experiment.precision():
                        problem = problem_of(experiment)
                        hashes = experiment.hashes(problem)
                        where = store.folder(identity)
                        run_into(where, experiment, problem, hashes, store.stages, picture=False, remark=remark)
                except OSError:
                    raise  # the disk is full, or gone: no fault of the cell
                except Exception as error:
                    store.fail(identity, *error_in_words(error))
    return store.state(identity)


@contextlib.contextmanager
def _limited(seconds: float | None, told: Callable[[], None]) -> Iterator[None]:
    """Ends this process where something takes too long: nothing else ends a computation. The worker is started anew."""
    over = threading.Event()

    def watch() -> None:
        if not over.wait(seconds):
            told()
            os.kill(os.getpid(), signal.SIGKILL)

    if seconds is not None:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()
