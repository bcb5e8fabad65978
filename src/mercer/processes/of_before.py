"""What code of before asks of a posterior that `fit` gives back today, and that was the trained prior then.

All of it works as it did, with a DeprecationWarning.
"""

from typing import Any

import equinox as eqx
import numpy as np

from mercer.deprecation import warn
from mercer.inducing.functionals import is_functional
from mercer.kernels import Kernel, MultioutputKernel
from mercer.means import Mean
from mercer.parameters import all_concrete
from mercer.processes.base import Process
from mercer.processes.prior import GP


class FittedPrior(Process):
    """An exact posterior that answers for its prior."""

    prior: eqx.AbstractVar[GP]

    @property
    def kernel(self) -> Kernel | MultioutputKernel:
        """The kernel of the prior."""
        warn("the kernel of an exact posterior is that of its prior: posterior.prior.kernel")
        return self.prior.kernel

    @property
    def mean(self) -> Mean:
        """The mean function of the prior."""
        warn("the mean of an exact posterior is that of its prior: posterior.prior.mean")
        return self.prior.mean

    def latents(self) -> GP:
        """The latent functions of the prior."""
        warn("the latent functions of an exact posterior are those of its prior: posterior.prior.latents()")
        return self.prior.latents()


def as_prior(process: Any, owner: str) -> Any:
    """A process as it is; of an exact posterior, its prior."""
    if not isinstance(process, FittedPrior):
        return process
    warn(f"{owner}: the prior of what fit gives is model.posterior.prior; model.posterior is the posterior", depth=2)
    return process.prior


def holds_all(more: Any, before: Any) -> bool:
    """Whether the data of an exact posterior are among those of another, as far as can be seen."""
    if not all_concrete((more.X, more.Y, before.X, before.Y)):
        return False
    if is_functional(more.X) or is_functional(before.X):
        return bool(eqx.tree_equal(more.X, before.X)) and np.array_equal(more.Y, before.Y, equal_nan=True)
    if more.X.shape[1] != before.X.shape[1] or len(more.X) < len(before.X):
        return False
    return _rows(before) <= _rows(more)


def _rows(process: Any) -> set[bytes]:
    rows = np.concatenate([np.asarray(process.X), np.asarray(process.Y)], axis=1).astype(float)
    return {row.tobytes() for row in np.where(np.isnan(rows), np.nan, rows + 0.0)}
