"""Features that are foreign modules: the outputs of one, or its derivatives in its own parameters.

A module g(x; W) linearised at its parameters, g(x; W) + J(x) w, is a network whose features are the rows of the Jacobian J, and
their inner products its neural tangent kernel (paper 002, section 4.2).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from mercer import modules
from mercer.features.base import Features, num_weights
from mercer.parameters import param, real


class Basis(Features):
    """The outputs of a module that takes a row [D] to [F]: adaptive basis functions, the same for all outputs.

    `dimension` is D, for modules that do not say how many columns they take.
    """

    size: int = eqx.field(static=True)
    module: modules.Module = param(real)

    def __init__(self, module: modules.Module, dimension: int | None = None):
        modules.check_module(module, "Basis")
        self.module = module
        self.size = modules.output_size(module, modules.input_size(module, dimension, "Basis"), "Basis")

    @property
    def num(self):
        return self.size

    def values(self, X):
        return modules.of_rows(self.module, X, "Basis")[None]


class Tangent(Features):
    """The derivatives of a module in all of its parameters: a network with them is the module, linearised where it stands.

    The module takes a row [D] to [P]. Its outputs share the weights, of which there is one for each parameter. At weights 0 the
    network is the module itself. `dimension` as in `Basis`.
    """

    outputs: int = eqx.field(static=True)
    module: modules.Module = param(real)

    def __init__(self, module: modules.Module, dimension: int | None = None):
        modules.check_module(module, "Tangent")
        self.module = module
        self.outputs = modules.output_size(module, modules.input_size(module, dimension, "Tangent"), "Tangent")
        if not self.blocks:
            raise ValueError("Tangent: module expects to have parameters, got one without")

    def _parts(self) -> tuple[Any, Any]:
        """The parameters, and the rest."""
        return eqx.partition(self.module, eqx.is_inexact_array)

    @property
    def blocks(self):
        return tuple(leaf.shape for leaf in jax.tree.leaves(self._parts()[0]))

    @property
    def num(self):
        return num_weights(self.blocks)

    @property
    def num_outputs(self):
        return self.outputs

    @property
    def joint(self):
        return self.outputs > 1

    def parameters(self):
        return ravel_pytree(self._parts()[0])[0][None]

    def offset(self, X):
        return modules.of_rows(self.module, X, "Tangent")

    def values(self, X):
        parameters, rest = self._parts()
        flat, unravel = ravel_pytree(parameters)

        def values(flat, x):
            return eqx.combine(unravel(flat), rest)(x)

        return jnp.moveaxis(jax.vmap(jax.jacrev(values), in_axes=(None, 0))(flat, X), 1, 0)
