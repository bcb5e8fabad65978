"""Checkpoints: a run that ends in the middle goes on to the numbers that it would have had."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import optax
import pytest
from safetensors.numpy import save_file
from toys import KEY, LeastSquares, line, line_data, same, sparse, wave_data

import mercer as mc
from mercer.training import CheckpointError, EarlyStopping, NaturalGradient
from mercer.training.checkpoint import steps_in

OPTIONS = dict(optimiser=optax.adam(0.1), steps=30, batch_size=6, every=8, key=KEY)


def train(**changes):
    return mc.fit(line(), LeastSquares(), line_data(), **(OPTIONS | changes))


@pytest.fixture(scope="module")
def whole():
    return train()


class Interrupted(Exception):
    pass


def interrupt(progressed):
    if progressed.step == 16:
        raise Interrupted


def test_a_run_with_fewer_steps_goes_on(whole, tmp_path):
    path = tmp_path / "run.ckpt"
    for steps in (8, 11, 25):  # at the end of a chunk, and twice inside one
        train(steps=steps, checkpoint=path)
    assert same(train(checkpoint=path), whole)
    assert [file.name for file in tmp_path.iterdir()] == ["run.ckpt"]


def test_a_run_that_was_interrupted_goes_on(whole, tmp_path):
    path, seen = str(tmp_path / "run.ckpt"), []
    with pytest.raises(Interrupted):
        train(checkpoint=path, callbacks=[interrupt])
    assert same(train(checkpoint=path, callbacks=[lambda progressed: seen.append(progressed.step)]), whole)
    assert seen == [16, 24, 30]  # once where it was left, and then after every chunk
    # And a run that is over is not run again.
    assert same(train(checkpoint=path), whole)


def test_restarts_go_on(tmp_path):
    path = tmp_path / "run.ckpt"
    train(restarts=2, steps=9, checkpoint=path)
    assert same(train(restarts=2, checkpoint=path), train(restarts=2))


def test_a_sparse_model_goes_on(tmp_path):
    path, data = tmp_path / "run.ckpt", wave_data()
    model = sparse(likelihood=mc.likelihoods.StudentT())
    options = dict(optimiser=NaturalGradient(0.2, optax.adam(0.01)), batch_size=8, every=3, key=KEY)
    whole = mc.fit(model, mc.objectives.ELBO(), data, steps=7, **options)
    mc.fit(model, mc.objectives.ELBO(), data, steps=4, checkpoint=path, **options)
    assert same(mc.fit(model, mc.objectives.ELBO(), data, steps=7, checkpoint=path, **options), whole)


KILLED = """
import sys, time
import jax; jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # as in conftest: the same numbers need the same code
sys.path.insert(0, sys.argv[2])
import test_checkpoints
test_checkpoints.train(checkpoint=sys.argv[1], callbacks=[lambda progressed: time.sleep(2.0)])
"""


def test_a_run_that_was_killed_goes_on(whole, tmp_path):
    path, seen = tmp_path / "run.ckpt", []
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(path), str(Path(__file__).parent)])
    try:
        for _ in range(1200):
            if path.exists() or child.poll() is not None:
                break
            time.sleep(0.1)
    finally:
        child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert same(train(checkpoint=path, callbacks=[lambda progressed: seen.append(progressed.step)]), whole)
    assert seen[0] in (8, 16, 24)
    assert seen[-1] == 30


def test_early_stopping_ends_a_resumed_run_where_it_would_have_ended(tmp_path):
    path = tmp_path / "run.ckpt"
    options = dict(steps=400, optimiser=optax.adam(0.2), batch_size=None)
    stopping = EarlyStopping(patience=16, tolerance=1e-3, window=8)
    whole = train(callbacks=[stopping], **options)
    assert 30 < len(whole.history) < 400
    with pytest.raises(Interrupted):
        train(callbacks=[stopping, interrupt], checkpoint=path, **options)
    assert same(train(callbacks=[stopping], checkpoint=path, **options), whole)


def test_a_run_that_was_stopped_early_stays_so(tmp_path):
    path = tmp_path / "run.ckpt"
    options = dict(steps=400, optimiser=optax.adam(0.2), batch_size=None, checkpoint=path)
    stopping = EarlyStopping(patience=16, tolerance=1e-3, window=8)
    stopped = train(callbacks=[stopping], **options)
    assert same(train(callbacks=[stopping], **options), stopped)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The bytes of a checkpoint."""
    path = tmp_path_factory.mktemp("saved") / "run.ckpt"
    train(steps=8, checkpoint=path)
    return path.read_bytes()


class Elsewhere(mc.means.Linear):
    """Another class, with parameters of the same shapes."""


OTHER = {
    "data": dict(data=(line_data()[0] + 1.0, line_data()[1])),
    "key": dict(key=jax.random.key(8)),
    "batch_size": dict(batch_size=5),
    "restarts": dict(restarts=2),
    "optimiser": dict(optimiser=optax.sgd(0.1)),
    "optimiser, its settings": dict(optimiser=optax.adam(0.2)),
    "optimiser, its schedule": dict(optimiser=optax.adam(optax.cosine_decay_schedule(0.1, 30))),
    "optimiser, a function in it": dict(optimiser=optax.adam(lambda step: 0.1)),
    "model": dict(model=mc.means.Constant(0.0)),
    "model, of the same shape": dict(model=Elsewhere([[0.0]], 0.0)),
    "model, a part of it frozen": dict(frozen=lambda model: model.bias),
    "objective": dict(objective=type("Other", (LeastSquares,), {})()),
}


