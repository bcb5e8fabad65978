"""What a feature map is: for each output, F functions of the input, to which a network gives weights."""

import abc
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer import validation
from mercer.errors import MercerError
from mercer.modules import OfRows
from mercer.parameters import cast, is_concrete
from mercer.validation import AnyArray


class Features(OfRows):
    """phi, from [N, D] to [Q, N, F]: F features for each output, or (Q = 1) the same ones for all outputs.

    Outputs have weights of their own, f_p = w_p . phi_p; where the features are `joint` they share one vector of them,
    f_p = w . phi_p, and so covary. A new map says `values`.
    """

    @property
    @abc.abstractmethod
    def num(self) -> int:
        """F."""

    @property
    def num_outputs(self) -> int | None:
        """P, where features differ between outputs; None, where they serve any number of them."""
        return None

    @property
    def joint(self) -> bool:
        """Whether the outputs share their weights."""
        return False

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the arrays that the weights are, in this order: the layers of a module."""
        return ((self.num,),)

    @abc.abstractmethod
    def values(self, X: Float[Array, "N D"]) -> Float[Array, "Q N F"]:
        """phi(X), of inputs that have been checked."""

    def offset(self, X: Float[Array, "N D"]) -> Float[Array, "N P"] | None:
        """What a network is where its weights are 0; None stands for 0."""
        return None

    def parameters(self) -> Float[Array, "L F"] | None:
        """The parameters that the weights are changes of, where features are derivatives; None elsewhere."""
        return None

    def __call__(self, X: Float[AnyArray, "N D"]) -> Float[Array, "Q N F"]:
        """The features at the rows of X."""
        X = validation.inputs(X)
        values = cast(self, X.dtype).values(X)
        self._check(values)
        return values

    def of_rows(self, X):
        if self.num_outputs not in (None, 1):
            raise ValueError(
                f"{type(self).__name__} has features for each of {self.num_outputs} outputs, where those of one are expected"
            )
        return self.values(X)[0]

    def check(self, dimension: int, dtype=jnp.float32) -> None:
        """Refuses a map that fails on rows of so many columns, or gives something else than it says."""
        probe = jax.ShapeDtypeStruct((2, dimension), dtype)
        shape = jax.eval_shape(lambda X: cast(self, dtype).values(X), probe).shape
        expected = (self.num_outputs or 1, 2, self.num)
        if shape != expected:
            raise ValueError(
                f"{type(self).__name__} expects to give features of shape {expected} for 2 rows, got {shape}"
            )

    def _check(self, values: Array) -> None:
        if is_concrete(values) and not validation.is_finite(values):
            raise FeatureError(f"{type(self).__name__} gives features that are NaN or infinite: look at its parameters")


class FeatureError(MercerError):
    """Features that are not numbers."""


def num_weights(blocks: tuple[tuple[int, ...], ...]) -> int:
    """How many weights arrays of these shapes hold."""
    return sum(math.prod(shape) for shape in blocks)
