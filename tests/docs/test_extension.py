"""The example of a kernel and inducing variables of a user: all that mercer promises for its own holds for these."""

import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest

import mercer as mc
from mercer.covariances import Kuf, Kuu, Kuv
from mercer.linalg import Dense, Diagonal

PATH = Path(__file__).resolve().parents[2] / "examples" / "own_variables.py"
spec = importlib.util.spec_from_file_location("own_variables", PATH)
own = importlib.util.module_from_spec(spec)
spec.loader.exec_module(own)

WIDTHS = np.array([0.5, 1.0, 2.0, 1.5])
VARIABLES = own.Increments(WIDTHS)
KERNEL = own.Brownian(0.7)
X = np.array([[0.2], [1.1], [2.5], [4.0], [7.0]])
Y = np.array([[0.1], [0.5], [-0.3], [1.2], [0.8]])
LAYOUTS = ("diag", "outputs", "inputs", "full")


def differences(edges):
    """The matrix D with u = D f(edges)."""
    return np.diff(np.eye(len(edges)), axis=0)


@pytest.mark.parametrize("kernel", [KERNEL, mc.kernels.RBF(0.8, 1.3), KERNEL + mc.kernels.Matern32()])
def test_covariances_are_differences_of_the_kernel(kernel):
    edges = np.concatenate([[0.0], np.cumsum(WIDTHS)])[:, None]
    D = differences(edges)
    np.testing.assert_allclose(Kuf(VARIABLES, kernel, X), D @ np.asarray(kernel(edges, X)), atol=1e-12)
    expected = D @ np.asarray(kernel(edges)) @ D.T
    np.testing.assert_allclose(Kuu(VARIABLES, kernel).dense(), expected, atol=1e-12)
    np.testing.assert_allclose(Kuv(VARIABLES, kernel, VARIABLES), expected, atol=1e-12)


def test_increments_of_brownian_motion_are_independent():
    assert isinstance(Kuu(VARIABLES, KERNEL), Diagonal)
    assert isinstance(Kuu(VARIABLES, mc.kernels.RBF()), Dense)


@pytest.mark.slow
def test_short_increments_are_slopes():
    """(f(t) - f(t - h)) / h tends to the derivative in the middle, with an error of order h^2."""
    kernel, h = mc.kernels.RBF(0.8), 1e-3
    variables = own.Increments([1.0 - h / 2, h])
    slope = mc.inducing.Derivative(np.array([[1.0]]), 0)
    cross = np.asarray(Kuf(variables, kernel, X))[1] / h
    np.testing.assert_allclose(cross, Kuf(slope, kernel, X)[0], atol=1e-5)
    np.testing.assert_allclose(Kuu(variables, kernel).dense()[1, 1] / h**2, Kuu(slope, kernel).dense()[0, 0], atol=1e-5)


def best(inducing, X=X, Y=Y):
    """The model with the best q(u), its bound, and the log evidence."""
    prior, likelihood, objective = mc.GP(KERNEL), mc.likelihoods.Gaussian(0.1), mc.objectives.CollapsedELBO()
    model = mc.Model(mc.Sparse(prior, inducing), likelihood)
    evidence = mc.Conditioned(prior, X, Y, 0.1).log_marginal_likelihood()
    return mc.Model(objective.posterior(model, X, Y), likelihood), objective.bound(model, X, Y), evidence


def test_the_bound_is_below_the_evidence_and_reaches_it():
    model, bound, evidence = best(VARIABLES)
    assert bound < evidence
    np.testing.assert_allclose(mc.elbo(model, X, Y), bound, rtol=1e-8)
    # increments between neighbouring data determine the function at these
    _, bound, _ = best(own.Increments(np.diff(X[:, 0], prepend=0.0)))
    np.testing.assert_allclose(bound, evidence, rtol=1e-8)


def test_minibatches_come_close_to_the_best():
    X, Y = own.walks(100)
    start = mc.Model(mc.Sparse(mc.GP(KERNEL), own.Increments(np.full(20, 0.5))), mc.likelihoods.Gaussian(0.1))
    model = own.train(KERNEL, own.Increments(np.full(20, 0.5)), (X, Y), mc.likelihoods.Gaussian(0.1), steps=200)
    bound = mc.elbo(model, X, Y)
    objective = mc.objectives.CollapsedELBO()
    assert mc.elbo(start, X, Y) < bound < objective.bound(model, X, Y) + 1e-8
    assert bound > objective.bound(start, X, Y)  # kernel, noise and widths were trained, too
    exact = mc.Conditioned(model.posterior.prior, X, Y, model.likelihood.variance)
    assert bound < exact.log_marginal_likelihood()


