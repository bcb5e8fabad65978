"""Covariances averaged over uncertain inputs x_n ~ N(mu_n, s_n), the psi statistics (Titsias and Lawrence, 2010):

    psi0_n = E k(x_n, x_n),   psi1_mn = E k(z_m, x_n),   psi2_nml = E k(z_m, x_n) k(x_n, z_l).

They are open functions of the kernel and of the pair (inducing variables, kernel), as `Kuf` is. Closed forms are known for
inducing points with kernels of Gaussian terms (`RBF`, `Linear`, `Polynomial`, `Constant`, their sums and products on any
columns). All other pairs are averaged over a Gauss-Hermite grid, in up to three columns.

A Gaussian in x times a bump exp(-p (x - c)^2 / 2) is, in each column, (1 + s p)^(-1/2) exp(-p (mu - c)^2 / (2 (1 + s p))) times a
Gaussian of mean (mu + s p c) / (1 + s p) and variance s / (1 + s p), under which the linear factors are averaged.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from plum import Dispatcher

from mercer.covariances.dispatch import Kuf
from mercer.inducing.points import Points
from mercer.inducing.quadrature import gaussian_rule, has_gaussian_rule
from mercer.inputs import Normal
from mercer.kernels.base import Kernel
from mercer.kernels.terms import GaussianTerm, gaussian_terms
from mercer.linalg.products import matmul
from mercer.roots import safe_sqrt
from mercer.validation import AnyArray

_dispatch: Any = Dispatcher()
_MOST = 2**25  # numbers of psi2 that are formed at a time
_FEW = 2**22  # numbers of psi2 that are kept for derivatives


@_dispatch
def psi0(kernel: Any, x: Normal) -> Float[Array, " N"]:
    """E k(x_n, x_n)."""
    terms = gaussian_terms(kernel, x.dimension)
    if terms is None:
        return _over_grid(kernel.diag, kernel, x)
    return sum(term.variance * _mean_of_squares(term.linear, x) for term in terms)


@_dispatch
def psi1(inducing: Any, kernel: Any, x: Normal) -> Float[Array, "M N"]:
    """E k(u_m, x_n): what `Kuf` is on average."""
    return _over_grid(lambda X: Kuf(inducing, kernel, X), kernel, x)


@psi1.dispatch
def _(inducing: Points, kernel: Kernel, x: Normal) -> Array:
    terms = gaussian_terms(kernel, x.dimension)
    if terms is None:
        return _over_grid(lambda X: Kuf(inducing, kernel, X), kernel, x)
    Z = inducing.Z
    return sum(term.variance * _mean(term.precision, Z, [w * Z for w in term.linear], x) for term in terms).T


@_dispatch
def psi2(inducing: Any, kernel: Any, x: Normal) -> Float[Array, "N M M"]:
    """E k(u_m, x_n) k(x_n, u_l), for each input."""
    return _over_grid(functools.partial(_outer, inducing, kernel), kernel, x)


@psi2.dispatch
def _(inducing: Points, kernel: Kernel, x: Normal) -> Array:
    terms = gaussian_terms(kernel, x.dimension)
    if terms is None:
        return _over_grid(functools.partial(_outer, inducing, kernel), kernel, x)
    return _pairs_of(terms, inducing.Z, x)[:, _numbers(len(inducing.Z))]


def _pairs(inducing: Any, kernel: Any, x: Normal) -> Float[Array, "N K"]:
    """psi2 of the pairs of variables above its diagonal, and on it."""
    terms = None
    if isinstance(inducing, Points) and isinstance(kernel, Kernel):
        terms = gaussian_terms(kernel, x.dimension)
    if terms is not None:
        return _pairs_of(terms, inducing.Z, x)
    found = psi2(inducing, kernel, x)
    return found[(slice(None), *np.triu_indices(found.shape[-1]))]


def _pairs_of(terms: Sequence[GaussianTerm], Z: Float[Array, "M D"], x: Normal) -> Float[Array, "N K"]:
    i, j = np.triu_indices(len(Z))
    total = jnp.zeros((), x.mean.dtype)
    for a, b in itertools.combinations_with_replacement(terms, 2):
        total = total + _mean_of_products(a, b, Z[i], Z[j], x)
        if a is not b:
            total = total + _mean_of_products(a, b, Z[j], Z[i], x)
    return total


def _numbers(M: int) -> np.ndarray:
    """The number of the pair of each entry of a symmetric matrix."""
    numbers = np.zeros((M, M), int)
    numbers[np.triu_indices(M)] = np.arange(M * (M + 1) // 2)
    return np.maximum(numbers, numbers.T)


def psi2_sum(
    inducing: Any, kernel: Any, x: Normal, weights: Float[AnyArray, " N"] | Float[AnyArray, "N K"] | None = None
) -> Float[Array, "M M"] | Float[Array, "K M M"]:
    """sum_n weights_n psi2_n, block by block over the inputs; one such sum for each column of weights [N, K]."""
    weights = jnp.ones(len(x), x.mean.dtype) if weights is None else jnp.asarray(weights)

    def of_block(x, weights):
        return jnp.einsum("n...,nk->...k", weights, _pairs(inducing, kernel, x))

    M = _num_variables(inducing, kernel, x)
    return jnp.sum(_by_blocks(of_block, M, x, weights), axis=0)[..., _numbers(M)]


def psi2_traces(inducing: Any, kernel: Any, x: Normal, A: Float[AnyArray, "K M M"]) -> Float[Array, "N K"]:
    """tr(psi2_n A_k), block by block over the inputs."""

    M = _num_variables(inducing, kernel, x)
    i, j = np.triu_indices(M)
    A = jnp.asarray(A)
    twice = jnp.where(i == j, A[:, i, j], A[:, i, j] + A[:, j, i])

    def of_block(x, weights):
        return matmul(_pairs(inducing, kernel, x), twice.T)

    found = _by_blocks(of_block, M, x, jnp.ones(len(x), x.mean.dtype))
    return found.reshape(-1, len(A))[: len(x)]


def _num_variables(inducing: Any, kernel: Any, x: Normal) -> int:
    return jax.eval_shape(lambda x: psi1(inducing, kernel, x), x).shape[0]


def _by_blocks(function: Any, M: int, x: Normal, weights: Float[Array, "N *K"]) -> Array:
    """A function of some inputs and their weights, for one block after another; the last is filled up with weights 0."""
    if len(x) * M**2 <= _FEW:
        return function(x, weights)[None]
    rows = max(1, min(len(x), _MOST // M**2))
    missing = -len(x) % rows

    def blocks(array, last):
        padded = jnp.concatenate([array, jnp.broadcast_to(last, (missing, *array.shape[1:]))])
        return padded.reshape(-1, rows, *array.shape[1:])

    parts = blocks(x.mean, x.mean[-1]), blocks(x.variance, x.variance[-1]), blocks(weights, 0.0)
    of_block = jax.checkpoint(lambda block: function(Normal(*block[:2]), block[2]))
    return jax.lax.map(of_block, parts)


def _mean(
    precision: Float[Array, " D"], centres: Float[Array, "K D"], linear: Sequence[Float[Array, "K D"]], x: Normal
) -> Float[Array, "N K"]:
    """E exp(-sum_d precision_d (x_d - c_kd)^2 / 2) prod_j a_jk . x."""
    middle = jnp.mean(centres, axis=0)  # squares are taken near 0, where they lose least
    mu, centred = x.mean - middle, centres - middle
    shrunk = 1.0 / (1.0 + x.variance * precision)  # [N, D]
    pull = precision * shrunk
    squares = jnp.sum(pull * mu**2, axis=1)[:, None] - 2.0 * matmul(pull * mu, centred.T) + matmul(pull, (centred**2).T)
    bump = jnp.exp(0.5 * (jnp.sum(jnp.log(shrunk), axis=1)[:, None] - jnp.maximum(squares, 0.0)))
    if not linear:
        return bump
    share, variance = x.variance * pull, x.variance * shrunk
    means = [matmul(shrunk * x.mean, a.T) + matmul(share, (a * centres).T) for a in linear]
    covs = {
        (i, j): matmul(variance, (linear[i] * linear[j]).T) for i, j in itertools.combinations(range(len(linear)), 2)
    }
    return bump * _mean_of_product(tuple(range(len(linear))), means, covs)


def _mean_of_product(factors: tuple[int, ...], means: Sequence[Array], covs: dict[tuple[int, int], Array]) -> Any:
    """E of a product of jointly Gaussian numbers, by Stein's lemma for the first of them."""
    if not factors:
        return 1.0
    first, *others = factors
    total = means[first] * _mean_of_product(tuple(others), means, covs)
    for other in others:
        rest = tuple(each for each in others if each != other)
        total = total + covs[first, other] * _mean_of_product(rest, means, covs)
    return total


