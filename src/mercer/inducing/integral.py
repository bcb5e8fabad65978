"""Integrals of the process over boxes: totals, such as counts of a region or averages over a cell times its volume."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer.inducing.multiscale import Multiscale
from mercer.inducing.quadrature import uniform_rule
from mercer.inducing.weighted import Weighted
from mercer.parameters import as_parameter, constant, is_concrete
from mercer.validation import OneOrMany


class Integral(Weighted):
    """u_m = ∫ f(x) dx over the box lower_m <= x <= upper_m. It is not divided by the volume of the box.

    `lower` and `upper` are [M, D]; numbers, or vectors [D], are the corners of a single box.
    """

    lower: Float[Array, "M D"] = constant()
    upper: Float[Array, "M D"] = constant()

    def __init__(self, lower: OneOrMany, upper: OneOrMany):
        self.lower, self.upper = (_rows(corner) for corner in (lower, upper))

    def __check_init__(self):
        shapes = self.lower.shape, self.upper.shape
        if shapes[0] != shapes[1] or len(shapes[0]) != 2:
            raise ValueError(f"Integral: lower and upper expect one shape [M, D], got {shapes[0]} and {shapes[1]}")
        if is_concrete(self.lower) and is_concrete(self.upper):
            lower, upper = np.asarray(self.lower), np.asarray(self.upper)
            if not (np.isfinite(lower).all() and np.isfinite(upper).all() and (lower < upper).all()):
                wrong = np.argwhere(~(np.isfinite(lower) & np.isfinite(upper) & (lower < upper)))[0]
                raise ValueError(
                    "Integral: lower and upper expect finite values with lower < upper, got "
                    f"{lower[tuple(wrong)]} and {upper[tuple(wrong)]} in row {wrong[0]}, column {wrong[1]}"
                )

    @classmethod
    def gaussian(cls, mean: OneOrMany, scale: OneOrMany) -> Multiscale:
        """Integrals under Gaussian weights N(x; mean_m, diag(scale_m^2)) in place of boxes."""
        return Multiscale(_rows(mean), as_parameter(scale))

    @property
    def num(self):
        return self.lower.shape[0]

    @property
    def dimension(self):
        return self.lower.shape[1]

    def on(self, dims):
        columns = jnp.asarray(dims)
        return Integral(self.lower[:, columns], self.upper[:, columns])

    def masses(self):
        return self.upper - self.lower

    def of_function(self, f):
        """By Gauss-Legendre quadrature: exact to rounding where f is smooth on the scale of the boxes; up to 3 columns."""
        rule = uniform_rule(self.dimension, "Integral variables")
        means = self._of_function(f, rule, 0.5 * (self.lower + self.upper), 0.5 * self.masses())
        return jnp.prod(self.masses(), axis=1)[:, None] * means


def _rows(values: Any) -> Array:
    """A number or a vector as the one row of a matrix, in floating point."""
    return jnp.atleast_2d(as_parameter(values))
