"""Convolution processes: outputs that are smoothed and delayed copies of latent functions (paper 004, section 4.1.2).

    f_p(x) = sum_l W_pl int N(x - z; delay_pl, diag(width_pl^2)) g_l(z) dz,     g_l ~ GP(0, RBF),

which no mixture of the values g_l(x) can express: f_p may follow f_q by some time. A Gaussian smoothing turns an RBF kernel
of lengthscale s and variance v into one of lengthscale sqrt(s^2 + width^2) and variance v s / sqrt(s^2 + width^2), in each
dimension, and a delay moves its argument. All covariances are such kernels:

    cov(f_p(x), f_q(x')) = sum_l W_pl W_ql k_l smoothed by width_pl and width_ql (x - delay_pl, x' - delay_ql).
"""

from collections.abc import Iterator, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.kernels.maps import Draw, Map
from mercer.kernels.multioutput import LatentKernel, SeparateIndependent
from mercer.kernels.stationary import RBF
from mercer.linalg.products import matmul
from mercer.parameters import constant, param, positive, real
from mercer.validation import AnyArray, OneOrMany


class ConvolutionProcess(LatentKernel):
    """f_p = sum_l W_pl (g_l smoothed by a Gaussian of width_pl and delayed by delay_pl), g_l with RBF kernels.

    W is [P, L]. `widths` (standard deviations) is one number, [P, L], or [P, L, D] with one for each input dimension;
    `delays` is [P, L, D], or [P, L] for inputs of one dimension, by default 0. An output with delay d is seen d later: its
    value at x is that of an output without delay at x - d.
    """

    kernels: tuple[RBF, ...]
    W: Float[Array, "P L"] = param(real)
    widths: Array = param(positive)
    delays: Array = param(real)

    def __init__(
        self,
        kernels: Sequence[RBF],
        W: Float[AnyArray, "P L"] | Sequence[Sequence[float]],
        widths: OneOrMany = 1.0,
        delays: OneOrMany | None = None,
    ):
        self.kernels, self.W, self.widths = tuple(kernels), W, widths
        shape = np.shape(widths)
        num_dims = shape[2:] or (np.shape(self.kernels[0].lengthscale) if self.kernels else ()) or (1,)
        self.delays = jnp.zeros((*np.shape(W), *num_dims)) if delays is None else delays

    def __check_init__(self):
        kinds = [type(kernel).__name__ for kernel in self.kernels]
        if not kinds or not all(isinstance(kernel, RBF) for kernel in self.kernels):
            raise ValueError(f"ConvolutionProcess expects RBF kernels, at least one, got {kinds}")
        shape, L = jnp.shape(self.W), len(self.kernels)
        if len(shape) != 2 or shape[1] != L or shape[0] == 0:
            raise ValueError(
                f"ConvolutionProcess: W expects the shape (P, {L}), one column for each kernel, got {shape}"
            )
        for name, numbers in (("widths", jnp.shape(self.widths)), ("delays", jnp.shape(self.delays))):
            scalar = name == "widths" and numbers == ()
            if not scalar and not (numbers[:2] == shape and len(numbers) in (2, 3)):
                raise ValueError(
                    f"ConvolutionProcess: {name} expects the shape {shape} or {(*shape, 'D')} of outputs, latent functions "
                    f"and input dimensions, got {numbers}"
                )

    @property
    def num_outputs(self):  # type: ignore[override]
        return self.W.shape[0]

    @property
    def latent(self):
        return SeparateIndependent(self.kernels)

    def per_dimension(self, name: str, num_dims: int) -> Float[Array, "P L D"]:
        """A parameter [P, L] or [P, L, D], as [P, L, D]."""
        value = getattr(self, name)
        value = value[..., None] if value.ndim == 2 else value
        if value.ndim == 3 and value.shape[2] not in ((num_dims,) if name == "delays" else (1, num_dims)):
            raise ValueError(
                f"ConvolutionProcess: with X of {num_dims} columns {name} expects the shape {(*self.W.shape, num_dims)}, "
                f"got {value.shape}"
            )
        return jnp.broadcast_to(value, (*self.W.shape, num_dims))

    def shifts(self, num_dims: int) -> Float[Array, "P L D"]:
        """The delays, for inputs of `num_dims` columns."""
        return self.per_dimension("delays", num_dims)

    def smoothed(self, index: int, p: Array | int, num_dims: int, q: Array | int | None = None) -> RBF:
        """The kernel of latent function `index` smoothed as in output p, and again as in output q where that is given."""
        kernel, widths = self.kernels[index], self.per_dimension("widths", num_dims)[:, index]
        before = jnp.broadcast_to(kernel.lengthscale, (num_dims,))
        extra = widths[p] ** 2 + (0.0 if q is None else widths[q] ** 2)
        after = jnp.sqrt(before**2 + extra)
        return RBF(after, kernel.variance * jnp.prod(before / after))

    def _full(self, X, X2):
        X2 = X if X2 is None else X2
        D, outputs = X.shape[1], jnp.arange(self.num_outputs)

        def of_latent(index):
            shifts = self.shifts(D)[:, index]

            def of_pair(p, q):
                kernel = self.smoothed(index, p, D, q)
                return self.W[p, index] * self.W[q, index] * kernel(X - shifts[p], X2 - shifts[q])

            return jax.vmap(jax.vmap(of_pair, (None, 0), 2), (0, None), 1)(outputs, outputs)

        return sum(of_latent(index) for index in range(len(self.kernels)))

    def _inputs(self, X, X2):
        X2 = X if X2 is None else X2
        D, outputs = X.shape[1], jnp.arange(self.num_outputs)

        def of_output(index, p):
            shift = self.shifts(D)[p, index]
            return self.W[p, index] ** 2 * self.smoothed(index, p, D, p)(X - shift, X2 - shift)

        return sum(jax.vmap(lambda p, i=i: of_output(i, p))(outputs) for i in range(len(self.kernels)))

    def _outputs(self, X):
        # The same at all inputs, as the process is stationary.
        origin = jnp.zeros((1, X.shape[1]), X.dtype)
        return jnp.broadcast_to(self._full(origin, None)[0, :, 0], (len(X), self.num_outputs, self.num_outputs))

    def _between(self, X, p, X2, p2):
        D = X.shape[1]
        total = jnp.zeros((len(X), len(X2)), X.dtype)
        for index, kernel in enumerate(self.kernels):
            shifts, widths = self.shifts(D)[:, index], self.per_dimension("widths", D)[:, index]
            before = jnp.broadcast_to(kernel.lengthscale, (D,)) ** 2
            after = before + widths[p][:, None] ** 2 + widths[p2] ** 2  # [N, N2, D]
            r2 = jnp.sum(((X - shifts[p])[:, None] - (X2 - shifts[p2])) ** 2 / after, axis=-1)
            scale = kernel.variance * jnp.sqrt(jnp.prod(before / after, axis=-1))
            total += self.W[p, index][:, None] * self.W[p2, index] * scale * jnp.exp(-0.5 * r2)
        return total

    def draw(self, num_features, *, key):
        latent = _Waves(self, key, num_features)
        return Draw(_Smoothed(latent), latent)


