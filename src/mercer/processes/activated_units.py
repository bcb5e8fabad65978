"""The functions of activated variables as a layer of a network, to be trained as one at first (paper 001, section 4.2)."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.covariances import Kuf
from mercer.inducing import Activated
from mercer.inducing.activations import Activation, Softplus
from mercer.kernels import ArcCosine
from mercer.parameters import Module, param, real


class ActivatedUnits(Module):
    """c r |w_m| sigma(cos(w_m, [x, 1])), r = |[x, 1]|, w_m = [weight_m, bias_m], of degrees below `levels`: [D] to [M].

    It stands in an `equinox.nn.Sequential` where a `Linear` and a `Lambda(activation)` would; c makes its linear part that of
    rectified units, half of weight_m . x + bias_m. A process made of it by `Deep.from_network` has these very functions, and
    its prior has nothing to add. The numbers begin as those of `equinox.nn.Linear` do.
    """

    weight: Float[Array, "M D"] = param(real)
    bias: Float[Array, " M"] = param(real)
    activation: Activation
    levels: int = eqx.field(static=True)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        activation: Activation | None = None,
        levels: int = 20,
        *,
        dtype: jnp.dtype | None = None,
        key: PRNGKeyArray,
    ):
        linear = eqx.nn.Linear(in_features, out_features, dtype=dtype, key=key)
        self.weight, self.bias = linear.weight, linear.bias
        self.activation, self.levels = Softplus() if activation is None else activation, levels

    def __call__(self, x: Float[Array, " D"], *, key: PRNGKeyArray | None = None) -> Float[Array, " M"]:
        """The units at one input."""
        kernel = ArcCosine()
        variables = Activated.of_layer(kernel, self.weight, self.bias, self.activation, self.levels)
        return scale_of(variables).astype(x.dtype) * Kuf(variables, kernel, x[None])[:, 0]


def scale_of(variables: Activated) -> Float[Array, ""]:
    """c with which the linear part of c g is half of its argument, as that of rectified and other common units is."""
    d = variables.dimension
    slope = d * float(variables.activation.coefficients(d, 2)[1])
    if slope <= 0.0:
        raise ValueError(f"activation expects one that grows, got {variables.activation!r}")
    return jnp.asarray(0.5 / slope, variables.W.dtype)
