"""Derivatives of the process: slopes at chosen inputs, as variables, observations or questions."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer import validation
from mercer.inducing.base import InducingVariables
from mercer.parameters import is_concrete, param, real


class Derivative(InducingVariables):
    """u_m = d f / d x_dim at x_m."""

    pointwise = True

    X: Float[Array, "M D"] = param(real)
    dim: int = eqx.field(static=True)

    def __check_init__(self):
        if is_concrete(self.X):
            validation.inputs(self.X)
        D = self.X.shape[-1]
        if not isinstance(self.dim, int) or isinstance(self.dim, bool) or not 0 <= self.dim < D:
            raise ValueError(f"Derivative: dim expects the number of a column of X, 0 to {D - 1}, got {self.dim!r}")

    @property
    def num(self):
        return self.X.shape[0]

    def direction(self) -> Float[Array, "M D"]:
        """A step along `dim` from every row of X."""
        return jnp.zeros_like(self.X).at[:, self.dim].set(1.0)

    def of_function(self, f):
        return jax.jvp(f, (self.X,), (self.direction(),))[1]
