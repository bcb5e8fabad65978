"""Spherical harmonics: the addition theorem, orthonormality, and what they are in two and three dimensions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from mercer.harmonics import SphericalHarmonics, from_latlon, num_harmonics
from mercer.harmonics.gegenbauer import legendre


def points(num, dimension, seed=0):
    X = np.random.default_rng(seed).normal(size=(num, dimension))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


# Beyond each of the sizes of the tables of other codes: 35 levels at d = 3, 11 at 5, 7 at 10, 5 at 20.
SIZES = [(2, 40), (3, 37), (4, 14), (5, 12), (10, 8), (20, 5), (50, 4), (100, 4)]


@pytest.mark.parametrize(("dimension", "levels"), SIZES)
def test_addition_theorem(dimension, levels):
    """sum_j phi_nj(x) phi_nj(x') = N_n R_n(x . x'): with N_n functions of degree n, they are orthonormal."""
    X = points(9, dimension)
    basis = SphericalHarmonics(dimension, levels)
    phi, degrees = np.asarray(basis(X)), basis.degrees
    expected = legendre(dimension, levels, np.clip(X @ X.T, -1.0, 1.0))
    assert phi.shape == (9, sum(num_harmonics(dimension, n) for n in range(levels)))
    for n in range(levels):
        of_degree = phi[:, degrees == n]
        assert of_degree.shape[1] == num_harmonics(dimension, n)
        np.testing.assert_allclose(of_degree @ of_degree.T / of_degree.shape[1], expected[n], atol=1e-11)


def test_each_function_has_its_degree():
    """phi(-x) = (-1)^n phi(x), and phi is an eigenfunction of the mean over a small circle around x, by R_n."""
    basis, X = SphericalHarmonics(5, 5), points(4, 5)
    np.testing.assert_allclose(basis(-X), np.asarray(basis(X)) * (-1.0) ** basis.degrees, atol=1e-13)
    around = points(4000, 5, seed=1)
    for x in X:
        circle = around - np.outer(around @ x, x)
        circle /= np.linalg.norm(circle, axis=1, keepdims=True)
        circle = np.concatenate([circle, -circle])
        mean = np.mean(np.asarray(basis(0.8 * x + 0.6 * circle)), axis=0)
        expected = np.asarray(basis(x[None]))[0] * legendre(5, 5, np.array(0.8))[basis.degrees]
        np.testing.assert_allclose(mean, expected, atol=0.15)  # five standard errors of 4,000 pairs


def test_orthonormal_by_exact_quadrature_in_three_dimensions():
    x, w = np.polynomial.legendre.leggauss(36)
    phi = 2.0 * np.pi * np.arange(72) / 72
    z, angle = (grid.ravel() for grid in np.meshgrid(x, phi, indexing="ij"))
    s = np.sqrt(1.0 - z**2)
    nodes, weights = np.stack([s * np.cos(angle), s * np.sin(angle), z], axis=1), np.repeat(w, 72) / 144
    values = np.asarray(SphericalHarmonics(3, 35)(nodes))
    np.testing.assert_allclose(values.T @ (weights[:, None] * values), np.eye(35**2), atol=1e-11)


def test_two_dimensions_are_fouriers():
    theta = np.linspace(-3.0, 3.0, 11)
    found = np.asarray(SphericalHarmonics(2, 4)(np.stack([np.cos(theta), np.sin(theta)], axis=1)))
    waves = [np.ones_like(theta)] + [np.sqrt(2.0) * wave(n * theta) for n in (1, 2, 3) for wave in (np.cos, np.sin)]
    np.testing.assert_allclose(found, np.stack(waves, axis=1), atol=1e-13)


def test_three_dimensions_are_the_classical_ones_up_to_rotation_within_a_level():
    X = points(60, 3)
    theta, phi = np.arccos(X[:, 2]), np.arctan2(X[:, 1], X[:, 0])
    basis = SphericalHarmonics(3, 5)
    for n in range(5):
        classical = []
        for m in range(n + 1):
            Y = special.sph_harm_y(n, m, theta, phi) * np.sqrt(4.0 * np.pi)
            classical += [Y.real] if m == 0 else [np.sqrt(2.0) * Y.real, np.sqrt(2.0) * Y.imag]
        found = np.asarray(basis(X))[:, basis.degrees == n]
        rotation = np.linalg.lstsq(found, np.stack(classical, axis=1), rcond=None)[0]
        np.testing.assert_allclose(found @ rotation, np.stack(classical, axis=1), atol=1e-12)
        np.testing.assert_allclose(rotation.T @ rotation, np.eye(2 * n + 1), atol=1e-12)


@pytest.mark.parametrize(
    ("dimension", "levels", "num"), [(3, (4, 0, 2), None), (9, (2, 1, 4), 60), (4, 4, 11), (2, (3, 1), 3)]
)
def test_some_of_them_are_those_of_all(dimension, levels, num):
    X, some = points(5, dimension), SphericalHarmonics(dimension, levels, num)
    every = SphericalHarmonics(dimension, max(some.levels) + 1)
    parts = [np.asarray(every(X))[:, every.degrees == n] for n in some.levels]
    np.testing.assert_allclose(some(X), np.concatenate(parts, axis=1)[:, : some.num], atol=1e-13)


def test_float32_and_derivatives():
    basis, X = SphericalHarmonics(6, 5), jnp.asarray(points(4, 6))
    single = basis(X.astype(jnp.float32))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, basis(X), atol=2e-5)
    direction = np.random.default_rng(3).normal(size=X.shape)
    weights = np.random.default_rng(4).normal(size=(basis.num, 4))

    def total(X):
        return jnp.sum(weights * basis.rows(X))

    step = 1e-6
    slope = (total(X + step * direction) - total(X - step * direction)) / (2 * step)
    np.testing.assert_allclose(jnp.vdot(jax.grad(total)(X), direction), slope, rtol=1e-7)


@pytest.mark.slow
def test_float32_far_up():
    X = points(20, 3).astype(np.float32)
    assert np.isfinite(np.asarray(SphericalHarmonics(3, 60)(X))).all()


def test_errors():
    with pytest.raises(ValueError, match="at least 2"):
        SphericalHarmonics(1, 3)
    with pytest.raises(ValueError, match="levels expects"):
        SphericalHarmonics(3, 0)
    with pytest.raises(ValueError, match="distinct"):
        SphericalHarmonics(3, (1, 1))
    with pytest.raises(ValueError, match="between 1 and"):
        SphericalHarmonics(3, 2, 5)
    with pytest.raises(ValueError, match=r"[0-9,]+ spherical harmonics .* GiB"):
        SphericalHarmonics(100, 8)
    basis = SphericalHarmonics(3, 3)
    with pytest.raises(ValueError, match="as many columns"):
        basis(points(3, 4))
    with pytest.raises(ValueError, match="norm 2"):
        basis(2.0 * points(3, 3))
    with pytest.raises(ValueError, match="zero vector"):
        basis(np.zeros((2, 3)))


def test_places_on_the_globe():
    found = from_latlon([0.0, 0.0, 90.0, -30.0], [0.0, 90.0, 12.0, 540.0])
    expected = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [-np.sqrt(3) / 2, 0, -0.5]]
    np.testing.assert_allclose(found, expected, atol=1e-15)
    with pytest.raises(ValueError, match="between -90 and 90 degrees, got 91 in row 1"):
        from_latlon([0.0, 91.0], [0.0, 0.0])
    with pytest.raises(ValueError, match="one length"):
        from_latlon([0.0, 1.0], [0.0])
    with pytest.raises(ValueError, match="longitude must be finite"):
        from_latlon([0.0], [np.nan])
