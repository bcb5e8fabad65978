"""Feature maps: their inner products are the kernels that they are said to be of."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from mercer import features
from mercer.kernels import nngp

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(6, 2))
RBF, MATERN = mc.kernels.RBF([0.5, 2.0], 1.7), mc.kernels.Matern32(1.2, 0.5)
MIXTURE = mc.kernels.SpectralMixture([1.0, 0.5], [[0.1, 0.2], [0.3, 0.0]], [[0.1, 0.1], [0.2, 0.2]])
QUADRATIC = mc.kernels.RationalQuadratic(2.0, 0.8, 1.5)


@pytest.mark.parametrize(
    "kernel",
    [
        RBF,
        mc.kernels.Matern12(1.5),
        MATERN,
        mc.kernels.Matern52([1.0, 3.0]),
        QUADRATIC,
        MIXTURE,
        2.0 * mc.kernels.Cosine(1.5),
        RBF + MATERN.on([1]),
        mc.kernels.RBF(0.8).on([0]) * QUADRATIC.on([1]),
        (RBF + mc.kernels.Constant(0.5)) * MATERN,
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_random_fourier_features_have_the_kernel_of_their_spectrum(kernel):
    num = 40_000
    map_ = features.RandomFourier.of(kernel, num, 2, key=KEY)
    phi = map_(X)
    assert phi.shape == (1, 6, 2 * num)
    # A mean over frequencies of numbers of at most k(0): four standard errors, and products have shares that differ.
    tolerance = 6.0 * float(kernel.diag(X)[0]) / np.sqrt(num)
    np.testing.assert_allclose(phi[0] @ phi[0].T, kernel(X), atol=tolerance)
    np.testing.assert_allclose(np.sum(phi[0] ** 2, axis=1), float(map_.variance), rtol=1e-6)


def test_random_fourier_features_start_at_the_lengthscales_of_the_kernel():
    map_ = features.RandomFourier.of(RBF, 10, 2, key=KEY)
    np.testing.assert_array_equal(map_.lengthscale, RBF.lengthscale)
    moves = mc.parameters.trainable(map_)
    assert moves.frequencies and moves.lengthscale and moves.variance and not moves.shares


class Wide(eqx.Module):
    """A network of one hidden layer in the scaling of the NTK: weights N(0, 1), divided by the root of their number."""

    first: jax.Array
    bias: jax.Array
    last: jax.Array

    def __init__(self, width, key):
        keys = jax.random.split(key, 3)
        self.first, self.last = jax.random.normal(keys[0], (width, 2)), jax.random.normal(keys[1], (1, width))
        self.bias = jax.random.normal(keys[2], (width,))

    def __call__(self, x):
        hidden = jax.nn.relu(1.3 * self.first @ x / jnp.sqrt(2.0) + 0.4 * self.bias)
        return 1.1 * self.last @ hidden / jnp.sqrt(float(len(hidden)))


def test_tangent_features_of_a_wide_network_have_its_neural_tangent_kernel():
    kernel = nngp.NTK([nngp.Dense(1.3, 0.4), nngp.Relu(), nngp.Dense(1.1, None)])
    phi = features.Tangent(Wide(200_000, KEY), dimension=2)(X)[0]
    # Errors fall with the root of the width: at 200,000 units they were up to 1 % of the largest entry.
    np.testing.assert_allclose(phi @ phi.T, kernel(X), atol=0.02 * float(kernel.diag(X).max()))


def test_tangent_features_are_derivatives():
    module = eqx.nn.MLP(2, 3, 4, 1, activation=jnp.tanh, key=KEY)
    map_ = features.Tangent(module)
    phi = map_(X)
    assert phi.shape == (3, 6, map_.num) and map_.joint and map_.num_outputs == 3
    parameters, rest = eqx.partition(module, eqx.is_inexact_array)
    flat, unravel = jax.flatten_util.ravel_pytree(parameters)
    step = 1e-6 * np.random.default_rng(1).normal(size=flat.shape)
    moved = jax.vmap(eqx.combine(unravel(flat + step), rest))(X) - jax.vmap(eqx.combine(unravel(flat - step), rest))(X)
    np.testing.assert_allclose((phi @ step).T, moved / 2.0, atol=1e-11)
    np.testing.assert_allclose(map_.offset(jnp.asarray(X)), jax.vmap(module)(X))


def test_composed_and_separate_features():
    body, head = eqx.nn.MLP(2, 3, 4, 1, key=KEY), eqx.nn.Linear(3, 1, key=KEY)
    composed = features.Composed(body, features.Separate([features.Tangent(head), features.Tangent(head)]))
    phi = composed(X)
    assert phi.shape == (2, 6, 4) and composed.num_outputs == 2 and not composed.joint
    # The derivatives of a linear layer are its inputs, and 1 for the bias.
    inner = jax.vmap(body)(X)
    np.testing.assert_allclose(phi[0], np.concatenate([inner, np.ones((6, 1))], axis=1))
    np.testing.assert_allclose(composed.offset(jnp.asarray(X)), np.tile(jax.vmap(head)(inner), (1, 2)))


def test_features_are_a_kernel():
    map_ = features.RandomFourier.of(RBF, 5, 2, key=KEY)
    kernel = mc.kernels.FeatureMap(mc.kernels.Linear(), map_)
    phi = map_(X)[0]
    np.testing.assert_allclose(kernel(X), phi @ phi.T, rtol=1e-10)
    assert mc.Conditioned(mc.GP(kernel), X, X[:, :1], 0.1).predict(X).mean.shape == (6, 1)


def nothing(x):
    return x


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: features.RandomFourier.of(mc.kernels.Linear(), 5, 2, key=KEY), "not stationary"),
        (lambda: features.RandomFourier.of(RBF, 0, 2, key=KEY), "at least 1"),
        (lambda: features.RandomFourier.of(RBF, 5, 3, key=KEY), "columns"),
        (lambda: features.RandomFourier.of(RBF + MATERN, 1, 2, key=KEY), "at least as many"),
        (lambda: features.RandomFourier(np.zeros(3)), r"\[K, D\]"),
        (lambda: features.RandomFourier(np.zeros((3, 2)), [1.0, 1.0, 1.0]), "lengthscale"),
        (lambda: features.RandomFourier(np.zeros((3, 2)), shares=[1.0]), "shares"),
        (lambda: features.RandomFourier(np.zeros((3, 2)))(np.zeros((4, 3))), "2 columns"),
        (lambda: features.Basis(nothing), "dimension="),
        (lambda: features.Basis(3.0), "function"),
        (lambda: features.Basis(eqx.nn.MLP(2, "scalar", 3, 1, key=KEY)), "vector"),
        (lambda: features.Tangent(nothing, dimension=2), "parameters"),
        (lambda: features.Tangent(eqx.nn.Linear(2, 3, key=KEY), dimension=4), "fails on a row"),
        (lambda: features.Separate([]), "one or more"),
        (lambda: features.Separate([features.Tangent(eqx.nn.Linear(2, 3, key=KEY))]), "one output each"),
        (lambda: features.Composed(eqx.nn.Linear(2, 3, key=KEY), 1.0), "mercer.features"),
    ],
)
def test_errors(make, word):
    with pytest.raises(ValueError, match=word):
        make()


def test_features_that_are_not_numbers_are_named():
    map_ = features.Basis(lambda x: jnp.log(x), dimension=2)
    with pytest.raises(features.base.FeatureError, match="Basis gives features that are NaN"):
        map_(-np.ones((2, 2)))
    with pytest.raises(features.base.FeatureError, match="Network"):
        mc.Network(map_).predict(-np.ones((2, 2)))
