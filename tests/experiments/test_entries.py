"""Data of which some entries are not observed, or held out: parts and scores."""

import jax
import numpy as np
import pytest
from scipy.stats import norm

import mercer as mc
from mercer.experiments import Experiment, run, scores
from mercer.experiments.data import images, npz
from mercer.experiments.scores import scores_of


def test_entries_of_outputs_are_held_out(tmp_path):
    rng = np.random.default_rng(0)
    Y = rng.normal(size=(30, 2))
    Y[3, 0] = np.nan
    np.savez(tmp_path / "t.npz", Y=Y, mask=rng.uniform(size=Y.shape) < 0.3, fold=np.arange(30) % 3)
    whole = npz(str(tmp_path / "t.npz"), inputs=None, targets="Y", hidden="mask")
    (X, train), (_, test) = whole.part("train"), whole.part("test")
    mask = np.load(tmp_path / "t.npz")["mask"]
    assert np.array_equal(X[:, 0], np.flatnonzero((~mask & ~np.isnan(Y)).any(axis=1)))
    assert np.nansum(train) + np.nansum(test) == pytest.approx(np.nansum(Y))
    gaps = npz(str(tmp_path / "t.npz"), inputs=None, targets="Y", last=10, hidden=[[2, 5, 1]])
    assert gaps.Y.shape == (10, 2) and np.array_equal(gaps.part("test")[1][:, 1], Y[22:25, 1])
    assert np.isnan(gaps.part("test")[1][:, 0]).all()
    of_fold = npz(str(tmp_path / "t.npz"), inputs=None, targets="Y", fold="fold", number=1, shown=0.5)
    assert np.array_equal(of_fold.test, np.arange(1, 30, 3)) and 5 < np.isnan(of_fold.part("train")[1]).sum() < 35
    assert not np.isnan(of_fold.part("test")[1]).any()


def test_images(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 255, (20, 4, 4), np.uint8),
        "x_test": rng.integers(0, 255, (6, 4, 4), np.uint8),
    }
    np.savez(tmp_path / "i.npz", y_train=np.arange(20) % 3, y_test=np.arange(6) % 3, **arrays)
    data = images(str(tmp_path / "i.npz"), validation=5)
    assert [len(data.part(part)[0]) for part in ("train", "validation", "test")] == [15, 5, 6]
    assert np.allclose(data.X.mean(axis=1), 0.0) and np.allclose(data.X.std(axis=1), 1.0)
    assert np.array_equal(data.part("validation")[1][:, 0], np.arange(15, 20) % 3)
    first, row = arrays["x_test"][0].ravel(), data.part("test")[0][0]
    assert np.corrcoef(first, row)[0, 1] == pytest.approx(1.0)
    assert [len(images(str(tmp_path / "i.npz"), 2, 10).part(part)[0]) for part in ("train", "test")] == [8, 6]
    with pytest.raises(ValueError, match="less than 10, got 10"):
        images(str(tmp_path / "i.npz"), 10, 10)
    np.savez(tmp_path / "other.npz", x_train=arrays["x_train"])
    with pytest.raises(ValueError, match="no array 'y_train'"):
        images(str(tmp_path / "other.npz"))


def test_scores_of_what_is_observed(monkeypatch):
    """Against the same rows without the missing ones, for outputs that are independent; and by blocks of rows."""
    X, Y = np.linspace(0.0, 1.0, 12)[:, None], np.random.default_rng(1).normal(size=(12, 2))
    kernel = mc.kernels.SharedIndependent(mc.kernels.RBF(0.3), 2)
    model = mc.Model(mc.GP(kernel), mc.likelihoods.Gaussian(0.1))
    holed = np.where(np.arange(12)[:, None] < 6, Y, np.nan)
    names, scale = ["nlpd", "rmse", "coverage", "smse"], np.array([2.0, 3.0])
    first = scores_of(model, X[:6], Y[:6], scale, names)
    found = scores_of(model, X, holed, scale, names)
    monkeypatch.setattr(scores, "_ENTRIES", 5)
    assert scores_of(model, X, holed, scale, names) == pytest.approx(found)
    assert found.pop("nlpd") == pytest.approx(0.5 * first.pop("nlpd"))  # a row with nothing observed has density 1
    assert found == pytest.approx(first)


