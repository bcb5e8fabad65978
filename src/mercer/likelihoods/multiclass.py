"""Likelihoods of classes: of ordered ones, cut from one latent; and of unordered ones, with one latent for each class.

Labels are 0, 1, ..., C - 1. For unordered classes `predict` gives the probability of each class, [N, C].
Robust max: Hernandez-Lobato et al. (2011); paper 000, equations (2.13)-(2.15).
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from mercer.likelihoods import expectations
from mercer.likelihoods.base import Likelihood, ScalarLikelihood, as_integer, is_count
from mercer.likelihoods.special import log_ndtr_between
from mercer.parameters import constant, is_concrete, ordered, param, positive

_FAR = 1e9  # standard deviations: a finite number that stands for infinity


class Ordinal(ScalarLikelihood):
    """p(y = k | f) = Phi((b_k - f) / sigma) - Phi((b_k-1 - f) / sigma): K edges b cut f + noise into K + 1 classes."""

    bin_edges: Float[Array, " K"] = param(ordered)
    sigma: Array = param(positive, default=1.0)
    discrete: ClassVar[bool] = True
    per_output: ClassVar[tuple[str, ...]] = ("sigma",)

    def __check_init__(self):
        if jnp.ndim(self.bin_edges) != 1 or len(self.bin_edges) == 0:
            raise ValueError(f"Ordinal: bin_edges expects a vector, got shape {jnp.shape(self.bin_edges)}")

    def _support(self, y):
        return is_count(y) & (y <= len(self.bin_edges)), f"labels 0, ..., {len(self.bin_edges)}"

    @property
    def num_classes(self):
        return len(self.bin_edges) + 1

    def _log_probability(self, mean, scale, y):
        """log P(b_k-1 < z < b_k), z ~ N(mean, scale^2), k = y."""
        k, last = y.astype(int), len(self.bin_edges)
        upper = jnp.where(k == last, _FAR, (self.bin_edges[jnp.minimum(k, last - 1)] - mean) / scale)
        lower = jnp.where(k == 0, -_FAR, (self.bin_edges[jnp.maximum(k - 1, 0)] - mean) / scale)
        return log_ndtr_between(lower, upper)

    def _places(self, y):
        k, last = y.astype(int), len(self.bin_edges) - 1
        edges = self.bin_edges[jnp.clip(k - 1, 0, last)], self.bin_edges[jnp.clip(k, 0, last)]
        return tuple((edge, 2.0 * self.sigma) for edge in edges)

    def _log_prob(self, f, y, X):
        return self._log_probability(f, self.sigma, y)

    def _log_predictive(self, mean, var, y, X, key):
        return self._log_probability(mean, jnp.sqrt(self.sigma**2 + var), y)

    def _predict(self, mean, var, X, key):
        labels = jnp.arange(float(self.num_classes), dtype=mean.dtype)[:, None, None]
        p = jnp.exp(self._log_predictive(mean, var, labels, X, key))
        y_mean = jnp.sum(labels * p, axis=0)
        return y_mean, jnp.sum((labels - y_mean) ** 2 * p, axis=0)


class _Multiclass(Likelihood):
    """One output, a label; one latent for each class."""

    classes: int = eqx.field(static=True, converter=as_integer)
    discrete: ClassVar[bool] = True

    def __check_init__(self):
        if not isinstance(self.classes, int) or self.classes < 2:
            raise ValueError(f"{type(self).__name__}: classes expects an integer of 2 or more, got {self.classes!r}")

    def _support(self, y):
        return is_count(y) & (y < self.classes), f"labels 0, ..., {self.classes - 1}"

    @property
    def num_classes(self):
        return self.classes

    def num_latents(self, num_outputs):
        if num_outputs != 1:
            raise ValueError(f"{type(self).__name__}: expects one output, a column of labels, got {num_outputs}")
        return self.classes

    def _num_outputs(self, num_latents):
        return 1


class RobustMax(_Multiclass):
    """p(y | f) = 1 - epsilon if y is the class of the largest latent, epsilon / (C - 1) if not.

    The probability that a latent is the largest is by quadrature over it.
    """

    epsilon: Array = constant(default=1e-3)
    num_points: int = eqx.field(static=True, default=32, kw_only=True)

    def __check_init__(self):
        if is_concrete(self.epsilon) and not 0.0 < np.asarray(self.epsilon) < 1.0:
            raise ValueError(f"RobustMax: epsilon expects a number strictly between 0 and 1, got {self.epsilon}")

    def _probability_largest(self, mean, var, label):
        """S = P(f_label > all other f), [N, C], [N] -> [N]."""
        is_label = label[:, None] == jnp.arange(self.classes)
        scale = expectations.standard_deviation(var)
        gap = jnp.where(is_label, -_FAR * scale, mean - _of_label(mean, label)[:, None])
        return expectations.probability_above(gap.T, scale.T, _of_label(var, label), self.num_points)

    def _probability(self, S):
        return (1.0 - self.epsilon) * S + self.epsilon * (1.0 - S) / (self.classes - 1)

    def _log_prob(self, f, y, X):
        return jnp.log(self._probability((jnp.argmax(f, axis=1, keepdims=True) == y).astype(f.dtype)))

    def _expected_log_prob(self, mean, var, y, X, key):
        S = self._probability_largest(mean, var, y[:, 0])[:, None]
        return S * jnp.log1p(-self.epsilon) + (1.0 - S) * jnp.log(self.epsilon / (self.classes - 1))

    def _log_predictive(self, mean, var, y, X, key):
        return jnp.log(self._probability(self._probability_largest(mean, var, y[:, 0])))[:, None]

    def _predict(self, mean, var, X, key):
        labels = jnp.broadcast_to(jnp.arange(self.classes)[:, None], (self.classes, len(mean)))
        S = jax.lax.map(lambda label: self._probability_largest(mean, var, label), labels).T
        p = self._probability(S)
        return p, p * (1.0 - p)


class Softmax(_Multiclass):
    """p(y | f) = exp(f_y) / sum_j exp(f_j), its expectations by Monte Carlo."""

    num_samples: int = eqx.field(static=True, default=128, kw_only=True)

    def __check_init__(self):
        if self.num_samples < 1:
            raise ValueError(f"Softmax: num_samples expects a positive integer, got {self.num_samples}")

    def _log_prob(self, f, y, X):
        return _of_label(jax.nn.log_softmax(f), y[:, 0])[:, None]

    def _log_prob_of_samples(self, mean, var, y, key):
        f = expectations.samples(mean, var, self.num_samples, key)
        return jax.vmap(lambda f: self._log_prob(f, y, None))(f)

    def _expected_log_prob(self, mean, var, y, X, key):
        return jnp.mean(self._log_prob_of_samples(mean, var, y, key), axis=0)

    def _log_predictive(self, mean, var, y, X, key):
        return logsumexp(self._log_prob_of_samples(mean, var, y, key), axis=0) - jnp.log(float(self.num_samples))

    def _predict(self, mean, var, X, key):
        p = jnp.mean(jax.nn.softmax(expectations.samples(mean, var, self.num_samples, key)), axis=0)
        return p, p * (1.0 - p)


def _of_label(values, label):
    """The column of each row that its label names, [N, C], [N] -> [N]."""
    return jnp.take_along_axis(values, label.astype(int)[:, None], axis=1)[:, 0]
