"""A sparse posterior: the prior, conditioned on inducing variables u that have a free Gaussian distribution q(u).

With q(u) = N(q_mu, q_sqrt q_sqrt^T), for each of L groups of M variables independently, the posterior is (paper 004, section 2.4)

    mean(x) = m(x) + Kuf^T Kuu^-1 q_mu,      cov(x, x') = k(x, x') - Kuf^T (Kuu^-1 - Kuu^-1 S Kuu^-1) Kuf.

q_mu is the deviation of u from the prior's mean. Whitened, it is that of v, u = R v with R R^T = Kuu: then the prior of v is
N(0, I), which suits optimisers, and changes of the kernel carry the posterior along.

There are three structures. With a kernel of one output, the groups are the outputs, which share Kuu and Kuf. With variables
of latent functions g, f = W g, a group belongs to each of them, and q(f) is W applied to q(g) (paper 004, equation 53).
With any other variables of a multioutput kernel Kuf has a column for each input and output, and groups add up.
"""

from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.covariances import Kuf, Kuu
from mercer.covariances.functionals import cross_covariance, is_functional, prior_matrix, prior_variance
from mercer.covariances.multioutput import latent_pairs
from mercer.inducing import InducingVariables, LatentVariables, Points
from mercer.kernels import Independent, Kernel, MultioutputKernel, OutputIndexed
from mercer.layouts import Layout, product_in_layout
from mercer.linalg import PSD, Dense, FactorisationError, inverse_factor, marginals, matmul, quiet_blas, safe_cholesky
from mercer.linalg.cholesky import raise_if_failed
from mercer.linalg.products import Precision, map_rows
from mercer.parameters import cast, constant, lower_triangular, param, real
from mercer.processes.base import Process
from mercer.processes.gaussian import Gaussian
from mercer.processes.latents import for_each, latent_kernel, mixed_gaussian, mixed_mean, mixes, mixing
from mercer.processes.other_prior import divergence_of_variables
from mercer.processes.prior import GP


