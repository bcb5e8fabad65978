"""A mean that passes the input on, as it is or in fewer or more dimensions.

In a deep process with zero means the layers forget the inputs; with this one a layer begins near the identity, and what it learns
is how to deviate from it (Salimbeni and Deisenroth, 2017, section 3.1).
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer import validation
from mercer.kernels.images import ImageToImage
from mercer.linalg.products import matmul
from mercer.means.base import Mean
from mercer.parameters import constant
from mercer.validation import AnyArray


class Projection(Mean):
    """W^T x for a fixed matrix W [D, P]. `Linear` is the same with weights that are learned, and a bias."""

    W: Float[Array, "D P"] = constant()

    def __init__(self, W: AnyArray):
        self.W = jnp.asarray(W)

    def __check_init__(self):
        shape = jnp.shape(self.W)
        if len(shape) != 2 or 0 in shape:
            raise ValueError(f"Projection: W expects shape [D, P], got {shape}")
        validation.finite(self.W, "Projection: W")

    @classmethod
    def identity(cls, num: int) -> "Projection":
        """x itself, with `num` columns."""
        return cls(np.eye(num))

    @classmethod
    def pca(cls, X: Float[AnyArray, "N D"], num: int) -> "Projection":
        """From D columns to `num`: fewer are the directions in which X varies most, more are x and zeros.

        A direction has unit length, and its largest entry is positive.
        """
        X = np.asarray(validation.inputs(X))
        D = X.shape[1]
        if num < 1:
            raise ValueError(f"Projection.pca: num must be at least 1, got {num}")
        if num >= D:
            return cls(np.eye(D, num))
        apart = X - X.mean(axis=0)
        axes = np.linalg.eigh(apart.T @ apart)[1].T[::-1]  # those of the largest variance first
        largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
        return cls((axes * np.sign(largest))[:num].T)

    @classmethod
    def centres(cls, kernel: ImageToImage) -> "Projection":
        """The pixel in the middle of each patch of an image, the mean of its channels: for layers of `ImageToImage`."""
        (H, W, C), (h, w) = kernel.image_shape, kernel.patch_shape
        rows, columns = np.mgrid[h // 2 : h // 2 + H - h + 1, w // 2 : w // 2 + W - w + 1].reshape(2, -1)
        matrix = np.zeros((H, W, C, kernel.num_patches))
        matrix[rows, columns, :, np.arange(kernel.num_patches)] = 1.0 / C
        return cls(matrix.reshape(H * W * C, -1))

    def _values(self, X):
        if X.shape[1] != len(self.W):
            raise ValueError(
                f"Projection: W of shape {self.W.shape} expects X with {len(self.W)} columns, got {X.shape[1]}"
            )
        return matmul(X, self.W)
