"""Functional mirror descent: a network follows an adaptive Bayesian filter (paper 002, sections 3.2 and 3.3).

From the network q_t a minibatch of n of N data, taken with a step beta, makes the process

    q^ ~ p(y | f)^(beta N / n) p(f)^beta q_t(f)^(1 - beta)                                                     (7)

Seen at measurement points f_M and the inputs f_B of the batch p and q_t are Gaussian, and so is their product (8, 9). With
Gaussian noise s q^ is exact regression on the batch with noise s n / (beta N) (10), and the network moves along the gradient of
KL[q(f_M) || q^(f_M)] (11). With any other likelihood it is that of KL[q(f_M, f_B) || q^(f_M, f_B)], without its evidence:

    -(beta N / n) sum_n E_q log p(y_n | f_n) + beta KL[q || p] + (1 - beta) KL[q || q_t].

A step is one step of an optimiser from q_t itself, so that the last term is 0, and so is its gradient.

What `fit` makes small is this divergence divided by beta N: to first order minus an evidence bound per datum.
"""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.divergences import KL
from mercer.likelihoods import Gaussian as GaussianLikelihood
from mercer.likelihoods.of_predictions import expected_log_prob
from mercer.linalg import quiet_blas
from mercer.linalg.gaussian_products import condition_last, geometric_mean
from mercer.linalg.products import for_each_entry
from mercer.model import Model, align
from mercer.objectives.base import Batch, Data, TrainingObjective
from mercer.objectives.exact import conditioned, gaussian_noise, log_density_of_repeats
from mercer.objectives.measurement import Measurement
from mercer.parameters import constant
from mercer.processes import Gaussian, Process
from mercer.validation import AnyArray


