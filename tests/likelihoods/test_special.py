"""The special functions of quadrature against SciPy's, also far away, in single precision, and their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as scipy_special

from mercer.likelihoods import special

X = np.concatenate([-np.geomspace(1e7, 10.0, 20), np.linspace(-10.0, 8.0, 300)])
POSITIVE = np.geomspace(1e-7, 1e7, 300)
DTYPES = [(np.float64, 1e-13), (np.float32, 5e-6)]


def log_between(lower, upper):
    """log(Phi(upper) - Phi(lower)), in the lower tail, where the logs of both are accurate."""
    mirrored = lower > -upper
    lower, upper = np.where(mirrored, -upper, lower), np.where(mirrored, -lower, upper)
    log_upper = scipy_special.log_ndtr(upper)
    return log_upper + np.log(-np.expm1(scipy_special.log_ndtr(lower) - log_upper))


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(
    ("function", "reference", "x"),
    [
        (special.ndtr, scipy_special.ndtr, X[X > -8.0]),
        (special.log_ndtr, scipy_special.log_ndtr, X),
        (
            special.hazard,
            lambda x: np.exp(-0.5 * x**2 - scipy_special.log_ndtr(x)) / np.sqrt(2.0 * np.pi),
            X[X > -30.0],
        ),
        (special.softplus, lambda x: np.logaddexp(x, 0.0), X[X > -80.0]),
        (special.log_gamma, scipy_special.gammaln, POSITIVE),
        (special.digamma, scipy_special.digamma, POSITIVE),
    ],
    ids=["ndtr", "log_ndtr", "hazard", "softplus", "log_gamma", "digamma"],
)
def test_scipy(function, reference, x, dtype, tolerance):
    x = x.astype(dtype)
    got, expected = jax.jit(function)(x), reference(x.astype(float))
    assert got.dtype == dtype
    gamma = function in (special.log_gamma, special.digamma)  # which have zeros
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=10.0 * tolerance if gamma else 1e-30)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("width", [0.1, 1.0, 20.0, 1e9])
def test_between(width, dtype, tolerance):
    lower = np.concatenate([np.linspace(-30.0, 30.0, 101), [-1e4, 1e3]]).astype(dtype)
    upper = (lower + dtype(width)).astype(dtype)
    got = jax.jit(special.log_ndtr_between)(lower, upper)
    assert got.dtype == dtype
    expected = log_between(lower.astype(float), upper.astype(float))
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=10.0 * tolerance / min(width, 1.0))


@pytest.mark.parametrize("function", [special.ndtr, special.log_ndtr, special.hazard, special.log_sigmoid])
def test_derivatives(function):
    x, h = jnp.linspace(-12.0, 6.0, 90), 1e-5
    got = jax.vmap(jax.grad(function))(x)
    np.testing.assert_allclose(got, (function(x + h) - function(x - h)) / (2.0 * h), rtol=1e-6, atol=1e-9)


def test_derivatives_between():
    lower, h = jnp.linspace(-9.0, 9.0, 60), 1e-5
    for width in (0.3, 4.0):
        upper = lower + width
        got = jax.vmap(jax.grad(special.log_ndtr_between, (0, 1)))(lower, upper)
        for by, (low, high) in zip(got, ((h, 0.0), (0.0, h)), strict=True):
            above, below = (special.log_ndtr_between(lower + s * low, upper + s * high) for s in (1.0, -1.0))
            np.testing.assert_allclose(by, (above - below) / (2.0 * h), rtol=1e-6, atol=1e-6)


def test_gamma_derivatives_are_the_polygamma_functions():
    x = jnp.geomspace(1e-3, 1e3, 50)
    np.testing.assert_allclose(
        jax.vmap(jax.grad(special.log_gamma))(x), scipy_special.digamma(x), rtol=1e-11, atol=1e-13
    )
    np.testing.assert_allclose(jax.vmap(jax.grad(special.digamma))(x), scipy_special.polygamma(1, x), rtol=1e-9)


def test_at_infinity():
    ends = jnp.array([-jnp.inf, jnp.inf])
    np.testing.assert_array_equal(special.ndtr(ends), [0.0, 1.0])
    np.testing.assert_array_equal(special.log_ndtr(ends), [-np.inf, 0.0])
    assert jnp.isnan(special.log_ndtr(jnp.nan))
    assert jnp.isfinite(jax.grad(special.log_ndtr)(jnp.array(-1e200)))
