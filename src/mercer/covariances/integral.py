"""Integrals over boxes: of the RBF kernel in any number of columns, and of the Matern kernels in one.

All is written as sums of positive terms, or as differences only where these are not small, so that short boxes, and boxes far
apart, lose no more digits than long ones. Boxes here have ends a < b and c < d along one column, l is the lengthscale.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erfc
from jaxtyping import Array, Float

from mercer.covariances.dispatch import Kuf, Kuu, Kuv
from mercer.covariances.weighted import inputs
from mercer.inducing.integral import Integral
from mercer.inducing.multiscale import Multiscale
from mercer.kernels.stationary import RBF, Matern12, Matern32, Matern52
from mercer.linalg.operators import PSD, Dense
from mercer.parameters import cast

_Matern = Matern12 | Matern32 | Matern52

# Coefficients of the polynomial in a = sqrt(2p + 1) r that stands before exp(-a).
_POLYNOMIALS = {Matern12: (1.0,), Matern32: (1.0, 1.0), Matern52: (1.0, 1.0, 1.0 / 3.0)}


def _unit_rule(num: int) -> list[tuple[float, float]]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(num)
    return list(zip((0.5 * (nodes + 1.0)).tolist(), (0.5 * weights).tolist(), strict=True))


# A box is short below this length, in units of l or 1 / lambda, and then so few nodes integrate to rounding.
_SHORT, _RULE = 0.25, _unit_rule(5)


@Kuu.dispatch
def _(inducing: Integral, kernel: RBF | Matern12 | Matern32 | Matern52) -> PSD:
    K = Kuv(inducing, kernel, inducing)
    return Dense(0.5 * (K + K.T))


@Kuf.dispatch
def _(inducing: Integral, kernel: RBF, X) -> Array:
    X = inputs(inducing, X)
    dtype = jnp.result_type(inducing.lower, X)
    kernel, lower, upper = cast(kernel, dtype), inducing.lower.astype(dtype), inducing.upper.astype(dtype)
    lengthscale = jnp.broadcast_to(kernel.per_column("lengthscale", X), X.shape[1:])
    product = kernel.variance
    for a, b, x, l in zip(lower.T, upper.T, X.astype(dtype).T, lengthscale, strict=True):
        product = product * _rbf_at_point(a[:, None], b[:, None], x, l)
    return product


@Kuv.dispatch
def _(first: Integral, kernel: RBF, second: Integral) -> Array:
    kernel = cast(kernel, jnp.result_type(first.lower, second.lower))
    lengthscale = jnp.broadcast_to(kernel.per_column("lengthscale", first.lower), first.lower.shape[1:])
    product = kernel.variance
    for a, b, c, d, l in zip(first.lower.T, first.upper.T, second.lower.T, second.upper.T, lengthscale, strict=True):
        product = product * _rbf_over_boxes(a[:, None], b[:, None], c, d, l)
    return product


@Kuv.dispatch
def _(first: Integral, kernel: RBF, second: Multiscale) -> Array:
    # Under the window the kernel is an RBF kernel of another lengthscale and height, seen at the window's centre.
    kernel = cast(kernel, jnp.result_type(first.lower, second.Z))
    lengthscale = jnp.broadcast_to(kernel.per_column("lengthscale", first.lower), first.lower.shape[1:])
    product, wider = kernel.variance, jnp.sqrt(lengthscale**2 + second.widths() ** 2)
    for a, b, z, l, w in zip(first.lower.T, first.upper.T, second.Z.T, lengthscale, wider.T, strict=True):
        product = product * (l / w) * _rbf_at_point(a[:, None], b[:, None], z, w)
    return product


@Kuv.dispatch
def _(first: Multiscale, kernel: RBF, second: Integral) -> Array:
    return Kuv(second, kernel, first).T


@Kuf.dispatch
def _(inducing: Integral, kernel: Matern12 | Matern32 | Matern52, X) -> Array:
    X = inputs(inducing, X)
    dtype = jnp.result_type(inducing.lower, X)
    kernel, a, b, x = cast(kernel, dtype), inducing.lower.astype(dtype), inducing.upper.astype(dtype), X.T.astype(dtype)
    rate = _rate(kernel, inducing)
    polynomial = _POLYNOMIALS[type(kernel)]
    # the parts of the box to the right and to the left of x: how far away they begin, and how long they are
    right = _from(polynomial, rate * jnp.maximum(a - x, 0.0), rate * jnp.clip(b - x, 0.0, b - a))
    left = _from(polynomial, rate * jnp.maximum(x - b, 0.0), rate * jnp.clip(x - a, 0.0, b - a))
    return kernel.variance / rate * (right + left)


@Kuv.dispatch
def _(first: Integral, kernel: Matern12 | Matern32 | Matern52, second: Integral) -> Array:
    kernel = cast(kernel, jnp.result_type(first.lower, second.lower))
    rate = _rate(kernel, first)
    ends = first.lower, first.upper, second.lower.T, second.upper.T
    return kernel.variance / rate**2 * _matern_over_boxes(_POLYNOMIALS[type(kernel)], rate, *ends)


def _rate(kernel: _Matern, inducing: Integral) -> Float[Array, ""]:
    """lambda = sqrt(2p + 1) / lengthscale, of a kernel of one column."""
    if inducing.dimension != 1:
        name = type(kernel).__name__
        raise ValueError(
            f"Integral with {name} is known for one column only, got {inducing.dimension}; a product of kernels of one column "
            f"each works, {name}().on(0) * {name}().on(1), and so does RBF"
        )
    return math.sqrt(kernel.degrees_of_freedom) / kernel.per_column("lengthscale", inducing.lower).reshape(())


def _rbf_at_point(a: Array, b: Array, x: Array, l: Array) -> Array:
    """∫_a^b exp(-(t - x)^2 / (2 l^2)) dt."""
    width, start, stop = (b - a) / l, (a - x) / l, (b - x) / l
    few = width * sum(w * jnp.exp(-0.5 * (start + width * node) ** 2) for node, w in _RULE)
    # mirrored so that most of the box is to the right of x, where erfc keeps the digits that erf loses near 1
    mirror = start + stop < 0.0
    ends = jnp.stack([jnp.where(mirror, -stop, start), jnp.where(mirror, -start, stop)])
    right_of = erfc(ends / math.sqrt(2.0))
    closed = math.sqrt(0.5 * math.pi) * (right_of[0] - right_of[1])
    return l * jnp.where(width < _SHORT, few, closed)


def _rbf_over_boxes(a: Array, b: Array, c: Array, d: Array, l: Array) -> Array:
    """∫_a^b ∫_c^d exp(-(s - t)^2 / (2 l^2)) ds dt.

    The second antiderivative of exp(-u^2 / 2) is sqrt(pi / 2) |u| + g(u), and the differences of |u| are twice the overlap.
    """
    swap = b - a < d - c
    (a, c), (b, d) = (_swapped(swap, *ends) for ends in ((a, c), (b, d)))
    nodes, weights = (jnp.asarray(part, c.dtype)[:, None, None] for part in zip(*_RULE, strict=True))
    few = (d - c) * jnp.sum(weights * _rbf_at_point(a, b, c + (d - c) * nodes, l), axis=0)
    overlap = jnp.maximum(jnp.minimum(b, d) - jnp.maximum(a, c), 0.0) / l
    g = _decaying(jnp.stack([b - c, a - d, b - d, a - c]) / l)
    closed = math.sqrt(2.0 * math.pi) * overlap + g[0] + g[1] - g[2] - g[3]
    return jnp.where((d - c) / l < _SHORT, few, l**2 * closed)


def _swapped(swap: Array, first: Array, second: Array) -> tuple[Array, Array]:
    return jnp.where(swap, second, first), jnp.where(swap, first, second)


def _decaying(u: Array) -> Array:
    u = jnp.abs(u)
    return jnp.exp(-0.5 * u**2) - math.sqrt(0.5 * math.pi) * u * erfc(u / math.sqrt(2.0))


def _gammas(h: Array, num: int) -> list[Array]:
    """∫_0^h t^i exp(-t) dt for i = 0 ... num - 1, each to the rounding of the first."""
    decay, found = jnp.exp(-h), [-jnp.expm1(-h)]
    for i in range(1, num):
        found.append(i * found[-1] - h**i * decay)
    return found


def _from(polynomial: tuple[float, ...], start: Array, length: Array) -> Array:
    """∫_0^length P(start + s) exp(-start - s) ds."""
    return _between(polynomial, start, _gammas(length, len(polynomial)), [1.0])


def _between(polynomial: tuple[float, ...], gap: Array, first: list, second: list) -> Array:
    """∫∫ P(gap + s + t) exp(-gap - s - t) ds dt, from the `_gammas` of the ranges of s and t."""
    total = 0.0
    for n, coefficient in enumerate(polynomial):
        for i, over_s in enumerate(first):
            for j, over_t in enumerate(second):
                if i + j <= n:
                    ways = math.factorial(n) / (math.factorial(i) * math.factorial(j) * math.factorial(n - i - j))
                    total = total + coefficient * ways * gap ** (n - i - j) * over_s * over_t
    return total * jnp.exp(-gap)


def _with_itself(polynomial: tuple[float, ...], h: Array) -> Array:
    """∫_0^h ∫_0^h P(|s - t|) exp(-|s - t|) ds dt = 2 ∫_0^h (h - v) P(v) exp(-v) dv."""
    gammas = _gammas(h, len(polynomial) + 1)
    few = h**2 * sum(
        w * (1.0 - node) * jnp.exp(-h * node) * sum(p * (h * node) ** i for i, p in enumerate(polynomial))
        for node, w in _RULE
    )
    closed = sum(p * (h * gammas[i] - gammas[i + 1]) for i, p in enumerate(polynomial))
    return 2.0 * jnp.where(h < _SHORT, few, closed)


def _matern_over_boxes(polynomial: tuple[float, ...], rate: Array, a: Array, b: Array, c: Array, d: Array) -> Array:
    """∫_a^b ∫_c^d P(rate |s - t|) exp(-rate |s - t|) ds dt rate^2, in pieces without the kink at s = t.

    Of two boxes that meet, the part that both cover lies between a part to the left and one to the right, each of one of them.
    """
    middle = jnp.minimum(b, d) - jnp.maximum(a, c)
    gap, overlap = rate * jnp.maximum(-middle, 0.0), rate * jnp.maximum(middle, 0.0)
    left, right = rate * jnp.abs(a - c), rate * jnp.abs(b - d)
    nested = (a - c) * (b - d) <= 0.0
    num = len(polynomial)
    of_left, of_overlap, of_right = (_gammas(h, num) for h in (left, overlap, right))
    met = (
        _with_itself(polynomial, overlap)
        + _between(polynomial, jnp.zeros_like(gap), of_left, of_overlap)
        + _between(polynomial, jnp.zeros_like(gap), of_overlap, of_right)
        + jnp.where(nested, 0.0, _between(polynomial, overlap, of_left, of_right))
    )
    return jnp.where(
        middle > 0.0, met, _between(polynomial, gap, _gammas(rate * (b - a), num), _gammas(rate * (d - c), num))
    )
