"""Integrals under weights, and kernels made of others.

The covariance with a sum of kernels is the sum of the covariances. A weight that is a product over columns has, with a
product of kernels that see different columns, the product of the covariances of its averages (weights of mass 1).
"""

import functools
import operator
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array

from mercer import validation
from mercer.covariances.dispatch import Kuf, Kuu, Kuv
from mercer.inducing.weighted import Weighted
from mercer.kernels.base import Kernel, OnDimensions, Product, Scaled, Sum
from mercer.kernels.static import Constant
from mercer.linalg.operators import PSD, Dense
from mercer.parameters import cast


@Kuu.dispatch
def _(inducing: Weighted, kernel: Sum | Scaled | Product) -> PSD:
    return Dense(_combined(kernel, inducing, _mass(inducing, inducing), lambda k: Kuu(inducing, k).dense()))


@Kuu.dispatch
def _(inducing: Weighted, kernel: OnDimensions | Constant) -> PSD:
    return Dense(Kuv(inducing, kernel, inducing))


@Kuf.dispatch
def _(inducing: Weighted, kernel: Sum | Scaled | Product, X) -> Array:
    X = inputs(inducing, X)
    return _combined(kernel, inducing, _mass(inducing), lambda k: Kuf(inducing, k, X))


@Kuf.dispatch
def _(inducing: Weighted, kernel: OnDimensions, X) -> Array:
    X = inputs(inducing, X)
    seen, mass = _split(inducing, kernel)
    return mass[:, None] * Kuf(seen, kernel.kernel, X[:, jnp.asarray(kernel.dims)])


@Kuf.dispatch
def _(inducing: Weighted, kernel: Constant, X) -> Array:
    X = inputs(inducing, X)
    return kernel.variance.astype(X.dtype) * jnp.broadcast_to(_mass(inducing), (inducing.num, len(X)))


@Kuv.dispatch
def _(first: Weighted, kernel: Sum | Scaled | Product, second: Weighted) -> Array:
    return _combined(kernel, first, _mass(first, second), lambda k: Kuv(first, k, second))


@Kuv.dispatch
def _(first: Weighted, kernel: OnDimensions, second: Weighted) -> Array:
    (left, left_mass), (right, right_mass) = _split(first, kernel), _split(second, kernel)
    return left_mass[:, None] * right_mass * Kuv(left, kernel.kernel, right)


@Kuv.dispatch
def _(first: Weighted, kernel: Constant, second: Weighted) -> Array:
    mass = _mass(first, second)
    return cast(kernel, mass.dtype).variance * mass


def inputs(inducing: Weighted, X) -> Array:
    """X, checked to have the columns that the variables are about."""
    X = validation.inputs(X)
    if X.shape[1] != inducing.dimension:
        raise ValueError(
            f"{type(inducing).__name__} of functions of {inducing.dimension} columns expects X with as many, got {X.shape[1]}"
        )
    return X


def _mass(first: Weighted, second: Weighted | None = None) -> Array:
    """The product of the masses of the weights, [M, 1] of one set of variables or [M1, M2] of two."""
    left = jnp.prod(first.masses(), axis=1)[:, None]
    return left if second is None else left * jnp.prod(second.masses(), axis=1)


def _split(inducing: Weighted, kernel: OnDimensions) -> tuple[Weighted, Array]:
    """The variables on the columns that the kernel sees, and the mass [M] of their weights on the others."""
    if max(kernel.dims) >= inducing.dimension:
        raise ValueError(f"dims {kernel.dims} expects variables of more columns, got {inducing.dimension}")
    others = [d for d in range(inducing.dimension) if d not in kernel.dims]
    return inducing.on(kernel.dims), jnp.prod(inducing.masses()[:, jnp.asarray(others, int)], axis=1)


@functools.singledispatch
def _combined(kernel: Kernel, inducing: Weighted, mass: Array, covariance: Callable[[Kernel], Array]) -> Array:
    """The covariance with a kernel made of parts, from those with the parts."""
    raise NotImplementedError


@_combined.register
def _(kernel: Scaled, inducing, mass, covariance):
    value = covariance(kernel.kernel)
    return kernel.scale.astype(value.dtype) * value


@_combined.register
def _(kernel: Sum, inducing, mass, covariance):
    return functools.reduce(operator.add, map(covariance, kernel.kernels))


@_combined.register
def _(kernel: Product, inducing, mass, covariance):
    seen = [part.columns(inducing.dimension) for part in kernel.kernels]
    if sum(map(len, seen)) > len(set().union(*seen)):
        raise ValueError(
            f"{type(inducing).__name__} with a Product expects factors that see different columns, as in "
            f"RBF().on(0) * RBF().on(1), got factors on {', '.join(str(sorted(columns)) for columns in seen)}"
        )
    return mass * functools.reduce(operator.mul, (covariance(part) / mass for part in kernel.kernels))
