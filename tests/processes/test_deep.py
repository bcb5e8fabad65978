"""Deep processes: one layer is that layer, layers that do nothing do nothing, and mixtures have the moments of draws."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mercer as mc
from cases import mostly_slow

RANDOM = np.random.default_rng(0)
KEY = jax.random.key(0)
X = RANDOM.uniform(-2.0, 2.0, (12, 1))
Y = np.where(X > 0.0, 1.0, -1.0) + 0.1 * RANDOM.normal(size=X.shape)
Q = np.linspace(-1.5, 1.5, 4)[:, None]


def layer(inputs=1, outputs=1, mean=None, scale=0.4):
    """A sparse posterior that has learned something."""
    Z = np.linspace(-2.0, 2.0, 5)[:, None] * np.ones((1, inputs))
    q = mc.Sparse(mc.GP(mc.kernels.RBF(0.9), mean), mc.inducing.Points(Z), num_outputs=outputs)
    roots = jnp.broadcast_to(scale * jnp.eye(5), (outputs, 5, 5))
    q_mu = jnp.asarray(np.random.default_rng(inputs + outputs).normal(size=(5, outputs)))
    return eqx.tree_at(lambda q: (q.q_mu, q.q_sqrt), q, (q_mu, roots))


def identity(columns=1):
    """Passes its input on, with next to no variance."""
    return mc.GP(mc.kernels.RBF(1.0, 1e-14), mc.means.Linear(np.eye(columns)))


MIXED = mc.Sparse(
    mc.GP(mc.kernels.LinearCoregionalisation([mc.kernels.RBF(0.8)], np.array([[1.0], [0.7]]))),
    mc.inducing.Shared(mc.inducing.Points(np.linspace(-2.0, 2.0, 5)[:, None])),
)


@pytest.mark.parametrize("layout", ["diag", "outputs", "inputs", "full"])
def test_one_layer_is_that_layer(layout):
    shallow = layer(outputs=2)
    found, expected = mc.Deep([shallow]).predict(Q, layout), shallow.predict(Q, layout)
    np.testing.assert_array_equal(found.mean, expected.mean)
    np.testing.assert_array_equal(found.cov, expected.cov)


def test_one_layer_has_its_bound_and_gradient():
    models = [mc.Model(posterior, mc.likelihoods.Gaussian(0.1)) for posterior in (layer(), mc.Deep([layer()]))]

    def value(model):
        return mc.objectives.ELBO()(model, (X, Y), KEY)

    (a, of_shallow), (b, of_deep) = (eqx.filter_value_and_grad(value)(model) for model in models)
    assert a == b
    found, expected = (jax.tree.leaves(eqx.filter(tree, eqx.is_array)) for tree in (of_deep, of_shallow))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("layout", ["diag", "full"])
def test_layers_that_do_nothing(layout):
    shallow = layer(2, 2)
    inputs = Q * np.ones((1, 2))
    expected = shallow.predict(inputs, layout)
    before = mc.Deep([identity(2), identity(2), shallow], num_samples=3).predict(inputs, layout)
    np.testing.assert_allclose(before.mean, expected.mean, atol=1e-5)
    np.testing.assert_allclose(before.cov, expected.cov, atol=1e-5)
    after = mc.Deep([shallow, identity(2)], num_samples=20_000).predict(inputs, layout)
    np.testing.assert_allclose(after.mean, expected.mean, atol=0.03)
    np.testing.assert_allclose(after.cov, expected.cov, atol=0.03)


DEEP = {
    "two": mc.Deep([layer(1, 2), layer(2, 1)], num_samples=20_000),
    "three, passing inputs on": mc.Deep(
        [layer(1, 2, mc.means.Linear(np.ones((1, 2)))), layer(2, 2, mc.means.Linear(np.eye(2))), layer(2, 1)],
        num_samples=20_000,
    ),
    "outputs that covary": mc.Deep([MIXED, layer(2, 2)], num_samples=20_000),
    "an inference network": mc.Deep(
        [mc.Network(mc.features.RandomFourier.of(mc.kernels.RBF(), 5, 1, key=KEY)), layer()], num_samples=20_000
    ),
}


@pytest.mark.parametrize("name", mostly_slow(DEEP, "outputs that covary", "an inference network"))
def test_moments_are_those_of_draws(name):
    deep = DEEP[name]
    draws = deep.sample(Q, 20_000, key=jax.random.key(1))
    for layout in ("diag", "outputs"):
        found = deep.predict(Q, layout)
        assert isinstance(found, mc.Mixture)
        np.testing.assert_allclose(found.mean, jnp.mean(draws, axis=0), atol=0.05)
        np.testing.assert_allclose(found.variance, jnp.var(draws, axis=0), atol=0.06)
    few = mc.Deep(deep.layers, num_samples=5000).predict(Q, "full")
    apart = draws - jnp.mean(draws, axis=0)
    np.testing.assert_allclose(few.cov, jnp.einsum("snp,smq->npmq", apart, apart) / len(draws), atol=0.08)


def test_drawn_functions_are_drawn_layers_one_after_another():
    deep = mc.Deep([layer(1, 2), layer(2, 1)], num_samples=5000)
    values = jax.jit(jax.vmap(lambda key: deep.sample_function(256, key=key)(Q)))(jax.random.split(KEY, 300))
    found = deep.predict(Q)
    np.testing.assert_allclose(jnp.mean(values, axis=0), found.mean, atol=0.15)
    np.testing.assert_allclose(jnp.std(values, axis=0), jnp.sqrt(found.variance), atol=0.15)


def test_divergences_add_up():
    layers = [layer(1, 2), layer(2, 1)]
    deep = mc.Deep(layers)
    np.testing.assert_allclose(deep.kl(), sum(each.kl() for each in layers))
    assert deep.knows_kl(deep.prior) and not deep.knows_kl(mc.Deep(layers[:1]).prior)
    assert not mc.Deep([identity(), layer()]).knows_kl()
    with pytest.raises(ValueError, match="Deep knows the KL divergence from its own prior"):
        deep.kl(mc.GP(mc.kernels.RBF()))


def test_layers_without_variance_have_finite_gradients():
    still = eqx.tree_at(lambda q: q.q_sqrt, layer(), jnp.zeros((1, 5, 5)))
    exact = mc.Deep([mc.Sparse(mc.GP(mc.kernels.Constant(1e-30)), mc.inducing.Points(np.zeros((1, 1)))), still])
    gradient = eqx.filter_grad(lambda deep: jnp.sum(deep.predict(Q, key=KEY).mean))(exact)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(eqx.filter(gradient, eqx.is_array)))


@pytest.mark.parametrize(
    ("objective", "optimiser"),
    [
        (mc.objectives.ELBO(), optax.adam(0.02)),
        (mc.objectives.PredictiveLogLikelihood(), optax.adam(0.02)),
        (mc.objectives.ELBO(), mc.training.NaturalGradient(0.02, optax.adam(0.02))),
        (
            mc.objectives.ELBO(),
            mc.training.NaturalGradient(0.1, optax.adam(0.02), lambda model: model.posterior.layers[-1]),
        ),
    ],
)
def test_training(objective, optimiser):
    deep = mc.Deep([layer(1, 1, mc.means.Linear(np.eye(1)), 0.1), layer()], num_samples=50)
    start = mc.Model(deep, mc.likelihoods.Gaussian(0.1))
    fitted = mc.fit(start, objective, (X, Y), steps=60, batch_size=6, optimiser=optimiser, key=KEY)
    assert np.mean(fitted.history[-20:]) < np.mean(fitted.history[:10])
    assert fitted.model.predict(Q).cov.shape == (4, 1)
    assert fitted.model.log_density(X, Y).shape == (12,)


def test_bounds_take_fewer_draws_than_predictions():
    deep = mc.Deep([layer(), layer()], num_samples=7, training_samples=2)
    assert deep.predict(Q).means.shape == (7, 4, 1)
    assert deep.in_training().predict(Q).means.shape == (2, 4, 1)
    assert len(mc.Deep([deep, layer()]).layers) == 3
    np.testing.assert_allclose(deep.cached().predict(Q).mean, deep.predict(Q).mean, rtol=1e-9)


def test_errors():
    with pytest.raises(ValueError, match=r"layer 0 \(Sparse\) has 2 outputs, which layer 1 \(Sparse\) does not take"):
        mc.Deep([layer(1, 2), layer(3, 1)])
    with pytest.raises(ValueError, match="num_samples expects a whole number, at least 1, got 0"):
        mc.Deep([layer()], num_samples=0)
    with pytest.raises(ValueError, match="one layer or more"):
        mc.Deep([])
    with pytest.raises(ValueError, match="layer 1 expects a process, got RBF"):
        mc.Deep([layer(), mc.kernels.RBF()])
