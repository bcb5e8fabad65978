"""Where to put inducing points: greedily where the prior is least determined by those chosen, by k-means, or at random."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mercer import validation
from mercer.deprecation import key_by_name
from mercer.kernels.base import Kernel
from mercer.kernels.stationary import squared_distance
from mercer.linalg import matmul, quiet_blas
from mercer.parameters import cast
from mercer.validation import AnyArray

_SIZES = 8  # how many lengths of the factor have a product compiled for them
_POINTS = 8192  # points whose distances to the centres are held at a time


def _checked(X, M: int) -> Array:
    X = validation.inputs(X)
    if not 1 <= M <= len(X):
        raise ValueError(f"M must be between 1 and the number of rows of X, {len(X)}, got {M}")
    return X


@key_by_name
def random_subset(X: Float[AnyArray, "N D"], M: int, *, key: PRNGKeyArray) -> Float[Array, "M D"]:
    """M different rows of X, each set as likely as any other."""
    X = _checked(X, M)
    return X[jax.random.choice(key, len(X), (M,), replace=False)]


@key_by_name
def greedy_variance(
    X: Float[AnyArray, "N D"],
    kernel: Kernel,
    M: int,
    *,
    tolerance: float = 0.0,
    candidates: int | None = None,
    key: PRNGKeyArray | None = None,
) -> Float[Array, "M D"]:
    """Rows of X, each the one whose value is least determined by those before it (paper 000, Algorithm 1; Burt et al., 2020).

    It ends before M when the variance that is left, summed over X, is below `tolerance` of what there was. `candidates`
    limits the choice to a random subset of X of that size, which is all that needs a key.
    """
    if candidates is not None:
        if not M <= candidates <= len(X):
            raise ValueError(f"candidates must be between M = {M} and the rows of X, {len(X)}, got {candidates}")
        if key is None:
            raise ValueError("candidates are chosen at random: pass a key, such as key=jax.random.key(0)")
        X = random_subset(X, candidates, key=key)
    return validation.inputs(X)[greedy_indices(X, kernel, M, tolerance=tolerance)]


def greedy_indices(
    X: Float[AnyArray, "N D"], kernel: Kernel, M: int, *, tolerance: float = 0.0
) -> Int[np.ndarray, " M"]:
    """The row numbers of `greedy_variance`, in the order of choice."""
    X = _checked(X, M)
    if not 0.0 <= tolerance < 1.0:
        raise ValueError(f"tolerance must be in [0, 1), got {tolerance}")
    with quiet_blas():
        count, chosen = _pivoted_cholesky(cast(kernel, X.dtype), X, M, tolerance)
        return np.asarray(chosen)[: int(count)]


@eqx.filter_jit
def _pivoted_cholesky(kernel: Kernel, X: Array, M: int, tolerance: float) -> tuple[Array, Array]:
    """The pivots of a partial Cholesky factorisation of k(X, X): O(N M^2) in all, as only its diagonal is ever formed.

    With F [j, N] the factor so far, F^T F approximates k(X, X) and the diagonal of what is left is the conditional variance.
    """
    variance = kernel.diag(X)
    first_trace = jnp.sum(variance)
    sizes = [M * (i + 1) // _SIZES + 1 for i in range(_SIZES)]

    def go_on(state):
        j, _, remaining, _ = state
        return (j < M) & (jnp.sum(jnp.maximum(remaining, 0.0)) > tolerance * first_trace) & (jnp.max(remaining) > 0.0)

    def choose(state):
        j, factor, remaining, chosen = state
        pivot = jnp.argmax(remaining).astype(jnp.int32)
        at_pivot = jax.lax.dynamic_slice_in_dim(factor, pivot, 1, axis=1)[:, 0]

        # only the rows so far count; XLA wants a fixed number of them, so a product of the next of a few sizes is taken
        products = [functools.partial(lambda end, f, p: matmul(p[:end], f[:end]), end) for end in sizes]
        explained = jax.lax.switch(j * len(sizes) // M, products, factor, at_pivot)
        column = kernel(jax.lax.dynamic_slice_in_dim(X, pivot, 1), X)[0]
        row = (column - explained) / jnp.sqrt(remaining[pivot])
        factor = jax.lax.dynamic_update_slice_in_dim(factor, row[None], j, axis=0)
        remaining = (remaining - row**2).at[pivot].set(-jnp.inf)
        return j + 1, factor, remaining, chosen.at[j].set(pivot)

    state = (0, jnp.zeros((M, len(X)), X.dtype), variance, jnp.zeros(M, jnp.int32))
    count, _, _, chosen = jax.lax.while_loop(go_on, choose, state)
    return count, chosen


@key_by_name
def kmeans(X: Float[AnyArray, "N D"], M: int, *, iterations: int = 20, key: PRNGKeyArray) -> Float[Array, "M D"]:
    """The centres of M clusters of the rows of X: k-means++ seeds (Arthur and Vassilvitskii, 2007), then Lloyd's iterations."""
    X = _checked(X, M)
    with quiet_blas():
        return jax.block_until_ready(_kmeans(key, X, M, iterations))


@eqx.filter_jit
def _kmeans(key: PRNGKeyArray, X: Array, M: int, iterations: int) -> Array:
    weights = jnp.ones(X.shape[1], X.dtype)

    def seed(i, state):
        centres, nearest = state
        # the next seed: a row, with probability proportional to its squared distance from the seeds so far
        # (before the first seed all are infinitely far, and equally likely)
        logits = jnp.where(jnp.isinf(nearest), 0.0, jnp.log(nearest))
        row = jax.random.categorical(jax.random.fold_in(key, i), logits)
        centres = centres.at[i].set(X[row])
        return centres, jnp.minimum(nearest, squared_distance(X[row][None], X, weights)[0])

    start = (jnp.zeros((M, X.shape[1]), X.dtype), jnp.full(len(X), jnp.inf, X.dtype))
    centres, _ = jax.lax.fori_loop(0, M, seed, start)

    def improve(_, centres):
        def nearest_centre(x):
            return jnp.argmin(squared_distance(x[None], centres, weights)[0])

        assigned = jax.lax.map(nearest_centre, X, batch_size=_POINTS)
        counts = jnp.zeros(M, X.dtype).at[assigned].add(1.0)
        sums = jnp.zeros_like(centres).at[assigned].add(X)
        # an empty cluster keeps its centre
        return jnp.where(counts[:, None] > 0.0, sums / jnp.maximum(counts, 1.0)[:, None], centres)

    return jax.lax.fori_loop(0, iterations, improve, centres)
