"""Deep processes that begin as a network: their means are that network, and the bound trains them on."""

import functools
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from equinox.nn import MLP, Conv2d, Dropout, Identity, Lambda, Linear, MaxPool2d, PReLU, Sequential

import mercer as mc
from cases import mostly_slow
from mercer.inducing.activations import Elementwise, Swish
from mercer.kernels import ArcCosine, Homogeneous, SphericalMatern52
from mercer.parameters import trainable

_rng = np.random.default_rng(0)
KEYS = jax.random.split(jax.random.key(0), 8)
X = _rng.normal(size=(20, 3))
FAR = np.concatenate([X, 1e3 * X, np.zeros((1, 3))])
Y = np.sin(2.0 * X[:, :1]) + 0.1 * _rng.normal(size=(20, 1))
IMAGES = _rng.normal(size=(6, 36))


def through_means(deep, X):
    """The means of the layers, one after another."""
    return functools.reduce(lambda values, layer: layer.predict(values).mean, deep.layers, X)


def linear(before, after, number=0, **options):
    return Linear(before, after, key=KEYS[number], **options)


def mlp(width=6, depth=2, outputs=2, activation=jax.nn.softplus, **options):
    return MLP(3, outputs, width, depth, activation=activation, key=KEYS[0], **options)


CONVOLUTIONAL = Sequential(
    [
        Conv2d(1, 2, 3, key=KEYS[0]),
        Lambda(jnp.tanh),
        MaxPool2d(2, 2),
        Lambda(jnp.ravel),
        linear(8, 6, 1),
        Lambda(jax.nn.softplus),
        linear(6, 2, 2),
    ]
)
NETWORKS = {
    "softplus": mlp(),
    "rectified, three hidden layers": mlp(depth=3, activation=jax.nn.relu, use_bias=False),
    "several activations, dropout": Sequential(
        [
            Identity(),
            linear(3, 6),
            Lambda(lambda x: x * jax.nn.sigmoid(x)),
            Dropout(0.1, inference=True),
            linear(6, 6, 1),
            Lambda(jax.nn.gelu),
            linear(6, 2, 2),
        ]
    ),
    "narrow between wide": Sequential(
        [
            linear(3, 6),
            Lambda(jax.nn.softplus),
            linear(6, 2, 1),
            linear(2, 4, 2, use_bias=False),
            linear(4, 6, 3),
            Sequential([Lambda(jax.nn.softplus), linear(6, 4, 4)]),
            linear(4, 2, 5),
        ]
    ),
}


@pytest.mark.parametrize(
    "name", mostly_slow(NETWORKS, "softplus", "several activations, dropout", "narrow between wide")
)
def test_the_mean_is_the_network(name):
    network = NETWORKS[name]
    deep = mc.Deep.from_network(network)
    expected = jax.vmap(network)(FAR)
    np.testing.assert_allclose(through_means(deep, FAR), expected, rtol=1e-10, atol=1e-10)
    assert deep.num_outputs == expected.shape[1]


def test_whatever_the_kernel_the_units_and_the_levels():
    network = mlp(depth=1)
    expected = jax.vmap(network)(FAR)
    for kernel, units, levels in (
        ([ArcCosine(1, 1, [0.5, 1.0, 2.0])], Swish(), 4),
        (Homogeneous(SphericalMatern52(0.8), 0.7, 1.3), Elementwise(jnp.exp), 6),
    ):
        deep = mc.Deep.from_network(network, kernel=kernel, activation=units, levels=levels)
        np.testing.assert_allclose(through_means(deep, FAR), expected, rtol=1e-10, atol=1e-10)


def test_layers_are_as_wide_as_the_network():
    deep = mc.Deep.from_network(NETWORKS["narrow between wide"], levels=4, num_samples=7)
    assert [layer.inducing.num for layer in deep.layers] == [6, 6]
    assert [layer.inducing.dimension for layer in deep.layers] == [4, 3]
    assert [layer.num_outputs for layer in deep.layers] == [2, 2]
    assert deep.num_samples == 7
    wide = mc.Deep.from_network(mlp(), levels=4)
    assert [layer.inducing.W.shape for layer in wide.layers] == [(6, 4), (6, 7)]


