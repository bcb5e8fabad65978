"""Expectations of kernels under Gaussian inputs, against quadrature on a fine grid."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from mercer import kernels
from mercer.covariances import Kuf, psi0, psi1, psi2, psi2_sum, psi2_traces
from mercer.kernels.terms import GaussianTerm, gaussian_terms

RANDOM = np.random.default_rng(0)
POINTS = mc.inducing.Points(RANDOM.normal(size=(4, 2)))
X = mc.inputs.Normal(RANDOM.normal(size=(3, 2)), RANDOM.uniform(0.05, 0.6, (3, 2)))
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
GRID = np.array(list(itertools.product(NODES, NODES)))
SHARES = np.array([a * b for a, b in itertools.product(WEIGHTS, WEIGHTS)]) / WEIGHTS.sum() ** 2
WIDE = kernels.RBF([0.9, 1.4], 1.3)
KERNELS = {
    "rbf": WIDE,
    "one lengthscale": kernels.RBF(0.8),
    "linear": kernels.Linear([0.7, 1.2]),
    "constant": kernels.Constant(0.6),
    "polynomial": kernels.Polynomial(3, 0.4, 0.7),
    "sum": WIDE + kernels.Linear(0.5) + 2.0 * kernels.RBF(0.6) + kernels.Constant(0.3),
    "columns": kernels.RBF(0.9).on(0) + kernels.Linear(0.8).on(1),
    "product of columns": kernels.RBF(0.9, 1.2).on(0) * kernels.Linear(0.8).on(1),
    "product on the same columns": WIDE * kernels.Linear([0.7, 1.2]) * kernels.RBF(1.1),
    "product of sums": (WIDE + kernels.Constant(0.5)) * (kernels.Linear(0.4) + kernels.RBF(0.7)),
    "two linear factors": kernels.Linear([0.7, 1.2]) * kernels.Linear(0.5),
}


def averaged(function, x=X):
    """The mean of a function of inputs [N, D], along the first axis."""
    inputs = x.mean[:, None] + jnp.sqrt(x.variance)[:, None] * GRID  # [N, Q, D]
    return jnp.stack([jnp.tensordot(SHARES, function(row), axes=1) for row in inputs])


@pytest.mark.parametrize("name", KERNELS)
def test_closed_forms_agree_with_quadrature(name):
    kernel = KERNELS[name]
    np.testing.assert_allclose(psi0(kernel, X), averaged(kernel.diag), rtol=1e-8)
    values = averaged(lambda x: kernel(x, POINTS.Z))
    np.testing.assert_allclose(psi1(POINTS, kernel, X), values.T, rtol=1e-8, atol=1e-9)

    def products(x):
        K = kernel(x, POINTS.Z)
        return K[:, :, None] * K[:, None, :]

    expected = averaged(products)
    np.testing.assert_allclose(psi2(POINTS, kernel, X), expected, rtol=1e-8, atol=1e-9)
    weights = jnp.asarray([0.5, 2.0, 1.0])
    np.testing.assert_allclose(
        psi2_sum(POINTS, kernel, X, weights), jnp.tensordot(weights, expected, axes=1), rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize("name", ["rbf", "product of sums"])
def test_inputs_without_noise_are_inputs(name):
    kernel, known = KERNELS[name], mc.inputs.Normal(X.mean, 0.0)
    K = Kuf(POINTS, kernel, X.mean)
    np.testing.assert_allclose(psi0(kernel, known), kernel.diag(X.mean), rtol=1e-12)
    np.testing.assert_allclose(psi1(POINTS, kernel, known), K, rtol=1e-12)
    np.testing.assert_allclose(psi2(POINTS, kernel, known), jnp.einsum("mn,ln->nml", K, K), rtol=1e-12)
    slopes = jax.grad(lambda mean: jnp.sum(psi1(POINTS, kernel, mc.inputs.Normal(mean, 0.0))))(X.mean)
    np.testing.assert_allclose(slopes, jax.grad(lambda x: jnp.sum(Kuf(POINTS, kernel, x)))(X.mean), rtol=1e-10)


@pytest.mark.parametrize("kernel", [kernels.RationalQuadratic(0.8, 1.2), kernels.Periodic(1.5, 3.0) + WIDE])
def test_other_kernels_are_averaged_over_a_grid(kernel):
    np.testing.assert_allclose(psi0(kernel, X), averaged(kernel.diag), rtol=1e-8)
    values = averaged(lambda x: kernel(x, POINTS.Z))
    np.testing.assert_allclose(psi1(POINTS, kernel, X), values.T, rtol=2e-4)
    expected = averaged(lambda x: kernel(x, POINTS.Z)[:, :, None] * kernel(x, POINTS.Z)[:, None, :])
    np.testing.assert_allclose(psi2(POINTS, kernel, X), expected, rtol=2e-4)
    gradient = jax.grad(lambda mean: jnp.sum(psi1(POINTS, kernel, mc.inputs.Normal(mean, 0.0))))(X.mean)
    assert bool(jnp.isfinite(gradient).all())


def test_other_inducing_variables_are_averaged_over_a_grid():
    kernel, inducing = kernels.Matern32(0.7), mc.inducing.FourierFeatures(-6.0, 6.0, 5)
    x = mc.inputs.Normal(np.array([[0.3], [-1.0]]), 0.04)
    draws = x.mean + 0.2 * np.random.default_rng(1).normal(size=(2, 20_000))
    values = jnp.stack([Kuf(inducing, kernel, row[:, None]) for row in draws])  # [N, M, S]
    np.testing.assert_allclose(psi1(inducing, kernel, x), jnp.mean(values, axis=-1).T, atol=0.02)
    expected = jnp.einsum("nms,nls->nml", values, values) / 20_000
    np.testing.assert_allclose(psi2(inducing, kernel, x), expected, atol=0.02)


def test_sums_over_many_inputs_are_formed_in_blocks(monkeypatch):
    from mercer.covariances import expectations

    monkeypatch.setattr(expectations, "_MOST", 2 * 16)  # two rows at a time
    x = mc.inputs.Normal(RANDOM.normal(size=(7, 2)), 0.3)
    weights = jnp.arange(1.0, 8.0)
    expected = jnp.einsum("n,nml->ml", weights, psi2(POINTS, WIDE, x))
    np.testing.assert_allclose(psi2_sum(POINTS, WIDE, x, weights), expected, rtol=1e-12)
    A = RANDOM.normal(size=(3, 4, 4))
    expected = jnp.einsum("nml,kml->nk", psi2(POINTS, WIDE, x), A)
    np.testing.assert_allclose(psi2_traces(POINTS, WIDE, x, A), expected, rtol=1e-10)
    np.testing.assert_allclose(psi2_sum(POINTS, WIDE, x), jnp.sum(psi2(POINTS, WIDE, x), axis=0), rtol=1e-12)


def test_single_precision():
    small = jax.tree.map(lambda leaf: leaf.astype(np.float32), (POINTS, KERNELS["sum"], X))
    found, expected = psi2(*small), psi2(POINTS, KERNELS["sum"], X)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_a_kernel_of_the_user_says_its_terms():
    class Bump(kernels.Kernel):
        width: jax.Array = mc.parameters.param(mc.parameters.positive)

        def _matrix(self, X, X2):
            X2 = X if X2 is None else X2
            return jnp.exp(-0.5 * jnp.sum((X[:, None] - X2) ** 2, axis=-1) / self.width**2)

        def _diagonal(self, X):
            return jnp.ones(len(X))

    @gaussian_terms.dispatch
    def _(kernel: Bump, dimension: int):
        return (GaussianTerm(jnp.ones(()), jnp.full(dimension, kernel.width**-2)),)

    np.testing.assert_allclose(psi2(POINTS, Bump(0.8), X), psi2(POINTS, kernels.RBF(0.8), X), rtol=1e-12)


def test_errors():
    many = mc.inputs.Normal(np.zeros((2, 5)), 0.1)
    with pytest.raises(ValueError, match=r"expectations of Matern12.*up to 3 columns, got 5"):
        psi1(mc.inducing.Points(np.zeros((3, 5))), kernels.Matern12(), many)
    with pytest.raises(ValueError, match=r"variance expects a number, one for each column, or shape \(3, 2\)"):
        mc.inputs.Normal(np.zeros((3, 2)), np.ones(3))
    with pytest.raises(ValueError, match="must not be negative"):
        mc.inputs.Normal(np.zeros((3, 2)), -0.1)
    with pytest.raises(ValueError, match="mean must be finite"):
        mc.inputs.Normal(np.full((3, 2), np.nan), 0.1)
    assert len(many) == 2
    assert eqx.tree_equal(many, mc.inputs.Normal(np.zeros((2, 5)), np.full(5, 0.1)))
