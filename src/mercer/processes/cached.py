"""Exact posteriors with everything worked out that does not depend on the inputs: what `Conditioned.cached()` gives."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.covariances.functionals import cross_covariance, prior_matrix, prior_variance
from mercer.inducing.functionals import as_variables
from mercer.layouts import Layout, independent_outputs, product_in_layout
from mercer.linalg import KroneckerPlusIdentity, matmul
from mercer.parameters import constant
from mercer.processes.base import Process
from mercer.processes.gaussian import Gaussian
from mercer.processes.moments import has_moments, moments_at
from mercer.processes.prior import Moved


class _Cached(Process):
    """A `Conditioned` with alpha = K^-1 r worked out, and what solves with K again."""

    process: eqx.AbstractVar[Any]
    alpha: eqx.AbstractVar[Float[Array, "N P"]]

    @property
    def num_outputs(self):
        return self.process.num_outputs

    @property
    def joint_layout(self):
        return self.process.joint_layout

    @abc.abstractmethod
    def solve(self, values: Float[Array, "N P"]) -> Float[Array, "N P"]:
        """K^-1 applied to values of what was observed."""

    def linear(self, X: Any, weights: Float[Array, "N P"]) -> Float[Array, "M P"]:
        """k(x, X) applied to weights."""
        data = self.process
        if data.is_joint:
            return jnp.einsum("npmq,np->mq", data.joint_cross(X), weights, precision="highest")
        crosses = data.crosses(X)
        return matmul(crosses[0].T, weights) if len(crosses) == 1 else matmul(weights.T[:, None], crosses)[:, 0].T

    def _sample_function(self, key, num_features):
        """Matheron's rule: a draw from the prior, moved by K^-1 times how much it misses the (noisy) data."""
        data = self.process
        key_prior, key_noise = jax.random.split(key)
        deviation = data.prior.sample_deviation(num_features, data.num_outputs, key=key_prior)
        noise = jnp.sqrt(data.noise) * jax.random.normal(key_noise, data.Y.shape, data.Y.dtype)
        missed = jnp.where(data.observed(), as_variables(data.X).of_function(deviation) + noise, 0.0)
        weights = self.alpha - self.solve(missed)
        return Moved(data.prior, deviation, self, weights)


class CachedConditioned(_Cached):
    """A `Conditioned` with W = chol(K)^-1 and alpha = K^-1 r worked out."""

    process: Any = constant()  # the `Conditioned`
    W: Float[Array, "G n n"] = constant()
    alpha: Float[Array, "N P"] = constant()

    def solve(self, values):
        columns = self.process.in_systems(values)[..., None]
        return self.process.from_systems(matmul(self.W.mT, matmul(self.W, columns))[..., 0])

    def _predict(self, X, covariance):
        prior, data = self.process.prior, self.process
        mean = prior.mean_of(X, data.num_outputs) + self.linear(X, self.alpha)
        if data.is_joint:
            return self._predict_jointly(X, mean, covariance)
        # A = W k(X, x), [G, N, M]
        crosses = data.crosses(X)
        A = matmul(self.W, crosses if data.complete else jnp.where(data.observed().T[:, :, None], crosses, 0.0))
        if covariance in ("diag", "outputs"):
            own = jnp.stack([prior_variance(kernel, X) for kernel in data.output_kernels])
            values = jnp.broadcast_to((own - jnp.sum(A**2, axis=1)).T, mean.shape)
        else:
            own = jnp.stack([prior_matrix(kernel, X) for kernel in data.output_kernels])
            values = jnp.broadcast_to(own - matmul(A.mT, A), (mean.shape[1], len(X), len(X)))
        return Gaussian(mean, independent_outputs(values, covariance), covariance)

    def _predict_uncertain(self, x, covariance, key):
        data, variables = self.process, as_variables(self.process.X)
        if not has_moments(data.prior, variables, x, covariance):
            return super()._predict_uncertain(x, covariance, key)
        B, seen = matmul(self.W.mT, self.W), data.observed().T
        B = B if data.complete else jnp.where(seen[:, :, None] & seen[:, None], B, 0.0)
        return moments_at(x, data.prior, variables, self.alpha, B, covariance)

    def _predict_jointly(self, X: Any, mean: Float[Array, "M P"], covariance: Layout) -> Gaussian:
        data = self.process
        cross = data.joint_cross(X).reshape(data.Y.size, -1)
        seen = data.in_systems(data.observed())[0]
        A = matmul(self.W[0], jnp.where(seen[:, None], cross, 0.0)).reshape(data.Y.size, *mean.shape)
        own = data.prior.covariance_of(X, data.num_outputs, covariance)
        return Gaussian(mean, own - product_in_layout(A, A, covariance), covariance)


class CachedKronecker(_Cached):
    """A `Conditioned` on complete data under intrinsic coregionalisation, taken apart into eigenvectors.

    With C = U^T k(X, x), Q = B V (B and V of values divided by sqrt(noise)) and e_ij = a_i b_j + 1, the covariance of output p
    at x and output q at x' is k(x, x') B_pq - sum_ij C_i(x) C_i(x') Q_pj Q_qj / e_ij.
    """

    process: Any = constant()  # the `Conditioned`
    U: Float[Array, "N N"] = constant()
    a: Float[Array, " N"] = constant()
    V: Float[Array, "P P"] = constant()
    b: Float[Array, " P"] = constant()
    scale: Float[Array, " P"] = constant()  # 1 / sqrt(noise)
    alpha: Float[Array, "N P"] = constant()

    def solve(self, values):
        return KroneckerPlusIdentity(self.U, self.a, self.V, self.b).solve(values * self.scale) * self.scale

    def linear(self, X, weights):
        kernel: Any = self.process.prior.kernel
        cross = cross_covariance(as_variables(self.process.X), kernel.kernel, X)
        return matmul(matmul(cross.T, weights), kernel.B)

    def _predict(self, X, covariance):
        data = self.process
        kernel: Any = data.prior.kernel
        mean = data.prior.mean_of(X, data.num_outputs) + self.linear(X, self.alpha)
        C = matmul(self.U.T, cross_covariance(as_variables(data.X), kernel.kernel, X))
        Q = matmul(kernel.B * self.scale, self.V)
        e = self.a[:, None] * self.b + 1.0
        if covariance in ("diag", "inputs"):
            H = matmul(1.0 / e, (Q**2).T)  # [N, P]
            sums = {"diag": "in,in,ip->np", "inputs": "in,im,ip->pnm"}
        else:
            H = jnp.einsum("pj,qj,ij->ipq", Q, Q, 1.0 / e, precision="highest")
            sums = {"outputs": "in,in,ipq->npq", "full": "in,im,ipq->npmq"}
        own = data.prior.covariance_of(X, data.num_outputs, covariance)
        return Gaussian(mean, own - jnp.einsum(sums[covariance], C, C, H, precision="highest"), covariance)