def test_the_prior_expects_the_network():
    """Under the default variance whitened weights have a mean square of 1, with which KL is least among all variances."""
    deep = mc.Deep.from_network(mlp(), levels=4)
    for layer in deep.layers:
        np.testing.assert_allclose(jnp.mean(layer.q_mu**2), 1.0)
        assert jnp.max(jnp.abs(layer.q_sqrt)) < 0.2
    still = eqx.tree_at(lambda net: net.layers[-1].weight, mlp(), jnp.zeros((2, 6)))
    np.testing.assert_allclose(through_means(mc.Deep.from_network(still, levels=4), X), jax.vmap(still)(X), atol=1e-12)


def test_training():
    """The bound grows, what the variables miss of the network stays, and away from the data the process is uncertain."""
    noise = mc.likelihoods.Gaussian(0.05)
    start = mc.Model(mc.Deep.from_network(mlp(outputs=1), levels=6, num_samples=20), noise)
    trained = trainable(start.posterior.layers[0].prior.mean)
    assert trained.offset and not any(jax.tree.leaves(eqx.tree_at(lambda mean: mean.offset, trained, False)))
    fit = mc.fit(start, mc.objectives.ELBO(), (X, Y), steps=60, optimiser=optax.adam(0.02))
    assert np.mean(fit.history[-5:]) < np.mean(fit.history[:5]) - 1.0
    weights = [model.posterior.layers[0].prior.mean.weight for model in (start, fit.model)]
    np.testing.assert_array_equal(*weights)
    near, far = (fit.model.posterior.predict(at).variance for at in (X, 100.0 * X))
    assert jnp.min(far) > 10.0 * jnp.max(near)


def test_a_convolutional_network(tmp_path):
    """The layers before the first dense one are a function in front, which is trained, too; a file holds all of it."""
    deep = mc.Deep.from_network(CONVOLUTIONAL, levels=4, input_shape=(1, 6, 6), num_samples=5)
    expected = jax.vmap(CONVOLUTIONAL)(IMAGES.reshape(-1, 1, 6, 6))
    np.testing.assert_allclose(through_means(deep, IMAGES), expected, atol=1e-10)
    front = deep.layers[0]
    assert isinstance(front, mc.processes.Deterministic) and front.num_outputs == 8
    values = jax.vmap(Sequential(CONVOLUTIONAL.layers[:4]))(IMAGES.reshape(-1, 1, 6, 6))
    for layout in ("diag", "full"):
        found = front.predict(IMAGES, layout)
        np.testing.assert_array_equal(found.mean, values)
        assert not found.cov.any()
    np.testing.assert_array_equal(front.sample(IMAGES, 2, key=KEYS[0])[1], values)
    np.testing.assert_array_equal(front.sample_function(key=KEYS[0])(IMAGES), values)
    assert front.kl() == 0.0 and deep.knows_kl(deep.prior)
    model = mc.Model(deep, mc.likelihoods.Gaussian(0.1))
    fitted = mc.fit(model, mc.objectives.ELBO(), (IMAGES, expected), steps=2, optimiser=optax.adam(0.01)).model
    of_filters = [m.posterior.layers[0].module.layers[0].weight for m in (model, fitted)]
    assert jnp.max(jnp.abs(of_filters[0] - of_filters[1])) > 1e-3
    mc.save(tmp_path / "model", fitted.posterior)
    np.testing.assert_array_equal(
        mc.load(tmp_path / "model").predict(IMAGES).mean, fitted.posterior.predict(IMAGES).mean
    )


@pytest.mark.slow
def test_single_precision():
    """In 40 dimensions, too, where eigenvalues of high levels are so small that the slope of 1 / lambda is not finite."""
    network = MLP(40, 1, 5, 1, activation=jax.nn.softplus, dtype=jnp.float32, key=KEYS[0])
    at = _rng.normal(size=(10, 40)).astype(np.float32)
    (layer,) = mc.Deep.from_network(network).layers
    found = layer.predict(at).mean
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, jax.vmap(network)(at), rtol=1e-4, atol=1e-5)

    def total(variance):
        return jnp.sum(mc.covariances.Kuu(layer.inducing, ArcCosine(variance=variance)).dense())

    slope = jax.grad(total)(jnp.float32(0.5))
    np.testing.assert_allclose(slope, -total(jnp.float32(0.5)) / 0.5, rtol=1e-4)


