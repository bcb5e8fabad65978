"""A different likelihood for each output: a count beside a class beside a measurement, of one input."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mercer.likelihoods.base import Likelihood


class PerOutput(Likelihood):
    """p(y | f) = prod_p p_p(y_p | f_p): each likelihood has one column of y, and its latents in turn."""

    likelihoods: tuple[Likelihood, ...]

    def __init__(self, likelihoods: Sequence[Likelihood]):
        if not likelihoods or not all(isinstance(part, Likelihood) for part in likelihoods):
            raise ValueError(f"PerOutput: likelihoods expects one or more likelihoods, got {likelihoods!r}")
        self.likelihoods = tuple(likelihoods)

    @property
    def discrete(self) -> bool:  # type: ignore[override]
        return all(part.discrete for part in self.likelihoods)

    def num_latents(self, num_outputs):
        if num_outputs != len(self.likelihoods):
            raise ValueError(f"PerOutput: there are {len(self.likelihoods)} likelihoods, and {num_outputs} outputs")
        return sum(part.num_latents(1) for part in self.likelihoods)

    def _num_outputs(self, num_latents):
        return len(self.likelihoods)

    def validate(self, Y, name="Y"):
        Y = jnp.asarray(Y)
        self.num_latents(Y.shape[1])
        for p, part in enumerate(self.likelihoods):
            part.validate(Y[:, p : p + 1], f"column {p} of {name}")

    def _sum_observed(self, terms, y):
        return terms(y)  # each likelihood looks after its own NaN

    def _columns(self, latents):
        """The latents of each likelihood."""
        ends = np.cumsum([part.num_latents(1) for part in self.likelihoods])
        return jnp.split(latents, ends[:-1], axis=1)

    def _keys(self, key):
        return [None] * len(self.likelihoods) if key is None else jax.random.split(key, len(self.likelihoods))

    def _sum(self, method, latents, y, X, keys=None):
        """The sum over outputs of a method of each likelihood, called with its columns of each array in `latents`."""
        columns = zip(self.likelihoods, *(self._columns(array) for array in latents), strict=True)
        total = jnp.zeros(len(y), y.dtype)
        for p, (part, *arrays) in enumerate(columns):
            options = {} if keys is None else {"key": keys[p]}
            total += getattr(part, method)(*arrays, y[:, p : p + 1], X, **options)
        return total

    def _log_prob(self, f, y, X):
        return self._sum("log_prob", [f], y, X)

    def _expected_log_prob(self, mean, var, y, X, key):
        return self._sum("expected_log_prob", [mean, var], y, X, self._keys(key))

    def _log_predictive(self, mean, var, y, X, key):
        return self._sum("log_predictive", [mean, var], y, X, self._keys(key))

    def _predict(self, mean, var, X, key):
        parts = zip(self.likelihoods, self._columns(mean), self._columns(var), self._keys(key), strict=True)
        means, variances = zip(*(part.predict(m, v, X, key=k) for part, m, v, k in parts), strict=True)
        return jnp.concatenate(means, axis=1), jnp.concatenate(variances, axis=1)
