"""What is true of every mean, and the formula of each."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mercer import kernels, means, modules
from mercer.parameters import trainable

N, D = 5, 2
X = jnp.asarray(np.random.default_rng(0).normal(size=(N, D)))
WEIGHTS = np.random.default_rng(1).normal(size=(3, D, 2))
MLP = eqx.nn.MLP(D, 3, width_size=4, depth=1, key=jax.random.key(0))

RBF, Z = kernels.RBF(0.8, 1.5), np.random.default_rng(2).normal(size=(3, D))


def _sparse(x):
    """k(x, Z) K^-1 u for u = chol(K) weights, and 0.4."""
    K = np.asarray(RBF(Z)) + 1.5e-10 * np.eye(3)
    return 0.4 + RBF(x[None], Z)[0] @ np.linalg.solve(K, np.linalg.cholesky(K) @ WEIGHTS[:, 0])


MEANS = {  # the mean, and its value at one row
    "Zero": (means.Zero(), lambda x: [0.0]),
    "Constant": (means.Constant(1.5), lambda x: [1.5]),
    "Constant of two outputs": (means.Constant([1.5, -2.0]), lambda x: [1.5, -2.0]),
    "Linear": (means.Linear(WEIGHTS[0], 0.3), lambda x: [sum(x * WEIGHTS[0][:, p]) + 0.3 for p in range(2)]),
    "Linear with biases": (
        means.Linear(WEIGHTS[0], [0.3, 0.4]),
        lambda x: [sum(x * WEIGHTS[0][:, p]) + (0.3, 0.4)[p] for p in range(2)],
    ),
    "Polynomial": (
        means.Polynomial(WEIGHTS, [0.3, 0.4]),
        lambda x: [
            sum(x[d] ** (j + 1) * WEIGHTS[j, d, p] for j in range(3) for d in range(D)) + (0.3, 0.4)[p]
            for p in range(2)
        ],
    ),
    "Projection": (means.Projection(WEIGHTS[0]), lambda x: [sum(x * WEIGHTS[0][:, p]) for p in range(2)]),
    "Network": (means.Network(MLP), lambda x: np.asarray(MLP(jnp.asarray(x)))),
    "Sparse": (means.Sparse(RBF, Z, WEIGHTS[:, 0], means.Constant(0.4)), _sparse),
}


@pytest.fixture(params=MEANS)
def name(request):
    return request.param


def test_every_public_mean_has_an_instance():
    public = [getattr(means, name) for name in means.__all__]
    assert {kind for kind in public if not inspect.isabstract(kind)} == {type(mean) for mean, _ in MEANS.values()}


def test_formula(name):
    mean, formula = MEANS[name]
    np.testing.assert_allclose(mean(X), [formula(x) for x in np.asarray(X)], rtol=1e-6)


def test_dtype_is_that_of_the_data(name):
    mean, _ = MEANS[name]
    for dtype in (jnp.float32, jnp.float64):
        assert mean(X.astype(dtype)).dtype == dtype


def test_jit_and_vmap_change_nothing(name):
    mean, _ = MEANS[name]
    np.testing.assert_allclose(eqx.filter_jit(mean)(X), mean(X), rtol=1e-12)
    np.testing.assert_allclose(jax.vmap(mean)(jnp.stack([X, X + 1.0]))[1], mean(X + 1.0), rtol=1e-12)


def test_all_arrays_are_parameters_with_gradients(name):
    mean, _ = MEANS[name]
    arrays, flags = eqx.partition(mean, eqx.is_inexact_array)[0], trainable(mean)
    if name not in ("Sparse", "Projection"):  # whose kernel and points, or whose matrix, are settled before
        assert len(jax.tree.leaves(arrays)) == sum(jax.tree.leaves(flags))
    weights = jnp.arange(1.0, N + 1.0)[:, None]
    gradient = eqx.filter_grad(lambda mean: jnp.sum(weights * mean(X) ** 2))(mean)
    for leaf in jax.tree.leaves(gradient):
        assert np.isfinite(leaf).all() and (leaf != 0.0).any()


def test_zero_of_no_rows():
    assert means.Zero()(X[:0]).shape == (0, 1)


def test_polynomial_of_degree_one_is_linear():
    polynomial = means.Polynomial(WEIGHTS[:1], 0.3)
    assert polynomial.degree == 1
    np.testing.assert_allclose(polynomial(X), means.Linear(WEIGHTS[0], 0.3)(X), rtol=1e-12)


def test_projections_keep_what_varies_most():
    data = np.random.default_rng(3).normal(size=(200, 3)) @ np.diag([0.1, 3.0, 1.0]) + 5.0
    np.testing.assert_array_equal(means.Projection.identity(2)(X), X)
    down, up = means.Projection.pca(data, 2), means.Projection.pca(data, 4)
    np.testing.assert_allclose(down.W.T @ down.W, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(np.abs(down.W), [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], atol=0.1)
    assert np.var(down(data)) > 0.99 * np.var(data, axis=0).sum() / 2.0
    np.testing.assert_array_equal(up(data), np.hstack([data, np.zeros((200, 1))]))


ERRORS = {
    r"Projection: W expects shape \[D, P\], got \(2,\)": lambda: means.Projection(np.ones(2)),
    r"Projection: W must be finite": lambda: means.Projection(np.full((2, 2), np.nan)),
    r"Projection: W of shape \(3, 1\) expects X with 3 columns, got 2": lambda: means.Projection(np.ones((3, 1)))(X),
    r"Projection.pca: num must be at least 1, got 0": lambda: means.Projection.pca(X, 0),
    r"Constant: constant expects a number or a vector \[P\], got shape \(1, 2\)": lambda: means.Constant([[1.0, 2.0]]),
    r"Constant: constant expects finite values, got nan": lambda: means.Constant(np.nan),
    r"Linear: weights expects shape \[D, P\], got \(2,\)": lambda: means.Linear([1.0, 2.0]),
    r"Linear: bias expects a number or shape \(2,\), got shape \(3,\)": lambda: means.Linear(WEIGHTS[0], np.ones(3)),
    r"Polynomial: weights expects shape \[degree, D, P\], got \(2, 2\)": lambda: means.Polynomial(WEIGHTS[0]),
    r"Linear: weights of shape \(3, 1\) expects X with 3 columns, got 2": lambda: means.Linear(np.ones((3, 1)))(X),
    r"Polynomial: weights of shape \(1, 3, 1\) expects X with 3": lambda: means.Polynomial(np.ones((1, 3, 1)))(X),
    r"Network: module expects a function of a row of X": lambda: means.Network(np.ones(2)),
    r"Network: module expects to return a vector for a row of X, got shape \(\)": lambda: means.Network(jnp.sum)(X),
    r"X must be two-dimensional \[N, D\], got shape \(5,\)": lambda: means.Zero()(X[:, 0]),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises(ValueError, match=message):
        ERRORS[message]()


def test_rows_as_images():
    """A convolution with one filter of ones is the sum of the pixels."""
    convolution = eqx.nn.Conv2d(1, 1, 2, use_bias=False, key=jax.random.key(0))
    convolution = eqx.tree_at(lambda layer: layer.weight, convolution, jnp.ones((1, 1, 2, 2)))
    layers = [modules.Reshape((1, 2, 2)), convolution, eqx.nn.Lambda(jnp.ravel)]
    images = np.random.default_rng(0).normal(size=(N, 4))
    found = means.Network(eqx.nn.Sequential(layers))(images)
    np.testing.assert_allclose(found, images.sum(axis=1, keepdims=True))
    with pytest.raises(ValueError, match=r"shape \(1, 2, 2\) expects 4 numbers, got 3"):
        modules.Reshape((1, 2, 2))(jnp.zeros(3))


def test_a_residual_block():
    """With inner layers that double, it triples."""
    block = modules.ResidualBlock([eqx.nn.Lambda(lambda x: 2.0 * x)])
    x = np.random.default_rng(0).normal(size=(N, 2))
    np.testing.assert_allclose(means.Network(eqx.nn.Sequential([block, block]))(x), 9.0 * x)
    with pytest.raises(ValueError, match=r"keep the shape \(2,\), got \(4,\)"):
        modules.ResidualBlock([lambda x: jnp.concatenate([x, x])])(jnp.zeros(2))
