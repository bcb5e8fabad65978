"""A sparse posterior: the prior, conditioned on inducing variables u that have a free Gaussian distribution q(u).

With q(u) = N(q_mu, q_sqrt q_sqrt^T), for each of L groups of M variables independently, the posterior is (paper 004, section 2.4)

    mean(x) = m(x) + Kuf^T Kuu^-1 q_mu,      cov(x, x') = k(x, x') - Kuf^T (Kuu^-1 - Kuu^-1 S Kuu^-1) Kuf.

q_mu is the deviation of u from the prior's mean. Whitened, it is that of v, u = R v with R R^T = Kuu: then the prior of v is
N(0, I), which suits optimisers, and changes of the kernel carry the posterior along.

How outputs come from groups of variables is in `mercer.processes.structure`.
"""

from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer.covariances import Kuu, draw_jointly
from mercer.covariances.functionals import cross_covariance, prior_matrix, prior_variance
from mercer.deprecation import warn
from mercer.inducing import InducingVariables
from mercer.layouts import Layout, product_in_layout
from mercer.linalg import PSD, Diagonal, FactorisationError, eigh, inverse_factor, marginals, quiet_blas, safe_cholesky
from mercer.linalg.cholesky import raise_if_failed
from mercer.linalg.products import Precision, matmul
from mercer.parameters import cast, lower_triangular, param, real
from mercer.processes.base import Process
from mercer.processes.cached_sparse import CachedSparse
from mercer.processes.moments import has_moments, moments_at
from mercer.processes.of_before import as_prior
from mercer.processes.other_prior import divergence_of_variables
from mercer.processes.prior import GP, Moved
from mercer.processes.structure import Structure, structure_of
from mercer.validation import AnyArray


