"""Linearised Laplace: exact where a module is linear, and against dense algebra elsewhere."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from mercer import features
from mercer.processes import ReducedCovariance

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 2))
Y = X @ [[0.7], [-0.4]] + 0.3 + 0.2 * RANDOM.normal(size=(40, 1))
NEW = RANDOM.normal(size=(5, 2))
NOISE, VARIANCE = 0.05, 0.8


def ridge(noise=NOISE, variance=VARIANCE):
    """A linear layer at the mode of its posterior, and the same posterior by exact regression."""
    A = np.concatenate([X, np.ones((40, 1))], axis=1)
    weights = np.linalg.solve(A.T @ A / noise + np.eye(3) / variance, A.T @ Y / noise)[:, 0]
    layer = eqx.nn.Linear(2, 1, key=KEY)
    layer = eqx.tree_at(lambda m: (m.weight, m.bias), layer, (jnp.asarray(weights[None, :2]), jnp.asarray(weights[2:])))
    kernel = mc.kernels.Linear(variance) + mc.kernels.Constant(variance)
    return layer, mc.Conditioned(mc.GP(kernel), X, Y, noise)


@pytest.mark.parametrize("structure", ["full", "low-rank"])
def test_of_a_linear_model_it_is_exact(structure):
    layer, exact = ridge()
    learned = mc.laplace.learn(
        features.Tangent(layer),
        mc.likelihoods.Gaussian(NOISE),
        (X, Y),
        covariance=structure,
        prior_variance=VARIANCE,
        batch_size=7,
    )
    found, expected = learned.model.posterior.predict(NEW, "inputs"), exact.predict(NEW, "inputs")
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-8)
    np.testing.assert_allclose(found.cov, expected.cov, atol=1e-8)
    np.testing.assert_allclose(learned.log_evidence, exact.log_marginal_likelihood(), rtol=1e-8)


def test_prior_variance_and_noise_have_the_greatest_evidence():
    layer, _ = ridge()
    learned = mc.laplace.learn(features.Tangent(layer), mc.likelihoods.Gaussian(), (X, Y), noise="evidence")
    variance, noise = float(learned.model.posterior.prior_variance), float(learned.model.likelihood.variance)
    for factors in ((1.05, 1.0), (0.95, 1.0), (1.0, 1.05), (1.0, 0.95)):
        other = mc.laplace.learn(
            features.Tangent(layer),
            mc.likelihoods.Gaussian(noise * factors[1]),
            (X, Y),
            prior_variance=variance * factors[0],
        )
        assert other.log_evidence < learned.log_evidence
    same = mc.laplace.learn(features.Tangent(layer), mc.likelihoods.Gaussian(noise), (X, Y), prior_variance=variance)
    np.testing.assert_allclose(same.log_evidence, learned.log_evidence, rtol=1e-8)
    np.testing.assert_allclose(same.model.predict(NEW).cov, learned.model.predict(NEW).cov, rtol=1e-6)


LABELS = (RANDOM.uniform(size=(40, 1)) * 3.0).astype(int).astype(float)


def curvature(network, likelihood, targets):
    """H of the linearised network, as the Hessian of the log likelihood in the weights."""
    phi = jnp.asarray(network.features(X))

    def log_likelihood(w):
        f = network.features.offset(jnp.asarray(X)) + jnp.einsum("pnf,f->np", phi, w)
        return jnp.sum(likelihood.log_prob(f, targets))

    return -jax.hessian(log_likelihood)(jnp.zeros(phi.shape[-1]))


@pytest.mark.parametrize("whole", [pytest.param(True, marks=pytest.mark.slow), False])
def test_classes_have_the_curvature_of_their_likelihood(whole):
    module = eqx.nn.MLP(2, 3, 4, 1, activation=jnp.tanh, key=KEY)
    last = eqx.nn.Linear(4, 3, key=KEY)
    body = eqx.nn.Sequential([eqx.nn.Linear(2, 4, key=KEY), eqx.nn.Lambda(jnp.tanh)])
    map_ = features.Tangent(module) if whole else features.Composed(body, features.Tangent(last))
    likelihood = mc.likelihoods.Softmax(3)
    learned = mc.laplace.learn(map_, likelihood, (X, LABELS), prior_variance=0.5, batch_size=16)
    H = curvature(learned.model.posterior, likelihood, LABELS)
    root = learned.model.posterior.covariance.root[0]
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(H + 2.0 * np.eye(len(H))), atol=1e-8)
    diagonal = mc.laplace.learn(map_, likelihood, (X, LABELS), prior_variance=0.5, covariance="diag")
    np.testing.assert_allclose(diagonal.model.posterior.covariance.diagonal()[0], 1.0 / (np.diag(H) + 2.0), rtol=1e-8)
    assert mc.laplace.learn(map_, likelihood, (X, LABELS)).log_evidence > learned.log_evidence


def test_low_rank_is_the_prior_outside_of_its_directions():
    module = eqx.nn.MLP(2, 1, 10, 1, activation=jnp.tanh, key=KEY)
    arguments = features.Tangent(module), mc.likelihoods.Gaussian(NOISE), (X, Y)
    full = mc.laplace.learn(*arguments, prior_variance=0.5).model.posterior
    low = mc.laplace.learn(*arguments, prior_variance=0.5, covariance="low-rank", rank=30).model.posterior
    # 40 rows have 40 directions, of which those beyond the thirtieth hardly count here.
    np.testing.assert_allclose(low.predict(X).cov, full.predict(X).cov, rtol=1e-3)
    few = mc.laplace.learn(*arguments, prior_variance=0.5, covariance="low-rank", rank=3).model.posterior
    assert (few.predict(X).cov >= full.predict(X).cov - 1e-9).all()


class Hidden(eqx.Module):
    """A layer of tanh units, and 1."""

    layer: eqx.nn.Linear

    def __call__(self, x):
        return jnp.concatenate([jnp.tanh(self.layer(x)), jnp.ones(1)])


BODY = Hidden(eqx.nn.Linear(2, 4, key=KEY))
WEIGHTS = 0.5 * RANDOM.normal(size=(5, 3))


def test_outputs_with_weights_of_their_own():
    map_, likelihood = features.Basis(BODY, dimension=2), mc.likelihoods.Softmax(3)
    phi = np.asarray(map_(X)[0])
    shares = np.asarray(jax.nn.softmax(phi @ WEIGHTS, axis=1))
    curvature = shares * (1.0 - shares)
    options = {"weights": WEIGHTS, "prior_variance": 0.5, "batch_size": 16}
    full = mc.laplace.learn(map_, likelihood, (X, LABELS), **options)
    np.testing.assert_allclose(full.model.posterior.predict(X).mean, phi @ WEIGHTS, atol=1e-10)
    for p, root in enumerate(full.model.posterior.covariance.root):
        H = phi.T @ (curvature[:, p : p + 1] * phi)
        np.testing.assert_allclose(root @ root.T, np.linalg.inv(H + 2.0 * np.eye(5)), atol=1e-8)
    product = mc.laplace.learn(map_, likelihood, (X, LABELS), covariance="kronecker", **options).model.posterior
    root = np.asarray(product.covariance.times_root(jnp.eye(5)[None]))
    for p in range(3):
        H = curvature[:, p].sum() * phi.T @ phi / 40
        np.testing.assert_allclose(root[p] @ root[p].T, np.linalg.inv(H + 2.0 * np.eye(5)), atol=1e-8)
    V = root @ np.swapaxes(root, 1, 2)
    np.testing.assert_allclose(product.covariance.diagonal(), np.diagonal(V, axis1=1, axis2=2), rtol=1e-8)
    np.testing.assert_allclose(product.covariance.log_determinant(), np.linalg.slogdet(V)[1].sum(), rtol=1e-8)


def test_thousands_of_classes_take_little_memory():
    classes = 3100
    weights = 0.3 * np.random.default_rng(1).normal(size=(5, classes))
    labels = np.arange(40.0)[:, None]
    learned = mc.laplace.learn(
        features.Basis(BODY, dimension=2),
        mc.likelihoods.Softmax(classes),
        (X, labels),
        weights=weights,
        covariance="kronecker",
    )
    held = sum(leaf.size for leaf in jax.tree.leaves(learned.model) if eqx.is_array(leaf))
    assert held < 3 * weights.size
    assert learned.model.posterior.predict(NEW).cov.shape == (5, classes)


def test_reduced_covariances():
    U = np.linalg.qr(RANDOM.normal(size=(1, 6, 2)))[0]
    V = ReducedCovariance([1.5], U, [[0.9, 0.2]])
    root = V.times_root(jnp.eye(6)[None])[0]
    expected = 1.5**2 * (np.eye(6) - U[0] @ np.diag([0.9, 0.2]) @ U[0].T)
    np.testing.assert_allclose(root @ root.T, expected, atol=1e-10)
    np.testing.assert_allclose(V.diagonal()[0], np.diag(expected), rtol=1e-10)
    np.testing.assert_allclose(V.log_determinant(), np.linalg.slogdet(expected)[1], rtol=1e-10)


def test_it_is_a_start_for_mirror_descent():
    layer, exact = ridge()
    start = mc.laplace.learn(
        features.Tangent(layer), mc.likelihoods.Gaussian(NOISE), (X, Y), prior_variance=VARIANCE
    ).model
    objective = mc.objectives.MirrorDescent(exact.prior, mc.objectives.measurement.Data(4))
    fitted = mc.fit(start, objective, (X, Y), steps=20, batch_size=20).model
    np.testing.assert_allclose(fitted.posterior.predict(NEW).mean, exact.predict(NEW).mean, atol=0.1)


def test_a_tangent_kernel_is_a_functional_prior_with_noise_of_each_point():
    module = eqx.nn.MLP(2, 1, 6, 1, activation=jnp.tanh, key=KEY)
    kernel = mc.kernels.FeatureMap(mc.kernels.Linear(0.3), features.Tangent(module))
    noise = np.linspace(0.01, 0.2, 40)[:, None]
    exact = mc.Conditioned(mc.GP(kernel, mc.means.Network(module)), X, Y, noise)
    phi = np.asarray(features.Tangent(module)(X)[0])
    K = 0.3 * phi @ phi.T
    expected = np.diag(K - K @ np.linalg.solve(K + np.diag(noise[:, 0]), K))
    np.testing.assert_allclose(exact.predict(X).cov[:, 0], expected, atol=1e-8)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"features": 1.0}, "mercer.features"),
        ({"covariance": "block"}, "covariance expects"),
        ({"noise": "some"}, "noise expects"),
        ({"noise": "evidence", "likelihood": mc.likelihoods.Bernoulli()}, "Gaussian likelihood"),
        ({"prior_variance": -1.0}, "positive"),
        ({"weights": np.zeros((3, 1))}, "Tangent has them"),
        ({"features": features.Basis(BODY, dimension=2)}, "Basis needs them"),
        ({"features": features.Basis(BODY, dimension=2), "weights": np.zeros((3, 1))}, "expects shape"),
        ({"covariance": "kronecker"}, "share a Basis"),
        ({"likelihood": mc.likelihoods.Softmax(3), "data": (X, LABELS)}, "3 latent functions"),
    ],
)
def test_errors(options, word):
    layer, _ = ridge()
    options = {"features": features.Tangent(layer), "likelihood": mc.likelihoods.Gaussian(), "data": (X, Y)} | options
    with pytest.raises(ValueError, match=word):
        mc.laplace.learn(options.pop("features"), options.pop("likelihood"), options.pop("data"), **options)
