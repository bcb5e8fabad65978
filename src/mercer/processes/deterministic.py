"""A function without uncertainty as a process: a feature map in front of the layers of a deep one."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer import modules
from mercer.inducing.functionals import is_functional
from mercer.kernels import Map
from mercer.layouts import Layout
from mercer.parameters import constant, param, real
from mercer.processes.base import Process
from mercer.processes.gaussian import Gaussian


class Deterministic(Process):
    """module(x), with variance 0: an `equinox` module that takes a row [D] to [P]. All of its arrays are parameters.

    Where the module takes arrays of another shape, such as images [C, H, W], `input_shape` says so, and a row is laid out in it.
    Nothing in it is uncertain, and it is its own prior.
    """

    module: modules.Module = param(real)
    width: int = eqx.field(static=True)
    input_shape: tuple[int, ...] | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        modules.check_module(self.module, "Deterministic")
        if not isinstance(self.width, int) or self.width < 1:
            raise ValueError(f"Deterministic: width expects how many outputs the module has, got {self.width!r}")

    @property
    def num_outputs(self):
        return self.width

    @property
    def prior(self) -> "Deterministic":  # type: ignore[override]
        """The process itself: it learns no distribution."""
        return self

    def is_own_prior(self, prior):
        return isinstance(prior, Deterministic)

    def kl(self, prior=None):
        return jnp.zeros(())

    def given_draw(self, *, key):
        return self

    def check_inputs(self, X):
        if is_functional(X):
            raise ValueError("Deterministic: a module has values at inputs [N, D], not at functionals")
        if self.input_shape is not None and X.shape[1] != math.prod(self.input_shape):
            raise ValueError(
                f"Deterministic: input_shape {self.input_shape} expects X with {math.prod(self.input_shape)} columns, "
                f"got {X.shape[1]}"
            )

    def values(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        """module(x) for each row."""
        if self.input_shape is None:
            values = modules.of_rows(self.module, X, "Deterministic")
        else:
            values = jax.vmap(self.module)(X.reshape(-1, *self.input_shape))
        if values.shape[1:] != (self.width,):
            raise ValueError(
                f"Deterministic: the module expects to return a vector of length {self.width}, got shape {values.shape[1:]}"
            )
        return values

    def _predict(self, X, covariance):
        return without_variance(self.values(X), covariance)

    def _sampled(self, X, num, key):
        values = self.values(X)
        return jnp.broadcast_to(values, (num, *values.shape))

    def _sample_function(self, key, num_features):
        return DeterministicFunction(self)


def without_variance(mean: Float[Array, "N P"], covariance: Layout) -> Gaussian:
    """N(mean, 0)."""
    N, P = mean.shape
    shape = {"diag": (N, P), "outputs": (N, P, P), "inputs": (P, N, N), "full": (N, P, N, P)}[covariance]
    return Gaussian(mean, jnp.zeros(shape, mean.dtype), covariance)


class DeterministicFunction(Map):
    """The function that a process without variance is."""

    process: Deterministic = constant()

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        return self.process.values(X)
