"""What sparse regression needs of its data: sums over rows, which do not depend on the noise.

Whitened, with C = R^-1 Kuf, r = y - m(x) and rows that count w times, these are G = C diag(w) C^T and g = C diag(w) r. Given
noise s, the best q(v), u = R v, is that of linear regression with B = I + G / s (`mercer.linalg.regression`). Rows can be
added one block after the other, so that data of any length pass through, and a stream of data is the same as all at once.

Here s is the noise and the mean of what the inducing variables leave undetermined of f, k_nn - |C_n|^2: to the posterior of u
both are noise. (The collapsed bound leaves out the second, and overfits where a kernel is rough and the noise small; Snelson
and Ghahramani, 2006, take each datum's own.)

The prediction of y_n from all other rows has a closed form, too. What fails raises a `FactorisationError` that names the matrix.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer import validation
from mercer.linalg import matmul, quiet_blas
from mercer.linalg.cholesky import raise_if_failed, raise_if_not_finite
from mercer.linalg.products import weighted_gram
from mercer.linalg.regression import left_out, plus_identity, posterior_root
from mercer.parameters import Module, cast, constant
from mercer.processes import Gaussian, Sparse
from mercer.validation import AnyArray

_BLOCK = 4096  # rows at a time


class Sums(Module):
    """Sums over data for a sparse posterior with Gaussian noise. `posterior` gives prior and inducing variables."""

    posterior: Sparse
    whitener: Float[Array, "M M"] = constant()  # R^-1
    G: Float[Array, "M M"] = constant()
    g: Float[Array, "M P"] = constant()
    slack: Float[Array, ""] = constant()  # sum of w_n (k_nn - |C_n|^2)
    count: Float[Array, ""] = constant()  # sum of w_n

    @classmethod
    def of(cls, posterior: Sparse, num_outputs: int = 1) -> "Sums":
        """The sums over no data."""
        M = posterior.inducing.num
        dtype = posterior.q_mu.dtype
        with quiet_blas():
            whitener = jax.block_until_ready(_whitener(cast(posterior, dtype)))
            if not validation.is_finite(whitener):
                raise_if_failed(cast(posterior, dtype).Kuu().dense(), whitener, "Kuu")
        nothing = jnp.zeros((), dtype)
        return cls(posterior, whitener, jnp.zeros((M, M), dtype), jnp.zeros((M, num_outputs), dtype), nothing, nothing)

    def add(
        self, X: Float[AnyArray, "N D"], Y: Float[AnyArray, "N P"], weights: Float[AnyArray, " N"] | None = None
    ) -> "Sums":
        """The sums with some rows added."""
        X, Y, weights = _checked(X, Y, weights, self.g.shape[1])
        sums = self.G, self.g, self.slack, self.count
        with quiet_blas():
            for start in range(0, len(X), _BLOCK):
                sums = _add(self.posterior, self.whitener, sums, *_padded(start, X, Y, weights))
            G, g, slack, count = jax.block_until_ready(sums)
        # XLA's maximum may hide NaN: C is looked at through its products.
        raise_if_not_finite(G, "C diag(w) C^T, C = R^-1 Kuf")
        raise_if_not_finite(g, "C diag(w) (y - m), C = R^-1 Kuf")
        return Sums(self.posterior, self.whitener, G, g, slack, count)

    def raised(self, noise: float | Array) -> Array:
        """The noise, and what the inducing variables leave undetermined, on average over the data."""
        return noise + self.slack / jnp.maximum(self.count, 1.0)

    def best(self, noise: float | Array) -> Sparse:
        """The posterior with the best q(u) at a noise variance."""
        root = self._root(noise)
        with quiet_blas():
            return jax.block_until_ready(_best(self, root, self.raised(jnp.asarray(noise, self.G.dtype))))

    def _root(self, noise: float | Array) -> Float[Array, "M M"]:
        """The lower triangular L with L L^T = B^-1."""
        with quiet_blas():
            B, root = jax.block_until_ready(_factorised(self.G, self.raised(jnp.asarray(noise, self.G.dtype))))
        raise_if_failed(B, root, "B = I + C diag(w) C^T / noise")
        return root

    def leave_one_out(
        self,
        noise: float,
        X: Float[AnyArray, "N D"],
        Y: Float[AnyArray, "N P"],
        weights: Float[AnyArray, " N"] | None = None,
    ) -> Gaussian:
        """The prediction of the y of rows that are in the sums from all the other rows, [N, P] mean and variance."""
        X, Y, weights = _checked(X, Y, weights, self.g.shape[1])
        root = self._root(noise)
        with quiet_blas():
            rotation = matmul(root.T, self.whitener)
            parts = [
                _projected(self.posterior, self.whitener, rotation, *_padded(start, X, Y, weights)[:2])
                for start in range(0, len(X), _BLOCK)
            ]
            a, slack, residual = (np.concatenate(arrays, axis=-1)[..., : len(X)] for arrays in zip(*parts, strict=True))
        raised = float(self.raised(noise))
        v = np.sum(a**2, axis=0)[:, None]
        m = a.T @ np.asarray(matmul(root.T, self.g / raised))
        mean, spread = left_out(m, v, residual.T, weights[:, None] / raised)
        return Gaussian(Y - residual.T + mean, jnp.broadcast_to(slack[:, None] + spread + noise, m.shape))


def _checked(X, Y, weights, num_outputs):
    X = validation.inputs(X)
    Y = validation.outputs(Y, len(X))
    if Y.shape[1] != num_outputs:
        raise ValueError(f"Y must have {num_outputs} columns, got {Y.shape[1]}")
    validation.finite(Y, "Y")
    weights = np.ones(len(X)) if weights is None else np.asarray(weights)
    return np.asarray(X), np.asarray(Y), weights


def _padded(start: int, *arrays: np.ndarray) -> list[np.ndarray]:
    """A block of rows, with rows of zeros (and of weight 0) at its end where data end: one size is compiled."""
    size = min(_BLOCK, 1 << (len(arrays[0]) - 1).bit_length())
    blocks = [array[start : start + _BLOCK] for array in arrays]
    return [np.pad(block, [(0, size - len(block))] + [(0, 0)] * (block.ndim - 1)) for block in blocks]


@eqx.filter_jit
def _whitener(posterior: Sparse) -> Array:
    return posterior.Kuu().whiten(jnp.eye(posterior.inducing.num, dtype=posterior.q_mu.dtype))


@eqx.filter_jit
def _add(posterior, whitener, sums, X, Y, weights):
    G, g, slack, count = sums
    residual = Y - posterior.prior.mean_of(X, Y.shape[1])
    C = matmul(whitener, posterior.Kuf(X))
    G, g = G + weighted_gram(C, weights), g + matmul(C, weights[:, None] * residual)
    return G, g, slack + jnp.sum(weights * _slack(posterior, X, C)), count + jnp.sum(weights)


def _slack(posterior: Sparse, X: Array, C: Array) -> Array:
    return jnp.maximum(posterior.prior.kernel.diag(X) - jnp.sum(C**2, axis=0), 0.0)


@eqx.filter_jit
def _projected(posterior, whitener, rotation, X, Y):
    """L^T C, what the inducing variables leave undetermined, and the residuals."""
    cross = posterior.Kuf(X)
    slack = _slack(posterior, X, matmul(whitener, cross))
    return matmul(rotation, cross), slack, (Y - posterior.prior.mean_of(X, Y.shape[1])).T


@eqx.filter_jit
def _factorised(G: Array, noise: Array) -> tuple[Array, Array]:
    """B and the root of its inverse. `noise` is raised, here and below."""
    B = plus_identity(G / noise)
    return B, posterior_root(B)


@eqx.filter_jit
def _best(sums: Sums, root: Array, noise: Array) -> Sparse:
    q_mu = matmul(root, matmul(root.T, sums.g / noise))
    q_root = jnp.broadcast_to(root, (q_mu.shape[1], *root.shape))
    return sums.posterior.with_whitened(q_mu, q_root)
