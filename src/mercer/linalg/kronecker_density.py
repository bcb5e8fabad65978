"""Gaussians whose covariance is A x B + I, by the eigenvalues of the two factors.

With A = U diag(a) U^T [N, N] and B = V diag(b) V^T [P, P], the matrix A x B + I has the eigenvectors U x V and the eigenvalues
a_i b_j + 1, so that N P values cost N^3 + P^3 instead of (N P)^3.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.linalg.eigen import eigh
from mercer.linalg.products import matmul


class KroneckerPlusIdentity(NamedTuple):
    """A x B + I in its eigenvectors, acting on arrays [N, P]."""

    U: Float[Array, "N N"]
    a: Float[Array, " N"]
    V: Float[Array, "P P"]
    b: Float[Array, " P"]

    @classmethod
    def of(cls, A: Float[Array, "N N"], B: Float[Array, "P P"]) -> "KroneckerPlusIdentity":
        """The factors taken apart."""
        (a, U), (b, V) = eigh(A), eigh(B)
        return cls(U, jnp.maximum(a, 0.0), V, jnp.maximum(b, 0.0))

    @property
    def eigenvalues(self) -> Float[Array, "N P"]:
        """a_i b_j + 1."""
        return self.a[:, None] * self.b + 1.0

    def solve(self, R: Float[Array, "N P"]) -> Float[Array, "N P"]:
        """The inverse applied to R."""
        rotated = matmul(matmul(self.U.T, R), self.V)
        return matmul(matmul(self.U, rotated / self.eigenvalues), self.V.T)


@jax.custom_vjp
def kronecker_log_density(A: Float[Array, "N N"], B: Float[Array, "P P"], R: Float[Array, "N P"]) -> Float[Array, ""]:
    """log N(R; 0, A x B + I).

    With alpha the inverse applied to R, the derivative is dA = (alpha B alpha^T - U diag(sum_j b_j / e_ij) U^T) / 2, with e the
    eigenvalues, the same for B with the roles exchanged, and dR = -alpha: no derivative of eigenvectors, which repeated
    eigenvalues would spoil.
    """
    return _forward(A, B, R)[0]


def _forward(A, B, R):
    matrix = KroneckerPlusIdentity.of(A, B)
    alpha = matrix.solve(R)
    quadratic = jnp.sum(R * alpha)
    value = -0.5 * (quadratic + jnp.sum(jnp.log(matrix.eigenvalues)) + R.size * jnp.log(2.0 * jnp.pi))
    return value.astype(R.dtype), (A, B, matrix, alpha)


def _backward(residuals, cotangent):
    A, B, (U, a, V, b), alpha = residuals
    e = a[:, None] * b + 1.0
    dA = matmul(matmul(alpha, B), alpha.T) - matmul(U * jnp.sum(b / e, axis=1), U.T)
    dB = matmul(matmul(alpha.T, A), alpha) - matmul(V * jnp.sum(a[:, None] / e, axis=0), V.T)
    return 0.5 * cotangent * dA, 0.5 * cotangent * dB, -cotangent * alpha


kronecker_log_density.defvjp(_forward, _backward)
