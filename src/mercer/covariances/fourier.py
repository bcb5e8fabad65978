"""Variational Fourier features and Matern kernels (Hensman, Durrande and Solin, 2017).

The inner product of the function space of a Matern kernel of order p + 1/2 on [a, b] is, with rate = sqrt(2p + 1) / lengthscale,

    <g, h> = c / variance ∫ (rate + d/dx)^(p+1) g (rate + d/dx)^(p+1) h dx  +  a form in the first p derivatives of g, h at a.

Over whole periods the integral is diagonal in sines and cosines, with entries c (b - a) / 2 (rate^2 + w^2)^(p+1) / variance
and twice that for the constant. The form at a is a sum of p + 1 squares, each of even derivatives, to which only the constant
and the cosines contribute, or of odd ones, to which only the sines do.
"""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer import validation
from mercer.covariances.dispatch import Kuf, Kuu, Kuv, has_fixed_features
from mercer.covariances.draws import draw_jointly
from mercer.inducing.fourier import FourierFeatures
from mercer.inducing.integral import Integral
from mercer.kernels.base import Kernel, Term
from mercer.kernels.maps import Draw, Map
from mercer.kernels.stationary import Matern12, Matern32, Matern52
from mercer.linalg.operators import PSD, BlockDiagonal, DiagonalPlusLowRank, Kronecker
from mercer.linalg.products import matmul
from mercer.parameters import Module, cast, constant

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


@has_fixed_features.dispatch
def _(inducing: FourierFeatures, kernel: Kernel) -> bool:
    return True


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


@draw_jointly.dispatch
def _(inducing: FourierFeatures, kernel: Kernel, key: Any, num_features: int, num_outputs: int) -> tuple:
    """Waves a_j prod_d cos(w_jd x_d + b_jd), of which the inner products with the features are known."""
    terms = _terms_of(inducing, kernel)
    keys = jax.random.split(key, (len(terms), num_outputs))
    waves = [[_waves(inducing, term, k, num_features) for k in row] for term, row in zip(terms, keys, strict=True)]

    def variables(term, wave):
        factors = {d: of_waves(inducing, d, kernel, wave.w[i], wave.b[i]) for i, (d, kernel) in enumerate(term.items())}
        return matmul(functools.reduce(_product, factors.values()), wave.a)

    columns = [[variables(term, wave) for wave in row] for term, row in zip(terms, waves, strict=True)]
    draw = _SumOfWaves(tuple(map(tuple, zip(*waves, strict=True))))
    return Draw(draw), jnp.concatenate([jnp.stack(row, axis=1) for row in columns])


class _Waves(Module):
    """J functions a_j prod_i cos(w_ij x_d(i) + b_ij) of some columns d(1), d(2), ... of the input."""

    columns: tuple[int, ...] = eqx.field(static=True)
    w: Float[Array, "I J"] = constant()
    b: Float[Array, "I J"] = constant()
    a: Float[Array, " J"] = constant()

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        w, b, a = cast((self.w, self.b, self.a), X.dtype)
        factors = [jnp.cos(X[:, d, None] * w[i] + b[i]) for i, d in enumerate(self.columns)]
        return matmul(functools.reduce(jnp.multiply, factors), a)


class _SumOfWaves(Map):
    """For each output, the sum over the terms of a kernel."""

    waves: tuple[tuple[_Waves, ...], ...]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        return jnp.stack([functools.reduce(jnp.add, [wave(X) for wave in terms]) for terms in self.waves], axis=1)


def _waves(inducing: FourierFeatures, term: _Term, key: Any, num: int) -> _Waves:
    """Random Fourier features of a product of kernels, with normal weights."""
    dtype = jnp.result_type(inducing.lower, *(kernel.lengthscale for kernel in term.values()))
    keys = jax.random.split(key, (len(term) + 1, 2))
    w = [
        k.frequencies((num, 1), key=key)[:, 0] / k.lengthscale.reshape(())
        for k, (key, _) in zip(term.values(), keys, strict=False)
    ]
    b = [jax.random.uniform(key, (num,), dtype, maxval=2.0 * jnp.pi) for _, key in keys[1:]]
    variance = math.prod(2.0 * kernel.variance for kernel in term.values())
    a = jax.random.normal(keys[-1, 0], (num,), dtype) * jnp.sqrt(variance / num)
    return _Waves(tuple(term), jnp.stack(w).astype(dtype), jnp.stack(b), a.astype(dtype))


