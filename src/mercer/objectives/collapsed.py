"""The collapsed bound of sparse regression, in which the best q(u) is solved for (Titsias, 2009; paper 000, 3.14 to 3.16).

Whitened, with C = R^-1 Kuf, precisions lambda_n = 1 / noise_n (0 where y_n is missing) and r = y - m(x), the likelihood
is Gaussian in v, u = R v, and so is the best q(v) = N(B^-1 b, B^-1), B = I + C diag(lambda) C^T, b = C (lambda r). The bound is

    sum_n log N(r_n; 0, noise_n) + |B^-1/2 b|^2 / 2 - log det B / 2 - sum_n lambda_n (k_nn - |C_n|^2) / 2.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.likelihoods import Gaussian
from mercer.linalg import PSD, inverse_factor, inverse_root, matmul, quiet_blas, weighted_gram
from mercer.model import Model, align
from mercer.objectives.base import Batch, Objective
from mercer.objectives.exact import gaussian_noise, log_density_of_repeats
from mercer.processes import Sparse


class _Terms(NamedTuple):
    """What the bounds are made of. G is 1 where all outputs have the same precisions, else P."""

    operator: PSD
    C: Float[Array, "M N"]
    residual: Float[Array, "N P"]
    observed: Array
    noise: Float[Array, "N P"]
    slack: Float[Array, " N"]  # k_nn - |C_n|^2
    shared: bool

    def precisions(self, noise: Float[Array, "N P"]) -> Float[Array, "N G"]:
        precision = jnp.where(self.observed, 1.0 / noise, 0.0)
        return precision[:, :1] if self.shared else precision

    def B(self, precision: Float[Array, "N G"]) -> Float[Array, "G M M"]:
        identity = jnp.eye(self.C.shape[0], dtype=self.C.dtype)
        return identity + jnp.stack([weighted_gram(self.C, weights) for weights in precision.T])

    def b(self, precision: Float[Array, "N G"]) -> Float[Array, "M P"]:
        return matmul(self.C, precision * self.residual)


def _terms(model: Model, batch: Batch) -> _Terms:
    posterior = model.posterior
    operator = posterior.Kuu()
    C = operator.whiten(posterior.Kuf(batch.X))
    observed = ~jnp.isnan(batch.Y)
    residual = jnp.where(observed, batch.Y - posterior.prior.mean_of(batch.X, batch.Y.shape[1]), 0.0)
    noise = gaussian_noise(model, batch)
    shared = batch.complete and (jnp.ndim(noise) == 0 or jnp.shape(noise)[-1] == 1)
    slack = jnp.maximum(posterior.prior.kernel.diag(batch.X) - jnp.sum(C**2, axis=0), 0.0)
    return _Terms(operator, C, residual, observed, jnp.broadcast_to(noise, batch.Y.shape), slack, shared)


def _half_log_determinant(W: Float[Array, "G M M"], num_outputs: int) -> Float[Array, ""]:
    """1/2 sum_p log det B_p, from the inverse factors of B."""
    return -jnp.sum(jnp.log(jnp.diagonal(W, axis1=1, axis2=2))) * (num_outputs / len(W))


def _explained(W: Float[Array, "G M M"], b: Float[Array, "M P"]) -> Float[Array, ""]:
    """1/2 sum_p b_p^T B_p^-1 b_p."""
    return 0.5 * jnp.sum(matmul(W, b.T[..., None]) ** 2)


class CollapsedELBO(Objective):
    """Minus Titsias' bound, per datum, for a Model of a `Sparse` and a Gaussian likelihood. q(u) plays no part in it.

    `fit` leaves the model with the best q(u); `posterior` gives that, too.
    """

    minibatched = False

    def checked(self, model, data):
        if not (
            isinstance(model, Model) and isinstance(model.posterior, Sparse) and isinstance(model.likelihood, Gaussian)
        ):
            raise ValueError("CollapsedELBO expects a Model of a Sparse posterior and a Gaussian likelihood")
        return super().checked(model, data)

    def _value(self, model, batch, key):
        return -_bound(model, batch) / batch.num_data

    def bound(self, model: Model, X: Float[Array, "N D"], Y: Float[Array, "N P"]) -> Float[Array, ""]:
        """The lower bound on log p(Y), in nats over all the data."""
        return self._run(_bound, model, X, Y)

    def upper_bound(self, model: Model, X: Float[Array, "N D"], Y: Float[Array, "N P"]) -> Float[Array, ""]:
        """An upper bound on log p(Y) (Titsias, 2014): the noise in the quadratic term is raised by tr(Kff - Qff)."""
        return self._run(_upper_bound, model, X, Y)

    def posterior(self, model: Model, X: Float[Array, "N D"], Y: Float[Array, "N P"]) -> Sparse:
        """The sparse posterior with the best q(u)."""
        return self._run(_optimum, model, X, Y)

    def complete(self, model, batch):
        return Model(_optimum(model, batch), model.likelihood)

    def _run(self, function, model, X, Y):
        batch = self.checked(model, (X, Y))
        with quiet_blas():
            return jax.block_until_ready(function(align(model, batch.X), batch))


@eqx.filter_jit
def _bound(model: Model, batch: Batch) -> Float[Array, ""]:
    t = _terms(model, batch)
    precision = t.precisions(t.noise)
    W = inverse_factor(t.B(precision), always=False)
    fit = -0.5 * jnp.sum(jnp.where(t.observed, jnp.log(2.0 * jnp.pi * t.noise) + t.residual**2 / t.noise, 0.0))
    explained = _explained(W, t.b(precision))
    num_outputs = batch.Y.shape[1]
    lost = 0.5 * jnp.sum(t.slack[:, None] * precision) * (num_outputs / precision.shape[1])
    repeats = log_density_of_repeats(t.noise, batch)
    return fit + explained - _half_log_determinant(W, num_outputs) - lost + repeats


@eqx.filter_jit
def _upper_bound(model: Model, batch: Batch) -> Float[Array, ""]:
    t = _terms(model, batch)
    W = inverse_factor(t.B(t.precisions(t.noise)), always=False)
    raised = t.noise + jnp.sum(jnp.where(t.observed, t.slack[:, None], 0.0), axis=0)
    precision = t.precisions(raised)
    W_raised = inverse_factor(t.B(precision), always=False)
    fit = -0.5 * jnp.sum(jnp.where(t.observed, jnp.log(2.0 * jnp.pi * t.noise) + t.residual**2 / raised, 0.0))
    repeats = log_density_of_repeats(t.noise, batch)
    return fit + _explained(W_raised, t.b(precision)) - _half_log_determinant(W, batch.Y.shape[1]) + repeats


@eqx.filter_jit
def _optimum(model: Model, batch: Batch) -> Sparse:
    t = _terms(model, batch)
    precision = t.precisions(t.noise)
    num_outputs = batch.Y.shape[1]
    root = inverse_root(t.B(precision))
    root = jnp.broadcast_to(root, (num_outputs, *root.shape[1:]))
    q_mu = matmul(root, matmul(root.mT, t.b(precision).T[..., None]))[..., 0].T
    return model.posterior.with_whitened(t.operator, q_mu, root)
