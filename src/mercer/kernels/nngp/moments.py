"""What is known of the outputs of a layer of infinitely many units: their second moments at pairs of inputs.

Units (of an image: channels) are exchangeable, so that one number K = E[f(x) f(x')] for each pair of inputs, and of an image for
each pair of its pixels, says everything that the next layer asks. Arrays have the pixels first and the inputs last, so that a
filter moves whole blocks of memory: [N, N2] for rows, [H, W, N, N2] where only pairs of equal pixels are needed, and
[H, W, H, W, N, N2] for all pairs. `moments_of_inputs` begins, with the inputs as the units of layer 0.
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.linalg.products import matmul


@dataclasses.dataclass(frozen=True)
class Moments:
    """K [*pixels, N, N2] between inputs and others; or, where `alone`, [*pixels, N] of each input with itself.

    Those between inputs go with those of each of the two alone, as long as these are needed. `theta` is the tangent kernel, of
    the shape of K; None where it is not asked for. `mean` gives E[f(x)] of inputs alone, and is None where that is 0.
    """

    K: Array
    alone: bool
    theta: Array | None = None
    mean: Callable[[], Array] | None = None
    rows: "Moments | None" = None
    columns: "Moments | None" = None

    @property
    def pixel_axes(self) -> int:
        """0 for rows, 2 for pairs of equal pixels, 4 for all pairs of pixels."""
        return self.K.ndim - (1 if self.alone else 2)

    @property
    def of_variances(self) -> bool:
        """Whether K holds variances only."""
        return self.alone and self.pixel_axes < 4

    def variance(self) -> Array:
        """E[f(x)^2] of inputs alone, [N] or [H, W, N]."""
        return jnp.einsum("ijij...->ij...", self.K) if self.pixel_axes == 4 else self.K

    def variances(self) -> tuple[Array, Array]:
        """E[f(x)^2] and E[f(x')^2], in shapes that go with K."""
        first, second = (self, self) if self.alone else (self.rows, self.columns)
        assert first is not None and second is not None
        return self._beside(first.variance(), second.variance())

    def means(self) -> tuple[Array, Array] | None:
        """E[f(x)] and E[f(x')], in shapes that go with K; None where they are 0."""
        first, second = (self, self) if self.alone else (self.rows, self.columns)
        if first is None or second is None or first.mean is None or second.mean is None:
            return None
        return self._beside(first.mean(), second.mean())

    def _beside(self, first: Array, second: Array) -> tuple[Array, Array]:
        """Values at x and at x', in shapes that go with K."""
        if not self.alone:
            first, second = first[..., :, None], second[..., None, :]
        return (first[:, :, None, None], second[None, None]) if self.pixel_axes == 4 else (first, second)

    def of_each(self, layer: Callable[["Moments"], "Moments"]) -> tuple["Moments | None", "Moments | None"]:
        """What a layer makes of those of the inputs alone."""
        return self.rows and layer(self.rows), self.columns and layer(self.columns)


def moments_of_inputs(
    x: Float[Array, "N *shape"], x2: Float[Array, "N2 *shape"], *, all_pairs: bool, alone_too: bool, tangent: bool
) -> Moments:
    """Those of rows [N, D] or images [N, H, W, C] and others, in which theta is 0.

    With `all_pairs`, at all pairs of pixels; those of each image alone only if `alone_too` says so.
    """
    rows, columns = (moments_alone(a, all_pairs=all_pairs and alone_too, tangent=False) for a in (x, x2))
    if x.ndim == 2:
        K = matmul(x, x2.T)
    else:
        K = jnp.einsum("nijc,mklc->ijklnm" if all_pairs else "nijc,mijc->ijnm", x, x2, precision="highest")
    K = K / x.shape[-1]
    return Moments(K, False, jnp.zeros_like(K) if tangent else None, None, rows, columns)


def moments_alone(x: Float[Array, "N *shape"], *, all_pairs: bool, tangent: bool) -> Moments:
    """Those of each row or image with itself."""
    if all_pairs:
        K = jnp.einsum("nijc,nklc->ijkln", x, x, precision="highest") / x.shape[-1]
    else:
        K = jnp.moveaxis(jnp.mean(x**2, axis=-1), 0, -1)
    return Moments(K, True, jnp.zeros_like(K) if tangent else None, lambda: jnp.moveaxis(jnp.mean(x, axis=-1), 0, -1))
