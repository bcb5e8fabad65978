"""Sweeps that are killed, that run out of disk, memory or time: no finished cell is run again, none is lost or half written."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from test_sweep import EXACT

from mercer.experiments import Sweep

pytestmark = pytest.mark.slow
CELLS = 200
TRAINED = """
data: {type: curve, number: 1, num: 40}
stages:
  model:
    type: fit
    model:
      type: Model
      posterior:
        type: Sparse
        prior: {type: GP, kernel: {type: RBF, lengthscale: 0.3}}
        inducing: {type: Points, Z: {type: kmeans, X: $X, M: 6}}
      likelihood: {type: Gaussian, variance: 0.1}
    objective: ELBO
    steps: 300
    batch_size: 20
scores: [nlpd]
"""
KERNEL = "stages.model.model.posterior.prior.kernel"
SWEEP = f"""
name: many
experiment: trained.yaml
grid:
  data.number: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
  {KERNEL}.lengthscale: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
  {KERNEL}.variance: [0.5, 1.0]
"""
# Stages of a user: one that never ends, one that takes all memory, one that leaves some of it taken.
OWN = """
import sys, time
import numpy as np
from mercer.experiments import stage

left = []

@stage
def trouble(context, kind: str) -> float:
    if kind == "endless":
        while True:
            time.sleep(0.01)
    if kind == "greedy":
        held = []
        while True:
            held.append(np.ones(10_000_000))
            time.sleep(0.01)
    if kind == "careless":
        left.append(np.ones(30_000_000))
    return 1.0
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "trained.yaml").write_text(TRAINED)
    (tmp_path / "many.yaml").write_text(SWEEP)
    return tmp_path


def command(folder, *arguments, out="runs"):
    return [sys.executable, "-m", "mercer.cli", "sweep", *arguments, "--out", str(folder / out)]


def finished(folder, out="runs"):
    """When each finished cell was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in (folder / out).glob("cells/*/scores.json")}


def table(folder, out="runs"):
    return subprocess.run(command(folder, "table", out=out), capture_output=True, text=True, check=True).stdout


def descendants(process):
    """The numbers of the processes that a process has started."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True).stdout.split()
    return [int(pid) for child in found for pid in (child, *descendants(int(child)))]