class MirrorDescent(TrainingObjective):
    """Training of a posterior of any kind, a `Network` say, towards that under a GP `prior`, by minibatches.

    `measurement`, of `mercer.objectives.measurement`, is where processes are compared. The step of mirror descent is
    beta_t = beta / (1 + decay sqrt(t)); `beta` may also be a function of the number of the step. A Gaussian likelihood has a
    closed form; with `conjugate=False` it is treated as all others are.

    `hyperparameters="fixed"` holds the prior and the likelihood still. With "online" they are trained along, by the bound
    -mean_n E_q log p(y_n | f_n) + KL[q(f_B) || p(f_B)] / N of the batch, under the present network, which it does not move.
    With "marginal", for Gaussian likelihoods, it is by the exact -log p(y_B) / n of each batch, the best that any such bound
    can be: no network stands between the prior and the data. The prior is a part of the objective:
    `fit(...).objective.prior` is the trained one.

    All covariances have `jitter` times the mean variance of the prior, or of the network where it is greater, on their diagonal:
    functions are compared up to noise of this size. None is 1e-6 in float64 and 1e-4 in float32, where less let training fail
    (seen). With "online" it is 1e-2: a divergence counts all directions of f_B alike, also those below any noise, where
    features and prior differ, and with less it is these that the prior is fitted to (its lengthscales grow, its variance falls;
    seen).
    """

    trained = True

    prior: Process
    measurement: Measurement = constant()
    beta: float | Callable[[Any], Any] = eqx.field(static=True, default=1.0)
    decay: float = eqx.field(static=True, default=0.1)
    hyperparameters: Literal["fixed", "online", "marginal"] = eqx.field(static=True, default="fixed")
    conjugate: bool = eqx.field(static=True, default=True)
    jitter: float | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_prior_and_points(self, self.prior, self.measurement)
        first = float(self.beta(0)) if callable(self.beta) else self.beta
        if not isinstance(first, float | int) or not 0.0 < first <= 1.0:
            raise ValueError(f"MirrorDescent: beta must be above 0 and at most 1, got {first!r}")
        if not self.decay >= 0.0:
            raise ValueError(f"MirrorDescent: decay must not be negative, got {self.decay!r}")
        if self.hyperparameters not in ("fixed", "online", "marginal"):
            raise ValueError(
                f'MirrorDescent: hyperparameters expects "fixed", "online" or "marginal", got {self.hyperparameters!r}'
            )
        if self.hyperparameters == "marginal" and not self.prior.is_prior:
            name = type(self.prior).__name__
            raise ValueError(f'MirrorDescent: hyperparameters="marginal" expects a GP as the prior, got {name}')
        if self.jitter is not None and not self.jitter > 0.0:
            raise ValueError(f"MirrorDescent: jitter must be positive, got {self.jitter!r}")

    def step_size(self, step: Array | int) -> Float[Array, ""]:
        """beta_t."""
        if callable(self.beta):
            return jnp.asarray(self.beta(step))
        return self.beta / (1.0 + self.decay * jnp.sqrt(jnp.asarray(step, jnp.result_type(float))))

    def checked(self, model, data):
        batch = super().checked(model, data)
        check_at_inputs(self, model, self.prior, self.measurement, batch)
        if self.hyperparameters == "marginal" and not isinstance(model.likelihood, GaussianLikelihood):
            name = type(model.likelihood).__name__
            raise ValueError(f'MirrorDescent: hyperparameters="marginal" expects a Gaussian likelihood, got {name}')
        return batch

    def _is_conjugate(self, model: Model) -> bool:
        return self.conjugate and isinstance(model.likelihood, GaussianLikelihood)

    def _value_in_training(self, model, batch, key, context):
        key = jax.random.key(0) if key is None else key
        inputs = batch.X if context.data is None else context.data.X
        points = self.measurement.draw(inputs, key=jax.random.fold_in(key, 2))
        beta = self.step_size(context.step).astype(batch.Y.dtype)
        prior: Any = align(self.prior, batch.dtype)
        likelihood = model.likelihood
        value = self._follow(Model(model.posterior, still(likelihood)), still(prior), batch, points, beta, key)
        if self.hyperparameters == "online":
            value = value + self._bound_of_batch(model, prior, batch, key)
        if self.hyperparameters == "marginal":
            value = value - _evidence_of_batch(Model(prior, likelihood), batch)
        return value, context.state

    def _follow(
        self, model: Model, prior: Process, batch: Batch, points: Array, beta: Array, key: PRNGKeyArray
    ) -> Float[Array, ""]:
        """The divergence of the network from where it should go, divided by beta N."""
        X = jnp.concatenate([points, batch.inputs])
        if self._is_conjugate(model):
            target = self._target(*self._seen(still(model.posterior), prior, X, key), model, batch, beta)
            here, _ = self._seen(model.posterior, prior, points, key)
            return KL().joint(here, target) / (beta * batch.num_data)
        q, p = self._seen(model.posterior, prior, X, key)
        at_batch = _last(q, len(batch.Y)).in_layout(model.likelihood.layout)
        terms = expected_log_prob(model.likelihood, at_batch, batch.Y, batch.inputs, key)
        return -jnp.mean(batch.weighted(terms)) + KL().joint(q, p) / batch.num_data

    def _seen(self, posterior: Any, prior: Any, X: Array, key: PRNGKeyArray) -> tuple[Gaussian, Gaussian]:
        """The posterior and the prior at X, with jitter."""
        layout: Any = "inputs" if posterior.joint_layout == prior.joint_layout == "inputs" else "full"
        q = posterior.predict(X, layout, key=jax.random.fold_in(key, 1))
        q = Gaussian(q.mean, q.cov, layout)  # of a mixture, its moments
        p = prior.predict(X, layout).for_outputs(q.mean.shape[1])
        smallest = 1e-2 if self.hyperparameters == "online" else 1e-6 if X.dtype == jnp.float64 else 1e-4
        scale = jnp.maximum(jnp.mean(q.variance), jnp.mean(p.variance))
        jitter = (self.jitter or smallest) * jax.lax.stop_gradient(scale)
        return _with_noise(q, jitter), _with_noise(p, jitter)

    def _target(self, q: Gaussian, p: Gaussian, model: Model, batch: Batch, beta: Array) -> Gaussian:
        """q^ at the measurement points, which are the first of those that q and p are given at."""
        num, P = len(q.mean) - len(batch.Y), q.mean.shape[1]
        scale = len(batch.Y) / (beta * batch.num_data)
        noise = jnp.broadcast_to(scale * gaussian_noise(model, batch), batch.Y.shape)
        values = (batch.Y, noise, ~jnp.isnan(batch.Y))
        observed = [array.T if q.layout == "inputs" else array.reshape(1, -1) for array in values]
        (mean_p, P_), (mean_q, Q) = p.groups(), q.groups()
        P_, Q = (jnp.broadcast_to(K, (len(mean_q), *K.shape[1:])) for K in (P_, Q))

        def of_group(mean_p, P_, mean_q, Q, y, noise, seen):
            return condition_last(*geometric_mean(beta, mean_p, P_, mean_q, Q), y, noise, seen)

        mean, cov = for_each_entry(of_group, mean_p, P_, mean_q, Q, *observed)
        if q.layout == "inputs":
            return Gaussian(mean.T, cov, "inputs")
        return Gaussian(mean.reshape(num, P), cov.reshape(num, P, num, P), "full")

    def _bound_of_batch(self, model: Model, prior: Process, batch: Batch, key: PRNGKeyArray) -> Float[Array, ""]:
        """Minus an estimate of the bound, per datum, whose gradient is that of prior and likelihood alone."""
        q, p = self._seen(still(model.posterior), prior, batch.inputs, key)
        terms = expected_log_prob(model.likelihood, q.in_layout(model.likelihood.layout), batch.Y, batch.inputs, key)
        return -jnp.mean(batch.weighted(terms)) + KL().joint(q, p) / batch.num_data

    def target(self, model: Model, data: Data, points: Float[AnyArray, "M D"], beta: float = 1.0) -> Gaussian:
        """q^ at given points after a mirror step from the model, with a Gaussian likelihood.

        With `data` all of the data and beta = 1 it is the exact posterior, up to jitter.
        """
        batch = self.checked(model, data)
        if not self._is_conjugate(model):
            raise ValueError(
                f"target: a step has a closed form with a Gaussian likelihood, got {type(model.likelihood).__name__}"
            )
        if not 0.0 < beta <= 1.0:
            raise ValueError(f"beta must be above 0 and at most 1, got {beta!r}")
        with quiet_blas():
            found = _compiled_target(self, align(model, batch.dtype), batch, jnp.asarray(points, batch.dtype), beta)
            return jax.block_until_ready(found)


