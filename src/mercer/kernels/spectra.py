"""Draws from the spectral densities of stationary kernels, and of what is made of these.

By Bochner's theorem k(x - x') = sum_k variance_k E cos(s_k . (x - x')) (paper 002, equation 14). The spectrum of a sum is that
of its terms side by side, the one of a product has the sums of independent frequencies.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from plum import Dispatcher

from mercer.kernels.base import Kernel, OnDimensions, Product, Scaled, Sum
from mercer.kernels.periodic import Cosine, SpectralMixture
from mercer.kernels.static import Constant
from mercer.kernels.stationary import Stationary

_dispatch: Any = Dispatcher()


class Spectrum(NamedTuple):
    """Angular frequencies s_k / lengthscale, and the variance that each of them has."""

    frequencies: Float[Array, "K D"]
    variances: Float[Array, " K"]
    lengthscale: Array | float = 1.0

    @property
    def absolute(self) -> Float[Array, "K D"]:
        """The frequencies at lengthscale 1."""
        return self.frequencies / self.lengthscale


def spectrum(kernel: Kernel, num: int, dimension: int, *, key: PRNGKeyArray) -> Spectrum:
    """`num` frequencies of a kernel on inputs of `dimension` columns."""
    if not isinstance(num, int) or num < 1:
        raise ValueError(f"the number of frequencies must be a whole number, at least 1, got {num!r}")
    return spectrum_of(kernel, num, dimension, key)


@_dispatch
def spectrum_of(kernel: Kernel, num: int, dimension: int, key: Any) -> Spectrum:
    """The spectrum, for a pair of kernel and number; open, so that a user's kernel can say its own."""
    raise ValueError(f"{type(kernel).__name__} has no spectral density to draw frequencies from: it is not stationary")


@spectrum_of.dispatch
def _(kernel: Stationary, num: int, dimension: int, key: Any) -> Spectrum:
    lengthscale = kernel.per_column("lengthscale", jnp.zeros((1, dimension)))
    draws = kernel.frequencies((num, dimension), key=key)
    return Spectrum(draws, jnp.full(num, kernel.variance / num), lengthscale)


@spectrum_of.dispatch
def _(kernel: SpectralMixture, num: int, dimension: int, key: Any) -> Spectrum:
    kernel.check_columns(jnp.zeros((1, dimension)))
    key_q, key_w = jax.random.split(key)
    q = jax.random.categorical(key_q, jnp.log(kernel.weights), shape=(num,))
    draws = kernel.means[q] + kernel.scales[q] * jax.random.normal(key_w, (num, dimension))
    return Spectrum(2.0 * jnp.pi * draws, jnp.full(num, jnp.sum(kernel.weights) / num))


@spectrum_of.dispatch
def _(kernel: Cosine, num: int, dimension: int, key: Any) -> Spectrum:
    wave = 2.0 * jnp.pi / jnp.broadcast_to(kernel.lengthscale, (dimension,))
    return Spectrum(jnp.broadcast_to(wave, (num, dimension)), jnp.full(num, kernel.variance / num))


@spectrum_of.dispatch
def _(kernel: Constant, num: int, dimension: int, key: Any) -> Spectrum:
    return Spectrum(jnp.zeros((num, dimension)), jnp.full(num, kernel.variance / num))


@spectrum_of.dispatch
def _(kernel: Scaled, num: int, dimension: int, key: Any) -> Spectrum:
    inner = spectrum_of(kernel.kernel, num, dimension, key)
    return Spectrum(inner.frequencies, kernel.scale * inner.variances, inner.lengthscale)


@spectrum_of.dispatch
def _(kernel: OnDimensions, num: int, dimension: int, key: Any) -> Spectrum:
    inner = spectrum_of(kernel.kernel, num, len(kernel.dims), key)
    placed = jnp.zeros((num, dimension)).at[:, jnp.asarray(kernel.dims)].set(inner.absolute)
    return Spectrum(placed, inner.variances)


@spectrum_of.dispatch
def _(kernel: Sum, num: int, dimension: int, key: Any) -> Spectrum:
    count = len(kernel.kernels)
    if num < count:
        raise ValueError(f"a sum of {count} kernels needs at least as many frequencies, got {num}")
    keys = jax.random.split(key, count)
    # As equal as can be: the first ones have one more where num is no multiple.
    sizes = [num // count + (i < num % count) for i in range(count)]
    parts = [spectrum_of(k, size, dimension, key) for k, size, key in zip(kernel.kernels, sizes, keys, strict=True)]
    return Spectrum(
        jnp.concatenate([part.absolute for part in parts]), jnp.concatenate([part.variances for part in parts])
    )


@spectrum_of.dispatch
def _(kernel: Product, num: int, dimension: int, key: Any) -> Spectrum:
    keys = jax.random.split(key, len(kernel.kernels))
    parts = [spectrum_of(k, num, dimension, key) for k, key in zip(kernel.kernels, keys, strict=True)]
    # A sum has its terms one after another: in random order its frequencies are draws from all of them.
    orders = [jax.random.permutation(jax.random.fold_in(key, 1), num) for key in keys]
    variances = jnp.ones(num) / num
    for part, order in zip(parts, orders, strict=True):
        variances = variances * (num * part.variances[order])
    frequencies = [part.absolute[order] for part, order in zip(parts, orders, strict=True)]
    return Spectrum(jnp.sum(jnp.stack(frequencies), axis=0), variances)