def kill(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_killed_at_twenty_random_moments(folder):
    source = random.Random(0)
    subprocess.run(command(folder, "run", str(folder / "many.yaml"), "--quiet", out="calm"), check=True)
    seen, kills = {}, 0
    while kills < 20:
        process = subprocess.Popen(command(folder, "run", str(folder / "many.yaml"), "--quiet"))
        begin, beat = time.time(), source.uniform(4.0, 9.0)
        while time.time() - begin < beat and process.poll() is None:
            time.sleep(0.05)
        victims = [process.pid] if source.random() < 0.5 else descendants(process.pid)
        kill(
            victims
            if victims == [process.pid] or source.random() < 0.3
            else source.sample(victims, min(1, len(victims)))
        )
        kills += 1
        if source.random() < 0.7 or process.pid in victims:
            kill([process.pid, *descendants(process.pid)])
            process.wait()
        else:  # the sweep goes on without the worker
            time.sleep(source.uniform(0.5, 2.0))
            kill([process.pid, *descendants(process.pid)])
            process.wait()
        now = finished(folder)
        assert all(now.get(name) == when for name, when in seen.items())  # none lost, none written again
        seen = now
    subprocess.run(command(folder, "run", str(folder / "many.yaml"), "--quiet"), check=True)
    now = finished(folder)
    assert len(now) == CELLS and all(now[name] == when for name, when in seen.items())
    assert table(folder) == table(folder, "calm")
    assert not [
        path for path in (folder / "runs" / "cells").iterdir() if path.suffix in (".claim", ".failed", ".partial")
    ]


def test_cells_are_what_runs_give(folder):
    """To the last bit, though a run has all cores: the matrices are small."""
    subprocess.run(command(folder, "run", str(folder / "many.yaml"), "--quiet"), check=True)
    for cell in random.Random(1).sample(Sweep.read(folder / "many.yaml").cells, 3):
        (folder / "cell.yaml").write_text(json.dumps(cell.experiment.document.value))
        alone = [
            sys.executable,
            "-m",
            "mercer.cli",
            "run",
            str(folder / "cell.yaml"),
            "--out",
            str(folder / cell.identity),
        ]
        subprocess.run(alone, check=True, capture_output=True)
        (scores,) = (folder / cell.identity).glob("*/scores.json")
        assert scores.read_text() == (folder / "runs" / "cells" / cell.identity / "scores.json").read_text()


def test_two_sweeps_at_once(folder):
    processes = [
        subprocess.Popen(
            command(folder, "run", str(folder / "many.yaml"), "--workers", "1"), stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert len(finished(folder)) == CELLS and all(text.count("finished") > 0 for text in said)
    runs = [path.read_text().count("model: done") for path in (folder / "runs").glob("cells/*/log.txt")]
    assert runs == [1] * CELLS


@pytest.fixture
def scheduler(folder):
    """The address of a cluster that runs already: a scheduler and two workers."""
    file, logs = folder / "scheduler.json", subprocess.DEVNULL
    start = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    processes = [subprocess.Popen([*start, "--no-dashboard", "--scheduler-file", str(file)], stderr=logs)]
    while not file.exists():
        time.sleep(0.1)
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(file), "--nthreads", "1"]
    processes += [subprocess.Popen([*worker, "--no-dashboard"], stderr=logs) for _ in range(2)]
    yield json.loads(file.read_text())["address"]
    kill([pid for process in processes for pid in (*descendants(process.pid), process.pid)])
    for process in processes:
        process.wait()


def test_a_cluster_that_runs_already(folder, scheduler):
    """It gives what this machine's own workers give, and is there afterwards; one failure ends a sweep that is to fail fast."""
    for out, options in (("runs", ["--scheduler", scheduler]), ("calm", [])):
        subprocess.run(command(folder, "run", str(folder / "many.yaml"), "--quiet", *options, out=out), check=True)
    assert len(finished(folder)) == CELLS
    assert table(folder) == table(folder, "calm")  # whatever number of threads the workers of a cluster have
    bad = SWEEP.replace(".variance: [0.5, 1.0]", ".variance: [-1.0, 1.0]")
    (folder / "many.yaml").write_text(bad)
    options = ["--scheduler", scheduler, "--fail-fast"]
    done = subprocess.run(command(folder, "run", str(folder / "many.yaml"), *options, out="fast"), capture_output=True)
    assert done.returncode == 3
    states = [line.split(",")[3] for line in table(folder, "fast").splitlines()[1:]]
    assert states.count("failed") >= 1 and states.count("missing") > CELLS // 2


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a disk of its own cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(folder, small_disk):
    subprocess.run(command(folder, "run", str(folder / "many.yaml"), "--quiet", out="calm"), check=True)
    first = subprocess.run(
        command(folder, "run", str(folder / "many.yaml"), "--quiet", out="small"), capture_output=True, text=True
    )
    assert first.returncode == 1 and first.stderr.count("\n") == 1 and "No space left" in first.stderr
    seen = finished(folder, "small")
    assert 0 < len(seen) < CELLS
    subprocess.run(["mount", "-o", "remount,size=200m", str(small_disk)], check=True)
    subprocess.run(command(folder, "run", str(folder / "many.yaml"), "--quiet", out="small"), check=True)
    now = finished(folder, "small")
    assert len(now) == CELLS and all(now[name] == when for name, when in seen.items())
    assert table(folder, "small") == table(folder, "calm")


@pytest.fixture
def own_stages(folder):
    """What runs a sweep of an experiment with stages of the user's, by its grid: options of the command, and what it said."""
    (folder / "own_stages.py").write_text(OWN)
    (folder / "exact.yaml").write_text(EXACT.replace("stages:\n", "stages:\n  first: {type: trouble, kind: none}\n"))

    def ran(text, *options):
        (folder / "many.yaml").write_text(f"name: trouble\nexperiment: exact.yaml\n{text}")
        arguments = command(folder, "run", str(folder / "many.yaml"), "--import", "own_stages", *options)
        environment = os.environ | {"PYTHONPATH": str(folder)}
        return subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=300)

    return ran


def test_a_worker_that_fills_up_is_replaced(own_stages):
    """What cells leave behind is no fault of those that come after them."""
    grid = "grid: {seed: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], stages.first.kind: [careless]}"
    done = own_stages(grid, "--workers", "1", "--memory", "2GiB")
    assert done.returncode == 0 and "10 cells: 10 finished" in done.stdout


@pytest.mark.parametrize(("kind", "limits", "said"), [
    ("endless", ["--seconds", "30"], "it was stopped after 30 s, its time limit"),
    ("greedy", ["--memory", "1GiB"], "3 processes died while they ran it"),
])  # fmt: skip
def test_a_cell_that_takes_too_much(folder, own_stages, kind, limits, said):
    grid = f"grid: {{seed: [0, 1, 2, 3], stages.first.kind: [none, {kind}]}}"
    done = own_stages(f"{grid}\nexclude: [{{seed: [0, 1, 3], stages.first.kind: {kind}}}]", *limits)
    assert done.returncode == 3 and "5 cells: 4 finished, 1 failed" in done.stdout
    reason = subprocess.run(command(folder, "status", "--failed"), capture_output=True, text=True, check=True).stdout
    assert said in reason
