"""Cells that share a program: which do, that they give what they give alone, and that one bad cell harms no other."""

import json
import re
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
from test_run import CURVE

import mercer as mc
from mercer.experiments import Experiment, Options, Store, Sweep, engine, run
from mercer.experiments.engine import run_cell, run_cells, run_group
from mercer.experiments.groups import planned_groups, signature, stages_to_group, train_group
from mercer.experiments.scores import scores_of
from mercer.training import loop, together

RATE = "stages.posterior.optimiser.learning_rate"
SWEEP = f"name: together\nexperiment: curve.yaml\ngrid:\n  data.number: [2, 3]\n  {RATE}: [1e-2, 1e-3]\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "curve.yaml").write_text(CURVE)
    return tmp_path


def cells_of(folder, text=SWEEP):
    return Sweep.of(text, folder=folder).cells


def sent(cells):
    return [(cell.experiment.document.value, cell.experiment.document.name, cell.identity) for cell in cells]


def test_what_is_grouped(folder):
    cells = cells_of(folder)
    assert len({signature(cell) for cell in cells}) == 1 and len(planned_groups(cells)) == 1
    assert [len(group) for group in planned_groups(cells, workers=2)] == [2, 2]
    others = {
        "seed: [0, 1]": 1,
        "stages.prior.noise: [0.1, 0.2]": 1,
        "data.noise: [0.1, 0.2]": 1,
        "data.num: [100, 200]": 2,
        "stages.posterior.steps: [10, 20]": 2,
        "stages.prior.M: [5, 6]": 2,
        "stages.posterior.optimiser.type: [adam, adabelief]": 2,
        "stages.prior.kernel: [RBF, Matern32]": 2,
    }
    for axis, number in others.items():
        assert len(planned_groups(cells_of(folder, f"experiment: curve.yaml\ngrid: {{{axis}}}"))) == number, axis


def test_what_cannot_be(folder):
    text = "experiment: curve.yaml\ngrid: {stages.posterior.optimiser: [lbfgs, {type: NaturalGradient, gamma: 0.5}]}"
    assert [stages_to_group(cell) for cell in cells_of(folder, text)] == [[], []]
    assert [stages_to_group(cell) for cell in cells_of(folder)] == [["posterior"]] * 4


@pytest.fixture
def at_once(monkeypatch):
    """As on a GPU."""
    monkeypatch.setattr(engine, "on_cpu", lambda: False)


def test_cells_are_what_they_are_alone(folder, caplog):
    """To the last bit, where another has been compiled for them."""
    cells = cells_of(folder)
    loop.compiled_loop.cache_clear()
    compiled = []
    # The level is said, as the command, if a test ran it before, makes JAX silent.
    with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
        for some in (cells[:1], cells):
            run_group(sent(some), str(folder / "together"), Options())
            compiled.append(len(re.findall(r"Compiling (jit\()?some_steps", caplog.text)))
    assert compiled == [2, 2]  # a loop for each of two stages
    for one in sent(cells)[1:3]:
        loop.compiled_loop.cache_clear()
        run_cell(*one, str(folder / "alone"))
        scores = [Store(folder / name).scores(one[2]) for name in ("together", "alone")]
        assert scores[0] == scores[1] and scores[0]["test"]


def test_cells_at_once_are_what_they_are_alone(folder, at_once):
    cells = cells_of(folder)
    run_group(sent(cells), str(folder / "together"), Options())
    trained = list((folder / "together" / "cells").glob("*/log.txt"))
    assert len(trained) == 4 and all("posterior: read" in path.read_text() for path in trained)
    for one in sent(cells)[1:3]:
        run_cell(*one, str(folder / "alone"))
        scores = [Store(folder / name).scores(one[2]) for name in ("together", "alone")]
        for part in ("train", "validation", "test"):
            # The objective is ill-conditioned: rounding of 1e-16 grows by eight decades in 30 steps.
            assert np.allclose(list(scores[0][part].values()), list(scores[1][part].values()), rtol=1e-6)
            assert scores[0][part]["rmse"] == pytest.approx(scores[1][part]["rmse"], rel=1e-9)