def _mean_of_products(
    a: GaussianTerm, b: GaussianTerm, one: Float[Array, "K D"], other: Float[Array, "K D"], x: Normal
) -> Float[Array, "N K"]:
    """E a(z_k, x_n) b(x_n, z'_k)."""
    precision = a.precision + b.precision
    safe = jnp.where(precision > 0.0, precision, 1.0)
    centres = (a.precision * one + b.precision * other) / safe
    apart = jnp.sum(a.precision * b.precision / safe * (one - other) ** 2, axis=1)
    linear = [w * one for w in a.linear] + [w * other for w in b.linear]
    found = jnp.exp(-0.5 * apart) * _mean(precision, centres, linear, x)
    return a.variance * b.variance * found


def _mean_of_squares(linear: Sequence[Float[Array, " D"]], x: Normal) -> Float[Array, " N"]:
    """E prod_j sum_d w_jd x_d^2: products over the blocks of each partition of the factors of their joint cumulants.

    That of r of them is sum_d prod_j w_jd kappa_d, kappa = 2^(r - 1) (r - 1)! s^(r - 1) (s + r mu^2) the one of x_d^2.
    """
    total = jnp.zeros(len(x), x.mean.dtype)
    for partition in _partitions(list(linear)):
        product = jnp.ones(len(x), x.mean.dtype)
        for block in partition:
            r = len(block)
            size = 2.0 ** (r - 1) * float(np.prod(np.arange(1, r)))
            kappa = size * x.variance ** (r - 1) * (x.variance + r * x.mean**2)
            product = product * matmul(kappa, functools.reduce(jnp.multiply, block))
        total = total + product
    return total


