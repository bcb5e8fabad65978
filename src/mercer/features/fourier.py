"""Random Fourier features whose frequencies move: the random feature expansion of paper 002, section 4.2.

A stationary kernel is the Fourier transform of its spectral density (14). With K frequencies s_k from it, at lengthscale 1,

    phi(x) = sqrt(variance share_k) [cos(s_k . x / lengthscale), sin(s_k . x / lengthscale)],

phi(x) . phi(x') is the kernel in expectation. As features of an inference network frequencies and lengthscales are trained.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.features.base import Features
from mercer.kernels.base import Kernel
from mercer.kernels.spectra import spectrum
from mercer.linalg.products import matmul
from mercer.parameters import constant, is_concrete, param, positive, real
from mercer.validation import AnyArray


class RandomFourier(Features):
    """sqrt(variance share_k) times the cosine and the sine of s_k . x / lengthscale: 2 K features of K frequencies.

    `frequencies` [K, D] are angular ones; `shares` [K] say how much of the variance each of them has, by default the same. `of`
    draws them from the spectrum of a kernel.
    """

    frequencies: Float[Array, "K D"] = param(real)
    lengthscale: Array = param(positive)
    variance: Array = param(positive)
    shares: Float[Array, " K"] = constant()

    def __init__(
        self,
        frequencies: Float[AnyArray, "K D"],
        lengthscale: Array | float = 1.0,
        variance: Array | float = 1.0,
        shares: Float[AnyArray, " K"] | None = None,
    ):
        numbers: tuple[Any, ...] = (frequencies, lengthscale, variance)
        self.frequencies, self.lengthscale, self.variance = numbers
        K = np.shape(frequencies)[0] if np.ndim(frequencies) else 0
        self.shares = jnp.full(K, 1.0 / max(K, 1)) if shares is None else jnp.asarray(shares)

    def __check_init__(self):
        if self.frequencies.ndim != 2 or not self.frequencies.size:
            raise ValueError(f"RandomFourier: frequencies expects an array [K, D], got shape {self.frequencies.shape}")
        K, D = self.frequencies.shape
        if self.lengthscale.shape not in ((), (D,)) or self.variance.shape != ():
            raise ValueError(
                f"RandomFourier: lengthscale expects a number or one for each of {D} columns, and variance a number, got shapes "
                f"{self.lengthscale.shape} and {self.variance.shape}"
            )
        if self.shares.shape != (K,) or (is_concrete(self.shares) and not bool((np.asarray(self.shares) > 0).all())):
            raise ValueError(f"RandomFourier: shares expects a positive number for each of {K} frequencies")

    @classmethod
    def of(cls, kernel: Kernel, num: int, dimension: int, *, key: PRNGKeyArray) -> "RandomFourier":
        """`num` frequencies from the spectrum of a kernel on inputs of so many columns.

        Known are the spectra of `RBF`, the Matern kernels, `RationalQuadratic`, `SpectralMixture`, `Cosine`, `Constant`, and of
        their sums, products, multiples and restrictions to some columns.
        """
        found = spectrum(kernel, num, dimension, key=key)
        total = jnp.sum(found.variances)
        return cls(found.frequencies, found.lengthscale, total, found.variances / total)

    @property
    def num(self):
        return 2 * len(self.frequencies)

    def values(self, X):
        if X.shape[1] != self.frequencies.shape[1]:
            raise ValueError(f"RandomFourier expects X with {self.frequencies.shape[1]} columns, got {X.shape[1]}")
        angles = matmul(X / self.lengthscale, self.frequencies.T)
        size = jnp.sqrt(self.variance * self.shares)
        return jnp.concatenate([size * jnp.cos(angles), size * jnp.sin(angles)], axis=1)[None]
