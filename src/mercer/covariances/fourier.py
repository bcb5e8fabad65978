"""Variational Fourier features and Matern kernels (Hensman, Durrande and Solin, 2017).

The inner product of the function space of a Matern kernel of order p + 1/2 on [a, b] is, with rate = sqrt(2p + 1) / lengthscale,

    <g, h> = c / variance ∫ (rate + d/dx)^(p+1) g (rate + d/dx)^(p+1) h dx  +  a form in the first p derivatives of g, h at a.

Over whole periods the integral is diagonal in sines and cosines, with entries c (b - a) / 2 (rate^2 + w^2)^(p+1) / variance
and twice that for the constant. The form at a is a sum of p + 1 squares, each of even derivatives, to which only the constant
and the cosines contribute, or of odd ones, to which only the sines do.
"""

import functools
import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer import validation
from mercer.covariances.dispatch import Kuf, Kuu, Kuv
from mercer.inducing.fourier import FourierFeatures
from mercer.inducing.integral import Integral
from mercer.kernels.base import Kernel, Term
from mercer.kernels.stationary import Matern12, Matern32, Matern52
from mercer.linalg.operators import PSD, BlockDiagonal, DiagonalPlusLowRank, Kronecker
from mercer.parameters import cast

# c rate^(2p+1), and the squares at a: for each the weights of g, g' / rate, g'' / rate^2.
_MATERNS: dict[type, tuple[float, list[tuple[float, float, float]]]] = {
    Matern12: (1.0 / 2.0, [(1.0, 0.0, 0.0)]),
    Matern32: (1.0 / 4.0, [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0)]),
    Matern52: (
        3.0 / 16.0,
        [(3.0 / math.sqrt(8.0), 0.0, 1.0 / math.sqrt(8.0)), (0.0, 0.0, 1.0), (0.0, math.sqrt(3.0), 0.0)],
    ),
}

_Term = dict[int, Kernel]  # the Matern kernel of each column that a term sees


@Kuu.dispatch
def _(inducing: FourierFeatures, kernel: Kernel) -> PSD:
    blocks = [[_inner_products(inducing, d, term[d]) for d in term] for term in _terms_of(inducing, kernel)]
    products = [factors[0] if len(factors) == 1 else Kronecker(factors) for factors in blocks]
    return products[0] if len(products) == 1 else BlockDiagonal(products)


@Kuf.dispatch
def _(inducing: FourierFeatures, kernel: Kernel, X) -> Array:
    terms = _terms_of(inducing, kernel)
    X = validation.inputs(X)
    inducing.check_inputs(X)
    inducing = cast(inducing, X.dtype)
    return _of_terms(terms, [_functions(inducing, d, X[:, d]) for d in range(inducing.dimension)])


@Kuv.dispatch
def _(first: FourierFeatures, kernel: Kernel, second: Integral) -> Array:
    terms = _terms_of(first, kernel)
    first.check_box(second.lower, second.upper, "the boxes of Integral")
    lengths = second.masses()
    first = cast(first, jnp.result_type(first.lower, lengths))
    integrals, masses = [], [length[None] for length in lengths.T]
    for d, length in enumerate(lengths.T):
        # ∫ cos(w x) dx over a box is its length times the cosine at its centre, times sinc(w length / 2)
        w = jnp.concatenate([jnp.zeros(1, first.lower.dtype), *[first.frequencies(d)] * 2])
        centre = 0.5 * (second.lower + second.upper)[:, d]
        integrals.append(length * _functions(first, d, centre) * jnp.sinc(w[:, None] * length / (2.0 * jnp.pi)))
    return _of_terms(terms, integrals, masses)


@Kuv.dispatch
def _(first: Integral, kernel: Kernel, second: FourierFeatures) -> Array:
    return Kuv(second, kernel, first).T


def _inner_products(inducing: FourierFeatures, d: int, kernel: Kernel) -> DiagonalPlusLowRank:
    """<phi_m, phi_m'> of the functions of column d."""
    dtype = jnp.result_type(inducing.lower, kernel.variance, kernel.lengthscale)
    inducing, kernel = cast(inducing, dtype), cast(kernel, dtype)
    rate = math.sqrt(kernel.degrees_of_freedom) / kernel.lengthscale.reshape(())
    constant, squares = _MATERNS[type(kernel)]
    # in units of the rate, (rate^2 + w^2)^(p+1) / rate^(2p+1) = rate (1 + w^2)^(p+1)
    w, one = inducing.frequencies(d) / rate, jnp.ones(1, dtype)
    scale = constant * rate * (inducing.upper[d] - inducing.lower[d]) / kernel.variance
    of_waves = 0.5 * (1.0 + w**2) ** len(squares)
    entries = scale * jnp.concatenate([one, of_waves, of_waves])
    # the functions and their derivatives at a: 1, 1, 0; then 0, 0, w; then 0, -w^2, 0
    nought, flat = 0.0 * one, jnp.zeros_like(w)
    at_a = [jnp.concatenate(parts) for parts in ((one, 1.0 + flat, flat), (nought, flat, w), (nought, -(w**2), flat))]
    columns = [sum(weight * values for weight, values in zip(square, at_a, strict=True)) for square in squares]
    return DiagonalPlusLowRank(entries, jnp.stack(columns, axis=1) / jnp.sqrt(kernel.variance))


def _functions(inducing: FourierFeatures, d: int, x: Float[Array, " N"]) -> Float[Array, "2*F+1 N"]:
    """The constant, the cosines and the sines of column d."""
    angles = inducing.frequencies(d)[:, None] * (x - inducing.lower[d])
    return jnp.concatenate([jnp.ones((1, len(x)), angles.dtype), jnp.cos(angles), jnp.sin(angles)])


def _of_terms(terms: list[_Term], factors: list[Array], otherwise: list[Array] | None = None) -> Array:
    """For each term the products of all combinations of its factors, times `otherwise` for columns it does not see."""

    def product(first, second):
        return (first[:, None] * second).reshape(-1, first.shape[-1])

    stacked = []
    for term in terms:
        unseen = [] if otherwise is None else [values for d, values in enumerate(otherwise) if d not in term]
        stacked.append(functools.reduce(product, [*(factors[d] for d in term), *unseen]))
    return jnp.concatenate(stacked)


def _terms_of(inducing: FourierFeatures, kernel: Kernel) -> list[_Term]:
    """The terms of a kernel of as many columns as the box has, each with its columns in order."""
    return [_of_columns(term) for term in kernel.terms(tuple(range(inducing.dimension)))]


def _of_columns(term: Term) -> _Term:
    """The Matern kernel of each column; the scale of the term is taken into the variance of one of them."""
    found: _Term = {}
    for kernel, columns in term.factors:
        if type(kernel) not in _MATERNS or len(columns) != 1:
            raise ValueError(
                "FourierFeatures expect Matern12, Matern32 or Matern52 of one column each, their products over different columns "
                f"(Matern32().on(0) * Matern32().on(1)) and sums of these, got {type(kernel).__name__} of {len(columns)} columns"
            )
        if columns[0] in found:
            raise ValueError(
                f"FourierFeatures expect each column once in a product of kernels, got columns {list(columns)} twice"
            )
        scale = 1.0 if found else term.scale
        found[columns[0]] = type(kernel)(kernel.lengthscale, kernel.variance * scale)
    return dict(sorted(found.items()))
