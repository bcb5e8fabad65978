"""Positive semi-definite operators: matrices whose structure survives to the solve.

Each operator K knows a square root R, R R^T = K, through `whiten` (R^-1 x) and `colour` (R z). Everything else follows:
K^-1 = R^-T R^-1, log det K = 2 log |det R|, and R z is a draw from N(0, K). Which root is an operator's own affair: a
triangular one for `Dense`, a low-rank change of a diagonal one for `DiagonalPlusLowRank`.
"""

import abc
import functools
import itertools
import math
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.linalg.cholesky import inverse_factor, safe_cholesky, triangular_inverse
from mercer.linalg.products import matmul
from mercer.parameters import Module, constant


class PSD(Module):
    """A symmetric positive (semi-)definite M x M matrix, applied to columns [M, C]."""

    triangular: ClassVar[bool] = False  # whether R is lower triangular

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """M."""

    @abc.abstractmethod
    def dense(self) -> Float[Array, "M M"]:
        """The matrix itself."""

    @abc.abstractmethod
    def diagonal(self) -> Float[Array, " M"]:
        """Its diagonal."""

    @abc.abstractmethod
    def matmul(self, x: Float[Array, "M C"]) -> Float[Array, "M C"]:
        """K x."""

    @abc.abstractmethod
    def whiten(self, x: Float[Array, "M C"]) -> Float[Array, "M C"]:
        """R^-1 x."""

    @abc.abstractmethod
    def colour(self, z: Float[Array, "M C"]) -> Float[Array, "M C"]:
        """R z."""

    @abc.abstractmethod
    def solve(self, x: Float[Array, "M C"]) -> Float[Array, "M C"]:
        """K^-1 x."""

    @abc.abstractmethod
    def log_determinant(self) -> Float[Array, ""]:
        """log det K."""


class Dense(PSD):
    """A matrix without structure; R is its Cholesky factor, after jitter."""

    triangular = True

    matrix: Float[Array, "M M"] = constant()

    @property
    def size(self):
        return self.matrix.shape[-1]

    def dense(self):
        return self.matrix

    def diagonal(self):
        return jnp.diagonal(self.matrix)

    def matmul(self, x):
        return matmul(self.matrix, x)

    def whiten(self, x):
        return matmul(inverse_factor(self.matrix), x)

    def colour(self, z):
        return matmul(safe_cholesky(self.matrix).factor, z)

    def solve(self, x):
        W = inverse_factor(self.matrix)
        return matmul(W.T, matmul(W, x))

    def log_determinant(self):
        return -2.0 * jnp.sum(jnp.log(jnp.diagonal(inverse_factor(self.matrix))))


class Diagonal(PSD):
    """diag(entries)."""

    triangular = True

    entries: Float[Array, " M"] = constant()

    @property
    def size(self):
        return self.entries.shape[-1]

    def dense(self):
        return jnp.diag(self.entries)

    def diagonal(self):
        return self.entries

    def matmul(self, x):
        return self.entries[:, None] * x

    def whiten(self, x):
        return x / jnp.sqrt(self.entries)[:, None]

    def colour(self, z):
        return jnp.sqrt(self.entries)[:, None] * z

    def solve(self, x):
        return x / self.entries[:, None]

    def log_determinant(self):
        return jnp.sum(jnp.log(self.entries))


