"""A model: a process for the function, and a likelihood for how data come from it."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray, Real

from mercer import validation
from mercer.inducing.functionals import is_array
from mercer.likelihoods import Likelihood
from mercer.likelihoods.of_predictions import log_predictive, observations
from mercer.linalg import quiet_blas
from mercer.parameters import Module, cast
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
        """The log density that the model gives to each row of Y, summed over the outputs that are not NaN."""
        latent = self.posterior.predict(X, self.likelihood.layout, key=key)
        Y = validation.outputs(Y, len(latent.mean), discrete=self.likelihood.discrete)
        self.likelihood.validate(Y)
        return _at(_log_density, self.likelihood, latent, X, Y)

    def cached(self) -> "Model":
        """The same model, with what prediction needs of the posterior worked out once."""
        return Model(self.posterior.cached(), self.likelihood)


def _at(function, likelihood: Likelihood, latent: Gaussian | Mixture, X: Any, *args: Array):
    """A compiled function of the latent values, in their dtype; the likelihood sees X where it is an array of inputs."""
    dtype = latent.mean.dtype
    X = validation.inputs(X).astype(dtype) if is_array(X) else None
    with quiet_blas():
        return jax.block_until_ready(function(cast(likelihood, dtype), latent, X, *args))


@eqx.filter_jit
def _predict(likelihood, latent, X):
    return observations(likelihood, latent, X)


@eqx.filter_jit
def _log_density(likelihood, latent, X, Y):
    return log_predictive(likelihood, latent, Y, X)


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
