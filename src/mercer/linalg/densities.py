"""The log density of a zero-mean Gaussian, with its derivative written down."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.linalg.cholesky import inverse_factor
from mercer.linalg.products import matmul, triangular_matmul


@jax.custom_vjp
def zero_mean_log_density(K: Float[Array, "N N"], R: Float[Array, "N P"]) -> Float[Array, ""]:
    """sum_p log N(R_p; 0, K), with dK = (alpha alpha^T - P K^-1) / 2 and dR = -alpha for alpha = K^-1 R."""
    return _forward(K, R)[0]


def _forward(K, R):
    W = inverse_factor(K, always=False)
    whitened = matmul(W, R)
    log_determinant = -2.0 * jnp.sum(jnp.log(jnp.diagonal(W)))
    N, P = R.shape
    value = -0.5 * (jnp.sum(whitened**2) + P * (log_determinant + N * jnp.log(2.0 * jnp.pi)))
    return value.astype(R.dtype), (W, matmul(W.T, whitened))


def _backward(residuals, cotangent):
    W, alpha = residuals
    inverse = triangular_matmul(W.T, W, left="upper", right="lower", out="symmetric")
    dK = 0.5 * (matmul(alpha, alpha.T) - alpha.shape[1] * inverse)
    return cotangent * dK, -cotangent * alpha


zero_mean_log_density.defvjp(_forward, _backward)
