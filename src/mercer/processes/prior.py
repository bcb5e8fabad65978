"""The Gaussian process prior: a mean function and a kernel."""

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.kernels.base import Kernel
from mercer.layouts import Layout, independent_outputs
from mercer.means import Mean, Zero
from mercer.processes.base import Function, Process
from mercer.processes.gaussian import Gaussian


class GP(Process):
    """f ~ GP(mean, kernel). Where the mean has P outputs, each output has the kernel, independently of the others."""

    kernel: Kernel
    mean: Mean

    def __init__(self, kernel: Kernel, mean: Mean | None = None):
        if not isinstance(kernel, Kernel):
            raise ValueError(f"kernel expects a mercer kernel, got {type(kernel).__name__}")
        mean = Zero() if mean is None else mean
        if not isinstance(mean, Mean):
            raise ValueError(f"mean expects a mercer mean function, got {type(mean).__name__}")
        self.kernel, self.mean = kernel, mean

    def _predict(self, X, covariance):
        mean = self.mean(X)
        return Gaussian(mean, self.covariance(X, mean.shape[1], covariance), covariance)

    def mean_of(self, X: Float[Array, "N D"], num_outputs: int) -> Float[Array, "N P"]:
        """The prior mean at X for a process of `num_outputs` outputs, [N, 1] where they share it."""
        mean = self.mean(X)
        if mean.shape[1] not in (1, num_outputs):
            raise ValueError(f"the mean function has {mean.shape[1]} outputs, the process has {num_outputs}")
        return mean

    def covariance(self, X: Float[Array, "N D"], num_outputs: int, covariance: Layout) -> Array:
        """The prior covariance of `num_outputs` independent outputs at X, in a layout."""
        if covariance in ("diag", "outputs"):
            values = jnp.broadcast_to(self.kernel.diag(X)[:, None], (len(X), num_outputs))
        else:
            values = jnp.broadcast_to(self.kernel(X), (num_outputs, len(X), len(X)))
        return independent_outputs(values, covariance)

    def _sample_function(self, key, num_features):
        def draw(X):
            mean = self.mean(X)
            return mean + self.sample_deviation(key, num_features, mean.shape[1])(X)

        return draw

    def sample_deviation(self, key: PRNGKeyArray, num_features: int, num_outputs: int) -> Function:
        """Draws of the zero-mean part of the process as functions, one for each output: a sum of random features."""
        return self.kernel.draw(key, num_features, num_outputs)
