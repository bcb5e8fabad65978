"""The inducing variables of a sparse posterior under a prior that is not its own.

For variables u = A f, q(u) = N(A m + q_mu, S), with m the mean of the posterior's own prior; whitened, q_mu and S are those of
v, and q(u) = N(A m + R q_mu, R S R^T). Another prior gives them p(u) = N(A m', K'), and with R' R'^T = K'

    KL[q(u) || p(u)] = (|R'^-1 (A (m - m') + q_mu)|^2 + tr K'^-1 S - M + log det K' - log det S) / 2.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.covariances import Kuu
from mercer.linalg.loops import for_each
from mercer.means import Zero
from mercer.parameters import cast
from mercer.processes.prior import GP
from mercer.processes.structure import structure_of


def divergence_of_variables(q: Any, prior: Any) -> Float[Array, ""]:
    """KL[q(u) || p(u)] of a `Sparse` q, in nats, summed over groups."""
    if not isinstance(prior, GP):
        raise ValueError(f"kl expects a mercer.GP, got {type(prior).__name__}")
    prior = cast(prior, q.q_mu.dtype)
    pairs, others = q.structure.pairs, _pairs_under(prior.kernel, q)
    num, (M, L) = max(len(pairs), len(others)), q.q_mu.shape
    both = tuple(zip(pairs * (num // len(pairs)), others * (num // len(others)), strict=True))
    shift = jnp.broadcast_to(_shift(q, prior), (M, L))
    in_groups = [array.reshape(num, L // num, *array.shape[1:]) for array in (q.q_mu.T, q.root(), shift.T)]

    def of_pairs(pairs, q_mu, root, shift):
        mean, log_scale = q_mu.T, 0.0
        if q.whiten:
            own = Kuu(*pairs[0])
            mean, root, log_scale = own.colour(mean), jax.vmap(own.colour)(root), -0.5 * own.log_determinant()
        other = Kuu(*pairs[1])
        if other.size != M:
            raise ValueError(f"kl: under the other prior there are {other.size} variables in a group, here {M}")
        mean, root = other.whiten(mean + shift.T), jax.vmap(other.whiten)(root)
        log_scale = jnp.broadcast_to(log_scale + 0.5 * other.log_determinant(), len(root))
        return jnp.sum(mean**2, axis=0) + jnp.sum(root**2, axis=(1, 2)), log_scale

    squares, log_scale = map(jnp.sum, for_each(of_pairs, both, *in_groups))
    diagonal = jnp.diagonal(q.q_sqrt, axis1=-2, axis2=-1)
    return 0.5 * (squares - q.q_mu.size) - jnp.sum(jnp.log(jnp.abs(diagonal))) + log_scale


def _pairs_under(kernel: Any, q: Any) -> tuple[tuple[Any, Any], ...]:
    """The inducing variables and the other kernel of each group; a single pair where the groups share it."""
    own, other = q.structure, q.structure_under(kernel)
    of_latents = own.latent is not None
    if own.num_groups != other.num_groups or (not of_latents and own.num_outputs != other.num_outputs):
        raise ValueError(f"kl: the other prior expects a kernel of {own.expected}, got {type(kernel).__name__}")
    return other.pairs


def _shift(q: Any, prior: GP) -> Array:
    """A (m - m'): by how much the means of u differ under the two priors, [M, L] or 0.

    Latent functions have no means of their own, unless they are the outputs (less their means): then u is taken of these.
    """
    own, P = q.structure, q.num_outputs
    independent = all(structure_of(q.inducing, kernel).independent for kernel in (q.prior.kernel, prior.kernel))
    of_latents = own.latent is not None
    if (of_latents and not independent) or (isinstance(q.prior.mean, Zero) and isinstance(prior.mean, Zero)):
        return jnp.zeros((), q.q_mu.dtype)

    def difference(X):
        return jnp.broadcast_to(q.prior.mean_of(X, P) - prior.mean_of(X, P), (len(X), P))

    if of_latents:
        return own.in_groups(q.inducing.of_latents(difference), q.q_mu.shape[1])
    return own.of_function(difference, q.q_mu.shape[1])
