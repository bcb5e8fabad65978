"""Sums over data: the closed forms of sparse regression, reached row by row."""

import jax
import numpy as np
import pytest

import mercer as mc
from mercer.objectives.sums import Sums

random = np.random.default_rng(0)
X, Y = random.uniform(-2.0, 2.0, (40, 2)), random.normal(size=(40, 3))
WEIGHTS = random.integers(1, 4, 40).astype(float)
SPARSE = mc.Sparse(mc.GP(mc.kernels.Matern32([0.7, 1.2]), mean=mc.means.Constant(0.4)), mc.inducing.Points(X[:9]), 3)
NOISE = 0.3


def best(X, Y, weights=None):
    return Sums.of(SPARSE, 3).add(X, Y, weights).best(NOISE)


def assert_same(process, other, rtol=1e-8):
    new = random.uniform(-2.0, 2.0, (7, 2))
    for ours, theirs in zip(process.predict(new, "inputs"), other.predict(new, "inputs"), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-10)


def test_the_best_posterior_is_that_of_the_collapsed_bound():
    """At the noise and what the inducing variables leave undetermined, on average."""
    C = SPARSE.Kuu().whiten(SPARSE.Kuf(X))
    undetermined = np.mean(SPARSE.prior.kernel.diag(X) - np.sum(np.asarray(C) ** 2, axis=0))
    model = mc.Model(SPARSE, mc.likelihoods.Gaussian(NOISE + undetermined))
    assert_same(best(X, Y), mc.objectives.CollapsedELBO().posterior(model, X, Y))


def test_a_stream_is_the_same_as_all_data_at_once():
    sums = Sums.of(SPARSE, 3)
    for rows in np.split(np.arange(40), [5, 6, 30]):
        sums = sums.add(X[rows], Y[rows])
    assert_same(sums.best(NOISE), best(X, Y))


def test_blocks_do_not_show(monkeypatch):
    whole = best(X, Y, WEIGHTS)
    monkeypatch.setattr("mercer.objectives.sums._BLOCK", 16)
    assert_same(best(X, Y, WEIGHTS), whole)


def test_a_weight_is_a_number_of_copies():
    copies = np.repeat(np.arange(40), WEIGHTS.astype(int))
    assert_same(best(X, Y, WEIGHTS), best(X[copies], Y[copies]))


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_leaving_one_out_is_conditioning_on_the_others(weights):
    sums = Sums.of(SPARSE, 3).add(X, Y, weights)
    loo = sums.leave_one_out(NOISE, X, Y, weights)
    for n in (0, 17, 39):
        others = np.arange(40) != n
        without = Sums.of(SPARSE, 3).add(X[others], Y[others], None if weights is None else weights[others])
        # What is left undetermined on average is held as it was with all rows.
        same_average = sums.slack / sums.count - without.slack / without.count
        mean, variance = without.best(NOISE + same_average).predict(X[n : n + 1])
        np.testing.assert_allclose(loo.mean[n], mean[0], rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(loo.cov[n], variance[0] + NOISE, rtol=1e-7)


def test_with_all_inputs_as_inducing_points_it_is_exact():
    few = slice(0, 12)
    process = mc.Sparse(SPARSE.prior, mc.inducing.Points(X[few]), 3)
    sums = Sums.of(process, 3).add(X[few], Y[few])
    exact = mc.Conditioned(SPARSE.prior, X[few], Y[few], NOISE)
    assert_same(sums.best(NOISE), exact, rtol=1e-6)
    loo = sums.leave_one_out(NOISE, X[few], Y[few])
    np.testing.assert_allclose(loo.mean, exact.leave_one_out().mean, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(loo.cov, exact.leave_one_out().cov, rtol=1e-5)


def test_the_number_of_outputs_is_checked():
    with pytest.raises(ValueError, match="Y must have 3 columns"):
        Sums.of(SPARSE, 3).add(X, Y[:, :2])


def test_works_inside_another_precision():
    with jax.enable_x64(False):
        sums = Sums.of(mc.Sparse(SPARSE.prior, mc.inducing.Points(X[:9].astype(np.float32))), 3)
        assert sums.add(X.astype(np.float32), Y.astype(np.float32)).best(NOISE).q_mu.dtype == np.float32
