"""A process conditioned on noisy observations: exact Gaussian process regression.

With K = k(X, X) + noise and r = Y - m(X), the posterior at x has mean m(x) + k(x, X) K^-1 r and covariance
k(x, x') - k(x, X) K^-1 k(X, x') (paper 000, equations 2.9 and 2.10; Rasmussen and Williams, 2006, chapter 2). All of it goes
through W = chol(K)^-1, because products with an explicit inverse factor are much faster in XLA than triangular solves.
What was observed may be other linear functionals than values: derivatives, integrals (paper 004, equation 27).

Independent outputs have a system of equations each. They share its factor where they share the kernel, unless the noise differs
between them or some of Y is missing (NaN): then there is one factor for each output, in which the row and column of a
missing value are those of the identity. Outputs that covary make one system of N P equations; of these, complete data under
intrinsic coregionalisation have a covariance B x k(X, X) + noise that comes apart (`mercer.linalg.kronecker_log_density`).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from mercer import validation
from mercer.covariances.functionals import cross_covariance, prior_matrix
from mercer.deprecation import warn
from mercer.inducing import InducingVariables, Mixed
from mercer.inducing.functionals import as_inputs, as_variables, is_functional
from mercer.kernels import IntrinsicCoregionalisation, Kernel
from mercer.linalg import (
    FactorisationError,
    KroneckerPlusIdentity,
    inverse_factor,
    kronecker_log_density,
    matmul,
    quiet_blas,
    zero_mean_log_density,
)
from mercer.linalg.cholesky import raise_if_failed
from mercer.linalg.products import for_each_entry
from mercer.parameters import cast, constant, dtype_of, is_concrete, param, positive
from mercer.processes.base import Process, wider
from mercer.processes.cached import CachedConditioned, CachedKronecker
from mercer.processes.gaussian import Gaussian
from mercer.processes.of_before import FittedPrior, as_prior, holds_all
from mercer.processes.prior import GP
from mercer.validation import AnyArray, OneOrMany


class Conditioned(FittedPrior):
    """The posterior of a GP prior given Y = f(X) + N(0, noise).

    X is the inputs, or inducing variables (`Derivative`, `Integral`, a `Mixed` list) that were observed in their place.
    `noise` is a variance: a number, or an array that broadcasts to [N, P]. `complete` says that nothing in Y is missing; it
    is found out where Y can be looked at, and taken to be False inside compiled code unless given.
    """

    prior: GP
    X: Float[Array, "N D"] | InducingVariables = constant()
    Y: Float[Array, "N P"] = constant(finite=False)  # NaN where nothing was observed
    noise: Array = param(positive)
    complete: bool = eqx.field(static=True)

    def __init__(
        self,
        prior: Process,
        X: Float[AnyArray, "N D"] | InducingVariables,
        Y: Float[AnyArray, "N P"],
        noise: OneOrMany = 0.1,
        complete: bool | None = None,
    ):
        self.prior = as_prior(prior, "Conditioned")
        if not isinstance(self.prior, GP):
            raise ValueError(f"prior expects a mercer.GP, got {type(prior).__name__}")
        self.X = as_inputs(X)
        if len(self.X) == 0:
            raise ValueError("X must have at least one row, got none")
        self.Y = validation.outputs(Y, len(self.X)).astype(dtype_of(self.X))
        self.noise = noise
        self.complete = validation.is_complete(self.Y) if complete is None else complete

    def __check_init__(self):
        self.check_inputs(self.X)
        shape = jnp.shape(self.noise)
        if len(shape) > 2 or any(n not in (1, m) for n, m in zip(shape[::-1], self.Y.shape[::-1], strict=False)):
            raise ValueError(f"noise must be a number or broadcast to the shape {self.Y.shape} of Y, got shape {shape}")
        P = self.prior.num_outputs
        if P is not None and self.Y.shape[1] != P:
            kernel = type(self.prior.kernel).__name__
            raise ValueError(f"Y expects {P} columns, one for each output of {kernel}, got {self.Y.shape[1]}")

    @property
    def num_outputs(self):
        return self.Y.shape[1]

    @property
    def joint_layout(self):
        return self.prior.joint_layout

    def check_inputs(self, X):
        self.prior.check_inputs(X)

    @property
    def is_joint(self) -> bool:
        """Whether the outputs make one system of equations."""
        return not self.prior.kernel.independent

    @property
    def _comes_apart(self) -> bool:
        """Whether the covariance is A x B plus noise of each output."""
        shape = jnp.shape(self.noise)
        same_noise = len(shape) < 2 or shape[0] == 1
        return isinstance(self.prior.kernel, IntrinsicCoregionalisation) and self.complete and same_noise

    @property
    def output_kernels(self) -> tuple[Kernel, ...]:
        """The kernels of independent outputs, one for each, or a single one that they share."""
        kernel: Any = self.prior.kernel
        return kernel.output_kernels

    def observed(self) -> Bool[Array, "N P"]:
        """Which entries of Y are not missing."""
        return ~jnp.isnan(self.Y)

    def _residual(self) -> Float[Array, "N P"]:
        return jnp.where(self.observed(), self.Y - self.prior.mean_of(self.X, self.Y.shape[1]), 0.0)

    def in_systems(self, values: Shaped[Array, "N P"]) -> Shaped[Array, "S n"]:
        """Values in the order of the systems of equations: by output, or all in one."""
        return values.reshape(1, -1) if self.is_joint else values.T

    def from_systems(self, values: Float[Array, "S n"]) -> Float[Array, "N P"]:
        """The other way round."""
        return values.reshape(self.Y.shape) if self.is_joint else values.T

    def _covariance(self) -> Float[Array, "G n n"]:
        """K, with the rows and columns of missing values replaced by those of the identity; G is 1, or P."""
        noise = jnp.broadcast_to(self.noise, self.Y.shape)
        if self.is_joint:
            K = self.prior.covariance_of(self.X, self.num_outputs, "full").reshape(1, self.Y.size, self.Y.size)
        else:
            K = jnp.stack([prior_matrix(kernel, self.X) for kernel in self.output_kernels])
        identity = jnp.eye(K.shape[1], dtype=K.dtype)
        same_noise = jnp.ndim(self.noise) == 0 or jnp.shape(self.noise)[-1] == 1
        if self.complete and same_noise and len(K) == 1 and not self.is_joint:
            return K + noise[:, :1] * identity

        def one_system(K, seen, variance):
            return jnp.where(seen[:, None] & seen, K, 0.0) + jnp.where(seen, variance, 1.0)[:, None] * identity

        seen, variances = self.in_systems(self.observed()), self.in_systems(noise)
        return jax.vmap(one_system)(jnp.broadcast_to(K, (len(seen), *K.shape[1:])), seen, variances)

    def _apart(self) -> tuple[Array, Array, Array]:
        """The kernel's matrix A, and B and 1 / sqrt(noise) of each output such that A x B + I is the covariance of the
        values divided by sqrt(noise)."""
        scale = 1.0 / jnp.sqrt(jnp.broadcast_to(self.noise, (1, self.num_outputs)))[0]
        kernel: Any = self.prior.kernel
        return prior_matrix(kernel.kernel, self.X), scale[:, None] * kernel.B * scale, scale

    def _factorised(self) -> "CachedConditioned | CachedKronecker":
        if self._comes_apart:
            A, B, scale = self._apart()
            matrix = KroneckerPlusIdentity.of(A, B)
            return CachedKronecker(self, *matrix, scale, matrix.solve(self._residual() * scale) * scale)
        W = inverse_factor(self._covariance(), always=False)
        # alpha = K^-1 r
        columns = self.in_systems(self._residual())[..., None]
        alpha = self.from_systems(matmul(W.mT, matmul(W, columns))[..., 0])
        return CachedConditioned(self, W, alpha)

    def log_marginal_likelihood(self) -> Float[Array, ""]:
        """log p(Y), in nats, over all that was observed."""
        return _run(_log_marginal_likelihood, self)

    def leave_one_out(self) -> Gaussian:
        """The prediction of each observation (y, not f) from all the others.

        Its mean is y - [K^-1 r] / [K^-1]_nn and its variance 1 / [K^-1]_nn (Rasmussen and Williams, 2006, section 5.4.2).
        Where Y is missing it is meaningless.
        """
        return _run(_leave_one_out, self)

    def knows_kl(self, prior=None):
        return prior is None

    def kl(self, prior: Process | None = None) -> Float[Array, ""]:
        """KL of the posterior from its prior, in nats: what was learned from the data (E[log p(Y | f)] - log p(Y)).

        With A = K + D, D the noise, and a = A^-1 r it is (tr A^-1 D - n + log det A - log det D + a^T K a) / 2.
        """
        if prior is not None:
            raise ValueError("Conditioned knows the KL divergence from its own prior only: leave prior out")
        return _run(_information, self)

    def condition(self, X, Y, noise, complete=None):
        """The posterior given these data and the ones before."""
        more = Conditioned(self.prior, X, Y, noise, complete)
        if holds_all(more, self):
            warn("condition adds data to those before; what fit gives is conditioned already, on the data of training")
            return more
        Xs: tuple[Any, Any] = (self.X, more.X)
        X = Mixed([as_variables(X) for X in Xs]) if any(map(is_functional, Xs)) else jnp.concatenate(Xs)
        # One column of noise for all outputs, where they share it.
        width = max((jnp.shape(each.noise) or (1,))[-1] for each in (self, more))
        noises = [jnp.broadcast_to(each.noise, (len(each.Y), width)).astype(self.Y.dtype) for each in (self, more)]
        complete = self.complete and more.complete
        return Conditioned(self.prior, X, jnp.concatenate([self.Y, more.Y]), jnp.concatenate(noises), complete)

    def _predict(self, X, covariance):
        return self._factorised()._predict(X, covariance)

    def _predict_uncertain(self, x, covariance, key):
        return self._factorised()._predict_uncertain(x, covariance, key)

    def working_dtype(self, dtype):
        return wider(dtype, dtype_of((self.X, self.Y)))

    def _check_prediction(self, result):
        _check_finite(self, result.mean)

    def _sample_function(self, key, num_features):
        return self.cached()._sample_function(key, num_features)

    def cached(self) -> "CachedConditioned | CachedKronecker":
        """The same process with its factorisation done once, for fast repeated prediction."""
        return _run(_factorise, self)

    def crosses(self, X: Any) -> Float[Array, "G N M"]:
        """The covariance of what was observed with f(X), for each kernel of independent outputs."""
        return jnp.stack([cross_covariance(as_variables(self.X), kernel, X) for kernel in self.output_kernels])

    def joint_cross(self, X: Any) -> Float[Array, "N P M P"]:
        """The covariance of all outputs of what was observed with all outputs at X."""
        kernel: Any = self.prior.kernel
        if not is_functional(self.X) and not is_functional(X):
            return kernel(self.X, X)
        W, latent = kernel.mixing(X).W, kernel.latent
        crosses = jnp.stack([cross_covariance(as_variables(self.X), kernel, X) for kernel in latent.parts])
        crosses = jnp.broadcast_to(crosses, (latent.num_outputs, *crosses.shape[1:]))
        return jnp.einsum("pl,lnm,ql->npmq", W[0], crosses, W[0], precision="highest")


def _run(function, process: Conditioned):
    """A compiled function of the process, with an error that names the matrix where its factorisation failed."""
    process = cast(process, process.Y.dtype)
    with quiet_blas():
        result = jax.block_until_ready(function(process))
    _check_finite(process, jax.tree.leaves(result)[-1])
    return result


def _check_finite(process: Conditioned, values: Array) -> None:
    if not is_concrete(values) or not bool(jnp.isnan(values).any()):
        return
    K = process._covariance()
    raise_if_failed(K, inverse_factor(K, always=False), "k(X, X) + noise")
    raise FactorisationError("the result is not finite although k(X, X) + noise is: look at the mean function and at X")


@eqx.filter_jit
def _factorise(process: Conditioned) -> "CachedConditioned | CachedKronecker":
    return process._factorised()


@eqx.filter_jit
def _log_marginal_likelihood(process: Conditioned) -> Array:
    residual = process._residual()
    if process._comes_apart:
        A, B, scale = process._apart()
        return kronecker_log_density(A, B, residual * scale) + len(residual) * jnp.sum(jnp.log(scale))
    K = process._covariance()
    if len(K) == 1 and not process.is_joint:
        log_density = zero_mean_log_density(K[0], residual)
    else:
        log_density = jnp.sum(for_each_entry(zero_mean_log_density, K, process.in_systems(residual)[..., None]))
    missing = residual.size - jnp.sum(process.observed())
    return log_density + 0.5 * jnp.log(2.0 * jnp.pi) * missing


@eqx.filter_jit
def _information(process: Conditioned) -> Array:
    # By the whole matrix also where it comes apart, as in `_leave_one_out`.
    W = inverse_factor(process._covariance(), always=False)
    residual, seen = process._residual(), process.in_systems(process.observed())
    # Where nothing was observed A and D are those of the identity, and add nothing.
    noise = jnp.where(seen, process.in_systems(jnp.broadcast_to(process.noise, process.Y.shape)), 1.0)
    alpha = process.in_systems(CachedConditioned(process, W, process.Y).solve(residual))
    trace = jnp.sum(jnp.sum(W**2, axis=1) * noise)
    log_ratio = -2.0 * jnp.sum(jnp.log(jnp.diagonal(W, axis1=1, axis2=2))) * (len(seen) / len(W)) - jnp.sum(
        jnp.log(noise)
    )
    explained = jnp.sum(alpha * (process.in_systems(residual) - noise * alpha))
    return 0.5 * (trace - noise.size + log_ratio + explained)


@eqx.filter_jit
def _leave_one_out(process: Conditioned) -> Gaussian:
    # By the whole matrix also where it comes apart: derivatives of eigenvectors do not survive repeated eigenvalues.
    W = inverse_factor(process._covariance(), always=False)
    cached = CachedConditioned(process, W, process.Y)
    alpha = cached.solve(process._residual())
    inverse_diagonal = jnp.sum(W**2, axis=1)
    if process.is_joint:
        variance = process.from_systems(1.0 / inverse_diagonal)
    else:
        variance = jnp.broadcast_to((1.0 / inverse_diagonal).T, process.Y.shape)
    return Gaussian(process.Y - variance * alpha, variance)
