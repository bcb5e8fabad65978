"""Gegenbauer polynomials and Funk-Hecke coefficients, against SciPy and closed forms."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special

from mercer.harmonics import funk_hecke, gegenbauer, num_harmonics, zonal_series
from mercer.harmonics.funk_hecke import constant_coefficients, rectified_coefficients
from mercer.harmonics.gegenbauer import legendre

T = np.linspace(-1.0, 1.0, 31)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 3.5, 49.0])
@pytest.mark.parametrize("level", [0, 1, 2, 7, 40])
def test_gegenbauer_polynomials_are_those_of_scipy(level, alpha):
    expected = special.eval_gegenbauer(level, alpha, T)
    np.testing.assert_allclose(gegenbauer(level, alpha, T), expected, rtol=1e-10, atol=1e-11 * np.abs(expected).max())


def test_gegenbauer_of_order_0_are_cosines():
    np.testing.assert_allclose(gegenbauer(9, 0.0, T), np.cos(9 * np.arccos(T)), atol=1e-13)


def test_gegenbauer_in_float32():
    found = gegenbauer(12, 1.5, T.astype(np.float32))
    assert found.dtype == jnp.float32
    expected = special.eval_gegenbauer(12, 1.5, T)
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


def test_numbers_of_harmonics():
    assert [num_harmonics(2, n) for n in range(4)] == [1, 2, 2, 2]
    assert [num_harmonics(3, n) for n in range(5)] == [1, 3, 5, 7, 9]
    assert sum(num_harmonics(9, n) for n in range(4)) == 210
    for d, n in ((5, 10), (20, 4), (100, 3)):  # equation 3.18
        assert num_harmonics(d, n) == round((2 * n + d - 2) / n * math.comb(n + d - 3, n - 1))


@pytest.mark.parametrize("dimension", [2, 3, 7])
def test_series_and_its_derivatives(dimension):
    weights, t = jnp.asarray(np.random.default_rng(0).normal(size=8)), jnp.asarray(T[1:-1])

    def series(weights, t):
        return zonal_series(dimension, weights, t)

    np.testing.assert_allclose(series(weights, t), weights @ legendre(dimension, 8, np.asarray(t)), atol=1e-13)
    slope = jax.jvp(lambda t: series(weights, t), (t,), (jnp.ones_like(t),))[1]
    np.testing.assert_allclose(slope, (series(weights, t + 1e-6) - series(weights, t - 1e-6)) / 2e-6, atol=1e-7)
    by_weights = jax.jacrev(series)(weights, t)
    np.testing.assert_allclose(by_weights.T, legendre(dimension, 8, np.asarray(t)), atol=1e-13)


def coefficient(shape, d, n, points=()):
    """E[shape(t) R_n(t)] by adaptive quadrature over the angle."""

    def integrand(theta):
        t = np.cos(theta)
        ratio = special.eval_gegenbauer(n, (d - 2) / 2, t) / special.eval_gegenbauer(n, (d - 2) / 2, 1.0)
        return shape(t) * ratio * np.sin(theta) ** (d - 2)

    area = special.gamma(d / 2) / (special.gamma((d - 1) / 2) * np.sqrt(np.pi))
    return area * integrate.quad(integrand, 0.0, np.pi, epsabs=1e-14, limit=200, points=points or None)[0]


@pytest.mark.parametrize("dimension", [3, 5, 20, 50])
def test_coefficients_by_quadrature(dimension):
    shapes = {"smooth": lambda t: 1.0 / (1.5 - t), "of the angle": np.arccos, "kink": lambda t: np.maximum(t, 0.0)}
    for name, shape in shapes.items():
        found = constant_coefficients(jnp.arccos if shape is np.arccos else lambda t, f=shape: f(t), dimension, 7)
        for n in range(7):
            expected = coefficient(shape, dimension, n, (np.pi / 2,))
            assert abs(found[n] - expected) < 1e-12 / math.sqrt(num_harmonics(dimension, n)), (name, n)


def test_coefficients_on_the_circle_are_fouriers():
    found = funk_hecke(lambda t: jnp.exp(t), 2, 6)
    np.testing.assert_allclose(found, special.iv(np.arange(6), 1.0), atol=1e-13)


@pytest.mark.parametrize("dimension", [2, 3, 4, 5, 9])
def test_rectified_units_in_closed_form(dimension):
    """ERRATA of paper 001; and by quadrature for orders 0 and 2."""
    d, relu = dimension, rectified_coefficients(1, dimension, 11)
    assert relu[1] == pytest.approx(1 / (2 * d), rel=1e-13)
    assert not np.any(relu[3::2])
    for n in range(2, 11, 2):
        logs = special.gammaln([d / 2, (n - 1) / 2, (n + d + 1) / 2])
        expected = (-1.0) ** (n / 2 - 1) * np.exp(logs[0] + logs[1] - logs[2]) / (4 * np.pi)
        assert relu[n] == pytest.approx(expected, rel=1e-12)
    for order in (0, 1, 2):
        found = constant_coefficients(lambda t, p=order: jnp.where(t > 0, t**p, 0.0), d, 11)
        np.testing.assert_allclose(rectified_coefficients(order, d, 11), found, atol=1e-13)
