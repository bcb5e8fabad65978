"""The collapsed bound at uncertain inputs (Titsias and Lawrence, 2010): covariances in it are averaged over q(x_n).

C_n becomes W psi1_n, C_n C_n^T becomes W psi2_n W^T, and k_nn psi0_n, with W = R^-1. The products are summed over the data block
by block, with one sum for all outputs unless some are missing or have noise of their own.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.covariances import Kuu, psi0, psi1, psi2_sum
from mercer.inputs import Normal
from mercer.linalg import matmul
from mercer.linalg.regression import Regression
from mercer.model import Model
from mercer.objectives.base import Batch
from mercer.objectives.variational import latent_rows
from mercer.processes import Process, Sparse, Uncertain
from mercer.processes.moments import has_moments


class AveragedTerms(NamedTuple):
    """What the bound is made of, for one system for each output. A first axis of length 1 is shared by the systems."""

    mean: Float[Array, "m n"]  # E C
    gram: Float[Array, "#S m m"]  # sum_n lambda_n E C_n C_n^T
    own: Float[Array, " n"]  # psi0
    residual: Float[Array, "S n"]
    observed: Array
    noise: Float[Array, "S n"]

    @classmethod
    def of(
        cls, posterior: Sparse, x: Normal, residual: Array, observed: Array, noise: Array, shared: bool
    ) -> "AveragedTerms":
        """`shared` says that all outputs have the same precisions."""
        pair = posterior.structure.pairs[0]
        operator = Kuu(*pair)
        W = operator.whiten(jnp.eye(operator.size, dtype=residual.dtype))
        precision = _precision(observed, noise)[:1] if shared else _precision(observed, noise)
        gram = matmul(matmul(W, psi2_sum(*pair, x, precision.T)), W.T)
        return cls(matmul(W, psi1(*pair, x)), gram, psi0(pair[1], x), residual, observed, noise)

    def lost(self) -> Float[Array, ""]:
        """sum_n lambda_n (psi0_n - tr(W psi2_n W^T)) / 2, over all systems."""
        explained = jnp.sum(jnp.trace(self.gram, axis1=1, axis2=2)) * (len(self.residual) / len(self.gram))
        return 0.5 * (jnp.sum(_precision(self.observed, self.noise) * self.own) - explained)

    def regression(self, noise: Float[Array, "S n"]) -> Regression:
        """B and b of the best q(v). The noise is that of the terms."""
        return Regression.of(self.gram, matmul(_precision(self.observed, noise) * self.residual, self.mean.T))


def _precision(observed: Array, noise: Array) -> Array:
    return jnp.where(observed, 1.0 / noise, 0.0)


def sparse_of(posterior: Process) -> Any:
    """The process whose inducing variables a collapsed bound solves for."""
    return posterior.process if isinstance(posterior, Uncertain) else posterior


def inputs_of(model: Model, batch: Batch) -> Any:
    """The inputs of a batch, or their distribution."""
    rows = latent_rows(model, batch)
    return batch.X if rows is None else rows.inputs()


def check_expectations(posterior: Sparse, x: Normal) -> None:
    """Refuses what has no collapsed bound at uncertain inputs."""
    pairs = posterior.structure.pairs
    if len(pairs) > 1 or not has_moments(posterior.prior, pairs[0][0], x, "diag"):
        raise ValueError(
            "CollapsedELBO at uncertain inputs needs a kernel of one output whose expectations are known, inducing variables "
            f"that all outputs share, and a constant mean, got {type(posterior.prior.kernel).__name__} with "
            f"{type(posterior.inducing).__name__} and {type(posterior.prior.mean).__name__}; ELBO takes any"
        )
