"""What is true of kernels of wide networks whatever their layers: blocks, derivatives, precision, images in both forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_wide_network_values import IMAGE, NETWORKS, some_inputs

import mercer as mc
from cases import mostly_slow
from mercer.kernels import images, nngp
from mercer.kernels.nngp import Conv, Dense, Elementwise, Erf, Flatten, Gelu, GlobalAveragePool, Relu, Residual
from mercer.parameters import cast

KINDS = {"NNGP": nngp.NNGP, "NTK": nngp.NTK}
KERNELS = {
    "rows": nngp.NTK([Dense(1.3, 0.4), Relu(), Residual([Dense(0.7), Erf()]), Dense(0.8)]),
    "quadrature": nngp.NNGP([Dense(0.8, 0.2), Elementwise(jnp.tanh, 40), Dense(1.1)]),
    "flattened": nngp.NTK([Conv((3, 2), (2, 1), "SAME", 1.2, 0.3), Relu(), Flatten(), Dense(0.8)], IMAGE),
    "pooled": nngp.NTK([Conv((2, 2), (2, 1), "VALID", 1.2, 0.3), Gelu(), GlobalAveragePool()], IMAGE),
    "pooled, then more": nngp.NNGP([Conv((2, 2)), Relu(), GlobalAveragePool(), Dense(0.9), Relu()], IMAGE),
}
SOME = ("rows", "quadrature", "pooled")
X = np.random.default_rng(0).normal(size=(5, 24))
X[-1], X[-2] = X[0], 0.0  # the same input twice, and one that is zero
X2 = np.concatenate([np.random.default_rng(1).normal(size=(4, 24)), X[1:2]])
WEIGHTS = [np.random.default_rng(2).normal(size=shape) for shape in ((5, 5), (5, 5), (5,))]


def total(at):
    """One number that all values go into, and the values."""
    kernel, X, X2 = at
    values = kernel(X), kernel(X, X2), kernel.diag(X)
    return sum(jnp.vdot(w, k) for w, k in zip(WEIGHTS, values, strict=True)), values


total_and_slopes = eqx.filter_jit(eqx.filter_value_and_grad(total, has_aux=True))


def at(name, X=X, X2=X2):
    return cast((KERNELS[name], jnp.asarray(X), jnp.asarray(X2)), X.dtype)


@pytest.mark.parametrize("name", mostly_slow(KERNELS, *SOME))
def test_matrices_are_symmetric_positive_and_have_the_variances_on_their_diagonal(name):
    (_, (K, K12, diagonal)), _ = total_and_slopes(at(name))
    np.testing.assert_allclose(K, K.T, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(np.diag(K), diagonal, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(K[0], K[-1], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(K[:, 1], K12[:, -1], rtol=1e-12, atol=1e-14)
    eigenvalues = np.linalg.eigvalsh(K)
    assert eigenvalues[0] >= -1e-12 * eigenvalues[-1]


@pytest.mark.parametrize(
    "name", mostly_slow(["quadrature", "flattened", "pooled", "pooled, then more"], "quadrature", "pooled")
)
def test_blocks_change_nothing(name, monkeypatch):
    """Neither values nor derivatives, also where blocks (of 2 x 2 and 2 x 3 inputs, or 1 x 1) do not divide the inputs."""
    expected = total_and_slopes(at(name))
    for limit in ("_BYTES_ON_CPU", "_BYTES_ON_GPU"):
        monkeypatch.setattr(images, limit, 7 * KERNELS[name]._num_values()[0] * 8)
    anew = eqx.filter_value_and_grad(lambda at: total(at), has_aux=True)  # not what was compiled for large blocks
    computed = eqx.filter_jit(anew)(at(name))
    for one, other in zip(jax.tree.leaves(computed), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", mostly_slow(["rows", "flattened"], "rows"))
def test_parts_of_a_matrix(name):
    (kernel, X, X2), ((_, (_, K12, _)), _) = at(name), total_and_slopes(at(name))
    np.testing.assert_allclose(kernel(X2[2:], X[1:3]), K12[1:3, 2:].T, rtol=1e-12, atol=1e-14)
    assert kernel(X[:0], X2).shape == (0, 5) and kernel.diag(X[:0]).shape == (0,)


@pytest.mark.parametrize("name", mostly_slow(KERNELS, *SOME))
def test_derivatives(name):
    """In weights and biases those of finite differences, also with repeated inputs and one that is zero; in inputs finite."""
    (kernel, *inputs), h = at(name), 1e-5
    slopes, *of_inputs = total_and_slopes((kernel, *inputs))[1]
    assert np.isfinite(of_inputs[0]).all() and np.isfinite(of_inputs[1]).all()
    values, structure = jax.tree.flatten(eqx.filter(kernel, eqx.is_inexact_array))
    for i, slope in enumerate(jax.tree.leaves(slopes)):
        moved = [jax.tree.unflatten(structure, [*values[:i], values[i] + d, *values[i + 1 :]]) for d in (h, -h)]
        above, below = (total_and_slopes((eqx.combine(k, kernel), *inputs))[0][0] for k in moved)
        np.testing.assert_allclose(slope, (above - below) / (2.0 * h), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", mostly_slow(KERNELS, *SOME))
def test_derivatives_in_inputs(name):
    """Where no two inputs are the same."""
    rng, h = np.random.default_rng(3), 1e-5
    kernel, *inputs = at(name, rng.normal(size=X.shape), rng.normal(size=X2.shape))
    directions = [rng.normal(size=A.shape) for A in inputs]
    slopes = total_and_slopes((kernel, *inputs))[1][1:]
    moved = [[A + d * D for A, D in zip(inputs, directions, strict=True)] for d in (h, -h)]
    above, below = (total_and_slopes((kernel, *inputs))[0][0] for inputs in moved)
    np.testing.assert_allclose(sum(map(np.vdot, slopes, directions)), (above - below) / (2.0 * h), rtol=1e-6)


@pytest.mark.parametrize("name", mostly_slow(["rows", "flattened"], "rows"))
def test_single_precision(name):
    single = jax.tree.leaves(total_and_slopes(at(name, X.astype(np.float32), X2.astype(np.float32))))[1:]
    for computed, exact in zip(single, jax.tree.leaves(total_and_slopes(at(name)))[1:], strict=True):
        assert computed.dtype == jnp.float32
        np.testing.assert_allclose(computed, exact, rtol=0, atol=4e-6 * np.abs(exact).max())


@pytest.mark.parametrize("layer", [Relu(), Gelu(), Elementwise(jnp.tanh, 128)], ids=lambda a: type(a).__name__)
def test_derivative_at_the_input_zero(layer):
    """Of smooth activations the derivative; of Relu, which has a kink there, the mean of those from both sides."""
    kernel, x, direction, h = nngp.NNGP([Dense(1.3), layer]), jnp.array([[0.4, -1.1]]), jnp.array([[0.7, 0.2]]), 1e-6
    slope = jnp.vdot(direction, jax.grad(lambda z: kernel(z, x)[0, 0])(jnp.zeros((1, 2))))
    numeric = (kernel(h * direction, x) - kernel(-h * direction, x))[0, 0] / (2.0 * h)
    np.testing.assert_allclose(slope, numeric, rtol=1e-6)


def test_angles_in_single_precision():
    """There by a polynomial."""
    k12 = jnp.linspace(-1.0, 1.0, 4001)
    exact = [Relu().dual(1.0, k12, 1.0), Relu().dual_derivative(1.0, k12, 1.0)]
    one, k12 = jnp.float32(1.0), k12.astype(jnp.float32)
    np.testing.assert_allclose(Relu().dual(one, k12, one), exact[0], rtol=0, atol=2e-7)
    np.testing.assert_allclose(Relu().dual_derivative(one, k12, one)[8:-8], exact[1][8:-8], rtol=0, atol=3e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_repeated_inputs_are_told_apart_by_nothing(dtype):
    """Also where a row has many entries, whose sums are rounded differently; also by a tangent kernel, which has a kink."""
    kernel = nngp.NTK([Dense(1.4, 0.1), Relu(), Dense(1.4), Relu(), Dense(1.4), Relu(), Dense()])
    X = jnp.asarray(np.random.default_rng(0).uniform(size=(20, 784)), dtype)
    slopes, K = jax.jit(jax.grad(lambda X: (kernel(X, X).sum(), kernel(X, X)), has_aux=True))(X)
    np.testing.assert_allclose(jnp.diagonal(K), kernel.diag(X), rtol=100.0 * jnp.finfo(dtype).eps)
    assert jnp.isfinite(slopes).all()


@pytest.mark.parametrize("name", ["conv strides", "pool", "conv residual"])
def test_images_are_their_rows(name):
    X, X2, layers = some_inputs(name, 3), some_inputs(name, 2, seed=1), NETWORKS[name]
    rows, rows2 = X.reshape(3, -1), X2.reshape(2, -1)
    of_images, of_rows = nngp.NNGP(layers), nngp.NNGP(layers, IMAGE)
    for kernel in (of_images, of_rows):
        np.testing.assert_array_equal(kernel(X), of_rows(rows))
        np.testing.assert_array_equal(kernel(X, X2), of_rows(rows, rows2))
        np.testing.assert_array_equal(kernel.diag(X), of_rows.diag(rows))
    np.testing.assert_array_equal(of_rows(X, rows2), of_rows(rows, rows2))


def test_flattened_images_are_rows():
    X, layers = some_inputs("images", 3), [Dense(1.2, 0.3), Relu()]
    expected = nngp.NNGP(layers)(X.reshape(3, -1))
    np.testing.assert_allclose(nngp.NNGP([Flatten(), *layers])(X), expected, rtol=1e-12)
    np.testing.assert_allclose(nngp.NNGP([Flatten(), *layers])(X.reshape(3, -1)), expected, rtol=1e-12)


def test_a_dense_layer_on_images_is_a_filter_of_one_pixel():
    X = some_inputs("images", 3)
    for end in (Flatten(), GlobalAveragePool()):
        dense, filtered = (
            [layer, Relu(), end, Dense()] for layer in (Dense(1.2, 0.3), Conv((1, 1), (1, 1), "SAME", 1.2, 0.3))
        )
        np.testing.assert_allclose(nngp.NTK(dense)(X), nngp.NTK(filtered)(X), rtol=1e-12)


def test_pooling_one_pixel_is_flattening():
    X, layers = some_inputs("images", 3), [Conv((4, 3), (1, 1), "VALID", 1.2, 0.3), Relu()]
    for kind in KINDS.values():
        flat, pooled = (kind([*layers, end, Dense(1.1), Relu()])(X) for end in (Flatten(), GlobalAveragePool()))
        np.testing.assert_allclose(flat, pooled, rtol=1e-12)


def test_no_bias_is_a_bias_of_zero():
    assert Dense().bias_std is None and Conv((1, 1), bias_std=jnp.asarray(0.0)).bias_std is None
    assert Dense(bias_std=None).bias_std is None and Dense(bias_std=0.2).bias_std == 0.2
    X = some_inputs("dense", 4)
    nearly = nngp.NNGP([Dense(1.3, 1e-9), Relu()])(X)
    np.testing.assert_allclose(nngp.NNGP([Dense(1.3), Relu()])(X), nearly, rtol=1e-10)


def test_in_processes():
    """As any other kernel: a sum with it, an exact posterior, its marginal likelihood in its parameters, inducing points."""
    X = some_inputs("images", 8).reshape(8, -1)
    kernel = nngp.NNGP([Conv((2, 2), bias_std=0.1), Relu(), Flatten(), Dense()], IMAGE) + 0.1 * mc.kernels.Constant()
    Y = jnp.sin(X[:, :1])
    posterior = mc.Conditioned(mc.GP(kernel), X, Y, noise=1e-6)
    np.testing.assert_allclose(posterior.predict(X).mean, Y, atol=1e-3)
    slope = eqx.filter_grad(lambda p: p.log_marginal_likelihood())(posterior)
    assert np.isfinite(jax.tree.leaves(eqx.filter(slope.prior, eqx.is_inexact_array))).all()
    chosen = mc.inducing.greedy_variance(X, kernel, 4, key=jax.random.key(0))
    assert chosen.shape == (4, 24) and len(np.unique(chosen, axis=0)) == 4


class Cube(nngp.Activation):
    """u^3: E[u^3 v^3] = 9 k11 k22 k12 + 6 k12^3, by Isserlis' theorem."""

    def dual(self, k11, k12, k22):
        return 9.0 * k11 * k22 * k12 + 6.0 * k12**3


class CubeWithDerivative(Cube):
    """E[3 u^2 3 v^2] = 9 (k11 k22 + 2 k12^2)."""

    def dual_derivative(self, k11, k12, k22):
        return 9.0 * (k11 * k22 + 2.0 * k12**2)


def test_activations_of_users():
    X, of_points = some_inputs("dense", 4), Elementwise(lambda u: u**3, 8)
    for kind in KINDS.values():
        own, points = (kind([Dense(0.7, 0.2), layer, Dense()])(X) for layer in (CubeWithDerivative(), of_points))
        np.testing.assert_allclose(own, points, rtol=1e-10)
    np.testing.assert_allclose(nngp.NNGP([Dense(), Cube()])(X), nngp.NNGP([Dense(), of_points])(X), rtol=1e-10)
    with pytest.raises(ValueError, match=r"^Cube has no closed form of E\[phi'\(u\) phi'\(v\)\], which NTK needs"):
        nngp.NTK([Dense(), Residual([Dense(), Cube(), Dense()])])
    with pytest.raises(ValueError, match=r"^Cube has no closed form of E\[phi\(u\)\] \(mean\), which Residual needs"):
        nngp.NNGP([Dense(), Relu(), Residual([Dense(), Cube()])])(X)
