"""Kernels of functions on images, made of one function on patches (van der Wilk et al., 2017; paper 004, section 4.1.3).

An image is a row of X, its pixels in the order height, width, channel. Each of the P = (H - h + 1)(W - w + 1) places where a
patch of h x w pixels fits gives one, x^[p], with all channels. A function g on patches, g ~ GP(0, base), responds to each.

Values are many: k(x, x') is a sum over P^2 pairs of patches. They are worked out a few images at a time, and so are their
derivatives, so that memory is bounded whatever the number of images.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from mercer import validation
from mercer.kernels.base import Kernel
from mercer.kernels.maps import Draw, Map
from mercer.kernels.multioutput import MultioutputKernel
from mercer.kernels.stationary import Stationary, squared_distance
from mercer.linalg.products import block_edges, matmul, on_cpu
from mercer.parameters import constant, param, real
from mercer.validation import AnyArray

# How many bytes the values of a block may take: on the CPU they stay in cache (measured), on a GPU they keep it busy.
_BYTES_ON_CPU, _BYTES_ON_GPU = 2**22, 2**29
_GROUPS = 4  # of patches, of which pairs are taken once; more skip little more, and make small products


class _OnPatches:
    """What kernels made of one on the patches of images have in common."""

    base: Kernel
    image_shape: tuple[int, int, int]  # (H, W, C)
    patch_shape: tuple[int, int]  # (h, w)

    @property
    def num_patches(self) -> int:
        """P, the number of patches of an image."""
        (H, W, _), (h, w) = self.image_shape, self.patch_shape
        return (H - h + 1) * (W - w + 1)

    @property
    def patch_dim(self) -> int:
        """The number of values of a patch, h w C."""
        return self.patch_shape[0] * self.patch_shape[1] * self.image_shape[2]

    def patches(self, X: Float[AnyArray, "N D"]) -> Float[Array, "N P E"]:
        """The patches of images: row by row of places, each in the order height, width, channel."""
        return self._patches(validation.inputs(X))

    def _patches(self, X):
        self.check_images(X)
        (H, W, C), (h, w) = self.image_shape, self.patch_shape
        images, rows, columns = X.reshape(-1, H, W, C), H - h + 1, W - w + 1
        pixels = [images[:, i : i + rows, j : j + columns] for i in range(h) for j in range(w)]
        return jnp.stack(pixels, axis=3).reshape(-1, self.num_patches, self.patch_dim)

    def flat_patches(self, X: Float[AnyArray, "N D"]) -> Float[Array, "NP E"]:
        """The patches of all images in one column."""
        return self._patches(X).reshape(-1, self.patch_dim)

    def check_images(self, X):
        H, W, C = self.image_shape
        if X.shape[1] != H * W * C:
            raise ValueError(
                f"X expects {H * W * C} columns, those of images of {H} x {W} pixels with {C} channels, got {X.shape[1]}"
            )


class Convolutional(_OnPatches, Kernel):
    """f(x) = sum_p w_p g(x^[p]): k(x, x') = sum_pp' w_p w_p' base(x^[p], x'^[p']) (paper 004, equation 40).

    With reduce="mean" the sum is divided by P. The `weights` w [P] are 1 where they are left out.
    """

    base: Kernel
    image_shape: tuple[int, int, int] = eqx.field(static=True)
    patch_shape: tuple[int, int] = eqx.field(static=True)
    reduce: Literal["sum", "mean"] = eqx.field(static=True)
    weights: Float[Array, " P"] | None = param(real)

    def __init__(
        self,
        base: Kernel,
        image_shape: Sequence[int],
        patch_shape: Sequence[int],
        reduce: Literal["sum", "mean"] = "sum",
        weights: Float[AnyArray, " P"] | None = None,
    ):
        self.base, self.image_shape, self.patch_shape = _checked("Convolutional", base, image_shape, patch_shape)
        if reduce not in ("sum", "mean"):
            raise ValueError(f'Convolutional: reduce must be "sum" or "mean", got {reduce!r}')
        if weights is not None and jnp.shape(weights) != (self.num_patches,):
            raise ValueError(
                f"Convolutional: weights expects shape ({self.num_patches},), one number for each patch, "
                f"got {jnp.shape(weights)}"
            )
        self.reduce, self.weights = reduce, weights

    def patch_weights(self, dtype: Any) -> Float[Array, " P"]:
        """What the responses are multiplied by before they are added."""
        weights = jnp.ones(self.num_patches, dtype) if self.weights is None else self.weights.astype(dtype)
        return weights / self.num_patches if self.reduce == "mean" else weights

    def _sum(self, values: Float[Array, "NP L"]) -> Float[Array, "N L"]:
        """The weighted sum over the patches of each image, of values at all patches."""
        values = values.reshape(-1, self.num_patches, values.shape[1])
        return jnp.einsum("p,npl->nl", self.patch_weights(values.dtype), values, precision="highest")

    def _matrix(self, X, X2):
        values, num = self.num_patches**2, len(X if X2 is None else X2)
        rows = block_size(values, X.dtype, len(X), axes=2)
        columns = block_size(rows * values, X.dtype, num)
        if rows >= len(X) and columns >= num:
            return self._pairs(X, X2)
        pairs = jax.checkpoint(lambda x, x2: self._pairs(x, x2))
        if X2 is None:
            return map_symmetric_blocks(pairs, X, rows)
        return map_blocks(lambda x: map_blocks(lambda x2: pairs(x, x2).T, X2, columns).T, X, rows)

    def _pairs(self, X, X2):
        """The kernel between a few images and a few others, or themselves."""
        values = base_values(self.base, self.flat_patches(X), None if X2 is None else self.flat_patches(X2))
        return self._sum(self._sum(values).T).T

    def _diagonal(self, X):
        self.check_images(X)
        size = block_size(self.num_patches**2, X.dtype, len(X))
        return _map_with_derivative(lambda kernel, x: kernel._variance(kernel.flat_patches(x[None])), self, X, size)

    def _variance(self, patches: Float[Array, "P E"]) -> Float[Array, ""]:
        """The sum over all pairs of patches of one image, of which each is worked out once."""
        weights, edges, total = self.patch_weights(patches.dtype), block_edges(self.num_patches, _GROUPS), 0.0
        for begin, end in itertools.pairwise(edges):
            if end > begin:
                rows, w = patches[begin:end], weights[begin:end]
                total += matmul(w, matmul(base_values(self.base, rows, None), w))
            if self.num_patches > end > begin:
                total += 2.0 * matmul(w, matmul(base_values(self.base, rows, patches[end:]), weights[end:]))
        return total

    def _features(self, key, num, X):
        return self.of_function(self.base.features(num, key=key), num, X)

    def draw(self, num_features, num_outputs=1, *, key):
        latent = self.base.draw(num_features, num_outputs, key=key)
        return Draw(_OnImages(self, latent, num_features), latent)

    def of_function(self, g: Callable[[Array], Array], width: int, X: Array) -> Array:
        """sum_p w_p g(x^[p]), of a function g on patches that holds `width` values for each."""
        self.check_images(X)
        size = block_size(self.num_patches * width, X.dtype, len(X))
        return map_images(lambda images: self._sum(g(self.flat_patches(images))), X, size)


class ImageToImage(_OnPatches, MultioutputKernel):
    """One output for each patch, f_p(x) = g(x^[p]): the covariance of outputs p and p' is base(x^[p], x'^[p'])."""

    base: Kernel
    image_shape: tuple[int, int, int] = eqx.field(static=True)
    patch_shape: tuple[int, int] = eqx.field(static=True)

    def __init__(self, base: Kernel, image_shape: Sequence[int], patch_shape: Sequence[int]):
        self.base, self.image_shape, self.patch_shape = _checked("ImageToImage", base, image_shape, patch_shape)

    @property
    def num_outputs(self):  # type: ignore[override]
        return self.num_patches

    def _full(self, X, X2):
        values = self.base._matrix(self.flat_patches(X), None if X2 is None else self.flat_patches(X2))
        P = self.num_patches
        return values.reshape(len(X), P, -1, P)

    def _inputs(self, X, X2):
        patches = self._patches(X).swapaxes(0, 1)
        if X2 is None:
            return jax.vmap(lambda x: self.base._matrix(x, None))(patches)
        return jax.vmap(self.base._matrix)(patches, self._patches(X2).swapaxes(0, 1))

    def _outputs(self, X):
        return jax.vmap(lambda x: self.base._matrix(x, None))(self._patches(X))

    def _diagonal(self, X):
        return self.base._diagonal(self.flat_patches(X)).reshape(len(X), self.num_patches)

    def _between(self, X, p, X2, p2):
        first, second = self._patches(X), self._patches(X2)
        return self.base._matrix(first[jnp.arange(len(X)), p], second[jnp.arange(len(X2)), p2])

    def draw(self, num_features, *, key):
        latent = self.base.draw(num_features, key=key)
        return Draw(_OnImages(self, latent, num_features), latent)

    def of_function(self, g: Callable[[Array], Array], width: int, X: Array) -> Array:
        """g(x^[p]) for each patch, of a function g on patches that holds `width` values for each."""
        self.check_images(X)
        size = block_size(self.num_patches * width, X.dtype, len(X))
        return map_images(lambda images: g(self.flat_patches(images)).reshape(len(images), -1), X, size)


class _OnImages(Map):
    """A function of images, from one of patches."""

    kernel: Any = constant()
    of_patches: Draw = constant()
    width: int = eqx.field(static=True)

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        return self.kernel.of_function(self.of_patches, self.width, X)


def _checked(name: str, base: Kernel, image_shape: Sequence[int], patch_shape: Sequence[int]):
    """The base, the shape (H, W, C) of images and that (h, w) of patches, if they make sense."""
    if not isinstance(base, Kernel):
        raise ValueError(f"{name}: base expects a kernel of one output, got {type(base).__name__}")
    image = checked_sizes(name, "image_shape", image_shape, "(H, W) or (H, W, C)", (2, 3))
    patch = checked_sizes(name, "patch_shape", patch_shape, "(h, w)", (2,))
    if patch[0] > image[0] or patch[1] > image[1]:
        raise ValueError(
            f"{name}: patch_shape expects a patch that fits into images of {image[:2]} pixels, got {patch}"
        )
    return base, (*image, 1) if len(image) == 2 else image, patch


def checked_sizes(
    name: str, argument: str, shape: Sequence[int], expected: str, lengths: tuple[int, ...]
) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, Sequence | np.ndarray) else ()
    integers = all(isinstance(size, int | np.integer) and not isinstance(size, bool) and size > 0 for size in sizes)
    if len(sizes) not in lengths or not integers:
        raise ValueError(f"{name}: {argument} expects positive integers {expected}, got {shape!r}")
    return tuple(int(size) for size in sizes)


def base_values(base: Kernel, A: Float[Array, "N E"], B: Float[Array, "N2 E"] | None) -> Float[Array, "N N2"]:
    """The base between patches; B = None stands for A itself."""
    if not isinstance(base, Stationary) or base.lengthscale.ndim or type(base)._matrix is not Stationary._matrix:
        return base._matrix(A, B)
    # With one lengthscale its derivative needs no product, if it is taken after the distances of the pixels.
    r2 = squared_distance(A, A if B is None else B, jnp.ones(A.shape[1], A.dtype))
    if B is None:
        r2 = jnp.where(jnp.eye(len(A), dtype=bool), 0.0, r2)
    return base.of_squared_distance(r2 * base.lengthscale**-2)


def block_size(values: int, dtype: Any, num: int, axes: int = 1) -> int:
    """How many of `num` images are worked on at a time where each takes so many values (with two axes: each pair)."""
    most = (_BYTES_ON_CPU if on_cpu() else _BYTES_ON_GPU) / (values * jnp.dtype(dtype).itemsize)
    size = max(1, int(most ** (1 / axes)))
    return -(-num // max(1, -(-num // size)))


def _blocks(X: Float[Array, "N D"], size: int) -> Float[Array, "B S D"]:
    """X in blocks of `size` rows, the last one filled up with repeated rows."""
    num = -(-len(X) // size)
    return X[np.minimum(np.arange(num * size), len(X) - 1)].reshape(num, size, -1)


def map_images(f: Callable[[Array], Array], X: Float[Array, "N D"], size: int) -> Array:
    """f of the rows of X, `size` at a time; if that is not all, nothing of f's work is kept for its derivative."""
    return map_blocks(f if size >= len(X) else jax.checkpoint(f), X, size)


def map_blocks(f: Callable[[Array], Array], X: Float[Array, "N D"], size: int) -> Array:
    if size >= len(X):
        return f(X)
    values = jax.lax.map(f, _blocks(X, size))
    return values.reshape(-1, *values.shape[2:])[: len(X)]


def map_symmetric_blocks(
    pairs: Callable[[Array, Array | None], Array], X: Float[Array, "N D"], size: int
) -> Float[Array, "N N"]:
    """The matrix of `pairs` of rows of X, in blocks of which those above the diagonal are worked out, and mirrored."""
    blocks = _blocks(X, size)
    num, each = len(blocks), np.arange(len(blocks))
    i, j = np.triu_indices(num, 1)
    own = jax.lax.map(lambda x: pairs(x, None), blocks)
    cross = jax.lax.map(lambda ij: pairs(blocks[ij[0]], blocks[ij[1]]), (i, j))
    values = jnp.zeros((num, size, num, size), X.dtype)
    values = values.at[each, :, each].set(own).at[i, :, j].set(cross).at[j, :, i].set(cross.mT)
    return values.reshape(num * size, num * size)[: len(X), : len(X)]


def _map_with_derivative(value: Callable, kernel: Kernel, X: Float[Array, "N D"], size: int) -> Float[Array, " N"]:
    """value(kernel, x) of each row, `size` at a time, where its derivative is needed together with it.

    Each is one number that depends on few, so that its derivative can be taken at once, while what it needs is at hand, and
    kept until it is known what to multiply it by. Else it would all be worked out a second time.
    """
    params, rest = eqx.partition(kernel, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(params)

    def over_rows(f, X):
        return jax.vmap(f)(X) if size >= len(X) else jax.lax.map(f, X, batch_size=size if size > 1 else None)

    def one(x, *leaves):
        return value(eqx.combine(jax.tree.unflatten(structure, leaves), rest), x)

    @jax.custom_jvp
    def every(X, *leaves):
        return over_rows(lambda x: one(x, *leaves), X)

    def derivative(primals, tangents):
        X, *leaves = primals
        moved = tuple(i for i, tangent in enumerate(tangents) if not isinstance(tangent, SymbolicZero))
        values, slopes = over_rows(lambda x: jax.value_and_grad(one, moved)(x, *leaves), X)
        change = jnp.zeros_like(values)
        for i, slope in zip(moved, slopes, strict=True):
            change += jnp.sum((slope * tangents[i]).reshape(len(X), -1), axis=1)
        return values, change

    every.defjvp(derivative, symbolic_zeros=True)
    return every(X, *leaves)