def test_the_best_by_validation(folder):
    """Each cell keeps its own, of those that it has on the way alone, and stops when it stops there."""
    value = Experiment.of(CURVE).document.value
    stages = {name: value["stages"][name] for name in ("prior", "posterior")}
    stages["posterior"] |= {"validate": "rmse", "patience": 10, "every": 5, "steps": 40}
    (folder / "curve.yaml").write_text(json.dumps(value | {"stages": stages}))
    cells = cells_of(folder, SWEEP.replace("1e-2", "0.3"))
    with cells[0].experiment.precision():
        assert train_group(cells, folder / "stages") == 4
    lengths = set()
    for cell, one in zip(cells, sent(cells), strict=True):
        run_cell(*one, str(folder / "alone"))
        together, alone = (
            mc.load(root / cell.hashes["posterior"]) for root in (folder / "stages", folder / "alone/stages")
        )
        assert np.allclose(together.history, alone.history, rtol=1e-6)
        rmse = Store(folder / "alone").scores(one[2])["validation"]["rmse"]
        found = scores_of(together.model, *cell.problem.data.part("validation"), cell.problem.scale, ["rmse"])["rmse"]
        assert found == pytest.approx(rmse, rel=1e-6)
        lengths.add(len(alone.history))
    assert len(lengths) > 1
    shorter = {
        **one[0],
        "stages": stages | {"posterior": {**cell.experiment.document.value["stages"]["posterior"], "steps": 5}},
    }
    assert run(Experiment.of(json.dumps(shorter)), folder).scores["validation"]["rmse"] >= rmse


def test_later_stages_are_trained_together_too(folder):
    """Each goes on from what the one before gave, also where that is a search, which is made alone."""
    value = Experiment.of(CURVE).document.value
    first = {name: value["stages"][name] for name in ("prior", "posterior")}
    again = {"type": "fit", "model": "$posterior.model", "objective": first["posterior"]["objective"], "steps": 5}
    again |= {"rows": 40, "batch_size": {"type": "Root", "of": 1, "factor": 0.5}}  # the same ones, alone and together
    again["frozen"] = ".posterior.kernel"  # in which rounding grows, at minibatches more than the tolerance

    def cells_with(**later):
        (folder / "curve.yaml").write_text(json.dumps({**value, "stages": first | later}))
        return cells_of(folder)[:2]

    searched = cells_with(search={**again, "optimiser": "lbfgs"}, again={**again, "model": "$search.model"})
    assert [stages_to_group(cell) for cell in searched] == [["posterior", "again"]] * 2
    cells = cells_with(again=again)
    assert [stages_to_group(cell) for cell in cells] == [["posterior", "again"]] * 2
    with cells[0].experiment.precision():
        assert train_group(cells, folder / "stages") == 4
    run_cell(*sent(cells)[1], str(folder / "alone"))
    for name in stages_to_group(cells[1]):
        paths = [root / cells[1].hashes[name] for root in (folder / "stages", folder / "alone" / "stages")]
        assert np.allclose(*(mc.load(path).history for path in paths), rtol=1e-6)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_cell_that_is_not_finite_fails_alone(folder, on_cpu, monkeypatch):
    monkeypatch.setattr(engine, "on_cpu", lambda: on_cpu)
    cells = cells_of(folder, SWEEP.replace("1e-2", "1e200"))
    run_group(sent(cells), str(folder / "runs"), Options())
    store = Store(folder / "runs")
    states = {cell.labels[RATE]: store.state(cell.identity) for cell in cells}
    assert states == {"1e+200": "failed", "0.001": "finished"}
    failed = next(cell for cell in cells if cell.labels[RATE] == "1e+200")
    assert (
        "TrainingError" in store.failure(failed.identity)["reason"]
        or "not finite" in store.failure(failed.identity)["reason"]
    )


def test_cells_say_why_they_were_not_trained_at_once(folder, at_once, monkeypatch):
    def refuses(cells, store):
        raise ValueError("no program")

    monkeypatch.setattr(engine, "train_group", refuses)
    cells = cells_of(folder)[:2]
    run_group(sent(cells), str(folder / "runs"), Options())
    store = Store(folder / "runs")
    for cell in cells:
        log = (store.folder(cell.identity) / "log.txt").read_text()
        assert "not trained in one program with 1 more: ValueError: no program" in log.splitlines()[0]


