"""Covariances V = R R^T of the weights of a network, one for each of L groups of F weights, in several structures.

Only a root R is ever multiplied by: features times R have the covariance of the network as their inner products.
"""

import abc
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.features.base import num_weights
from mercer.linalg import matmul, safe_cholesky
from mercer.parameters import Module, constant, lower_triangular, param, positive, real, unit_interval


class WeightCovariance(Module):
    """V of each group. A new structure says its root."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """(L, F)."""

    @abc.abstractmethod
    def times_root(self, phi: Float[Array, "#L N F"]) -> Float[Array, "L N R"]:
        """phi R of each group. Where there is one group, phi may have any number of slices."""

    @abc.abstractmethod
    def colour(self, *, key: PRNGKeyArray) -> Float[Array, "L F"]:
        """A draw from N(0, V)."""

    @abc.abstractmethod
    def diagonal(self) -> Float[Array, "L F"]:
        """The variance of each weight."""

    @abc.abstractmethod
    def log_determinant(self) -> Float[Array, ""]:
        """The sum of log det V over groups."""


class FullCovariance(WeightCovariance):
    """V = L L^T without structure."""

    root: Float[Array, "L F F"] = param(lower_triangular)

    @classmethod
    def isotropic(cls, scale: Array, groups: int, blocks: tuple[tuple[int, ...], ...], dtype: Any) -> "FullCovariance":
        """scale^2 I."""
        size = num_weights(blocks)
        return cls(jnp.broadcast_to(scale * jnp.eye(size, dtype=dtype), (groups, size, size)))

    @property
    def shape(self):
        return self.root.shape[:2]

    def times_root(self, phi):
        return matmul(phi, self.root)

    def colour(self, *, key):
        z = jax.random.normal(key, self.root.shape[:2], self.root.dtype)
        return matmul(self.root, z[..., None])[..., 0]

    def diagonal(self):
        return jnp.sum(self.root**2, axis=-1)

    def log_determinant(self):
        return 2.0 * jnp.sum(jnp.log(jnp.abs(jnp.diagonal(self.root, axis1=-2, axis2=-1))))


class DiagonalCovariance(WeightCovariance):
    """V = diag(scale^2)."""

    scale: Float[Array, "L F"] = param(positive)

    @classmethod
    def isotropic(cls, scale, groups, blocks, dtype):
        """scale^2 I."""
        size = num_weights(blocks)
        return cls(jnp.broadcast_to(jnp.asarray(scale, dtype), (groups, size)))

    @property
    def shape(self):
        return self.scale.shape

    def times_root(self, phi):
        return phi * self.scale[:, None]

    def colour(self, *, key):
        return self.scale * jax.random.normal(key, self.scale.shape, self.scale.dtype)

    def diagonal(self):
        return self.scale**2

    def log_determinant(self):
        return 2.0 * jnp.sum(jnp.log(self.scale))


class LowRankCovariance(WeightCovariance):
    """V = diag(scale^2) + U U^T, U with few columns."""

    scale: Float[Array, "L F"] = param(positive)
    factors: Float[Array, "L F R"] = param(real)

    def __check_init__(self):
        if self.factors.shape[:2] != self.scale.shape or self.factors.ndim != 3:
            raise ValueError(
                f"LowRankCovariance: factors expects shape {self.scale.shape} and a rank, got {self.factors.shape}"
            )

    @classmethod
    def isotropic(cls, scale, groups, blocks, dtype, rank: int | None = None):
        """scale^2 I, but for small random factors: at 0 they would have no gradient."""
        size = num_weights(blocks)
        rank = min(10, size) if rank is None else rank
        if not 1 <= rank <= size:
            raise ValueError(f"rank must be between 1 and the number of weights, {size}, got {rank!r}")
        factors = 1e-3 * scale * jax.random.normal(jax.random.key(0), (groups, size, rank), dtype)
        return cls(jnp.broadcast_to(jnp.asarray(scale, dtype), (groups, size)), factors)

    @property
    def shape(self):
        return self.scale.shape

    def times_root(self, phi):
        scaled, projected = phi * self.scale[:, None], matmul(phi, self.factors)
        return jnp.concatenate([scaled, projected], axis=-1)

    def colour(self, *, key):
        own, shared = jax.random.split(key)
        z = jax.random.normal(shared, (len(self.scale), self.factors.shape[-1], 1), self.scale.dtype)
        return self.scale * jax.random.normal(own, self.scale.shape, self.scale.dtype) + matmul(self.factors, z)[..., 0]

    def diagonal(self):
        return self.scale**2 + jnp.sum(self.factors**2, axis=-1)

    def log_determinant(self):
        # log det D + log det (I + U^T D^-1 U)
        scaled = self.factors / self.scale[..., None]
        inner = jnp.eye(self.factors.shape[-1], dtype=scaled.dtype) + matmul(scaled.mT, scaled)
        root = safe_cholesky(inner, always=False).factor
        return 2.0 * (jnp.sum(jnp.log(self.scale)) + jnp.sum(jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1))))


class ReducedCovariance(WeightCovariance):
    """V = scale^2 (I - U diag(reduction) U^T), U with few orthonormal columns: known along these, as the prior elsewhere."""

    scale: Float[Array, " L"] = param(positive)
    U: Float[Array, "L F R"] = constant()
    reduction: Float[Array, "L R"] = param(unit_interval)

    @property
    def shape(self):
        return self.U.shape[:2]

    def times_root(self, phi):
        # The symmetric root: scale (I - U diag(1 - sqrt(1 - reduction)) U^T)
        along = matmul(phi, self.U) * (1.0 - jnp.sqrt(1.0 - self.reduction))[:, None]
        return self.scale[:, None, None] * (phi - matmul(along, self.U.mT))

    def colour(self, *, key):
        return self.times_root(jax.random.normal(key, self.shape, self.U.dtype)[:, None])[:, 0]

    def diagonal(self):
        return self.scale[:, None] ** 2 * (1.0 - jnp.sum(self.U**2 * self.reduction[:, None], axis=-1))

    def log_determinant(self):
        return 2.0 * self.shape[1] * jnp.sum(jnp.log(self.scale)) + jnp.sum(jnp.log1p(-self.reduction))


class SharedCovariance(WeightCovariance):
    """V = U diag(variances) U^T, with an orthogonal U that all groups share: room for thousands of them."""

    U: Float[Array, "F F"] = constant()
    variances: Float[Array, "L F"] = param(positive)

    @property
    def shape(self):
        return self.variances.shape

    def times_root(self, phi):
        return matmul(phi, self.U) * jnp.sqrt(self.variances)[:, None]

    def colour(self, *, key):
        z = jax.random.normal(key, self.shape, self.variances.dtype)
        return matmul(jnp.sqrt(self.variances) * z, self.U.T)

    def diagonal(self):
        return matmul(self.variances, (self.U**2).T)

    def log_determinant(self):
        return jnp.sum(jnp.log(self.variances))


class KroneckerBlock(Module):
    """A x B of one array of weights, by lower triangular roots of A, between its rows, and B, between its columns."""

    left: Float[Array, "L a a"] = param(lower_triangular)
    right: Float[Array, "L b b"] = param(lower_triangular)

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.left.shape[-1] * self.right.shape[-1]

    def matrices(self, rows: Float[Array, "... F"]) -> Float[Array, "... a b"]:
        """Rows of these weights in the form of the array."""
        return rows.reshape(*rows.shape[:-1], self.left.shape[-1], self.right.shape[-1])


class KroneckerCovariance(WeightCovariance):
    """V = A x B of each array of weights, which are independent of each other; all axes but the first are columns."""

    blocks: tuple[KroneckerBlock, ...]

    def __init__(self, blocks: Sequence[KroneckerBlock]):
        self.blocks = tuple(blocks)

    @classmethod
    def isotropic(cls, scale, groups, blocks, dtype):
        """scale^2 I."""

        def identity(size, scale):
            return jnp.broadcast_to(scale * jnp.eye(size, dtype=dtype), (groups, size, size))

        sizes = [_as_matrix(shape) for shape in blocks]
        return cls([KroneckerBlock(identity(a, scale), identity(b, 1.0)) for a, b in sizes])

    @property
    def shape(self):
        return len(self.blocks[0].left), sum(block.size for block in self.blocks)

    def _of_blocks(self, rows: Float[Array, "... F"], function: Callable[[KroneckerBlock, Array], Array]) -> Array:
        """function(block, array), with its values flat again and side by side."""
        edges = list(itertools.accumulate((block.size for block in self.blocks), initial=0))
        parts = [rows[..., start : start + block.size] for start, block in zip(edges, self.blocks, strict=False)]
        found = [function(block, block.matrices(part)) for block, part in zip(self.blocks, parts, strict=True)]
        return jnp.concatenate([array.reshape(*array.shape[:-2], -1) for array in found], axis=-1)

    def times_root(self, phi):
        return self._of_blocks(phi, lambda block, M: matmul(matmul(block.left.mT[:, None], M), block.right[:, None]))

    def colour(self, *, key):
        z = jax.random.normal(key, self.shape, self.blocks[0].left.dtype)
        return self._of_blocks(z, lambda block, M: matmul(matmul(block.left, M), block.right.mT))

    def diagonal(self):
        parts = [
            jnp.sum(block.left**2, axis=-1)[:, :, None] * jnp.sum(block.right**2, axis=-1)[:, None]
            for block in self.blocks
        ]
        return jnp.concatenate([part.reshape(len(part), -1) for part in parts], axis=-1)

    def log_determinant(self):
        def half(root):
            return jnp.sum(jnp.log(jnp.abs(jnp.diagonal(root, axis1=-2, axis2=-1))))

        return 2.0 * sum(
            half(block.left) * block.right.shape[-1] + half(block.right) * block.left.shape[-1] for block in self.blocks
        )


def _as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of an array of weights."""
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


STRUCTURES: dict[str, Any] = {
    "full": FullCovariance,
    "diag": DiagonalCovariance,
    "low-rank": LowRankCovariance,
    "kronecker": KroneckerCovariance,
}


def isotropic(
    structure: str, scale: Array, groups: int, blocks: tuple[tuple[int, ...], ...], dtype: Any, rank: int | None
) -> WeightCovariance:
    """scale^2 I in a structure, by its name."""
    if structure not in STRUCTURES:
        raise ValueError(f"covariance expects one of {tuple(STRUCTURES)}, got {structure!r}")
    if rank is not None and structure != "low-rank":
        raise ValueError(f'rank is for covariance="low-rank", got covariance={structure!r}')
    more = {} if rank is None else {"rank": rank}
    return STRUCTURES[structure].isotropic(scale, groups, blocks, dtype, **more)
