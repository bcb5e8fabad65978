"""Layers of infinitely many units: what each does to the second moments K of the units before it, and to the tangent kernel.

Weights are independent N(0, weight_std^2 / fan-in) and biases N(0, bias_std^2). Given the layer before, a unit is a sum of many
independent terms, and so Gaussian: `Dense` (Neal, 1996; Lee et al., 2018) and `Conv` (Novak et al., 2019) average K, an
activation takes an expectation over two Gaussian numbers. Theta, the tangent kernel (Jacot et al., 2018), is E of the product of
the gradients in all weights w ~ N(0, 1), where the layer has weight_std w / sqrt(fan-in).
"""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mercer.kernels.nngp.moments import Moments
from mercer.parameters import Module, is_concrete, param, positive
from mercer.validation import OneOrMany

Pixels = tuple[int, int] | None  # (H, W); None for rows of features


class Layer(Module):
    """A layer of a network. New activations are subclasses of `Activation`."""

    activates: ClassVar[bool] = False  # whether it needs variances
    _pools: ClassVar[bool] = False  # whether it needs covariances of different pixels
    _has_weights: ClassVar[bool] = False

    @abc.abstractmethod
    def _apply(self, moments: Moments) -> Moments:
        """The moments of the outputs, from those of the inputs."""

    def _pixels(self, pixels: Pixels) -> Pixels:
        """The pixels of the outputs; a ValueError where the layer cannot have such inputs."""
        return pixels

    def _inside(self) -> tuple["Layer", ...]:
        """The layers inside of this one."""
        return ()

    def _num_values(self) -> int:
        """How many values there are at a time for each input alone."""
        return 1

    def check_derivative(self) -> None:
        """Refuses a layer without the derivatives that a tangent kernel needs."""


def _linear(
    moments: Moments,
    average: Callable[[Array, int], Array],
    bias: Array | None = None,
    *,
    trained: bool,
    mean: Callable[[Array], Array] | None = None,
) -> Moments:
    """The moments of a linear map: K -> average(K) + bias^2, theta -> average(theta), plus the new K if it has weights.

    A map with weights has outputs of mean 0, one without those that `mean` makes.
    """
    rows, columns = moments.of_each(lambda each: _linear(each, average, bias, trained=trained, mean=mean))
    K, theta, before = average(moments.K, moments.pixel_axes), moments.theta, moments.mean
    if bias is not None:
        K = K + bias**2
    if theta is not None:
        theta = average(theta, moments.pixel_axes)
        theta = theta + K if trained else theta
    after = None if before is None or mean is None else lambda: mean(before())
    return Moments(K, moments.alone, theta, after, rows, columns)


class _Weighted(Layer):
    """A layer with weights and, if bias_std is not 0, biases."""

    weight_std: eqx.AbstractVar[Array]
    bias_std: eqx.AbstractVar[Array | None]
    _has_weights: ClassVar[bool] = True

    def __check_init__(self):
        for name in ("weight_std", "bias_std"):
            if (shape := jnp.shape(getattr(self, name) if getattr(self, name) is not None else 0.0)) != ():
                raise ValueError(f"{type(self).__name__}: {name} expects a number, got shape {shape}")


def _bias(bias_std: Any) -> Any:
    """A bias of standard deviation 0 is none."""
    known = isinstance(bias_std, int | float) or is_concrete(bias_std)
    return None if known and np.ndim(bias_std) == 0 and np.asarray(bias_std) == 0.0 else bias_std


class Dense(_Weighted):
    """W f + b: K -> weight_std^2 K + bias_std^2, theta -> the new K + weight_std^2 theta.

    On images it acts on the channels of each pixel.
    """

    weight_std: Array = param(positive)
    bias_std: Array | None = param(positive)

    def __init__(self, weight_std: OneOrMany = 1.0, bias_std: OneOrMany | None = 0.0):
        self.weight_std, self.bias_std = weight_std, _bias(bias_std)

    def _apply(self, moments):
        return _linear(moments, lambda K, _: self.weight_std**2 * K, self.bias_std, trained=True)


