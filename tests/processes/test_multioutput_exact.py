"""Exact posteriors of several outputs against one dense computation on all N P values at once."""

import itertools
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

from multioutput_instances import MULTIOUTPUT, some_inputs

from cases import mostly_slow

LAYOUTS = {"diag": "npnp->np", "outputs": "npnq->npq", "inputs": "npmp->pnm", "full": "npmq->npmq"}
X, X_NEW = some_inputs(0, 6), some_inputs(1, 4)
N, M, P = 6, 4, 3
_rng = np.random.default_rng(5)
Y = _rng.normal(size=(N, P))
MISSING = np.where(_rng.uniform(size=Y.shape) < 0.35, np.nan, Y)
MEAN = mc.means.Constant([0.5, -0.3, 0.1])
NOISES = {"one": 0.2, "for each output": np.array([0.1, 0.3, 0.2]), "for each value": 0.1 + _rng.uniform(size=Y.shape)}


def dense(kernel, Y, noise):
    """The posterior mean [M P] and covariance [M P, M P] at X_NEW, and log p(Y)."""
    seen = ~np.isnan(Y.ravel())
    residual = (Y - np.asarray(MEAN.constant)).ravel()[seen]
    K = np.asarray(kernel(X)).reshape(N * P, N * P) + np.diag(np.broadcast_to(noise, Y.shape).ravel())
    K, cross = K[np.ix_(seen, seen)], np.asarray(kernel(X, X_NEW)).reshape(N * P, M * P)[seen]
    mean = np.tile(np.asarray(MEAN.constant), M) + cross.T @ np.linalg.solve(K, residual)
    covariance = np.asarray(kernel(X_NEW)).reshape(M * P, M * P) - cross.T @ np.linalg.solve(K, cross)
    quadratic = residual @ np.linalg.solve(K, residual)
    evidence = -0.5 * (quadratic + np.linalg.slogdet(K)[1] + seen.sum() * np.log(2 * np.pi))
    inverse = np.linalg.inv(K)
    left_out = np.full(N * P, np.nan), np.full(N * P, np.nan)
    left_out[0][seen] = Y.ravel()[seen] - inverse @ residual / np.diag(inverse)
    left_out[1][seen] = 1.0 / np.diag(inverse)
    return mean, covariance, evidence, left_out


@eqx.filter_jit
def computed(process):
    """The evidence, predictions with and without a cache, and those with each value left out."""
    cached = process.cached()
    predictions = {layout: cached.predict(X_NEW, layout) for layout in LAYOUTS}
    return process.log_marginal_likelihood(), process.predict(X_NEW), predictions, process.leave_one_out()


@pytest.mark.parametrize(
    ("name", "noise", "data"),
    mostly_slow(
        list(itertools.product(MULTIOUTPUT, NOISES, ["complete", "missing"])),
        ("SharedIndependent", "one", "missing"),
        ("SeparateIndependent", "for each output", "complete"),
        ("LinearCoregionalisation", "for each value", "missing"),
        ("IntrinsicCoregionalisation", "for each output", "complete"),
        ("ConvolutionProcess", "one", "missing"),
    ),
)
def test_posterior_is_the_dense_one(name, noise, data):
    kernel, values = MULTIOUTPUT[name], Y if data == "complete" else MISSING
    mean, covariance, evidence, left_out = dense(kernel, values, NOISES[noise])
    process = mc.Conditioned(mc.GP(kernel, MEAN), X, values, NOISES[noise])
    found, plain, cached, loo = computed(process)
    np.testing.assert_allclose(found, evidence, atol=1e-8)
    for layout, rule in LAYOUTS.items():
        np.testing.assert_allclose(cached[layout].mean, mean.reshape(M, P), atol=1e-8)
        np.testing.assert_allclose(cached[layout].cov, np.einsum(rule, covariance.reshape(M, P, M, P)), atol=1e-8)
    np.testing.assert_allclose(plain.cov, cached["diag"].cov, atol=1e-12)
    seen = ~np.isnan(values)
    np.testing.assert_allclose(loo.mean[seen], left_out[0].reshape(N, P)[seen], atol=1e-8)
    np.testing.assert_allclose(loo.cov[seen], left_out[1].reshape(N, P)[seen], atol=1e-8)


