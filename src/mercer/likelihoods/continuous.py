"""Likelihoods of real numbers (Student's t, Laplace), of positive numbers (gamma, exponential), of fractions (beta)."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf
from jax.scipy.stats import t
from jaxtyping import Array

from mercer.likelihoods import expectations
from mercer.likelihoods.base import Likelihood, ScalarLikelihood
from mercer.likelihoods.special import log_gamma, log_ndtr, ndtr
from mercer.parameters import param, positive


class StudentT(ScalarLikelihood):
    """p(y | f) = t_df((y - f) / scale) / scale: heavy tails forgive outliers; the variance is infinite if df <= 2."""

    df: Array = param(positive, default=3.0)
    scale: Array = param(positive, default=1.0)
    per_output: ClassVar[tuple[str, ...]] = ("df", "scale")

    def _places(self, y):
        return ((y, self.scale * jnp.sqrt(self.df)),)

    def _log_prob(self, f, y, X):
        return t.logpdf(y, self.df, f, self.scale)

    def _predict(self, mean, var, X, key):
        finite = self.df > 2.0
        df = jnp.where(finite, self.df, 3.0)
        return mean, var + jnp.where(finite, self.scale**2 * df / (df - 2.0), jnp.inf)


class Laplace(Likelihood):
    """p(y | f) = exp(-|y - f| / scale) / (2 scale), with closed forms throughout."""

    scale: Array = param(positive, default=1.0)
    per_output: ClassVar[tuple[str, ...]] = ("scale",)

    def _standardised(self, mean, var, y):
        """(y - mean) / scale and var / scale^2, with a floor that keeps derivatives finite as it goes to 0."""
        return (y - mean) / self.scale, jnp.maximum(var / self.scale**2, jnp.finfo(mean.dtype).eps ** 2)

    def _log_prob(self, f, y, X):
        return -jnp.abs(y - f) / self.scale - jnp.log(2.0 * self.scale)

    def _expected_log_prob(self, mean, var, y, X, key):
        d, v = self._standardised(mean, var, y)
        # E|z|, z ~ N(d, v): the mean of a folded normal
        folded = jnp.sqrt(2.0 * v / jnp.pi) * jnp.exp(-0.5 * d**2 / v) + d * erf(d / jnp.sqrt(2.0 * v))
        return -folded - jnp.log(2.0 * self.scale)

    def _log_predictive(self, mean, var, y, X, key):
        d, v = self._standardised(mean, var, y)
        s = jnp.sqrt(v)
        # y above f, and y below f
        sides = jnp.logaddexp(log_ndtr((d - v) / s) - d, log_ndtr(-(d + v) / s) + d)
        return 0.5 * v + sides - jnp.log(2.0 * self.scale)

    def _predict(self, mean, var, X, key):
        return mean, var + 2.0 * self.scale**2


class Gamma(ScalarLikelihood):
    """p(y | f) = y^(k - 1) exp(-y / s) / (Gamma(k) s^k), s = exp(f), k = shape: mean k exp(f)."""

    shape: Array = param(positive, default=1.0)
    per_output: ClassVar[tuple[str, ...]] = ("shape",)

    def _support(self, y):
        return (y > 0) & np.isfinite(y), "positive numbers"

    def _places(self, y):
        return ((jnp.log(y / self.shape), 1.0 / jnp.sqrt(1.0 + self.shape)),)

    def _log_prob(self, f, y, X):
        return self._with_inverse_scale(jnp.exp(-f), f, y)

    def _expected_log_prob(self, mean, var, y, X, key):
        return self._with_inverse_scale(jnp.exp(0.5 * var - mean), mean, y)

    def _with_inverse_scale(self, inverse_scale, f, y):
        return (self.shape - 1.0) * jnp.log(y) - y * inverse_scale - self.shape * f - log_gamma(self.shape)

    def _predict(self, mean, var, X, key):
        y_mean = self.shape * jnp.exp(mean + 0.5 * var)
        return y_mean, y_mean**2 * (jnp.expm1(var) + jnp.exp(var) / self.shape)


class Exponential(ScalarLikelihood):
    """p(y | f) = exp(-y / m) / m, m = exp(f)."""

    def _support(self, y):
        return (y > 0) & np.isfinite(y), "positive numbers"

    def _places(self, y):
        return ((jnp.log(y), 1.0),)

    def _log_prob(self, f, y, X):
        return -f - y * jnp.exp(-f)

    def _expected_log_prob(self, mean, var, y, X, key):
        return -mean - y * jnp.exp(0.5 * var - mean)

    def _predict(self, mean, var, X, key):
        y_mean = jnp.exp(mean + 0.5 * var)
        return y_mean, y_mean**2 * (jnp.expm1(var) + jnp.exp(var))


_BETA_MARGIN = 1e-6
_BETA_PLACES = ((-4.75, 0.7), (4.75, 0.7))  # where Phi(f) and Phi(-f) come down to the margin


class Beta(ScalarLikelihood):
    """p(y | f) = Beta(y; scale m, scale (1 - m)), m = Phi(f), held 1e-6 away from 0 and 1.

    The variance is m (1 - m) / (1 + scale): the larger the scale, the less noise.
    """

    scale: Array = param(positive, default=1.0)
    per_output: ClassVar[tuple[str, ...]] = ("scale",)
    stand_in: ClassVar[float] = 0.5

    def _support(self, y):
        return (y > 0) & (y < 1), "numbers strictly between 0 and 1"

    def _places(self, y):
        return _BETA_PLACES

    def _log_prob(self, f, y, X):
        a, b = (self.scale * fraction for fraction in _fractions(f))
        log_beta = log_gamma(a) + log_gamma(b) - log_gamma(self.scale)
        return (a - 1.0) * jnp.log(y) + (b - 1.0) * jnp.log1p(-y) - log_beta

    def _predict(self, mean, var, X, key):
        def given(f):
            m, rest = _fractions(f)
            return m, m * rest / (1.0 + self.scale)

        return expectations.moments(given, mean, var, self.num_points, ((0.0, 2.0),))


def _fractions(f):
    """Phi(f) and Phi(-f), away from 0, the smaller of them with all its digits."""
    tail = ndtr(jnp.where(f < 0, f, -f))  # of |f| the derivative at 0 is none
    smaller, larger = (_BETA_MARGIN + (1.0 - 2.0 * _BETA_MARGIN) * part for part in (tail, 1.0 - tail))
    return jnp.where(f < 0, smaller, larger), jnp.where(f < 0, larger, smaller)
