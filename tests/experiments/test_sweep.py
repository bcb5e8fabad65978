"""Sweeps: which cells they have, that each is run once whatever happens, and what is told of those that fail."""

import contextlib
import errno
import json
import os
import socket
import subprocess
import threading
import time
from typing import Any

import jax
import pytest

from mercer.experiments import ConfigurationError, Store, Sweep, claims, planned, results, stages
from mercer.experiments.engine import run_cell

EXACT = """
data: {type: curve, number: 1, num: 40}
stages:
  model:
    type: make
    value:
      type: Model
      posterior:
        type: Conditioned
        prior: {type: GP, kernel: {type: RBF, lengthscale: 0.3}}
        X: $X
        Y: $Y
        noise: 0.1
      likelihood: {type: Gaussian, variance: 0.1}
scores: [nlpd]
"""
KERNEL = "stages.model.value.posterior.prior.kernel"
SWEEP = f"""
name: small
experiment: exact.yaml
grid:
  data.number: [1, 2]
  {KERNEL}.lengthscale: [0.3, 0.5]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "exact.yaml").write_text(EXACT)
    (tmp_path / "small.yaml").write_text(SWEEP)
    return tmp_path


def sweep_of(folder, text=SWEEP):
    return Sweep.of(text, folder=folder)


def run_here(sweep, root):
    """All cells in this process."""
    for cell in sweep.cells:
        document = cell.experiment.document
        run_cell(document.value, document.name, cell.identity, str(root))


class TestCells:
    def test_a_grid(self, folder):
        cells = sweep_of(folder).cells
        found = [(cell.labels["data.number"], cell.labels[f"{KERNEL}.lengthscale"]) for cell in cells]
        assert found == [("1", "0.3"), ("1", "0.5"), ("2", "0.3"), ("2", "0.5")]
        assert cells[3].experiment.document.value["data"]["number"] == 2
        assert cells[0].experiment.document.value["data"]["number"] == 1

    def test_labels(self, folder):
        text = f"experiment: exact.yaml\ngrid:\n  {KERNEL}: {{short: RBF, long: {{type: Matern32, lengthscale: 3}}}}\n"
        assert [cell.labels[KERNEL] for cell in sweep_of(folder, text).cells] == ["short", "long"]
        text = text.replace(
            "{short: RBF, long: {type: Matern32, lengthscale: 3}}", "[RBF, {type: RBF, lengthscale: 2}]"
        )
        assert [cell.labels[KERNEL] for cell in sweep_of(folder, text).cells] == ["RBF 1", "RBF 2"]

    def test_blocks_are_factors(self, folder):
        text = SWEEP + "zip: {seed: [0, 1], data.noise: [0.1, 0.2]}\nlist: [{standardise: [X]}, {standardise: [Y]}]\n"
        text += f"random: {{num: 3, seed: 1, of: {{{KERNEL}.variance: {{low: 0.1, high: 10, log: true}}}}}}\n"
        cells = sweep_of(folder, text).cells
        assert len(cells) == 4 * 2 * 2 * 3
        pairs = {(cell.labels["seed"], cell.labels["data.noise"]) for cell in cells}
        assert pairs == {("0", "0.1"), ("1", "0.2")}
        drawn = {cell.labels[f"{KERNEL}.variance"] for cell in cells}
        assert len(drawn) == 3 and all(0.1 <= float(value) <= 10.0 for value in drawn)
        assert [cell.identity for cell in cells] == [cell.identity for cell in sweep_of(folder, text).cells]

    def test_conditions(self, folder):
        text = (
            SWEEP
            + f"exclude: [{{data.number: 2, {KERNEL}.lengthscale: [0.5]}}, {{data.number: 1, {KERNEL}.lengthscale: 0.3}}]"
        )
        cells = sweep_of(folder, text).cells
        assert [tuple(cell.labels.values()) for cell in cells] == [("1", "0.5"), ("2", "0.3")]

    def test_the_same_cell_is_there_once(self, folder):
        assert len(sweep_of(folder, SWEEP.replace("[1, 2]", "[1, 1]")).cells) == 2

    def test_a_cell_has_the_same_name_in_every_sweep(self, folder):
        other = f"name: other\nexperiment: exact.yaml\nlist: [{{data.number: 2, {KERNEL}.lengthscale: 0.5}}]"
        assert sweep_of(folder, other).cells[0].identity == sweep_of(folder).cells[3].identity

    def test_an_experiment_within(self, folder):
        inside = "experiment:\n" + "".join(f"  {line}\n" for line in EXACT.splitlines()) + "grid: {seed: [0, 1]}\n"
        assert len(sweep_of(folder, inside).cells) == 2
        with pytest.raises(ConfigurationError, match=r"line 11: .*kernel.lengthscal: unknown setting"):
            sweep_of(folder, inside.replace("lengthscale: 0.3", "lengthscal: 0.3"))

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ("grid:", "grd:", "line 4: grd: unknown setting; did you mean 'grid'?"),
            ("experiment: exact.yaml", "experiment: none.yaml", "the sweep, line 3: experiment: there is no file"),
            ("experiment: exact.yaml", "name2: a", "'experiment' is missing"),
            (
                "data.number",
                "data.nmber",
                "the sweep, line 5: data.nmber: unknown setting; did you mean 'number'? (with",
            ),
            ("data.number", "dat.number", "exact.yaml has no dat; did you mean 'data'? (with dat.number=1"),
            ("[1, 2]", "[1, 12]", "data: number expects one of 1 to 10, got 12 (with data.number=12"),
            (
                f"{KERNEL}.lengthscale",
                KERNEL,
                "the sweep, line 6: stages.model.value.posterior.prior.kernel: expected a",
            ),
            ("[1, 2]", "[1, 2]\nlist: [{seed: 1},\n  {seed: a}]", "the sweep, line 8: seed: expected a valid integer"),
            ("[1, 2]", "[1, 2]\nzip: {seed: [1,\n  a]}", "the sweep, line 8: seed: expected a valid integer"),
            (
                "[1, 2]",
                "[1, 2]\nrandom: {num: 1, of: {data.num: {low: 0.1, high: 0.2}}}",
                "the sweep, line 7: data.num: expected an integer, got",
            ),
            ("[1, 2]", "[]", "grid.data.number: expected a list of values, or a mapping from labels to values, got []"),
            ("[1, 2]", "3", "grid.data.number: expected a list of values, or a mapping from labels to values, got 3"),
            ("[1, 2]", "[1, 2]\nzip: {seed: [0], data.noise: [1, 2]}", "zip: lists of the same length are expected"),
            ("[1, 2]", "[1, 2]\nexclude: [{data.numbr: 1}]", "no block has this setting; did you mean 'data.number'?"),
            ("[1, 2]", "[1, 2]\nexclude: [{data.number: 3}]", "3 is none of its values"),
            ("[1, 2]", "[1, 2]\nzip: {data.number: [1]}", "'data.number' is in two blocks"),
            ("[1, 2]", "[1, 2]\nexclude: [{data.number: [1, 2]}]", "every combination is excluded"),
            (
                "[1, 2]",
                "[1, 2]\nrandom: {num: 1, of: {seed: {low: 2, high: 1}}}",
                "expected low to be at most high, got",
            ),
            ("[1, 2]", "[1, 2]\nrandom: {num: 1, of: {seed: {low: 0, high: 1, log: true}}}", "its logarithm is taken"),
            ("[1, 2]", "[1, 2]\nrandom: {num: 1, of: {seed: {low: 0, high: .inf}}}", "high: expected a finite number"),
            ("[1, 2]", "[1, 2]\nrandom: {num: 1, of: {seed: {low: 0, hgh: 1}}}", "'high' is missing"),
            ("[1, 2]", "[1, 2]\nrandom: {num: 1, seed: -1, of: {seed: [0, 1]}}", "random.seed: expected greater than"),
            ("[1, 2]", "[1, 2]\ncluster: {type: slurm, job: 3}", "cluster.job: unknown setting; did you mean 'jobs'?"),
        ],
    )
    def test_mistakes(self, folder, old, new, said):
        # what comes after the list is a block of its own
        first, *rest = new.split("\n")
        text = SWEEP.replace(old, first) + "".join(f"{line}\n" for line in rest)
        with pytest.raises(ConfigurationError) as caught:
            sweep_of(folder, text).cells  # noqa: B018
        assert said in str(caught.value) and "\n" not in str(caught.value)


class TestStates:
    def test_told_by_files(self, folder):
        sweep, store = sweep_of(folder), Store(folder / "runs")
        first, second, third, fourth = (cell.identity for cell in sweep.cells)
        cell = sweep.cells[0].experiment.document
        assert run_cell(cell.value, cell.name, first, str(folder / "runs")) == "finished"
        store.fail(second, "for a reason")
        with store.claim(third) as ours:
            assert ours
            assert [store.state(each) for each in (first, second, third, fourth)] == [
                "finished",
                "failed",
                "running",
                "missing",
            ]
        assert store.state(third) == "missing"
        store.forget_failure(second)
        assert store.state(second) == "missing"

    @pytest.mark.parametrize("number, is_fault", [(errno.ENOSPC, False), (errno.ENOENT, True)])
    def test_a_full_disk_is_no_fault_of_a_cell(self, folder, monkeypatch, number, is_fault):
        """Also where it is a stage that meets it, such as one that writes a checkpoint; a file that is not there is one."""

        def make(context, value: Any) -> Any:
            raise OSError(number, os.strerror(number))

        monkeypatch.setitem(stages.STAGES, "make", make)
        cell = sweep_of(folder).cells[0]
        one = (cell.experiment.document.value, "exact", cell.identity, str(folder / "runs"))
        with contextlib.nullcontext() if is_fault else pytest.raises(OSError, match="No space left"):
            run_cell(*one)
        assert Store(folder / "runs").state(cell.identity) == ("failed" if is_fault else "missing")

    def test_what_is_not_whole_is_made_again(self, folder):
        """A folder of a cell that was copied, and the copy cut off."""
        sweep, store = sweep_of(folder), Store(folder / "runs")
        run_here(sweep, store.root)
        first, second, third, fourth = (cell.identity for cell in sweep.cells)
        scores = store.scores(first)
        (store.folder(first) / "scores.json").unlink()
        (store.folder(second) / "scores.json").write_text('{"scores": {"te')
        assert store.over([first, second, third, fourth]) == dict.fromkeys((third, fourth), "finished")
        run_here(sweep, store.root)
        assert store.scores(first) == scores and store.scores(second) is not None

    def test_one_owner(self, tmp_path):
        owners, barrier = [], threading.Barrier(8)

        def take():
            barrier.wait()
            with claims.claim(tmp_path / "a.claim") as ours:
                owners.append(ours)
                time.sleep(0.2)

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(owners) == [False] * 7 + [True] and not list(tmp_path.iterdir())

    def test_a_claim_of_a_dead_process_is_void(self, tmp_path):
        path = tmp_path / "a.claim"
        leave_behind(path)
        assert path.exists() and not claims.holds(path)
        with claims.claim(path) as ours:
            assert ours and claims.holds(path)

    def test_a_claim_from_elsewhere_is_void_after_a_minute(self, tmp_path):
        path = tmp_path / "a.claim"
        path.write_text(json.dumps({"token": "x", "host": "another machine", "process": 1}))
        assert claims.holds(path)
        os.utime(path, (time.time() - 61.0,) * 2)
        with claims.claim(path) as ours:
            assert ours

    def test_a_cell_that_kills_its_workers_has_failed(self, folder):
        store, identity = Store(folder / "runs"), "a" * 32
        path = store.root / "cells" / f"{identity}.claim"
        path.parent.mkdir(parents=True)
        taken = []
        # The first two belong to sessions that were killed as a whole.
        for session in ("one", "two", "three", "three", "three"):
            leave_behind(path, session)
            with store.claim(identity, "three") as ours:
                taken.append(ours)
        assert taken == [True, True, True, True, False]
        assert store.state(identity) == "failed" and "3 processes died" in store.failure(identity)["reason"]


def leave_behind(path, session=""):
    """The claim of a process that is no more."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    said = {"token": "x", "host": socket.gethostname(), "process": gone.pid, "started": "1", "session": session}
    path.write_text(json.dumps(said))


