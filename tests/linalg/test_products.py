"""Products that skip what structure makes known equal the plain ones."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import mostly_slow
from mercer.linalg import triangular_matmul, weighted_gram
from mercer.linalg.products import map_columns

TRIANGLES = {"full": lambda A: A, "lower": np.tril, "upper": np.triu}
SHAPES = list(itertools.product(TRIANGLES, TRIANGLES))


def some_matrix(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def unit_triangular(size, triangle, seed):
    """A well-conditioned matrix of the given shape."""
    return np.eye(size) + 0.5 * TRIANGLES[triangle](some_matrix(size, size, seed=seed)) / size


def symmetric_product(size, left, right):
    """A and B of the given shapes whose product is symmetric: that of a symmetric matrix, or (of two lower or two upper
    ones, where it can be nothing else) of a diagonal matrix."""
    A, B = unit_triangular(size, left, seed=1), unit_triangular(size, right, seed=2)
    S = some_matrix(size, size, seed=3)
    S = S + S.T
    if right == "full":
        return A, np.linalg.solve(A, S)
    if left == "full":
        return np.linalg.solve(B.T, S).T, B
    if left == right:
        return A, TRIANGLES[left](np.linalg.solve(A, np.diag(np.diagonal(S))))
    return A, A.T


# Around the sizes at which matrices are cut into 1, 2, 3 or 4 blocks, and where those are not of one size.
@pytest.mark.parametrize("size", mostly_slow([1, 3, 63, 64, 130, 300, 400], 3, 64, 130))
def test_triangular_matmul_is_the_product(size):
    one, other = some_matrix(size, size, seed=1), some_matrix(size, size, seed=2)
    factors = {(left, right): (TRIANGLES[left](one), TRIANGLES[right](other)) for left, right in SHAPES}
    symmetric = {shapes: symmetric_product(size, *shapes) for shapes in SHAPES}

    @jax.jit
    def products(factors, symmetric):
        return {
            shapes: (
                triangular_matmul(*factors[shapes], *shapes),
                triangular_matmul(*factors[shapes], *shapes, out="lower"),
                triangular_matmul(*symmetric[shapes], *shapes, out="symmetric"),
            )
            for shapes in SHAPES
        }

    for shapes, (full, lower, mirrored) in products(factors, symmetric).items():
        A, B = factors[shapes]
        message = f"left={shapes[0]}, right={shapes[1]}"
        np.testing.assert_allclose(full, A @ B, rtol=0, atol=1e-11, err_msg=message)
        np.testing.assert_allclose(np.tril(lower), np.tril(A @ B), rtol=0, atol=1e-11, err_msg=message)
        above = np.where(np.triu(lower, 1) == 0.0, 0.0, np.triu(A @ B, 1))  # either left out, or right
        np.testing.assert_allclose(np.triu(lower, 1), above, rtol=0, atol=1e-11, err_msg=message)
        A, B = symmetric[shapes]
        np.testing.assert_allclose(mirrored, A @ B, rtol=0, atol=1e-11, err_msg=message)
        np.testing.assert_array_equal(np.tril(mirrored, -150), np.triu(mirrored, 150).T, err_msg=message)


@pytest.mark.parametrize("size, other", [(3, 300), (130, 7), (130, 300)])
def test_one_factor_may_be_rectangular(size, other):
    square, wide = some_matrix(size, size), some_matrix(size, other, seed=1)

    @jax.jit
    def products(square, wide):
        lower, upper = jnp.tril(square), jnp.triu(square)
        return {
            "lower": (triangular_matmul(lower, wide, left="lower"), lower @ wide),
            "upper": (triangular_matmul(upper, wide, left="upper"), upper @ wide),
            "by lower": (triangular_matmul(wide.T, lower, right="lower"), wide.T @ lower),
            "by upper": (triangular_matmul(wide.T, upper, right="upper"), wide.T @ upper),
            "gram": (triangular_matmul(wide, wide.T, out="symmetric"), wide @ wide.T),
        }

    for name, (product, plain) in products(square, wide).items():
        np.testing.assert_allclose(product, plain, rtol=0, atol=1e-11, err_msg=name)


def test_leading_axes_are_batches():
    A, B = np.tril(some_matrix(2, 3, 70, 70)), some_matrix(2, 3, 70, 5, seed=1)
    np.testing.assert_allclose(jax.jit(triangular_matmul, static_argnums=2)(A, B, "lower"), A @ B, rtol=0, atol=1e-12)


# The long axis is worked through in slices of 1024: none, one and two of them, with and without a rest.
@pytest.mark.parametrize("B", [5, 1024, 1500, 2048, 2500])
def test_weighted_gram_and_map_columns_over_slices(B):
    K, weights, W = some_matrix(4, B), some_matrix(B, seed=1), np.tril(some_matrix(4, 4, seed=2))

    @jax.jit
    def compute(K, weights, W):
        gram = weighted_gram(K, weights)
        transformed = weighted_gram(K, weights, lambda columns: W @ columns)
        return gram, transformed, map_columns(lambda k: (W @ k, jnp.sum(k**2, axis=0)), K)

    gram, transformed, (matrix, vector) = compute(K, weights, W)
    np.testing.assert_allclose(gram, K @ np.diag(weights) @ K.T, rtol=0, atol=1e-10)
    np.testing.assert_allclose(transformed, W @ K @ np.diag(weights) @ K.T @ W.T, rtol=0, atol=1e-10)
    np.testing.assert_allclose(matrix, W @ K, rtol=0, atol=1e-12)
    np.testing.assert_allclose(vector, (K**2).sum(0), rtol=1e-12)