def test_scores_of_classes():
    """The most probable of ordered classes is where the mean of the latent is, whose edges are symmetric about it or far away."""
    X = np.array([[0.0], [1.0], [2.0], [3.0]])
    latent = np.array([[-2.0], [0.0], [0.1], [2.0]])
    process = mc.Conditioned(mc.GP(mc.kernels.RBF(0.1)), X, latent, 1e-6)
    model = mc.Model(process, mc.likelihoods.Ordinal([-1.0, 1.0], 0.5))
    Y, names = np.array([[0.0], [1.0], [1.0], [1.0]]), ["accuracy", "calibration_error", "nlpd"]
    assert scores_of(model, X, Y, np.ones(1), names)["accuracy"] == 0.75
    probabilities = scores.Scored(model, X, Y, np.ones(1)).probabilities
    cdf = norm.cdf((np.array([-1.0, 1.0]) - latent) / 0.5)
    assert np.allclose(probabilities, np.diff(cdf, axis=1, prepend=0.0, append=1.0), atol=1e-5)
    successes = mc.Model(process, mc.likelihoods.Bernoulli())
    assert np.allclose(scores.Scored(successes, X, Y, np.ones(1)).probabilities[:, 1:], norm.cdf(latent), atol=1e-5)


def test_scores_that_make_no_sense():
    X, Y = np.zeros((2, 1)), np.array([[0.0], [1.0]])
    numbers = mc.Model(mc.GP(mc.kernels.RBF()), mc.likelihoods.Gaussian())
    with pytest.raises(ValueError, match="need a likelihood of classes and one column of labels, got Gaussian and 1"):
        scores_of(numbers, X, Y, np.ones(1), ["accuracy"])
    kernel = mc.kernels.SharedIndependent(mc.kernels.RBF(), 3)
    classes = mc.Model(mc.GP(kernel), mc.likelihoods.Softmax(3))
    for name in ("rmse", "mae", "smse", "coverage"):
        with pytest.raises(ValueError, match="not for the probabilities of classes that Softmax predicts: take nlpd"):
            scores_of(classes, X, Y, np.ones(1), [name])


def test_a_number_beside_a_class(tmp_path):
    """Such a model is trained and scored as any other; intervals of what it predicts cannot be compared with Y."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "t.npz", X=rng.normal(size=(30, 1)), y=np.c_[rng.normal(size=30), np.arange(30) % 3])
    text = f"""
    data: {{type: npz, path: {tmp_path / "t.npz"}}}
    standardise: [X]
    stages:
      both:
        type: fit
        model:
          type: Model
          posterior: {{type: Sparse, prior: {{type: GP, kernel: RBF}}, inducing: {{type: Points, Z: [[0], [1]]}}, num_outputs: 4}}
          likelihood: {{type: PerOutput, likelihoods: [Gaussian, {{type: Softmax, classes: 3}}]}}
        objective: ELBO
        steps: 1
    scores: [nlpd]
    """
    outcome = run(Experiment.of(text), tmp_path / "runs")
    assert set(outcome.scores["test"]) == {"nlpd"} and (outcome.folder / "fit.png").is_file()


def test_starts_of_several_outputs():
    kernel, key = mc.kernels.RBF(0.3), jax.random.key(0)
    mixed = mc.kernels.LinearCoregionalisation.of(kernel, 4, 2, key=key)
    assert mixed.num_latents == 6 and np.array_equal(mixed.W[:, 2:], 0.3 * np.eye(4))
    shared = mc.kernels.LinearCoregionalisation.of(kernel, 4, 2, own=False, key=key)
    assert np.array_equal(shared.W, mixed.W[:, :2])
    with pytest.raises(ValueError, match="at least 1 of each, got 4 and 0"):
        mc.kernels.LinearCoregionalisation.of(kernel, 4, 0, key=key)
    apart = mc.kernels.SeparateIndependent.of(kernel, 3)
    assert apart.num_outputs == 3 and len(apart.kernels) == 3
    Y = np.array([[1.0, 2.0], [3.0, np.nan], [5.0, 6.0]])
    assert np.allclose(mc.experiments.noise_variances(Y, 0.5), [0.5 * 8.0 / 3.0, 2.0])
    assert mc.experiments.Root(of=1, factor=0.5, most=10)(100) == 10 and mc.experiments.Root(of=2, most=20)(100) == 10
