"""Moments of a posterior at inputs with noise, where the expectations of its kernel are known (Girard et al., 2003).

A posterior f(x) = m + K_xu a of variance k(x, x) - K_xu B K_ux, at a random x and with both f and x unknown, has

    E f = m + psi1^T a,      Cov f_p f_q = a_p^T psi2 a_q - (psi1^T a_p) (psi1^T a_q) + (psi0 - tr(psi2 B_p)) [p = q].
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.covariances import psi0, psi1, psi2_traces
from mercer.covariances.expectations import known
from mercer.inputs import Normal
from mercer.layouts import Layout
from mercer.linalg import matmul
from mercer.means import Constant, Zero
from mercer.processes.gaussian import Gaussian
from mercer.processes.prior import GP


def has_moments(prior: GP, inducing: Any, x: Normal, covariance: Layout) -> bool:
    """Whether `moments_at` is known: for a kernel of one output and a constant mean, at each input for itself."""
    plain = prior.num_outputs is None and isinstance(prior.mean, Zero | Constant)
    return x.closed_form and plain and covariance in ("diag", "outputs") and known(inducing, prior.kernel, x.dimension)


def moments_at(
    x: Normal,
    prior: GP,
    inducing: Any,
    a: Float[Array, "M P"],
    B: Float[Array, "#P M M"],
    covariance: Layout,
) -> Gaussian:
    """The mean and the covariance between outputs."""
    M, P = a.shape
    pair = inducing, prior.kernel
    mean = matmul(psi1(*pair, x).T, a)
    # Of the function at a given input its variance, and the products of the means of two outputs.
    inner = psi0(prior.kernel, x)[:, None] - psi2_traces(*pair, x, B)
    if covariance == "diag":
        squares = psi2_traces(*pair, x, a.T[:, :, None] * a.T[:, None, :])
        return Gaussian(mean + prior.mean_of(x.mean, P), squares - mean**2 + inner, covariance)
    products = (a.T[:, None, :, None] * a.T[None, :, None, :]).reshape(P * P, M, M)
    between = psi2_traces(*pair, x, products).reshape(-1, P, P) - mean[:, :, None] * mean[:, None, :]
    cov = between + jnp.broadcast_to(inner, mean.shape)[:, :, None] * jnp.eye(P, dtype=mean.dtype)
    return Gaussian(mean + prior.mean_of(x.mean, P), cov, covariance)
