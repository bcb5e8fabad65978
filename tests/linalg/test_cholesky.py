"""Cholesky factors, their inverses, and what happens to matrices that are not quite positive definite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mercer.linalg import JITTER, FactorisationError, inverse_factor, inverse_root, safe_cholesky
from mercer.linalg.cholesky import triangular_inverse

FIRST, LAST = JITTER[jnp.dtype("float64")]


def positive_definite(M, seed=0, scale=1.0):
    F = np.random.default_rng(seed).normal(size=(M, M))
    return jnp.asarray(scale * (F @ F.T / M + np.eye(M)))


def with_smallest_eigenvalue(value, M=12):
    """A symmetric matrix of mean diagonal 1 whose smallest eigenvalue is `value`."""
    Q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(M, M)))
    rest = (M - value) / (M - 1)
    return jnp.asarray((Q * np.array([value] + [rest] * (M - 1))) @ Q.T)


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-6])
def test_the_factor_is_exact_up_to_the_reported_jitter_which_scales_with_the_diagonal(scale):
    A = positive_definite(20, scale=scale)
    bare, jittered = safe_cholesky(A, always=False), safe_cholesky(A)
    assert bare.jitter == 0.0
    np.testing.assert_allclose(bare.factor, np.linalg.cholesky(A), rtol=1e-11, atol=1e-11 * scale**0.5)
    np.testing.assert_allclose(jittered.jitter, FIRST * np.mean(np.diagonal(A)), rtol=1e-12)
    expected = np.linalg.cholesky(A + jittered.jitter * np.eye(20))
    np.testing.assert_allclose(jittered.factor, expected, rtol=1e-11, atol=1e-11 * scale**0.5)


@pytest.mark.parametrize("negative, decades", [(3e-10, 1), (3e-9, 2), (3e-7, 4), (3e-6, 5)])
def test_jitter_grows_by_decades_to_the_first_that_is_enough(negative, decades):
    A = with_smallest_eigenvalue(-negative)
    factor, jitter = safe_cholesky(A)
    np.testing.assert_allclose(jitter, FIRST * 10.0**decades * np.mean(np.diagonal(A)), rtol=1e-9)
    np.testing.assert_allclose(factor @ factor.T, A + jitter * np.eye(12), rtol=0, atol=1e-13)


def test_past_the_cap_the_error_names_the_matrix_its_size_and_its_condition():
    A = with_smallest_eigenvalue(-0.001)
    with pytest.raises(FactorisationError) as error:
        safe_cholesky(A, "Kuu")
    for part in ("Kuu [12 x 12]", "from -0.001", f"condition {np.linalg.cond(A):.3g}", f"up to {LAST:g}"):
        assert part in str(error.value)
    assert isinstance(error.value, ValueError)
    with pytest.raises(FactorisationError, match=r"Kff \[12 x 12\] holds NaN or inf"):
        safe_cholesky(A.at[3, 2].set(jnp.nan), "Kff")
    with pytest.raises(FactorisationError, match=r"Kff \[12 x 12\] holds NaN or inf"):
        safe_cholesky(jnp.diag(jnp.full(12, jnp.inf)), "Kff")


def test_in_compiled_code_the_factor_is_nan_past_the_cap():
    bad, good = with_smallest_eigenvalue(-0.001), with_smallest_eigenvalue(0.5)
    factors = jax.jit(lambda A: safe_cholesky(A).factor)(jnp.stack([bad, good]))
    assert np.isnan(factors[0, -1, -1])
    assert np.isnan(inverse_factor(bad)[-1, -1])
    np.testing.assert_allclose(factors[1] @ factors[1].T, good, rtol=0, atol=1e-9)


def test_each_matrix_of_a_batch_has_the_jitter_that_it_needs():
    A = jnp.stack([with_smallest_eigenvalue(v) for v in (0.5, -3e-9, -3e-7, 0.1)]).reshape(2, 2, 12, 12)
    factor, jitter = safe_cholesky(A)
    assert jitter.shape == (2, 2)
    np.testing.assert_allclose(jitter, FIRST * np.array([[1.0, 1e2], [1e4, 1.0]]), rtol=1e-9)
    np.testing.assert_allclose(factor @ factor.mT, A + jitter[..., None, None] * np.eye(12), rtol=0, atol=1e-13)


# 70: above the size at which inversion goes by halves.
@pytest.mark.parametrize("M", [3, 70])
def test_derivatives_are_those_of_jax(M):
    A, dA = positive_definite(M), jnp.asarray(np.random.default_rng(1).normal(size=(M, M)))
    weights = jnp.asarray(np.tril(np.random.default_rng(2).normal(size=(M, M))))

    def of(factorise):
        def forward_and_reverse(A, dA):
            value, tangent = jax.jvp(factorise, (A,), (dA,))
            gradient = jax.grad(lambda A: jnp.vdot(weights, factorise(A)))(A)
            return value, tangent, gradient + gradient.T

        return jax.jit(forward_and_reverse)(A, dA)

    def symmetric(A):
        return (A + A.T) / 2

    def plain_inverse(A):
        return jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(A), jnp.eye(M), lower=True)

    pairs = [
        (lambda A: safe_cholesky(A, always=False).factor, jnp.linalg.cholesky),
        (lambda A: inverse_factor(A, always=False), plain_inverse),
        (inverse_root, lambda A: jnp.linalg.cholesky(jnp.linalg.inv(symmetric(A)))),
    ]
    for ours, plain in pairs if M == 3 else pairs[:2]:
        for computed, expected in zip(of(ours), of(plain), strict=True):
            np.testing.assert_allclose(computed, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("M", [1, 65, 130])
def test_inverses(M):
    A = positive_definite(M)
    L = np.linalg.cholesky(A)
    inverse = jax.jit(triangular_inverse)(jnp.asarray(L))
    np.testing.assert_allclose(inverse @ L, np.eye(M), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(np.triu(inverse, 1), 0.0)
    W = inverse_factor(A, always=False)
    np.testing.assert_allclose(W, np.linalg.inv(L), rtol=0, atol=1e-12)
    root = inverse_root(A)
    np.testing.assert_array_equal(np.triu(root, 1), 0.0)
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(A), rtol=0, atol=1e-12)


def test_inverses_of_batches():
    A = jnp.stack([positive_definite(5, seed) for seed in range(3)])
    W, root = inverse_factor(A, always=False), inverse_root(A)
    np.testing.assert_allclose(W.mT @ W, np.linalg.inv(A), rtol=1e-10)
    np.testing.assert_allclose(root @ root.mT, np.linalg.inv(A), rtol=1e-10)


def test_float32_stays_float32():
    A = positive_definite(10).astype(jnp.float32)
    factor, jitter = safe_cholesky(A)
    assert {factor.dtype, jitter.dtype, inverse_factor(A).dtype, inverse_root(A).dtype} == {np.dtype("float32")}
    np.testing.assert_allclose(jitter, JITTER[A.dtype][0] * np.mean(np.diagonal(A)), rtol=1e-6)
    np.testing.assert_allclose(factor @ factor.T, A, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "dtype, size, expected", [("float32", 500, 1e-5), ("float32", 2000, 3e-5), ("float64", 2000, FIRST)]
)
def test_the_first_jitter_is_above_the_rounding_of_large_matrices(dtype, size, expected):
    np.testing.assert_allclose(safe_cholesky(jnp.eye(size, dtype=dtype)).jitter, expected, rtol=0.01)
