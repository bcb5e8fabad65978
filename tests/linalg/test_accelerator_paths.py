"""The ways that the linear algebra takes on a GPU give the numbers of those on the CPU.

They run on the CPU here: inverses by levels, all entries of a batch at once, long axes in one piece, fewer blocks. What XLA
does not do on a CPU, products in TensorFloat-32, is emulated.
"""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg  # noqa: F401  (loads a BLAS)
from threadpoolctl import ThreadpoolController, threadpool_limits

from mercer.kernels.images import block_size
from mercer.kernels.stationary import squared_distance
from mercer.linalg import JITTER, inverse_factor, marginals, quiet_blas, safe_cholesky, triangular_matmul, weighted_gram
from mercer.linalg.cholesky import triangular_inverse
from mercer.linalg.marginals import shared_marginals, whitened_marginals
from mercer.linalg.operators import Dense
from mercer.linalg.products import for_each_entry, map_columns, map_rows, matmul, num_blocks, on_cpu

TF32, IN_THREE = jax.lax.DotAlgorithmPreset.TF32_TF32_F32, jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3


def some_matrix(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def positive_definite(*shape, seed=0):
    F = some_matrix(*shape, shape[-1], seed=seed)
    return F @ np.swapaxes(F, -1, -2) / shape[-1] + np.eye(shape[-1])


def assert_close(one, other, tolerance=1e-11):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, float(np.abs(b).max())))


def test_the_library_believes_to_be_on_a_gpu(as_on_a_gpu):
    assert on_cpu()
    with as_on_a_gpu():
        assert not on_cpu()
        assert [num_blocks(size) for size in (1, 64, 1023, 1024, 5000)] == [1, 1, 1, 2, 2]
        on_gpu = block_size(100, "float32", 10**6)
    assert block_size(100, "float32", 10**6) < on_gpu <= 10**6
    assert [num_blocks(size) for size in (1, 64, 300, 5000)] == [1, 2, 2, 4]


