"""The log density of a zero-mean Gaussian."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from mercer.linalg import zero_mean_log_density

N, P = 7, 3
F = np.random.default_rng(0).normal(size=(N, N))
K, R = jnp.asarray(F @ F.T / N + 0.5 * np.eye(N)), jnp.asarray(np.random.default_rng(1).normal(size=(N, P)))


def plain(K, R):
    K = (K + K.T) / 2
    quadratic = jnp.trace(R.T @ jnp.linalg.solve(K, R))
    return -0.5 * (quadratic + P * jnp.linalg.slogdet(2.0 * jnp.pi * K)[1])


def test_the_value_is_that_of_scipy():
    expected = sum(scipy.stats.multivariate_normal(np.zeros(N), K).logpdf(r) for r in R.T)
    np.testing.assert_allclose(zero_mean_log_density(K, R), expected, rtol=1e-12)


def test_the_gradient_is_that_of_a_dense_formula():
    computed, expected = (jax.jit(jax.grad(f, (0, 1)))(K, R) for f in (zero_mean_log_density, plain))
    for ours, theirs in zip(computed, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-11)


def test_batches_and_float32():
    expected = jax.jit(lambda K, R: jnp.stack([plain(K, R), plain(2.0 * K, R)]))(K, R)
    together = jax.jit(jax.vmap(zero_mean_log_density))(jnp.stack([K, 2.0 * K]), jnp.stack([R, R]))
    np.testing.assert_allclose(together, expected, rtol=1e-12)
    narrow = K.astype(jnp.float32), R.astype(jnp.float32)
    value, gradient = jax.jit(jax.value_and_grad(zero_mean_log_density))(*narrow)
    assert value.dtype == gradient.dtype == np.float32
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
