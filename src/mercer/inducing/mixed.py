"""Several kinds of variables of one process: values and slopes, values and totals, ..."""

from collections.abc import Sequence

import jax.numpy as jnp

from mercer.inducing.base import InducingVariables


class Mixed(InducingVariables):
    """The variables of each part, one after another."""

    parts: tuple[InducingVariables, ...]

    def __init__(self, parts: Sequence[InducingVariables]):
        self.parts = tuple(parts)

    def __check_init__(self):
        if not self.parts or not all(isinstance(part, InducingVariables) for part in self.parts):
            raise ValueError(f"Mixed: parts expects one or more inducing variables, got {self.parts!r}")

    @property
    def pointwise(self):  # type: ignore[override]
        return all(part.pointwise for part in self.parts)

    @property
    def num(self):
        return sum(part.num for part in self.parts)

    def of_function(self, f):
        return jnp.concatenate([part.of_function(f) for part in self.parts])
