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
from mercer.processes import DiagonalCovariance, FullCovariance, Network, ReducedCovariance, WeightCovariance

Structure = Literal["full", "diag", "low-rank"]


class Learned(NamedTuple):
    """What `learn` returns: the model, and the log evidence of the data, in nats."""

    model: Model
    log_evidence: float


def learn(
    features: Features,
    likelihood: Likelihood,
    data: Data,
    *,
    covariance: Structure = "full",
    rank: int = 20,
    prior_variance: float | None = None,
    noise: Literal["likelihood", "evidence"] = "likelihood",
    batch_size: int = 1000,
) -> Learned:
    """A `Network` posterior around a trained module, in one pass over the data (with "low-rank" in two).

    `features` are `features.Tangent(module)` for all parameters of it; of its last layer alone they are
    `features.Composed(body, features.Tangent(last))`. `covariance` is "full"; "diag", the diagonal of H alone; or "low-rank", the
    `rank` largest eigenvalues of H. `prior_variance` is the one of the greatest evidence unless given; with
    `noise="evidence"` so is the variance of a Gaussian likelihood.
    """
    batch = _checked(features, likelihood, data, covariance, noise)
    features, likelihood = cast((features, likelihood), batch.dtype)
    start = Gaussian(1.0) if noise == "evidence" else likelihood
    with quiet_blas():
        found = _CURVATURES[covariance](features, start, list(_blocks(batch, batch_size)), rank)
        fit = float(_total(_fit(features, start, block) for block in _blocks(batch, batch_size)))
    parameters = features.parameters()
    squares = 0.0 if parameters is None else float(jnp.sum(parameters**2))
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
    network = Network(features, covariance=V, prior_variance=jnp.asarray(variance, batch.dtype))
    return Learned(Model(network, likelihood), log_evidence(variance, scale))


def _checked(features: Any, likelihood: Any, data: Any, covariance: str, noise: str) -> Batch:
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
    needed = likelihood.num_latents(batch.Y.shape[1])
    network = Network(features, covariance="diag", num_outputs=None if features.num_outputs else needed)
    check_latents(Model(network, likelihood), batch.Y)
    network.check_inputs(batch.X)
    return batch


def _blocks(batch: Batch, size: int) -> Iterator[Batch]:
    for start in range(0, len(batch.Y), size):
        yield batch.rows(np.arange(start, min(start + size, len(batch.Y))))


def _outputs(features: Features, batch: Batch, likelihood: Likelihood) -> Float[Array, "N P"]:
    """The module at a block."""
    P = likelihood.num_latents(batch.Y.shape[1])
    offset = features.offset(batch.inputs)
    return jnp.zeros((len(batch.Y), P), batch.Y.dtype) if offset is None else offset


@eqx.filter_jit
def _fit(features: Features, likelihood: Likelihood, batch: Batch) -> Float[Array, ""]:
    """log p(Y | g)."""
    return jnp.sum(batch.weighted(likelihood.log_prob(_outputs(features, batch, likelihood), batch.Y, batch.inputs)))


def _curved(features: Features, likelihood: Likelihood, batch: Batch) -> tuple[Array, Array]:
    """phi and Lambda phi at a block, [Q, N, F]; of outputs with weights of their own, the diagonal of Lambda counts."""
    f, phi = _outputs(features, batch, likelihood), features.values(batch.inputs)

    def log_prob(f, x, y):
        return likelihood.log_prob(f[None], y[None], None if x is None else x[None])[0]

    curvature = -jax.vmap(jax.hessian(log_prob))(f, batch.inputs, batch.Y)
    if batch.weights is not None:
        curvature = batch.weights[:, None, None] * curvature
    if features.joint:
        return phi, jnp.einsum("npq,qnf->pnf", curvature, phi, precision="highest")
    own = jnp.diagonal(curvature, axis1=1, axis2=2).T[..., None]
    return jnp.broadcast_to(phi, (len(own), *phi.shape[1:])), own * phi