class Conv(_Weighted):
    """K_ij -> weight_std^2 mean_o K_{i+o, j+o} + bias_std^2 for pixels i, j, over the offsets o of a filter of h x w pixels.

    Padding with "SAME" adds zeros around the image, so that no pixel is lost but to strides; with "VALID" the filter stays within
    the image (both as in `jax.lax.conv`). Theta goes the same way, and the new K is added (Novak et al., 2019).
    """

    filter_shape: tuple[int, int] = eqx.field(static=True)
    strides: tuple[int, int] = eqx.field(static=True)
    padding: Literal["SAME", "VALID"] = eqx.field(static=True)
    weight_std: Array = param(positive)
    bias_std: Array | None = param(positive)

    def __init__(
        self,
        filter_shape: Sequence[int],
        strides: Sequence[int] = (1, 1),
        padding: Literal["SAME", "VALID"] = "SAME",
        weight_std: OneOrMany = 1.0,
        bias_std: OneOrMany | None = 0.0,
    ):
        self.filter_shape, self.strides = _two("filter_shape", filter_shape), _two("strides", strides)
        if padding not in ("SAME", "VALID"):
            raise ValueError(f'Conv: padding must be "SAME" or "VALID", got {padding!r}')
        self.padding, self.weight_std, self.bias_std = padding, weight_std, _bias(bias_std)

    def _apply(self, moments):
        return _linear(moments, self._average, self.bias_std, trained=True)

    def _average(self, K, pixel_axes):
        # The mean over a filter is one over its rows, then one over its columns; both pixels of a pair move together.
        for axis in (0, 1):
            axes = tuple(range(axis, pixel_axes, 2))
            K = _window_sum(K, axes, self.filter_shape[axis], self.strides[axis], self.padding)
        return self.weight_std**2 / (self.filter_shape[0] * self.filter_shape[1]) * K

    def _pixels(self, pixels):
        if pixels is None:
            raise ValueError(_NO_IMAGES.format("Conv"))
        if self.padding == "VALID" and (self.filter_shape[0] > pixels[0] or self.filter_shape[1] > pixels[1]):
            raise ValueError(
                f'Conv: filter_shape expects a filter that fits into {pixels} pixels with padding "VALID", '
                f"got {self.filter_shape}"
            )
        return tuple(
            -(-size // stride) if self.padding == "SAME" else (size - window) // stride + 1
            for size, window, stride in zip(pixels, self.filter_shape, self.strides, strict=True)
        )


_NO_IMAGES = (
    "{} expects images, got rows of features: give the kernel image_shape=(H, W, C) or arrays [N, H, W, C], "
    "and put it before Flatten() and GlobalAveragePool()"
)


def _two(name: str, sizes: Any) -> tuple[int, int]:
    found = tuple(sizes) if isinstance(sizes, Sequence | np.ndarray) and not isinstance(sizes, str) else ()
    whole = all(isinstance(size, int | np.integer) and not isinstance(size, bool) and size > 0 for size in found)
    if len(found) != 2 or not whole:
        raise ValueError(f"Conv: {name} expects two positive integers, got {sizes!r}")
    return int(found[0]), int(found[1])


def _window_sum(K: Array, axes: tuple[int, ...], window: int, stride: int, padding: str) -> Array:
    """Sums over windows of offsets, the same along all of the `axes`; what is outside counts as 0."""
    ((before, after),) = jax.lax.padtype_to_pads((K.shape[axes[0]],), (window,), (stride,), padding)
    if before or after:
        K = jnp.pad(K, [(before, after) if axis in axes else (0, 0) for axis in range(K.ndim)])
    num = (K.shape[axes[0]] - window) // stride + 1

    def shifted(offset):
        part = K
        for axis in axes:
            part = jax.lax.slice_in_dim(part, offset, offset + (num - 1) * stride + 1, stride, axis)
        return part

    total = shifted(0)
    for offset in range(1, window):
        total = total + shifted(offset)
    return total


class Flatten(Layer):
    """K -> mean_i K_ii: all pixels and channels become features of one row. Rows stay as they are."""

    def _apply(self, moments):
        if moments.pixel_axes == 0:
            return moments
        return _linear(moments, lambda K, _: jnp.mean(K, (0, 1)), trained=False, mean=lambda m: jnp.mean(m, (0, 1)))

    def _pixels(self, pixels):
        return None


class GlobalAveragePool(Layer):
    """K -> mean_ij K_ij over all pairs of pixels: the mean of each channel over the image (Novak et al., 2019)."""

    _pools: ClassVar[bool] = True

    def _apply(self, moments):
        if moments.rows is not None and moments.rows.pixel_axes == 2:  # made without all pairs: not needed from here on
            moments = dataclasses.replace(moments, rows=None, columns=None)
        return _linear(
            moments, lambda K, _: jnp.mean(K, (0, 1, 2, 3)), trained=False, mean=lambda m: jnp.mean(m, (0, 1))
        )

    def _pixels(self, pixels):
        if pixels is None:
            raise ValueError(_NO_IMAGES.format("GlobalAveragePool"))
        return None


class Residual(Layer):
    """f + branch(f): K -> K + K_branch, theta -> theta + theta_branch.

    The weights of the branch, of which there must be some, make it uncorrelated with f, unless both have a mean: if the branch
    ends with an activation, as in E f(x) E branch(x') + E branch(x) E f(x'), which is then added to K.
    """

    layers: tuple[Layer, ...]

    def __init__(self, layers: Sequence[Layer]):
        self.layers = checked_layers("Residual", layers)

    def __check_init__(self):
        if not any(layer._has_weights for layer in self.layers):
            raise ValueError(
                "Residual: layers expects a Dense or a Conv among them (not only inside of another Residual): "
                "without weights the branch is correlated with its input"
            )

    def _inside(self):
        return self.layers

    def _apply(self, moments):
        return self._add(moments, through(self.layers, moments))

    def _add(self, f: Moments, branch: Moments) -> Moments:
        rows = f.rows and branch.rows and self._add(f.rows, branch.rows)
        columns = f.columns and branch.columns and self._add(f.columns, branch.columns)
        K = f.K + branch.K
        theta = None if f.theta is None or branch.theta is None else f.theta + branch.theta
        m, b = f.means(), branch.means()
        if m is not None and b is not None:
            K = K + m[0] * b[1] + b[0] * m[1]
        return Moments(K, f.alone, theta, _sum_of(f.mean, branch.mean), rows, columns)

    def _pixels(self, pixels):
        after = pixels_after(self.layers, pixels)
        if after != pixels:
            raise ValueError(
                f"Residual: layers expects outputs of the shape of the inputs, {_in_words(pixels)}, got {_in_words(after)}"
            )
        return pixels


def _sum_of(first: Callable[[], Array] | None, second: Callable[[], Array] | None) -> Callable[[], Array] | None:
    if first is None or second is None:
        return first or second
    return lambda: first() + second()


def _in_words(pixels: Pixels) -> str:
    return "rows of features" if pixels is None else f"images of {pixels[0]} x {pixels[1]} pixels"


def checked_layers(name: str, layers: Any) -> tuple[Layer, ...]:
    """The layers as a tuple, if they are some."""
    expected = f"{name}: layers expects a list of one or more layers"
    if isinstance(layers, Layer) or not isinstance(layers, Sequence) or len(layers) == 0:
        raise ValueError(f"{expected}, got {layers!r}")
    for i, layer in enumerate(layers):
        if isinstance(layer, list | tuple):
            raise ValueError(
                f"{expected}, got a {type(layer).__name__} at place {i}; put its layers into the same list"
            )
        if isinstance(layer, type) and issubclass(layer, Layer):
            raise ValueError(f"{expected}, got the class {layer.__name__} at place {i}; write {layer.__name__}(...)")
        if not isinstance(layer, Layer):
            raise ValueError(f"{expected}, got {layer!r} at place {i}")
    return tuple(layers)


def through(layers: Sequence[Layer], moments: Moments) -> Moments:
    """The moments after some layers."""
    for layer in layers:
        moments = layer._apply(moments)
    return moments


def pixels_after(layers: Sequence[Layer], pixels: Pixels) -> Pixels:
    """The pixels after some layers; a ValueError where these do not fit."""
    for layer in layers:
        pixels = layer._pixels(pixels)
    return pixels


def every_layer(layers: Sequence[Layer]) -> Iterator[Layer]:
    """The layers, and those inside of them."""
    for layer in layers:
        yield layer
        yield from every_layer(layer._inside())
