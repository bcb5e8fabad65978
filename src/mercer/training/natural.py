"""Natural gradients for q(u), beside any optimiser for the rest (Hensman et al., 2013; Salimbeni et al., 2018).

For a Gaussian q = N(m, S), S = L L^T, a step of size g along the natural gradient of a loss F is, in natural parameters,

    S_new^-1 = S^-1 + 2 g dF/dS,      m_new = m - g S_new dF/dm.

With H = L^T (dF/dS) L, which the lower triangle of L^T (dF/dL) / 2 holds, S_new = L (I + 2 g H)^-1 L^T: neither S nor its
inverse is formed. For a conjugate model one step of size 1 is the optimum. The step is the same in any linear
reparametrisation of u, so that it does not matter whether q(u) is whitened.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from mercer.linalg import inverse_root, matmul


class NaturalGradient(eqx.Module):
    """An optimiser for models with a `Sparse` posterior: natural gradients of size `gamma` for q_mu and q_sqrt.

    `gamma` is a number, or a schedule from the step number. `rest` is the optax optimiser of all other parameters, which
    follows with a step at the new q(u); None holds them still.
    """

    gamma: float | optax.Schedule = eqx.field(static=True, default=1.0)
    rest: optax.GradientTransformation | None = eqx.field(static=True, default=None)

    def step_size(self, step: Array) -> Array:
        """gamma at a step."""
        return jnp.asarray(self.gamma(step) if callable(self.gamma) else self.gamma)


def natural_step(
    q_mu: Float[Array, "M L"],
    q_sqrt: Float[Array, "L M M"],
    d_mu: Float[Array, "M L"],
    d_sqrt: Float[Array, "L M M"],
    gamma: Float[Array, ""],
) -> tuple[Float[Array, "M L"], Float[Array, "L M M"]]:
    """q(u) after one natural-gradient step against a loss in nats with derivatives d_mu and d_sqrt."""
    # H = L^T dS L
    product = jnp.tril(matmul(q_sqrt.mT, d_sqrt))
    H = 0.5 * (product + jnp.tril(product, -1).mT)
    identity = jnp.eye(q_sqrt.shape[-1], dtype=q_sqrt.dtype)
    # L_new = L (I + 2 g H)^-1/2, the root lower triangular
    L_new = jnp.tril(matmul(q_sqrt, inverse_root(identity + 2.0 * gamma.astype(H.dtype) * H)))
    change = matmul(L_new, matmul(L_new.mT, d_mu.T[..., None]))[..., 0].T
    return q_mu - gamma.astype(q_mu.dtype) * change, L_new


def check_model(model) -> None:
    """Refuses a model without a q(u) of full covariance."""
    posterior: Any = getattr(model, "posterior", None)
    if not hasattr(posterior, "q_sqrt") or posterior.q_sqrt.shape[-1] != posterior.q_mu.shape[-2]:
        raise ValueError('NaturalGradient expects a Model whose posterior is a Sparse with covariance="full"')


def where_q(model):
    """The parts of a model that natural gradients move."""
    return model.posterior.q_mu, model.posterior.q_sqrt
