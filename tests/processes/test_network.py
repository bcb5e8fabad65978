"""Inference networks: linear models in their weights, so that dense algebra says what each of them should give."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from mercer import features
from mercer.processes import network, weights

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(7, 2))
Y = np.sin(X[:, :1]) + 0.1 * RANDOM.normal(size=(7, 1))
FOURIER = features.RandomFourier.of(mc.kernels.RBF([0.5, 2.0], 1.7), 4, 2, key=KEY)


def mlp(inputs, outputs, key=KEY):
    return eqx.nn.MLP(inputs, outputs, 3, 1, activation=jnp.tanh, key=key)


MAPS = {
    "shared": (FOURIER, 2),
    "basis": (features.Basis(mlp(2, 5)), 2),
    "tangent": (features.Tangent(mlp(2, 2)), None),
    "separate": (features.Separate([features.Tangent(mlp(2, 1, key)) for key in jax.random.split(KEY)]), None),
    "composed": (features.Composed(mlp(2, 3), features.Tangent(mlp(3, 2))), None),
}
STRUCTURES = ("full", "diag", "low-rank", "kronecker")


def drawn(name, structure, scale=0.5):
    """A network with weights of no special form."""
    map_, P = MAPS[name]
    made = mc.Network(
        map_, covariance=structure, num_outputs=P, mean=mc.means.Constant([0.3, -0.2]), prior_variance=2.0
    )
    leaves, form = jax.tree.flatten((made.q_mu, made.covariance))
    keys = jax.random.split(jax.random.key(7), len(leaves))
    moved = [leaf + scale * jnp.abs(jax.random.normal(k, leaf.shape)) for k, leaf in zip(keys, leaves, strict=True)]
    q_mu, covariance = jax.tree.unflatten(form, moved)
    covariance = jax.tree.map(
        lambda leaf: jnp.tril(leaf) if leaf.ndim == 3 and leaf.shape[1] == leaf.shape[2] else leaf, covariance
    )
    return eqx.tree_at(lambda n: (n.q_mu, n.covariance), made, (q_mu, covariance))


def dense_covariance(covariance):
    """V of each group, from its root applied to the identity."""
    L, F = covariance.shape
    root = covariance.times_root(jnp.broadcast_to(jnp.eye(F), (L, F, F)))
    return np.asarray(root @ root.mT)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", MAPS)
def test_predictions_are_those_of_a_linear_model(name, structure):
    q = drawn(name, structure)
    phi, V, m = np.asarray(q.features(X)), dense_covariance(q.covariance), np.asarray(q.q_mu)
    P = q.num_outputs
    phi = np.broadcast_to(phi, (P, *phi.shape[1:]))
    if q.features.joint:
        full = np.einsum("pnf,fg,qmg->npmq", phi, V[0], phi)
        mean = np.einsum("pnf,f->np", phi, m[:, 0])
    else:
        full = np.einsum("pnf,pfg,pmg,pq->npmq", phi, V, phi, np.eye(P))
        mean = np.einsum("pnf,fp->np", phi, m)
    offset = q.features.offset(jnp.asarray(X))
    mean = mean + np.array([0.3, -0.2]) + (0.0 if offset is None else np.asarray(offset))
    sums = {"diag": "npnp->np", "outputs": "npnq->npq", "inputs": "npmp->pnm", "full": "npmq->npmq"}
    for layout, indices in sums.items():
        found = q.predict(X, layout)
        np.testing.assert_allclose(found.mean, mean, atol=1e-10)
        np.testing.assert_allclose(found.cov, np.einsum(indices, full), atol=1e-10)


@pytest.mark.parametrize("name", ["shared", "tangent"])
def test_many_features_are_worked_out_block_by_block(name, monkeypatch):
    q = drawn(name, "diag")
    layouts = ("diag", "outputs", "inputs", "full")
    whole = [q.predict(X, layout) for layout in layouts]
    monkeypatch.setattr(network, "_MOST", 3 * q.features.num * q.num_outputs)
    for layout, before in zip(layouts, whole, strict=True):
        after = q._predict(jnp.asarray(X), layout)  # not compiled: what was compiled before has the blocks of before
        np.testing.assert_allclose(after.mean, before.mean, atol=1e-12)
        np.testing.assert_allclose(after.cov, before.cov, atol=1e-12)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", ["shared", "tangent"])
def test_divergence_from_the_prior(name, structure):
    q = drawn(name, structure)
    V, m = dense_covariance(q.covariance), np.asarray(q.q_mu).T
    np.testing.assert_allclose(q.covariance.diagonal(), np.diagonal(V, axis1=1, axis2=2), rtol=1e-10)
    np.testing.assert_allclose(q.covariance.log_determinant(), np.linalg.slogdet(V)[1].sum(), rtol=1e-10)
    expected = 0.5 * (np.trace(V, axis1=1, axis2=2).sum() / 2.0 + (m**2).sum() / 2.0 - m.size)
    expected += 0.5 * (m.size * np.log(2.0) - np.linalg.slogdet(V)[1].sum())
    np.testing.assert_allclose(q.kl(), expected, rtol=1e-10)
    np.testing.assert_allclose(q.kl(q.prior), expected, rtol=1e-10)


def test_the_prior_is_the_network_before_it_has_learned():
    for name in MAPS:
        prior = drawn(name, "full").prior
        phi = np.broadcast_to(np.asarray(prior.features(X)), (2, 7, prior.features.num))
        np.testing.assert_allclose(prior.predict(X, "inputs").cov, 2.0 * phi @ np.swapaxes(phi, 1, 2), atol=1e-10)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_drawn_functions_have_the_moments_of_the_process(structure):
    q = drawn("tangent", structure, scale=0.3)
    num = 20_000
    values = jax.vmap(lambda key: q.sample_function(key=key)(X[:3]))(jax.random.split(KEY, num)).reshape(num, -1)
    expected = q.predict(X[:3], "full")
    cov = np.asarray(expected.cov).reshape(6, 6)
    errors = np.sqrt(np.diag(cov) / num)
    assert (abs(values.mean(0) - expected.mean.reshape(-1)) < 5.0 * errors).all()
    sizes = np.sqrt(np.outer(np.diag(cov), np.diag(cov)))
    assert (abs(np.cov(values.T) - cov) / sizes).max() < 5.0 * np.sqrt(2.0 / num)


def test_one_natural_gradient_step_is_the_exact_posterior():
    q, noise = mc.Network(FOURIER), 0.1
    exact = mc.Conditioned(mc.GP(mc.kernels.FeatureMap(mc.kernels.Linear(), FOURIER)), X, Y, noise)
    model = mc.Model(q, mc.likelihoods.Gaussian(noise))
    natural = mc.training.NaturalGradient(1.0)
    fitted = mc.fit(model, mc.objectives.ELBO(), (X, Y), steps=1, optimiser=natural).model
    np.testing.assert_allclose(mc.elbo(fitted, X, Y), exact.log_marginal_likelihood(), rtol=1e-8)
    for layout in ("diag", "inputs"):
        found, expected = fitted.posterior.predict(X + 0.1, layout), exact.predict(X + 0.1, layout)
        np.testing.assert_allclose(found.mean, expected.mean, atol=1e-8)
        np.testing.assert_allclose(found.cov, expected.cov, atol=1e-8)


def test_generalised_inference_with_bayes_rule_is_the_bound():
    model = mc.Model(drawn("separate", "low-rank"), mc.likelihoods.Gaussian(0.2))
    data = X, np.concatenate([Y, -Y], axis=1)
    risk = mc.objectives.risks.ExpectedNegativeLogLikelihood()
    gvi = mc.objectives.GVI(None, risk, mc.divergences.KL())
    np.testing.assert_allclose(gvi(model, data), mc.objectives.ELBO()(model, data), rtol=1e-10)


def test_weights_begin_at_the_prior():
    for structure in ("full", "diag", "kronecker"):
        np.testing.assert_allclose(mc.Network(FOURIER, covariance=structure, prior_variance=0.3).kl(), 0.0, atol=1e-10)


def test_saved_and_loaded(tmp_path):
    for name, structure in (("composed", "kronecker"), ("shared", "low-rank")):
        q = drawn(name, structure)
        mc.save(tmp_path / name, q)
        np.testing.assert_array_equal(mc.load(tmp_path / name).predict(X).cov, q.predict(X).cov)


class TestBayesianNetwork:
    q = mc.processes.BayesianNetwork(mlp(2, 2), 0.01, num_samples=5_000, prior_variance=1.5)

    def test_narrow_weights_are_the_linearised_network(self):
        tangent = mc.Network(features.Tangent(self.q.module), covariance=weights.DiagonalCovariance(self.q.scale[None]))
        found, expected = self.q.predict(X[:3], "full"), tangent.predict(X[:3], "full")
        np.testing.assert_allclose(found.mean, expected.mean, atol=2e-3)
        np.testing.assert_allclose(found.cov, expected.cov, atol=8e-2 * float(jnp.max(expected.cov)))

    def test_divergence_is_that_of_the_weights(self):
        flat = jax.flatten_util.ravel_pytree(eqx.filter(self.q.module, eqx.is_inexact_array))[0]
        ratio = 0.01**2 / 1.5
        expected = 0.5 * jnp.sum(ratio - 1.0 - np.log(ratio) + flat**2 / 1.5)
        np.testing.assert_allclose(self.q.kl(), expected, rtol=1e-10)

    def test_draws(self):
        assert self.q.sample(X, 3, key=KEY).shape == (3, 7, 2)
        function = self.q.sample_function(key=KEY)
        np.testing.assert_array_equal(function(X), function(X))


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: mc.Network(lambda x: x), "mercer.features"),
        (lambda: mc.Network(FOURIER, covariance="block"), "'low-rank'"),
        (lambda: mc.Network(FOURIER, rank=3), 'covariance="low-rank"'),
        (lambda: mc.Network(FOURIER, covariance="low-rank", rank=100), "between 1 and"),
        (lambda: mc.Network(MAPS["tangent"][0], num_outputs=3), "has 2 outputs"),
        (lambda: mc.Network(FOURIER, q_mu=np.zeros((3, 1))), "q_mu expects shape"),
        (lambda: mc.Network(FOURIER, prior_variance=-1.0), "positive"),
        (lambda: mc.Network(FOURIER).predict(np.zeros((3, 5))), "2 columns"),
        (lambda: mc.Network(FOURIER).predict(mc.inducing.Derivative(np.zeros((3, 2)), 0)), "asked at inputs"),
        (lambda: mc.Network(FOURIER).kl(mc.GP(mc.kernels.RBF())), "own prior"),
        (lambda: mc.processes.BayesianNetwork(mlp(2, 1), num_samples=1), "at least 2"),
        (lambda: mc.processes.BayesianNetwork(mlp(2, 1), scale=-1.0), "positive"),
    ],
)
def test_errors(make, word):
    with pytest.raises(ValueError, match=word):
        make()