def of_waves(
    inducing: FourierFeatures, d: int, kernel: Kernel, w: Float[Array, " J"], b: Float[Array, " J"]
) -> Float[Array, "M J"]:
    """<phi_m, cos(w_j x + b_j)> of the functions of column d, by the same form as `_inner_products`.

    The integral, of products of waves, is a sum of integrals of waves.
    """
    inducing, kernel = cast(inducing, w.dtype), cast(kernel, w.dtype)
    rate, constant, squares = _form_of(kernel)
    length, order = rate * (inducing.upper[d] - inducing.lower[d]), len(squares)
    at_a = w * inducing.lower[d] + b
    u, w = inducing.frequencies(d) / rate, w / rate
    # phi = Re A exp(i u t), the wave = Re B exp(i w t), t = rate (x - a); 1 + d/dt multiplies by 1 + i u, 1 + i w
    of_waves = (1.0 + 1j * u) ** order
    u, A = (
        jnp.concatenate([jnp.zeros(1, u.dtype), u, u]),
        jnp.concatenate([jnp.ones(1, u.dtype), of_waves, -1j * of_waves]),
    )
    B = (1.0 + 1j * w) ** order * jnp.exp(1j * at_a)

    def integral(s):
        return length * jnp.exp(0.5j * s * length) * jnp.sinc(s * length / (2.0 * jnp.pi))

    u, A = u[:, None], A[:, None]
    total = 0.5 * constant * jnp.real(A * B * integral(u + w) + A * jnp.conj(B) * integral(u - w))
    wave = (jnp.cos(at_a), -w * jnp.sin(at_a), -(w**2) * jnp.cos(at_a))
    functions = _at_a(inducing.frequencies(d) / rate)
    for square in squares:
        total += _combined(square, functions)[:, None] * _combined(square, wave)
    return total / kernel.variance


def _form_of(kernel: Kernel) -> tuple[Array, float, list[tuple[float, float, float]]]:
    """The rate, and the constant and the squares of the inner product in units of it."""
    return math.sqrt(kernel.degrees_of_freedom) / kernel.lengthscale.reshape(()), *_MATERNS[type(kernel)]


def _at_a(w: Float[Array, " F"]) -> tuple[Array, Array, Array]:
    """The constant, the cosines and the sines, and their first two derivatives, at a."""
    one, nought, flat = jnp.ones(1, w.dtype), jnp.zeros(1, w.dtype), jnp.zeros_like(w)
    values, slopes, curvatures = (one, 1.0 + flat, flat), (nought, flat, w), (nought, -(w**2), flat)
    return jnp.concatenate(values), jnp.concatenate(slopes), jnp.concatenate(curvatures)


def _combined(square: tuple[float, float, float], derivatives: tuple[Array, Array, Array]) -> Array:
    return square[0] * derivatives[0] + square[1] * derivatives[1] + square[2] * derivatives[2]


def _product(first: Array, second: Array) -> Array:
    """All products of a row of the one with a row of the other."""
    return (first[:, None] * second).reshape(-1, first.shape[-1])


def _inner_products(inducing: FourierFeatures, d: int, kernel: Kernel) -> DiagonalPlusLowRank:
    """<phi_m, phi_m'> of the functions of column d."""
    dtype = jnp.result_type(inducing.lower, kernel.variance, kernel.lengthscale)
    inducing, kernel = cast(inducing, dtype), cast(kernel, dtype)
    rate, constant, squares = _form_of(kernel)
    # in units of the rate, (rate^2 + w^2)^(p+1) / rate^(2p+1) = rate (1 + w^2)^(p+1)
    w, one = inducing.frequencies(d) / rate, jnp.ones(1, dtype)
    scale = constant * rate * (inducing.upper[d] - inducing.lower[d]) / kernel.variance
    of_waves = 0.5 * (1.0 + w**2) ** len(squares)
    entries = scale * jnp.concatenate([one, of_waves, of_waves])
    columns = [_combined(square, _at_a(w)) for square in squares]
    return DiagonalPlusLowRank(entries, jnp.stack(columns, axis=1) / jnp.sqrt(kernel.variance))


def _functions(inducing: FourierFeatures, d: int, x: Float[Array, " N"]) -> Float[Array, "M N"]:
    """The constant, the cosines and the sines of column d."""
    angles = inducing.frequencies(d)[:, None] * (x - inducing.lower[d])
    return jnp.concatenate([jnp.ones((1, len(x)), angles.dtype), jnp.cos(angles), jnp.sin(angles)])


def _of_terms(terms: list[_Term], factors: list[Array], otherwise: list[Array] | None = None) -> Array:
    """For each term the products of all combinations of its factors, times `otherwise` for columns it does not see."""

    stacked = []
    for term in terms:
        unseen = [] if otherwise is None else [values for d, values in enumerate(otherwise) if d not in term]
        stacked.append(functools.reduce(_product, [*(factors[d] for d in term), *unseen]))
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
