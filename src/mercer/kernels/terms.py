"""Kernels that are sums of a Gaussian bump times linear functions: those whose expectations under Gaussian inputs are closed.

A term is k(z, x) = variance exp(-sum_d precision_d (z_d - x_d)^2 / 2) prod_j (sum_d w_jd z_d x_d). `RBF` is a bump alone,
`Linear` a linear function alone, `Constant` neither. The product of two terms is a term, on whatever columns each of them is.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float
from plum import Dispatcher

from mercer.kernels.base import Kernel, OnDimensions, Product, Scaled, Sum
from mercer.kernels.dot_product import Linear, Polynomial
from mercer.kernels.static import Constant
from mercer.kernels.stationary import RBF

_dispatch: Any = Dispatcher()


class GaussianTerm(NamedTuple):
    """variance exp(-sum_d precision_d (z_d - x_d)^2 / 2) prod_j (sum_d w_jd z_d x_d)."""

    variance: Array
    precision: Float[Array, " D"]
    linear: tuple[Float[Array, " D"], ...] = ()  # the w_j


@_dispatch
def gaussian_terms(kernel: Kernel, dimension: int) -> tuple[GaussianTerm, ...] | None:
    """The terms of a kernel on inputs of `dimension` columns, or None; open, so that a user's kernel can say its own."""
    return None


@gaussian_terms.dispatch
def _(kernel: RBF, dimension: int) -> Any:
    lengthscale = kernel.per_column("lengthscale", jnp.zeros((1, dimension)))
    return (GaussianTerm(kernel.variance, jnp.broadcast_to(lengthscale**-2.0, (dimension,))),)


@gaussian_terms.dispatch
def _(kernel: Linear, dimension: int) -> Any:
    w = jnp.broadcast_to(kernel.per_column("variance", jnp.zeros((1, dimension))), (dimension,))
    return (GaussianTerm(jnp.ones((), w.dtype), jnp.zeros_like(w), (w,)),)


@gaussian_terms.dispatch
def _(kernel: Polynomial, dimension: int) -> Any:
    w = jnp.broadcast_to(kernel.per_column("variance", jnp.zeros((1, dimension))), (dimension,))
    powers = range(kernel.degree + 1)
    sizes = [math.comb(kernel.degree, power) * kernel.offset ** (kernel.degree - power) for power in powers]
    return tuple(GaussianTerm(size, jnp.zeros_like(w), (w,) * power) for size, power in zip(sizes, powers, strict=True))


@gaussian_terms.dispatch
def _(kernel: Constant, dimension: int) -> Any:
    return (GaussianTerm(kernel.variance, jnp.zeros(dimension, kernel.variance.dtype)),)


@gaussian_terms.dispatch
def _(kernel: Scaled, dimension: int) -> Any:
    terms = gaussian_terms(kernel.kernel, dimension)
    return terms and tuple(GaussianTerm(kernel.scale * t.variance, t.precision, t.linear) for t in terms)


@gaussian_terms.dispatch
def _(kernel: OnDimensions, dimension: int) -> Any:
    dims = jnp.asarray(kernel.dims)

    def placed(values):
        return jnp.zeros(dimension, values.dtype).at[dims].set(values)

    terms = gaussian_terms(kernel.kernel, len(kernel.dims))
    return terms and tuple(GaussianTerm(t.variance, placed(t.precision), tuple(map(placed, t.linear))) for t in terms)


@gaussian_terms.dispatch
def _(kernel: Sum, dimension: int) -> Any:
    parts = [gaussian_terms(each, dimension) for each in kernel.kernels]
    return None if None in parts else tuple(term for part in parts for term in part)


@gaussian_terms.dispatch
def _(kernel: Product, dimension: int) -> Any:
    found: tuple[GaussianTerm, ...] | None = None
    for each in kernel.kernels:
        terms = gaussian_terms(each, dimension)
        if terms is None:
            return None
        found = terms if found is None else tuple(_product(a, b) for a in found for b in terms)
    return found


def _product(a: GaussianTerm, b: GaussianTerm) -> GaussianTerm:
    return GaussianTerm(a.variance * b.variance, a.precision + b.precision, a.linear + b.linear)
