"""Sparse regression at any noise, with inducing points that are nearly the same, against 100-digit arithmetic.

reference/sparse_regression.py has made the numbers. Tolerances follow the condition numbers: eps (cond B + cond Kuu), Kuu with
its jitter and B = I + C C^T / noise.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from mercer.linalg import FactorisationError
from mercer.objectives import CollapsedELBO
from mercer.objectives.sums import Sums

REFERENCE = json.loads((pathlib.Path(__file__).parents[1] / "reference" / "sparse_regression.json").read_text())
X, Y, Z, NEW = (np.array(REFERENCE[name]) for name in ("X", "Y", "Z", "new"))
PRIOR = mc.GP(mc.kernels.RBF(REFERENCE["lengthscale"]))
SPARSE = mc.Sparse(PRIOR, mc.inducing.Points(Z), 2)
EPS = np.finfo(float).eps


class Indefinite(mc.kernels.Kernel):
    """1 + |x - x'|, which is no covariance function: as what rounding leaves of one, but far beyond any jitter."""

    def _matrix(self, X, X2):
        X2 = X if X2 is None else X2
        return 1.0 + jnp.sqrt(jnp.sum((X[:, None] - X2[None]) ** 2, axis=-1))

    def _diagonal(self, X):
        return jnp.ones(len(X), X.dtype)


def tolerance(noise):
    largest = np.linalg.eigvalsh(np.asarray(PRIOR.kernel(X)))[-1]
    jittered = np.linalg.eigvalsh(np.asarray(PRIOR.kernel(Z)) + 1e-10 * np.eye(len(Z)))
    return EPS * (1.0 + largest / noise + jittered[-1] / jittered[0])


def assert_close(prediction, truth, noise):
    mean, variance, rtol = np.array(truth["mean"]), np.array(truth["variance"])[:, None], tolerance(noise)
    np.testing.assert_allclose(prediction.mean, mean, rtol=0.0, atol=rtol * np.abs(mean).max())
    assert np.max(np.abs(prediction.cov - variance) / (variance + noise)) < rtol


@pytest.mark.parametrize("case", REFERENCE["cases"], ids=lambda case: f"{case['noise']:g}")
def test_the_statistics_are_right_to_what_the_condition_number_allows(case):
    noise = case["noise"]
    assert tolerance(noise) < 1e-3
    best = Sums.of(SPARSE, 2).add(X, Y).best(noise)
    assert_close(best.predict(NEW), case["raised"], noise)
    assert_close(best.cached().predict(NEW), case["raised"], noise)
    model = mc.Model(SPARSE, mc.likelihoods.Gaussian(noise))
    assert_close(CollapsedELBO().posterior(model, X, Y).predict(NEW), case["collapsed"], noise)
    np.testing.assert_allclose(CollapsedELBO().bound(model, X, Y), case["bound"], rtol=tolerance(noise))


@pytest.mark.parametrize("noise", [1e-8, 1e-4, 1.0])
def test_with_all_inputs_as_inducing_points_it_is_exact(noise):
    """To the jitter of Kuu, 1e-10: what it takes from the function, Sums gives back as noise."""
    prior = mc.GP(mc.kernels.Matern52(0.8))
    sums = Sums.of(mc.Sparse(prior, mc.inducing.Points(X), 2), 2).add(X, Y)
    exact = mc.Conditioned(prior, X, Y, noise)
    ours, theirs = sums.best(noise).predict(NEW), exact.predict(NEW)
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=0.0, atol=1e-5 * np.abs(Y).max())
    np.testing.assert_allclose(ours.cov, theirs.cov, rtol=1e-4)
    loo = sums.leave_one_out(noise, X, Y)
    np.testing.assert_allclose(loo.mean, exact.leave_one_out().mean, rtol=0.0, atol=1e-4 * np.abs(Y).max())
    np.testing.assert_allclose(loo.cov, exact.leave_one_out().cov, rtol=1e-3)


@pytest.mark.parametrize("noise", [1e-12, 1e-8, 1e-4])
def test_a_variance_that_dwarfs_the_noise_leaves_the_statistics_finite(noise):
    """The condition number of B is beyond 1 / eps. All the same the predictions go through the data."""
    kernel = mc.kernels.RBF(REFERENCE["lengthscale"], 1e8)
    sums = Sums.of(mc.Sparse(mc.GP(kernel), mc.inducing.Points(Z), 2), 2).add(X, Y)
    prediction, loo = sums.best(noise).predict(X[:8]), sums.leave_one_out(noise, X, Y)
    assert np.isfinite(prediction.mean).all() and np.isfinite(loo.mean).all() and (np.asarray(loo.cov) > 0.0).all()
    spread = np.sqrt(float(sums.raised(noise)))
    np.testing.assert_allclose(prediction.mean, Y[:8], atol=0.2 + 1e-3 * spread)


