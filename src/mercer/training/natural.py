"""Natural gradients for q(u), beside any optimiser for the rest (Hensman et al., 2013; Salimbeni et al., 2018).

For a Gaussian q = N(m, S), S = L L^T, a step of size g along the natural gradient of a loss F is, in natural parameters,

    S_new^-1 = S^-1 + 2 g dF/dS,      m_new = m - g S_new dF/dm.

With H = L^T (dF/dS) L, which the lower triangle of L^T (dF/dL) / 2 holds, S_new = L (I + 2 g H)^-1 L^T: neither S nor its
inverse is formed. For a conjugate model one step of size 1 is the optimum. The step is the same in any linear
reparametrisation of u, so that it does not matter whether q(u) is whitened.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from mercer.linalg import inverse_root, matmul
from mercer.processes import Process


class NaturalGradient(eqx.Module):
    """An optimiser for models with a `Sparse` posterior: natural gradients of size `gamma` for q_mu and q_sqrt.

    `gamma` is a number, or a schedule from the step number. `rest` is the optax optimiser of all other parameters, which
    follows with a step at the new q(u); None holds them still. `where` is a function from the model to what is trained so: a
    process (by default the posterior), whose `q_parameters` are taken, or a pair (q_mu, q_sqrt), or a sequence of these.
    """

    gamma: float | optax.Schedule = eqx.field(static=True, default=1.0)
    rest: optax.GradientTransformation | None = eqx.field(static=True, default=None)
    where: Callable[[Any], Any] | None = eqx.field(static=True, default=None)

    def step_size(self, step: Array) -> Array:
        """gamma at a step."""
        return jnp.asarray(self.gamma(step) if callable(self.gamma) else self.gamma)

    def parameters(self, model: Any) -> tuple[Any, ...]:
        """q_mu and q_sqrt of each q(u), one after another."""
        named = model.posterior if self.where is None else self.where(model)
        return tuple(part for pair in _pairs(named) for part in pair)

    def check_model(self, model: Any) -> None:
        """Refuses a model without a q(u) of full covariance where it is looked for."""
        expected = 'NaturalGradient expects a Model whose posterior is a Sparse with covariance="full"'
        try:
            parameters = self.parameters(model)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{expected}, or `where` to lead to q(u): {error}") from error
        shapes = [(jnp.shape(q_mu), jnp.shape(q_sqrt)) for q_mu, q_sqrt in pairwise(parameters)]
        if not shapes or any(len(mean) != 2 or root != (mean[1], mean[0], mean[0]) for mean, root in shapes):
            raise ValueError(f"{expected}, or `where` to lead to q(u), got shapes {shapes}")


def _pairs(named: Any) -> tuple[tuple[Any, Any], ...]:
    """The pairs (q_mu, q_sqrt) of a process, or of a sequence of processes and pairs, or the pair itself."""
    if isinstance(named, Process):
        return named.q_parameters()
    if any(isinstance(part, Process | tuple | list) for part in named):
        return tuple(pair for part in named for pair in _pairs(part))
    q_mu, q_sqrt = named
    return ((q_mu, q_sqrt),)


def pairwise(parameters: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """q_mu and q_sqrt of each q(u), from what `NaturalGradient.parameters` gives."""
    return list(zip(parameters[0::2], parameters[1::2], strict=True))


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
