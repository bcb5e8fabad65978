"""Functional variational Bayes for networks (Sun, Zhang, Shi and Grosse, 2019): what mirror descent is compared with.

In each step the bound of a minibatch is taken at its inputs and at measurement points,

    -mean_n E_q log p(y_n | f_n) + weight KL[q(f_B, f_M) || p(f_B, f_M)],

with weight 1 / n, as its authors do, where the bound of all data has 1 / N: each minibatch is fitted as if it were all there is,
and the posterior is wider than that of all the data. The density of q is not asked for: the gradient of the divergence is
E[(grad log q(f) - grad log p(f)) df], over samples f, with an estimate of the first term from the samples alone.
"""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.likelihoods.of_predictions import expected_log_prob
from mercer.linalg import eigh, inverse_factor, matmul
from mercer.linalg.products import for_each_entry
from mercer.model import align
from mercer.objectives.base import TrainingObjective
from mercer.objectives.measurement import Measurement
from mercer.objectives.mirror_descent import check_at_inputs, check_prior_and_points, still
from mercer.parameters import constant
from mercer.processes import Gaussian, Process


class FBNN(TrainingObjective):
    """The functional bound of a minibatch and measurement points, with a spectral estimate of the gradient of log q.

    `weight` is "batch", 1 / n, or "data", 1 / N. The prior and the likelihood are held still. Values of this objective mean
    nothing, as its divergence is known by its gradient alone.
    """

    prior: Process = constant()
    measurement: Measurement = constant()
    num_samples: int = eqx.field(static=True, default=100)
    weight: Literal["batch", "data"] = eqx.field(static=True, default="batch")
    jitter: float = eqx.field(static=True, default=1e-4)

    def __check_init__(self):
        check_prior_and_points(self, self.prior, self.measurement)
        if not isinstance(self.num_samples, int) or self.num_samples < 2:
            raise ValueError(f"FBNN: num_samples expects a whole number, at least 2, got {self.num_samples!r}")
        if self.weight not in ("batch", "data"):
            raise ValueError(f'FBNN: weight expects "batch" or "data", got {self.weight!r}')

    def checked(self, model, data):
        batch = super().checked(model, data)
        check_at_inputs(self, model, self.prior, self.measurement, batch)
        return batch

    def _value_in_training(self, model, batch, key, context):
        key = jax.random.key(0) if key is None else key
        keys = jax.random.split(key, 3)
        inputs = batch.inputs if context.data is None else context.data.X
        points = self.measurement.draw(inputs, key=keys[0])
        X = jnp.concatenate([batch.inputs, points])
        prior: Any = align(self.prior, batch.dtype)
        likelihood = still(model.likelihood)
        latent = model.posterior.predict(batch.inputs, likelihood.layout, key=keys[1])
        risk = -jnp.mean(batch.weighted(expected_log_prob(likelihood, latent, batch.Y, batch.inputs, key)))
        draws = model.posterior.sample(X, self.num_samples, key=keys[2])
        scale = len(batch.Y) if self.weight == "batch" else batch.num_data
        return risk + self._divergence(draws, prior, X) / scale, context.state

    def _divergence(self, draws: Float[Array, "S N P"], prior: Any, X: Array) -> Float[Array, ""]:
        """A number whose gradient is that of KL[q || p]."""
        layout: Any = prior.joint_layout
        p: Gaussian = prior.predict(X, layout).for_outputs(draws.shape[2])
        means, K = p.groups()
        values = jnp.moveaxis(draws, 2, 0) if layout == "inputs" else draws.reshape(1, len(draws), -1)
        # Noise as small as the jitter of the prior, so that both have a density.
        jitter = self.jitter * jnp.mean(p.variance)
        K = jnp.broadcast_to(K + jitter * jnp.eye(K.shape[-1], dtype=K.dtype), (len(values), *K.shape[1:]))

        def of_group(values, mean, K):
            fixed, W = jax.lax.stop_gradient(values), inverse_factor(K)
            slope = spectral_stein_gradient(fixed) + matmul(matmul(fixed - mean, W.T), W)
            return jnp.sum(jax.lax.stop_gradient(slope) * values) / len(values)

        return jnp.sum(for_each_entry(of_group, values, means, K))


def spectral_stein_gradient(samples: Float[Array, "S J"], kept: float = 0.99) -> Float[Array, "S J"]:
    """grad log q at samples from q, by the spectral estimator of Shi, Sun and Zhu (2018).

    With an RBF kernel k as wide as the median distance, K = U diag(l) U^T at the samples and psi_j = sqrt(S) u_j the values of
    its eigenfunctions there, the gradient is sum_j b_j psi_j, b_j = -mean_i grad psi_j(x_i), over the eigenvalues that make up
    a share `kept` of their sum.
    """
    S = len(samples)
    squares = jnp.sum(samples**2, axis=1)
    distances = jnp.maximum(squares[:, None] + squares - 2.0 * matmul(samples, samples.T), 0.0)
    width = jnp.median(distances) + jnp.finfo(samples.dtype).tiny ** 0.5
    K = jnp.exp(-0.5 * distances / width)
    l, U = eigh(K)
    l, U = l[::-1], U[:, ::-1]
    before = jnp.cumsum(l) - l
    inverse = jnp.where(before < kept * jnp.sum(l), 1.0 / jnp.maximum(l, jnp.finfo(l.dtype).eps * l[0]), 0.0)
    # sum_i grad_i k(x_i, x_m) = -(sum_i k_im x_i - x_m sum_i k_im) / width
    slopes = -(matmul(K, samples) - samples * jnp.sum(K, axis=0)[:, None]) / width
    b = -inverse[:, None] * matmul(U.T, slopes) / jnp.sqrt(float(S))
    return jnp.sqrt(float(S)) * matmul(U, b)