@pytest.mark.parametrize("case", OTHER)
def test_a_checkpoint_of_another_run_is_refused(case, saved, tmp_path):
    path = tmp_path / "run.ckpt"
    message = f"differs in .*{case.split(',')[0]}"
    path.write_bytes(saved)
    arguments = dict(model=line(), objective=LeastSquares(), data=line_data(), checkpoint=path) | OPTIONS | OTHER[case]
    with pytest.raises(CheckpointError, match=f"run.ckpt.*{message}.*delete it to begin anew"):
        mc.fit(**arguments)
    assert path.read_bytes() == saved


def gvi(divergence, weight=1.0):
    return mc.objectives.GVI(None, mc.objectives.risks.ExpectedNegativeLogLikelihood(), divergence, weight)


OBJECTIVES = {
    "divergence": (gvi(mc.divergences.Projected(mc.divergences.Renyi(0.5))), "objective.divergence"),
    "weight": (gvi(mc.divergences.KL(), 200.0), r"objective.weight \(there .*1.0, here .*200.0\)"),
    "weights of rows": (gvi(mc.divergences.KL()), "data.weights"),
    "a row in the middle": (gvi(mc.divergences.KL()), "data.Y"),
    "what is held still": (gvi(mc.divergences.KL()), "model.posterior.inducing.Z"),
    "the learning rate": (gvi(mc.divergences.KL()), "optimiser.*0.5"),
}


@pytest.mark.parametrize("case", OBJECTIVES)
def test_a_difference_in_numbers_is_another_run(case, tmp_path):
    path, (X, Y) = tmp_path / "run.ckpt", wave_data(3000)
    options = dict(steps=1, every=1, batch_size=4, checkpoint=path, frozen=lambda m: m.posterior.inducing)
    mc.fit(sparse(), gvi(mc.divergences.KL()), (X, Y), **options)
    (objective, message), model = OBJECTIVES[case], sparse()
    data = (X, Y, np.full(len(X), 2.0)) if case == "weights of rows" else (X, Y)
    if case == "a row in the middle":
        data = (X, np.where(np.arange(len(X))[:, None] == 1500, Y + 1e-9, Y))
    if case == "what is held still":
        model = eqx.tree_at(lambda m: m.posterior.inducing.Z, model, model.posterior.inducing.Z + 1e-9)
    if case == "the learning rate":
        options["optimiser"] = optax.adam(0.5)
    with pytest.raises(CheckpointError, match=message):
        mc.fit(model, objective, data, **options)


def test_what_is_frozen_is_a_part_of_the_run(tmp_path):
    """Two parameters of the same shape: the one must not take the value of the other."""
    path, model = tmp_path / "run.ckpt", mc.means.Linear([[0.0]], [0.0])
    weights_moved = dict(optimiser=optax.sgd(0.1), frozen=lambda model: model.bias)
    mc.fit(model, LeastSquares(), line_data(), steps=3, checkpoint=path, **weights_moved)
    same_shape = mc.means.Linear([[0.0]], [0.0])
    with pytest.raises(CheckpointError):
        mc.fit(
            same_shape, LeastSquares(), line_data(), steps=6, checkpoint=path, optimiser=optax.sgd(0.1),
            frozen=lambda model: model.weights,
        )  # fmt: skip


def spoil(kind, path, saved):
    if kind == "truncated":
        path.write_bytes(saved[: len(saved) // 2])
    elif kind == "header alone":
        path.write_bytes(saved[:40])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "random":
        path.write_bytes(np.random.default_rng(0).bytes(2000))
    elif kind == "folder":
        path.mkdir()
    elif kind == "other safetensors":
        save_file({"a": np.zeros(3)}, path)
    elif kind == "not ours":
        save_file({"a": np.zeros(3)}, path, {"mercer": '{"format": 2}'})
    elif kind == "without history":
        save_file({"a": np.zeros(3)}, path, {"mercer": '{"format": 2, "run": {}}'})
    elif kind == "another version":
        save_file({"history": np.zeros(3)}, path, {"mercer": '{"format": 0, "run": {}}'})


KINDS = ["truncated", "header alone", "empty", "random", "folder", "other safetensors", "not ours", "without history"]


@pytest.mark.parametrize("kind", [*KINDS, "another version"])
def test_a_file_that_is_no_checkpoint_is_refused(kind, saved, tmp_path):
    path = tmp_path / "run.ckpt"
    spoil(kind, path, saved)
    with pytest.raises(CheckpointError, match=r"run\.ckpt"):
        train(checkpoint=path)
    assert os.listdir(tmp_path) == ["run.ckpt"]


@pytest.mark.parametrize("kind", KINDS)
def test_how_far_a_run_has_come(kind, saved, tmp_path):
    path = tmp_path / "run.ckpt"
    assert steps_in(path) == 0
    path.write_bytes(saved)
    assert steps_in(path) > 0
    path.unlink()
    spoil(kind, path, saved)
    with pytest.raises(CheckpointError, match=r"run\.ckpt"):
        steps_in(path)


def test_a_folder_that_is_not_there_is_said_at_once(tmp_path):
    calls = []
    with pytest.raises((ValueError, OSError), match="nowhere"):
        train(checkpoint=tmp_path / "nowhere" / "run.ckpt", callbacks=[calls.append])
    assert calls == []