def test_the_leave_one_out_of_nearly_the_same_points_is_finite_and_conservative():
    sums = Sums.of(SPARSE, 2).add(X, Y)
    for noise in (1e-8, 1e-6, 1e-2):
        loo = sums.leave_one_out(noise, X, Y)
        assert np.isfinite(loo.mean).all() and (np.asarray(loo.cov) >= noise).all()


@pytest.mark.slow
@pytest.mark.parametrize("num_outputs", [1, 30])
def test_many_rows_and_points_that_are_nearly_the_same(num_outputs):
    """Against the least squares problem whose normal equations are B: [C^T / sqrt(s); I] v = [y / sqrt(s); 0], by QR."""
    random = np.random.default_rng(1)
    X, new = random.uniform(-2.0, 2.0, (20_000, 2)), random.uniform(-2.0, 2.0, (50, 2))
    Y = np.sin(X @ random.normal(size=(2, num_outputs))) + 0.1 * random.normal(size=(20_000, num_outputs))
    points = np.concatenate([X[:1000], X[:1000] + 1e-7 * random.normal(size=(1000, 2))])
    sparse = mc.Sparse(mc.GP(mc.kernels.Matern52(0.5)), mc.inducing.Points(points))
    sums = Sums.of(sparse, num_outputs).add(X, Y)
    C, C_new = (np.asarray(sums.whitener @ sparse.Kuf(rows)) for rows in (X, new))
    for noise in (1e-8, 1e-4, 1.0):
        s = float(sums.raised(noise))
        Q, R = np.linalg.qr(np.concatenate([C.T / np.sqrt(s), np.eye(2000)]))
        mean = C_new.T @ np.linalg.solve(R, Q[:20_000].T @ Y / np.sqrt(s))
        best = sums.best(noise)
        assert np.isfinite(best.q_mu).all() and np.isfinite(best.q_sqrt[0]).all()
        atol = EPS * (np.linalg.norm(C, 2) ** 2 / s + 1e10) * np.abs(Y).max()  # cond(R)^2 is at most M / 1e-10
        np.testing.assert_allclose(best.predict(new).mean, mean, rtol=0.0, atol=atol)
        loo = sums.leave_one_out(noise, X[:1000], Y[:1000])
        assert np.isfinite(loo.mean).all() and (np.asarray(loo.cov) > 0.0).all()


def test_a_matrix_that_cannot_be_factorised_is_named():
    few, y = X[:8], Y[:8, :1]
    q = {"q_mu": jnp.zeros((8, 1)), "q_sqrt": jnp.eye(8)[None]}
    sparse = mc.Sparse(mc.GP(Indefinite()), mc.inducing.Points(few), **q)
    model, objective = mc.Model(sparse, mc.likelihoods.Gaussian(1e-6)), CollapsedELBO()
    named = r"Kuu \[8 x 8\] is not positive definite"
    with pytest.raises(FactorisationError, match=named):
        Sums.of(sparse)
    for function in (objective.bound, objective.posterior, objective.upper_bound):
        with pytest.raises(FactorisationError, match=named):
            function(model, few, y)
    with pytest.raises(FactorisationError, match=named):
        objective.finish(model, objective.checked(model, (few, y)))


def test_sums_that_leave_the_range_of_numbers_are_named():
    sums = Sums.of(SPARSE, 2)
    with pytest.raises(ValueError, match="Y must be finite, got NaN or inf in 1 of 60 rows"):
        sums.add(X, np.where(np.arange(60)[:, None] == 3, np.nan, Y))
    with pytest.raises(FactorisationError, match=r"C diag\(w\) \(y - m\).*\[16 x 2\] holds NaN or inf"):
        sums.add(X, Y * 2e307)
    with pytest.raises(FactorisationError, match=r"B = I \+ .*\[16 x 16\] holds NaN or inf"):
        sums.add(X, Y).best(np.nan)


def test_a_bound_in_compiled_code_does_not_look_at_its_numbers():
    model = mc.Model(SPARSE, mc.likelihoods.Gaussian(0.1))
    bound = jax.jit(lambda Y: CollapsedELBO().bound(model, X, Y))(Y)
    np.testing.assert_allclose(bound, CollapsedELBO().bound(model, X, Y), rtol=1e-8)
