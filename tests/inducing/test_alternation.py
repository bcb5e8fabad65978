"""Kernel and inducing points learned in turns (paper 000, Algorithm 2)."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mercer as mc
from mercer import inducing, kernels

rng = np.random.default_rng(0)
X = rng.uniform(-2.0, 2.0, (80, 1))
Y = np.sin(3.0 * X) + 0.1 * rng.normal(size=X.shape)


@pytest.fixture(scope="module")
def found():
    return inducing.alternate(X, Y, kernels.RBF(1.0), 12, steps=60, priors=())


def test_it_ends_at_a_selection_that_its_own_kernel_makes(found):
    assert found.converged and found.rounds <= 10
    np.testing.assert_array_equal(found.indices, inducing.greedy_indices(X, found.kernel, 12))
    np.testing.assert_array_equal(found.Z, X[found.indices])
    np.testing.assert_array_equal(found.U, Y[found.indices])


def test_the_kernel_is_that_of_largest_marginal_likelihood_on_the_points(found):
    """A fixed point: learning again, from the same start, on the same points gives the same kernel."""

    def loss(log_parameters):
        lengthscale, variance, noise = jnp.exp(log_parameters)
        prior = mc.GP(kernels.RBF(lengthscale, variance))
        return -mc.Conditioned(prior, found.Z, found.U, noise).log_marginal_likelihood()

    at = jnp.log(jnp.stack([found.kernel.lengthscale, found.kernel.variance, found.noise]))
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(at), 0.0, atol=1e-2)


def test_noise_does_not_vanish_where_points_can_be_interpolated():
    exact = inducing.alternate(X[:9], X[:9] ** 2, kernels.RBF(1.0), 9, rounds=1, steps=200, priors=())
    held = inducing.alternate(X[:9], X[:9] ** 2, kernels.RBF(1.0), 9, rounds=1, steps=200)
    assert exact.noise < 1e-6 and held.noise > 1e-5


def test_a_limit_on_rounds():
    found = inducing.alternate(X, Y, kernels.RBF(0.1), 12, rounds=1, steps=5, optimiser=optax.adam(0.1))
    assert found.rounds == 1 and len(found.indices) == 12


def test_several_outputs_share_the_kernel():
    found = inducing.alternate(X, np.concatenate([Y, -2.0 * Y], axis=1), kernels.RBF(), 5, rounds=1, steps=5)
    assert found.U.shape == (5, 2)


ERRORS = {
    "M must be between 1 and the number of rows": lambda: inducing.alternate(X, Y, kernels.RBF(), 100),
    "noise expects a positive variance": lambda: inducing.alternate(X, Y, kernels.RBF(), 5, noise=0.0),
    "rounds must be at least 1": lambda: inducing.alternate(X, Y, kernels.RBF(), 5, rounds=0),
    "kernel expects a mercer kernel": lambda: inducing.alternate(X, Y, 1.0, 5),
    "same number of rows": lambda: inducing.alternate(X, Y[:3], kernels.RBF(), 5),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises(ValueError, match=message):
        ERRORS[message]()
