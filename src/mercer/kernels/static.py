"""Kernels that do not look at how far inputs are from each other: a constant, and white noise."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mercer.kernels.base import Kernel
from mercer.parameters import cast, param, positive


class Constant(Kernel):
    """variance: functions that are the same everywhere."""

    variance: Array = param(positive, default=1.0)

    def __check_init__(self):
        self._check_ranks(variance=0)

    def _matrix(self, X, X2):
        return jnp.full((len(X), len(X if X2 is None else X2)), self.variance)

    def _diagonal(self, X):
        return jnp.full(len(X), self.variance)

    def shape(self, t):
        return jnp.full_like(t, self.variance)

    def vanishing(self, dimension, levels):
        return np.arange(levels) > 0

    def columns(self, dimension):
        return set()

    def _features(self, key, num, X):
        """Random signs, so that features of other kernels added to them are uncorrelated with them."""
        signs = jax.random.rademacher(key, (num,), X.dtype)
        return jnp.broadcast_to(jnp.sqrt(cast(self, X.dtype).variance / num) * signs, (len(X), num))


class White(Kernel):
    """variance where x and x' are the same input, 0 elsewhere: independent noise at each input.

    Which inputs are the same is said by the call, not by their values: k(X) is variance times the identity, and
    k(X, X2) is zero, also where X2 holds equal rows.
    """

    variance: Array = param(positive, default=1.0)

    def __check_init__(self):
        self._check_ranks(variance=0)

    def _matrix(self, X, X2):
        if X2 is None:
            return self.variance * jnp.eye(len(X), dtype=X.dtype)
        return jnp.zeros((len(X), len(X2)), X.dtype)

    def _diagonal(self, X):
        return jnp.full(len(X), self.variance)

    def rough_part(self, dim):
        return "White"  # also along columns that it is not on: each input has noise of its own
