"""Every positive definite operator agrees with the matrix it stands for."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from mercer.linalg import PSD, BlockDiagonal, Dense, Diagonal, DiagonalPlusLowRank, Kronecker, marginals


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def matrix(M, seed=0):
    F = normal(M, M, seed=seed)
    return F @ F.T / M + 0.5 * np.eye(M)


def positive(M, seed=0):
    return np.random.default_rng(seed).uniform(0.5, 2.0, size=M)


D4, E3, V42, V31, V35 = positive(4), positive(3, 1), normal(4, 2), normal(3, 1, seed=1), normal(3, 5)

# Each operator, and the same matrix by NumPy.
OPERATORS = {
    "Dense": (Dense(matrix(5)), matrix(5)),
    "Diagonal": (Diagonal(D4), np.diag(D4)),
    "DiagonalPlusLowRank": (DiagonalPlusLowRank(D4, V42), np.diag(D4) + V42 @ V42.T),
    "of higher rank than size": (DiagonalPlusLowRank(E3, V35), np.diag(E3) + V35 @ V35.T),
    "with orthogonal columns": (DiagonalPlusLowRank(np.ones(4), np.eye(4)[:, :2]), np.diag([2.0, 2.0, 1.0, 1.0])),
    "with V = 0": (DiagonalPlusLowRank(D4, np.zeros((4, 1))), np.diag(D4)),
    "BlockDiagonal": (
        BlockDiagonal([Dense(matrix(2)), Diagonal(D4), Dense(matrix(3))]),
        scipy.linalg.block_diag(matrix(2), np.diag(D4), matrix(3)),
    ),
    "Kronecker": (
        Kronecker([Dense(matrix(2)), Diagonal(E3), Dense(matrix(2, 1))]),
        np.kron(np.kron(matrix(2), np.diag(E3)), matrix(2, 1)),
    ),
    "nested": (
        BlockDiagonal(
            [
                Kronecker([DiagonalPlusLowRank(E3, V31), BlockDiagonal([Diagonal(D4[:1]), Dense(matrix(2))])]),
                Diagonal(D4[:2]),
            ]
        ),
        scipy.linalg.block_diag(
            np.kron(np.diag(E3) + V31 @ V31.T, scipy.linalg.block_diag(D4[:1], matrix(2))), np.diag(D4[:2])
        ),
    ),
}


@eqx.filter_jit
def everything(operator: PSD, x):
    return {
        "dense": operator.dense(),
        "diagonal": operator.diagonal(),
        "log determinant": operator.log_determinant(),
        "matmul": operator.matmul(x),
        "solve": operator.solve(x),
        "solve after matmul": operator.solve(operator.matmul(x)),
        "whiten after colour": operator.whiten(operator.colour(x)),
        "colour after whiten": operator.colour(operator.whiten(x)),
        "root": operator.colour(jnp.eye(operator.size)),
        "inverse root": operator.whiten(jnp.eye(operator.size)),
    }


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_its_matrix(name):
    operator, K = OPERATORS[name]
    x = normal(len(K), 2, seed=7)
    found = everything(operator, jnp.asarray(x))
    assert operator.size == len(K)
    expected = {
        "dense": K,
        "diagonal": np.diagonal(K),
        "log determinant": np.linalg.slogdet(K)[1],
        "matmul": K @ x,
        "solve": np.linalg.solve(K, x),
        "solve after matmul": x,
        "whiten after colour": x,
        "colour after whiten": x,
    }
    for quantity, value in expected.items():  # a Dense adds a relative jitter of 1e-10
        np.testing.assert_allclose(found[quantity], value, rtol=1e-8, atol=1e-8, err_msg=quantity)
    R, W = found["root"], found["inverse root"]
    np.testing.assert_allclose(R @ R.T, K, rtol=0, atol=1e-8)
    np.testing.assert_allclose(W.T @ W, np.linalg.inv(K), rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["DiagonalPlusLowRank", "with orthogonal columns", "with V = 0", "nested"])
def test_derivatives_are_those_of_the_dense_matrix(name):
    operator, K = OPERATORS[name]
    x = jnp.asarray(normal(len(K), 2, seed=7))

    @eqx.filter_jit
    @eqx.filter_grad
    def structured(operator):
        return operator.log_determinant() + jnp.sum(x * operator.solve(x)) + jnp.sum(operator.whiten(x) ** 2)

    @eqx.filter_jit
    @eqx.filter_grad
    def dense(operator):
        K = operator.dense()
        return jnp.linalg.slogdet(K)[1] + 2.0 * jnp.sum(x * jnp.linalg.solve(K, x))

    for ours, plain in zip(*(jax.tree.leaves(f(operator)) for f in (structured, dense)), strict=True):
        if ours.ndim == 2 and ours.shape[0] == ours.shape[1]:  # only the symmetric part is defined
            ours, plain = ours + ours.T, plain + plain.T
        np.testing.assert_allclose(ours, plain, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", OPERATORS)
def test_marginals_do_not_depend_on_how_the_matrix_is_held(name):
    """N(m_u, S_u) of u gives the same marginals by any root of Kuu: mean K_fu K^-1 m_u, and so on."""
    operator, K = OPERATORS[name]
    M, B, L = len(K), 6, 2
    Kuf, m_u, root_u = normal(M, B), normal(M, L, seed=1), normal(L, M, M, seed=2)

    @eqx.filter_jit
    def through(operator, root_u):
        return marginals(operator, jnp.asarray(Kuf), operator.whiten(m_u), jax.vmap(operator.whiten)(root_u))

    mean, reduction = through(operator, jnp.asarray(root_u))
    A = np.linalg.solve(K, Kuf)
    np.testing.assert_allclose(mean, A.T @ m_u, rtol=0, atol=1e-7)
    S = root_u @ root_u.swapaxes(1, 2)
    expected = np.einsum("mb,mb->b", Kuf, A)[:, None] - np.einsum("mb,lmk,kb->bl", A, S, A)
    np.testing.assert_allclose(reduction, expected, rtol=0, atol=1e-6)
    # the fused rule takes a lower triangular root
    lower = np.linalg.cholesky(S)
    for structured, dense in zip((mean, reduction), through(Dense(jnp.asarray(K)), lower), strict=True):
        np.testing.assert_allclose(structured, dense, rtol=0, atol=1e-6)


def test_float32_stays_float32():
    for name, (operator, K) in OPERATORS.items():
        narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), operator)
        x = jax.ShapeDtypeStruct((len(K), 2), jnp.float32)
        for method in ("matmul", "solve", "whiten", "colour"):
            assert jax.eval_shape(getattr(narrow, method), x).dtype == jnp.float32, (name, method)
        for method in ("dense", "diagonal", "log_determinant"):
            assert jax.eval_shape(getattr(narrow, method)).dtype == jnp.float32, (name, method)
