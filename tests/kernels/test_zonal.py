"""Zonal kernels and their homogeneous extensions: eigenvalues, Mercer's series, draws, errors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special
from zonal_instances import ZONAL, on_sphere

from cases import mostly_slow
from mercer import kernels
from mercer.harmonics import SphericalHarmonics, num_harmonics
from mercer.kernels.zonal import Zonal
from mercer.parameters import cast

LEVELS = 7


@pytest.fixture(params=mostly_slow(ZONAL, "RBF", "Matern12", "heat", "arc-cosine 1", "sum"), scope="module")
def name(request):
    return request.param


def counts(dimension, levels):
    return np.array([float(num_harmonics(dimension, n)) for n in range(levels)])


@eqx.filter_jit
def values(kernel, dimension, t):
    return kernel.shape_on(dimension, t)


def by_quadrature(kernel, d, n):
    def integrand(theta):
        t = np.cos(theta)
        ratio = special.eval_gegenbauer(n, (d - 2) / 2, t) / special.eval_gegenbauer(n, (d - 2) / 2, 1.0)
        return np.asarray(values(kernel, d, jnp.asarray(t))) * ratio * np.sin(theta) ** (d - 2)

    area = special.gamma(d / 2) / (special.gamma((d - 1) / 2) * np.sqrt(np.pi))
    # Three pieces, with more nodes near the ends than anywhere else.
    pieces = [(0.0, 0.1), (0.1, np.pi / 2), (np.pi / 2, np.pi)]
    return area * sum(integrate.fixed_quad(integrand, *piece, n=150)[0] for piece in pieces)


@pytest.mark.parametrize("dimension", [3, 9, 50])
def test_eigenvalues_by_independent_quadrature(name, dimension):
    found = np.asarray(ZONAL[name].eigenvalues(dimension, LEVELS))
    expected = np.array([by_quadrature(ZONAL[name], dimension, n) for n in range(LEVELS)])
    np.testing.assert_allclose(
        found * np.sqrt(counts(dimension, LEVELS)), expected * np.sqrt(counts(dimension, LEVELS)), atol=1e-11
    )


@pytest.mark.parametrize("dimension", [2, 3, 6])
def test_all_levels_together_are_the_variance(name, dimension):
    levels = 120
    shares = np.asarray(ZONAL[name].eigenvalues(dimension, levels)) * counts(dimension, levels)
    variance = float(values(ZONAL[name], dimension, jnp.ones(())))
    assert np.all(shares > -1e-12)
    assert np.sum(shares) <= variance * (1 + 1e-9)
    rough = name in ("Matern12", "product", "arc-cosine 0", "NTK", "NTK, three layers")
    assert np.sum(shares) >= variance * (0.9 if rough else 0.999)


def test_mercers_series_converges_to_the_kernel(name):
    kernel, X = ZONAL[name], on_sphere(8, 3)
    K, errors = np.asarray(kernel(X)), []
    for levels in (4, 8, 16):
        basis = SphericalHarmonics(3, levels)
        phi, weights = np.asarray(basis(X)), np.asarray(kernel.eigenvalues(3, levels))[basis.degrees]
        errors.append(np.abs(phi @ (weights[:, None] * phi.T) - K).max())
        # At most the variance that is left out, which is the rate at which the spectrum decays.
        left_out = K[0, 0] - weights @ phi[0] ** 2
        assert errors[-1] <= left_out + 1e-9
    assert errors[2] <= errors[0]


def test_vanishing_levels_are_those_whose_eigenvalues_are_zero(name):
    for dimension in (3, 8):
        vanishing = ZONAL[name].vanishing(dimension, 30)
        eigenvalues = np.asarray(ZONAL[name].eigenvalues(dimension, 30))
        assert np.all(np.abs(eigenvalues[vanishing]) < 1e-13)
        assert np.all(eigenvalues[:6][~vanishing[:6]] > 0.0)


def test_eigenvalues_have_derivatives(name):
    kernel = ZONAL[name]
    arrays, static = eqx.partition(kernel, eqx.is_array)
    weights = np.random.default_rng(0).normal(size=5)
    direction = jax.tree.map(lambda leaf: jnp.asarray(0.3), arrays)

    def total(arrays):
        return jnp.vdot(weights, eqx.combine(arrays, static).eigenvalues(4, 5))

    def moved(step):
        return total(jax.tree.map(lambda a, d: a + step * d, arrays, direction))

    slope = jax.jvp(total, (arrays,), (direction,))[1]
    np.testing.assert_allclose(slope, (moved(1e-6) - moved(-1e-6)) / 2e-6, rtol=1e-6, atol=1e-9)


def test_float32(name):
    single = np.asarray(cast(ZONAL[name], jnp.float32).eigenvalues(5, LEVELS))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, ZONAL[name].eigenvalues(5, LEVELS), rtol=2e-4, atol=1e-7)


def test_small_eigenvalues_keep_their_digits():
    """e^-z I_(n + alpha)(z) Gamma(d / 2) (2 / z)^alpha, z = 1 / lengthscale^2, far below the rounding of kappa(1)."""
    for d, lengthscale in ((3, 1.0), (3, 0.1), (10, 2.0), (50, 0.5)):
        n, z, alpha = np.arange(25), lengthscale**-2, d / 2 - 1
        expected = special.ive(n + alpha, z) * special.gamma(d / 2) * (2 / z) ** alpha
        np.testing.assert_allclose(kernels.SphericalRBF(lengthscale).eigenvalues(d, 25), expected, rtol=1e-11)


def test_draws_have_the_kernel_as_covariance(name):
    """Within five standard errors of 4,000 draws."""
    if name in ("sum", "product"):
        pytest.skip("by random features of their parts: the laws of kernels")
    kernel, X = ZONAL[name], jnp.asarray(on_sphere(4, 4))
    draws = kernel.draw(200, 4000, key=jax.random.key(0))(X)
    K = np.asarray(kernel(X))
    found = np.asarray(draws @ draws.T) / 4000
    errors = np.sqrt((np.outer(np.diag(K), np.diag(K)) + K**2) / 4000)
    assert np.all(np.abs(found - K) < 5 * errors + 0.03 * K[0, 0])  # few random functions stand for all high levels


@pytest.mark.slow
def test_draws_in_high_dimension_and_float32():
    X = jnp.asarray(on_sphere(3, 100), jnp.float32)
    draws = kernels.SphericalMatern32(2.0).draw(100, 2000, key=jax.random.key(0))(X)
    assert draws.dtype == jnp.float32
    np.testing.assert_allclose(jnp.mean(draws**2, axis=1), 1.0, atol=0.25)  # of some 100 random functions


def test_features_have_the_kernel_as_product(name):
    kernel, X = ZONAL[name], jnp.asarray(on_sphere(3, 3))
    phi = kernel.features(40_000, key=jax.random.key(1))(X)
    np.testing.assert_allclose(phi @ phi.T, kernel(X), atol=0.06 * float(kernel(X)[0, 0]))


def test_products_with_other_columns():
    kernel = kernels.SphericalMatern52(0.7).on([0, 1, 2]) * kernels.RBF(2.0).on(3)
    X = np.concatenate([on_sphere(5, 3), np.random.default_rng(1).normal(size=(5, 1))], axis=1)
    expected = np.asarray(kernels.SphericalMatern52(0.7)(X[:, :3])) * np.asarray(kernels.RBF(2.0)(X[:, 3:]))
    np.testing.assert_allclose(kernel(X), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="unit sphere"):
        kernel(2.0 * X)


@pytest.mark.parametrize(("flat", "spherical"), [
    (kernels.RBF, kernels.SphericalRBF), (kernels.Matern12, kernels.SphericalMatern12),
    (kernels.Matern32, kernels.SphericalMatern32), (kernels.Matern52, kernels.SphericalMatern52),
])  # fmt: skip
def test_chordal_kernels_are_the_flat_ones(flat, spherical):
    X = on_sphere(6, 4)
    np.testing.assert_allclose(spherical(0.6, 1.3)(X), flat(0.6, 1.3)(X), rtol=1e-9, atol=1e-7)


def test_arc_cosine_is_a_homogeneous_extension():
    X = np.random.default_rng(0).normal(size=(5, 3))
    for order in (0, 1, 2):
        for depth in (1, 2):
            kernel = kernels.ArcCosine(order, depth, [0.7, 1.9, 1.1], 0.7, 1.3)
            extension = kernels.Homogeneous(kernel.zonal, [0.7, 1.9, 1.1], 0.7, degree=order**depth)
            np.testing.assert_allclose(extension(X), kernel(X), rtol=1e-12)
            np.testing.assert_allclose(extension.diag(X), kernel.diag(X), rtol=1e-12)


def test_a_kernel_of_ones_own_says_its_shape():
    class Cubic(Zonal):
        """((1 + t) / 2)^3."""

        def shape(self, t):
            return (0.5 * (1.0 + t)) ** 3

    eigenvalues = np.asarray(Cubic().eigenvalues(3, 6))
    # (1 + t)^3 / 8 in Legendre polynomials: (2 + 3.6 t-terms ...), of degree 3
    t, w = np.polynomial.legendre.leggauss(10)
    expected = [0.5 * np.sum(w * (0.5 * (1 + t)) ** 3 * special.eval_legendre(n, t)) for n in range(6)]
    np.testing.assert_allclose(eigenvalues, expected, atol=1e-13)
    assert float(kernels.Homogeneous(Cubic())(np.zeros((1, 2)))[0, 0]) == pytest.approx(1.0)


def test_errors():
    with pytest.raises(ValueError, match="is not a zonal kernel"):
        kernels.RBF().eigenvalues(3, 2)
    with pytest.raises(ValueError, match="is not a zonal kernel"):
        kernels.Homogeneous(kernels.RBF())
    with pytest.raises(ValueError, match="of all columns"):
        kernels.Homogeneous(kernels.ArcCosine())
    with pytest.raises(ValueError, match="at least 2"):
        kernels.SphericalRBF().eigenvalues(1, 2)
    with pytest.raises(ValueError, match="levels expects"):
        kernels.SphericalRBF().eigenvalues(3, 0)
    with pytest.raises(ValueError, match="order expects"):
        kernels.SphericalArcCosine(3)
    with pytest.raises(ValueError, match="depth expects"):
        kernels.SphericalNTK(0)
    with pytest.raises(ValueError, match="nu expects"):
        kernels.IntrinsicMatern(nu=np.inf)
    with pytest.raises(ValueError, match="truncation expects"):
        kernels.HeatKernel(truncation=0)
    with pytest.raises(ValueError, match="on another sphere"):
        (kernels.ArcCosine() + kernels.SphericalRBF()).on_sphere(jnp.eye(3))
    with pytest.raises(ValueError, match="zero vector"):
        kernels.SphericalRBF()(np.zeros((2, 3)))