class _Waves(Map):
    """The latent functions as sums of waves a cos(w x + b)."""

    kernel: ConvolutionProcess = constant()
    key: PRNGKeyArray = constant()
    num: int = eqx.field(static=True)

    def waves(self, X: Float[Array, "N D"]) -> Iterator[tuple[Array, Array, Array]]:
        """Frequencies, phases and amplitudes of each latent function."""
        keys = jax.random.split(self.key, (len(self.kernel.kernels), 3))
        for kernel, (key_w, key_b, key_a) in zip(self.kernel.kernels, keys, strict=True):
            w = jax.random.normal(key_w, (self.num, X.shape[1]), X.dtype) / kernel.lengthscale.astype(X.dtype)
            b = jax.random.uniform(key_b, (self.num,), X.dtype, maxval=2.0 * jnp.pi)
            a = jax.random.normal(key_a, (self.num,), X.dtype)
            yield w, b, a * jnp.sqrt(2.0 * kernel.variance.astype(X.dtype) / self.num)

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N L"]:
        return jnp.stack([matmul(jnp.cos(matmul(X, w.T) + b), a) for w, b, a in self.waves(X)], axis=1)


class _Smoothed(Map):
    """The outputs: a wave cos(w x + b), smoothed, is damped by exp(-|w width|^2 / 2)."""

    latent: _Waves = constant()

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        kernel, waves = self.latent.kernel, list(self.latent.waves(X))
        shifts, widths = kernel.shifts(X.shape[1]), kernel.per_dimension("widths", X.shape[1])

        def output(p):
            total = jnp.zeros(len(X), X.dtype)
            for index, (w, b, a) in enumerate(waves):
                damped = a * jnp.exp(-0.5 * jnp.sum((w * widths[p, index]) ** 2, axis=1))
                total += kernel.W[p, index] * matmul(jnp.cos(matmul(X - shifts[p, index], w.T) + b), damped)
            return total.astype(X.dtype)

        return jnp.moveaxis(jax.lax.map(output, jnp.arange(kernel.num_outputs)), 0, 1)