def test_results_and_what_is_stale(folder):
    root = folder / "runs"
    run_here(sweep_of(folder), root)
    plan, stale = planned(sweep_of(folder), root, write=True)
    assert [cell.state for cell in plan.cells] == ["finished"] * 4 and stale == []
    table = results(root)
    assert table.shape[0] == 4 and {"data.number", "state", "train nlpd", "test nlpd", "cell"} <= set(table.columns)
    assert table["train nlpd"].n_unique() == 4
    plan, stale = planned(sweep_of(folder, SWEEP.replace("[1, 2]", "[2, 3]")), root)
    assert [cell.state for cell in plan.cells] == ["finished", "finished", "missing", "missing"]
    assert [cell.labels["data.number"] for cell in stale] == ["1", "1"]
    with pytest.raises(ConfigurationError, match="has no sweep nothing; there are small"):
        results(root, "nothing")


def test_a_name_is_no_path(folder):
    planned(sweep_of(folder, SWEEP.replace("name: small", "name: ../../away")), folder / "runs", write=True)
    assert [path.name for path in (folder / "runs" / "sweeps").iterdir()] == ["------away.json"]


def test_on_workers(folder, command):
    """A sweep in which cells fail, and the rest go on; run again, nothing is done."""
    text = SWEEP.replace("[0.3, 0.5]", "[0.3, -1.0]").replace("lengthscale:", "variance:")
    (folder / "small.yaml").write_text(text)
    arguments = ["sweep", "run", str(folder / "small.yaml"), "--out", str(folder / "runs"), "--workers", "1"]

    assert command(*arguments, "--dry-run") == (0, "4 cells: 4 missing\n4 programs to compile\n", "")
    assert jax.config.jax_platforms == "cpu"  # the workers have the GPU for themselves
    code, out, err = command(*arguments)
    assert (code, out) == (3, "4 cells: 2 finished, 2 failed\n")
    assert err.count(" finished\n") == 2 and err.count(" failed\n") == 2
    code, out, _ = command("sweep", "status", "--failed", "--out", folder / "runs")
    assert code == 0 and "RBF: variance expects positive" in out and "Traceback" in out
    finished = {path: path.stat().st_mtime_ns for path in (folder / "runs").glob("cells/*/scores.json")}
    (folder / "small.yaml").write_text(text.replace("[1, 2]", "[1]"))
    code, out, err = command(*arguments)
    assert (
        code == 3 and out == "2 cells: 1 finished, 1 failed\n" and "2 cells of the last run of small are stale" in err
    )
    assert finished == {path: path.stat().st_mtime_ns for path in (folder / "runs").glob("cells/*/scores.json")}
