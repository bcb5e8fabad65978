"""A model: a process for the function, and a likelihood for how data come from it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Real

from mercer import validation
from mercer.inducing.functionals import is_array
from mercer.likelihoods import Gaussian as GaussianNoise
from mercer.likelihoods import Likelihood
from mercer.likelihoods.of_predictions import log_predictive, observations
from mercer.linalg import quiet_blas
from mercer.parameters import Module, cast, dtype_of
from mercer.processes import Gaussian, Mixture, Process
from mercer.validation import AnyArray


class Model(Module):
    """A process (before training: the prior or a sparse posterior) and a likelihood."""

    posterior: Process
    likelihood: Likelihood

    def __init__(self, posterior: Process, likelihood: Likelihood):
        if not isinstance(posterior, Process) or not isinstance(likelihood, Likelihood):
            kinds = f"{type(posterior).__name__} and {type(likelihood).__name__}"
            raise ValueError(f"Model expects a process and a likelihood, got {kinds}")
        self.posterior, self.likelihood = posterior, likelihood

    def predict(self, X: Any, *, key: PRNGKeyArray | None = None) -> Gaussian:
        """The mean and the variance of new observations y at X, [N, P] each.

        X is what the process takes: inputs [N, D] or functionals. A process that needs random numbers takes them from the key.
        """
        latent = self.posterior.predict(X, self.likelihood.layout, key=key)
        return _at(_predict, self.likelihood, latent, X)

    def log_density(self, X: Any, Y: Real[AnyArray, "N P"], *, key: PRNGKeyArray | None = None) -> Float[Array, " N"]:
        """The log density that the model gives to each row of Y, summed over the outputs that are not NaN.

        Where inputs are latent, it is estimated with draws of them that explain the row, weighted (importance sampling).
        """
        weighed = self._weighted_values(X, Y, key)
        if weighed is not None:
            latent, log_weights = weighed
        else:
            latent, log_weights = self.posterior.predict(X, self.likelihood.layout, key=key), None
        Y = validation.outputs(Y, len(latent.mean), discrete=self.likelihood.discrete)
        self.likelihood.validate(Y)
        return _at(_log_density, self.likelihood, latent, X, Y, log_weights)

    def _weighted_values(self, X: Any, Y: Any, key: PRNGKeyArray | None) -> tuple[Gaussian | Mixture, Array] | None:
        """The posterior at draws of latent inputs of each row, and their log weights."""
        key = jax.random.key(0) if key is None else key
        X = validation.inputs(X) if is_array(X) else X
        checked = validation.outputs(Y, len(Y), discrete=self.likelihood.discrete)
        found = self.posterior.weighted_inputs(X, checked, key=jax.random.fold_in(key, 1))
        if found is None:
            return None
        draws, log_weights = (array.astype(dtype_of(X) or checked.dtype) for array in found)
        flat = self.posterior.predict(draws.reshape(-1, draws.shape[-1]), self.likelihood.layout, key=key).as_mixture()
        means, covs = (array.reshape(-1, *draws.shape[:2], *array.shape[2:]) for array in (flat.means, flat.covs))
        # [K, S, N, ...] of K components at each of S draws
        log_weights = jnp.broadcast_to(log_weights, means.shape[:3]).reshape(-1, len(checked))
        means, covs = (array.reshape(-1, *array.shape[2:]) for array in (means, covs))
        return Mixture(means, covs, flat.layout), log_weights

    def observations(self, X: Any, *, key: PRNGKeyArray | None = None) -> Gaussian | Mixture:
        """New observations y at X as a distribution, with `sample` and `quantiles`, for a Gaussian likelihood.

        It is a mixture where the process is one: of several modes, where `predict` has their mean and variance.
        """
        if not isinstance(self.likelihood, GaussianNoise):
            raise ValueError(f"observations expects a Gaussian likelihood, got {type(self.likelihood).__name__}")
        latent = self.posterior.predict(X, self.likelihood.layout, key=key)
        return _at(_observations, self.likelihood, latent, X)

    def cached(self) -> "Model":
        """The same model, with what prediction needs of the posterior worked out once."""
        return Model(self.posterior.cached(), self.likelihood)


def _at(function, likelihood: Likelihood, latent: Gaussian | Mixture, X: Any, *args: Array | None):
    """A compiled function of the latent values, in their dtype; the likelihood sees X where it is an array of inputs."""
    dtype = latent.mean.dtype
    X = validation.inputs(X).astype(dtype) if is_array(X) else None
    with quiet_blas():
        return jax.block_until_ready(function(cast(likelihood, dtype), latent, X, *args))


@eqx.filter_jit
def _predict(likelihood, latent, X):
    return observations(likelihood, latent, X)


@eqx.filter_jit
def _observations(likelihood, latent, X):
    return latent.of_components(lambda q: likelihood.predict(q.mean, q.cov, X))


@eqx.filter_jit
def _log_density(likelihood, latent, X, Y, log_weights):
    return log_predictive(likelihood, latent, Y, X, log_weights=log_weights)


def check_latents(model: Model, Y: Array) -> None:
    """Refuses a posterior whose number of outputs is not what the likelihood needs for Y."""
    needed = model.likelihood.num_latents(Y.shape[1])
    given = model.posterior.num_outputs
    if given is not None and given != needed:
        name = type(model.likelihood).__name__
        raise ValueError(
            f"{name} with {Y.shape[1]} columns of Y needs {needed} latent functions, the posterior has {given}"
        )


def align(model: Module, dtype: Any) -> Module:
    """The model with its parameters in the dtype of the data."""
    return cast(model, dtype)
