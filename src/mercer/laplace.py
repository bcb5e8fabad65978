"""From a trained network to a posterior without training: the linearised Laplace approximation.

Around its parameters W a trained module is g(x; W) + J(x) w. With a prior N(0, s) on parameters and a likelihood whose second
derivatives in the outputs are -Lambda_n, the changes w have the covariance

    V = (H + I / s)^-1,      H = sum_n J_n^T Lambda_n J_n,

and the evidence is log p(Y | g) - |W|^2 / (2 s) - log det(I + s H) / 2 (MacKay, 1992; Immer, Korzepa and Bauer, 2021). It is
closed in the eigenvalues of H, and so the best prior variance s (and noise) is found without another look at the data. Where
a module is linear in its parameters and the noise is Gaussian, all of this is exact.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, Float

from mercer.features import Features
from mercer.likelihoods import Gaussian, Likelihood
from mercer.linalg import eigh, matmul, quiet_blas, safe_cholesky
from mercer.model import Model, check_latents
from mercer.objectives.base import Batch, Data, as_batch
from mercer.parameters import cast
from mercer.processes import (
    DiagonalCovariance,
    FullCovariance,
    Network,
    ReducedCovariance,
    SharedCovariance,
    WeightCovariance,
)
from mercer.processes.network import network_values
from mercer.validation import AnyArray

Structure = Literal["full", "diag", "low-rank", "kronecker"]


class Learned(NamedTuple):
    """What `learn` returns: the model, and the log evidence of the data, in nats."""

    model: Model
    log_evidence: float


def learn(
    features: Features,
    likelihood: Likelihood,
    data: Data,
    *,
    weights: Float[AnyArray, "F P"] | None = None,
    covariance: Structure = "full",
    rank: int = 20,
    prior_variance: float | None = None,
    noise: Literal["likelihood", "evidence"] = "likelihood",
    batch_size: int = 1000,
) -> Learned:
    """A `Network` posterior around a trained module, in one pass over the data (with "low-rank" in two).

    `features` are `features.Tangent(module)` for all parameters of it; of its last layer alone they are
    `features.Composed(body, features.Tangent(last))`, or `features.Basis(body)` with the trained `weights` of the last layer.
    Then each output has a covariance of its own, and memory does not grow with the square of their number.

    `covariance` is "full"; "diag", the diagonal of H alone; "low-rank", the `rank` largest eigenvalues of H; or, for outputs
    that share a `Basis`, "kronecker": H of an output is then sum_n Lambda_n of it times the mean of phi phi^T, so that
    memory grows as the weights do, for thousands of classes, too. `prior_variance` is the one of the greatest evidence unless
    given; with `noise="evidence"` so is the variance of a Gaussian likelihood.
    """
    batch = _checked(features, likelihood, data, weights, covariance, noise)
    likelihood = cast(likelihood, batch.dtype)
    mode = _Mode(*cast((features, None if weights is None else jnp.asarray(weights)), batch.dtype))
    start = Gaussian(1.0) if noise == "evidence" else likelihood
    with quiet_blas():
        found = _CURVATURES[covariance](mode, start, list(_blocks(batch, batch_size)), rank)
        fit = float(_total(_fit(mode, start, block) for block in _blocks(batch, batch_size)))
    squares = float(jnp.sum(mode.parameters() ** 2))
    count = int(np.sum(~np.isnan(np.asarray(batch.Y))))
    values = np.asarray(found.eigenvalues, float)

    def log_evidence(variance: float, noise: float) -> float:
        # With noise in the place of 1: log N(r; 0, noise) from log N(r; 0, 1), and H / noise.
        of_noise = (fit + 0.5 * count * np.log(2.0 * np.pi)) / noise - 0.5 * count * np.log(2.0 * np.pi * noise)
        of_data = fit if noise == 1.0 else of_noise
        return float(of_data - 0.5 * squares / variance - 0.5 * np.sum(np.log1p(variance * values / noise)))

    variance, scale = _best(log_evidence, prior_variance, noise == "evidence")
    if noise == "evidence":
        likelihood = Gaussian(jnp.asarray(scale, batch.dtype))
    V = found.covariance(variance, scale)
    s = jnp.asarray(variance, batch.dtype)
    network = Network(mode.features, covariance=V, q_mu=mode.weights, prior_variance=s)
    return Learned(Model(network, likelihood), log_evidence(variance, scale))


class _Mode(NamedTuple):
    """Where a network stands: a module that features are derivatives of, or features and their weights."""

    features: Features
    weights: Float[Array, "F P"] | None

    def outputs(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        """The values of the network."""
        offset: Any = self.features.offset(X)
        return offset if self.weights is None else network_values(self.features.values(X), self.weights)

    def parameters(self) -> Array:
        """What the prior is on."""
        found: Any = self.features.parameters() if self.weights is None else self.weights
        return found


def _checked(features: Any, likelihood: Any, data: Any, weights: Any, covariance: str, noise: str) -> Batch:
    if not isinstance(features, Features):
        raise ValueError(f"laplace.learn: features expects one of mercer.features, got {type(features).__name__}")
    if covariance not in _CURVATURES:
        raise ValueError(f"laplace.learn: covariance expects one of {tuple(_CURVATURES)}, got {covariance!r}")
    if noise not in ("likelihood", "evidence"):
        raise ValueError(f'laplace.learn: noise expects "likelihood" or "evidence", got {noise!r}')
    if noise == "evidence" and not isinstance(likelihood, Gaussian):
        raise ValueError('laplace.learn: noise="evidence" is for a Gaussian likelihood')
    batch = as_batch(data, discrete=likelihood.discrete)
    likelihood.validate(batch.Y)
    if covariance == "kronecker" and features.num_outputs is not None:
        raise ValueError('laplace.learn: covariance="kronecker" is for outputs that share a Basis, with weights')
    if (weights is None) == (features.parameters() is None):
        raise ValueError(
            "laplace.learn: weights are those of features that are no derivatives (a Basis), and needed there; "
            f"{type(features).__name__} {'needs' if weights is None else 'has'} them"
        )
    columns = None if weights is None or features.num_outputs else np.shape(weights)[1]
    network = Network(features, covariance="diag", num_outputs=columns)
    if weights is not None and np.shape(weights) != network.q_mu.shape:
        raise ValueError(f"laplace.learn: weights expects shape {network.q_mu.shape}, got {np.shape(weights)}")
    check_latents(Model(network, likelihood), batch.Y)
    network.check_inputs(batch.X)
    return batch


def _blocks(batch: Batch, size: int) -> Iterator[Batch]:
    for start in range(0, len(batch.Y), size):
        yield batch.rows(np.arange(start, min(start + size, len(batch.Y))))


@eqx.filter_jit
def _fit(mode: _Mode, likelihood: Likelihood, batch: Batch) -> Float[Array, ""]:
    """log p(Y | g)."""
    return jnp.sum(batch.weighted(likelihood.log_prob(mode.outputs(batch.inputs), batch.Y, batch.inputs)))


def _curved(mode: _Mode, likelihood: Likelihood, batch: Batch) -> tuple[Array, Array]:
    """phi and Lambda phi at a block, [Q, N, F]; of outputs with weights of their own, the diagonal of Lambda counts."""
    phi = mode.features.values(batch.inputs)
    if not mode.features.joint:
        own = _own_curvature(mode, likelihood, batch)[..., None]
        return jnp.broadcast_to(phi, (len(own), *phi.shape[1:])), own * phi

    def log_prob(f, x, y):
        return likelihood.log_prob(f[None], y[None], None if x is None else x[None])[0]

    curvature = -jax.vmap(jax.hessian(log_prob))(mode.outputs(batch.inputs), batch.inputs, batch.Y)
    curvature = curvature if batch.weights is None else batch.weights[:, None, None] * curvature
    return phi, jnp.einsum("npq,qnf->pnf", curvature, phi, precision="highest")


def _own_curvature(mode: _Mode, likelihood: Likelihood, batch: Batch) -> Float[Array, "P N"]:
    """The diagonal of Lambda, one output after another: no matrix between outputs is formed."""
    f = mode.outputs(batch.inputs)
    slope = jax.grad(lambda f: jnp.sum(batch.weighted(likelihood.log_prob(f, batch.Y, batch.inputs))))

    def of_output(p):
        along = jnp.broadcast_to(jnp.arange(f.shape[1]) == p, f.shape).astype(f.dtype)
        return -jax.jvp(slope, (f,), (along,))[1][:, p]

    return jax.lax.map(of_output, jnp.arange(f.shape[1]))


def _grouped(mode: _Mode, values: Float[Array, "P ..."]) -> Array:
    """Sums over outputs that share their weights."""
    return jnp.sum(values, axis=0, keepdims=True) if mode.features.joint else values


@eqx.filter_jit
def _matrix(mode: _Mode, likelihood: Likelihood, batch: Batch) -> Float[Array, "L F F"]:
    phi, curved = _curved(mode, likelihood, batch)
    return _grouped(mode, matmul(phi.mT, curved))


@eqx.filter_jit
def _diagonal(mode: _Mode, likelihood: Likelihood, batch: Batch) -> Float[Array, "L F"]:
    phi, curved = _curved(mode, likelihood, batch)
    return _grouped(mode, jnp.sum(phi * curved, axis=1))


@eqx.filter_jit
def _product(
    mode: _Mode, likelihood: Likelihood, batch: Batch, columns: Float[Array, "L F R"]
) -> Float[Array, "L F R"]:
    phi, curved = _curved(mode, likelihood, batch)
    return _grouped(mode, matmul(curved.mT, matmul(phi, columns)))


@eqx.filter_jit
def _factors(mode: _Mode, likelihood: Likelihood, batch: Batch) -> tuple[Float[Array, "F F"], Float[Array, " P"]]:
    """sum_n phi phi^T, and sum_n Lambda_n of each output."""
    phi = mode.features.values(batch.inputs)[0]
    return matmul(phi.T, phi), jnp.sum(_own_curvature(mode, likelihood, batch), axis=1)


def _total(terms: Iterable[Array]) -> Array:
    return functools.reduce(jnp.add, terms)


class _Full(NamedTuple):
    """H = U diag(eigenvalues) U^T of each group."""

    eigenvalues: Float[Array, "L F"]
    U: Float[Array, "L F F"]

    @classmethod
    def of(cls, mode, likelihood, blocks, rank) -> "_Full":
        H = _total(_matrix(mode, likelihood, block) for block in blocks)
        values, U = eigh(0.5 * (H + H.mT))
        return cls(jnp.maximum(values, 0.0), U)

    def covariance(self, variance: float, noise: float) -> WeightCovariance:
        spread = 1.0 / (self.eigenvalues / noise + 1.0 / variance)
        return FullCovariance(safe_cholesky(matmul(self.U * spread[:, None], self.U.mT), always=False).factor)


class _Diagonal(NamedTuple):
    """The diagonal of H."""

    eigenvalues: Float[Array, "L F"]

    @classmethod
    def of(cls, mode, likelihood, blocks, rank) -> "_Diagonal":
        return cls(jnp.maximum(_total(_diagonal(mode, likelihood, block) for block in blocks), 0.0))

    def covariance(self, variance: float, noise: float) -> WeightCovariance:
        return DiagonalCovariance((self.eigenvalues / noise + 1.0 / variance) ** -0.5)


class _LowRank(NamedTuple):
    """The largest eigenvalues of H, by a random start, a pass for its range, and a pass for H within it."""

    eigenvalues: Float[Array, "L R"]
    U: Float[Array, "L F R"]

    @classmethod
    def of(cls, mode, likelihood, blocks, rank) -> "_LowRank":
        size = min(rank + 10, mode.features.num)
        L = 1 if mode.features.joint else likelihood.num_latents(blocks[0].Y.shape[1])
        start = jax.random.normal(jax.random.key(0), (L, mode.features.num, size), blocks[0].Y.dtype)
        Q = jnp.linalg.qr(_total(_product(mode, likelihood, block, start) for block in blocks))[0]
        inner = matmul(Q.mT, _total(_product(mode, likelihood, block, Q) for block in blocks))
        values, V = eigh(0.5 * (inner + inner.mT))
        values, V = values[:, ::-1][:, :rank], V[:, :, ::-1][:, :, :rank]
        return cls(jnp.maximum(values, 0.0), matmul(Q, V))

    def covariance(self, variance: float, noise: float) -> WeightCovariance:
        # V = s (I - U diag(s h / (1 + s h)) U^T)
        h = variance * self.eigenvalues / noise
        tiny = jnp.finfo(h.dtype).tiny ** 0.5
        scale = jnp.full(len(h), variance**0.5, h.dtype)
        return ReducedCovariance(scale, self.U, jnp.clip(h / (1.0 + h), tiny, 1.0 - jnp.finfo(h.dtype).eps))


class _Kronecker(NamedTuple):
    """H of each output as a multiple of one matrix, in its eigenvectors U."""

    eigenvalues: Float[Array, "L F"]
    U: Float[Array, "F F"]

    @classmethod
    def of(cls, mode, likelihood, blocks, rank) -> "_Kronecker":
        parts = [_factors(mode, likelihood, block) for block in blocks]
        gram, sizes = (_total(terms) for terms in zip(*parts, strict=True))
        values, U = eigh(gram / sum(len(block.Y) for block in blocks))
        return cls(jnp.maximum(sizes, 0.0)[:, None] * jnp.maximum(values, 0.0), U)

    def covariance(self, variance: float, noise: float) -> WeightCovariance:
        return SharedCovariance(self.U, 1.0 / (self.eigenvalues / noise + 1.0 / variance))


_CURVATURES: dict[str, Any] = {
    "full": _Full.of,
    "diag": _Diagonal.of,
    "low-rank": _LowRank.of,
    "kronecker": _Kronecker.of,
}


def _best(log_evidence: Any, prior_variance: float | None, with_noise: bool) -> tuple[float, float]:
    """The prior variance and the noise of the greatest evidence, or those given (the noise as 1)."""
    if prior_variance is not None and not prior_variance > 0.0:
        raise ValueError(f"laplace.learn: prior_variance expects a positive number, got {prior_variance!r}")

    def numbers(free: np.ndarray) -> tuple[float, float]:
        rest = list(np.exp(free))
        variance = rest.pop(0) if prior_variance is None else float(prior_variance)
        return variance, rest.pop(0) if with_noise else 1.0

    size = (prior_variance is None) + with_noise
    if size == 0:
        return numbers(np.zeros(0))
    starts = [np.full(size, value) for value in (-6.0, -2.0, 2.0)]
    bounds = [(-25.0, 25.0)] * size
    found = [
        scipy.optimize.minimize(lambda free: -log_evidence(*numbers(free)), start, bounds=bounds) for start in starts
    ]
    return numbers(min(found, key=lambda result: result.fun).x)