class DiagonalPlusLowRank(PSD):
    """diag(entries) + V V^T, with V [M, r].

    With U = D^-1/2 V and the r x r Cholesky factor T T^T = I + U^T U, a root of I + U U^T is I + U (I + T)^-1 U^T, and
    R = D^1/2 times it: O(M r^2) in all, with derivatives that do not mind repeated eigenvalues.
    """

    entries: Float[Array, " M"] = constant()
    V: Float[Array, "M r"] = constant()

    @property
    def size(self):
        return self.entries.shape[-1]

    def dense(self):
        return jnp.diag(self.entries) + matmul(self.V, self.V.T)

    def diagonal(self):
        return self.entries + jnp.sum(self.V**2, axis=1)

    def matmul(self, x):
        return self.entries[:, None] * x + matmul(self.V, matmul(self.V.T, x))

    def _small(self) -> tuple[Float[Array, "M r"], Float[Array, "r r"]]:
        """U and T."""
        U = self.V / jnp.sqrt(self.entries)[:, None]
        return U, safe_cholesky(jnp.eye(U.shape[1], dtype=U.dtype) + matmul(U.T, U), always=False).factor

    def whiten(self, x):
        # (I + U (I + T)^-1 U^T)^-1 = I - U (I + T^T)^-1 T^-1 U^T
        U, T = self._small()
        y = x / jnp.sqrt(self.entries)[:, None]
        inner = matmul(triangular_inverse(T), matmul(U.T, y))
        return y - matmul(U, matmul(_plus_identity_inverse(T).T, inner))

    def colour(self, z):
        U, T = self._small()
        inner = matmul(_plus_identity_inverse(T), matmul(U.T, z))
        return jnp.sqrt(self.entries)[:, None] * (z + matmul(U, inner))

    def solve(self, x):
        # Woodbury: (I + U U^T)^-1 = I - U (T T^T)^-1 U^T
        U, T = self._small()
        y = x / jnp.sqrt(self.entries)[:, None]
        W = triangular_inverse(T)
        y = y - matmul(U, matmul(W.T, matmul(W, matmul(U.T, y))))
        return y / jnp.sqrt(self.entries)[:, None]

    def log_determinant(self):
        return jnp.sum(jnp.log(self.entries)) + 2.0 * jnp.sum(jnp.log(jnp.diagonal(self._small()[1])))


def _plus_identity_inverse(T: Float[Array, "r r"]) -> Float[Array, "r r"]:
    """(I + T)^-1 for a lower triangular T."""
    return triangular_inverse(jnp.eye(len(T), dtype=T.dtype) + T)


class _Composite(PSD):
    """An operator that acts through others, in the same way for each of its four actions on columns."""

    @abc.abstractmethod
    def _apply(self, action: str, x: Float[Array, "M C"]) -> Float[Array, "M C"]:
        """The named action of the parts, put together."""

    def matmul(self, x):
        return self._apply("matmul", x)

    def whiten(self, x):
        return self._apply("whiten", x)

    def colour(self, z):
        return self._apply("colour", z)

    def solve(self, x):
        return self._apply("solve", x)


class BlockDiagonal(_Composite):
    """Operators along the diagonal, nothing beside them."""

    blocks: tuple[PSD, ...]

    def __init__(self, blocks):
        self.blocks = tuple(blocks)

    @property
    def size(self):
        return sum(block.size for block in self.blocks)

    def _apply(self, action, x):
        edges = list(itertools.accumulate((block.size for block in self.blocks), initial=0))
        return jnp.concatenate(
            [getattr(b, action)(x[i:j]) for b, (i, j) in zip(self.blocks, itertools.pairwise(edges), strict=True)]
        )

    def dense(self):
        return jax.scipy.linalg.block_diag(*(block.dense() for block in self.blocks))

    def diagonal(self):
        return jnp.concatenate([block.diagonal() for block in self.blocks])

    def log_determinant(self):
        return sum(block.log_determinant() for block in self.blocks)


def block_diagonal(operators: Sequence[PSD]) -> PSD:
    """Operators along the diagonal. Where all of them are diagonal, so is the whole."""
    if all(isinstance(operator, Diagonal) for operator in operators):
        return Diagonal(jnp.concatenate([operator.diagonal() for operator in operators]))
    return BlockDiagonal(operators)


class Kronecker(_Composite):
    """K_1 x K_2 x ...: each factor acts on its own axis of x seen as a tensor."""

    factors: tuple[PSD, ...]

    def __init__(self, factors):
        self.factors = tuple(factors)

    @property
    def size(self):
        return math.prod(factor.size for factor in self.factors)

    def _apply(self, action, x):
        columns = x.shape[1]
        tensor = x.reshape(*(factor.size for factor in self.factors), columns)
        for axis, factor in enumerate(self.factors):
            moved = jnp.moveaxis(tensor, axis, 0)
            applied = getattr(factor, action)(moved.reshape(factor.size, -1)).reshape(moved.shape)
            tensor = jnp.moveaxis(applied, 0, axis)
        return tensor.reshape(-1, columns)

    def dense(self):
        return functools.reduce(jnp.kron, (factor.dense() for factor in self.factors))

    def diagonal(self):
        return functools.reduce(jnp.kron, (factor.diagonal() for factor in self.factors))

    def log_determinant(self):
        return sum(factor.log_determinant() * (self.size // factor.size) for factor in self.factors)
