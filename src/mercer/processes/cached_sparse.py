"""A sparse posterior with everything worked out that does not depend on the inputs: what `Sparse.cached()` gives."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.covariances.functionals import prior_matrix, prior_variance
from mercer.inducing.functionals import is_functional
from mercer.layouts import product_in_layout
from mercer.linalg.loops import for_each
from mercer.linalg.products import map_rows, matmul, triangular_matmul
from mercer.parameters import constant
from mercer.processes.base import Process, wider
from mercer.processes.gaussian import Gaussian
from mercer.processes.structure import weighted


class CachedSparse(Process):
    """A `Sparse` whose prediction is one product with Kuf for the mean and one for the variance.

    With C = R^-1 Kuf, I - L L^T = U diag(s) U^T and F = U^T R^-1, the variance is k - sum_m s_m (F Kuf)_m^2: one product, as
    with an explicit inverse, but as accurate as a solve, because U is orthogonal.

    Where Kuu is diagonal, s is 1 / diag(Kuu), F is L^T R^-1, which is upper triangular, and the variance is
    k - sum_m s_m Kuf_m^2 + |F Kuf|^2: half the products, and nothing that float32 would spoil.
    """

    process: Any = constant()  # the `Sparse`
    weights: Float[Array, "M L"] = constant()  # R^-T q_mu
    F: Float[Array, "L M M"] = constant()
    s: Float[Array, "L M"] = constant()
    diagonal: bool = eqx.field(static=True, default=False)  # whether Kuu is

    @property
    def num_outputs(self):
        return self.process.num_outputs

    def _predict_uncertain(self, x, covariance, key):
        return self.process._predict_uncertain(x, covariance, key)

    @property
    def joint_layout(self):
        return self.process.joint_layout

    def check_inputs(self, X):
        self.process.check_inputs(X)

    def working_dtype(self, dtype):
        return self.process.working_dtype(dtype) if self.diagonal else wider(dtype, self.F.dtype)

    def _predict(self, X, covariance):
        if covariance == "diag" and not is_functional(X):
            mean, values = map_rows(lambda rows: tuple(self._at(rows, covariance)), X)
            return Gaussian(mean, values, covariance)
        return self._at(X, covariance)

    def _at(self, X, covariance):
        process = self.process
        return process.structure.predict(
            process.prior, X, process.num_outputs, covariance, self._of_functions, self._of_columns
        )

    def _factors(self, cross: Float[Array, "#L M N"]) -> tuple[Array, Array, Array | None]:
        """A, s and B with the reduction of the covariance A^T diag(s) A - B^T B. B = None is 0."""
        if self.diagonal:
            cross = jax.lax.optimization_barrier(cross)  # else XLA works it out again for each use
            # Of small matrices the whole product is quicker than the blocks that are not 0 (measured on the CPU).
            small = cross.shape[-2] < 512
            return cross, self.s, matmul(self.F, cross) if small else triangular_matmul(self.F, cross, left="upper")
        return matmul(self.F, cross), self.s, None

    def _of_functions(self, X, joint):
        structure: Any = self.process.structure
        cross = structure.crosses(X)
        mean, (A, s, B) = weighted(cross, self.weights), self._factors(cross)
        prior = for_each(lambda pair: (prior_matrix if joint else prior_variance)(pair[1], X), structure.pairs)
        if joint:
            values = prior - matmul(A.mT, s[..., None] * A)
            return mean, values if B is None else values + matmul(B.mT, B)
        if B is not None:
            return mean, (prior + jnp.sum(B**2 - s[..., None] * A**2, axis=1)).T
        # As a product, of which XLA does not make one scalar loop with all that A comes from.
        return mean, prior.T - matmul(s[:, None], A**2)[:, 0].T

    def _of_columns(self, cross, covariance):
        A, s, B = self._factors(cross.reshape(*cross.shape[:2], -1))
        A = A.reshape(-1, *cross.shape[2:])
        reduction = product_in_layout(s.reshape(-1, 1, 1) * A, A, covariance)
        if B is not None:
            B = B.reshape(-1, *cross.shape[2:])
            reduction = reduction - product_in_layout(B, B, covariance)
        return jnp.einsum("lmnp,ml->np", cross, self.weights, precision="highest"), reduction

    def _sample_function(self, key, num_features):
        return self.process._sample_function(key, num_features)
