"""Divergences of processes that are means over the inputs, so that a batch of inputs gives an estimate."""

import equinox as eqx
import jax.numpy as jnp

from mercer.divergences.base import Divergence, ScalarDivergence, refuse_functionals
from mercer.divergences.distances import Wasserstein


class Projected(Divergence):
    """mean_n D_0[Q(f(x_n)), P(f(x_n))], summed over outputs (paper 000, equation 6.2): it sees marginals only.

    The mean over a batch is an unbiased estimate of that over all inputs. Calling it takes arrays [N, P] to the one number.
    """

    divergence: ScalarDivergence

    def __check_init__(self):
        if not isinstance(self.divergence, ScalarDivergence):
            raise ValueError(
                f"Projected expects a divergence between numbers, such as KL(), got {type(self.divergence).__name__}"
            )

    def __call__(self, mean_q, var_q, mean_p, var_p):
        """The mean over the rows of the sum over the columns, [N, P] each."""
        terms = self.divergence(mean_q, var_q, mean_p, var_p)
        _check_rows(self, terms)
        return jnp.sum(terms) / len(terms)

    def _joint(self, q, p):
        return jnp.sum(self.divergence.at_marginals(q, p)) / len(q.mean)

    def layout(self, q, p):
        return "diag"

    def check_inputs(self, X):
        refuse_functionals(self, X)

    def _explain(self, q, p):
        self.divergence._explain(q, p)


class GaussianWasserstein(Divergence):
    """mean_n (m_q - m_p)^2 + mean_n v_q + mean_n v_p - (2 / N) tr[(K_p^1/2 K_q K_p^1/2)^1/2], summed over outputs.

    The squared 2-Wasserstein distance of Gaussian measures on the functions that are square integrable over the inputs (paper
    000, equation 4.7), estimated at N inputs (5.11, with one batch for both). Without the `trace` term, which costs N^3, it is
    an upper bound: paper 000, section 5.3. That one is a mean over inputs; the trace term of a batch is not an unbiased
    estimate.
    """

    trace: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        if not isinstance(self.trace, bool):
            raise ValueError(f"GaussianWasserstein: trace expects True or False, got {self.trace!r}")

    def __call__(self, mean_q, var_q, mean_p, var_p):
        """The number from arrays [N, P] of marginals; only without the trace term, which needs covariances."""
        if self.trace:
            raise ValueError("GaussianWasserstein with trace=True needs covariances between inputs: use joint(q, p)")
        mean_q, var_q, mean_p, var_p = Wasserstein().checked(mean_q=mean_q, var_q=var_q, mean_p=mean_p, var_p=var_p)
        _check_rows(self, mean_q)
        return jnp.sum((mean_q - mean_p) ** 2 + var_q + var_p) / len(mean_q)

    def _joint(self, q, p):
        if self.trace:
            if q.layout not in ("inputs", "full"):
                raise ValueError(
                    f'GaussianWasserstein with trace=True expects the layout "inputs" or "full", got {q.layout!r}'
                )
            return Wasserstein()._joint(q, p) / len(q.mean)
        variances = q.variance + jnp.broadcast_to(p.variance, q.mean.shape)
        return jnp.sum((q.mean - p.mean) ** 2 + variances) / len(q.mean)

    def layout(self, q, p):
        return super().layout(q, p) if self.trace else "diag"

    def check_inputs(self, X):
        refuse_functionals(self, X)


def _check_rows(divergence, array):
    if array.ndim != 2:
        raise ValueError(f"{type(divergence).__name__} expects arrays [N, P], got shape {array.shape}")
