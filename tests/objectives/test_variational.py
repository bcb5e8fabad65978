"""The evidence lower bound and its relatives, against closed forms, other objectives and other libraries."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import mercer as mc
from cases import mostly_slow
from mercer.objectives import ELBO, Batch, CollapsedELBO, PredictiveLogLikelihood
from reference_data import GPFLOW, LENGTHSCALE, NOISE, REFERENCE, VARIANCE, X_NEW, column
from reference_data import X as SNELSON_X

N, M, D = 12, 4, 2
_rng = np.random.default_rng(0)
X, Z = _rng.uniform(-1.0, 1.0, size=(N, D)), _rng.uniform(-1.0, 1.0, size=(M, D))
Y = _rng.normal(size=(N, 2))
MISSING = np.where(_rng.uniform(size=Y.shape) < 0.3, np.nan, Y)
Q_MU, Q_SQRT = _rng.normal(size=(M, 2)), np.tril(0.2 * _rng.normal(size=(2, M, M))) + 0.4 * np.eye(M)
KERNEL, BIAS, VARIANCES = mc.kernels.Matern52(0.8, 1.2), np.array([0.3, -0.5]), np.array([0.2, 0.4])


def model(outputs=slice(None), whiten=True, likelihood=None):
    mean = mc.means.Constant(BIAS[outputs])
    q_mu, q_sqrt = Q_MU[:, outputs], Q_SQRT[outputs]
    posterior = mc.Sparse(mc.GP(KERNEL, mean), mc.inducing.Points(Z), q_mu.shape[1], whiten, q_mu=q_mu, q_sqrt=q_sqrt)
    return mc.Model(posterior, mc.likelihoods.Gaussian(VARIANCES[outputs]) if likelihood is None else likelihood)


@eqx.filter_jit
def value_and_gradient(objective, model, batch):
    return eqx.filter_value_and_grad(lambda m: objective(m, batch))(model)


def test_the_bound_of_a_gaussian_likelihood_in_closed_form():
    q = model().posterior
    mean, var = (np.asarray(a) for a in q.predict(X))
    terms = scipy.stats.norm(mean, VARIANCES**0.5).logpdf(Y) - 0.5 * var / VARIANCES
    bound = terms.sum() - q.kl()
    np.testing.assert_allclose(mc.elbo(model(), X, Y), bound, rtol=1e-12)
    np.testing.assert_allclose(ELBO()(model(), (X, Y)), -bound / N, rtol=1e-12)


@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_the_predictive_log_likelihood_in_closed_form(weight):
    q = model().posterior
    mean, var = (np.asarray(a) for a in q.predict(X))
    terms = scipy.stats.norm(mean, (var + VARIANCES) ** 0.5).logpdf(Y)
    expected = -terms.sum() / N + weight * q.kl() / N
    np.testing.assert_allclose(PredictiveLogLikelihood(weight)(model(), (X, Y)), expected, rtol=1e-12)


@pytest.mark.parametrize(
    "objective, Y",
    [(ELBO(), Y), (ELBO(), MISSING), (PredictiveLogLikelihood(0.5), Y)],
    ids=["ELBO", "ELBO, missing", "PredictiveLogLikelihood"],
)
def test_batches_average_to_the_whole(objective, Y):
    """Over a partition of the data into equal batches, the values and the gradients average to those of all the data."""
    complete = not np.isnan(Y).any()
    whole = value_and_gradient(objective, model(), Batch(jnp.asarray(X), jnp.asarray(Y)))
    order = np.random.default_rng(1).permutation(N).reshape(4, 3)
    parts = [value_and_gradient(objective, model(), Batch(X[i], Y[i], num_data=N, complete=complete)) for i in order]
    average = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *parts)
    for found, expected in zip(jax.tree.leaves(average), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)


def test_rows_of_a_batch_are_a_batch():
    batch = Batch(jnp.asarray(X), jnp.asarray(MISSING))
    part = batch.rows(jnp.asarray([2, 5]))
    assert (part.num_data, part.complete, len(part.X)) == (N, False, 2)
    np.testing.assert_array_equal(part.Y, MISSING[[2, 5]])


def test_the_bound_does_not_depend_on_how_many_rows_are_worked_out_at_a_time():
    np.testing.assert_allclose(mc.elbo(model(), X, Y, batch_size=5), mc.elbo(model(), X, Y), rtol=1e-12)


def test_whitened_and_not_are_the_same_bound():
    R = np.linalg.cholesky(KERNEL(Z))
    plain = eqx.tree_at(lambda m: (m.posterior.q_mu, m.posterior.q_sqrt), model(whiten=False), (R @ Q_MU, R @ Q_SQRT))
    np.testing.assert_allclose(mc.elbo(plain, X, Y), mc.elbo(model(), X, Y), rtol=1e-8)


def test_a_missing_output_drops_out():
    """With independent outputs the bound is a sum over them, each with its observed rows only."""
    total = 0.0
    for p in range(2):
        seen = ~np.isnan(MISSING[:, p])
        total += mc.elbo(model([p]), X[seen], MISSING[seen][:, [p]])
    np.testing.assert_allclose(mc.elbo(model(), X, MISSING), total, rtol=1e-10)
    _, gradient = value_and_gradient(ELBO(), model(), Batch(jnp.asarray(X), jnp.asarray(MISSING)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("whiten", [True, False])
def test_at_the_best_q_it_is_the_collapsed_bound_and_stationary(whiten):
    start = model(whiten=whiten)
    best = mc.Model(CollapsedELBO().posterior(start, X, Y), start.likelihood)
    assert best.posterior.whiten == whiten
    bound = CollapsedELBO().bound(start, X, Y)
    batch = Batch(jnp.asarray(X), jnp.asarray(Y))
    value, gradient = value_and_gradient(ELBO(), best, batch)
    np.testing.assert_allclose(-N * value, bound, rtol=1e-7)
    assert -N * value_and_gradient(ELBO(), start, batch)[0] < bound
    for slope in (gradient.posterior.q_mu, np.tril(gradient.posterior.q_sqrt)):
        np.testing.assert_allclose(slope, 0.0, atol=1e-6)


SETTINGS = REFERENCE["settings"]
LIKELIHOODS = {  # the likelihood, and which data it is for
    "gaussian": (mc.likelihoods.Gaussian(NOISE), "real"),
    "bernoulli": (mc.likelihoods.Bernoulli(), "binary"),
    "poisson": (mc.likelihoods.Poisson(), "count"),
    "student_t": (mc.likelihoods.StudentT(**SETTINGS["student_t"]), "real"),
}


@pytest.mark.parametrize(
    ("name", "whiten"),
    mostly_slow(
        itertools.product(LIKELIHOODS, [True, False]), ("gaussian", True), ("bernoulli", False), ("student_t", True)
    ),
)
def test_numbers_of_gpflow(name, whiten):
    """SVGP on Snelson's data: the bound on all and on the first 50 rows, the divergence, and predictions."""
    expected = GPFLOW["svgp"]["whitened" if whiten else "unwhitened"][name]
    likelihood, kind = LIKELIHOODS[name]
    X, Y, Y_new = (jnp.asarray(a) for a in (SNELSON_X, column("y", kind), column("y_new", kind)))
    q = REFERENCE["data"]["q"]
    points = mc.inducing.Points(column("Z", "grid"))
    prior = mc.GP(mc.kernels.RBF(LENGTHSCALE, VARIANCE))
    q_mu, q_sqrt = np.asarray(q["q_mu"])[:, None], np.asarray(q["q_sqrt"])[None]
    svgp = mc.Model(mc.Sparse(prior, points, whiten=whiten, q_mu=q_mu, q_sqrt=q_sqrt), likelihood)

    @eqx.filter_jit
    def found(svgp):
        f, y = svgp.posterior.predict(X_NEW), svgp.predict(X_NEW)
        return {
            "elbo": mc.elbo(svgp, X, Y),
            "elbo_first_50": -len(Y) * ELBO()(svgp, Batch(X[:50], Y[:50], num_data=len(Y), complete=True)),
            "kl": svgp.posterior.kl(),
            "f_mean": f.mean[:, 0],
            "f_var": f.cov[:, 0],
            "y_mean": y.mean[:, 0],
            "y_var": y.cov[:, 0],
            "log_density": svgp.log_density(X_NEW, Y_new),
        }

    # GPflow's log densities of these are by Gauss-Hermite quadrature with 20 nodes, and off by so much.
    off = {"poisson": 1e-3, "student_t": 0.06}.get(name, 1e-8)
    for quantity, value in found(svgp).items():
        atol = off if quantity == "log_density" else 1e-8
        np.testing.assert_allclose(value, expected[quantity], rtol=1e-6, atol=atol, err_msg=quantity)


def test_float32_stays_float32():
    x, y = X.astype(np.float32), Y.astype(np.float32)
    value = mc.elbo(model(), x, y)
    assert value.dtype == np.float32
    np.testing.assert_allclose(value, mc.elbo(model(), X, Y), rtol=1e-3)
