"""Spaces that are not R^D, and the covariances that the Laplacian of a space makes.

Let the Laplacian of a space of dimension d have the eigenvalues lambda_l, each with d_l orthonormal eigenfunctions f_ls. The
Matérn kernel of the space (Borovitskiy et al., 2020, for manifolds; 2021, for graphs, whose dimension counts as 0) is

    k(x, x') = sum_l a_l sum_s f_ls(x) f_ls(x'),    a_l = S(lambda_l) / sum_l d_l S(lambda_l),

    S(lambda) = (2 nu / lengthscale^2 + lambda)^-(nu + d / 2); for nu = infinity, the heat kernel, exp(-lengthscale^2 lambda / 2)

The mean of k(x, x) over the space is 1. Where a space is not compact the sum is an integral (Azangulov et al., 2024), and random
frequencies and phases stand for it. Laplacians, eigenfunctions and characters are those of the package `geometric-kernels`.
"""

import abc
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.kernels.geometric_package import any_precision, compact_kernel, feature_map
from mercer.linalg.products import matmul
from mercer.parameters import Module, constant, is_concrete

_MOST_VALUES = 2**22  # of the products of eigenfunctions, [rows, N2, L], that are held at a time


def spectrum(lengthscale: Array, nu: Array | None, laplacian: Array, multiplicities: Array, dimension: int) -> Array:
    """a_l of the module's formula. By logarithms, as S itself may be too large or too small a number."""
    if nu is None:
        log_S = -0.5 * lengthscale**2 * laplacian
    else:
        log_S = -(nu + 0.5 * dimension) * jnp.log(2.0 * nu / lengthscale**2 + laplacian)
    return jnp.exp(log_S - jax.scipy.special.logsumexp(log_S, b=multiplicities))


