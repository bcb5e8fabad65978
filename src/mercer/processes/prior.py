"""The Gaussian process prior: a mean function and a kernel."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.covariances.functionals import prior_covariance
from mercer.deprecation import key_by_name, old_name
from mercer.inducing.functionals import is_functional
from mercer.kernels import Draw, Kernel, LatentKernel, Map, MultioutputKernel
from mercer.layouts import Layout
from mercer.means import Mean, Zero
from mercer.parameters import constant, dtype_of
from mercer.processes.base import Process
from mercer.processes.gaussian import Gaussian


class GP(Process):
    """f ~ GP(mean, kernel).

    A multioutput kernel says how many outputs there are and how they covary. With a kernel of one output there are as many
    as the mean (or the data) have, each with the kernel and independent of the others.
    """

    kernel: Kernel | MultioutputKernel
    mean: Mean

    def __init__(self, kernel: Kernel | MultioutputKernel, mean: Mean | None = None):
        if not isinstance(kernel, Kernel | MultioutputKernel):
            raise ValueError(f"kernel expects a mercer kernel, got {type(kernel).__name__}")
        mean = Zero() if mean is None else mean
        if not isinstance(mean, Mean):
            raise ValueError(f"mean expects a mercer mean function, got {type(mean).__name__}")
        self.kernel, self.mean = kernel, mean

    @property
    def num_outputs(self):
        return self.kernel.num_outputs

    @property
    def joint_layout(self):
        return "inputs" if self.kernel.independent else "full"

    @property
    def is_prior(self):
        return True

    def condition(self, X, Y, noise, complete=None):
        from mercer.processes.conditioned import Conditioned  # which knows GP

        return Conditioned(self, X, Y, noise, complete)

    def check_inputs(self, X):
        if not is_functional(X):
            self.kernel.check_inputs(X)

    def latents(self) -> "GP":
        """The latent functions of a multioutput kernel, a process of L independent outputs."""
        if not isinstance(self.kernel, LatentKernel):
            raise ValueError(f"{type(self.kernel).__name__} is not made of latent functions")
        return GP(self.kernel.latent)

    def _predict(self, X, covariance):
        mean = self._mean(X)
        num_outputs = self.num_outputs or mean.shape[1]
        mean = jnp.broadcast_to(self.mean_of(X, num_outputs), (len(X), num_outputs))
        return Gaussian(mean, self.covariance_of(X, num_outputs, covariance), covariance)

    def _mean(self, X: Any) -> Float[Array, "N P"]:
        if not is_functional(X):
            return self.mean(X)
        return jnp.zeros((len(X), 1), dtype_of(X)) if isinstance(self.mean, Zero) else X.of_function(self.mean)

    def mean_of(self, X: Any, num_outputs: int) -> Float[Array, "N P"]:
        """The prior mean at X for a process of `num_outputs` outputs, [N, 1] where they share it."""
        mean = self._mean(X)
        if mean.shape[1] not in (1, num_outputs):
            raise ValueError(f"the mean function has {mean.shape[1]} outputs, the process has {num_outputs}")
        return mean

    def covariance_of(self, X: Any, num_outputs: int, covariance: Layout) -> Array:
        """The prior covariance at X, in a layout; with a kernel of one output, that of `num_outputs` independent ones."""
        return prior_covariance(self.kernel, X, num_outputs, covariance)

    covariance = old_name("GP.covariance", covariance_of)

    def _sample_function(self, key, num_features):
        return _PriorDraw(self, key, num_features)

    @key_by_name
    def sample_deviation(self, num_features: int, num_outputs: int, *, key: PRNGKeyArray) -> Draw:
        """Draws of the zero-mean part of the process as functions, one for each output: a sum of random features."""
        shared = () if self.num_outputs else (num_outputs,)
        return self.kernel.draw(num_features, *shared, key=key)


class _PriorDraw(Map):
    """A draw from the prior, with as many outputs as its mean has."""

    prior: GP = constant()
    key: PRNGKeyArray = constant()
    num_features: int = eqx.field(static=True)

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        mean = self.prior.mean(X)
        return mean + self.prior.sample_deviation(self.num_features, mean.shape[1], key=self.key)(X)


class Moved(Map):
    """A draw from the prior, moved to one of a posterior (Matheron's rule): by what `linear` makes of weights."""

    prior: GP = constant()
    deviation: Draw = constant()
    posterior: Any = constant()
    weights: Array = constant()

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        X = X.astype(self.posterior.working_dtype(X.dtype))
        return self.prior.mean(X) + self.deviation(X) + self.posterior.linear(X, self.weights)