def test_complete_intrinsic_data_come_apart():
    """Its factorisations are [N, N] and [P, P]; told that data may be missing, it takes the way of all others."""
    prior = mc.GP(MULTIOUTPUT["IntrinsicCoregionalisation"])
    apart = mc.Conditioned(prior, X, Y, NOISES["for each output"])
    assert isinstance(apart.cached(), mc.processes.CachedKronecker)
    whole = mc.Conditioned(prior, X, Y, NOISES["for each output"], complete=False)
    assert isinstance(whole.cached(), mc.processes.CachedConditioned)

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def evidence(process):
        return process.log_marginal_likelihood()

    (value, gradient), (expected, expected_gradient) = evidence(apart), evidence(whole)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    for got, want in zip(
        jax.tree.leaves((gradient.prior, gradient.noise)),
        jax.tree.leaves((expected_gradient.prior, expected_gradient.noise)),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-9)


DRAWN = ["IntrinsicCoregionalisation", "LinearCoregionalisation", "SeparateIndependent"]


@pytest.mark.parametrize("name", mostly_slow(DRAWN, "LinearCoregionalisation"))
def test_functions_drawn_from_the_posterior_follow_its_law(name):
    """Monte Carlo over 3,000 draws: a tolerance of five standard errors."""
    values = Y if name == "IntrinsicCoregionalisation" else MISSING
    mean, covariance, *_ = dense(MULTIOUTPUT[name], values, 0.2)
    process = mc.Conditioned(mc.GP(MULTIOUTPUT[name], MEAN), X, values, 0.2).cached()
    keys = jax.random.split(jax.random.key(0), 3000)
    draw = jax.jit(jax.vmap(lambda key: process.sample_function(64, key=key)(X_NEW)))
    draws = np.asarray(draw(keys)).reshape(3000, -1)
    scale = np.diag(covariance).max()
    np.testing.assert_allclose(draws.mean(0), mean, atol=5 * np.sqrt(scale / 3000))
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=10 * scale / np.sqrt(3000))


def test_long_format_is_the_wide_one_with_gaps():
    """Each observation in a row of its own, with the number of its output, is the same as NaN where nothing was seen."""
    kernel = MULTIOUTPUT["LinearCoregionalisation"]
    rows, outputs = np.nonzero(~np.isnan(MISSING))
    X_long = np.concatenate([np.asarray(X)[rows], outputs[:, None].astype(float)], axis=1)
    long = mc.Conditioned(mc.GP(mc.kernels.OutputIndexed(kernel)), X_long, MISSING[rows, outputs][:, None], 0.2)
    wide = mc.Conditioned(mc.GP(kernel), X, MISSING, 0.2)
    np.testing.assert_allclose(long.log_marginal_likelihood(), wide.log_marginal_likelihood(), rtol=1e-10)
    asked = jnp.concatenate([X_NEW, jnp.full((M, 1), 2.0)], axis=1)
    np.testing.assert_allclose(long.predict(asked).mean[:, 0], wide.predict(X_NEW).mean[:, 2], atol=1e-10)
    np.testing.assert_allclose(long.predict(asked).cov[:, 0], wide.predict(X_NEW).cov[:, 2], atol=1e-10)


@pytest.mark.parametrize("name", ["IntrinsicCoregionalisation", "LinearCoregionalisation"])
def test_marginal_likelihood_trains(name):
    data = (X, Y) if name == "IntrinsicCoregionalisation" else (X, MISSING)
    model = mc.Model(mc.GP(MULTIOUTPUT[name]), mc.likelihoods.Gaussian([0.2, 0.2, 0.2]))
    fitted = mc.fit(model, mc.objectives.MarginalLikelihood(), data, steps=5, every=5)
    assert fitted.history[-1] < fitted.history[0]
