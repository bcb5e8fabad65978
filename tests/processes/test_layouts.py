"""Every process, in every layout, is a part of one dense Gaussian over all inputs and outputs."""

import numpy as np
import pytest
from dense_gaussians import (
    BIAS,
    KERNEL,
    MISSING,
    X_NEW,
    X,
    Y,
    Z,
    assert_is,
    k,
    over_outputs,
    posterior,
    prior,
    prior_mean,
    slices,
    some_q,
    sparse,
)

import mercer as mc
from cases import mostly_slow

R = np.linalg.cholesky(k(Z, Z))


def constant_mean(A, P):
    return np.broadcast_to(BIAS[:P], (len(A), P))


def shared_mean(A, P):
    return np.full((len(A), P), 0.7)


PER_OUTPUT, PER_DATUM = np.array([0.1, 0.2, 0.3]), np.linspace(0.05, 0.5, len(X))[:, None]
CONSTANT, SHARED = mc.means.Constant(BIAS), mc.means.Constant(0.7)

# The process, and its mean and covariance at X_NEW.
CONDITIONED = {
    "one output": (mc.Conditioned(prior(1), X, Y[:, :1], 0.1), posterior(X_NEW, Y[:, :1], 0.1)),
    "three outputs": (mc.Conditioned(prior(3), X, Y, 0.1), posterior(X_NEW, Y, 0.1)),
    "a constant for each": (
        mc.Conditioned(prior(3, CONSTANT), X, Y, 0.1),
        posterior(X_NEW, Y, 0.1, mean=constant_mean),
    ),
    "a mean for all": (mc.Conditioned(prior(3, SHARED), X, Y, 0.1), posterior(X_NEW, Y, 0.1, mean=shared_mean)),
    "noise per output": (mc.Conditioned(prior(3), X, Y, PER_OUTPUT), posterior(X_NEW, Y, PER_OUTPUT)),
    "noise per datum": (mc.Conditioned(prior(3), X, Y, PER_DATUM), posterior(X_NEW, Y, PER_DATUM)),
    "noise per both": (
        mc.Conditioned(prior(3), X, Y, PER_DATUM * PER_OUTPUT),
        posterior(X_NEW, Y, PER_DATUM * PER_OUTPUT),
    ),
    "missing": (mc.Conditioned(prior(3), X, MISSING, PER_DATUM), posterior(X_NEW, MISSING, PER_DATUM)),
    "not known to be complete": (mc.Conditioned(prior(3), X, Y, 0.1, complete=False), posterior(X_NEW, Y, 0.1)),
}


def sparse_case(P, whiten, mean=None, dense_mean=prior_mean):
    q_mu, q_sqrt = some_q(P)
    process = mc.Sparse(prior(P, mean), mc.inducing.Points(Z), P, whiten, q_mu=q_mu, q_sqrt=q_sqrt)
    if whiten:  # u = R v
        q_mu, q_sqrt = R @ q_mu, R @ q_sqrt
    return process, sparse(X_NEW, q_mu, q_sqrt @ q_sqrt.swapaxes(1, 2), dense_mean)


SPARSE = {
    "one output": sparse_case(1, True),
    "three outputs": sparse_case(3, True),
    "a constant for each": sparse_case(3, True, CONSTANT, constant_mean),
    "a mean for all": sparse_case(3, True, SHARED, shared_mean),
    "one output, not whitened": sparse_case(1, False),
    "three outputs, not whitened": sparse_case(3, False),
}


@pytest.mark.parametrize("P", [1, 3])
def test_prior(P):
    assert_is(prior(P), prior_mean(X_NEW, P).ravel(), over_outputs(k(X_NEW, X_NEW), P), P)


SOME = ("one output", "a constant for each", "noise per both", "missing", "not known to be complete")


@pytest.mark.parametrize("name", mostly_slow(CONDITIONED, *SOME))
def test_conditioned(name):
    process, (mean, cov) = CONDITIONED[name]
    assert_is(process, mean, cov, process.Y.shape[1])


@pytest.mark.parametrize("name", ["one output", "three outputs", "noise per both", "missing"])
def test_cached_conditioned(name):
    process, (mean, cov) = CONDITIONED[name]
    assert_is(process.cached(), mean, cov, process.Y.shape[1])


@pytest.mark.parametrize("name", SPARSE)
def test_sparse(name):
    process, (mean, cov) = SPARSE[name]
    assert_is(process, mean, cov, process.num_outputs)


@pytest.mark.parametrize("name", ["one output", "three outputs", "three outputs, not whitened"])
def test_cached_sparse(name):
    process, (mean, cov) = SPARSE[name]
    assert_is(process.cached(), mean, cov, process.num_outputs)


def test_predict_outside_of_compiled_code_is_the_same():
    for process, (mean, cov) in (CONDITIONED["missing"], SPARSE["three outputs"]):
        mean, layouts = slices(mean, cov, 3)
        prediction = process.predict(X_NEW)
        assert prediction.layout == "diag"
        for computed, expected in zip(prediction, (mean, layouts["diag"]), strict=True):
            np.testing.assert_allclose(computed, expected, rtol=0, atol=1e-7)


def test_a_cached_process_is_its_own_cache():
    for process in (CONDITIONED["one output"][0], SPARSE["one output"][0]):
        cached = process.cached()
        assert cached.cached() is cached


def test_the_prior_of_a_kernel_alone_has_mean_zero():
    mean, cov = mc.GP(KERNEL).predict(X_NEW)
    np.testing.assert_array_equal(mean, np.zeros((len(X_NEW), 1)))
    np.testing.assert_allclose(cov, 0.8)