def test_networks_of_the_units_themselves():
    """Then nothing is missed, and the mean of the prior is a constant."""
    units = mc.processes.ActivatedUnits
    network = Sequential(
        [
            units(3, 6, levels=4, key=KEYS[0]),
            linear(6, 4, 1),
            linear(4, 2, 2),
            units(2, 6, Swish(), 5, key=KEYS[3]),
            linear(6, 2, 4),
        ]
    )
    deep = mc.Deep.from_network(network)
    np.testing.assert_allclose(through_means(deep, FAR), jax.vmap(network)(FAR), rtol=1e-10, atol=1e-10)
    assert all(isinstance(layer.prior.mean, mc.means.Constant) for layer in deep.layers)
    assert [layer.inducing.levels for layer in deep.layers] == [4, 5]
    with pytest.raises(ValueError, match="ActivatedUnits are those of ArcCosine; leave kernel out"):
        mc.Deep.from_network(network, kernel=ArcCosine())
    with pytest.raises(ValueError, match=r"layers\[1\] \(ActivatedUnits\) has to come first"):
        mc.Deep.from_network(Sequential([linear(3, 3), *network.layers]))


@pytest.mark.slow
def test_many_networks_at_once():
    networks = eqx.filter_vmap(lambda key: MLP(3, 1, 5, 1, key=key))(KEYS[:2])
    means = eqx.filter_vmap(lambda network: mc.Deep.from_network(network, levels=4).predict(X).mean)(networks)
    np.testing.assert_allclose(means, eqx.filter_vmap(lambda network: jax.vmap(network)(X))(networks), atol=1e-10)


@pytest.mark.parametrize(
    "message, network",
    {
        "expects an equinox.nn.MLP, or an equinox.nn.Sequential .* got function": lambda x: x,
        "Linear has no hidden layer": linear(3, 2),
        "MLP has no hidden layer": mlp(depth=0),
        "Sequential has no hidden layer": Sequential([linear(3, 2), linear(2, 2)]),
        "Sequential has no dense layer": Sequential([Lambda(jnp.tanh)]),
        r"the activation 'tanh' of layers\[0\] .* not supported; .* relu, softplus, silu, gelu": mlp(
            activation=jax.nn.tanh
        ),
        r"layers\[1\] \(PReLU\) is not understood": Sequential([linear(3, 6), PReLU(), linear(6, 2)]),
        "ends with an activation; leave it to the likelihood": mlp(final_activation=jax.nn.relu),
        r"layers\[2\] \(Lambda\) is an activation after another": Sequential(
            [linear(3, 6), Lambda(jax.nn.relu), Lambda(jax.nn.relu), linear(6, 2)]
        ),
        r"layers\[0\] \(Linear\) has 6 outputs, layers\[2\] \(Linear\) takes 5": Sequential(
            [linear(3, 6), Lambda(jax.nn.relu), linear(5, 2)]
        ),
    }.items(),
)
def test_networks_that_are_not_understood(message, network):
    with pytest.raises(ValueError, match=message):
        mc.Deep.from_network(network)


def test_errors():
    network = mlp()
    with pytest.raises(ValueError, match="one for each of 2 layers, got 1"):
        mc.Deep.from_network(network, kernel=[ArcCosine()])
    with pytest.raises(ValueError, match="of_layer expects a kernel with weight_variance"):
        mc.Deep.from_network(network, kernel=mc.kernels.RBF())
    with pytest.raises(ValueError, match="input_shape is for a network with other layers before"):
        mc.Deep.from_network(network, input_shape=(3,))
    with pytest.raises(ValueError, match=r"activation expects one of mercer.inducing.activations"):
        mc.Deep.from_network(network, activation=jnp.tanh)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="activation expects one that grows"):
            mc.Deep.from_network(network, activation=Elementwise(jnp.cos))
    with pytest.raises(ValueError, match="sphere in 3 dimensions, the inducing variables in 4"):
        mc.Deep.from_network(network).predict(X[:, :2])
    convolutional = mc.Deep.from_network(CONVOLUTIONAL, input_shape=(1, 6, 6))
    with pytest.raises(ValueError, match=r"input_shape \(1, 6, 6\) expects X with 36 columns, got 3"):
        convolutional.predict(X)
    with pytest.raises(ValueError, match="expects to return a vector of length 8, got shape \\(18,\\)"):
        mc.Deep.from_network(CONVOLUTIONAL, input_shape=(1, 8, 8)).predict(np.ones((2, 64)))
