"""Variables that are integrals of the process under weights, u_m = ∫ w_m(x) f(x) dx (paper 004, section 3.2).

The weights here are products of one function for each input column. A kernel that is a product over columns then has
covariances that are products, too, and a kernel that does not see a column leaves the mass of the weight along it.
"""

import abc
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer.inducing.base import InducingVariables
from mercer.linalg.products import matmul


class Weighted(InducingVariables):
    """u_m = ∫ w_m1(x_1) ... w_mD(x_D) f(x) dx."""

    @property
    @abc.abstractmethod
    def dimension(self) -> int:
        """D, the number of input columns."""

    @abc.abstractmethod
    def on(self, dims: Sequence[int]) -> "Weighted":
        """The same weights, of some of the columns only."""

    @abc.abstractmethod
    def masses(self) -> Float[Array, "M D"]:
        """∫ w_md(x) dx, the integral of each factor."""

    def _of_function(self, f, rule: tuple[np.ndarray, np.ndarray], centre: Array, radius: Array) -> Float[Array, "M P"]:
        """Means of f under a rule whose nodes are put at centre + radius * node; centre and radius are [M, D]."""
        nodes, weights = (jnp.asarray(part, centre.dtype) for part in rule)
        points = centre[:, None] + radius[:, None] * nodes
        values = f(points.reshape(-1, self.dimension))
        return matmul(weights, values.reshape(self.num, len(weights), -1))
