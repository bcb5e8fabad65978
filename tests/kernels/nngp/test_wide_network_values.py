"""The values of kernels of wide networks: other kernels, published forms, loops with quadrature, finite networks."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import dblquad
from wide_reference import expectation, expectations, finite_network, reference

from cases import mostly_slow
from mercer import kernels
from mercer.kernels import nngp
from mercer.kernels.nngp import Conv, Dense, Elementwise, Erf, Flatten, Gelu, GlobalAveragePool, Relu, Residual

TANH = Elementwise(jnp.tanh, 128)
NETWORKS = {
    "dense": [Dense(1.3, 0.4), Erf(), Dense(0.9), Gelu(), Dense(1.1, 0.2)],
    "dense relu": [Dense(1.3), Relu(), Dense(0.9, 0.5), Relu()],
    "dense tanh": [Dense(0.8, 0.2), TANH, Dense(1.2), TANH],
    "dense residual": [Dense(1.3), Relu(), Residual([Dense(0.7, 0.3), Erf(), Dense(0.8)]), Gelu(), Dense()],
    "dense residual of means": [Dense(1.3), Relu(), Residual([Dense(0.7, 0.3), Gelu()]), Residual([Dense(), Relu()])],
    "conv same": [Conv((3, 2), weight_std=1.2, bias_std=0.3), Relu(), Conv((2, 3)), Erf(), Flatten(), Dense(0.8, 0.1)],
    "conv strides": [Conv((2, 3), (2, 1), "SAME", 1.2, 0.3), Gelu(), Conv((2, 2), (1, 2), "SAME"), Relu(), Flatten()],
    "conv valid": [Conv((2, 2), (2, 1), "VALID", 1.2, 0.3), Relu(), Flatten(), Dense(0.8), Relu(), Dense(1.1, 0.2)],
    "pool": [Conv((2, 3), (2, 1), "SAME", 1.2, 0.3), Relu(), Dense(0.7), Gelu(), GlobalAveragePool(), Dense(1.2)],
    "pool, then more": [Conv((3, 2), (1, 2), "VALID", 1.2), Relu(), GlobalAveragePool(), Dense(1.2, 0.2), Relu()],
    "conv residual": [
        *(Conv((2, 2), weight_std=1.1), Relu(), Residual([Conv((3, 3), bias_std=0.3), Gelu(), Conv((1, 2))])),
        *(Flatten(), Dense(1.2, 0.2)),
    ],
    "pooled residual of means": [
        *(Conv((2, 2), (2, 2)), Relu(), Residual([Conv((2, 2)), Relu()]), GlobalAveragePool()),
        *(Residual([Dense(0.8, 0.1), Relu()]), Dense()),
    ],
}
IMAGE = (4, 3, 2)


def is_of_images(name):
    return "dense" not in name


def some_inputs(name, num, seed=0, dtype=float):
    shape = IMAGE if is_of_images(name) else (3,)
    return jnp.asarray(np.random.default_rng(seed).normal(size=(num, *shape)), dtype)


@pytest.mark.parametrize(
    "name",
    mostly_slow(
        NETWORKS,
        *("dense tanh", "dense residual", "dense residual of means"),
        *("conv strides", "conv valid", "pool", "pooled residual of means"),
    ),
)
def test_loops_and_quadrature(name):
    """Between two inputs and three, of which one is among the two and one is zero."""
    X, layers = some_inputs(name, 2), NETWORKS[name]
    X2 = jnp.concatenate([some_inputs(name, 1, seed=1), X[:1], 0.0 * X[:1]])
    computed = jax.jit(lambda X, X2: (nngp.NNGP(layers)(X, X2), nngp.NTK(layers)(X, X2)))(X, X2)
    expected = np.array([[reference(layers, x, y) for y in np.asarray(X2)] for x in np.asarray(X)])
    for value, of_loops in zip(computed, np.moveaxis(expected, -1, 0), strict=True):
        np.testing.assert_allclose(value, of_loops, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_relu_is_the_arc_cosine_kernel_of_the_same_depth(depth):
    X, X2 = some_inputs("dense", 5), some_inputs("dense", 4, seed=1)
    # E max(0, u)^2 is half the variance of u: the next layer doubles it again
    layers = [Dense(1.3, 0.4), Relu(), *[Dense(math.sqrt(2.0)), Relu()] * (depth - 1)]
    arc_cosine = kernels.ArcCosine(1, depth, 1.3**2 / 3, 0.4**2, 0.5)
    np.testing.assert_allclose(nngp.NNGP(layers)(X, X2), arc_cosine(X, X2), rtol=1e-12)
    np.testing.assert_allclose(nngp.NNGP(layers).diag(X), arc_cosine.diag(X), rtol=1e-12)


def test_published_values():
    """Cho and Saul (2009): at a right angle E max(0, u) max(0, v) = 1 / (2 pi), at 60 degrees J_1 = sqrt(3)/2 + pi/3, at 180 0.
    Williams (1998): 2/pi arcsin(2/3) for an input with itself, where u is N(0, 1).
    """
    X = jnp.asarray([[math.sqrt(2.0), 0.0]])
    X2 = jnp.asarray([[0.0, math.sqrt(2.0)], [1.0 / math.sqrt(2.0), math.sqrt(1.5)], [-math.sqrt(2.0), 0.0]])
    relu = [0.15915494309189535, 0.3044988905221147, 0.0]
    np.testing.assert_allclose(nngp.NNGP([Dense(), Relu()])(X, X2)[0], relu, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(nngp.NNGP([Dense(), Erf()]).diag(X), [0.46455905439753997], rtol=1e-12)


def test_tangent_kernel_of_two_layers_of_relu():
    """|x| |x'| / D (2 cos t (pi - t) + sin t) / pi, for weights of variance 2 after the activation and 1 before."""
    X, X2 = some_inputs("dense", 4), some_inputs("dense", 3, seed=1)
    norms, norms2 = (np.linalg.norm(A, axis=1) for A in (X, X2))
    cosine = np.asarray(X @ X2.T) / np.outer(norms, norms2)
    t = np.arccos(cosine)
    expected = np.outer(norms, norms2) / 3.0 * (2.0 * cosine * (math.pi - t) + np.sin(t)) / math.pi
    np.testing.assert_allclose(
        nngp.NTK([Dense(), Relu(), Dense(math.sqrt(2.0))])(X, X2), expected, rtol=1e-10, atol=1e-12
    )