class Sparse(Process):
    """The prior seen through inducing variables with a free q(u).

    A multioutput kernel says how many outputs there are; with a kernel of one output it is `num_outputs`, 1 by default.
    `covariance` says how much of the covariance of q(u) is free: "full", q_sqrt [L, M, M]; "block", `num_blocks` blocks of
    neighbouring variables along the diagonal, q_sqrt [L, B, M/B, M/B]; or "diagonal", which is M blocks of size 1.
    It begins at the prior.

    `gradients` is the precision of derivatives in float32 on GPUs with TensorFloat-32 units. It does not change values, nor
    anything elsewhere. "reduced", the default, rounds the factors of their largest products to 10 bits after the leading one: a
    step takes three quarters of the time, and the error in a gradient, a few per cent where Kuu is near singular, is far below
    the change from one minibatch to the next (emulated, M = 1000 and 1,024 rows: 6 % to 140 %). Training ends at
    the same likelihood. Without minibatches, with an optimiser that takes gradients at their word such as L-BFGS, choose "full".
    """

    prior: GP
    inducing: InducingVariables
    q_mu: Float[Array, "M L"] = param(real)
    q_sqrt: Array = param(lower_triangular)
    whiten: bool = eqx.field(static=True)
    gradients: Precision = eqx.field(static=True)

    def __init__(
        self,
        prior: GP,
        inducing: InducingVariables,
        num_outputs: int | None = None,
        whiten: bool = True,
        covariance: Literal["full", "block", "diagonal"] = "full",
        num_blocks: int | None = None,
        q_mu: Float[Array, "M L"] | None = None,
        q_sqrt: Array | None = None,
        gradients: Precision = "reduced",
    ):
        if not isinstance(prior, GP) or not isinstance(inducing, InducingVariables):
            kinds = f"{type(prior).__name__} and {type(inducing).__name__}"
            raise ValueError(f"Sparse expects a mercer.GP and inducing variables, got {kinds}")
        if gradients not in get_args(Precision):
            raise ValueError(f"gradients expects one of {get_args(Precision)}, got {gradients!r}")
        _check_num_outputs(num_outputs, prior.kernel, inducing)
        self.prior, self.inducing, self.whiten, self.gradients = prior, inducing, whiten, gradients
        dtype = jnp.result_type(float, *(leaf for leaf in jax.tree.leaves(inducing) if eqx.is_inexact_array(leaf)))
        M, L = _group_shape(inducing, prior.kernel, num_outputs)
        blocks = _num_blocks(covariance, num_blocks, M)
        self.q_mu = jnp.zeros((M, L), dtype) if q_mu is None else q_mu
        self.q_sqrt = self._prior_root(L, blocks, dtype) if q_sqrt is None else q_sqrt

    def __check_init__(self):
        mean_shape, shape = jnp.shape(self.q_mu), jnp.shape(self.q_sqrt)
        M, L = _group_shape(self.inducing, self.prior.kernel, mean_shape[-1] if mean_shape else 1)
        full = shape == (*mean_shape[1:], M, M)
        blocks = len(shape) == 4 and shape == (*mean_shape[1:], shape[1], *shape[2:3] * 2) and shape[1] * shape[2] == M
        if mean_shape != (M, L) or not (full or blocks):
            groups = "L" if self._is_single else str(L)
            raise ValueError(
                f"with {M} inducing variables q_mu expects shape ({M}, {groups}) and q_sqrt ({groups}, {M}, {M}) or "
                f"({groups}, B, {M}/B, {M}/B), got {mean_shape} and {shape}"
            )

    @property
    def _is_single(self) -> bool:
        """Whether the groups are outputs that share a kernel of one output."""
        return isinstance(self.prior.kernel, Kernel) and not isinstance(self.inducing, LatentVariables)

    @property
    def _is_mixture(self) -> bool:
        """Whether q(f) is W applied to q(g) of independent latent functions."""
        return isinstance(self.inducing, LatentVariables) and mixes(self.prior.kernel)

    def _pairs(self) -> tuple[tuple[InducingVariables, Any], ...]:
        """Inducing variables and kernel of each group; a single pair where the groups share it."""
        if not isinstance(self.inducing, LatentVariables):
            return ((self.inducing, self.prior.kernel),)
        return latent_pairs(self.inducing, latent_kernel(self.prior.kernel))

    def _prior_root(self, L: int, blocks: int, dtype) -> Array:
        """A root of the prior covariance of u (or of its blocks) for each group."""

        def of_pair(pair):
            matrix = Kuu(*pair).dense().astype(dtype)
            size, each = len(matrix) // blocks, jnp.arange(blocks)
            diagonal = matrix.reshape(blocks, size, blocks, size)[each, :, each, :]
            return safe_cholesky(diagonal, "Kuu").factor

        if self.whiten:
            size = self.q_mu.shape[0] // blocks
            root = jnp.broadcast_to(jnp.eye(size, dtype=dtype), (1, blocks, size, size))
        else:
            root = jnp.stack([of_pair(pair) for pair in self._pairs()])
        root = root[:, 0] if blocks == 1 else root
        return jnp.broadcast_to(root, (L, *root.shape[1:]))

    @property
    def num_outputs(self) -> int:
        """P, the number of outputs."""
        if isinstance(self.prior.kernel, MultioutputKernel):
            return self.prior.kernel.num_outputs
        return self.q_mu.shape[1] if self._is_single else 1

    @property
    def joint_layout(self):
        independent = self._is_single or (self._is_mixture and isinstance(self.prior.kernel, Independent))
        return "inputs" if independent else "full"

    def Kuu(self) -> PSD:
        """The prior covariance of the inducing variables."""
        return Kuu(self.inducing, self.prior.kernel)

    def Kuf(self, X: Float[Array, "N D"]) -> Array:
        """The prior covariance of the inducing variables with f(X), [M, N]; [L, M, N, P] with a multioutput kernel."""
        return cross_covariance(self.inducing, self.prior.kernel, X)

    def latents(self) -> "Sparse":
        """The posterior of the latent functions of a multioutput kernel, a process of L independent outputs."""
        if not isinstance(self.inducing, LatentVariables):
            raise ValueError(
                "latents() needs inducing variables of the latent functions: Shared(...) or Separate([...])"
            )
        kernel = latent_kernel(self.prior.kernel).latent
        return Sparse(
            GP(kernel), self.inducing, None, self.whiten, q_mu=self.q_mu, q_sqrt=self.q_sqrt, gradients=self.gradients
        )

    def root(self) -> Float[Array, "L M M"]:
        """The root of the covariance of q(u) as one matrix, however it is stored."""
        if self.q_sqrt.ndim == 3:
            return self.q_sqrt
        return jax.vmap(lambda blocks: jax.scipy.linalg.block_diag(*blocks))(self.q_sqrt)

    def _for_each_pair(self, function) -> Any:
        """function(pair, q_mu [G, M], root [G, M, M]) for each pair and its G groups; of what it returns for each of its
        groups, along a first axis, the axis of all L groups is made."""
        pairs, L, root = self._pairs(), self.q_mu.shape[1], self.root()
        split = len(pairs), L // len(pairs)
        results = for_each(function, pairs, self.q_mu.T.reshape(*split, -1), root.reshape(*split, *root.shape[1:]))
        return jax.tree.map(lambda array: array.reshape(L, *array.shape[2:]), results)

    def _for_each_group(self, function, *arrays: Array) -> Any:
        """function(pair, *entries) for each group and the entries of the arrays along their first axis, stacked."""
        pairs = self._pairs()
        return for_each(function, pairs * (self.q_mu.shape[1] // len(pairs)), *arrays)

    def _whitened(self, operator: PSD, q_mu: Float[Array, "M G"], root: Float[Array, "G M M"]) -> tuple[Array, Array]:
        """The mean and a root of the covariance of v, u = R v, of groups that share an operator."""
        return (q_mu, root) if self.whiten else (operator.whiten(q_mu), jax.vmap(operator.whiten)(root))

    def with_whitened(self, q_mu: Float[Array, "M L"], q_root: Float[Array, "L M M"]) -> "Sparse":
        """This process with another q(u), given by mean and lower triangular root of the covariance of v, u = R v."""

        def coloured(pair, mean, root):
            operator = Kuu(*pair)
            mean, root = operator.colour(mean[:, None])[:, 0], operator.colour(root)
            # The R of `Dense` is lower triangular, that of other operators may not be.
            return mean, root if isinstance(operator, Dense) else safe_cholesky(matmul(root, root.T)).factor

        if not self.whiten:
            q_mu, q_root = self._for_each_group(coloured, q_mu.T, q_root)
            q_mu = q_mu.T
        return Sparse(self.prior, self.inducing, None, self.whiten, q_mu=q_mu, q_sqrt=q_root, gradients=self.gradients)

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

            squares, log_scale = map(jnp.sum, self._for_each_pair(of_pair))
        # 1/2 (tr S + m^T m - M - log det S)
        diagonal = jnp.diagonal(self.q_sqrt, axis1=-2, axis2=-1)
        return 0.5 * (squares - self.q_mu.size) - jnp.sum(jnp.log(jnp.abs(diagonal))) + log_scale

    def _predict(self, X, covariance):
        mean = self.prior.mean_of(X, self.num_outputs)
        if self._is_single or self._is_mixture:
            W, X = (None, X) if self._is_single else mixing(self.prior.kernel, X)[::2]
            latent, values = self._latent(X, joint=covariance in ("inputs", "full"))
            return mixed_gaussian(mean, W, latent, values, covariance)
        deviation, reduction = self._correlated(X, covariance)
        return Gaussian(
            mean + deviation, self.prior.covariance(X, self.num_outputs, covariance) - reduction, covariance
        )

    def _latent(self, X: Any, joint: bool) -> tuple[Float[Array, "N L"], Array]:
        """The mean of the independent functions, and their variances [N, L], or (jointly) covariances [L, N, N]."""

        def of_pair(pair, q_mu, root):
            operator, cross = Kuu(*pair), cross_covariance(*pair, X)
            q_mu, root = self._whitened(operator, q_mu.T, root)
            if not joint:
                mean, reduction = marginals(operator, cross, q_mu, root, self.gradients)
                return mean.T, prior_variance(pair[1], X) - reduction.T
            # C = R^-1 Kuf; cov = k - C^T C + (L^T C)^T (L^T C)
            C = operator.whiten(cross)
            projected = matmul(root.mT, C)
            return matmul(q_mu.T, C), prior_matrix(pair[1], X) - matmul(C.T, C) + matmul(projected.mT, projected)

        means, values = self._for_each_pair(of_pair)
        return means.T, values if joint else values.T

    def _correlated(self, X: Float[Array, "N D"], covariance: Layout) -> tuple[Float[Array, "N P"], Array]:
        """The deviation from the prior mean, and the reduction of the prior covariance in a layout."""

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

        means, reductions = self._for_each_group(of_group, self._columns(X), self.q_mu.T, self.root())
        return jnp.sum(means, axis=0), jnp.sum(reductions, axis=0)

    def _columns(self, X: Float[Array, "N D"]) -> Float[Array, "L M N P"]:
        if is_functional(X):
            kinds = f"{type(self.inducing).__name__} and {type(self.prior.kernel).__name__}"
            raise ValueError(f"with {kinds} predictions are of values at inputs, not of {type(X).__name__}")
        return Kuf(self.inducing, self.prior.kernel, X)

    def check_inputs(self, X):
        if not is_functional(X):
            indexed = isinstance(self.prior.kernel, OutputIndexed) and isinstance(self.inducing, LatentVariables)
            self.inducing.check_inputs(X[:, :-1] if indexed else X)

    def _check_prediction(self, result):
        if bool(jnp.isnan(result.mean).any()):
            for pair in self._pairs():
                matrix = Kuu(*pair).dense()
                raise_if_failed(matrix, inverse_factor(matrix), "Kuu")
            raise FactorisationError("the prediction is not finite although Kuu is: look at q_mu, q_sqrt and the mean")

    def _sample_function(self, key, num_features):
        """Matheron's rule: a draw from the prior, moved so that its inducing variables are a draw from q(u)."""
        key_prior, key_u = jax.random.split(key)
        deviation = self.prior.sample_deviation(key_prior, num_features, self.num_outputs)
        noise = jax.random.normal(key_u, self.q_mu.T.shape, self.q_mu.dtype)
        drawn = self.inducing.of_function(deviation).reshape(self.q_mu.shape)

        def missed(pair, q_mu, root, noise, drawn):
            """R^-T times how much the variables of the draw from the prior miss those of the draw from q."""
            operator = Kuu(*pair)
            q_mu, root = self._whitened(operator, q_mu[:, None], root[None])
            v = q_mu + matmul(root[0], noise[:, None])
            return operator.solve(operator.colour(v) - drawn[:, None])[:, 0]

        weights = self._for_each_group(missed, self.q_mu.T, self.root(), noise, drawn.T)

        def draw(X):
            return self.prior.mean(X) + deviation(X) + self._linear(X, weights.T)

        return draw

    def _linear(self, X: Any, weights: Float[Array, "M L"]) -> Float[Array, "N P"]:
        """Kuf^T weights."""
        if not self._is_single and not self._is_mixture:
            return jnp.einsum("lmnp,ml->np", self._columns(X), weights, precision="highest")
        W, X = (None, X) if self._is_single else mixing(self.prior.kernel, X)[::2]
        latent = _weighted(self._crosses(X), weights)
        return latent if W is None else mixed_mean(W, latent)

    def _crosses(self, X: Any) -> Float[Array, "G M N"]:
        """Kuf of each independent function, or the one that they share."""
        return for_each(lambda pair: cross_covariance(pair[0], pair[1], X), self._pairs())

    def cached(self) -> "CachedSparse":
        """The same process with all that does not depend on the inputs worked out, for fast repeated prediction."""
        with quiet_blas():
            return jax.block_until_ready(_cache(cast(self, self.q_mu.dtype)))


def _weighted(crosses: Float[Array, "G M N"], weights: Float[Array, "M L"]) -> Float[Array, "N L"]:
    """Kuf^T weights of each group."""
    return matmul(crosses[0].T, weights) if len(crosses) == 1 else matmul(weights.T[:, None], crosses)[:, 0].T


class CachedSparse(Process):
    """A `Sparse` whose prediction is one product with Kuf for the mean and one for the variance.

    With C = R^-1 Kuf, I - L L^T = U diag(s) U^T and F = U^T R^-1, the variance is k - sum_m s_m (F Kuf)_m^2: one product, as
    with an explicit inverse, but as accurate as a solve, because U is orthogonal.
    """

    process: Sparse = constant()
    weights: Float[Array, "M L"] = constant()  # R^-T q_mu
    F: Float[Array, "L M M"] = constant()
    s: Float[Array, "L M"] = constant()

    @property
    def num_outputs(self):
        return self.process.num_outputs

    @property
    def joint_layout(self):
        return self.process.joint_layout

    def check_inputs(self, X):
        self.process.check_inputs(X)

    def _predict(self, X, covariance):
        if covariance == "diag" and not is_functional(X):
            mean, values = map_rows(lambda rows: tuple(self._at(rows, covariance)), X)
            return Gaussian(mean, values, covariance)
        return self._at(X, covariance)

    def _at(self, X, covariance):
        process = self.process
        mean = process.prior.mean_of(X, process.num_outputs)
        if process._is_single or process._is_mixture:
            W, X = (None, X) if process._is_single else mixing(process.prior.kernel, X)[::2]
            latent, values = self._latent(X, joint=covariance in ("inputs", "full"))
            return mixed_gaussian(mean, W, latent, values, covariance)
        cross = process._columns(X)
        projected = matmul(self.F, cross.reshape(*cross.shape[:2], -1)).reshape(cross.shape)
        flat = projected.reshape(-1, *cross.shape[2:])
        reduction = product_in_layout(self.s.reshape(-1, 1, 1) * flat, flat, covariance)
        prior = process.prior.covariance(X, process.num_outputs, covariance)
        return Gaussian(mean + process._linear(X, self.weights), prior - reduction, covariance)

    def _latent(self, X, joint):
        cross = self.process._crosses(X)
        mean, projected = _weighted(cross, self.weights), matmul(self.F, cross)
        prior = for_each(lambda pair: (prior_matrix if joint else prior_variance)(pair[1], X), self.process._pairs())
        if not joint:
            return mean, prior.T - jnp.einsum("lm,lmn->nl", self.s, projected**2, precision="highest")
        return mean, prior - matmul(projected.mT, self.s[..., None] * projected)

    def _sample_function(self, key, num_features):
        return self.process._sample_function(key, num_features)


@eqx.filter_jit
def _cache(process: Sparse) -> CachedSparse:
    def of_pair(pair, q_mu, root):
        operator = Kuu(*pair)
        q_mu, root = process._whitened(operator, q_mu.T, root)
        identity = jnp.eye(operator.size, dtype=q_mu.dtype)
        inverse_root = operator.whiten(identity)
        s, U = jnp.linalg.eigh(identity - matmul(root, root.mT))
        return matmul(q_mu.T, inverse_root), matmul(U.mT, inverse_root), s

    weights, F, s = process._for_each_pair(of_pair)
    return CachedSparse(process, weights.T, F, s)


def _check_num_outputs(num_outputs: int | None, kernel: Any, inducing: InducingVariables) -> None:
    if num_outputs is None:
        return
    if num_outputs < 1:
        raise ValueError(f"num_outputs must be at least 1, got {num_outputs}")
    if isinstance(kernel, MultioutputKernel) and num_outputs != kernel.num_outputs:
        raise ValueError(
            f"num_outputs is {num_outputs}, but {type(kernel).__name__} has {kernel.num_outputs} outputs; leave num_outputs out"
        )
    if isinstance(kernel, Kernel) and isinstance(inducing, LatentVariables) and num_outputs != 1:
        raise ValueError(f"num_outputs is {num_outputs}, but {type(kernel).__name__} has one output")


def _group_shape(inducing: InducingVariables, kernel: Any, num_outputs: int | None) -> tuple[int, int]:
    """M and L: how many variables there are in a group, and how many groups."""
    if type(inducing) is Points and isinstance(kernel, Kernel):
        return inducing.num, num_outputs or 1
    size = eqx.filter_eval_shape(Kuu, inducing, kernel).size
    if isinstance(inducing, LatentVariables):
        L = latent_kernel(kernel).num_latents
        return size // L, L
    return size, 1 if isinstance(kernel, MultioutputKernel) else num_outputs or 1


def _num_blocks(covariance: str, num_blocks: int | None, M: int) -> int:
    if covariance not in ("full", "block", "diagonal"):
        raise ValueError(f'covariance must be "full", "block" or "diagonal", got {covariance!r}')
    if (covariance == "block") != (num_blocks is not None):
        raise ValueError(f'num_blocks goes with covariance="block", got {covariance!r} and num_blocks={num_blocks}')
    blocks = {"full": 1, "diagonal": M}.get(covariance, num_blocks)
    if blocks is None or blocks < 1 or M % blocks:
        raise ValueError(f"num_blocks must divide the number of inducing variables, {M}, got {num_blocks}")
    return blocks
