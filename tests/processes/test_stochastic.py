"""A network with dropout as a process: closed forms of one linear layer."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mercer as mc
from mercer.processes import Deterministic, Stochastic

KEY = jax.random.key(0)
SHARE = 0.25  # of the inputs that a pass leaves out
LINEAR = eqx.nn.Linear(3, 2, key=KEY)
DROPPED = eqx.nn.Sequential([eqx.nn.Dropout(SHARE), LINEAR])
X = np.random.default_rng(0).normal(size=(4, 3))


def exact_moments():
    """Mean [N, P] and covariance [N, P, N, P] of W (x * mask / (1 - p)) + b, one mask for all rows."""
    weight, bias = np.asarray(LINEAR.weight), np.asarray(LINEAR.bias)
    mean = X @ weight.T + bias
    cov = SHARE / (1.0 - SHARE) * np.einsum("pd,nd,qd,md->npmq", weight, X, weight, X)
    return mean, cov


@pytest.mark.parametrize("covariance", ["diag", "outputs", "inputs", "full"])
def test_moments_of_dropout_before_a_linear_layer(covariance):
    mean, full = exact_moments()
    expected = {
        "diag": np.einsum("npnp->np", full),
        "outputs": np.einsum("npnq->npq", full),
        "inputs": np.einsum("npmp->pnm", full),
        "full": full,
    }[covariance]
    found = Stochastic(DROPPED, 2, num_samples=20_000).predict(X, covariance)
    np.testing.assert_allclose(found.mean, mean, atol=0.04)  # some five standard errors
    np.testing.assert_array_equal(found.covs, 0.0)
    deviations = np.asarray(found.means - found.mean)
    indices = {"diag": "snp,snp->np", "outputs": "snp,snq->npq", "inputs": "snp,smp->pnm", "full": "snp,smq->npmq"}
    np.testing.assert_allclose(np.einsum(indices[covariance], deviations, deviations) / 20_000, expected, atol=0.06)


def test_samples_and_drawn_functions_are_passes():
    process = Stochastic(DROPPED, 2)
    drawn = process.sample(X, 20_000, key=KEY)
    _, cov = exact_moments()
    np.testing.assert_allclose(np.cov(drawn.reshape(len(drawn), -1).T), cov.reshape(8, 8), atol=0.06)
    function = process.sample_function(key=KEY)
    np.testing.assert_allclose(function(X)[:2], function(X[:2]))  # one function, wherever it is asked
    np.testing.assert_allclose(process.given_draw(key=KEY).predict(X).mean, function(X))


def test_without_dropout_it_is_deterministic():
    module = eqx.nn.Sequential([eqx.nn.Dropout(0.0), LINEAR])
    found, expected = Stochastic(module, 2, num_samples=3).predict(X), Deterministic(LINEAR, 2).predict(X)
    np.testing.assert_allclose(found.mean, expected.mean)
    np.testing.assert_allclose(found.variance, 0.0, atol=1e-30)


def test_the_bound_is_the_expected_log_density_of_a_pass():
    likelihood, Y = mc.likelihoods.Gaussian(0.7), X[:, :2]
    model = mc.Model(Stochastic(DROPPED, 2, training_samples=20_000), likelihood)
    mean, full = exact_moments()
    squares = (Y - mean) ** 2 + np.einsum("npnp->np", full)
    expected = np.sum(-0.5 * np.log(2.0 * np.pi * 0.7) - 0.5 * squares / 0.7)
    np.testing.assert_allclose(mc.elbo(model, X, Y), expected, rtol=0.02)


def test_it_is_trained_and_composes():
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(60, 3))
    Y = np.sin(inputs[:, :1])
    module = eqx.nn.Sequential(
        [eqx.nn.Linear(3, 16, key=KEY), eqx.nn.Lambda(jnp.tanh), eqx.nn.Dropout(0.1), eqx.nn.Linear(16, 1, key=KEY)]
    )
    model = mc.Model(Stochastic(module, 1), mc.likelihoods.Gaussian(0.5))
    fitted = mc.fit(model, mc.objectives.ELBO(), (inputs, Y), steps=300, optimiser=optax.adam(0.02), key=KEY)
    assert np.mean((fitted.model.predict(inputs).mean - Y) ** 2) < 0.3 * np.var(Y)
    front = eqx.nn.Sequential([eqx.nn.Dropout(SHARE), LINEAR])
    deep = mc.Deep(
        [Stochastic(front, 2), mc.Sparse(mc.GP(mc.kernels.RBF(1.0)), mc.inducing.Points(X[:, :2]))], num_samples=5
    )
    assert deep.predict(X).mean.shape == (4, 1) and float(deep.kl()) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stochastic(jnp.tanh, 1), "takes no key"),
        (lambda: Stochastic(DROPPED, 0), "width expects a whole number"),
        (lambda: Stochastic(DROPPED, 2, num_samples=0), "num_samples expects"),
        (lambda: Stochastic(DROPPED, 2, training_samples=1.5), "training_samples expects"),
        (lambda: Stochastic(DROPPED, 2).predict(mc.inducing.Derivative(X, 0)), "not at functionals"),
        (lambda: Stochastic(DROPPED, 3).predict(X), "vector of length 3"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
