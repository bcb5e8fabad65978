"""The Kullback-Leibler divergence in both directions, and their sum (paper 000, 6.6, whose direction is P || Q: see each class).

With s = log v_q - log v_p and d = m_q - m_p, KL[Q || P] = (exp(s) - 1 - s) / 2 + d^2 / (2 v_p).
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.divergences.base import ScalarDivergence
from mercer.divergences.elementary import exp_excess, log_ratio
from mercer.divergences.gaussians import relative, relative_entropy
from mercer.parameters import cast, dtype_of
from mercer.processes import Process


class KL(ScalarDivergence):
    """KL[Q || P] = log(s_p / s_q) + (v_q + (m_q - m_p)^2) / (2 v_p) - 1/2: that of Bayes' rule, infinite where P has no mass.

    Between processes it is what `q.kl(p)` gives, whatever the inputs, where q knows it: of a `Sparse` and a `GP` that of the
    inducing variables, the divergence of the two processes where the GP is the prior of the `Sparse`. Where the two priors
    differ outside of the inducing variables the divergence of the processes is infinite, and this is its part on these
    variables, a lower bound.
    """

    def _pointwise(self, mean_q, var_q, mean_p, var_p):
        d = mean_q - mean_p
        return 0.5 * (exp_excess(log_ratio(var_q, var_p)) + d * (d / var_p))

    def _of_groups(self, mean_q, cov_q, mean_p, cov_p):
        return relative_entropy(*relative(mean_q, cov_q, mean_p, cov_p))

    def layout(self, q, p):
        return None if q.knows_kl(p) else super().layout(q, p)

    def _between(self, q, p, X):
        if self.layout(q, p) is not None:
            return super()._between(q, p, X)
        aligned = cast(q, q.working_dtype(dtype_of(X)))
        return _of_processes(aligned, None if q.is_own_prior(p) else p)


@eqx.filter_jit
def _of_processes(q: Process, p: Process | None) -> Float[Array, ""]:
    return q.kl(p)


class ReverseKL(ScalarDivergence):
    """KL[P || Q] = log(s_q / s_p) + (v_p + (m_q - m_p)^2) / (2 v_q) - 1/2 (paper 000, equation 6.6): Q must cover P."""

    def _pointwise(self, mean_q, var_q, mean_p, var_p):
        return KL()._pointwise(mean_p, var_p, mean_q, var_q)

    def _of_groups(self, mean_q, cov_q, mean_p, cov_p):
        return KL()._of_groups(mean_p, cov_p, mean_q, cov_q)


class Jeffreys(ScalarDivergence):
    """KL[Q || P] + KL[P || Q] = 2 sinh^2(s / 2) + (m_q - m_p)^2 (1 / v_p + 1 / v_q) / 2, symmetric."""

    def _pointwise(self, mean_q, var_q, mean_p, var_p):
        d = mean_q - mean_p
        return 2.0 * jnp.sinh(0.5 * log_ratio(var_q, var_p)) ** 2 + 0.5 * d * (d / var_p + d / var_q)

    def _of_groups(self, mean_q, cov_q, mean_p, cov_p):
        kl = KL()._of_groups
        return kl(mean_q, cov_q, mean_p, cov_p) + kl(mean_p, cov_p, mean_q, cov_q)
