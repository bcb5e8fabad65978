"""Predictions at inputs with Gaussian noise: their moments against quadrature over the inputs."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc

RANDOM = np.random.default_rng(0)
KEY = jax.random.key(0)
Z = RANDOM.normal(size=(6, 2))
X = mc.inputs.Normal(RANDOM.normal(size=(3, 2)), RANDOM.uniform(0.05, 0.4, (3, 2)), num_samples=2000)
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
GRID = np.array(list(itertools.product(NODES, NODES)))
SHARES = np.array([a * b for a, b in itertools.product(WEIGHTS, WEIGHTS)]) / WEIGHTS.sum() ** 2


def sparse(kernel, outputs=1, mean=None, **options):
    q = mc.Sparse(mc.GP(kernel, mean), mc.inducing.Points(Z), num_outputs=outputs, **options)
    roots = np.tril(RANDOM.normal(size=(outputs, 6, 6))) * 0.3 + 0.5 * np.eye(6)
    changed = (jnp.asarray(RANDOM.normal(size=(6, outputs))), jnp.asarray(roots))
    return eqx.tree_at(lambda q: (q.q_mu, q.q_sqrt), q, changed)


def moments(process, x=X):
    """The mean [N, P] and the covariance between outputs [N, P, P] of f(x), with x averaged over a grid."""
    inputs = x.mean[:, None] + jnp.sqrt(x.variance)[:, None] * GRID
    means, covs = [], []
    for rows in inputs:
        found = process.predict(rows, "outputs")
        found_mean = jnp.tensordot(SHARES, found.mean, axes=1)
        apart = found.mean - found_mean
        means.append(found_mean)
        covs.append(
            jnp.tensordot(SHARES, found.cov, axes=1) + jnp.einsum("q,qp,qr->pr", jnp.asarray(SHARES), apart, apart)
        )
    return jnp.stack(means), jnp.stack(covs)


KERNELS = {
    "rbf": mc.kernels.RBF([0.9, 1.4], 1.3),
    "sum": mc.kernels.RBF(0.8) + mc.kernels.Linear(0.4),
    "by quadrature": mc.kernels.RationalQuadratic(1.2),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("whiten", [True, False])
def test_moments_of_sparse_posteriors(name, whiten):
    process = sparse(KERNELS[name], 2, mc.means.Constant(np.array([0.5, -1.0])), whiten=whiten)
    mean, cov = moments(process)
    found = process.predict(X, "outputs")
    assert isinstance(found, mc.Gaussian)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(found.cov, cov, rtol=1e-5, atol=1e-6)
    variances = process.predict(X)
    np.testing.assert_allclose(variances.cov, jnp.diagonal(cov, axis1=1, axis2=2), rtol=1e-5)
    cached = process.cached().predict(X)
    np.testing.assert_allclose(cached.cov, variances.cov, rtol=1e-9)


@pytest.mark.parametrize("missing", [False, True])
def test_moments_of_exact_posteriors(missing):
    Y = np.sin(Z) + 0.3
    Y[1, 0] = np.nan if missing else Y[1, 0]
    process = mc.Conditioned(mc.GP(KERNELS["rbf"], mc.means.Constant(0.2)), Z, Y, 0.1)
    mean, cov = moments(process)
    for found in (process.predict(X, "outputs"), process.cached().predict(X, "outputs")):
        assert isinstance(found, mc.Gaussian)
        np.testing.assert_allclose(found.mean, mean, rtol=1e-7)
        np.testing.assert_allclose(found.cov, cov, rtol=1e-6, atol=1e-8)


def test_inputs_without_noise():
    process = sparse(KERNELS["sum"], 2)
    known, found = process.predict(X.mean, "outputs"), process.predict(mc.inputs.Normal(X.mean, 0.0), "outputs")
    np.testing.assert_allclose(found.mean, known.mean, rtol=1e-9)
    np.testing.assert_allclose(found.cov, known.cov, rtol=1e-6, atol=1e-8)


PROCESSES = {
    "prior": mc.GP(KERNELS["rbf"]),
    "exact, coregionalised": mc.Conditioned(
        mc.GP(mc.kernels.IntrinsicCoregionalisation(KERNELS["rbf"], np.array([[1.0, 0.0], [0.5, 0.4]]))),
        Z,
        np.sin(Z),
        0.1,
    ),
    "a mean that is a line": sparse(KERNELS["rbf"], 1, mc.means.Linear(np.array([[0.5], [1.0]]))),
    "coregionalised": mc.Sparse(
        mc.GP(mc.kernels.LinearCoregionalisation([KERNELS["rbf"]], np.array([[1.0], [0.5]]))),
        mc.inducing.Shared(mc.inducing.Points(Z)),
    ),
    "network": mc.Network(mc.features.RandomFourier.of(KERNELS["rbf"], 5, 2, key=KEY)),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_other_processes_are_mixtures_over_draws(name):
    process = PROCESSES[name]
    mean, cov = moments(process)
    found = process.predict(X, "outputs")
    assert isinstance(found, mc.Mixture)
    np.testing.assert_allclose(found.mean, mean, atol=0.06)  # of 2,000 draws
    np.testing.assert_allclose(found.cov, cov, atol=0.1)
    np.testing.assert_allclose(process.predict(X, "outputs").mean, found.mean)  # repeatable
    few = mc.inputs.Normal(X.mean, X.variance, num_samples=4)
    assert process.predict(few, "full").cov.shape == (3, len(mean[0]), 3, len(mean[0]))


def test_a_model_predicts_at_inputs_with_noise():
    model = mc.Model(sparse(KERNELS["rbf"]), mc.likelihoods.Gaussian(0.2))
    latent, found = model.posterior.predict(X), model.predict(X)
    np.testing.assert_allclose(found.cov, latent.cov + 0.2, rtol=1e-12)
    assert model.log_density(X, np.zeros((3, 1))).shape == (3,)


def test_single_precision():
    process = sparse(KERNELS["rbf"])
    small = mc.inputs.Normal(np.asarray(X.mean, np.float32), np.asarray(X.variance, np.float32))
    found = process.predict(small)
    assert found.mean.dtype == np.float32
    np.testing.assert_allclose(found.mean, process.predict(X).mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.cov, process.predict(X).cov, rtol=1e-3, atol=1e-3)


def test_errors():
    process = sparse(KERNELS["rbf"])
    with pytest.raises(ValueError, match="columns"):
        process.predict(mc.inputs.Normal(np.zeros((2, 3)), 0.1))
    with pytest.raises(ValueError, match="num_samples expects a whole number"):
        mc.inputs.Normal(X.mean, 0.1, num_samples=0)
