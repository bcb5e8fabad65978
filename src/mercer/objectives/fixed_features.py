"""Sums over data for inducing variables whose covariance with the function, Kuf, has no parameters that move.

Variational Fourier features are of this kind (Hensman, Durrande and Solin, 2017). The collapsed bound sees the data through
Kuf Kfu, Kuf y, the sum of y^2 and the number of data only, none of which changes while the kernel is learned: one pass over
the data, in blocks, and every step after it costs the same for any number of them. In all of them a row counts as often as its
weight says.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer.covariances import Kuf, Kuu, feature_parameters, size
from mercer.inducing import InducingVariables, PerTerm
from mercer.kernels import Kernel, Sum
from mercer.linalg import matmul, quiet_blas, weighted_gram
from mercer.linalg.loops import for_each
from mercer.linalg.regression import Regression
from mercer.model import Model
from mercer.objectives.base import Batch
from mercer.parameters import cast, constant
from mercer.processes import Sparse

_BLOCK = 16384  # rows at a time


class SummedBatch(Batch):
    """A data set of which only sums are kept. X is its first input, of whose prior variance, term by term of the kernel, those of
    all others are fixed multiples."""

    gram: Float[Array, "G M M"] = constant()  # Kuf Kfu, of each latent function or of all
    products: Float[Array, "G M P"] = constant()  # Kuf Y
    squares: Float[Array, " P"] = constant()  # sum of y^2
    variances: Float[Array, "G T"] = constant()  # sum of k(x, x) of each term, in units of that at X
    count: Float[Array, ""] = constant()  # the number of rows, or the sum of their weights

    def __init__(
        self,
        X: Array,
        num_data: int,
        gram: Array,
        products: Array,
        squares: Array,
        variances: Array | None = None,
        count: Array | None = None,
    ):
        super().__init__(X, jnp.zeros((1, len(squares)), squares.dtype), num_data, complete=True)
        self.gram, self.products, self.squares = gram, products, squares
        self.count = jnp.asarray(num_data if count is None else count, squares.dtype)
        self.variances = jnp.broadcast_to(self.count, (len(gram), 1)) if variances is None else variances

    def by_term(self) -> Float[Array, "G T"]:
        """`variances`, which files from before have for all terms together."""
        return self.variances.reshape(len(self.gram), -1)

    def total_variance(self, pair: tuple[InducingVariables, Kernel], group: Array) -> Float[Array, ""]:
        """The sum of k(x, x) over the data, from the sums of a group."""
        first = jnp.stack([term.diag(self.inputs)[0] for term in _terms_of(*pair)])
        return jnp.sum(group[: len(first)] * first)


def summed(model: Model, batch: Batch, dtype: Any = None) -> SummedBatch:
    """The sums over a batch, in one pass. Products of rows are taken in `dtype`, and added up in that of the batch."""
    pairs = model.posterior.structure.pairs
    if all(part is pairs[0][0] and not jax.tree.leaves(feature_parameters(part, kernel)) for part, kernel in pairs):
        pairs = pairs[:1]  # Kuf has no parameters: one for all kernels
    weights = jnp.ones(len(batch.Y), batch.Y.dtype) if batch.weights is None else batch.weights
    data = tuple(map(np.asarray, (batch.X, batch.Y, weights)))
    with quiet_blas():
        sums = [_sums(*pair, *data, dtype=dtype or batch.Y.dtype) for pair in pairs]
        return jax.block_until_ready(_assembled(pairs, sums, batch, weights))


def _sums(
    inducing: InducingVariables, kernel: Kernel, X: np.ndarray, Y: np.ndarray, weights: np.ndarray, dtype: Any
) -> tuple[Array, Array]:
    """The products of [Kuf; Y^T] with itself, and the sum of the variances of each term of the prior."""
    M, P = size(inducing, kernel), Y.shape[1]
    sums: Any = np.zeros((M + P, M + P), X.dtype), np.zeros(len(_terms_of(inducing, kernel)), X.dtype)
    for start in range(0, len(X), _BLOCK):
        rows = [_block(array, start, len(X)) for array in (X, Y, weights)]
        rows[2][len(X) - start :] = 0.0
        sums = _add(inducing, cast(kernel, dtype), sums, *(array.astype(dtype) for array in rows))
    return jax.block_until_ready(sums)


@eqx.filter_jit
def _assembled(pairs: Any, sums: Any, batch: Batch, weights: Array) -> SummedBatch:
    """What the sums of all pairs are together."""
    P = batch.Y.shape[1]
    products = jnp.stack([products for products, _ in sums])
    firsts = [
        jnp.stack([term.diag(batch.inputs[:1])[0] for term in _terms_of(part, cast(kernel, batch.Y.dtype))])
        for part, kernel in pairs
    ]
    shares = [variances / first for (_, variances), first in zip(sums, firsts, strict=True)]
    most = max(map(len, shares))
    return SummedBatch(
        batch.inputs[:1],
        batch.num_data,
        products[:, :-P, :-P],
        products[:, :-P, -P:],
        jnp.sum(weights[:, None] * batch.Y**2, axis=0),
        jnp.stack([jnp.pad(share, (0, most - len(share))) for share in shares]),
        jnp.sum(weights),
    )


def _block(array: np.ndarray, start: int, num: int) -> np.ndarray:
    """Rows from `start` on, of which the last is repeated where data end: blocks of one size are compiled once."""
    rows = array[start : start + _BLOCK]
    missing = min(_BLOCK, num) - len(rows)
    return np.concatenate([rows, np.repeat(rows[-1:], missing, axis=0)])


@eqx.filter_jit
def _add(inducing, kernel, sums, X, Y, weights):
    """With the rows of a block. The products of [Kuf; Y^T] with itself hold all that is needed, slice by slice."""
    D = X.shape[1]

    def features(columns):
        return jnp.concatenate([Kuf(inducing, kernel, columns[:D].T), columns[D:]])

    gram = weighted_gram(jnp.concatenate([X.T, Y.T]), weights, features)
    variances = jnp.stack([jnp.sum(weights * term.diag(X)) for term in _terms_of(inducing, kernel)])
    return sums[0] + gram.astype(sums[0].dtype), sums[1] + variances.astype(sums[1].dtype)


def _terms_of(inducing: InducingVariables, kernel: Kernel) -> tuple[Kernel, ...]:
    """The kernels whose variances at two inputs have a fixed ratio."""
    return kernel.kernels if isinstance(inducing, PerTerm) and isinstance(kernel, Sum) else (kernel,)


class _Terms(NamedTuple):
    """What the collapsed bound is made of, from sums."""

    regression: Regression
    lost: Float[Array, ""]  # what the inducing variables lose


def summed_bound(model: Model, batch: SummedBatch) -> Float[Array, ""]:
    """The collapsed bound, in nats."""
    noise, terms = _noise(model, batch), _terms(model, batch)
    fit = -0.5 * jnp.sum(batch.count * jnp.log(2.0 * jnp.pi * noise) + batch.squares / noise)
    return fit + terms.regression.evidence() - terms.lost


def summed_regression(model: Model, batch: SummedBatch) -> Regression:
    """B and b of the best q(v)."""
    return _terms(model, batch).regression


def _noise(model: Model, batch: SummedBatch) -> Float[Array, " P"]:
    return jnp.broadcast_to(model.likelihood.variance, batch.squares.shape).astype(batch.Y.dtype)


def _terms(model: Model, batch: SummedBatch) -> _Terms:
    posterior: Any = model.posterior
    of_structure = _independent_terms if posterior.structure.independent else _mixed_terms
    return of_structure(posterior, batch, _noise(model, batch))


def _independent_terms(posterior: Sparse, batch: SummedBatch, noise: Float[Array, " P"]) -> _Terms:
    pairs, P = posterior.structure.pairs, len(noise)
    gram = jnp.broadcast_to(batch.gram, (len(pairs), *batch.gram.shape[1:]))
    products = jnp.broadcast_to(batch.products, (len(pairs), *batch.products.shape[1:]))
    own = products if len(pairs) == 1 else products[jnp.arange(P), :, jnp.arange(P)][..., None]

    variances = batch.by_term()
    variances = jnp.broadcast_to(variances, (len(pairs), variances.shape[1]))

    def of_pair(pair, gram, products, variances):
        """R^-1 Kuf Kfu R^-T, R^-1 Kuf Y of its outputs, and the sum of the variances of the prior."""
        operator, total = Kuu(*pair), batch.total_variance(pair, variances)
        return operator.whiten(operator.whiten(gram).T), operator.whiten(products).T, total

    whitened, b, totals = for_each(of_pair, pairs, gram, own, variances)
    slack = totals - jnp.trace(whitened, axis1=1, axis2=2)
    regression = Regression.of(whitened / noise[:, None, None], b.reshape(P, -1) / noise[:, None])
    return _Terms(regression, 0.5 * jnp.sum(jnp.maximum(slack, 0.0) / noise))


def _mixed_terms(posterior: Sparse, batch: SummedBatch, noise: Float[Array, " P"]) -> _Terms:
    """One system: B_lk = I + R_l^-1 Kuf Kfu R_k^-T (W^T W)_lk and b_l = R_l^-1 Kuf Y w_l, with W scaled by the noise."""
    kernel: Any = posterior.prior.kernel
    W = kernel.mixing(batch.X).W  # not None: these outputs covary
    L, pairs = posterior.q_mu.shape[1], posterior.structure.pairs
    weights = W[0] / jnp.sqrt(noise)[:, None]
    M = batch.gram.shape[1]
    pairs = pairs * (L // len(pairs))
    inverse_roots = for_each(lambda pair: Kuu(*pair).whiten(jnp.eye(M, dtype=batch.gram.dtype)), pairs)
    flat = inverse_roots.reshape(L * M, M)
    whitened = matmul(matmul(flat, batch.gram[0]), flat.T).reshape(L, M, L, M)
    coupling = matmul(weights.T, weights)
    gram = (whitened * coupling[:, None, :, None]).reshape(1, L * M, L * M)
    b = jnp.einsum(
        "lmk,kp,pl->lm", inverse_roots, batch.products[0], weights / jnp.sqrt(noise)[:, None], precision="highest"
    )
    totals = jnp.stack([batch.total_variance(pair, batch.by_term()[0]) for pair in pairs])
    slack = jnp.maximum(totals - jnp.einsum("lmlm->l", whitened), 0.0)
    regression = Regression.of(gram, b.reshape(1, L * M), num_groups=L)
    return _Terms(regression, 0.5 * jnp.sum(slack * jnp.diagonal(coupling)))