def test_layouts_agree():
    model, *_ = best(VARIABLES)
    full = np.asarray(model.posterior.predict(X, "full").cov)
    rules = {"diag": "npnp->np", "outputs": "npnq->npq", "inputs": "npmp->pnm", "full": "npmq->npmq"}
    for layout in LAYOUTS:
        for process in (model.posterior, model.posterior.cached()):
            np.testing.assert_allclose(process.predict(X, layout).cov, np.einsum(rules[layout], full), atol=1e-10)


@pytest.mark.parametrize("kind", ["sample", "sample_function"])
@pytest.mark.parametrize("which", ["prior", "posterior"])
def test_samples_follow_the_prediction(kind, which):
    """Monte Carlo over 3,000 draws: a tolerance of five standard errors, those of a covariance being at most sqrt(2) v."""
    model, *_ = best(VARIABLES)
    process = mc.GP(KERNEL) if which == "prior" else model.posterior
    if kind == "sample":
        draws = process.sample(X, 3000, key=jax.random.key(0))[..., 0]
    else:
        keys = jax.random.split(jax.random.key(0), 3000)
        draws = jax.vmap(lambda key: process.sample_function(200, key=key)(X)[:, 0])(keys)
    expected = process.predict(X, "inputs")
    scale = np.diag(expected.cov[0]).max()
    np.testing.assert_allclose(np.mean(draws, axis=0), expected.mean[:, 0], atol=5 * np.sqrt(scale / 3000))
    np.testing.assert_allclose(np.cov(np.asarray(draws).T), expected.cov[0], atol=5 * scale * np.sqrt(2 / 3000))


def test_saved_and_loaded_it_is_the_same(tmp_path):
    model, *_ = best(VARIABLES)
    mc.save(tmp_path / "walk.mercer", model)
    loaded = mc.load(tmp_path / "walk.mercer")
    assert type(loaded.posterior.prior.kernel) is own.Brownian
    assert type(loaded.posterior.inducing) is own.Increments
    assert jax.tree.structure(loaded) == jax.tree.structure(model)
    for layout in LAYOUTS:
        was, now = model.posterior.predict(X, layout), loaded.posterior.predict(X, layout)
        np.testing.assert_array_equal(was.mean, now.mean)
        np.testing.assert_array_equal(was.cov, now.cov)


def test_a_coregionalised_model_trains():
    X, g = own.walks(100, outputs=2)
    W = np.array([[1.0, 0.0], [0.7, 0.7], [0.0, 1.0]])
    kernel, likelihood = mc.kernels.IntrinsicCoregionalisation(KERNEL, W), mc.likelihoods.Gaussian([0.1, 0.1, 0.1])
    shared = mc.inducing.Shared(own.Increments(np.full(20, 0.5)))
    start = mc.Model(mc.Sparse(mc.GP(kernel), shared), likelihood)
    model = own.train(kernel, shared, (X, g @ W.T), likelihood, steps=100)
    bound = mc.elbo(model, X, g @ W.T)
    assert mc.elbo(start, X, g @ W.T) < bound
    exact = mc.Conditioned(model.posterior.prior, X, g @ W.T, model.likelihood.variance)
    assert bound < exact.log_marginal_likelihood()
    full = np.asarray(model.posterior.predict(X[::20], "full").cov)
    np.testing.assert_allclose(model.posterior.predict(X[::20], "outputs").cov, np.einsum("npnq->npq", full), atol=1e-9)
    assert model.posterior.latents().predict(X).mean.shape == (100, 2)
    assert model.posterior.sample_function(key=jax.random.key(0))(X).shape == (100, 3)


def test_increments_are_observed_and_asked_for():
    """Rises of a walk, seen without its level, add up."""
    rises = np.array([[0.3], [-0.2], [0.5], [0.1]])
    posterior = mc.Conditioned(mc.GP(KERNEL), VARIABLES, rises, noise=1e-10)
    total = posterior.predict(own.Increments([np.sum(WIDTHS)]))
    np.testing.assert_allclose(total.mean, [[rises.sum()]], atol=1e-6)
    np.testing.assert_allclose(posterior.predict(np.array([[1.5]])).mean, [[0.1]], atol=1e-6)
    # beside the level at the end, the rises say the level everywhere
    both = mc.inducing.Mixed([mc.inducing.Points(np.array([[5.0]])), VARIABLES])
    posterior = mc.Conditioned(mc.GP(KERNEL), both, np.concatenate([[[0.7]], rises]), noise=1e-10)
    np.testing.assert_allclose(posterior.predict(np.array([[3.5]])).mean, [[0.6]], atol=1e-6)
