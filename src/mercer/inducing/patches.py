"""Inducing patches: the variables u are values of the function on patches that a function on images is made of."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from mercer import validation
from mercer.deprecation import key_by_name
from mercer.inducing.base import InducingVariables
from mercer.kernels.images import Convolutional, ImageToImage
from mercer.parameters import is_concrete, param, real
from mercer.validation import AnyArray

_CANDIDATES = 16  # places that are looked at, for each patch that is wanted


class Patches(InducingVariables):
    """u_m = g(z_m), of the patch function g of a `Convolutional` or an `ImageToImage` kernel (paper 004, section 6.3).

    A patch z_m is a row of Z, its pixels in the order height, width, channel.
    """

    Z: Float[Array, "M E"] = param(real)

    def __check_init__(self):
        if is_concrete(self.Z):
            validation.inputs(self.Z, "Z")

    @property
    def num(self):
        return self.Z.shape[0]

    def of_function(self, f):
        latent = getattr(f, "latent", None)
        if latent is None:
            raise ValueError(
                "Patches are values of a function on patches, and the function given has none: it must be a draw of a "
                "Convolutional or an ImageToImage kernel"
            )
        return latent(self.Z)


@key_by_name
def random_patches(
    X: Float[AnyArray, "N D"], kernel: Convolutional | ImageToImage, num: int, *, key: PRNGKeyArray
) -> Float[Array, "M E"]:
    """`num` different patches at random places of the images X, constant ones only if there are not enough others."""
    X = validation.inputs(X)
    kernel.check_images(X)
    (H, W, C), (h, w) = kernel.image_shape, kernel.patch_shape
    images, columns, total = np.asarray(X).reshape(-1, H, W, C), W - w + 1, len(X) * kernel.num_patches
    if not 1 <= num <= total:
        raise ValueError(f"num must be between 1 and the number of patches of X, {total}, got {num}")

    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    count = 0
    while count < total:
        count = min(max(_CANDIDATES * count, _CANDIDATES * num), total)
        image, place = np.divmod(rng.choice(total, count, replace=False), kernel.num_patches)
        rows = (place // columns)[:, None, None] + np.arange(h)[:, None]
        patches = images[image[:, None, None], rows, (place % columns)[:, None, None] + np.arange(w)]
        patches = patches.reshape(count, -1)
        # different ones, in the (random) order in which they came
        patches = patches[np.sort(np.unique(patches, axis=0, return_index=True)[1])]
        is_constant = np.ptp(patches, axis=1) == 0.0
        if num <= np.sum(~is_constant):
            return jnp.asarray(patches[~is_constant][:num])
    if num > len(patches):
        raise ValueError(f"num must be at most the number of different patches of X, {len(patches)}, got {num}")
    return jnp.asarray(patches[np.argsort(is_constant, stable=True)][:num])
