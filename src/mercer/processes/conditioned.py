"""A process conditioned on noisy observations of its values: exact Gaussian process regression.

With K = k(X, X) + noise and r = Y - m(X), the posterior at x has mean m(x) + k(x, X) K^-1 r and covariance
k(x, x') - k(x, X) K^-1 k(X, x') (paper 000, equations 2.9 and 2.10; Rasmussen and Williams, 2006, chapter 2). All of it goes
through W = chol(K)^-1, because products with an explicit inverse factor are much faster in XLA than triangular solves.

Outputs are independent of each other and share the kernel. They share the factor, too, unless the noise differs between
them or some of Y is missing (NaN): then there is one factor for each output, in which the row and column of a missing
value are those of the identity. G, the number of factors, is 1 or P.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer import validation
from mercer.layouts import independent_outputs
from mercer.linalg import FactorisationError, inverse_factor, matmul, quiet_blas, zero_mean_log_density
from mercer.linalg.cholesky import raise_if_failed
from mercer.parameters import cast, constant, is_concrete, param, positive
from mercer.processes.base import Process
from mercer.processes.gaussian import Gaussian
from mercer.processes.prior import GP


class Conditioned(Process):
    """The posterior of a GP prior given Y = f(X) + N(0, noise).

    `noise` is a variance: a number, or an array that broadcasts to [N, P]. `complete` says that nothing in Y is missing; it
    is found out where Y can be looked at, and taken to be False inside compiled code unless given.
    """

    prior: GP
    X: Float[Array, "N D"] = constant()
    Y: Float[Array, "N P"] = constant()
    noise: Array = param(positive)
    complete: bool = eqx.field(static=True)

    def __init__(
        self,
        prior: GP,
        X: Float[Array, "N D"],
        Y: Float[Array, "N P"],
        noise: float | Array = 0.1,
        complete: bool | None = None,
    ):
        if not isinstance(prior, GP):
            raise ValueError(f"prior expects a mercer.GP, got {type(prior).__name__}")
        self.prior = prior
        self.X = validation.inputs(X)
        if len(self.X) == 0:
            raise ValueError("X must have at least one row, got none")
        self.Y = validation.outputs(Y, len(self.X)).astype(self.X.dtype)
        self.noise = noise
        self.complete = validation.is_complete(self.Y) if complete is None else complete

    def __check_init__(self):
        shape = jnp.shape(self.noise)
        if len(shape) > 2 or any(n not in (1, m) for n, m in zip(shape[::-1], self.Y.shape[::-1], strict=False)):
            raise ValueError(f"noise must be a number or broadcast to the shape {self.Y.shape} of Y, got shape {shape}")

    def _observed(self) -> Array:
        return ~jnp.isnan(self.Y)

    def _residual(self) -> Float[Array, "N P"]:
        return jnp.where(self._observed(), self.Y - self.prior.mean_of(self.X, self.Y.shape[1]), 0.0)

    def _covariance(self) -> Float[Array, "G N N"]:
        """K, with the rows and columns of missing values replaced by those of the identity."""
        K = self.prior.kernel(self.X)
        identity = jnp.eye(len(K), dtype=K.dtype)
        noise = jnp.broadcast_to(self.noise, self.Y.shape)
        if self.complete and (jnp.ndim(self.noise) == 0 or jnp.shape(self.noise)[-1] == 1):
            return (K + noise[:, :1] * identity)[None]

        def one_output(seen, variance):
            return jnp.where(seen[:, None] & seen, K, 0.0) + jnp.where(seen, variance, 1.0)[:, None] * identity

        return jax.vmap(one_output, in_axes=1)(self._observed(), noise)

    def _factorised(self) -> "CachedConditioned":
        W = inverse_factor(self._covariance(), always=False)
        # alpha = K^-1 r
        columns = self._residual().T[..., None]
        alpha = matmul(W.mT, matmul(W, columns))[..., 0].T
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

    def _predict(self, X, covariance):
        return self._factorised()._predict(X, covariance)

    def _aligned(self, X):
        dtype = jnp.promote_types(self.X.dtype, X.dtype)
        return cast(self, dtype), X.astype(dtype)

    def _check_prediction(self, result):
        _check_finite(self, result.mean)

    def _sample_function(self, key, num_features):
        return self.cached()._sample_function(key, num_features)

    def cached(self) -> "CachedConditioned":
        """The same process with its factorisation done once, for fast repeated prediction."""
        return _run(_factorise, self)


class CachedConditioned(Process):
    """A `Conditioned` with W = chol(K)^-1 and alpha = K^-1 r worked out."""

    process: Conditioned
    W: Float[Array, "G N N"] = constant()
    alpha: Float[Array, "N P"] = constant()

    def _predict(self, X, covariance):
        prior, data = self.process.prior, self.process
        Kfx = prior.kernel(data.X, X)
        mean = prior.mean(X) + matmul(Kfx.T, self.alpha)
        # A = W k(X, x), [G, N, N2]
        A = matmul(self.W, Kfx[None] if data.complete else jnp.where(data._observed().T[:, :, None], Kfx, 0.0))
        if covariance in ("diag", "outputs"):
            values = jnp.broadcast_to((prior.kernel.diag(X) - jnp.sum(A**2, axis=1)).T, mean.shape)
        else:
            values = jnp.broadcast_to(prior.kernel(X) - matmul(A.mT, A), (mean.shape[1], len(X), len(X)))
        return Gaussian(mean, independent_outputs(values, covariance), covariance)

    def _aligned(self, X):
        dtype = self.process.X.dtype
        return self, X.astype(dtype)

    def _sample_function(self, key, num_features):
        """Matheron's rule: a draw from the prior, moved by K^-1 times how much it misses the (noisy) data."""
        data = self.process
        key_prior, key_noise = jax.random.split(key)
        deviation = data.prior.sample_deviation(key_prior, num_features, data.Y.shape[1])
        noise = jnp.sqrt(data.noise) * jax.random.normal(key_noise, data.Y.shape, data.X.dtype)
        missed = jnp.where(data._observed(), deviation(data.X) + noise, 0.0)
        shift = matmul(self.W.mT, matmul(self.W, missed.T[..., None]))[..., 0].T

        def draw(X):
            return data.prior.mean(X) + deviation(X) + matmul(data.prior.kernel(X, data.X), self.alpha - shift)

        return draw


def _run(function, process: Conditioned):
    """A compiled function of the process, with an error that names the matrix where its factorisation failed."""
    process = cast(process, process.X.dtype)
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
def _factorise(process: Conditioned) -> CachedConditioned:
    return process._factorised()


@eqx.filter_jit
def _log_marginal_likelihood(process: Conditioned) -> Array:
    K, residual = process._covariance(), process._residual()
    if len(K) == 1:
        log_density = zero_mean_log_density(K[0], residual)
    else:
        log_density = jnp.sum(jax.vmap(zero_mean_log_density)(K, residual.T[..., None]))
    missing = residual.size - jnp.sum(process._observed())
    return log_density + 0.5 * jnp.log(2.0 * jnp.pi) * missing


@eqx.filter_jit
def _leave_one_out(process: Conditioned) -> Gaussian:
    cached = process._factorised()
    variance = jnp.broadcast_to(1.0 / jnp.sum(cached.W**2, axis=1).T, process.Y.shape)
    return Gaussian(process.Y - variance * cached.alpha, variance)
