"""What a mean is: a function of the input, with P outputs."""

import abc

from jaxtyping import Array, Float

from mercer import validation
from mercer.parameters import Module, cast
from mercer.validation import AnyArray


class Mean(Module):
    """A mean function. A new mean says `_values`. Where P is 1, a process uses the values for all its outputs."""

    @abc.abstractmethod
    def _values(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        """m(x) for each row."""

    def __call__(self, X: Float[AnyArray, "N D"]) -> Float[Array, "N P"]:
        """The values of the mean at the rows of X, [N, P]."""
        X = validation.inputs(X)
        return cast(self, X.dtype)._values(X)
