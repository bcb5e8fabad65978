"""Activations: functions sigma(t) of the cosine t of two directions, by their Funk-Hecke coefficients (paper 001, section 4.1.1).

On the sphere in R^d

    sigma(w . x) = sum_n sigma_n sum_j phi_nj(w) phi_nj(x),      sigma_n = E[sigma(t) R_n(t)],

with phi_nj the harmonics of degree n (equation 4.2). The activation of a unit is that of the cosine of its weights and its
input, not of their product: `sharpness` says how quickly it bends between -1 and 1.
"""

import abc
import functools
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer import validation
from mercer.harmonics.funk_hecke import constant_coefficients, rectified_coefficients
from mercer.harmonics.gegenbauer import check_dimension, check_levels, root_num_harmonics
from mercer.parameters import Module

__all__ = ["Activation", "Relu", "Softplus", "Swish", "Erf", "Elementwise"]


class Activation(Module):
    """sigma(t) for t in [-1, 1]. It holds no parameters. Any function is one by `Elementwise`."""

    @abc.abstractmethod
    def __call__(self, t: Float[Array, "..."]) -> Float[Array, "..."]:
        """sigma(t)."""

    @abc.abstractmethod
    def coefficients(self, dimension: int, levels: int) -> np.ndarray:
        """sigma_n on the sphere in R^d for degrees 0 to levels - 1, in double precision."""


class Relu(Activation):
    """max(0, t)."""

    def __call__(self, t):
        return jnp.maximum(t, 0.0)

    def coefficients(self, dimension, levels):
        check_dimension(dimension)
        check_levels(levels)
        return rectified_coefficients(1, dimension, levels)


class _Quadrature(Activation):
    """An activation whose coefficients are found by quadrature. It is smooth in [-1, 0] and in [0, 1]."""

    def coefficients(self, dimension, levels):
        check_dimension(dimension)
        check_levels(levels)
        return _coefficients(self, int(dimension), int(levels))


@functools.lru_cache(maxsize=64)
def _coefficients(activation: _Quadrature, dimension: int, levels: int) -> np.ndarray:
    values = constant_coefficients(activation, dimension, levels)
    if not np.isfinite(values).all():
        raise ValueError(f"{activation!r} expects to be finite between -1 and 1, got NaN or inf there")
    # What is no more than the rounding of the quadrature is 0, as it is for every second degree of many activations. Divided
    # by a small eigenvalue, it would not stay small.
    sizes = np.abs(values) * root_num_harmonics(dimension, levels)
    values = np.where(sizes > 1e-14 * np.max(sizes), values, 0.0)
    values.flags.writeable = False  # it is kept
    return values


class _Sharp(_Quadrature):
    """A smooth activation that bends within 1 / sharpness of 0."""

    sharpness: float = eqx.field(static=True, default=3.0)

    def __check_init__(self):
        if not isinstance(self.sharpness, int | float) or not (math.isfinite(self.sharpness) and self.sharpness > 0.0):
            raise ValueError(f"{type(self).__name__}: sharpness expects a positive number, got {self.sharpness!r}")


class Softplus(_Sharp):
    """log(1 + exp(sharpness t)): t / 2 times the sharpness, and an even function."""

    def __call__(self, t):
        return jax.nn.softplus(self.sharpness * t)


class Swish(_Sharp):
    """t / (1 + exp(-sharpness t)): t / 2, and an even function."""

    def __call__(self, t):
        return t * jax.nn.sigmoid(self.sharpness * t)


class Erf(_Sharp):
    """erf(sharpness t), an odd function: with kernels that have no odd levels above 1 only a linear function is left of it."""

    def __call__(self, t):
        return jax.scipy.special.erf(self.sharpness * t)


class Elementwise(_Quadrature):
    """fn(t), for any function of each entry of an array that is smooth in [-1, 0] and in [0, 1].

    fn is not a parameter, and holds none. A file holds its name: `mercer.io.register` makes it known, if JAX does not have it.
    """

    fn: Callable[[Array], Array] = eqx.field(static=True)

    def __check_init__(self):
        validation.elementwise(self.fn, "Elementwise: fn")

    def __call__(self, t):
        return self.fn(t)
