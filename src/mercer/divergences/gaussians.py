"""Two Gaussians seen in the coordinates in which the second is standard: all that divergences invariant to maps need.

With p = N(m_p, L_p L_p^T), q = N(m_q, L_q L_q^T) and W = L_p^-1 the coordinates W (x - m_p) make p standard, and q one of mean
y = W (m_q - m_p) and covariance A A^T, A = W L_q, lower triangular. If q = p then A = I and y = 0.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.divergences.elementary import exp_excess, renyi_excess
from mercer.linalg import inverse_factor, matmul, safe_cholesky
from mercer.linalg.products import one_by_one


def relative(
    mean_q: Float[Array, "G J"],
    cov_q: Float[Array, "#G J J"],
    mean_p: Float[Array, "G J"],
    cov_p: Float[Array, "#G J J"],
) -> tuple[Float[Array, "#G J J"], Float[Array, "G J"]]:
    """A and y of each group, of covariances with the jitter of the library."""
    W = inverse_factor(cov_p)
    return matmul(W, safe_cholesky(cov_q).factor), matmul(W, (mean_q - mean_p)[..., None])[..., 0]


def relative_entropy(A: Float[Array, "#G J J"], y: Float[Array, "G J"]) -> Float[Array, ""]:
    """KL[q || p] of all groups: (tr A A^T - J - log det A A^T + |y|^2) / 2, as a sum of terms that are not negative."""
    below = jnp.sum(jnp.tril(A, -1) ** 2)
    diagonal = jnp.sum(exp_excess(2.0 * jnp.log(jnp.diagonal(A, axis1=1, axis2=2))))
    return 0.5 * ((below + diagonal) * (len(y) / len(A)) + jnp.sum(y**2))


def bhattacharyya(A: Float[Array, "#G J J"], y: Float[Array, "G J"]) -> Float[Array, ""]:
    """(log det H - log det A) / 2 + y^T H^-1 y / 8 of all groups, H = (I + A A^T) / 2."""
    W = inverse_factor(0.5 * (jnp.eye(A.shape[-1], dtype=A.dtype) + matmul(A, A.mT)), always=False)
    # log det H = -2 log det W
    logs = -jnp.log(jnp.diagonal(W, axis1=1, axis2=2)) - 0.5 * jnp.log(jnp.diagonal(A, axis1=1, axis2=2))
    distance = jnp.sum(matmul(W, y[..., None]) ** 2)
    return jnp.maximum(jnp.sum(logs) * (len(y) / len(A)) + 0.125 * distance, 0.0)


@jax.custom_jvp
def renyi(alpha: Float[Array, ""], A: Float[Array, "J J"], y: Float[Array, " J"]) -> Float[Array, ""]:
    """R_alpha[q || p] of one group, by the singular values s of A = U diag(s) V^T; infinite where it is undefined.

    With D = alpha I + (1 - alpha) A A^T and r = D^-1 y it is the sum of `renyi_excess(alpha, 2 log s)` / 2, plus alpha y^T r / 2.
    Its derivatives are U diag(alpha (s^2 - 1) / (s d)) V^T - alpha (1 - alpha) r (A^T r)^T in A, d = alpha + (1 - alpha) s^2, and
    alpha r in y. alpha is held still.
    """
    return _renyi(alpha, A, y)[0]


def _renyi(alpha, A, y):
    U, s, Vt = one_by_one(jnp.linalg.svd)(A)
    s = jnp.maximum(s, jnp.finfo(s.dtype).tiny ** 0.5)
    d = alpha + (1.0 - alpha) * s**2
    defined = jnp.all(d > 0.0)
    d = jnp.where(defined, d, 1.0)
    r = matmul(U.T, y[:, None])[:, 0] / d
    value = 0.5 * jnp.sum(renyi_excess(alpha, 2.0 * jnp.log(s)) + alpha * d * r**2)
    return jnp.where(defined, value, jnp.inf), (U, s, Vt, d, r, defined)


@renyi.defjvp
def _renyi_jvp(primals, tangents):
    (alpha, A, _), (_, dA, dy) = primals, tangents
    value, (U, s, Vt, d, r, defined) = _renyi(*primals)
    r = matmul(U, r[:, None])
    slope_A = matmul(U * (alpha * (s - 1.0 / s) / d), Vt) - alpha * (1.0 - alpha) * matmul(r, matmul(r.T, A))
    slope = jnp.sum(slope_A * dA) + alpha * jnp.sum(r[:, 0] * dy)
    return value, jnp.where(defined, slope, 0.0)
