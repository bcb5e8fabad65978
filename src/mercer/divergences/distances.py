"""Distances in the units of the function: the Wasserstein distance, and the difference of moments."""

import jax.numpy as jnp
import numpy as np

from mercer.divergences.base import ScalarDivergence
from mercer.linalg import fidelity
from mercer.linalg.products import for_each_entry
from mercer.parameters import is_concrete
from mercer.roots import safe_sqrt


class _WithPointMasses(ScalarDivergence):
    """A distance that is finite also where a variance is 0."""

    def _check_variance(self, values, name):
        if is_concrete(values) and not (np.isfinite(values) & (np.asarray(values) >= 0.0)).all():
            raise ValueError(f"{type(self).__name__}: {name} must be finite and not negative, got {np.min(values):.6g}")

    def at_marginals(self, q, p):
        var_q, var_p = (jnp.maximum(gaussian.variance, 0.0) for gaussian in (q, p))
        return self._pointwise(q.mean, var_q, p.mean, jnp.broadcast_to(var_p, q.mean.shape))


class Wasserstein(_WithPointMasses):
    """(m_q - m_p)^2 + (s_q - s_p)^2, the squared 2-Wasserstein distance (paper 000, equation 6.4).

    Jointly |m_q - m_p|^2 + tr K_q + tr K_p - 2 tr[(K_p^1/2 K_q K_p^1/2)^1/2] (4.7). The derivative by a variance that is 0,
    which is infinite, is taken to be 0.
    """

    def _pointwise(self, mean_q, var_q, mean_p, var_p):
        total = safe_sqrt(var_q) + safe_sqrt(var_p)
        # s_q - s_p = (v_q - v_p) / (s_q + s_p)
        difference = jnp.where(total > 0.0, (var_q - var_p) / jnp.where(total > 0.0, total, 1.0), 0.0)
        return (mean_q - mean_p) ** 2 + difference**2

    def _of_groups(self, mean_q, cov_q, mean_p, cov_p):
        shape = (len(mean_q), *cov_q.shape[1:])
        cov_q, cov_p = jnp.broadcast_to(cov_q, shape), jnp.broadcast_to(cov_p, shape)
        traces = jnp.sum(jnp.diagonal(cov_q, axis1=1, axis2=2)) + jnp.sum(jnp.diagonal(cov_p, axis1=1, axis2=2))
        common = jnp.sum(for_each_entry(fidelity, cov_p, cov_q))
        return jnp.sum((mean_q - mean_p) ** 2) + jnp.maximum(traces - 2.0 * common, 0.0)


class SquaredDifference(_WithPointMasses):
    """(m_q - m_p)^2 + (v_q - v_p)^2 (paper 000, equation 6.8); jointly, with the Frobenius norm of K_q - K_p."""

    def _pointwise(self, mean_q, var_q, mean_p, var_p):
        return (mean_q - mean_p) ** 2 + (var_q - var_p) ** 2

    def _of_groups(self, mean_q, cov_q, mean_p, cov_p):
        shape = (len(mean_q), *cov_q.shape[1:])
        return jnp.sum((mean_q - mean_p) ** 2) + jnp.sum(jnp.broadcast_to(cov_q - cov_p, shape) ** 2)
