"""Matrix products that are as precise as their dtype, and that leave out the halves which structure makes known.

Accelerators round float32 products to fewer bits unless told otherwise, and a covariance matrix does not survive that.
XLA has no products of triangular matrices; cut into a few blocks, an ordinary product skips the blocks that are zero, and
of a symmetric result those above the diagonal. On the M x M part of a sparse step this saves about two fifths.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.validation import AnyArray

Triangle = Literal["full", "lower", "upper"]
# "reduced": float32 products of GPUs with TensorFloat-32 units keep 10 bits after the leading one; all others are "full".
Precision = Literal["full", "reduced"]

# On the CPU, going through a long axis in slices keeps them in cache, and the memory of a step near that of Kuf.
_SLICE = 1024

# Up to this size the products of many matrices are quicker all at once.
_SMALL = 64

# Up to this size a product in float32 is done in float32. In TensorFloat-32 a step with 256 points takes nine tenths of
# the time, and training on data of little noise ends at a lower likelihood (measured).
_FULL = 256


def on_cpu() -> bool:
    """Whether compiled code will run on the CPU, where small products are cheap to start."""
    return jax.default_backend() == "cpu"


def matmul(A: AnyArray, B: AnyArray, precision: Precision = "full") -> Array:
    """A B in the full precision of the dtype, or in a reduced one where `Precision` says so."""
    if not _in_tensor_float(A, B):
        return jnp.matmul(A, B, precision=jax.lax.Precision.HIGHEST)
    return _rounded_matmul(A, B) if precision == "reduced" else _split_matmul(A, B)


def _in_tensor_float(A: AnyArray, B: AnyArray) -> bool:
    """Whether A B is done in TensorFloat-32 units: where a GPU has them, and the product is in float32 and large."""
    large = A.ndim > 1 and B.ndim > 1 and min(*A.shape[-2:], *B.shape[-2:]) > _FULL
    return large and jnp.result_type(A, B) == jnp.float32 and jax.default_backend() == "gpu" and _has_tensor_float()


def _rounded_matmul(A: AnyArray, B: AnyArray) -> Array:
    """A B with 10 bits after the leading one of each number."""
    return jnp.matmul(A, B, precision=jax.lax.DotAlgorithmPreset.TF32_TF32_F32)


@jax.custom_jvp
def _split_matmul(A: AnyArray, B: AnyArray) -> Array:
    """A B to a few parts in a million, which in the marginals of a sparse posterior does not show (measured).

    With A = A1 + A2, A1 rounded and A2 the rest, it is A2 B1 + A1 B2 + A1 B1: one product with three times as many terms, in
    three quarters of the time that XLA's own preset for this takes.
    """
    (A1, A2), (B1, B2) = _split(A), _split(B)
    return _rounded_matmul(jnp.concatenate([A2, A1, A1], axis=-1), jnp.concatenate([B1, B2, B1], axis=-2))


@_split_matmul.defjvp
def _split_matmul_jvp(primals, tangents):
    # By the preset, which is linear in the tangents: a split is not.
    (A, B), (dA, dB) = primals, tangents
    preset = jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3
    return _split_matmul(A, B), jnp.matmul(dA, B, precision=preset) + jnp.matmul(A, dB, precision=preset)


def _split(A: AnyArray) -> tuple[Array, Array]:
    rounded = jax.lax.reduce_precision(A, exponent_bits=8, mantissa_bits=10)
    return rounded, jnp.asarray(A) - rounded


def _has_tensor_float() -> bool:
    capability = getattr(jax.devices()[0], "compute_capability", "")  # "9.0" of NVIDIA, "gfx90a" of AMD
    return capability.partition(".")[0].isdecimal() and float(capability) >= 8.0


def num_blocks(size: int) -> int:
    """Into how many blocks a side of a matrix is cut: enough to skip work, few enough to keep products large (measured)."""
    if on_cpu():
        return min(max(size // 128, 2), 4) if size >= 64 else 1
    return 2 if size >= 1024 else 1


def block_edges(size: int, num: int) -> list[int]:
    """The boundaries of `num` nearly equal blocks."""
    return [size * i // num for i in range(num + 1)]


def triangular_matmul(
    A: Float[Array, "... N K"],
    B: Float[Array, "... K P"],
    left: Triangle = "full",
    right: Triangle = "full",
    out: Literal["full", "lower", "symmetric"] = "full",
    precision: Precision = "full",
) -> Float[Array, "... N P"]:
    """A B for square A or B of the given shapes; `out` says what is known of the result.

    With "lower" the blocks above the diagonal are left 0 (those on it are whole), with "symmetric" they are mirrored.
    """
    rounded = precision == "reduced" and _in_tensor_float(A, B)
    num = 1 if rounded else num_blocks(max(A.shape[-2], B.shape[-1]))  # rounded products are quicker than the cutting
    rows, columns, inner = A.shape[-2], B.shape[-1], A.shape[-1]
    row_edges, column_edges = block_edges(rows, num), block_edges(columns, num)
    cut_columns = out != "full" or right != "full"

    def block(i, j):
        r0, r1, c0, c1 = row_edges[i], row_edges[i + 1], column_edges[j], column_edges[j + 1]
        k0 = max(r0 if left == "upper" else 0, c0 if right == "lower" else 0)
        k1 = min(r1 if left == "lower" else inner, c1 if right == "upper" else inner)
        if k1 <= k0 or (out == "lower" and j > i):
            return jnp.zeros((*A.shape[:-2], r1 - r0, c1 - c0), A.dtype)
        return matmul(A[..., r0:r1, k0:k1], B[..., k0:k1, c0:c1], precision)

    if not cut_columns:
        column_edges = [0, columns]
    width = len(column_edges) - 1
    lower = {(i, j): block(i, j) for i in range(num) for j in range(width) if out != "symmetric" or j <= i}
    grid = [[lower[i, j] if (i, j) in lower else lower[j, i].mT for j in range(width)] for i in range(num)]
    return jnp.concatenate([jnp.concatenate(row, axis=-1) for row in grid], axis=-2)


def weighted_gram(
    K: Float[Array, "M B"],
    weights: Float[Array, " B"],
    transform: Callable[[Array], Array] = lambda columns: columns,
    precision: Precision = "full",
) -> Float[Array, "R R"]:
    """K diag(weights) K^T, which is symmetric; with `transform`, of the transformed columns of K."""

    def gram(columns, w):
        columns = transform(columns)
        return triangular_matmul(columns * w, columns.T, out="symmetric", precision=precision)

    return sum_columns(gram, K, weights)


def sum_columns(f: Callable[..., Any], *arrays: Array) -> Any:
    """f of arrays that is a sum over their columns, their last axes, worked out slice by slice."""
    whole, edge = _slices(arrays[0])
    if whole <= 1:
        return f(*arrays)

    def add(total, i):
        return jax.tree.map(jnp.add, total, f(*(_slice(array, i) for array in arrays))), None

    shapes = jax.eval_shape(f, *(_slice(array, 0) for array in arrays))
    total, _ = jax.lax.scan(add, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes), jnp.arange(whole))
    if edge == arrays[0].shape[-1]:
        return total
    return jax.tree.map(jnp.add, total, f(*(array[..., edge:] for array in arrays)))


def map_columns(f: Callable[..., tuple[Array, ...]], *arrays: Float[Array, "... B"]) -> tuple[Array, ...]:
    """f of the columns of arrays, worked out slice by slice, so that what f needs in between stays small.

    f returns arrays whose last axis is that of the columns.
    """
    whole, edge = _slices(arrays[0])
    if whole <= 1:
        return f(*arrays)

    def place(results, i):
        parts = zip(results, f(*(_slice(array, i) for array in arrays)), strict=True)
        return tuple(jax.lax.dynamic_update_slice_in_dim(r, p, i * _SLICE, axis=-1) for r, p in parts), None

    shapes = jax.eval_shape(f, *arrays)
    results, _ = jax.lax.scan(place, tuple(jnp.zeros(s.shape, s.dtype) for s in shapes), jnp.arange(whole))
    if edge < arrays[0].shape[-1]:
        rest = f(*(array[..., edge:] for array in arrays))
        results = tuple(r.at[..., edge:].set(p) for r, p in zip(results, rest, strict=True))
    return results


def map_rows(f: Callable[[Float[Array, "B D"]], tuple[Array, ...]], X: Float[Array, "N D"]) -> tuple[Array, ...]:
    """f of the rows of X, slice by slice. f returns arrays whose first axis is that of the rows."""
    whole, edge = _slices(X.T)
    if whole <= 1:
        return f(X)
    slices = jax.lax.map(f, X[:edge].reshape(whole, _SLICE, *X.shape[1:]))
    results = tuple(part.reshape(edge, *part.shape[2:]) for part in slices)
    if edge < len(X):
        results = tuple(jnp.concatenate(parts) for parts in zip(results, f(X[edge:]), strict=True))
    return results


def for_each_entry(function: Callable[..., Any], *arrays: Array) -> Any:
    """function of the entries of the arrays along their first axis, stacked.

    On the CPU one after another, so that each product has all cores; on a GPU all at once.
    """
    return jax.lax.map(lambda entries: function(*entries), arrays) if on_cpu() else jax.vmap(function)(*arrays)


def for_each_matrix(function: Callable[[Array], Any], A: Float[Array, "... M M"]) -> Any:
    """The function of each matrix, stacked; on the CPU the products of large ones, too, one after another."""
    if A.ndim == 2:
        return function(A)
    of_each = functools.partial(for_each_matrix, function)
    return for_each_entry(of_each, A) if A.shape[-1] > _SMALL else jax.vmap(of_each)(A)


def one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls LAPACK, so that `vmap` calls it for one matrix after another on the CPU.

    All calls of LAPACK in this library go through here. With more than one matrix, jaxlib (0.10, `ParallelBatchMap`) hands them
    to XLA's threads and waits, inside one of these threads, until they are done: as many such calls at a time as there are
    threads wait for ever. A call with one matrix waits for nobody, so that calls need no order among them. Derivatives do not
    pass: the function belongs inside a rule of its own.
    """
    # The lambda hides default arguments, which would be traced.
    return jax.custom_batching.sequential_vmap(lambda *arrays: function(*arrays)) if on_cpu() else function


def _slices(K: Array) -> tuple[int, int]:
    """How many whole slices of columns there are, and where the rest begins."""
    whole = K.shape[-1] // _SLICE if on_cpu() else 1
    return whole, whole * _SLICE


def _slice(array: Array, i: Array | int) -> Array:
    return jax.lax.dynamic_slice_in_dim(array, i * _SLICE, _SLICE, axis=-1)