def test_what_is_there_is_not_trained_again(folder):
    cells = cells_of(folder)
    with cells[0].experiment.precision():
        assert train_group(cells[:2], folder / "stages") == 2
        assert train_group(cells[:3], folder / "stages") == 0  # one alone is not trained here
    assert isinstance(mc.load(folder / "stages" / cells[0].hashes["posterior"]), mc.training.Fit)


@pytest.mark.parametrize("changes", [{}, {"validate": "rmse"}])
def test_a_group_that_was_cut_off_goes_on(folder, monkeypatch, changes):
    """Each cell from its own checkpoint, with the same numbers, also where one has finished in the meantime."""
    value = Experiment.of(CURVE).document.value
    value["stages"]["posterior"] |= changes
    (folder / "curve.yaml").write_text(json.dumps(value))
    cells = cells_of(folder)
    calls = []

    def chunks(runs, begin_at, count, original=together._chunks):
        calls.append((len(runs), begin_at))
        if cut_off and begin_at == 20:
            raise KeyboardInterrupt
        return original(runs, begin_at, count)

    monkeypatch.setattr(together, "_chunks", chunks)
    monkeypatch.setattr(together, "_BETWEEN", 0.0)
    with cells[0].experiment.precision():
        cut_off = False
        train_group(cells, folder / "whole")
        cut_off = True
        with pytest.raises(KeyboardInterrupt):
            train_group(cells, folder / "stages")
        assert len(list((folder / "stages").glob("*.together"))) == 4 and not list((folder / "stages").glob("*.claim"))
        cut_off = False
        calls.clear()
        assert train_group(cells[1:], folder / "stages") == 3
    assert calls == [(3, 20)]
    assert [path.stem for path in (folder / "stages").glob("*.together")] == [cells[0].hashes["posterior"]]
    for cell in cells[1:]:
        fits = [mc.load(folder / name / cell.hashes["posterior"]) for name in ("whole", "stages")]
        assert np.allclose(fits[0].history, fits[1].history, rtol=1e-6)
        means = [fit.model.predict(cell.problem.data.X).mean for fit in fits]
        assert np.allclose(*means, rtol=1e-6, atol=1e-9)
    run_cell(*sent(cells)[0], str(folder))
    assert not list((folder / "stages").glob("*.together"))


@pytest.fixture
def worker():
    """The address of a cluster with one worker, in this process."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


def test_each_cell_of_a_group_is_told_when_it_is_over(folder, worker, monkeypatch):
    heard, told = threading.Event(), {}

    def watch(identity, state):
        told[identity] = state
        heard.set()

    def waits_for_the_first(*arguments, original=engine.run_cell):
        state = original(*arguments)
        assert heard.wait(60.0)
        return state

    monkeypatch.setattr(engine, "run_cell", waits_for_the_first)
    cells = cells_of(folder)[:2]
    assert len(planned_groups(cells)) == 1
    found = run_cells(cells, folder / "runs", Options(scheduler=worker), watch)
    assert found == told == {cell.identity: "finished" for cell in cells}


def test_the_first_failure_ends_a_group_that_is_to_fail_fast(folder):
    cells = cells_of(folder, SWEEP.replace("[1e-2, 1e-3]", "[1e200, 1e-3]"))
    run_group(sent(cells), str(folder / "runs"), Options(fail_fast=True))
    assert [Store(folder / "runs").state(cell.identity) for cell in cells] == ["failed", *["missing"] * 3]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="memory maps are those of Linux")
def test_a_process_with_many_programs_lets_go_of_them(folder, monkeypatch):
    def maps():
        return Path("/proc/self/maps").read_text().count("\n")

    cells = sent(cells_of(folder))
    run_group(cells[:1], str(folder / "runs"), Options())
    full = maps()
    run_group(cells[1:2], str(folder / "runs"), Options())
    assert maps() < full + 50  # the limit is far, and what is compiled is used again
    monkeypatch.setattr(engine, "_MAPS", 0.0)
    run_group([], str(folder / "runs"), Options())
    assert maps() < full - 100
    run_group(cells[2:3], str(folder / "runs"), Options())
    assert Store(folder / "runs").state(cells[2][2]) == "finished"
