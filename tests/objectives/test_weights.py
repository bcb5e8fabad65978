"""Weights: a row that counts w times is the same as w copies of it, for every objective."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mercer as mc

random = np.random.default_rng(0)
X, Y = random.normal(size=(12, 2)), random.normal(size=(12, 1))
WEIGHTS = random.integers(1, 4, 12).astype(float)
REPEATED = tuple(np.repeat(array, WEIGHTS.astype(int), axis=0) for array in (X, Y))
PRIOR = mc.GP(mc.kernels.Matern52([0.8, 1.4]), mean=mc.means.Constant(0.3))
SPARSE = mc.Model(mc.Sparse(PRIOR, mc.inducing.Points(X[:5]), q_mu=Y[:5]), mc.likelihoods.Gaussian(0.2))
COUNTED = mc.Model(SPARSE.posterior, mc.likelihoods.Poisson())

CASES = {
    "MarginalLikelihood": (mc.objectives.MarginalLikelihood(), mc.Model(PRIOR, mc.likelihoods.Gaussian(0.2)), Y),
    "Conditioned": (mc.objectives.MarginalLikelihood(), mc.Conditioned(PRIOR, X, Y, 0.2), Y),
    "CollapsedELBO": (mc.objectives.CollapsedELBO(), SPARSE, Y),
    "ELBO": (mc.objectives.ELBO(), SPARSE, Y),
    "ELBO of counts": (mc.objectives.ELBO(), COUNTED, np.abs(Y).round()),
    "PredictiveLogLikelihood": (mc.objectives.PredictiveLogLikelihood(), SPARSE, Y),
}


@pytest.mark.parametrize("name", CASES)
def test_a_weight_is_a_number_of_copies(name):
    objective, model, Y = CASES[name]
    repeated = REPEATED[0], np.repeat(Y, WEIGHTS.astype(int), axis=0)
    # Both are per datum: of 12 rows, or of all their copies.
    total = objective(model, (X, Y, WEIGHTS)) * len(X)
    np.testing.assert_allclose(total, objective(model, repeated) * len(repeated[0]), rtol=1e-10)


def test_weights_and_missing_values():
    objective, model, missing = CASES["MarginalLikelihood"][0], CASES["MarginalLikelihood"][1], Y.copy()
    missing[3] = np.nan
    kept = np.arange(12) != 3
    of_all = objective(model, (X, missing, WEIGHTS)) * 12
    np.testing.assert_allclose(of_all, objective(model, (X[kept], Y[kept], WEIGHTS[kept])) * 11, rtol=1e-10)


def test_the_best_sparse_posterior_with_weights_is_that_of_the_copies():
    of_weights = mc.fit(
        SPARSE, mc.objectives.CollapsedELBO(), (X, Y, WEIGHTS), steps=1, optimiser=optax.sgd(0.0)
    ).model.posterior
    of_copies = mc.objectives.CollapsedELBO().posterior(SPARSE, *REPEATED)
    np.testing.assert_allclose(of_weights.predict(X).mean, of_copies.predict(X).mean, rtol=1e-9)
    np.testing.assert_allclose(of_weights.predict(X).cov, of_copies.predict(X).cov, rtol=1e-9)


def test_minibatches_keep_weights_with_their_rows():
    batch = mc.objectives.ELBO().checked(SPARSE, (X, Y, WEIGHTS))
    rows = batch.rows(jnp.asarray([4, 1]))
    np.testing.assert_array_equal(rows.weights, WEIGHTS[[4, 1]])
    fitted = mc.fit(SPARSE, mc.objectives.ELBO(), (X, Y, WEIGHTS), steps=3, batch_size=4, key=jax.random.key(0))
    assert np.isfinite(fitted.history).all()


@pytest.mark.parametrize("bad", [WEIGHTS[:5], WEIGHTS[:, None], np.zeros(12), np.full(12, np.nan)])
def test_bad_weights_are_refused(bad):
    with pytest.raises(ValueError, match="weights must be"):
        mc.objectives.ELBO()(SPARSE, (X, Y, bad))


def test_leave_one_out_takes_no_weights():
    with pytest.raises(ValueError, match="takes no weights"):
        mc.objectives.LeaveOneOut()(CASES["MarginalLikelihood"][1], (X, Y, WEIGHTS))


TWO = np.concatenate([Y, np.cos(Y)], axis=1)
MIXED = mc.kernels.LinearCoregionalisation(
    [mc.kernels.RBF([0.8, 1.4]), mc.kernels.Matern32()], [[1.0, 0.2], [0.4, 0.9]]
)
SEVERAL = mc.Sparse(mc.GP(MIXED), mc.inducing.Shared(mc.inducing.Points(X[:5])))
PAIR = mc.Sparse(PRIOR, mc.inducing.Points(X[:5]), 2)
WAVES = mc.inducing.FourierFeatures([-9.0, -9.0], [9.0, 9.0], (4, 4))
SEEN = mc.kernels.Matern32(0.9).on(0), mc.kernels.Matern12(2.0).on(1)
FEATURES = mc.Sparse(mc.GP(SEEN[0]), WAVES)
MIXED_FEATURES = mc.Sparse(mc.GP(mc.kernels.LinearCoregionalisation(SEEN, MIXED.W)), mc.inducing.Shared(WAVES))
BOUNDS = {
    "one output": (SPARSE, Y),
    "two outputs": (mc.Model(PAIR, mc.likelihoods.Gaussian([0.2, 0.3])), TWO),
    "outputs that covary": (mc.Model(SEVERAL, mc.likelihoods.Gaussian(0.2)), TWO),
    "missing": (mc.Model(PAIR, mc.likelihoods.Gaussian(0.2)), np.where(TWO > 1.0, np.nan, TWO)),
    "fixed features that covary": (mc.Model(MIXED_FEATURES, mc.likelihoods.Gaussian([0.2, 0.3])), TWO),
    "fixed features": (mc.Model(FEATURES, mc.likelihoods.Gaussian(0.2)), Y),
}
BOUNDED = {
    **BOUNDS,
    "counts": (COUNTED, np.abs(Y).round()),
    "classes": (mc.Model(SPARSE.posterior, mc.likelihoods.Bernoulli()), (Y > 0.0).astype(float)),
}


def repeated(array):
    return np.repeat(array, WEIGHTS.astype(int), axis=0)


@pytest.mark.parametrize("name", BOUNDED)
def test_the_bound_of_weights_is_that_of_copies(name):
    model, y = BOUNDED[name]
    copies = mc.elbo(model, repeated(X), repeated(y))
    np.testing.assert_allclose(mc.elbo(model, X, y, weights=WEIGHTS), copies, rtol=1e-9)
    np.testing.assert_allclose(mc.elbo(model, X, y, WEIGHTS, batch_size=5), copies, rtol=1e-9)
    np.testing.assert_allclose(jax.jit(lambda X, y, w: mc.elbo(model, X, y, w))(X, y, WEIGHTS), copies, rtol=1e-9)


@pytest.mark.parametrize("name", BOUNDS)
def test_the_collapsed_bound_of_weights_is_that_of_copies(name):
    (model, y), collapsed = BOUNDS[name], mc.objectives.CollapsedELBO()
    copies = repeated(X), repeated(y)
    bound = collapsed.bound(model, X, y, WEIGHTS)
    np.testing.assert_allclose(bound, collapsed.bound(model, *copies), rtol=1e-8)
    of_weights, of_copies = (collapsed.posterior(model, *data).predict(X) for data in ((X, y, WEIGHTS), copies))
    np.testing.assert_allclose(of_weights.mean, of_copies.mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(of_weights.cov, of_copies.cov, rtol=1e-6, atol=1e-8)
    evidence = -mc.objectives.MarginalLikelihood()(mc.Model(model.posterior.prior, model.likelihood), copies)
    evidence = evidence * len(copies[0])
    upper = collapsed.upper_bound(model, X, y, weights=WEIGHTS)
    assert bound <= evidence + 1e-9 <= upper + 2e-9
    np.testing.assert_allclose(upper, collapsed.upper_bound(model, *copies), rtol=1e-8)
