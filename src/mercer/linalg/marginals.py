"""The hot path of a sparse posterior: mean and variance at a batch, with a hand-written derivative.

For q(u) = N(R m, R L L^T R^T), R = chol(Kuu), whitened, the marginals at a batch with cross-covariance Kuf are

    mean_n = Kuf_n^T W^T m,      reduction_n = Kuf_n^T P Kuf_n,      var_n = k_n - reduction_n,

with W = R^-1 and P = W^T A W, A = I - L L^T. Automatic differentiation of a plain version does three times the work. Given
cotangents gm, gv the derivative needs one product of Kuf with itself, the rest is M x M:

    G = W (Kuf gv) Kuf^T W^T,    dm = W Kuf gm,    dL = -2 lower(G L),
    S = Phi(m dm^T + 2 A G),     dKuu = -sym(W^T S W),     dKuf = (W^T m) gm^T + 2 P Kuf gv.

P Kuf and G have two forms each. By way of P = W^T A W and of Kuf gv Kuf^T they take one M^2 B product, but lose a factor of
1 / jitter in precision when Kuu is near singular; by way of C = W Kuf they are accurate to rounding and take more. The
second way serves float32 always, and float64 when the norm of W says that the loss would show.

In float32 the reduction is C^T C - T^T T with T = L^T C. What T stands for, the variance that q(u) leaves, is a sum of squares
and mostly small, and so is what rounding T does to it: T is in reduced precision, and the error of the variance remains that
of C (measured; the same rounding of A C makes variances negative).
"""

import functools
import itertools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.linalg.cholesky import inverse_factor, lower_half
from mercer.linalg.operators import PSD, Dense
from mercer.linalg.products import (
    Precision,
    block_edges,
    for_each_entry,
    map_columns,
    matmul,
    on_cpu,
    sum_columns,
    triangular_matmul,
    weighted_gram,
)

# The relative error that the quick form may have in the reduction of variance.
_TOLERANCE = 1e-9