class Sparse(Process):
    """The prior seen through inducing variables with a free q(u).

    A multioutput kernel says how many outputs there are; with a kernel of one output it is `num_outputs`, 1 by default.
    `covariance` says how much of the covariance of q(u) is free: "full", q_sqrt [L, M, M]; "block", `num_blocks` blocks of
    neighbouring variables along the diagonal, q_sqrt [L, B, M/B, M/B]; or "diag", which is M blocks of size 1. With "joint"
    the variables of all L groups covary, q_mu [L M, 1] and q_sqrt [1, L M, L M]: between groups that a likelihood couples, where
    an output is not observed for long, q(u) without these covariances is too certain. q(u) begins at the prior.

    `gradients` is the precision of derivatives in float32 on GPUs with TensorFloat-32 units. It does not change values, nor
    anything elsewhere. "reduced", the default, rounds the factors of their largest products, of more than 256 rows and columns,
    to 10 bits after the leading one: a step takes three quarters of the time, and the error in a gradient, a few per cent where
    Kuu is near singular, is far below the change from one minibatch to the next (emulated, M = 1000 and 1,024 rows: 6 % to
    140 %). Training ends at the same likelihood (kin8nm). Without minibatches, with an optimiser that takes gradients at their
    word such as L-BFGS, choose "full"; for data with next to no noise, float64.
    """

    prior: GP
    inducing: InducingVariables
    q_mu: Float[Array, "M L"] = param(real)
    q_sqrt: Array = param(lower_triangular)
    whiten: bool = eqx.field(static=True)
    joint: bool = eqx.field(static=True)  # whether q(u) has covariances between groups
    gradients: Precision = eqx.field(static=True)

    def __init__(
        self,
        prior: Process,
        inducing: InducingVariables,
        num_outputs: int | None = None,
        whiten: bool = True,
        covariance: Literal["full", "joint", "block", "diag", "diagonal"] = "full",
        num_blocks: int | None = None,
        q_mu: Float[AnyArray, "M L"] | None = None,
        q_sqrt: AnyArray | None = None,
        gradients: Precision = "reduced",
    ):
        prior = as_prior(prior, "Sparse")
        if not isinstance(prior, GP) or not isinstance(inducing, InducingVariables):
            kinds = f"{type(prior).__name__} and {type(inducing).__name__}"
            raise ValueError(f"Sparse expects a mercer.GP and inducing variables, got {kinds}")
        if str(covariance) == "diagonal":
            warn('Sparse: covariance="diagonal" is called "diag" now')
            covariance = "diag"
        if gradients not in get_args(Precision):
            raise ValueError(f"gradients expects one of {get_args(Precision)}, got {gradients!r}")
        self.prior, self.inducing, self.whiten, self.gradients = prior, inducing, whiten, gradients
        self.joint = covariance == "joint"
        _check_num_outputs(num_outputs, self.structure)
        dtype = jnp.result_type(float, *(leaf for leaf in jax.tree.leaves(inducing) if eqx.is_inexact_array(leaf)))
        M, L = self.structure.num_variables, self.structure.num_groups or num_outputs or 1
        blocks = _num_blocks(covariance, num_blocks, M)
        if q_mu is None:
            for variables, kernel in self.structure.pairs:
                variables.check_kernel(kernel)
        self.q_mu = jnp.zeros((M, L), dtype) if q_mu is None else q_mu
        self.q_sqrt = self._prior_root(L, blocks, dtype) if q_sqrt is None else q_sqrt

    def __check_init__(self):
        mean_shape, shape = jnp.shape(self.q_mu), jnp.shape(self.q_sqrt)
        M, L = self.structure.num_variables, self.structure.num_groups or (1, *mean_shape)[-1]
        full = shape == (*mean_shape[1:], M, M)
        blocks = len(shape) == 4 and shape == (*mean_shape[1:], shape[1], *shape[2:3] * 2) and shape[1] * shape[2] == M
        if mean_shape != (M, L) or not (full or blocks):
            groups = "L" if self.structure.num_groups is None else str(L)
            raise ValueError(
                f"with {M} inducing variables q_mu expects shape ({M}, {groups}) and q_sqrt ({groups}, {M}, {M}) or "
                f"({groups}, B, {M}/B, {M}/B), got {mean_shape} and {shape}"
            )

    @property
    def structure(self) -> Structure:
        """How the outputs come from the inducing variables."""
        return self.structure_under(self.prior.kernel)

    def structure_under(self, kernel: Any) -> Structure:
        """How they would come from them under another kernel."""
        structure = structure_of(self.inducing, kernel)
        return structure.joined() if self.joint else structure

    def _prior_root(self, L: int, blocks: int, dtype) -> Array:
        """A root of the prior covariance of u (or of its blocks) for each group."""

        def of_pair(pair):
            matrix = Kuu(*pair).dense().astype(dtype)
            size, each = len(matrix) // blocks, jnp.arange(blocks)
            diagonal = matrix.reshape(blocks, size, blocks, size)[each, :, each, :]
            return safe_cholesky(diagonal, "Kuu").factor

        if self.whiten:
            size = self.q_mu.shape[0] // blocks
            root = jnp.asarray(np.broadcast_to(np.eye(size, dtype=dtype), (1, blocks, size, size)))
        else:
            root = jnp.stack([of_pair(pair) for pair in self.structure.pairs])
        root = root[:, 0] if blocks == 1 else root
        return jnp.broadcast_to(root, (L, *root.shape[1:]))

    @property
    def num_outputs(self) -> int:
        """P, the number of outputs."""
        return self.structure.num_outputs or self.q_mu.shape[1]

    @property
    def joint_layout(self):
        return "inputs" if self.structure.independent else "full"

    def Kuu(self) -> PSD:
        """The prior covariance of the inducing variables."""
        return Kuu(self.inducing, self.prior.kernel)

    def Kuf(self, X: Float[AnyArray, "N D"] | InducingVariables) -> Array:
        """The prior covariance of the inducing variables with f(X), [M, N]; [L, M, N, P] with a multioutput kernel."""
        return cross_covariance(self.inducing, self.prior.kernel, X)

    def latents(self) -> "Sparse":
        """The posterior of the latent functions of a multioutput kernel, a process of L independent outputs."""
        kernel = self.structure.latent
        if kernel is None:
            raise ValueError(
                "latents() needs inducing variables of the latent functions: Shared(...) or Separate([...])"
            )
        return self._with(GP(kernel), self.q_mu, self.q_sqrt)

    def _with(self, prior: GP, q_mu: Array, q_sqrt: Array) -> "Sparse":
        covariance: Any = "joint" if self.joint else "full"
        return Sparse(
            prior, self.inducing, None, self.whiten, covariance, q_mu=q_mu, q_sqrt=q_sqrt, gradients=self.gradients
        )

    def root(self) -> Float[Array, "L M M"]:
        """The root of the covariance of q(u) as one matrix, however it is stored."""
        if self.q_sqrt.ndim == 3:
            return self.q_sqrt
        return jax.vmap(lambda blocks: jax.scipy.linalg.block_diag(*blocks))(self.q_sqrt)

    def _whitened(self, operator: PSD, q_mu: Float[Array, "M G"], root: Float[Array, "G M M"]) -> tuple[Array, Array]:
        """The mean and a root of the covariance of v, u = R v, of groups that share an operator."""
        return (q_mu, root) if self.whiten else (operator.whiten(q_mu), jax.vmap(operator.whiten)(root))

    def with_whitened(self, q_mu: Float[Array, "M L"], q_root: Float[Array, "L M M"]) -> "Sparse":
        """This process with another q(u), given by mean and lower triangular root of the covariance of v, u = R v."""

        def coloured(pair, mean, root):
            operator = Kuu(*pair)
            mean, root = operator.colour(mean[:, None])[:, 0], operator.colour(root)
            return mean, root if operator.triangular else safe_cholesky(matmul(root, root.T)).factor

        if not self.whiten:
            q_mu, q_root = self.structure.for_each_group(coloured, q_mu.T, q_root)
            q_mu = q_mu.T
        return self._with(self.prior, q_mu, q_root)

    def with_weights(self, weights: Float[AnyArray, "M L"]) -> "Sparse":
        """This process with the mean m(x) + Kuf^T weights: q_mu is Kuu weights, or R^T weights where it is whitened."""
        if jnp.shape(weights) != self.q_mu.shape:
            raise ValueError(f"weights expects the shape of q_mu, {self.q_mu.shape}, got {jnp.shape(weights)}")

        def of_pair(pair, weights):
            operator = Kuu(*pair)
            v = matmul(weights, operator.colour(jnp.eye(operator.size, dtype=weights.dtype)))
            return v if self.whiten else operator.colour(v.T).T

        q_mu = self.structure.for_each_pair(of_pair, jnp.asarray(weights, self.q_mu.dtype).T)
        return self._with(self.prior, q_mu.T, self.q_sqrt)

    def q_parameters(self):
        return ((self.q_mu, self.q_sqrt),)

    def knows_kl(self, prior=None):
        return prior is None or isinstance(prior, GP)

    def kl(self, prior: Process | None = None) -> Float[Array, ""]:
        """KL[q(u) || p(u)], in nats, summed over groups; p(u) is that of the process's own prior, or of another one.

        Another prior needs a kernel under which the same variables make the same groups. Where it differs from the process's own
        prior outside of u the divergence of the two processes is infinite, and this is its part on u, a lower bound.
        """
        if prior is not None:
            return divergence_of_variables(self, prior)
        squares, log_scale = jnp.sum(self.q_sqrt**2) + jnp.sum(self.q_mu**2), 0.0
        if not self.whiten:

            def of_pair(pair, q_mu, root):
                operator = Kuu(*pair)
                q_mu, root = self._whitened(operator, q_mu.T, root)
                log_scale = jnp.broadcast_to(0.5 * operator.log_determinant(), len(root))
                return jnp.sum(q_mu**2, axis=0) + jnp.sum(root**2, axis=(1, 2)), log_scale

            squares, log_scale = map(jnp.sum, self.structure.for_each_pair(of_pair, self.q_mu.T, self.root()))
        # 1/2 (tr S + m^T m - M - log det S)
        diagonal = jnp.diagonal(self.q_sqrt, axis1=-2, axis2=-1)
        return 0.5 * (squares - self.q_mu.size) - jnp.sum(jnp.log(jnp.abs(diagonal))) + log_scale

    def _predict(self, X, covariance):
        return self.structure.predict(self.prior, X, self.num_outputs, covariance, self._of_functions, self._of_columns)

    def _predict_uncertain(self, x, covariance, key):
        pairs = self.structure.pairs
        if len(pairs) > 1 or not has_moments(self.prior, pairs[0][0], x, covariance):
            return super()._predict_uncertain(x, covariance, key)
        operator = Kuu(*pairs[0])
        q_mu, root = self._whitened(operator, self.q_mu, self.root())
        W = operator.whiten(jnp.eye(operator.size, dtype=q_mu.dtype))
        F = matmul(root.mT, W)
        return moments_at(x, self.prior, pairs[0][0], matmul(W.T, q_mu), matmul(W.T, W) - matmul(F.mT, F), covariance)

    def _of_functions(self, X: Any, joint: bool) -> tuple[Float[Array, "N L"], Array]:
        def of_pair(pair: tuple[Any, Any], q_mu, root):
            operator, cross = Kuu(*pair), cross_covariance(*pair, X)
            q_mu, root = self._whitened(operator, q_mu.T, root)
            if not joint:
                mean, reduction = marginals(operator, cross, q_mu, root, self.gradients)
                return mean.T, prior_variance(pair[1], X) - reduction.T
            # C = R^-1 Kuf; cov = k - C^T C + (L^T C)^T (L^T C)
            C = operator.whiten(cross)
            projected = matmul(root.mT, C)
            return matmul(q_mu.T, C), prior_matrix(pair[1], X) - matmul(C.T, C) + matmul(projected.mT, projected)

        means, values = self.structure.for_each_pair(of_pair, self.q_mu.T, self.root())
        return means.T, values if joint else values.T

    def _of_columns(self, crosses: Float[Array, "L M N P"], covariance: Layout) -> tuple[Float[Array, "N P"], Array]:
        def of_group(pair, cross, q_mu, root):
            operator, columns = Kuu(*pair), cross.reshape(cross.shape[0], -1)
            q_mu, root = self._whitened(operator, q_mu[:, None], root[None])
            if covariance == "diag":
                mean, reduction = marginals(operator, columns, q_mu, root, self.gradients)
                return mean.reshape(cross.shape[1:]), reduction.reshape(cross.shape[1:])
            C = operator.whiten(columns)
            projected = matmul(root[0].T, C)
            prior, posterior = C.reshape(cross.shape), projected.reshape(cross.shape)
            reduction = product_in_layout(prior, prior, covariance) - product_in_layout(
                posterior, posterior, covariance
            )
            return matmul(C.T, q_mu[:, 0]).reshape(cross.shape[1:]), reduction

        means, reductions = self.structure.for_each_group(of_group, crosses, self.q_mu.T, self.root())
        return jnp.sum(means, axis=0), jnp.sum(reductions, axis=0)

    def given_draw(self, *, key):
        noise = jax.random.normal(key, self.q_mu.T.shape, self.q_mu.dtype)
        u = self.q_mu + matmul(self.root(), noise[..., None])[..., 0].T
        return self._with(self.prior, u, jnp.zeros((u.shape[1], len(u), len(u)), u.dtype))

    def check_inputs(self, X):
        self.structure.check_inputs(X)

    def _check_prediction(self, result):
        if bool(jnp.isnan(result.mean).any()):
            for pair in self.structure.pairs:
                matrix = Kuu(*pair).dense()
                raise_if_failed(matrix, inverse_factor(matrix), "Kuu")
            raise FactorisationError("the prediction is not finite although Kuu is: look at q_mu, q_sqrt and the mean")

    def _sample_function(self, key, num_features):
        """Matheron's rule: a draw from the prior, moved so that its inducing variables are a draw from q(u)."""
        key_prior, key_u = jax.random.split(key)
        kernel, (_, L) = self.prior.kernel, self.q_mu.shape
        deviation, drawn = draw_jointly(self.inducing, kernel, key_prior, num_features, self.num_outputs)
        drawn = self.structure.in_groups(drawn, L)
        noise = jax.random.normal(key_u, self.q_mu.T.shape, self.q_mu.dtype)

        def missed(pair, q_mu, root, noise, drawn):
            """R^-T times how much the variables of the draw from the prior miss those of the draw from q."""
            operator = Kuu(*pair)
            q_mu, root = self._whitened(operator, q_mu[:, None], root[None])
            v = q_mu + matmul(root[0], noise[:, None])
            return operator.solve(operator.colour(v) - drawn[:, None])[:, 0]

        weights = self.structure.for_each_group(missed, self.q_mu.T, self.root(), noise, drawn.T)
        return Moved(self.prior, deviation, self, weights.T)

    def linear(self, X: Float[Array, "N D"], weights: Float[Array, "M L"]) -> Float[Array, "N P"]:
        """Kuf^T weights."""
        return self.structure.linear(X, weights)

    def cached(self) -> CachedSparse:
        """The same process with all that does not depend on the inputs worked out, for fast repeated prediction."""
        with quiet_blas():
            return jax.block_until_ready(_cache(cast(self, self.q_mu.dtype)))


