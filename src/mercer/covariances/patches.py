"""Inducing patches and kernels on images: covariances with g, the function on patches that they are made of.

With f(x) = sum_p w_p g(x^[p]) and u = g(z), Kuu is the base kernel between patches and Kuf its weighted sum over the patches of
an image (paper 004, section 6.3); where all responses are outputs, f_p(x) = g(x^[p]), there is no sum.
"""

from jaxtyping import Array

from mercer import validation
from mercer.covariances.dispatch import Kuf, Kuu, Kuv
from mercer.inducing.patches import Patches
from mercer.kernels.images import Convolutional, ImageToImage, base_values, block_size, map_images
from mercer.linalg.operators import PSD, Dense
from mercer.linalg.products import matmul
from mercer.parameters import cast


@Kuu.dispatch
def _(inducing: Patches, kernel: Convolutional) -> PSD:
    return Dense(kernel.base(_patches(inducing, kernel)))


@Kuu.dispatch
def _(inducing: Patches, kernel: ImageToImage) -> PSD:
    return Dense(kernel.base(_patches(inducing, kernel)))


@Kuv.dispatch
def _(first: Patches, kernel: Convolutional, second: Patches) -> Array:
    return kernel.base(_patches(first, kernel), _patches(second, kernel))


@Kuf.dispatch
def _(inducing: Patches, kernel: Convolutional, X) -> Array:
    X, Z = _images(X, kernel), _patches(inducing, kernel).astype(X.dtype)
    kernel = cast(kernel, X.dtype)

    def block(images):
        values = base_values(kernel.base, Z, kernel.flat_patches(images))
        return matmul(values.reshape(len(Z), len(images), -1), kernel.patch_weights(X.dtype)).T

    return map_images(block, X, block_size(len(Z) * kernel.num_patches, X.dtype, len(X))).T


@Kuf.dispatch
def _(inducing: Patches, kernel: ImageToImage, X) -> Array:
    X, Z = _images(X, kernel), _patches(inducing, kernel).astype(X.dtype)
    values = base_values(cast(kernel.base, X.dtype), Z, kernel.flat_patches(X))
    return values.reshape(1, len(Z), len(X), kernel.num_patches)


def _images(X, kernel: Convolutional | ImageToImage) -> Array:
    X = validation.inputs(X)
    kernel.check_images(X)
    return X


def _patches(inducing: Patches, kernel: Convolutional | ImageToImage) -> Array:
    """The patches Z, if they are of the size that the kernel cuts images into."""
    if inducing.Z.shape[-1] != kernel.patch_dim:
        (h, w), C = kernel.patch_shape, kernel.image_shape[2]
        raise ValueError(
            f"Patches: Z expects {kernel.patch_dim} columns, those of patches of {h} x {w} pixels with {C} channels, "
            f"got {inducing.Z.shape[-1]}"
        )
    return inducing.Z
