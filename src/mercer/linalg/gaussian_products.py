"""Products of Gaussian densities in forms that stay positive semi-definite where rounding is felt.

With P and Q two covariances and C = beta Q + (1 - beta) P, the density N(p, P)^beta N(q, Q)^(1 - beta) is, up to a constant,
that of mean beta Q C^-1 p + (1 - beta) P C^-1 q and covariance

    P C^-1 Q = beta (Q C^-1) P (Q C^-1)^T + (1 - beta) (P C^-1) Q (P C^-1)^T,

a sum of positive semi-definite matrices (paper 002, equations 8 and 9). Neither P nor Q is inverted, so that Q may be
singular, as that of a network with few features is.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from mercer.linalg.cholesky import inverse_factor
from mercer.linalg.products import matmul


def geometric_mean(
    beta: Float[Array, ""],
    mean_p: Float[Array, " n"],
    P: Float[Array, "n n"],
    mean_q: Float[Array, " n"],
    Q: Float[Array, "n n"],
) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """The mean and covariance of N(p, P)^beta N(q, Q)^(1 - beta); with beta = 1 those of p, whatever Q."""
    Q = jnp.where(beta >= 1.0, P, Q)
    W = inverse_factor(beta * Q + (1.0 - beta) * P)
    U, T = (matmul(matmul(K, W.T), W) for K in (Q, P))  # Q C^-1, P C^-1
    mean = beta * matmul(U, mean_p) + (1.0 - beta) * matmul(T, mean_q)
    return mean, beta * matmul(matmul(U, P), U.T) + (1.0 - beta) * matmul(matmul(T, Q), T.T)


def condition_last(
    mean: Float[Array, " n"],
    K: Float[Array, "n n"],
    y: Float[Array, " b"],
    noise: Float[Array, " b"],
    seen: Bool[Array, " b"],
) -> tuple[Float[Array, " m"], Float[Array, "m m"]]:
    """The first n - b values given y = (the last b) + N(0, noise), where it was `seen`.

    With G = K_mb (K_bb + noise)^-1 the covariance is [I, -G] K [I, -G]^T + G noise G^T (Joseph's form).
    """
    m = len(mean) - len(y)
    cross = jnp.where(seen, K[:m, m:], 0.0)
    noise = jnp.where(seen, noise, 1.0)
    system = jnp.where(seen[:, None] & seen, K[m:, m:], 0.0) + jnp.diag(noise)
    W = inverse_factor(system, always=False)
    G = matmul(matmul(cross, W.T), W)
    moved = mean[:m] + matmul(G, jnp.where(seen, y - mean[m:], 0.0))
    change = jnp.concatenate([jnp.eye(m, dtype=K.dtype), -G], axis=1)
    return moved, matmul(matmul(change, K), change.T) + matmul(G * noise, G.T)
