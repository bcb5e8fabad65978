"""Likelihoods of successes: Bernoulli and binomial, with p = link^-1(f) by the probit or the logit link."""

import math
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array

from mercer.likelihoods import expectations
from mercer.likelihoods.base import ScalarLikelihood, as_integer, is_count
from mercer.likelihoods.special import log_ndtr, log_sigmoid, ndtr

_PLACES = ((0.0, 2.0),)  # where both links bend
_Links = dict[str, Callable[[Array], Array]]
_LOG_INVERSE_LINK: _Links = {"probit": log_ndtr, "logit": log_sigmoid}  # log p; log(1 - p) is the same at -f
_INVERSE_LINK: _Links = {"probit": ndtr, "logit": jax.nn.sigmoid}


def _check_link(likelihood):
    if likelihood.link not in _LOG_INVERSE_LINK:
        raise ValueError(f"{type(likelihood).__name__}: link expects 'probit' or 'logit', got {likelihood.link!r}")


class Bernoulli(ScalarLikelihood):
    """p(y = 1 | f) = Phi(f) (probit) or 1 / (1 + exp(-f)) (logit), y in {0, 1}."""

    link: str = eqx.field(static=True, default="probit")
    discrete: ClassVar[bool] = True

    def __check_init__(self):
        _check_link(self)

    def _support(self, y):
        return (y == 0) | (y == 1), "0 or 1"

    @property
    def num_classes(self):
        return 2

    def _places(self, y):
        return _PLACES

    def _log_prob(self, f, y, X):
        return _LOG_INVERSE_LINK[self.link]((2.0 * y - 1.0) * f)

    def _log_predictive(self, mean, var, y, X, key):
        if self.link == "probit":  # f + a standard normal, above 0
            return self._log_prob(mean / jnp.sqrt(1.0 + var), y, X)
        return super()._log_predictive(mean, var, y, X, key)

    def _predict(self, mean, var, X, key):
        success, failure = (jnp.exp(self._log_predictive(mean, var, y, X, key)) for y in (1.0, 0.0))
        return success, success * failure


class Binomial(ScalarLikelihood):
    """p(y | f) = C(n, y) p^y (1 - p)^(n - y), with n = trials and p of f as in `Bernoulli`."""

    trials: int = eqx.field(static=True, converter=as_integer)
    link: str = eqx.field(static=True, default="probit")
    discrete: ClassVar[bool] = True

    def __check_init__(self):
        _check_link(self)
        if not isinstance(self.trials, int) or self.trials < 1:
            raise ValueError(f"Binomial: trials expects a positive integer, got {self.trials!r}")

    def _support(self, y):
        return is_count(y) & (y <= self.trials), f"integers from 0 to {self.trials}"

    def _places(self, y):
        return ((0.0, 2.0 / (1.0 + math.log(self.trials) / 16.0)),)  # n log densities are to be as accurate as one

    def _log_prob(self, f, y, X):
        log_p, n = _LOG_INVERSE_LINK[self.link], self.trials
        log_choose = gammaln(n + 1.0) - gammaln(y + 1.0) - gammaln(n - y + 1.0)
        return log_choose + y * log_p(f) + (n - y) * log_p(-f)

    def _predict(self, mean, var, X, key):
        inverse_link, n = _INVERSE_LINK[self.link], self.trials

        def given(f):
            p = inverse_link(f)
            return n * p, n * p * inverse_link(-f)

        return expectations.moments(given, mean, var, self.num_points, _PLACES)
