"""A Bayesian network: a module whose parameters are random, seen through samples (paper 002, section 4.1).

What comes out of it has no density that could be written down. Here it is taken to be Gaussian, with the moments of some samples:
a process to compare others with.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from mercer import modules
from mercer.kernels import Map
from mercer.layouts import product_in_layout
from mercer.parameters import constant, param, positive, real
from mercer.processes.base import Process
from mercer.processes.gaussian import Gaussian


class BayesianNetwork(Process):
    """g(x; W), W ~ N(module's parameters, diag(scale^2)), with the moments of `num_samples` draws of W.

    `scale` [F] is the standard deviation of each parameter, or a number for all at the start. The prior of W is
    N(0, prior_variance).
    """

    outputs: int = eqx.field(static=True)
    num_samples: int = eqx.field(static=True)
    module: modules.Module = param(real)
    scale: Float[Array, " F"] = param(positive)
    prior_variance: Array = param(positive)

    def __init__(
        self,
        module: modules.Module,
        scale: Any = 0.05,
        num_samples: int = 100,
        prior_variance: Array | float = 1.0,
        dimension: int | None = None,
    ):
        modules.check_module(module, "BayesianNetwork")
        if not isinstance(num_samples, int) or num_samples < 2:
            raise ValueError(f"BayesianNetwork: num_samples expects a whole number, at least 2, got {num_samples!r}")
        self.module, self.num_samples, self.prior_variance = module, num_samples, prior_variance
        columns = modules.input_size(module, dimension, "BayesianNetwork")
        self.outputs = modules.output_size(module, columns, "BayesianNetwork")
        parameters = self._flat()[0]
        self.scale = jnp.broadcast_to(jnp.asarray(scale, parameters.dtype), parameters.shape)

    def _flat(self) -> tuple[Float[Array, " F"], Any, Any]:
        """The parameters as a vector, and what makes a module of such a vector."""
        parameters, rest = eqx.partition(self.module, eqx.is_inexact_array)
        flat, unravel = ravel_pytree(parameters)
        return flat, unravel, rest

    @property
    def num_outputs(self):
        return self.outputs

    @property
    def joint_layout(self):
        return "inputs" if self.outputs == 1 else "full"

    def knows_kl(self, prior=None):
        return prior is None

    def kl(self, prior=None):
        """KL[q(W) || p(W)], in nats, over all parameters."""
        if prior is not None:
            raise ValueError("BayesianNetwork knows the KL divergence from its own prior only: leave prior out")
        flat = self._flat()[0]
        ratio = self.scale**2 / self.prior_variance
        return 0.5 * jnp.sum(ratio - 1.0 - jnp.log(ratio) + flat**2 / self.prior_variance)

    def _draws(self, X: Float[Array, "N D"], num: int, key: PRNGKeyArray) -> Float[Array, "S N P"]:
        """Values at X under draws of the parameters."""
        flat, unravel, rest = self._flat()
        noise = jax.random.normal(key, (num, len(flat)), flat.dtype)

        def of_draw(noise):
            return modules.of_rows(eqx.combine(unravel(flat + self.scale * noise), rest), X, "BayesianNetwork")

        return jax.vmap(of_draw)(noise)

    def _predict_with_key(self, X, covariance, key):
        draws = self._draws(X, self.num_samples, key)
        mean = jnp.mean(draws, axis=0)
        deviations = draws - mean
        return Gaussian(
            mean, product_in_layout(deviations, deviations, covariance) / (self.num_samples - 1), covariance
        )

    def _sampled(self, X, num, key):
        return self._draws(X, num, key)

    def _sample_function(self, key, num_features):
        """Exact: a draw of the parameters."""
        flat, unravel, rest = self._flat()
        drawn = flat + self.scale * jax.random.normal(key, flat.shape, flat.dtype)
        return ModuleDraw(eqx.combine(unravel(drawn), rest))


class ModuleDraw(Map):
    """A module at each row."""

    module: modules.Module = constant()

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        return modules.of_rows(self.module, X, "BayesianNetwork")
