"""Objectives of exact regression."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

import mercer as mc
from mercer.objectives import Batch, LeaveOneOut, MarginalLikelihood

N, D = 8, 2
_rng = np.random.default_rng(0)
X, Y = _rng.uniform(-1.0, 1.0, size=(N, D)), _rng.normal(size=(N, 2))
MISSING = np.where(_rng.uniform(size=Y.shape) < 0.3, np.nan, Y)
KERNEL, BIAS = mc.kernels.Matern52(0.8, 1.2), np.array([0.3, -0.5])
PRIOR = mc.GP(KERNEL, mc.means.Constant(BIAS))


def rising(X):
    return 0.1 + X[:, :1] ** 2


def covariance(noise, seen):
    noise = np.asarray(noise(X))[:, 0] if callable(noise) else np.full(N, noise)
    return (np.asarray(KERNEL(X)) + np.diag(noise))[np.ix_(seen, seen)]


def log_evidence(noise, Y):
    total = 0.0
    for y, bias in zip(Y.T, BIAS, strict=True):
        seen = ~np.isnan(y)
        total += scipy.stats.multivariate_normal(cov=covariance(noise, seen)).logpdf(y[seen] - bias)
    return total


def log_left_out(noise, Y):
    """sum log p(y_n | the others), each a ratio of two densities: p(y) / p(y without y_n)."""
    total = 0.0
    for y, bias in zip(Y.T, BIAS, strict=True):
        seen = ~np.isnan(y)
        for n in np.flatnonzero(seen):
            rest = seen & (np.arange(N) != n)
            for rows, sign in ((seen, 1), (rest, -1)):
                total += sign * scipy.stats.multivariate_normal(cov=covariance(noise, rows)).logpdf(y[rows] - bias)
    return total


@pytest.mark.parametrize("noise", [0.2, rising], ids=["number", "function"])
@pytest.mark.parametrize("Y", [Y, MISSING], ids=["complete", "missing"])
def test_both_are_what_they_say_per_datum(noise, Y):
    model, batch = mc.Model(PRIOR, mc.likelihoods.Gaussian(noise)), Batch(jnp.asarray(X), jnp.asarray(Y))
    both = eqx.filter_jit(lambda m: (MarginalLikelihood()(m, batch), LeaveOneOut()(m, batch)))
    evidence, left_out = both(model)
    np.testing.assert_allclose(evidence, -log_evidence(noise, Y) / N, rtol=1e-9)
    np.testing.assert_allclose(left_out, -log_left_out(noise, Y) / N, rtol=1e-9)


def test_a_conditioned_process_is_scored_on_the_batch():
    """Its own data do not matter, its prior and its noise do."""
    process = mc.Conditioned(PRIOR, X[:3], Y[:3], 0.2)
    np.testing.assert_allclose(MarginalLikelihood()(process, (X, Y)), -log_evidence(0.2, Y) / N, rtol=1e-9)


def test_gradients_with_missing_data_are_those_of_finite_differences():
    batch = Batch(jnp.asarray(X), jnp.asarray(MISSING))

    @jax.jit
    def values(t):
        prior = mc.GP(mc.kernels.Matern52(t["lengthscale"], t["variance"]), mc.means.Constant(t["bias"]))
        model = mc.Model(prior, mc.likelihoods.Gaussian(t["noise"]))
        return jnp.stack([MarginalLikelihood()(model, batch), LeaveOneOut()(model, batch)])

    start = {"lengthscale": 0.8, "variance": 1.2, "bias": BIAS, "noise": np.array([0.2, 0.4])}
    start = jax.tree.map(jnp.asarray, start)
    jacobian, rng, h = jax.jit(jax.jacrev(values))(start), np.random.default_rng(0), 1e-5
    for name, at in start.items():
        direction = rng.normal(size=at.shape)
        up, down = (values(start | {name: at + s * direction}) for s in (h, -h))
        slopes = [np.vdot(row, direction) for row in jacobian[name]]
        np.testing.assert_allclose(slopes, (up - down) / (2 * h), rtol=1e-6, atol=1e-8, err_msg=name)


def test_neither_takes_minibatches():
    assert not MarginalLikelihood.minibatched
    assert not LeaveOneOut.minibatched


FITS = {
    "MarginalLikelihood": MarginalLikelihood(),
    "LeaveOneOut": LeaveOneOut(),
    "MAP": mc.objectives.MAP(MarginalLikelihood(), [(lambda m: m.likelihood.variance, mc.priors.LogNormal(0.0, 1.0))]),
}
STILL = {"steps": 1, "optimiser": optax.sgd(0.0)}


@pytest.mark.parametrize("name", FITS)
def test_what_fit_gives_predicts_from_the_data(name):
    start = mc.Model(PRIOR, mc.likelihoods.Gaussian(0.2))
    model = mc.fit(start, FITS[name], (X, Y), steps=3).model
    assert isinstance(model.posterior, mc.Conditioned)
    expected = mc.Conditioned(model.posterior.prior, X, Y, model.likelihood.variance).predict(X + 0.1)
    np.testing.assert_allclose(model.posterior.predict(X + 0.1).mean, expected.mean, rtol=1e-10)
    np.testing.assert_allclose(model.predict(X + 0.1).cov, expected.cov + model.likelihood.variance, rtol=1e-10)


def test_weights_and_missing_values_are_in_what_fit_gives():
    weights = np.arange(1.0, N + 1.0)
    start = mc.Model(PRIOR, mc.likelihoods.Gaussian(rising))
    found = mc.fit(start, MarginalLikelihood(), (X, MISSING, weights), **STILL).model
    copies = [np.repeat(array, weights.astype(int), axis=0) for array in (X, MISSING)]
    expected = mc.fit(start, MarginalLikelihood(), tuple(copies), **STILL).model
    for a, b in zip(found.predict(X + 0.1), expected.predict(X + 0.1), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8)


def test_fitted_again_the_prior_is_trained_again():
    """A posterior in the place of the prior changes neither the objective nor its derivatives."""
    start = mc.Model(PRIOR, mc.likelihoods.Gaussian(0.2))
    few = mc.fit(start, MarginalLikelihood(), (X[:3], Y[:3]), **STILL).model
    assert isinstance(few.posterior, mc.Conditioned)
    once, again = (mc.fit(model, MarginalLikelihood(), (X, Y), steps=5) for model in (start, few))
    np.testing.assert_allclose(again.history, once.history, rtol=1e-10)
    for a, b in zip(jax.tree.leaves(again.model), jax.tree.leaves(once.model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_a_conditioned_process_is_conditioned_on_the_data_of_training():
    start = mc.Conditioned(PRIOR, X[:3], Y[:3], 0.2)
    model = mc.fit(start, MarginalLikelihood(), (X, Y), steps=2).model
    expected = mc.Conditioned(model.prior, X, Y, model.noise).predict(X)
    np.testing.assert_allclose(model.predict(X).mean, expected.mean, rtol=1e-10)