# Into how many blocks the columns of several roots are cut on the CPU: of all roots together, products stay large (measured).
_BLOCKS = 4


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def whitened_marginals(
    Kuu: Float[Array, "M M"],
    Kuf: Float[Array, "M B"],
    m: Float[Array, " M"],
    L: Float[Array, "M M"],
    gradients: Precision = "full",
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """The mean [B], and by how much the variance is below the prior's [B], of a whitened q(u) = N(m, L L^T).

    `gradients` is the precision of the large products of the derivative.
    """
    return _forward(Kuu, Kuf, m, L, gradients)[0]


def _forward(Kuu, Kuf, m, L, gradients):
    W = inverse_factor(Kuu)
    if Kuf.dtype == jnp.float32:
        C, T, reduction = map_columns(functools.partial(_whitened, W, L), Kuf)
        return (matmul(m, C), reduction), (C, T, W, L, m, None)
    A, a = _complement(L), matmul(m, W)
    quick = jnp.finfo(Kuf.dtype).eps * jnp.mean(jnp.diagonal(Kuu)) * jnp.max(jnp.sum(W**2, axis=1)) < _TOLERANCE
    PKuf, reduction = jax.lax.cond(quick, _quick_reduction, _careful_reduction, Kuf, W, A)
    return (matmul(a, Kuf), reduction), (Kuf, PKuf, W, L, m, (A, a, quick))


def _complement(L):
    """A = I - L L^T."""
    return jnp.eye(len(L), dtype=L.dtype) - triangular_matmul(L, L.T, left="lower", right="upper", out="symmetric")


def _whitened(W, L, Kuf):
    """C = W Kuf, T = L^T C, and the diagonal of C^T C - T^T T."""
    C = triangular_matmul(W, Kuf, left="lower")
    T = triangular_matmul(L.T, C, left="upper", precision="reduced")
    return C, T, jnp.sum(C**2 - T**2, axis=0)


def _quick_reduction(Kuf, W, A):
    """P Kuf and the diagonal of Kuf^T P Kuf, by way of P = W^T (A W)."""
    P = triangular_matmul(W.T, triangular_matmul(A, W, right="lower"), left="upper", out="symmetric")
    PKuf = matmul(P, Kuf)
    return PKuf, jnp.sum(Kuf * PKuf, axis=0)


def _careful_reduction(Kuf, W, A):
    """The same, by way of C = W Kuf. Plain products: this way is compiled always and taken rarely."""

    def of_columns(columns):
        C = matmul(W, columns)
        AC = matmul(A, C)
        return matmul(W.T, AC), jnp.sum(C * AC, axis=0)

    return map_columns(of_columns, Kuf)


def _quick_gram(Kuf, W, gv):
    """G = W (Kuf gv Kuf^T) W^T."""
    half = triangular_matmul(W, weighted_gram(Kuf, gv), left="lower")
    return triangular_matmul(half, W.T, right="upper", out="symmetric")


def _careful_gram(Kuf, W, gv):
    """G = C gv C^T, C = W Kuf."""
    return weighted_gram(Kuf, gv, lambda columns: matmul(W, columns))


def _backward(gradients, residuals, cotangents):
    product = functools.partial(triangular_matmul, precision=gradients)
    (left, right, W, L, m, of_quick), (gm, gv) = residuals, cotangents
    if of_quick is None:
        C, T = left, right
        G, dm = weighted_gram(C, gv, precision=gradients), matmul(C, gm)
        AC = C - product(L, T, left="lower")
        dKuf = product(W.T, m[:, None] * gm + (2.0 * gv) * AC, left="upper")
        GL = product(G, L, right="lower")
        AG = G - product(L, GL.T, left="lower", out="lower")
    else:
        (Kuf, PKuf), (A, a, quick) = (left, right), of_quick
        G, dm = jax.lax.cond(quick, _quick_gram, _careful_gram, Kuf, W, gv), matmul(W, matmul(Kuf, gm))
        dKuf = a[:, None] * gm + (2.0 * gv) * PKuf
        GL, AG = product(G, L, right="lower", out="lower"), product(A, G, out="lower")
    return _of_Kuu(W, m[:, None] * dm + 2.0 * AG), dKuf, dm, -2.0 * jnp.tril(GL)


whitened_marginals.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def shared_marginals(
    Kuu: Float[Array, "M M"],
    Kuf: Float[Array, "M B"],
    m: Float[Array, "M L"],
    L: Float[Array, "L M M"],
    gradients: Precision = "full",
) -> tuple[Float[Array, "B L"], Float[Array, "B L"]]:
    """The same for several whitened q(u) that share Kuu and Kuf.

    By way of C = W Kuf, which they share, too, and of T_l = L_l^T C: reduction_l = |C|^2 - |T_l|^2, column by column. With
    V_l = T_l gv_l and D = C sum_l gv_l - sum_l L_l V_l the derivatives are dC = m gm^T + 2 D, dL_l = -2 lower(C V_l^T), and
    S = Phi(m dm^T + 2 D C^T). These are three products with the batch for each, of which half is zero; done for all of them
    together they can be cut finely. With eight of them a step of two layers takes 50 ms, with the products of
    `rotated_marginals` 78; with a single one these are the faster (measured on the CPU, M = 256 and 1,024 rows; M = 715).
    """
    return _shared_forward(Kuu, Kuf, m, L, gradients)[0]


def _shared_forward(Kuu, Kuf, m, L, gradients):
    W, parts = inverse_factor(Kuu), _block_columns(L)

    def of_columns(columns):
        C = triangular_matmul(W, columns, left="lower")
        T = [matmul(part, C[-part.shape[1] :], "reduced") for part in parts]
        squares = sum(jnp.sum(_of_roots(block, len(L)) ** 2, axis=1) for block in T)
        return C, jnp.sum(C**2, axis=0) - squares, *T

    C, reduction, *T = map_columns(of_columns, Kuf)
    return (matmul(C.T, m), reduction.T), (C, T, W, L, m)


def _shared_backward(gradients, residuals, cotangents):
    (C, T, W, L, m), (gm, gv) = residuals, cotangents
    parts = _block_columns(L)

    def weighted(block, gv):
        return (_of_roots(block, len(L)) * gv[:, None]).reshape(block.shape)

    def of_columns(C, gv, *T):
        D = C * jnp.sum(gv, axis=0)
        for part, block in zip(parts, T, strict=True):
            D = D.at[-part.shape[1] :].add(-matmul(part.T, weighted(block, gv), gradients))
        return (D,)

    def of_roots(C, gv, *T):
        return [
            matmul(weighted(block, gv), C[-part.shape[1] :].T, gradients) for part, block in zip(parts, T, strict=True)
        ]

    (D,), dparts = map_columns(of_columns, C, gv.T, *T), sum_columns(of_roots, C, gv.T, *T)
    columns = [_of_roots(part, len(L)).mT for part in dparts]
    columns = [jnp.pad(part, ((0, 0), (len(C) - part.shape[1], 0), (0, 0))) for part in columns]
    dL, dm = -2.0 * jnp.tril(jnp.concatenate(columns, axis=-1)), matmul(C, gm)
    dKuf = triangular_matmul(W.T, matmul(m, gm.T) + 2.0 * D, left="upper", precision=gradients)
    DC = triangular_matmul(D, C.T, out="lower", precision=gradients)
    return _of_Kuu(W, matmul(m, dm.T) + 2.0 * DC), dKuf, dm, dL


shared_marginals.defvjp(_shared_forward, _shared_backward)


def _block_columns(L: Float[Array, "L M M"]) -> list[Float[Array, "LE M2"]]:
    """The columns of all roots in blocks of E, from the diagonal down and transposed."""
    M = L.shape[-1]
    edges = block_edges(M, _BLOCKS if on_cpu() and M >= 64 else 1)
    return [L[:, begin:, begin:end].mT.reshape(-1, M - begin) for begin, end in itertools.pairwise(edges)]


def _of_roots(block: Float[Array, "LE B"], num: int) -> Float[Array, "L E B"]:
    """The rows of a block that belong to each root."""
    return block.reshape(num, -1, block.shape[1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def rotated_marginals(
    C: Float[Array, "M B"], m: Float[Array, "M L"], L: Float[Array, "L M M"], gradients: Precision = "full"
) -> tuple[Float[Array, "B L"], Float[Array, "B L"]]:
    """The same from C = R^-1 Kuf itself, for a Kuu whose structure makes it cheap.

    The products with the batch that are done for each are A_l C forward and C gv_l C^T backward.
    """
    return _rotated_forward(C, m, L, gradients)[0]


def _rotated_forward(C, m, L, gradients):
    A = for_each_entry(_complement, L)
    AC, reduction = map_columns(functools.partial(_reduced, A), C)
    return (matmul(C.T, m), reduction.T), (C, AC, L, m)


def _rotated_backward(gradients, residuals, cotangents):
    (C, AC, L, m), (gm, gv) = residuals, cotangents
    G = for_each_entry(lambda weights: weighted_gram(C, weights, precision=gradients), gv.T)

    def of_root(G, L):
        return -2.0 * jnp.tril(triangular_matmul(G, L, right="lower", out="lower", precision=gradients))

    dC = matmul(m, gm.T) + 2.0 * jnp.sum(gv.T[:, None] * AC.reshape(len(L), *C.shape), axis=0)
    return dC, matmul(C, gm), for_each_entry(of_root, G, L)


rotated_marginals.defvjp(_rotated_forward, _rotated_backward)


def _reduced(A: Float[Array, "L M M"], C: Float[Array, "M B"]) -> tuple[Array, Array]:
    """A_l C, one below the other, and the diagonals of C^T A_l C."""
    AC = matmul(A.reshape(-1, len(C)), C)
    return AC, jnp.sum(AC.reshape(*A.shape[:2], -1) * C, axis=1)


def _of_Kuu(W: Float[Array, "M M"], S: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """dKuu = -sym(W^T Phi(S) W).

    In full precision always: W is large where Kuu is near singular, and in the derivative by the inducing inputs most of this
    cancels against that of Kuf. Rounded, it is off by as much as that derivative (emulated).
    """
    SW = triangular_matmul(lower_half(S), W, left="lower", right="lower", out="lower")
    dKuu = triangular_matmul(W.T, SW, left="upper", right="lower")
    return -0.5 * (dKuu + dKuu.T)


def marginals(
    Kuu: PSD,
    Kuf: Float[Array, "M B"],
    q_mu: Float[Array, "M L"],
    q_root: Float[Array, "L M M"],
    gradients: Precision = "full",
) -> tuple[Float[Array, "B L"], Float[Array, "B L"]]:
    """Mean and reduction of variance, [B, L] each, for L whitened q(u) that share Kuu and Kuf."""
    if isinstance(Kuu, Dense) and len(q_root) == 1:
        mean, reduction = whitened_marginals(Kuu.matrix, Kuf, q_mu[:, 0], q_root[0], gradients)
        return mean[:, None], reduction[:, None]
    if isinstance(Kuu, Dense):
        return shared_marginals(Kuu.matrix, Kuf, q_mu, q_root, gradients)
    return rotated_marginals(Kuu.whiten(Kuf), q_mu, q_root, gradients)
