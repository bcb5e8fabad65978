"""Draws: of values at given inputs, and of whole functions. Monte Carlo averages within five standard errors.

The standard error is that of the draws themselves, so that nothing is assumed about their law beyond two moments.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_gaussians import KERNEL, LAYOUTS, MISSING, X_NEW, X, Y, Z, prior, some_q

import mercer as mc
from cases import mostly_slow

P, AT = 2, X_NEW[:3]
Q_MU, Q_SQRT = some_q(P)
PROCESSES = {
    "GP": prior(P),
    "Conditioned": mc.Conditioned(prior(P), X, Y[:, :P], np.array([0.1, 0.3])),
    "Conditioned, missing": mc.Conditioned(prior(P), X, MISSING[:, :P], 0.1),
    "Sparse": mc.Sparse(prior(P), mc.inducing.Points(Z), P, q_mu=Q_MU, q_sqrt=Q_SQRT),
}


def assert_moments(draws, mean, cov):
    """Draws [S, J] have the given mean [J] and covariance [J, J]."""
    draws = np.asarray(draws).reshape(len(draws), -1)
    deviation = draws - np.asarray(mean).ravel()
    products = deviation[:, :, None] * deviation[:, None, :]
    root = len(draws) ** 0.5
    assert (np.abs(deviation.mean(0)) <= 5.0 * draws.std(0) / root + 1e-9).all()
    assert (np.abs(products.mean(0) - cov) <= 5.0 * products.std(0) / root + 1e-9).all()


@pytest.mark.parametrize("name", ["GP", "Conditioned", "Sparse"])
def test_samples_have_the_moments_of_the_process(name):
    process = PROCESSES[name]
    draws = process.sample(AT, 10_000, key=jax.random.key(0))
    assert draws.shape == (10_000, 3, P)
    mean, cov = process.predict(AT, "full")
    assert_moments(draws, mean, cov.reshape(3 * P, 3 * P))


def test_a_gaussian_draws_what_its_layout_knows():
    F = np.random.default_rng(1).normal(size=(4, 4))
    cov = (F @ F.T + np.eye(4)).reshape(2, 2, 2, 2)
    mean = np.arange(4.0).reshape(2, 2)
    same_input = np.eye(2)[:, None, :, None] * np.ones((1, 2, 1, 2))
    same_output = np.eye(2)[None, :, None, :] * np.ones((2, 1, 2, 1))
    known = {"diag": same_input * same_output, "outputs": same_input, "inputs": same_output, "full": 1.0}
    held = {
        "diag": np.einsum("npnp->np", cov),
        "outputs": np.einsum("npnq->npq", cov),
        "inputs": np.einsum("npmp->pnm", cov),
        "full": cov,
    }
    for layout in LAYOUTS:
        draws = mc.Gaussian(mean, held[layout], layout).sample(10_000, key=jax.random.key(2))
        assert_moments(draws, mean, (known[layout] * cov).reshape(4, 4))


@pytest.mark.parametrize("name", mostly_slow(PROCESSES, "Conditioned, missing"))
def test_drawn_functions_are_functions_with_the_moments_of_the_process(name):
    """The same key gives the same function, whose value at an input does not depend on the other inputs asked for."""
    process = PROCESSES[name]
    cached = process.cached() if hasattr(process, "cached") else process

    @jax.jit
    @jax.vmap
    def draw(key):
        f = process.sample_function(num_features=30, key=key)
        return f(AT), f(AT[1:]), cached.sample_function(num_features=30, key=key)(AT)

    keys = jax.random.split(jax.random.key(3), 4000)
    values, at_some, of_cached = draw(keys)
    assert values.shape == (4000, 3, P)
    mean, cov = process.predict(AT, "full")
    assert_moments(values, mean, cov.reshape(3 * P, 3 * P))
    np.testing.assert_allclose(at_some, values[:, 1:], rtol=0, atol=1e-9)
    np.testing.assert_allclose(of_cached, values, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(draw(keys)[0], values)


def test_functions_of_an_exact_posterior_pass_through_data_without_noise():
    process = mc.Conditioned(prior(P), X, Y[:, :P], 1e-8)
    at_data = jax.jit(lambda key: process.sample_function(num_features=100, key=key)(X))
    np.testing.assert_allclose(at_data(jax.random.key(0)), Y[:, :P], rtol=0, atol=1e-3)


def test_functions_can_be_differentiated():
    def value(t):
        return PROCESSES["Sparse"].sample_function(num_features=50, key=jax.random.key(0))(jnp.asarray(AT) + t)[0, 0]

    value_and_slope = jax.jit(jax.value_and_grad(value))
    (_, slope), (up, _), (down, _) = (value_and_slope(t) for t in (0.0, 1e-6, -1e-6))
    np.testing.assert_allclose(slope, (up - down) / 2e-6, rtol=1e-5)


def test_what_cannot_be_drawn_as_a_function_says_so():
    with pytest.raises(ValueError, match="no random features"):
        mc.GP(KERNEL + mc.kernels.White()).sample_function(key=jax.random.key(0))(AT)
    with pytest.raises(ValueError, match="two-dimensional"):
        PROCESSES["GP"].sample_function(key=jax.random.key(0))(AT[:, 0])


@pytest.mark.parametrize("name", mostly_slow(PROCESSES, "Conditioned, missing"))
def test_functions_pass_through_jit_and_are_saved(name, tmp_path):
    function = PROCESSES[name].sample_function(num_features=8, key=jax.random.key(5))
    values = function(AT)
    np.testing.assert_allclose(jax.jit(lambda f, X: f(X))(function, jnp.asarray(AT)), values, rtol=1e-9, atol=1e-12)
    mc.save(tmp_path / "function.mercer", function)
    np.testing.assert_allclose(mc.load(tmp_path / "function.mercer")(AT), values, rtol=1e-12, atol=1e-14)
