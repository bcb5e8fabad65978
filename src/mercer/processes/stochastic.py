"""A module that draws random numbers of its own as a process: a network with dropout, seen through some passes.

Dropout in use as a sample of functions is due to Gal and Ghahramani (2016); paper 001, section 4.2, has it beside deep
processes.
"""

import inspect
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from mercer import modules
from mercer.inducing.functionals import is_functional
from mercer.parameters import Module, constant, param, real
from mercer.processes.base import Process
from mercer.processes.deterministic import Deterministic, without_variance
from mercer.processes.gaussian import Mixture


class Stochastic(Process):
    """module(x, key=key), with variance 0 in each pass: a mixture over `num_samples` keys.

    The module takes a row [D] to [P], such as a `Sequential` of `equinox.nn` with `Dropout` in it; all of its arrays are
    parameters. A key makes one function of all rows. Where no covariance between rows is asked for, each row has keys of
    its own. Bounds on the evidence take `training_samples` passes. It learns no distribution, and is its own prior.
    """

    module: Callable[..., Float[Array, " P"]] = param(real)
    width: int = eqx.field(static=True)
    num_samples: int = eqx.field(static=True, default=100)
    training_samples: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        modules.check_module(self.module, "Stochastic")
        if "key" not in inspect.signature(self.module).parameters:
            kind = type(self.module).__name__
            raise ValueError(f"Stochastic: module expects to be called as module(x, key=key), but {kind} takes no key")
        for name in ("width", "num_samples", "training_samples"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"Stochastic: {name} expects a whole number, at least 1, got {getattr(self, name)!r}")

    @property
    def num_outputs(self):
        return self.width

    @property
    def joint_layout(self):
        return "full"

    @property
    def prior(self) -> "Stochastic":  # type: ignore[override]
        """The process itself: it learns no distribution."""
        return self

    def is_own_prior(self, prior):
        return isinstance(prior, Stochastic)

    def kl(self, prior=None):
        return jnp.zeros(())

    def in_training(self):
        return Stochastic(self.module, self.width, self.training_samples, self.training_samples)

    def given_draw(self, *, key):
        return Deterministic(Pass(self.module, key), self.width)

    def check_inputs(self, X):
        if is_functional(X):
            raise ValueError("Stochastic: a module has values at inputs [N, D], not at functionals")

    def _predict_with_key(self, X, covariance, key):
        # One function for all rows where their covariance is asked for; elsewhere one for each row, which tells more.
        if covariance in ("inputs", "full"):
            means = self._sampled(X, self.num_samples, key)
        else:
            keys = jax.random.split(key, len(X))
            means = jax.vmap(lambda x, key: self._sampled(x[None], self.num_samples, key)[:, 0], out_axes=1)(X, keys)
        cov = without_variance(means[0], covariance).cov
        return Mixture(means, jnp.broadcast_to(cov, (len(means), *cov.shape)), covariance)

    def _sampled(self, X, num, key):
        return jax.vmap(lambda key: self.given_draw(key=key).values(X))(jax.random.split(key, num))

    def _sample_function(self, key, num_features):
        return self.given_draw(key=key)._sample_function(key, num_features)


class Pass(Module):
    """A pass through a module: one function of a row."""

    module: Callable[..., Float[Array, " P"]] = param(real)
    key: PRNGKeyArray = constant()

    def __call__(self, x: Float[Array, " D"], *, key: PRNGKeyArray | None = None) -> Float[Array, " P"]:
        """The module at a row, with the key of this pass."""
        return self.module(x, key=self.key)
