"""A sparse posterior: the prior, conditioned on inducing variables u that have a free Gaussian distribution q(u).

With q(u) = N(q_mu, q_sqrt q_sqrt^T), for each of L latent outputs independently, the posterior is (paper 004, section 2.4)

    mean(x) = m(x) + Kuf^T Kuu^-1 q_mu,      cov(x, x') = k(x, x') - Kuf^T (Kuu^-1 - Kuu^-1 S Kuu^-1) Kuf.

q_mu is the deviation of u from the prior's mean. Whitened, it is that of v, u = R v with R R^T = Kuu: then the prior of v is
N(0, I), which suits optimisers, and changes of the kernel carry the posterior along.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.covariances import Kuf, Kuu
from mercer.inducing.base import InducingVariables
from mercer.layouts import independent_outputs
from mercer.linalg import PSD, Dense, FactorisationError, inverse_factor, marginals, matmul, quiet_blas, safe_cholesky
from mercer.linalg.cholesky import raise_if_failed
from mercer.linalg.products import map_rows
from mercer.parameters import cast, constant, lower_triangular, param, real
from mercer.processes.base import Process
from mercer.processes.gaussian import Gaussian
from mercer.processes.prior import GP


class Sparse(Process):
    """The prior seen through inducing variables with a free q(u).

    `covariance` says how much of the covariance of q(u) is free: "full", q_sqrt [L, M, M]; "block", `num_blocks` blocks of
    neighbouring variables along the diagonal, q_sqrt [L, B, M/B, M/B]; or "diagonal", which is M blocks of size 1.
    It begins at the prior.
    """

    prior: GP
    inducing: InducingVariables
    q_mu: Float[Array, "M L"] = param(real)
    q_sqrt: Array = param(lower_triangular)
    whiten: bool = eqx.field(static=True)

    def __init__(
        self,
        prior: GP,
        inducing: InducingVariables,
        num_outputs: int = 1,
        whiten: bool = True,
        covariance: Literal["full", "block", "diagonal"] = "full",
        num_blocks: int | None = None,
        q_mu: Float[Array, "M L"] | None = None,
        q_sqrt: Array | None = None,
    ):
        if not isinstance(prior, GP) or not isinstance(inducing, InducingVariables):
            kinds = f"{type(prior).__name__} and {type(inducing).__name__}"
            raise ValueError(f"Sparse expects a mercer.GP and inducing variables, got {kinds}")
        if num_outputs < 1:
            raise ValueError(f"num_outputs must be at least 1, got {num_outputs}")
        self.prior, self.inducing, self.whiten = prior, inducing, whiten
        dtype = jnp.result_type(float, *(leaf for leaf in jax.tree.leaves(inducing) if eqx.is_inexact_array(leaf)))
        M, L = inducing.num, num_outputs
        blocks = _num_blocks(covariance, num_blocks, M)
        self.q_mu = jnp.zeros((M, L), dtype) if q_mu is None else q_mu
        self.q_sqrt = self._prior_root(L, blocks, dtype) if q_sqrt is None else q_sqrt

    def __check_init__(self):
        M, mean_shape, shape = self.inducing.num, jnp.shape(self.q_mu), jnp.shape(self.q_sqrt)
        full = shape == (*mean_shape[1:], M, M)
        blocks = len(shape) == 4 and shape == (*mean_shape[1:], shape[1], *shape[2:3] * 2) and shape[1] * shape[2] == M
        if len(mean_shape) != 2 or mean_shape[0] != M or not (full or blocks):
            raise ValueError(
                f"with {M} inducing variables q_mu expects shape ({M}, L) and q_sqrt (L, {M}, {M}) or (L, B, {M}/B, {M}/B), "
                f"got {mean_shape} and {shape}"
            )

    def _prior_root(self, L: int, blocks: int, dtype) -> Array:
        """A root of the prior covariance of u (or of its blocks), with L copies."""
        M = self.inducing.num
        size = M // blocks
        if self.whiten:
            root = jnp.broadcast_to(jnp.eye(size, dtype=dtype), (blocks, size, size))
        else:
            matrix = Kuu(self.inducing, self.prior.kernel).dense().astype(dtype)
            each = jnp.arange(blocks)
            diagonal = matrix.reshape(blocks, size, blocks, size)[each, :, each, :]
            root = safe_cholesky(diagonal, "Kuu").factor
        root = root[0] if blocks == 1 else root
        return jnp.broadcast_to(root, (L, *root.shape))

    @property
    def num_outputs(self) -> int:
        """L, the number of (independent) outputs."""
        return self.q_mu.shape[1]

    def Kuu(self) -> PSD:
        """The prior covariance of the inducing variables."""
        return Kuu(self.inducing, self.prior.kernel)

    def Kuf(self, X: Float[Array, "N D"]) -> Float[Array, "M N"]:
        """The prior covariance of the inducing variables with f(X)."""
        return Kuf(self.inducing, self.prior.kernel, X)

    def root(self) -> Float[Array, "L M M"]:
        """The root of the covariance of q(u) as one matrix, however it is stored."""
        if self.q_sqrt.ndim == 3:
            return self.q_sqrt
        return jax.vmap(lambda blocks: jax.scipy.linalg.block_diag(*blocks))(self.q_sqrt)

    def whitened(self, operator: PSD) -> tuple[Float[Array, "M L"], Float[Array, "L M M"]]:
        """The mean and a root of the covariance of v, u = R v, given Kuu as an operator."""
        root = self.root()
        if self.whiten:
            return self.q_mu, root
        return operator.whiten(self.q_mu), jax.vmap(operator.whiten)(root)

    def with_whitened(self, operator: PSD, q_mu: Float[Array, "M L"], q_root: Float[Array, "L M M"]) -> "Sparse":
        """This process with another q(u), given by mean and lower triangular root of the covariance of v, u = R v."""
        if not self.whiten:
            q_mu, q_root = operator.colour(q_mu), jax.vmap(operator.colour)(q_root)
            if not isinstance(operator, Dense):  # whose R is lower triangular
                q_root = safe_cholesky(matmul(q_root, q_root.mT)).factor
        return Sparse(self.prior, self.inducing, q_mu.shape[1], self.whiten, q_mu=q_mu, q_sqrt=q_root)

    def kl(self) -> Float[Array, ""]:
        """KL[q(u) || p(u)], in nats, summed over outputs."""
        q_mu, q_sqrt, log_scale = self.q_mu, self.q_sqrt, 0.0
        if not self.whiten:
            operator = self.Kuu()
            q_mu, q_sqrt = self.whitened(operator)
            log_scale = 0.5 * self.num_outputs * operator.log_determinant()
        # 1/2 (tr S + m^T m - M - log det S)
        diagonal = jnp.diagonal(self.q_sqrt, axis1=-2, axis2=-1)
        quadratic = jnp.sum(q_sqrt**2) + jnp.sum(q_mu**2) - self.q_mu.size
        return 0.5 * quadratic - jnp.sum(jnp.log(jnp.abs(diagonal))) + log_scale

    def _predict(self, X, covariance):
        operator, cross = self.Kuu(), self.Kuf(X)
        q_mu, q_root = self.whitened(operator)
        prior_mean = self.prior.mean_of(X, self.num_outputs)
        if covariance in ("diag", "outputs"):
            mean, reduction = marginals(operator, cross, q_mu, q_root)
            values = self.prior.kernel.diag(X)[:, None] - reduction
        else:
            # C = R^-1 Kuf; cov = k - C^T C + (L^T C)^T (L^T C)
            C = operator.whiten(cross)
            mean = matmul(C.T, q_mu)
            projected = matmul(q_root.mT, C)
            values = self.prior.kernel(X) - matmul(C.T, C) + matmul(projected.mT, projected)
        return Gaussian(prior_mean + mean, independent_outputs(values, covariance), covariance)

    def _check_prediction(self, result):
        if bool(jnp.isnan(result.mean).any()):
            matrix = self.Kuu().dense()
            raise_if_failed(matrix, inverse_factor(matrix), "Kuu")
            raise FactorisationError("the prediction is not finite although Kuu is: look at q_mu, q_sqrt and the mean")

    def _sample_function(self, key, num_features):
        """Matheron's rule: a draw from the prior, moved so that its inducing variables are a draw from q(u)."""
        key_prior, key_u = jax.random.split(key)
        deviation = self.prior.sample_deviation(key_prior, num_features, self.num_outputs)
        operator = self.Kuu()
        q_mu, q_root = self.whitened(operator)
        noise = jax.random.normal(key_u, q_mu.T.shape, q_mu.dtype)
        v = q_mu + matmul(q_root, noise[..., None])[..., 0].T
        weights = v - operator.whiten(self.inducing.of_function(deviation))

        def draw(X):
            return self.prior.mean(X) + deviation(X) + matmul(operator.whiten(self.Kuf(X)).T, weights)

        return draw

    def cached(self) -> "CachedSparse":
        """The same process with all that does not depend on the inputs worked out, for fast repeated prediction."""
        with quiet_blas():
            return jax.block_until_ready(_cache(cast(self, self.q_mu.dtype)))


