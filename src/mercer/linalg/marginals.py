"""The hot path of a sparse posterior: mean and variance at a batch, with a hand-written derivative.

For q(u) = N(R m, R L L^T R^T), R = chol(Kuu), whitened, the marginals at a batch with cross-covariance Kuf are

    mean_n = Kuf_n^T W^T m,      reduction_n = Kuf_n^T P Kuf_n,      var_n = k_n - reduction_n,

with W = R^-1 and P = W^T A W, A = I - L L^T. Automatic differentiation of a plain version does three times the work. Given
cotangents gm, gv the derivative needs one product of Kuf with itself, the rest is M x M:

    G = W (Kuf gv) Kuf^T W^T,    dm = W Kuf gm,    dL = -2 lower(G L),
    S = Phi(m dm^T + 2 A G),     dKuu = -sym(W^T S W),     dKuf = (W^T m) gm^T + 2 P Kuf gv.

P Kuf has two forms. As (P) Kuf it is one M^2 B product, but loses 1 / jitter in precision when Kuu is near singular; as
W^T (A (W Kuf)) it is accurate to rounding and takes three. The second serves float32 always, and float64 when the
norm of W says that the first would show.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.linalg.cholesky import inverse_factor, lower_half
from mercer.linalg.products import map_columns, matmul, triangular_matmul, weighted_gram

# The relative error that the quick form may have in the reduction of variance.
_TOLERANCE = 1e-9


@jax.custom_vjp
def whitened_marginals(
    Kuu: Float[Array, "M M"], Kuf: Float[Array, "M B"], m: Float[Array, " M"], L: Float[Array, "M M"]
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """The mean [B], and by how much the variance is below the prior's [B], of a whitened q(u) = N(m, L L^T)."""
    return _forward(Kuu, Kuf, m, L)[0]


def _forward(Kuu, Kuf, m, L):
    W = inverse_factor(Kuu)
    # A = I - L L^T
    A = jnp.eye(len(m), dtype=L.dtype) - triangular_matmul(L, L.T, left="lower", right="upper", out="symmetric")
    PKuf, reduction = _reduction(Kuu, Kuf, W, A)
    a = matmul(m, W)
    return (matmul(a, Kuf), reduction), (Kuf, PKuf, W, A, L, m, a)


def _reduction(Kuu, Kuf, W, A):
    """P Kuf and the diagonal of Kuf^T P Kuf."""

    def quick(_):
        # P = W^T (A W)
        P = triangular_matmul(W.T, triangular_matmul(A, W, right="lower"), left="upper", out="symmetric")
        PKuf = matmul(P, Kuf)
        return PKuf, jnp.sum(Kuf * PKuf, axis=0)

    def careful(_):
        return map_columns(careful_slice, Kuf)

    def careful_slice(columns):
        # C = W Kuf
        C = triangular_matmul(W, columns, left="lower")
        AC = matmul(A, C)
        return triangular_matmul(W.T, AC, left="upper"), jnp.sum(C * AC, axis=0)

    if Kuf.dtype == jnp.float32:
        return careful(None)
    error = jnp.finfo(Kuf.dtype).eps * jnp.mean(jnp.diagonal(Kuu)) * jnp.max(jnp.sum(W**2, axis=1))
    return jax.lax.cond(error < _TOLERANCE, quick, careful, None)


def _backward(residuals, cotangents):
    (Kuf, PKuf, W, A, L, m, a), (gm, gv) = residuals, cotangents
    # G = W dP W^T, dP = Kuf gv Kuf^T
    WdP = triangular_matmul(W, weighted_gram(Kuf, gv), left="lower")
    G = triangular_matmul(WdP, W.T, right="upper", out="symmetric")
    dm = matmul(W, matmul(Kuf, gm))
    dL = -2.0 * jnp.tril(triangular_matmul(G, L, right="lower", out="lower"))
    S = lower_half(m[:, None] * dm + 2.0 * triangular_matmul(A, G, out="lower"))
    # dKuu = -sym(W^T S W)
    SW = triangular_matmul(S, W, left="lower", right="lower", out="lower")
    dKuu = triangular_matmul(W.T, SW, left="upper", right="lower")
    dKuf = a[:, None] * gm + (2.0 * gv) * PKuf
    return -0.5 * (dKuu + dKuu.T), dKuf, dm, dL


whitened_marginals.defvjp(_forward, _backward)