@eqx.filter_jit
def _compiled_target(objective, model, batch, points, beta):
    prior = align(objective.prior, batch.dtype)
    q, p = objective._seen(model.posterior, prior, jnp.concatenate([points, batch.X]), jax.random.key(0))
    return objective._target(q, p, model, batch, jnp.asarray(beta, batch.dtype))


def _evidence_of_batch(model: Model, batch: Batch) -> Float[Array, ""]:
    """log p(y_B) / n under a prior, as if a batch were all of the data."""
    posterior = conditioned(model, batch)
    return (posterior.log_marginal_likelihood() + log_density_of_repeats(posterior.noise, batch)) / len(batch.Y)


def still(tree: Any) -> Any:
    """The same values, through which no derivative passes."""
    return jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf, tree)


def check_prior_and_points(objective: Any, prior: Any, measurement: Any) -> None:
    """Refuses what is no prior, or no measurement points."""
    name = type(objective).__name__
    if not isinstance(prior, Process):
        raise ValueError(f"{name}: prior expects a process, got {type(prior).__name__}")
    if not isinstance(measurement, Measurement):
        raise ValueError(
            f"{name}: measurement expects one of mercer.objectives.measurement, got {type(measurement).__name__}"
        )


def check_at_inputs(objective: Any, model: Any, prior: Process, measurement: Measurement, batch: Batch) -> None:
    """Refuses a model, a prior or points that do not fit the inputs of the data."""
    name = type(objective).__name__
    if not isinstance(model, Model):
        raise ValueError(f"{name} expects a Model, got {type(model).__name__}")
    if batch.inputs is None:
        raise ValueError(f"{name} expects inputs X, an array [N, D]")
    prior.check_inputs(batch.X)
    measurement.check(batch.inputs)
    needed = model.likelihood.num_latents(batch.Y.shape[1])
    if prior.num_outputs not in (None, 1, needed):
        raise ValueError(f"{name}: the data need {needed} latent functions, the prior has {prior.num_outputs}")
    # Says where a feature map gives NaN, before anything long is compiled.
    model.posterior.predict(batch.inputs[:2])


def _with_noise(q: Gaussian, variance: Array) -> Gaussian:
    """With independent noise on each value; in the layouts "inputs" and "full"."""
    if q.layout == "inputs":
        return Gaussian(q.mean, q.cov + variance * jnp.eye(len(q.mean), dtype=q.mean.dtype), "inputs")
    size = q.mean.size
    noise = (variance * jnp.eye(size, dtype=q.mean.dtype)).reshape(q.cov.shape)
    return Gaussian(q.mean, q.cov + noise, "full")


def _last(q: Gaussian, num: int) -> Gaussian:
    """q at its last inputs."""
    cov = q.cov[:, -num:, -num:] if q.layout == "inputs" else q.cov[-num:, :, -num:]
    return Gaussian(q.mean[-num:], cov, q.layout)
