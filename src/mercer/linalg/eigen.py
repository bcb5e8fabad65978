"""Eigenvalues and eigenvectors of symmetric matrices."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.linalg.products import for_each_matrix, matmul, one_by_one


def eigh(A: Float[Array, "... M M"]) -> tuple[Float[Array, "... M"], Float[Array, "... M M"]]:
    """The eigenvalues in ascending order, and the eigenvectors as columns. The latter have no derivative where values repeat."""
    return for_each_matrix(_eigh, A)


@jax.custom_jvp
def _eigh(A):
    values, vectors = one_by_one(jnp.linalg.eigh)(A)
    return values, vectors


@_eigh.defjvp
def _eigh_jvp(primals, tangents):
    # With S = V^T dA V: dw_i = S_ii, dV = V T, T_ij = S_ij / (w_j - w_i) off the diagonal
    (A,), (dA,) = primals, tangents
    values, vectors = _eigh(A)
    S = matmul(vectors.T, matmul(0.5 * (dA + dA.T), vectors))
    off = ~jnp.eye(len(values), dtype=bool)
    T = jnp.where(off, S / jnp.where(off, values - values[:, None], 1.0), 0.0)
    return (values, vectors), (jnp.diagonal(S), matmul(vectors, T))