class CachedSparse(Process):
    """A `Sparse` whose prediction is one product with Kuf for the mean and one for the variance.

    With C = R^-1 Kuf, I - L L^T = U diag(s) U^T and F = U^T R^-1, the variance is k - sum_m s_m (F Kuf)_m^2: one product, as
    with an explicit inverse, but as accurate as a solve, because U is orthogonal.
    """

    process: Sparse
    weights: Float[Array, "M L"] = constant()  # R^-T q_mu
    F: Float[Array, "L M M"] = constant()
    s: Float[Array, "L M"] = constant()

    def _predict(self, X, covariance):
        if covariance in ("diag", "outputs"):
            mean, values = map_rows(self._marginals, X)
        else:
            prior, cross = self.process.prior, self.process.Kuf(X)
            mean, projected = self._mean(X, cross), matmul(self.F, cross)
            values = prior.kernel(X) - matmul(projected.mT, self.s[..., None] * projected)
        return Gaussian(mean, independent_outputs(values, covariance), covariance)

    def _mean(self, X, cross):
        return self.process.prior.mean_of(X, self.process.num_outputs) + matmul(cross.T, self.weights)

    def _marginals(self, X):
        """The means and the variances at some inputs, [N, L] each."""
        cross = self.process.Kuf(X)
        reduction = jnp.einsum("lm,lmn->nl", self.s, matmul(self.F, cross) ** 2)
        return self._mean(X, cross), self.process.prior.kernel.diag(X)[:, None] - reduction

    def _sample_function(self, key, num_features):
        return self.process._sample_function(key, num_features)


@eqx.filter_jit
def _cache(process: Sparse) -> CachedSparse:
    operator = process.Kuu()
    q_mu, q_root = process.whitened(operator)
    identity = jnp.eye(operator.size, dtype=q_mu.dtype)
    inverse_root = operator.whiten(identity)
    s, U = jnp.linalg.eigh(identity - matmul(q_root, q_root.mT))
    return CachedSparse(process, matmul(inverse_root.T, q_mu), matmul(U.mT, inverse_root), s)


def _num_blocks(covariance: str, num_blocks: int | None, M: int) -> int:
    if covariance not in ("full", "block", "diagonal"):
        raise ValueError(f'covariance must be "full", "block" or "diagonal", got {covariance!r}')
    if (covariance == "block") != (num_blocks is not None):
        raise ValueError(f'num_blocks goes with covariance="block", got {covariance!r} and num_blocks={num_blocks}')
    blocks = {"full": 1, "diagonal": M}.get(covariance, num_blocks)
    if blocks is None or blocks < 1 or M % blocks:
        raise ValueError(f"num_blocks must divide the number of inducing variables, {M}, got {num_blocks}")
    return blocks