def _partitions(items: list[Any]) -> list[list[list[Any]]]:
    """All ways of putting items into blocks."""
    if not items:
        return [[]]
    first, *rest = items
    found = []
    for partition in _partitions(rest):
        found.append([[first], *partition])
        found += [[*partition[:i], [first, *block], *partition[i + 1 :]] for i, block in enumerate(partition)]
    return found


def _outer(inducing: Any, kernel: Any, X: Float[Array, "N D"]) -> Float[Array, "M M N"]:
    K = Kuf(inducing, kernel, X)
    return K[:, None] * K[None]


def known(inducing: Any, kernel: Any, dimension: int) -> bool:
    """Whether there are expectations for inputs of so many columns, in closed form or by quadrature."""
    closed = (
        isinstance(inducing, Points) and isinstance(kernel, Kernel) and gaussian_terms(kernel, dimension) is not None
    )
    return closed or has_gaussian_rule(dimension)


def _over_grid(function: Any, kernel: Any, x: Normal) -> Array:
    """The mean of a function whose last axis is that of the inputs, by Gauss-Hermite quadrature in each column."""
    rule = gaussian_rule(x.dimension, f"expectations of {type(kernel).__name__}")
    sd = safe_sqrt(x.variance)

    def at_node(total, node_and_weight):
        node, weight = node_and_weight
        return total + weight * function(x.mean + sd * node), None

    first = jax.eval_shape(function, x.mean)
    rows = tuple(jnp.asarray(array, x.mean.dtype) for array in rule)
    total, _ = jax.lax.scan(at_node, jnp.zeros(first.shape, first.dtype), rows)
    return jnp.moveaxis(total, -1, 0) if total.ndim == 3 else total
