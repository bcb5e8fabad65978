"""Divergences made of the integral of q^alpha p^(1 - alpha): Rényi's, Bhattacharyya's, and the Hellinger distance.

Paper 000, equations 6.3, 6.5 and 6.7. With s = log v_q - log v_p all of them depend on the variances through s and one scale.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mercer.divergences.base import ScalarDivergence
from mercer.divergences.elementary import log_cosh, log_ratio, renyi_excess
from mercer.divergences.gaussians import bhattacharyya, relative, renyi
from mercer.linalg.products import for_each_entry
from mercer.parameters import constant, is_concrete


class Renyi(ScalarDivergence):
    """log(s_p / s_q) + log(v_p / v) / (2 (alpha - 1)) + alpha (m_q - m_p)^2 / (2 v), v = alpha v_p + (1 - alpha) v_q.

    Rényi's R_alpha[Q || P], alpha > 0 (paper 000, equation 6.7). At alpha = 1 it is KL[Q || P], the limit. For alpha > 1 it is
    infinite where v <= 0, or is no covariance: there known numbers are refused, and in compiled code the value is infinite.
    alpha is held still in training, and no derivative goes to it.
    """

    alpha: Array | float = constant(default=0.5)

    def __check_init__(self):
        if np.shape(self.alpha) != ():
            raise ValueError(f"Renyi: alpha expects one number, got shape {np.shape(self.alpha)}")
        if is_concrete(self.alpha) and not 0.0 < np.asarray(self.alpha) < np.inf:
            raise ValueError(f"Renyi: alpha expects a positive, finite number, got {self.alpha}")

    def _alpha(self, dtype) -> Array:
        return jax.lax.stop_gradient(jnp.asarray(self.alpha, dtype))

    def _pointwise(self, mean_q, var_q, mean_p, var_p):
        alpha, d = self._alpha(var_q.dtype), mean_q - mean_p
        mixed = alpha * var_p + (1.0 - alpha) * var_q
        excess = renyi_excess(alpha, log_ratio(var_q, var_p))
        defined = (mixed > 0.0) & jnp.isfinite(excess)
        return jnp.where(defined, 0.5 * (excess + alpha * d * (d / jnp.where(defined, mixed, 1.0))), jnp.inf)

    def _check_defined(self, var_q, var_p):
        if is_concrete(var_q) and is_concrete(var_p) and is_concrete(self.alpha):
            var_q, var_p, alpha = np.asarray(var_q), np.asarray(var_p), np.asarray(self.alpha, var_q.dtype)
            if not (alpha * var_p + (1.0 - alpha) * var_q > 0.0).all():
                raise ValueError(f"Renyi: {self._undefined('alpha var_p + (1 - alpha) var_q is not positive')}")

    def _undefined(self, reason: str) -> str:
        return (
            f"with alpha = {float(self.alpha):g} > 1 the divergence is infinite, as {reason}; take a smaller alpha "
            "(at most 1 is always defined), or a q that is less wide than p"
        )

    def _of_groups(self, mean_q, cov_q, mean_p, cov_p):
        A, y = relative(mean_q, cov_q, mean_p, cov_p)
        alpha = self._alpha(A.dtype)
        A = jnp.broadcast_to(A, (len(y), *A.shape[1:]))
        return jnp.sum(for_each_entry(lambda A, y: renyi(alpha, A, y), A, y))

    def _explain(self, q, p):
        super()._explain(q, p)
        if is_concrete(self.alpha) and np.asarray(self.alpha) > 1.0:
            raise ValueError(f"Renyi: {self._undefined('alpha cov_p + (1 - alpha) cov_q is not positive definite')}")


class Bhattacharyya(ScalarDivergence):
    """(m_q - m_p)^2 / (4 (v_p + v_q)) + log((v_p + v_q) / (2 s_p s_q)) / 2 (paper 000, equation 6.3).

    -log of the integral of sqrt(q p); the second term is log cosh(s / 2) / 2.
    """

    def _pointwise(self, mean_q, var_q, mean_p, var_p):
        d = mean_q - mean_p
        return 0.5 * log_cosh(0.5 * log_ratio(var_q, var_p)) + 0.25 * d * (d / (var_p + var_q))

    def _of_groups(self, mean_q, cov_q, mean_p, cov_p):
        return bhattacharyya(*relative(mean_q, cov_q, mean_p, cov_p))


class Hellinger(ScalarDivergence):
    """1 - exp(-Bhattacharyya), the squared Hellinger distance: half the integral of (sqrt q - sqrt p)^2 (paper 000, 6.5).

    Between 0 and 1. It does not add up over independent values: the joint one is 1 - exp(-B) with the joint B.
    """

    def _pointwise(self, mean_q, var_q, mean_p, var_p):
        return -jnp.expm1(-Bhattacharyya()._pointwise(mean_q, var_q, mean_p, var_p))

    def _of_groups(self, mean_q, cov_q, mean_p, cov_p):
        return -jnp.expm1(-Bhattacharyya()._of_groups(mean_q, cov_q, mean_p, cov_p))

    def _joint(self, q, p):
        return -jnp.expm1(-Bhattacharyya()._joint(q, p))
