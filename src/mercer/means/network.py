"""A mean that is a neural network, or any other function with parameters."""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float

from mercer.means.base import Mean
from mercer.parameters import param, real


class Network(Mean):
    """module(x): an `equinox` module that takes a row [D] to [P]. All of its arrays are parameters."""

    module: Callable[[Float[Array, " D"]], Float[Array, " P"]] = param(real)

    def __check_init__(self):
        if not callable(self.module):
            raise ValueError(f"Network: module expects a function of a row of X, got {self.module!r}")

    def _values(self, X):
        values = jax.vmap(self.module)(X)
        if values.ndim != 2:
            raise ValueError(
                f"Network: module expects to return a vector [P] for a row of X, got shape {values.shape[1:]}"
            )
        return values
