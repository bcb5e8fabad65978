"""What inducing variables are: M linear functionals of a process, u = A f, through which a sparse posterior sees it.

They know nothing of inference. What they have to say is in `mercer.covariances`: `Kuu` and `Kuf`, chosen by the pair of
inducing variables and kernel.
"""

import abc
from collections.abc import Callable

from jaxtyping import Array, Float

from mercer.parameters import Module


class InducingVariables(Module):
    """M linear functionals of a Gaussian process."""

    @property
    @abc.abstractmethod
    def num(self) -> int:
        """M, the number of variables."""

    def of_function(self, f: Callable[[Float[Array, "N D"]], Float[Array, "N P"]]) -> Float[Array, "M P"]:
        """The variables of a given function. Needed to draw sample paths."""
        raise ValueError(f"{type(self).__name__} cannot be evaluated on a function, so sample paths cannot be drawn")