class Space(Module):
    """Where inputs live. A point is a row of X: one number for a node, the coordinates or entries, in order, of any other."""

    is_expanded: ClassVar[bool] = False  # whether there is an `expansion`

    @property
    @abc.abstractmethod
    def num_columns(self) -> int:
        """How many numbers a point is."""

    @abc.abstractmethod
    def are_points(self, X: np.ndarray) -> np.ndarray:
        """Which rows are points of the space, up to rounding."""

    @property
    @abc.abstractmethod
    def expected(self) -> str:
        """What a row of X is, in words."""

    @abc.abstractmethod
    def matrix(
        self, lengthscale: Array, nu: Array | None, X: Float[Array, "N D"], X2: Float[Array, "N2 D"] | None
    ) -> Float[Array, "N N2"]:
        """k(x, x'), of mean variance 1."""

    @abc.abstractmethod
    def diagonal(self, lengthscale: Array, nu: Array | None, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """k(x, x)."""

    @abc.abstractmethod
    def features(
        self, lengthscale: Array, nu: Array | None, key: PRNGKeyArray, num: int, X: Float[Array, "N D"]
    ) -> Float[Array, "N F"]:
        """Random features, as `Kernel.features` has them."""

    def eigenvalues(self, lengthscale: Array, nu: Array | None) -> Float[Array, " L"]:
        """a_l, one for each level."""
        raise ValueError(f"{self.expected}: the kernel of this space has no known discrete spectrum")

    @property
    def multiplicities(self) -> Float[Array, " L"]:
        """d_l, how many eigenfunctions each level has."""
        raise ValueError(f"{self.expected}: the kernel of this space has no known discrete spectrum")

    def check(self, X: Array) -> None:
        """Refuses rows that are not points, where the numbers are known."""
        if X.shape[1] != self.num_columns:
            raise ValueError(f"X expects {self.num_columns} columns: {self.expected}; got {X.shape[1]}")
        if is_concrete(X):
            wrong = np.flatnonzero(~self.are_points(np.asarray(X)))
            if len(wrong):
                row = np.array2string(np.asarray(X)[wrong[0]], precision=4, threshold=10)
                raise ValueError(f"X expects {self.expected}; row {wrong[0]} is {row}")


class _Expanded(Space):
    """A space whose kernel is a sum of few enough terms, k(x, x') = psi(x) . psi(x')."""

    is_expanded: ClassVar[bool] = True

    @abc.abstractmethod
    def expansion(self, lengthscale: Array, nu: Array | None, X: Float[Array, "N D"]) -> Float[Array, "N J"]:
        """psi(X)."""

    def matrix(self, lengthscale, nu, X, X2):
        psi = self.expansion(lengthscale, nu, X)
        return matmul(psi, (psi if X2 is None else self.expansion(lengthscale, nu, X2)).T)

    def diagonal(self, lengthscale, nu, X):
        return jnp.sum(self.expansion(lengthscale, nu, X) ** 2, axis=1)

    def features(self, lengthscale, nu, key, num, X):
        # sum_j s_ij psi_j(x) / sqrt(num) with random signs s_ij
        psi = self.expansion(lengthscale, nu, X)
        signs = jax.random.rademacher(key, (psi.shape[1], num), X.dtype)
        return matmul(psi, signs) / jnp.sqrt(float(num)).astype(X.dtype)


class Nodes(_Expanded):
    """The nodes of a graph or the vertices of a mesh, by the eigenpairs of the Laplacian. X [N, 1] holds their numbers, from 0.

    The mean over all nodes of the square of an eigenfunction is 1.
    """

    laplacian: Float[Array, " J"] = constant()
    eigenfunctions: Float[Array, "n J"] = constant()
    dimension: int = eqx.field(static=True)

    def __check_init__(self):
        shapes = jnp.shape(self.laplacian), jnp.shape(self.eigenfunctions)
        if len(shapes[0]) != 1 or len(shapes[1]) != 2 or shapes[0][0] != shapes[1][1]:
            raise ValueError(f"Nodes: laplacian and eigenfunctions expect shapes [J] and [n, J], got {shapes}")
        if is_concrete(self.laplacian) and not (np.asarray(self.laplacian) >= 0.0).all():
            raise ValueError("Nodes: laplacian expects eigenvalues that are not negative")
        if self.dimension < 0:
            raise ValueError(f"Nodes: dimension expects 0 for a graph or 2 for a mesh, got {self.dimension}")

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return self.eigenfunctions.shape[0]

    @property
    def num_columns(self):
        return 1

    @property
    def expected(self):
        return f"the numbers of nodes, whole numbers from 0 to {self.num_nodes - 1}"

    def are_points(self, X):
        return np.isin(X[:, 0], np.arange(self.num_nodes))

    @property
    def multiplicities(self):
        return jnp.ones_like(self.laplacian)

    def eigenvalues(self, lengthscale, nu):
        return spectrum(lengthscale, nu, self.laplacian, self.multiplicities, self.dimension)

    def expansion(self, lengthscale, nu, X):
        # What is no node gives NaN: in compiled code nothing can be refused.
        nodes = jnp.round(X[:, 0])
        is_node = (nodes == X[:, 0]) & (nodes >= 0)
        rows = jnp.where(is_node, nodes, self.num_nodes).astype(jnp.int32)
        values = self.eigenfunctions.at[rows].get(mode="fill", fill_value=jnp.nan)
        return values * jnp.sqrt(self.eigenvalues(lengthscale, nu))


class SymmetricSpace(_Expanded):
    """A space that is not compact: hyperbolic space of dimension `size`, or positive definite matrices of `size` rows.

    k(x, x') is a mean over `num` random frequencies and phases, drawn with `key`; k(x, x) = 1.
    """

    name: Literal["Hyperbolic", "SymmetricPositiveDefiniteMatrices"] = eqx.field(static=True)
    size: int = eqx.field(static=True)
    num: int = eqx.field(static=True)
    key: PRNGKeyArray = constant()

    def __check_init__(self):
        if self.size < 2 or self.num < 1:
            raise ValueError(
                f"{self.name} expects a size of 2 or more and num of 1 or more, got {self.size}, {self.num}"
            )

    @property
    def num_columns(self):
        return self.size + 1 if self.name == "Hyperbolic" else self.size**2

    @property
    def expected(self):
        if self.name == "Hyperbolic":
            return "points of the hyperboloid, x_0 = sqrt(1 + x_1^2 + ... + x_n^2)"
        return f"the entries of positive definite matrices [{self.size}, {self.size}]"

    def are_points(self, X):
        if self.name == "Hyperbolic":
            return np.isclose(X[:, 0], np.sqrt(1.0 + np.sum(X[:, 1:] ** 2, axis=1)), rtol=_tolerance(X), atol=0.0)
        matrices = X.reshape(-1, self.size, self.size)
        difference = np.abs(matrices - matrices.swapaxes(1, 2)).max(axis=(1, 2))
        is_symmetric = difference <= _tolerance(X) * np.abs(matrices).max(axis=(1, 2))
        return is_symmetric & (np.linalg.eigvalsh(matrices)[:, 0] > 0.0)

    def expansion(self, lengthscale, nu, X):
        points = jax.lax.stop_gradient(X)
        if self.name != "Hyperbolic":
            points = points.reshape(-1, self.size, self.size)
        # In the widest precision that there is, as the numbers drawn depend on it.
        parameters = _parameters(lengthscale.astype(float), nu if nu is None else nu.astype(float))
        with any_precision():
            phi = feature_map(self.name, self.size, self.num)
            _, psi = phi(points.astype(float), parameters, key=raw_key(self.key))
        return psi.astype(X.dtype)


class _Levels(Space):
    """A compact space whose eigenfunctions are known by the sums G_l(x, x') = sum_s f_ls(x) f_ls(x') over their levels."""

    @abc.abstractmethod
    def _of_package(self) -> Any:
        """The `MaternKarhunenLoeveKernel` of geometric-kernels."""

    @property
    def multiplicities(self):
        return jnp.asarray(self._of_package().eigenfunctions.num_eigenfunctions_per_level, float)

    def eigenvalues(self, lengthscale, nu):
        laplacian = jnp.asarray(self._of_package().eigenvalues_laplacian).ravel().astype(lengthscale.dtype)
        multiplicities = self.multiplicities.astype(lengthscale.dtype)
        return spectrum(lengthscale, nu, laplacian, multiplicities, self._of_package().space.dimension)

    def _points(self, X):
        return as_elements(self._of_package().space, jax.lax.stop_gradient(X))

    def _weighted(self, X, points, weights):
        """sum_l weights[..., l] G_l(x, x') for the rows x of X and the points x', [N, N2]; some rows at a time."""

        def of_rows(rows):
            with any_precision():
                G = jnp.real(self._of_package().eigenfunctions.phi_product(self._points(rows), points))
            return jnp.sum(G.astype(X.dtype) * weights, axis=-1)

        num = max(1, _MOST_VALUES // (len(points) * weights.shape[-1]))
        if len(X) <= num:
            return of_rows(X)
        of_row = jax.checkpoint(lambda row: of_rows(row[None])[0])
        return jax.lax.map(of_row, X, batch_size=num)

    def matrix(self, lengthscale, nu, X, X2):
        return self._weighted(X, self._points(X if X2 is None else X2), self.eigenvalues(lengthscale, nu))

    def diagonal(self, lengthscale, nu, X):
        with any_precision():
            G = jnp.real(self._of_package().eigenfunctions.phi_product_diag(self._points(X)))
        return matmul(G.astype(X.dtype), self.eigenvalues(lengthscale, nu))

    def features(self, lengthscale, nu, key, num, X):
        # sum_l s_il sqrt(a_l) G_l(x, u_i) / sqrt(num), with random signs s_il and uniformly random points u_i:
        # E G_l(x, u) G_l(u, x') = G_l(x, x')
        key_points, key_signs = jax.random.split(key)
        roots = jnp.sqrt(self.eigenvalues(lengthscale, nu) / num)
        with any_precision():
            _, points = self._of_package().space.random(raw_key(key_points), num)
        points = points.astype(X.dtype) if jnp.issubdtype(points.dtype, jnp.floating) else points
        return self._weighted(X, points, roots * jax.random.rademacher(key_signs, (num, len(roots)), X.dtype))


class CompactSpace(_Levels):
    """The rotations of R^size, or the unit sphere of dimension `size` in R^(size + 1), with the first `levels` levels."""

    name: Literal["SpecialOrthogonal", "Hypersphere"] = eqx.field(static=True)
    size: int = eqx.field(static=True)
    levels: int = eqx.field(static=True)

    def __check_init__(self):
        least = 3 if self.name == "SpecialOrthogonal" else 2
        if self.size < least or self.levels < 1:
            raise ValueError(
                f"{self.name} expects a size of {least} or more and 1 or more levels, got {self.size} and {self.levels}"
            )

    def _of_package(self):
        return compact_kernel(self.name, self.size, self.levels)

    @property
    def num_columns(self):
        return self.size**2 if self.name == "SpecialOrthogonal" else self.size + 1

    @property
    def expected(self):
        if self.name == "SpecialOrthogonal":
            return f"the entries of rotation matrices [{self.size}, {self.size}]"
        return f"unit vectors of {self.size + 1} entries"

    def are_points(self, X):
        if self.name == "Hypersphere":
            return np.isclose(np.linalg.norm(X, axis=1), 1.0, atol=_tolerance(X))
        R = X.reshape(-1, self.size, self.size)
        is_orthogonal = np.isclose(R @ R.swapaxes(1, 2), np.eye(self.size), atol=_tolerance(X)).all(axis=(1, 2))
        return is_orthogonal & (np.linalg.det(R) > 0.0)


class OtherLevels(_Levels):
    """A compact space from elsewhere, by its `MaternKarhunenLoeveKernel`. It is an object, no data: it cannot be saved."""

    kernel: Any = eqx.field(static=True)

    def _of_package(self):
        return self.kernel

    @property
    def num_columns(self):
        return num_columns_of(self.kernel.space)

    @property
    def expected(self):
        return f"the entries of points of {self.kernel.space}"

    def are_points(self, X):
        return np.ones(len(X), bool)


class OtherKernel(Space):
    """A space from elsewhere, by any of its kernels in geometric-kernels. It is an object, no data: it cannot be saved."""

    kernel: Any = eqx.field(static=True)
    size: int = eqx.field(static=True)

    @property
    def num_columns(self):
        return self.size

    @property
    def expected(self):
        return f"the entries of points of {type(self.kernel).__name__}"

    def are_points(self, X):
        return np.ones(len(X), bool)

    def _points(self, X):
        space, X = self.kernel.space, jax.lax.stop_gradient(X)
        return X if isinstance(space, list) else as_elements(space, X)  # a product of kernels takes apart what it gets

    def matrix(self, lengthscale, nu, X, X2):
        points = None if X2 is None else self._points(X2)
        with any_precision():
            K = self.kernel.K(_parameters(lengthscale, nu), self._points(X), points)
        return jnp.real(K).astype(X.dtype)

    def diagonal(self, lengthscale, nu, X):
        with any_precision():
            variances = self.kernel.K_diag(_parameters(lengthscale, nu), self._points(X))
        return jnp.real(variances).astype(X.dtype)

    def features(self, lengthscale, nu, key, num, X):
        raise ValueError(
            f"{type(self.kernel).__name__} has no random features, so its sample paths cannot be drawn as functions"
        )


def num_columns_of(space: Any) -> int:
    """How many numbers a point of a space of geometric-kernels is."""
    return int(np.prod(_element_shape(space)))


def as_elements(space: Any, X: Float[Array, "N D"]) -> Array:
    """The rows of X as points of a space of geometric-kernels."""
    kind = str(getattr(space.element_dtype, "__name__", space.element_dtype))
    if "Complex" in kind:
        raise ValueError(f"the points of {space} are complex, and inputs of a mercer kernel are real")
    points = X.reshape(-1, *_element_shape(space))
    return points.astype(jnp.int32) if "Int" in kind else points.astype(bool) if "Bool" in kind else points


def _element_shape(space: Any) -> list[int]:
    shape = space.element_shape
    return shape() if callable(shape) else shape


def _parameters(lengthscale: Array, nu: Array | None) -> dict[str, Array]:
    lengthscale = jnp.atleast_1d(lengthscale)
    return {"lengthscale": lengthscale, "nu": jnp.full_like(lengthscale, jnp.inf) if nu is None else jnp.atleast_1d(nu)}


def raw_key(key: PRNGKeyArray) -> Array:
    """A key as the package takes it: an array of numbers, for the generator that is JAX's default here."""
    return jax.random.bits(key, jax.random.key_data(jax.random.key(0)).shape, jnp.uint32)


def _tolerance(X: np.ndarray) -> float:
    """How far rounding takes a row from being a point."""
    return 1e3 * float(np.finfo(X.dtype).eps)
