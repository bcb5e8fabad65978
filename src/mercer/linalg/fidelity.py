"""The fidelity of two positive semi-definite matrices: the trace term of the Wasserstein distance between Gaussians.

tr[(R^1/2 K R^1/2)^1/2] is the sum of the square roots of the eigenvalues of R K (paper 000, equations 4.7 and 5.11, as
corrected), and of the singular values of M = R^1/2 K^1/2. The latter lose no digits: small eigenvalues of a product are known
only to the size of rounding, and their square roots only to its square root.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.linalg.eigen import eigh
from mercer.linalg.products import matmul, one_by_one


@jax.custom_jvp
def fidelity(R: Float[Array, "B B"], K: Float[Array, "B B"]) -> Float[Array, ""]:
    """tr[(R^1/2 K R^1/2)^1/2] for symmetric positive semi-definite R and K.

    With M = P diag(s) Q^T the derivatives are dK = R^1/2 P diag(1 / s) P^T R^1/2 / 2, half the optimal map from N(0, K) to
    N(0, R), and dR = K^1/2 Q diag(1 / s) Q^T K^1/2 / 2, half the one back. No eigenvector is differentiated, so that repeated
    eigenvalues do no harm; a singular value that is 0 to rounding, where the derivative is infinite, adds none. There is no
    second derivative.
    """
    return _forward(R, K)[0]


def _root(A: Float[Array, "B B"]) -> Float[Array, "B B"]:
    """The symmetric square root, without the eigenvalues that are rounding."""
    values, vectors = eigh(A)
    values = jnp.where(values > _noise(values), values, 0.0)
    return matmul(vectors * jnp.sqrt(values), vectors.T)


def _noise(values: Float[Array, " B"]) -> Float[Array, ""]:
    """How large a value that is 0 can be by rounding, among eigenvalues or singular values."""
    return len(values) * jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(values))


def _forward(R, K):
    root_R, root_K = _root(R), _root(K)
    P, s, Qt = one_by_one(jnp.linalg.svd)(matmul(root_R, root_K))
    return jnp.sum(s), (root_R, root_K, P, s, Qt)


@fidelity.defjvp
def _fidelity_jvp(primals, tangents):
    dR, dK = tangents
    value, (root_R, root_K, P, s, Qt) = _forward(*primals)
    inverse = jnp.where(s > _noise(s), 1.0 / jnp.maximum(s, jnp.finfo(s.dtype).tiny), 0.0)
    to_R, to_K = matmul(root_R, P), matmul(root_K, Qt.T)
    slope_K = 0.5 * matmul(to_R * inverse, to_R.T)
    slope_R = 0.5 * matmul(to_K * inverse, to_K.T)
    return value, jnp.sum(slope_K * dK) + jnp.sum(slope_R * dR)