@eqx.filter_jit
def _cache(process: Sparse) -> CachedSparse:
    diagonal = all(isinstance(eqx.filter_eval_shape(Kuu, *pair), Diagonal) for pair in process.structure.pairs)

    def of_pair(pair, q_mu, root):
        operator = Kuu(*pair)
        q_mu, root = process._whitened(operator, q_mu.T, root)
        identity = jnp.eye(operator.size, dtype=q_mu.dtype)
        inverse_root = operator.whiten(identity)
        if diagonal:
            s, U = jnp.broadcast_to(1.0 / operator.diagonal(), (len(root), operator.size)), root
        else:
            s, U = eigh(identity - matmul(root, root.mT))
        return matmul(q_mu.T, inverse_root), matmul(U.mT, inverse_root), s

    weights, F, s = process.structure.for_each_pair(of_pair, process.q_mu.T, process.root())
    return CachedSparse(process, weights.T, F, s, diagonal)


def _check_num_outputs(num_outputs: int | None, structure: Structure) -> None:
    if num_outputs is not None and num_outputs < 1:
        raise ValueError(f"num_outputs must be at least 1, got {num_outputs}")
    if num_outputs is not None and structure.num_outputs not in (None, num_outputs):
        raise ValueError(
            f"num_outputs is {num_outputs}, but {type(structure.kernel).__name__} has {structure.num_outputs}; leave it out"
        )


def _num_blocks(covariance: str, num_blocks: int | None, M: int) -> int:
    if covariance not in ("full", "joint", "block", "diag"):
        raise ValueError(f'covariance must be "full", "joint", "block" or "diag", got {covariance!r}')
    if (covariance == "block") != (num_blocks is not None):
        raise ValueError(f'num_blocks goes with covariance="block", got {covariance!r} and num_blocks={num_blocks}')
    blocks = {"full": 1, "joint": 1, "diag": M}.get(covariance, num_blocks)
    if blocks is None or blocks < 1 or M % blocks:
        raise ValueError(f"num_blocks must divide the number of inducing variables, {M}, got {num_blocks}")
    return blocks
