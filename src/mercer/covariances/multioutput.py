"""Inducing variables of functions with several outputs: by recursion into those of one function, or of all outputs at points."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mercer.covariances.dispatch import Kuf, Kuu
from mercer.inducing.base import InducingVariables
from mercer.inducing.latent import LatentVariables, OutputPoints, Separate, Shared
from mercer.inducing.points import Points
from mercer.kernels.base import Kernel
from mercer.kernels.convolution_process import ConvolutionProcess
from mercer.kernels.coregionalisation import Coregionalisation
from mercer.kernels.multioutput import Independent, LatentKernel, MultioutputKernel, OutputIndexed
from mercer.linalg.operators import PSD, BlockDiagonal, Dense, Diagonal, Kronecker


def latent_pairs(inducing: LatentVariables, kernel: LatentKernel) -> tuple[tuple[InducingVariables, Kernel], ...]:
    """The variables and the kernel of each latent function; a single pair, where all of them share both."""
    L, kernels = kernel.num_latents, kernel.latent.parts
    parts = inducing.parts(L)
    num = max(len(parts), len(kernels))
    return tuple(zip(parts * (num // len(parts)), kernels * (num // len(kernels)), strict=True))


@Kuu.dispatch
def _(inducing: Shared | Separate, kernel: LatentKernel) -> PSD:
    operators = [Kuu(part, latent) for part, latent in latent_pairs(inducing, kernel)]
    if len(operators) == kernel.num_latents:
        return BlockDiagonal(operators)
    (operator,) = operators
    return Kronecker([Diagonal(jnp.ones(kernel.num_latents, operator.diagonal().dtype)), operator])


@Kuf.dispatch
def _(inducing: Shared | Separate, kernel: Independent | Coregionalisation, X) -> Array:
    crosses = jnp.stack([Kuf(part, latent, X) for part, latent in latent_pairs(inducing, kernel)])
    L = kernel.num_latents
    W = kernel.W if isinstance(kernel, Coregionalisation) else jnp.eye(L, dtype=crosses.dtype)
    return jnp.einsum("lmn,pl->lmnp", jnp.broadcast_to(crosses, (L, *crosses.shape[1:])), W.astype(crosses.dtype))


@Kuf.dispatch
def _(inducing: Shared | Separate, kernel: ConvolutionProcess, X) -> Array:
    """Of a variable u = A g with f_p(x): A applied to the kernel of g, smoothed once, at x moved back by the delay."""
    parts = inducing.parts(kernel.num_latents) * (1 if isinstance(inducing, Separate) else kernel.num_latents)

    def of_latent(index, part):
        W, delays = kernel.W[:, index], kernel.shifts(X.shape[1])[:, index]

        def of_output(p):
            return W[p] * Kuf(part, kernel.smoothed(index, p, X.shape[1]), X - delays[p])

        return jnp.moveaxis(jax.vmap(of_output)(jnp.arange(kernel.num_outputs)), 0, -1)

    return jnp.stack([of_latent(index, part) for index, part in enumerate(parts)])


@Kuu.dispatch
def _(inducing: Shared | Separate, kernel: OutputIndexed) -> PSD:
    return Kuu(inducing, kernel.kernel)


@Kuf.dispatch
def _(inducing: Shared | Separate, kernel: OutputIndexed, X) -> Array:
    X, p = kernel.split(X)
    return Kuf(inducing, kernel.kernel, X)[:, :, jnp.arange(len(X)), p][..., None]


@Kuu.dispatch
def _(inducing: Points, kernel: MultioutputKernel) -> PSD:
    size = inducing.num * kernel.num_outputs
    return Dense(kernel(inducing.Z).reshape(size, size))


@Kuf.dispatch
def _(inducing: Points, kernel: MultioutputKernel, X) -> Array:
    P = kernel.num_outputs
    return kernel(inducing.Z, X).reshape(1, inducing.num * P, len(X), P)


def _outputs(inducing: OutputPoints, kernel: MultioutputKernel) -> Array:
    if max(inducing.outputs) >= kernel.num_outputs:
        raise ValueError(f"outputs expects numbers from 0 to {kernel.num_outputs - 1}, got {max(inducing.outputs)}")
    return jnp.asarray(inducing.outputs)


@Kuu.dispatch
def _(inducing: OutputPoints, kernel: MultioutputKernel) -> PSD:
    p = _outputs(inducing, kernel)
    return Dense(kernel.between(inducing.Z, p, inducing.Z, p))


@Kuf.dispatch
def _(inducing: OutputPoints, kernel: MultioutputKernel, X) -> Array:
    P = kernel.num_outputs
    everything = jnp.repeat(X, P, axis=0), jnp.tile(jnp.arange(P), len(X))
    cross = kernel.between(inducing.Z, _outputs(inducing, kernel), *everything)
    return cross.reshape(1, inducing.num, len(X), P)
