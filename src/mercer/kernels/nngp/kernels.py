"""Kernels of infinitely wide neural networks: of the function at initialisation, and of its training by gradient descent.

A network whose layers have infinitely many units is a Gaussian process (Neal, 1996; Lee et al., 2018; with filters Novak et al.,
2019; as priors for images paper 000, section 5.1.1). Its kernel comes about layer by layer.

Values are many where there are pixels: H W for each pair of images, or (H W)^2 where the network averages over pixels. They are
worked out a few images at a time, and so are their derivatives, so that memory is bounded whatever the number of images.
"""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer import validation
from mercer.kernels.base import Kernel
from mercer.kernels.images import block_size, checked_sizes, map_blocks, map_images, map_symmetric_blocks
from mercer.kernels.nngp.layers import (
    Layer,
    checked_layers,
    every_layer,
    pixels_after,
    through,
)
from mercer.kernels.nngp.moments import Moments, moments_alone, moments_of_inputs
from mercer.validation import AnyArray


class _Wide(Kernel):
    """What kernels of infinitely wide networks have in common."""

    layers: eqx.AbstractVar[tuple[Layer, ...]]
    image_shape: eqx.AbstractVar[tuple[int, int, int] | None]
    _tangent: ClassVar[bool]

    @abc.abstractmethod
    def _value(self, moments: Moments) -> Array:
        """What the kernel is of the moments of the last layer."""

    def __call__(
        self, X: Float[AnyArray, "N *shape"], X2: Float[AnyArray, "N2 ..."] | None = None
    ) -> Float[Array, "N N2"]:
        """The matrix of k(x, x'), [N, N2]; of rows [N, D] or images [N, H, W, C]. With X2 left out, [N, N]."""
        kernel, X, X2 = self._of_rows(X, X2)
        return Kernel.__call__(kernel, X, X2)

    def diag(self, X: Float[AnyArray, "N *shape"]) -> Float[Array, " N"]:
        """The variances k(x, x), [N]; of rows [N, D] or images [N, H, W, C]."""
        kernel, X, _ = self._of_rows(X, None)
        return Kernel.diag(kernel, X)

    def _of_rows(self, X: Any, X2: Any) -> tuple["_Wide", Array, Array | None]:
        """Images as rows, and the kernel that takes rows for such images."""
        kernel, rows = self, []
        for name, images in (("X", X), ("X2", X2)):
            if images is not None and jnp.ndim(images) == 4:
                images = validation.floating(images, name)
                shape: Any = images.shape[1:]
                if kernel.image_shape not in (None, shape):
                    raise ValueError(f"{name} expects images of shape {kernel.image_shape}, got {shape}")
                if kernel.image_shape is None:
                    kernel = type(self)(self.layers, shape)
                images = images.reshape(len(images), shape[0] * shape[1] * shape[2])
            rows.append(images)
        return kernel, rows[0], rows[1]

    def _matrix(self, X, X2):
        self._check(X)
        (pair, alone), num = self._num_values(), len(X if X2 is None else X2)
        rows = min(block_size(pair, X.dtype, len(X), axes=2), block_size(alone, X.dtype, len(X)))
        return _matrix(self, X, X2, rows, block_size(max(rows * pair, alone), X.dtype, num))

    def _diagonal(self, X):
        self._check(X)
        return _diagonal(self, X, block_size(max(self._num_values()), X.dtype, len(X)))

    def _check(self, X):
        if self.image_shape is None:
            pixels_after(self.layers, None)
            return
        H, W, C = self.image_shape
        if X.shape[1] != H * W * C:
            raise ValueError(
                f"X expects {H * W * C} columns, those of images of {H} x {W} pixels with {C} channels, got {X.shape[1]}"
            )

    def _between(self, X: Float[Array, "N D"], X2: Float[Array, "N2 D"] | None) -> Float[Array, "N N2"]:
        """The kernel between a few inputs and a few others, or themselves."""
        x = self._images(X)
        start = moments_of_inputs(
            x,
            x if X2 is None else self._images(X2),
            all_pairs=self._pools(),
            alone_too=self._activates_pooled(),
            tangent=self._tangent,
        )
        return self._value(through(self.layers, start))

    def _alone(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        start = moments_alone(self._images(X), all_pairs=self._pools(), tangent=self._tangent)
        return self._value(through(self.layers, start))

    def _images(self, X):
        return X if self.image_shape is None else X.reshape(len(X), *self.image_shape)

    def _pools(self) -> bool:
        """Whether covariances of different pixels count."""
        return self.image_shape is not None and any(layer._pools for layer in self.layers)

    def _activates_pooled(self) -> bool:
        """Whether variances are needed after covariances of different pixels were."""
        pools = [i for i, layer in enumerate(self.layers) if layer._pools]
        return any(layer.activates for layer in every_layer(self.layers[max(pools, default=0) :]))

    def _num_values(self) -> tuple[int, int]:
        """How many values there are at a time for each pair of inputs, and for each input alone."""
        pixels = 1 if self.image_shape is None else self.image_shape[0] * self.image_shape[1]
        points = max(layer._num_values() for layer in every_layer(self.layers))
        pair = pixels**2 if self._pools() else pixels
        return pair, max(pair if self._activates_pooled() else pixels, pixels * points)


# What is compiled is kept for each network and shape, also where a kernel is called outside of compiled code.


@eqx.filter_jit
def _matrix(kernel: _Wide, X: Array, X2: Array | None, rows: int, columns: int) -> Array:
    """The kernel, `rows` of X and `columns` of X2 at a time."""
    if rows >= len(X) and columns >= len(X if X2 is None else X2):
        return kernel._between(X, X2)
    between = jax.checkpoint(lambda x, x2: kernel._between(x, x2))
    if X2 is None:
        return map_symmetric_blocks(between, X, rows)
    return map_blocks(lambda x: map_blocks(lambda x2: between(x, x2).T, X2, columns).T, X, rows)


@eqx.filter_jit
def _diagonal(kernel: _Wide, X: Array, rows: int) -> Array:
    return map_images(lambda x: kernel._alone(x), X, rows)


def _image_shape(name: str, layers: tuple[Layer, ...], image_shape: Sequence[int] | None) -> tuple[int, ...] | None:
    """The shape (H, W, C) of images, if the layers take such."""
    if image_shape is None:
        return None
    shape = checked_sizes(name, "image_shape", image_shape, "(H, W, C)", (3,))
    if (left := pixels_after(layers, (shape[0], shape[1]))) is not None:
        raise ValueError(
            f"{name}: layers expects to end with rows of features, but {left[0]} x {left[1]} pixels are left: "
            "add Flatten() or GlobalAveragePool()"
        )
    return shape


class NNGP(_Wide):
    """K of the last layer: the covariance of a unit of a network of infinite width, over its random weights.

    It begins with x . x' / D for D features (for images x_i . x'_j / C between pixels i and j, with C channels), and each of the
    `layers` says what it makes of it. The kernel is that of the outputs of the last one: of an activation, if that is an
    activation. Inputs are rows [N, D], or images: arrays [N, H, W, C], or rows of them with `image_shape` = (H, W, C).
    """

    layers: tuple[Layer, ...]
    image_shape: tuple[int, int, int] | None = eqx.field(static=True)
    _tangent: ClassVar[bool] = False

    def __init__(self, layers: Sequence[Layer], image_shape: Sequence[int] | None = None):
        self.layers = checked_layers("NNGP", layers)
        self.image_shape = _image_shape("NNGP", self.layers, image_shape)

    def _value(self, moments):
        return moments.K


class NTK(_Wide):
    """theta of the last layer: E of the product of the gradients of a unit at x and x' in all weights (Jacot et al., 2018).

    A network of infinite width that is trained by gradient descent moves as regression with this kernel does. Weights are
    weight_std w / sqrt(fan-in) and biases bias_std b, in which w and b are trained, N(0, 1) at first. Theta begins with 0;
    `Dense` and `Conv` add their K to it. Inputs are those of `NNGP`.
    """

    layers: tuple[Layer, ...]
    image_shape: tuple[int, int, int] | None = eqx.field(static=True)
    _tangent: ClassVar[bool] = True

    def __init__(self, layers: Sequence[Layer], image_shape: Sequence[int] | None = None):
        self.layers = checked_layers("NTK", layers)
        self.image_shape = _image_shape("NTK", self.layers, image_shape)

    def __check_init__(self):
        for layer in every_layer(self.layers):
            layer.check_derivative()

    def _value(self, moments):
        return moments.theta
