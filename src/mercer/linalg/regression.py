"""Linear regression on features with a standard normal prior: what sparse regression comes down to (Titsias, 2009).

With r_n = C_n^T v + noise_n, v ~ N(0, I) and precisions lambda_n = 1 / var(noise_n), the posterior of v is N(B^-1 b, B^-1),
B = I + C diag(lambda) C^T and b = C (lambda r). The log density of r is that under v = 0, plus |B^-1/2 b|^2 / 2 - log det B / 2.

Where v comes in groups, and a posterior is wanted that is independent between them, the mean that is closest in KL divergence
is the same, the covariances are the inverses of the blocks of B on its diagonal, and log det B becomes the sum of theirs.

Rounding leaves C C^T wrong by about eps times the sizes of its rows, which shows in B where the noise is as small. So its
root is taken of D^-1 B D^-1, which has a diagonal of ones: jitter, where it is needed at all, is then relative to the size of
each feature.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.linalg.cholesky import inverse_factor, inverse_root, raise_if_failed, raise_if_not_finite
from mercer.linalg.products import for_each_entry, matmul, triangular_matmul
from mercer.validation import AnyArray


class Regression(NamedTuple):
    """S systems of m features. A first axis of length 1 is shared by the systems."""

    B: Float[Array, "#S m m"]
    b: Float[Array, "S m"]
    num_groups: int = 1  # of features, between which the posterior is to be independent

    @classmethod
    def of(cls, gram: Float[Array, "#S m m"], b: Float[Array, "S m"], num_groups: int = 1) -> "Regression":
        """From C diag(lambda) C^T and C (lambda r)."""
        return cls(plus_identity(gram), b, num_groups)

    def evidence(self) -> Float[Array, ""]:
        """1/2 sum (b^T B^-1 b - log det B) over the systems."""
        b = self.b.reshape(len(self.B), -1, self.b.shape[1])
        of_systems = (
            _log_evidence(self.B[0], b[0]) if len(b) == 1 else jnp.sum(for_each_entry(_log_evidence, self.B, b))
        )
        if self.num_groups == 1:
            return of_systems
        whole, blocks = (inverse_factor(B, always=False) for B in (self.B, self._blocks()))
        return of_systems + half_log_determinant(whole) - half_log_determinant(blocks)

    def best(self) -> tuple[Float[Array, "S m"], Float[Array, "J M M"]]:
        """The mean of v, and a lower triangular root of its covariance for each system and group."""
        root = posterior_root(self.B)
        mean = matmul(root, matmul(root.mT, self.b[..., None]))[..., 0]
        return mean, root if self.num_groups == 1 else posterior_root(self._blocks())

    def _blocks(self) -> Float[Array, "J M M"]:
        """The blocks of the groups on the diagonal of each B."""
        size, each = self.B.shape[1] // self.num_groups, jnp.arange(self.num_groups)
        blocks = self.B.reshape(len(self.B), self.num_groups, size, self.num_groups, size)[:, each, :, each, :]
        return jnp.moveaxis(blocks, 0, 1).reshape(-1, size, size)

    def raise_if_failed(self) -> None:
        """Names what is not finite, or cannot be factorised."""
        raise_if_failed(self.B, inverse_factor(self.B, always=False), "B = I + C diag(1 / noise) C^T, C = R^-1 Kuf")
        raise_if_not_finite(self.b, "C ((y - m) / noise), C = R^-1 Kuf")


@jax.custom_jvp
def _log_evidence(B: Float[Array, "m m"], b: Float[Array, "s m"]) -> Float[Array, ""]:
    """1/2 sum (b^T B^-1 b - log det B) over systems that share B."""
    return _log_evidence_and_inverse_factor(B, b)[0]


def _log_evidence_and_inverse_factor(B, b):
    W = inverse_factor(B, always=False)
    log_determinant = -2.0 * jnp.sum(jnp.log(jnp.diagonal(W)))
    return 0.5 * jnp.sum(matmul(W, b.T) ** 2) - 0.5 * len(b) * log_determinant, W


@_log_evidence.defjvp
def _log_evidence_jvp(primals, tangents):
    # With a = B^-1 b, d = a^T db - (a^T dB a + tr(B^-1 dB)) / 2: a third of the work of going through the factor.
    (B, b), (dB, db) = primals, tangents
    value, W = _log_evidence_and_inverse_factor(B, b)
    a = matmul(W.T, matmul(W, b.T))
    inverse = triangular_matmul(W.T, W, left="upper", right="lower", out="symmetric")
    return value, jnp.sum(a.T * db) - 0.5 * jnp.sum((matmul(a, a.T) + len(b) * inverse) * dB)


def plus_identity(gram: Float[Array, "... m m"]) -> Float[Array, "... m m"]:
    """B."""
    return jnp.eye(gram.shape[-1], dtype=gram.dtype) + gram


def posterior_root(B: Float[Array, "... m m"]) -> Float[Array, "... m m"]:
    """The lower triangular L with L L^T = B^-1."""
    scale = jnp.sqrt(jnp.diagonal(B, axis1=-2, axis2=-1))
    return inverse_root(B / (scale[..., :, None] * scale[..., None, :])) / scale[..., :, None]


def half_log_determinant(W: Float[Array, "J m m"]) -> Float[Array, ""]:
    """1/2 sum log det of matrices with these inverse factors."""
    return -jnp.sum(jnp.log(jnp.diagonal(W, axis1=1, axis2=2)))


def left_out(mean: AnyArray, variance: AnyArray, residual: AnyArray, precision: AnyArray) -> tuple[Array, Array]:
    """Mean and variance of C_n^T v given all other rows, from those given all.

    With the leverage h_n = lambda_n C_n^T B^-1 C_n, leaving out row n raises the variance to that over 1 - h_n and moves the
    mean to (mean_n - h_n r_n) / (1 - h_n).
    """
    mean, variance, residual, precision = map(jnp.asarray, (mean, variance, residual, precision))
    leverage = jnp.minimum(precision * variance, 1.0 - 1e-9)
    return (mean - leverage * residual) / (1.0 - leverage), variance / (1.0 - leverage)
