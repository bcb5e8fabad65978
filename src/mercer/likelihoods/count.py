"""Likelihoods of counts, with the log of the rate as the latent; E[exp(f)] = exp(mean + var / 2)."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln, gammaln
from jaxtyping import Array

from mercer.likelihoods import expectations
from mercer.likelihoods.base import ScalarLikelihood, is_count
from mercer.likelihoods.special import softplus
from mercer.parameters import constant, is_concrete, param, positive


class Poisson(ScalarLikelihood):
    """p(y | f) = r^y exp(-r) / y!, r = bin_size exp(f). `bin_size` is the exposure: a length of time, an area."""

    bin_size: Array = constant(default=1.0)
    discrete: ClassVar[bool] = True
    per_output: ClassVar[tuple[str, ...]] = ("bin_size",)

    def __check_init__(self):
        if is_concrete(self.bin_size) and not (np.asarray(self.bin_size) > 0).all():
            raise ValueError(f"Poisson: bin_size expects positive numbers, got {self.bin_size}")

    def _support(self, y):
        return is_count(y), "counts 0, 1, 2, ..."

    def _places(self, y):
        count = jnp.maximum(y, 1.0)
        return ((jnp.log(count / self.bin_size), 1.0 / jnp.sqrt(count)),)

    def _log_prob(self, f, y, X):
        log_rate = f + jnp.log(self.bin_size)
        return y * log_rate - jnp.exp(log_rate) - gammaln(y + 1.0)

    def _expected_log_prob(self, mean, var, y, X, key):
        log_rate = mean + jnp.log(self.bin_size)
        return y * log_rate - jnp.exp(log_rate + 0.5 * var) - gammaln(y + 1.0)

    def _predict(self, mean, var, X, key):
        y_mean = self.bin_size * jnp.exp(mean + 0.5 * var)
        return y_mean, y_mean + y_mean**2 * jnp.expm1(var)


class NegativeBinomial(ScalarLikelihood):
    """p(y | f) = Gamma(y + r) / (Gamma(r) y!) (1 - q)^r q^y, q = a m / (1 + a m), r = 1 / a, m = exp(f).

    The mean is m, the variance m + a m^2. As the `dispersion` a goes to 0 this becomes the Poisson likelihood.
    """

    dispersion: Array = param(positive, default=1.0)
    discrete: ClassVar[bool] = True
    per_output: ClassVar[tuple[str, ...]] = ("dispersion",)

    def _support(self, y):
        return is_count(y), "counts 0, 1, 2, ..."

    def _places(self, y):
        return ((-jnp.log(self.dispersion), 2.0), (jnp.log(jnp.maximum(y, 1.0)), 2.0))

    def _log_choose(self, y):
        """log of Gamma(y + r) / (Gamma(r) y!), without large terms that cancel."""
        r = 1.0 / self.dispersion
        return -betaln(r, y + 1.0) - jnp.log(r + y)

    def _log_powers(self, f, y):
        """The log of (1 - q)^r q^y."""
        log_am = f + jnp.log(self.dispersion)
        return y * log_am - (y + 1.0 / self.dispersion) * softplus(log_am)

    def _log_prob(self, f, y, X):
        return self._log_choose(y) + self._log_powers(f, y)

    # What does not depend on f stays out of quadrature: its derivative would be found at every node.
    def _expected_log_prob(self, mean, var, y, X, key):
        return self._log_choose(y) + self._by(expectations.expectation, mean, var, y)

    def _log_predictive(self, mean, var, y, X, key):
        return self._log_choose(y) + self._by(expectations.log_expectation, mean, var, y)

    def _by(self, rule, mean, var, y):
        return rule(lambda f: self._log_powers(f, y), mean, var, self.num_points, self._places(y))

    def _predict(self, mean, var, X, key):
        y_mean = jnp.exp(mean + 0.5 * var)
        return y_mean, y_mean + y_mean**2 * (jnp.expm1(var) + self.dispersion * jnp.exp(var))
