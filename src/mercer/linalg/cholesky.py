"""Factorising positive definite matrices that rounding has left only nearly so.

A small multiple of the identity (the jitter) makes a covariance matrix safely positive definite. It is relative to the mean
of the diagonal, begins at the size that the dtype calls for, and grows by decades up to a cap while the factorisation
fails. All of this happens inside compiled code; the caller learns how much was added.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer.errors import MercerError
from mercer.linalg.products import for_each_matrix, matmul, on_cpu, one_by_one, triangular_matmul
from mercer.parameters import is_concrete
from mercer.validation import AnyArray, is_finite

# (first, last) jitter, relative to the mean of the diagonal
JITTER = {jnp.dtype("float64"): (1e-10, 1e-5), jnp.dtype("float32"): (1e-5, 1e-2)}

_SMALLEST_BLOCK = 64
_TINY = 3


class FactorisationError(MercerError):
    """A matrix that no jitter up to the cap makes positive definite."""


class Cholesky(NamedTuple):
    """A lower triangular factor, and the jitter that was added to the diagonal to get it. NaN where none was enough."""

    factor: Float[Array, "... M M"]
    jitter: Float[Array, "..."]


def safe_cholesky(A: Float[Array, "... M M"], name: str = "matrix", *, always: bool = True) -> Cholesky:
    """The lower Cholesky factor of A + jitter I.

    With `always` the first jitter is added in any case, which bounds the condition number; without it only when the
    bare matrix fails. On concrete values a failure past the cap raises; in compiled code the factor is NaN.
    """
    result = Cholesky(*for_each_matrix(functools.partial(_factorise, always), A))
    if is_concrete(A) and is_concrete(result.factor):
        raise_if_failed(A, result.factor, name)
    return result


def raise_if_failed(A: Array, factor: Array, name: str) -> None:
    """Says which matrix could not be factorised, and what is known of it."""
    if is_finite(factor) and is_finite(A):
        return  # infinities in A can leave a factor without NaN
    raise_if_not_finite(A, name)
    A = np.asarray(A)
    eigenvalues = np.linalg.eigvalsh(A)
    raise FactorisationError(
        f"{_sized(A, name)} is not positive definite: eigenvalues from {eigenvalues.min():.3g} to {eigenvalues.max():.3g}, "
        f"condition {np.abs(eigenvalues).max() / max(np.abs(eigenvalues).min(), 1e-300):.3g}, with jitter up to "
        f"{JITTER[A.dtype][1]:g} of the mean diagonal; use float64, fewer or more distant inducing inputs, or more noise"
    )


def raise_if_not_finite(A: Array, name: str) -> None:
    """Says which matrix holds NaN or inf."""
    if not is_finite(A):
        raise FactorisationError(
            f"{_sized(A, name)} holds NaN or inf: a parameter or an input has left the range of {A.dtype}"
        )


def _sized(A: AnyArray, name: str) -> str:
    return f"{name} [{A.shape[-2]} x {A.shape[-1]}]"


def _first_jitter(A: Float[Array, "M M"]) -> float:
    """The jitter that is tried first, relative to the mean of the diagonal.

    Rounding moves the eigenvalues of a matrix by up to M times that of a number, and in float32 this is more than the table's
    jitter where M is large: an eighth of it was enough for M from 500 to 4,000 (measured), and a failure costs a factorisation.
    """
    return max(JITTER[A.dtype][0], 0.125 * len(A) * float(jnp.finfo(A.dtype).eps))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _factorise(always: bool, A: Float[Array, "M M"]) -> tuple[Array, Array]:
    """The factor and the jitter."""
    # Outside of compiled functions the loop would be compiled at each call.
    attempts = functools.partial(_compiled_attempts if is_concrete(A) else _attempts, always)
    return (attempts if A.shape[-1] <= _SMALLEST_BLOCK else one_by_one(attempts))(A)


def _attempts(always: bool, A: Float[Array, "M M"]) -> tuple[Array, Array]:
    first, last = _first_jitter(A), JITTER[A.dtype][1]
    identity = jnp.eye(A.shape[-1], dtype=A.dtype)
    scale = jnp.mean(jnp.diagonal(A))

    def attempt(jitter):
        return (_tiny_cholesky if _is_tiny(A) else one_by_one(_cholesky))(A + jitter * identity)

    def failed(state):
        factor, relative = state
        return jnp.isnan(factor[-1, -1]) & (relative < 0.5 * last)

    def retry(state):
        relative = jnp.maximum(10.0 * state[1], first)
        return attempt(relative * scale), relative

    start = jnp.asarray(first if always else 0.0, A.dtype)
    factor, relative = jax.lax.while_loop(failed, retry, (attempt(start * scale), start))
    return factor, relative * scale


_compiled_attempts = jax.jit(_attempts, static_argnums=0)


def _cholesky(A: Float[Array, "M M"]) -> Float[Array, "M M"]:
    return jax.lax.linalg.cholesky(A, symmetrize_input=False)


def _is_tiny(A: Array) -> bool:
    """Whether plain arithmetic, for any number of matrices at once, is quicker than calls of LAPACK one by one."""
    return on_cpu() and A.shape[-1] <= _TINY


def _tiny_cholesky(A: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """The lower factor, column by column; as from LAPACK, all NaN if a pivot is not positive."""
    columns = []
    for i in range(len(A)):
        pivot = jnp.where(A[i, i] > 0.0, A[i, i], jnp.nan)
        columns.append(jnp.where(jnp.arange(len(A)) >= i, A[:, i] / jnp.sqrt(pivot), 0.0))
        A = A - columns[i][:, None] * columns[i]
    return jnp.where(jnp.isnan(pivot), jnp.nan, jnp.stack(columns, axis=1))


def _tiny_inverse(L: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """L^-1, row by row."""
    rows = list[Array]()
    for i, unit in enumerate(jnp.eye(len(L), dtype=L.dtype)):
        rows.append((unit - sum(L[i, j] * row for j, row in enumerate(rows))) / L[i, i])
    return jnp.stack(rows)


@_factorise.defjvp
def _factorise_jvp(always, primals, tangents):
    # dL = L Phi(W dA W^T), W = L^-1
    (A,), (dA,) = primals, tangents
    factor, jitter = _factorise(always, A)
    inner = lower_half(_congruence(triangular_inverse(factor), dA))
    dfactor = triangular_matmul(factor, inner, left="lower", right="lower", out="lower")
    return (factor, jitter), (dfactor, jnp.zeros_like(jitter))


def _congruence(W: Array, dA: Array) -> Array:
    """W sym(dA) W^T for lower triangular W."""
    half = triangular_matmul(W, 0.5 * (dA + dA.T), left="lower")
    return triangular_matmul(half, W.T, right="upper")


@jax.custom_jvp
def triangular_inverse(L: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """L^-1 for a lower triangular L.

    By [[A, 0], [B, C]]^-1 = [[A^-1, 0], [-C^-1 B A^-1, C^-1]] nearly all of the work is matrix products, about three times
    faster than a triangular solve (at M = 500 on a CPU, 2000 on a GPU): on the CPU half by half, on a GPU all blocks of one
    size at a time.
    """
    if _is_tiny(L):
        return _tiny_inverse(L)
    return one_by_one(_inverse_by_halves)(L) if on_cpu() else _inverse_by_levels(L)


@triangular_inverse.defjvp
def _triangular_inverse_jvp(primals, tangents):
    # dW = -W dL W
    W = triangular_inverse(*primals)
    half = triangular_matmul(W, jnp.tril(tangents[0]), left="lower", right="lower", out="lower")
    return W, -triangular_matmul(half, W, left="lower", right="lower", out="lower")


def _inverse_by_halves(L, smallest=None):
    size = L.shape[-1]
    # Few halvings: each is a program to compile, and of large matrices the second half of them gains little (measured).
    smallest = smallest or max(_SMALLEST_BLOCK, size // (8 if size <= 512 else 4))
    if size <= smallest:
        return jax.scipy.linalg.solve_triangular(L, jnp.eye(size, dtype=L.dtype), lower=True)
    half = size // 2
    top, bottom = _inverse_by_halves(L[:half, :half], smallest), _inverse_by_halves(L[half:, half:], smallest)
    corner = -matmul(bottom, matmul(L[half:, :half], top))
    zeros = jnp.zeros((half, size - half), L.dtype)
    return jnp.concatenate([jnp.concatenate([top, zeros], 1), jnp.concatenate([corner, bottom], 1)], 0)


def _inverse_by_levels(L):
    # A power of 2 of blocks of equal width: padded to a power of 2 itself, 41,000 rows would take twice the memory or more.
    # The width is a multiple of 4: then 500, 1000 and 2000 rows have blocks of 64.
    size = L.shape[-1]
    each = jnp.arange(2 ** max(0, math.ceil(math.log2(size / _SMALLEST_BLOCK))))
    width = 4 * math.ceil(size / (4 * len(each)))
    padded = width * len(each)
    L = jnp.eye(padded, dtype=L.dtype).at[:size, :size].set(L)
    blocks = L.reshape(len(each), width, len(each), width)[each, :, each, :]
    identity = jnp.broadcast_to(jnp.eye(width, dtype=L.dtype), blocks.shape)
    inverse = jax.lax.linalg.triangular_solve(blocks, identity, left_side=True, lower=True)
    while width < padded:
        pairs = jnp.arange(padded // (2 * width))
        below = L.reshape(len(pairs), 2, width, len(pairs), 2, width)[pairs, 1, :, pairs, 0, :]
        top, bottom = inverse[0::2], inverse[1::2]
        corner = -matmul(bottom, matmul(below, top))
        rows = [jnp.concatenate([top, jnp.zeros_like(top)], 2), jnp.concatenate([corner, bottom], 2)]
        inverse, width = jnp.concatenate(rows, 1), 2 * width
    return inverse[0, :size, :size]


def lower_half(A: Array) -> Array:
    """The lower triangle with half of the diagonal: the Phi of the derivative of a Cholesky factor."""
    return jnp.tril(A) - 0.5 * jnp.diagonal(A)[:, None] * jnp.eye(A.shape[-1], dtype=A.dtype)


def inverse_factor(A: Float[Array, "... M M"], *, always: bool = True) -> Float[Array, "... M M"]:
    """W = chol(A + jitter I)^-1, lower triangular: W^T W is the inverse, and W x whitens x. `always` as in `safe_cholesky`."""
    return for_each_matrix(functools.partial(_inverse_factor, always), A)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _inverse_factor(always: bool, A: Float[Array, "M M"]) -> Float[Array, "M M"]:
    return triangular_inverse(_factorise(always, A)[0])


@_inverse_factor.defjvp
def _inverse_factor_jvp(always, primals, tangents):
    # dW = -Phi(W dA W^T) W
    (A,), (dA,) = primals, tangents
    W = _inverse_factor(always, A)
    inner = lower_half(_congruence(W, dA))
    return W, -triangular_matmul(inner, W, left="lower", right="lower", out="lower")


def inverse_root(A: Float[Array, "... M M"]) -> Float[Array, "... M M"]:
    """The lower triangular L with L L^T = A^-1.

    A = U U^T with an upper triangular U, the Cholesky factor of A with its order reversed; then L = U^-T.
    """
    return jnp.flip(inverse_factor(jnp.flip(A, (-2, -1)), always=False), (-2, -1)).mT
