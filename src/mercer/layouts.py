"""The four layouts of a covariance between N inputs and P outputs: slices of one object.

| layout      | shape        | what it is                               |
|-------------|--------------|------------------------------------------|
| `"diag"`    | [N, P]       | marginal variances                       |
| `"outputs"` | [N, P, P]    | between outputs, at each input           |
| `"inputs"`  | [P, N, N]    | between inputs, for each output          |
| `"full"`    | [N, P, N, P] | everything                               |
"""

from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.linalg.products import matmul

Layout = Literal["diag", "outputs", "inputs", "full"]


def check_layout(covariance: str) -> None:
    """Refuses a name that is none of the four layouts."""
    if covariance not in get_args(Layout):
        raise ValueError(f"covariance must be one of {get_args(Layout)}, got {covariance!r}")


def independent_outputs(values: Float[Array, "..."], covariance: Layout) -> Array:
    """A layout of independent outputs, from variances [N, P] ("diag", "outputs") or covariances [P, N, N] (the others)."""
    if covariance == "outputs":
        return values[..., None] * jnp.eye(values.shape[-1], dtype=values.dtype)
    if covariance == "full":
        return jnp.einsum("pnm,pq->npmq", values, jnp.eye(len(values), dtype=values.dtype))
    return values


def mixed_outputs(W: Float[Array, "#N P L"], values: Float[Array, "..."], covariance: Layout) -> Array:
    """A layout of the outputs W g of independent g, from the variances [N, L] of g ("diag", "outputs") or its covariances
    [L, N, N] (the others). W is the same at all inputs, [1, P, L], or one for each, [N, P, L]."""
    if covariance == "diag":
        return jnp.sum(W**2 * values[:, None, :], axis=-1) if len(W) > 1 else matmul(values, W[0].T ** 2)
    if covariance == "outputs":
        return matmul(W * values[:, None, :], W.mT)
    W = jnp.broadcast_to(W, (values.shape[1], *W.shape[1:]))
    if covariance == "inputs":
        return jnp.einsum("npl,lnm,mpl->pnm", W, values, W, precision="highest")
    return jnp.einsum("npl,lnm,mql->npmq", W, values, W, precision="highest")


def product_in_layout(A: Float[Array, "M N P"], B: Float[Array, "M N P"], covariance: Layout) -> Array:
    """A^T B, summed over M, in a layout."""
    sums = {"diag": "mnp,mnp->np", "outputs": "mnp,mnq->npq", "inputs": "mnp,mkp->pnk", "full": "mnp,mkq->npkq"}
    return jnp.einsum(sums[covariance], A, B, precision="highest")
