"""What inducing variables are: M linear functionals of a process, u = A f, through which a sparse posterior sees it.

They know nothing of inference. What they have to say is in `mercer.covariances`: `Kuu` and `Kuf`, chosen by the pair of
inducing variables and kernel. The same objects serve as observations through a linear operator (`mercer.Conditioned`), and as
questions (`process.predict`).
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

from jaxtyping import Array, Float

from mercer.parameters import Module


class InducingVariables(Module):
    """M linear functionals of a Gaussian process."""

    # Whether `of_function` is exact for any smooth function, because the variables depend on it near some points only.
    pointwise: ClassVar[bool] = False
    # Whether the variables hold no inputs, so that with k.on(dims) they are those of k, and `Kuf` sees the columns dims of X.
    free_of_inputs: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def num(self) -> int:
        """M, the number of variables."""

    def __len__(self) -> int:
        return self.num

    def check_inputs(self, X: Float[Array, "N D"]) -> None:
        """Refuses inputs at which the variables say nothing. Called before anything is compiled."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, InducingVariables):
                    part.check_inputs(X)

    def check_kernel(self, kernel: Any) -> None:
        """Says what of the variables a kernel makes no use of. Called when a posterior is made."""

    def of_function(self, f: Callable[[Float[Array, "N D"]], Float[Array, "N P"]]) -> Float[Array, "M P"]:
        """The variables of a given function. Needed to draw sample paths, and for a mean that is not zero."""
        raise ValueError(f"{type(self).__name__} cannot be evaluated on a function, so sample paths cannot be drawn")
