"""Priors on parameters: densities for `mercer.objectives.MAP`."""

import abc

import jax.numpy as jnp
from jax.scipy import stats
from jaxtyping import Array

from mercer.parameters import Module, constant


class Prior(Module):
    """A density over real numbers."""

    @abc.abstractmethod
    def log_prob(self, value: Array) -> Array:
        """The log density at each entry of `value`."""


class Normal(Prior):
    """N(mean, scale^2)."""

    mean: Array = constant(default=0.0)
    scale: Array = constant(default=1.0)

    def log_prob(self, value):
        return stats.norm.logpdf(value, self.mean, self.scale)


class LogNormal(Prior):
    """exp(N(mean, scale^2))."""

    mean: Array = constant(default=0.0)
    scale: Array = constant(default=1.0)

    def log_prob(self, value):
        return stats.norm.logpdf(jnp.log(value), self.mean, self.scale) - jnp.log(value)


class HalfNormal(Prior):
    """|N(0, scale^2)|, on positive numbers."""

    scale: Array = constant(default=1.0)

    def log_prob(self, value):
        return jnp.where(value < 0.0, -jnp.inf, stats.norm.logpdf(value, 0.0, self.scale) + jnp.log(2.0))


class Gamma(Prior):
    """Density proportional to x^(shape - 1) exp(-rate x)."""

    shape: Array = constant(default=1.0)
    rate: Array = constant(default=1.0)

    def log_prob(self, value):
        return stats.gamma.logpdf(value, self.shape, scale=1.0 / self.rate)


class InverseGamma(Prior):
    """Density proportional to x^(-shape - 1) exp(-scale / x): no mass near 0, as suits a lengthscale."""

    shape: Array = constant(default=1.0)
    scale: Array = constant(default=1.0)

    def log_prob(self, value):
        return stats.gamma.logpdf(1.0 / value, self.shape, scale=1.0 / self.scale) - 2.0 * jnp.log(value)


class Beta(Prior):
    """Density proportional to x^(a - 1) (1 - x)^(b - 1), on the unit interval."""

    a: Array = constant(default=1.0)
    b: Array = constant(default=1.0)

    def log_prob(self, value):
        return stats.beta.logpdf(value, self.a, self.b)