def _grouped(features: Features, values: Float[Array, "P ..."]) -> Array:
    """Sums over outputs that share their weights."""
    return jnp.sum(values, axis=0, keepdims=True) if features.joint else values


@eqx.filter_jit
def _matrix(features: Features, likelihood: Likelihood, batch: Batch) -> Float[Array, "L F F"]:
    phi, curved = _curved(features, likelihood, batch)
    return _grouped(features, matmul(phi.mT, curved))


@eqx.filter_jit
def _diagonal(features: Features, likelihood: Likelihood, batch: Batch) -> Float[Array, "L F"]:
    phi, curved = _curved(features, likelihood, batch)
    return _grouped(features, jnp.sum(phi * curved, axis=1))


@eqx.filter_jit
def _product(
    features: Features, likelihood: Likelihood, batch: Batch, columns: Float[Array, "L F R"]
) -> Float[Array, "L F R"]:
    phi, curved = _curved(features, likelihood, batch)
    return _grouped(features, matmul(curved.mT, matmul(phi, columns)))


def _total(terms: Iterable[Array]) -> Array:
    return functools.reduce(jnp.add, terms)


class _Full(NamedTuple):
    """H = U diag(eigenvalues) U^T of each group."""

    eigenvalues: Float[Array, "L F"]
    U: Float[Array, "L F F"]

    @classmethod
    def of(cls, features, likelihood, blocks, rank) -> "_Full":
        H = _total(_matrix(features, likelihood, block) for block in blocks)
        values, U = eigh(0.5 * (H + H.mT))
        return cls(jnp.maximum(values, 0.0), U)

    def covariance(self, variance: float, noise: float) -> WeightCovariance:
        spread = 1.0 / (self.eigenvalues / noise + 1.0 / variance)
        return FullCovariance(safe_cholesky(matmul(self.U * spread[:, None], self.U.mT), always=False).factor)


class _Diagonal(NamedTuple):
    """The diagonal of H."""

    eigenvalues: Float[Array, "L F"]

    @classmethod
    def of(cls, features, likelihood, blocks, rank) -> "_Diagonal":
        return cls(jnp.maximum(_total(_diagonal(features, likelihood, block) for block in blocks), 0.0))

    def covariance(self, variance: float, noise: float) -> WeightCovariance:
        return DiagonalCovariance((self.eigenvalues / noise + 1.0 / variance) ** -0.5)


class _LowRank(NamedTuple):
    """The largest eigenvalues of H, by a random start, a pass for its range, and a pass for H within it."""

    eigenvalues: Float[Array, "L R"]
    U: Float[Array, "L F R"]

    @classmethod
    def of(cls, features, likelihood, blocks, rank) -> "_LowRank":
        size = min(rank + 10, features.num)
        L = 1 if features.joint else likelihood.num_latents(blocks[0].Y.shape[1])
        start = jax.random.normal(jax.random.key(0), (L, features.num, size), blocks[0].Y.dtype)
        Q = jnp.linalg.qr(_total(_product(features, likelihood, block, start) for block in blocks))[0]
        inner = matmul(Q.mT, _total(_product(features, likelihood, block, Q) for block in blocks))
        values, V = eigh(0.5 * (inner + inner.mT))
        values, V = values[:, ::-1][:, :rank], V[:, :, ::-1][:, :, :rank]
        return cls(jnp.maximum(values, 0.0), matmul(Q, V))

    def covariance(self, variance: float, noise: float) -> WeightCovariance:
        # V = s (I - U diag(s h / (1 + s h)) U^T)
        h = variance * self.eigenvalues / noise
        tiny = jnp.finfo(h.dtype).tiny ** 0.5
        scale = jnp.full(len(h), variance**0.5, h.dtype)
        return ReducedCovariance(scale, self.U, jnp.clip(h / (1.0 + h), tiny, 1.0 - jnp.finfo(h.dtype).eps))


_CURVATURES: dict[str, Any] = {"full": _Full.of, "diag": _Diagonal.of, "low-rank": _LowRank.of}


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
