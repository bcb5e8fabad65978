"""Inducing points: the variables u are the function's values at chosen inputs Z."""

from jaxtyping import Array, Float

from mercer import validation
from mercer.inducing.base import InducingVariables
from mercer.parameters import is_concrete, param, real


class Points(InducingVariables):
    """u_m = f(z_m)."""

    pointwise = True

    Z: Float[Array, "M D"] = param(real)

    def __check_init__(self):
        if is_concrete(self.Z):
            validation.inputs(self.Z, "Z")

    @property
    def num(self):
        return self.Z.shape[0]

    def of_function(self, f):
        return f(self.Z)
