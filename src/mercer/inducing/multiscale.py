"""Multiscale variables: the process averaged under Gaussian windows of any width.

Lazaro-Gredilla and Figueiras-Vidal (2009); paper 004, section 6.2. Wide windows let few variables represent slow changes.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer import validation
from mercer.inducing.quadrature import gaussian_rule
from mercer.inducing.weighted import Weighted
from mercer.parameters import is_concrete, param, positive, real


class Multiscale(Weighted):
    """u_m = ∫ N(x; z_m, diag(scales_m^2)) f(x) dx: as the scales tend to 0, the values f(z_m) of `Points`.

    `scales` is one number, one for each input column [D], or one for each column of each variable [M, D].
    """

    Z: Float[Array, "M D"] = param(real)
    scales: Array = param(positive)

    def __check_init__(self):
        if is_concrete(self.Z):
            validation.inputs(self.Z, "Z")
        M, D = self.Z.shape
        if jnp.shape(self.scales) not in ((), (D,), (M, D)):
            raise ValueError(
                f"Multiscale: scales expects a number or shape ({D},) or ({M}, {D}) for Z of shape ({M}, {D}), "
                f"got {jnp.shape(self.scales)}"
            )

    @property
    def num(self):
        return self.Z.shape[0]

    @property
    def dimension(self):
        return self.Z.shape[1]

    def widths(self) -> Float[Array, "M D"]:
        """The scales, one for each column of each variable."""
        return jnp.broadcast_to(self.scales.astype(self.Z.dtype), self.Z.shape)

    def on(self, dims):
        columns = jnp.asarray(dims)
        return Multiscale(self.Z[:, columns], self.scales if self.scales.ndim == 0 else self.scales[..., columns])

    def masses(self):
        return jnp.ones_like(self.Z)

    def of_function(self, f):
        """By Gauss-Hermite quadrature: good where f is smooth on the scale of the windows, and for up to 3 columns."""
        return self._of_function(f, gaussian_rule(self.dimension, "Multiscale variables"), self.Z, self.widths())