def test_tangent_kernel_of_a_linear_network():
    """Of L layers without activations each weight adds the same: L x . x' / D."""
    X = some_inputs("dense", 4)
    np.testing.assert_allclose(nngp.NTK([Dense()] * 5)(X), 5.0 * X @ X.T / 3.0, rtol=1e-12)


@pytest.mark.parametrize("layer", [Relu(), Erf(), Gelu(), Elementwise(jnp.tanh, 200)], ids=lambda a: type(a).__name__)
@given(a=st.floats(0.05, 3.0), b=st.floats(0.05, 3.0), c=st.floats(-1.0, 1.0))
def test_duals_are_expectations(layer, a, b, c):
    k = [jnp.asarray(value) for value in (a, c * math.sqrt(a * b), b)]
    values = layer.dual(*k), layer.dual_derivative(*k)
    np.testing.assert_allclose(values, expectations(layer, *(float(value) for value in k)), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(layer.mean(k[0]), expectation(layer, a), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("layer", [Erf(), Gelu(), Elementwise(jnp.tanh, 128)], ids=lambda a: type(a).__name__)
def test_duals_by_adaptive_quadrature(layer):
    functions = {Erf: math.erf, Gelu: lambda u: 0.5 * u * math.erfc(-u / math.sqrt(2.0)), Elementwise: math.tanh}
    phi, (k11, k12, k22) = functions[type(layer)], (0.8, 0.3, 1.4)
    inverse = np.linalg.inv([[k11, k12], [k12, k22]])
    scale = math.sqrt(np.linalg.det(inverse)) / (2.0 * math.pi)

    def integrand(u, v):
        square = inverse[0, 0] * u * u + 2.0 * inverse[0, 1] * u * v + inverse[1, 1] * v * v
        return scale * math.exp(-0.5 * square) * phi(u) * phi(v)

    expected, _ = dblquad(integrand, -11.0, 11.0, -10.0, 10.0, epsabs=1e-8, epsrel=1e-8)
    np.testing.assert_allclose(layer.dual(*map(jnp.asarray, (k11, k12, k22))), expected, rtol=1e-7)


@pytest.mark.parametrize("layer", [Relu(), Erf(), Gelu(), TANH], ids=lambda a: type(a).__name__)
def test_price(layer):
    """dE/dk12 = E[phi'(u) phi'(v)], for any correlation up to 1 and also for a variance of 0 (there, on average)."""
    k11, k12, k22 = jnp.array([1.3, 0.7, 1.1, 0.0]), jnp.array([0.5, -0.6, 1.1, 0.0]), jnp.array([0.4, 0.9, 1.1, 0.8])
    slope = jax.grad(lambda k12: jnp.sum(layer.dual(k11, k12, k22)))(k12)
    np.testing.assert_allclose(slope, layer.dual_derivative(k11, k12, k22), rtol=1e-7)


@pytest.mark.parametrize("layer", [Relu(), Erf(), Gelu(), TANH], ids=lambda a: type(a).__name__)
def test_slopes_of_duals(layer):
    k, direction, h = jnp.array([1.3, 0.5, 0.4]), jnp.array([0.3, -0.8, 0.5]), 1e-5

    def along(step):
        return layer.dual(*(k + step * direction))

    with_slopes = jax.jit(lambda step: (along(step), jax.grad(along)(step), jax.grad(jax.grad(along))(step)))
    (above, *_), (value, first, second), (below, *_) = (with_slopes(step) for step in (h, 0.0, -h))
    np.testing.assert_allclose(first, (above - below) / (2.0 * h), rtol=1e-7)
    np.testing.assert_allclose(second, (above - 2.0 * value + below) / h**2, rtol=1e-4)


@pytest.mark.parametrize("layers", [[Dense(1.3), Relu()], [Dense(1.3, 0.4), TANH], [Dense(1.3, 0.4), Gelu()]])
def test_variance_of_the_slope_of_a_network(layers):
    """It is the mixed derivative of the kernel at coincident points; of max(0, w x) it is E[w^2] / 2."""

    def k(x, y):
        return nngp.NNGP(layers)(x[None, None], y[None, None])[0, 0]

    x, above, below, h = (jnp.asarray(value) for value in (0.6, 0.6 + 1e-3, 0.6 - 1e-3, 1e-3))
    mixed = jax.grad(jax.grad(k), argnums=1)(x, x)
    if isinstance(layers[1], Relu):
        np.testing.assert_allclose(mixed, 1.3**2 / 2.0, rtol=1e-7)
    else:
        numeric = (k(above, above) - 2.0 * k(above, below) + k(below, below)) / (2.0 * h) ** 2
        np.testing.assert_allclose(mixed, numeric, rtol=1e-4)


def test_more_points_are_nearer():
    k = jnp.array(1.5), jnp.array(0.9), jnp.array(2.0)
    errors = [abs(Elementwise(jax.scipy.special.erf, n).dual(*k) - Erf().dual(*k)) for n in (8, 24, 72, 216)]
    assert all(later < earlier / 10.0 for earlier, later in itertools.pairwise(errors))


FINITE = ["dense", "dense residual of means", "conv strides", "conv valid", "pool", "conv residual"]


@pytest.mark.parametrize("name", mostly_slow(FINITE, "dense residual of means", "conv strides"))
def test_wide_finite_networks(name):
    """The covariance of the units of networks of width 128, to five standard errors and what the width leaves (a few parts in
    128)."""
    width, num, X = 128, 48, some_inputs(name, 3)
    init, apply = finite_network(NETWORKS[name], width)

    @jax.jit
    def products(key):
        def one(key):
            outputs = apply(init(key, X), X).reshape(3, -1)
            return outputs @ outputs.T / outputs.shape[1]

        return jax.lax.map(one, jax.random.split(key, num))

    samples, expected = np.asarray(products(jax.random.key(0))), nngp.NNGP(NETWORKS[name])(X)
    error = np.abs(samples.mean(0) - expected)
    assert (error <= 5.0 * samples.std(0) / math.sqrt(num) + 2.0 / width * np.abs(expected).max()).all()
    assert (samples.std(0) / math.sqrt(num) < 0.1 * np.abs(expected).max()).all()


@pytest.mark.parametrize("name", mostly_slow(["dense", "dense residual of means", "conv strides", "pool"], "pool"))
def test_tangent_kernels_of_wide_finite_networks(name):
    """The products of the gradients of one output in all weights, with the tolerance of the law above."""
    width, num, X = 96, 24, some_inputs(name, 3)
    layers = NETWORKS[name]
    init, apply = finite_network(layers, width)

    @jax.jit
    def products(key):
        def one(key):
            weights = init(key, X)
            # one random combination of the outputs: that of a single one, over the units
            signs = jax.random.rademacher(jax.random.fold_in(key, 7), (apply(weights, X).size // 3,), float)
            jacobian = jax.jacrev(lambda w: apply(w, X).reshape(3, -1) @ signs / math.sqrt(signs.size))(weights)
            rows = jnp.concatenate([leaf.reshape(3, -1) for leaf in jacobian], axis=1)
            return rows @ rows.T

        return jax.lax.map(one, jax.random.split(key, num))

    # Without a bias the list still has one, whose gradient is 0.
    samples, expected = np.asarray(products(jax.random.key(0))), nngp.NTK(layers)(X)
    error = np.abs(samples.mean(0) - expected)
    assert (error <= 5.0 * samples.std(0) / math.sqrt(num) + 3.0 / width * np.abs(expected).max()).all()
    assert (samples.std(0) / math.sqrt(num) < 0.1 * np.abs(expected).max()).all()