# Around the size of the smallest block, and with little padding, much and none.
@pytest.mark.parametrize("M", [1, 63, 64, 65, 129, 200, 513])
def test_inverses_by_levels(both_ways, M):
    L = np.linalg.cholesky(positive_definite(M))
    by_halves, by_levels = both_ways(triangular_inverse, jnp.asarray(L))
    assert_close(by_levels, by_halves, 1e-12)
    np.testing.assert_allclose(by_levels @ L, np.eye(M), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(np.triu(by_levels, 1), 0.0)


@pytest.mark.parametrize("M", [5, 130])
def test_derivatives_of_factors(both_ways, M):
    A, dA, weights = positive_definite(M), some_matrix(M, M, seed=1), np.tril(some_matrix(M, M, seed=2))

    def derivatives(A, dA):
        def total(A):
            return jnp.vdot(weights, inverse_factor(A)) + jnp.vdot(weights, safe_cholesky(A).factor)

        return jax.jvp(inverse_factor, (A,), (dA,)), jax.grad(total)(A)

    assert_close(*both_ways(derivatives, jnp.asarray(A), jnp.asarray(dA)))


def test_a_factor_that_fails_is_nan_by_levels_too(as_on_a_gpu):
    bad = jnp.asarray(np.diag(np.r_[np.ones(69), -1.0]))
    with as_on_a_gpu():
        assert np.isnan(jax.jit(lambda A: inverse_factor(A))(bad)[-1, -1])


# Matrices of more than 64 rows are gone through one by one on the CPU.
def test_factors_of_a_batch(both_ways):
    A = jnp.asarray(positive_definite(3, 65))
    assert_close(*both_ways(lambda A: (safe_cholesky(A), inverse_factor(A)), A))


# 1100: two blocks, not of one size; 300: one block, where the CPU makes two.
@pytest.mark.parametrize("size", [300, 1100])
def test_triangular_products(both_ways, size):
    L = jnp.asarray(np.tril(some_matrix(size, size)) / size**0.5)
    B = jnp.asarray(some_matrix(size, 40, seed=1))

    def products(L, B):
        return (
            triangular_matmul(L, B, left="lower"),
            triangular_matmul(L.T, B, left="upper"),
            triangular_matmul(B.T, L, right="lower"),
            jnp.tril(triangular_matmul(L, L, left="lower", right="lower", out="lower")),
            triangular_matmul(L, L.T, left="lower", right="upper", out="symmetric"),
            triangular_matmul(L.T, L, left="upper", right="lower", out="symmetric"),
        )

    blocks_of_cpu, blocks_of_gpu = both_ways(products, L, B)
    assert_close(blocks_of_gpu, blocks_of_cpu)
    L, B = np.asarray(L), np.asarray(B)
    assert_close(blocks_of_gpu, (L @ B, L.T @ B, B.T @ L, np.tril(L @ L), L @ L.T, L.T @ L))


def test_long_axes_in_one_piece(both_ways):
    K, weights, W = jnp.asarray(some_matrix(4, 2500)), jnp.asarray(some_matrix(2500, seed=1)), some_matrix(4, 4, seed=2)

    def compute(K, weights):
        gram = weighted_gram(K, weights, lambda columns: W @ columns)
        columns = map_columns(lambda k: (W @ k, jnp.sum(k**2, axis=0)), K)
        return weighted_gram(K, weights), gram, columns, map_rows(lambda x: (x @ W, jnp.sum(x, axis=1)), K.T)

    in_slices, at_once = both_ways(compute, K, weights)
    assert_close(at_once, in_slices)
    assert_close(at_once[0], np.asarray((K * weights) @ K.T))


def test_entries_at_once(both_ways):
    A, b = jnp.asarray(positive_definite(3, 6)), jnp.asarray(some_matrix(3, 6, seed=1))
    one_by_one, at_once = both_ways(lambda A, b: for_each_entry(jnp.linalg.solve, A, b[..., None]), A, b)
    assert_close(at_once, one_by_one)
    assert_close(at_once[..., 0], np.linalg.solve(A, b[..., None])[..., 0])


@pytest.mark.parametrize("num_outputs", [1, 3])
def test_marginals_and_their_derivatives(both_ways, num_outputs):
    M, B = 70, 1100
    Kuu, Kuf = positive_definite(M), some_matrix(M, B, seed=1) / M**0.5
    q_mu, q_root = some_matrix(M, num_outputs, seed=2), np.tril(some_matrix(num_outputs, M, M, seed=3)) / M
    gm, gv = some_matrix(2, B, num_outputs, seed=4)

    def values_and_gradients(*arguments):
        def total(Kuu, *rest):
            mean, reduction = marginals(Dense(Kuu), *rest)
            return jnp.vdot(gm, mean) + jnp.vdot(gv, reduction), (mean, reduction)

        return jax.value_and_grad(total, (0, 1, 2, 3), has_aux=True)(*arguments)

    assert_close(*both_ways(values_and_gradients, *map(jnp.asarray, (Kuu, Kuf, q_mu, q_root))))


def test_blas_threads_are_left_alone(as_on_a_gpu):
    def threads():
        return [pool["num_threads"] for pool in ThreadpoolController().info() if pool["user_api"] == "blas"]

    with threadpool_limits(2, user_api="blas"), as_on_a_gpu():
        before = threads()
        with quiet_blas():
            assert threads() == before


# --- TensorFloat-32 ---


@pytest.fixture
def on_device(as_on_a_gpu, monkeypatch):
    """A function that gives a context in which the first device is a GPU of some compute capability."""

    def context(capability):
        device = types.SimpleNamespace() if capability is None else types.SimpleNamespace(compute_capability=capability)
        monkeypatch.setattr(jax, "devices", lambda: [device])
        return as_on_a_gpu()

    return context


@pytest.mark.parametrize(
    "capability, dtype, shapes, asked",
    [
        ("8.0", "float32", ((257, 257), (257, 257)), True),
        ("9.0", "float32", ((2, 500, 2000), (2000, 300)), True),
        ("10.0", "float32", ((257, 257), (257, 257)), True),
        ("9.0", "float32", ((300, 256), (256, 300)), False),
        ("9.0", "float32", ((300, 2000), (2000, 17)), False),
        ("9.0", "float32", ((300, 2000), (2000,)), False),
        ("9.0", "float64", ((300, 2000), (2000, 300)), False),
        ("7.5", "float32", ((300, 2000), (2000, 300)), False),
        ("gfx90a", "float32", ((300, 2000), (2000, 300)), False),  # of AMD
        (None, "float32", ((300, 2000), (2000, 300)), False),
    ],
)
@pytest.mark.parametrize("precision", ["full", "reduced"])
def test_where_tensor_float_is_asked_for(on_device, capability, dtype, shapes, asked, precision):
    """By the program for a GPU, which JAX writes down without one."""
    A, B = (jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)
    with on_device(capability):
        product = jax.jit(lambda A, B: matmul(A, B, precision))
        program = product.trace(A, B).lower(lowering_platforms=("cuda",)).as_text()
    assert ("tf32" in program) == asked
    assert ("HIGHEST" in program) != asked
    assert program.count("dot_general") == 1
    assert ("concatenate" in program) == (asked and precision == "full")


def rounded(x):
    """x with the 10 bits after the leading one that TensorFloat-32 keeps of 23."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    return jax.lax.bitcast_convert_type((bits + 0x1000) & ~0x1FFF, jnp.float32)


PLAIN_MATMUL = jnp.matmul


@pytest.fixture
def emulated(on_device, monkeypatch):
    """A context in which products are those of a GPU with TensorFloat-32; `count` says how many were asked for."""

    def product(A, B, *, precision):
        plain = jax.lax.Precision.HIGHEST
        if precision == IN_THREE:  # asked for in derivatives of products: here, as good as full
            return PLAIN_MATMUL(A, B, precision=plain)
        if precision != TF32:
            return PLAIN_MATMUL(A, B, precision=precision)
        product.count += 1
        return PLAIN_MATMUL(rounded(A), rounded(B), precision=plain)

    def context():
        product.count = 0
        monkeypatch.setattr(jnp, "matmul", product)
        return on_device("9.0")

    context.product = product
    return context


@pytest.mark.parametrize("inner", [300, 500, 2000])
def test_three_products_are_nearly_one_in_float32(emulated, inner):
    A, B = some_matrix(260, inner).astype(np.float32), some_matrix(inner, 270, seed=1).astype(np.float32)
    with emulated():
        product = jax.jit(lambda A, B: matmul(A, B))(A, B)
        once = jax.jit(lambda A, B: matmul(A, B, "reduced"))(A, B)
    size = np.linalg.norm(A.astype(float), axis=1)[:, None] * np.linalg.norm(B.astype(float), axis=0)
    error = np.abs(product - A.astype(float) @ B) / size
    assert emulated.product.count == 2 and product.dtype == np.float32
    assert error.max() < 1e-6
    once = np.abs(once - A.astype(float) @ B) / size
    assert 10.0 * error.max() < once.max() < 1e-3


def test_derivatives_of_split_products(emulated):
    A, B, weights = (some_matrix(260, 260, seed=seed).astype(np.float32) for seed in range(3))
    with emulated():
        forward = jax.jvp(matmul, (A, B), (weights, weights))[1]
        dA, dB = jax.vjp(matmul, A, B)[1](weights)
    assert_close((forward, dA, dB), (weights @ B + A @ weights, weights @ B.T, A.T @ weights), 1e-5)


def near_singular(M, B):
    """Kuu, Kuf, q_mu and q_root on the real line, in float32, with an optimal q(u) of noise 0.01."""
    x, z = np.linspace(0.0, 1.0, B)[:, None], np.linspace(0.0, 1.0, M)[:, None]
    Kuu, Kuf = (np.exp(-0.5 * ((z - other.T) / 0.01) ** 2) for other in (z, x))
    C = np.linalg.solve(np.linalg.cholesky(Kuu + JITTER[jnp.dtype("float32")][0] * np.eye(M)), Kuf)
    q_root = np.linalg.cholesky(np.linalg.inv(np.eye(M) + C @ C.T / 0.01))
    return tuple(jnp.asarray(array, "float32") for array in (Kuu, Kuf, some_matrix(M), q_root))


def values_and_gradients(gradients, *arguments):
    values, pull = jax.vjp(lambda *args: whitened_marginals(*args, gradients), *arguments)
    return values, pull(tuple(jnp.ones_like(value) for value in values))[1:]


def in_float64(arguments):
    """The marginals and their gradients in float64, with the jitter of float32, which it would not add."""
    wide = [jnp.asarray(array, "float64") for array in arguments]
    wide[0] = wide[0] + JITTER[jnp.dtype("float32")][0] * jnp.eye(len(wide[0]))
    return jax.jit(lambda *args: values_and_gradients("full", *args))(*wide)


def test_marginals_on_a_gpu_are_as_good_as_in_float32(emulated):
    arguments = near_singular(300, 280)
    exact = in_float64(arguments)
    plain = jax.jit(lambda *args: values_and_gradients("full", *args))(*arguments)
    with emulated():
        split = jax.jit(lambda *args: values_and_gradients("full", *args))(*arguments)
    assert emulated.product.count > 5
    for truth, one, other in zip(*map(jax.tree.leaves, (exact, plain, split)), strict=True):
        assert np.abs(other - truth).max() < 3.0 * np.abs(one - truth).max() + 1e-5 * np.abs(truth).max()
        assert np.abs(other - truth).max() < 0.01 * np.abs(truth).max()


def test_reduced_gradients_leave_the_values_alone(emulated):
    arguments = near_singular(300, 280)
    exact = in_float64(arguments)
    with emulated():
        split = jax.jit(lambda *args: values_and_gradients("full", *args))(*arguments)
        reduced = jax.jit(lambda *args: values_and_gradients("reduced", *args))(*arguments)
    for one, other in zip(split[0], reduced[0], strict=True):
        np.testing.assert_array_equal(one, other)
    of_Kuf, of_m, of_L = (np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(reduced[1], exact[1], strict=True))
    assert of_Kuf < 0.01 and of_m < 0.01 and of_L < 0.05  # G L, of large G and small L, is small
    assert any(np.any(np.asarray(a) != b) for a, b in zip(reduced[1], split[1], strict=True))


def test_reduced_gradients_by_inducing_inputs(emulated):
    """Those of Kuu and Kuf, which nearly cancel."""
    random = np.random.default_rng(0)
    X, Z = random.normal(size=(400, 8)), random.normal(size=(300, 8))
    q_mu, q_root = 0.1 * some_matrix(300), 0.1 * np.eye(300)

    def slope(gradients, dtype):
        x, z, m, L = (jnp.asarray(array, dtype) for array in (X, Z, q_mu, q_root))
        jitter = JITTER[jnp.dtype("float32")][0] if dtype == "float64" else 0.0

        def total(z):
            Kuu, Kuf = (jnp.exp(-0.5 * squared_distance(z, other, jnp.full(8, 0.02, dtype))) for other in (z, x))
            mean, reduction = whitened_marginals(Kuu + jitter * jnp.eye(300, dtype=dtype), Kuf, m, L, gradients)
            return jnp.sum((mean - jnp.sin(x[:, 0])) ** 2 - reduction)

        return jax.jit(jax.grad(total))(z)

    exact = slope("full", "float64")
    with emulated():
        reduced = slope("reduced", "float32")
    assert np.linalg.norm(reduced - exact) < 0.1 * np.linalg.norm(exact)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reduced_is_full_on_the_cpu(dtype):
    arguments = tuple(array.astype(dtype) for array in near_singular(300, 50))
    full = jax.jit(lambda *args: values_and_gradients("full", *args))(*arguments)
    reduced = jax.jit(lambda *args: values_and_gradients("reduced", *args))(*arguments)
    jax.tree.map(np.testing.assert_array_equal, reduced, full)


def test_reduced_is_full_in_float64_on_a_gpu(emulated):
    arguments = tuple(array.astype("float64") for array in near_singular(300, 280))
    with emulated():
        full = jax.jit(lambda *args: values_and_gradients("full", *args))(*arguments)
        reduced = jax.jit(lambda *args: values_and_gradients("reduced", *args))(*arguments)
    assert emulated.product.count == 0
    jax.tree.map(np.testing.assert_array_equal, reduced, full)


def test_shared_marginals_in_three_products(emulated):
    M, B, L = 300, 280, 2
    arguments = (positive_definite(M), some_matrix(M, B, seed=1) / M**0.5, some_matrix(M, L, seed=2))
    arguments = tuple(jnp.asarray(a, "float32") for a in (*arguments, np.tril(some_matrix(L, M, M, seed=3)) / M))
    expected = jax.jit(lambda *args: shared_marginals(*args))(*(a.astype(float) for a in arguments))
    with emulated():
        found = jax.jit(lambda *args: shared_marginals(*args))(*arguments)
    assert emulated.product.count >= 2
    assert_close(found, expected, 1e-4)
