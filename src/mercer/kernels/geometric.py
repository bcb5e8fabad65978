"""Matérn and heat kernels on graphs, meshes, rotations, hyperbolic space and other spaces (`mercer.kernels.spaces`)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.kernels.base import Kernel
from mercer.kernels.geometric_package import package
from mercer.kernels.maps import Map
from mercer.kernels.spaces import (
    CompactSpace,
    Nodes,
    OtherKernel,
    OtherLevels,
    Space,
    SymmetricSpace,
    num_columns_of,
)
from mercer.linalg.products import matmul
from mercer.parameters import cast, constant, is_concrete, param, positive
from mercer.validation import AnyArray, OneOrMany

_MOST_EIGENPAIRS = 1000


class Geometric(Kernel):
    """variance * sum_l a_l sum_s f_ls(x) f_ls(x'): f_ls and lambda_l are eigenpairs of the Laplacian of a space.

    a_l is proportional to (2 nu / lengthscale^2 + lambda_l)^-(nu + d / 2), d the dimension of the space, which counts as 0 for a
    graph; nu = inf (or None) is the heat kernel, exp(-lengthscale^2 lambda_l / 2). The variance is the mean of k(x, x) over x.

    `graph`, `mesh`, `rotations`, `hyperbolic` and `of` make one. A row of X is a point: the number of a node, the entries of a
    matrix, the coordinates on the hyperboloid. Points do not move: derivatives in X are 0, and inducing points stay in place.
    """

    space: Space = constant()
    lengthscale: Array = param(positive)
    variance: Array = param(positive)
    nu: Array | None = param(positive)

    def __init__(
        self,
        space: Space,
        lengthscale: OneOrMany = 1.0,
        variance: OneOrMany = 1.0,
        nu: OneOrMany | None = 2.5,
    ):
        self.space, self.lengthscale, self.variance = space, lengthscale, variance
        self.nu = None if _is_infinite(nu) else nu

    def __check_init__(self):
        if not isinstance(self.space, Space):
            raise ValueError(
                f"Geometric: space expects a space of mercer, got {type(self.space).__name__}; "
                "Geometric.of takes those of geometric-kernels"
            )
        # A product of kernels of geometric-kernels has one lengthscale for each.
        rank = 1 if isinstance(self.space, OtherKernel) else 0
        self._check_ranks(lengthscale=rank, variance=0, **({} if self.nu is None else {"nu": rank}))

    @classmethod
    def graph(
        cls,
        adjacency: AnyArray | scipy.sparse.sparray | scipy.sparse.spmatrix,
        lengthscale: OneOrMany = 1.0,
        variance: OneOrMany = 1.0,
        nu: OneOrMany | None = 2.5,
        *,
        normalised: bool = False,
        num: int | None = None,
    ) -> "Geometric":
        """The kernel of the nodes of a graph with symmetric weights [n, n], a NumPy array or a sparse matrix of SciPy.

        `normalised` divides the Laplacian by the degrees; `num` eigenpairs are kept, by default all, up to 1000.
        """
        is_sparse = scipy.sparse.issparse(adjacency)
        weights: Any = scipy.sparse.csr_array(adjacency, dtype=float) if is_sparse else np.asarray(adjacency, float)
        values = weights.data if is_sparse else weights
        if weights.ndim != 2 or weights.shape[0] != weights.shape[1] or not weights.shape[0]:
            raise ValueError(f"adjacency expects a square matrix, got shape {weights.shape}")
        if not np.isfinite(values).all() or (values < 0.0).any():
            raise ValueError("adjacency expects finite weights that are not negative")
        if (weights != weights.T).sum():
            raise ValueError("adjacency expects a symmetric matrix: a graph without directions")
        space = package().spaces.Graph(weights, normalize_laplacian=normalised)
        return cls(_nodes(space, num), lengthscale, variance, nu)

    @classmethod
    def mesh(
        cls,
        vertices: AnyArray,
        faces: AnyArray,
        lengthscale: OneOrMany = 1.0,
        variance: OneOrMany = 1.0,
        nu: OneOrMany | None = 2.5,
        *,
        num: int | None = None,
    ) -> "Geometric":
        """The kernel of the vertices [n, 3] of a surface of triangles, faces [F, 3] of numbers of vertices.

        `num` eigenpairs are kept, by default all, up to 1000.
        """
        vertices, faces = np.asarray(vertices, float), np.asarray(faces)
        if vertices.ndim != 2 or vertices.shape[1] != 3 or not np.isfinite(vertices).all():
            raise ValueError(f"vertices expects finite numbers [n, 3], got shape {vertices.shape}")
        if faces.ndim != 2 or faces.shape[1] != 3 or not np.issubdtype(faces.dtype, np.integer):
            raise ValueError(f"faces expects whole numbers [F, 3], got shape {faces.shape} and dtype {faces.dtype}")
        if not faces.size or faces.min() < 0 or faces.max() >= len(vertices):
            raise ValueError(f"faces expects numbers of vertices, from 0 to {len(vertices) - 1}")
        return cls(_nodes(package().spaces.Mesh(vertices, faces), num), lengthscale, variance, nu)

    @classmethod
    def rotations(
        cls,
        n: int,
        lengthscale: OneOrMany = 1.0,
        variance: OneOrMany = 1.0,
        nu: OneOrMany | None = 2.5,
        *,
        levels: int = 20,
    ) -> "Geometric":
        """The kernel of SO(n), n = 3 or more, by its first `levels` levels. A row of X is a rotation matrix, row by row."""
        return cls(CompactSpace("SpecialOrthogonal", n, levels), lengthscale, variance, nu)

    @classmethod
    def hyperbolic(
        cls,
        dimension: int,
        lengthscale: OneOrMany = 1.0,
        variance: OneOrMany = 1.0,
        nu: OneOrMany | None = 2.5,
        *,
        num: int = 3000,
        key: PRNGKeyArray | None = None,
    ) -> "Geometric":
        """The kernel of hyperbolic space, a mean over `num` random frequencies and phases, whose error is of order 1 / sqrt(num).

        A row of X is a point of the hyperboloid, (x_0, ..., x_n) with x_0 = sqrt(1 + x_1^2 + ... + x_n^2).
        """
        return cls(SymmetricSpace("Hyperbolic", dimension, num, _key(key)), lengthscale, variance, nu)

    @classmethod
    def of(
        cls,
        thing: Any,
        lengthscale: OneOrMany = 1.0,
        variance: OneOrMany = 1.0,
        nu: OneOrMany | None = 2.5,
        *,
        num: int | None = None,
        key: PRNGKeyArray | None = None,
    ) -> "Geometric":
        """The kernel of a space, or a kernel, of geometric-kernels; `num` as its `MaternGeometricKernel` has it.

        Graphs, meshes, SO(n), spheres, hyperbolic spaces and positive definite matrices can be saved, any other cannot.
        """
        return cls(_space_of(thing, num, key), lengthscale, variance, nu)

    def eigenvalues(self, dimension: int | None = None, levels: int | None = None) -> Float[Array, " L"]:
        """Those of the Karhunen-Loève expansion, variance * a_l, one for each level, which has `space.multiplicities` of it.

        The space knows its dimension; `levels` leaves the first so many.
        """
        return self.variance * self.space.eigenvalues(self.lengthscale, self.nu)[:levels]

    def check_inputs(self, X):
        self.space.check(X)

    def _matrix(self, X, X2):
        return self.variance * self.space.matrix(self.lengthscale, self.nu, X, X2)

    def _diagonal(self, X):
        return self.variance * self.space.diagonal(self.lengthscale, self.nu, X)

    def _features(self, key, num, X):
        self.space.check(X)
        kernel = cast(self, X.dtype)
        return jnp.sqrt(kernel.variance) * kernel.space.features(kernel.lengthscale, kernel.nu, key, num, X)

    def rough_part(self, dim):
        # A function of nodes or of matrices has no derivative along a column.
        return None if dim is None else "Geometric"

    def _drawn(self, key, num_features, num_outputs):
        if not self.space.is_expanded:
            return super()._drawn(key, num_features, num_outputs)
        return Expansion(self, key, num_outputs)


class Expansion(Map):
    """Independent functions with one kernel, sum_j w_j psi_j(x) with normal weights: exact draws, whatever the inputs."""

    kernel: Geometric = constant()
    key: PRNGKeyArray = constant()
    num_outputs: int = eqx.field(static=True)

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        kernel = cast(self.kernel, X.dtype)
        space: Any = kernel.space  # one that is expanded
        space.check(X)
        psi = jnp.sqrt(kernel.variance) * space.expansion(kernel.lengthscale, kernel.nu, X)
        weights = jax.random.normal(self.key, (psi.shape[1], self.num_outputs))
        return matmul(psi, weights.astype(X.dtype))


def _is_infinite(nu: Any) -> bool:
    if nu is None:
        return True
    known = isinstance(nu, int | float | np.generic) or is_concrete(nu)
    return known and bool(np.isposinf(np.asarray(nu)).all())


def _key(key: PRNGKeyArray | None) -> PRNGKeyArray:
    return jax.random.key(0) if key is None else key


def _nodes(space: Any, num: int | None) -> Nodes:
    """The eigenpairs of a graph or a mesh of geometric-kernels."""
    most = space.num_vertices
    num = min(_MOST_EIGENPAIRS, most) if num is None else num
    if not 1 <= num <= most:
        raise ValueError(f"num expects a number of eigenpairs from 1 to {most}, got {num}")
    laplacian, eigenfunctions = space.get_eigenvalues(num), space.get_eigenvectors(num)
    return Nodes(jnp.asarray(laplacian, float)[:, 0], jnp.asarray(eigenfunctions, float), space.dimension)


def _space_of(thing: Any, num: int | None, key: PRNGKeyArray | None) -> Space:
    """What mercer makes of a space or a kernel of geometric-kernels."""
    spaces, kernels = package().spaces, package().kernels
    if isinstance(thing, kernels.MaternFeatureMapKernel):
        raise ValueError(
            f"thing is a kernel of random features on {thing.space}, which is not compiled where these are drawn by rejection; "
            "pass its space, Geometric.of(kernel.space, num=..., key=...)"
        )
    if isinstance(thing, spaces.NoncompactSymmetricSpace):
        if isinstance(thing, spaces.Hyperbolic):
            return SymmetricSpace("Hyperbolic", thing.dimension, num or 3000, _key(key))
        if isinstance(thing, spaces.SymmetricPositiveDefiniteMatrices):
            return SymmetricSpace("SymmetricPositiveDefiniteMatrices", thing.degree, num or 3000, _key(key))
    if isinstance(thing, spaces.HodgeDiscreteSpectrumSpace | kernels.MaternHodgeCompositionalKernel):
        raise ValueError(
            "thing expects a kernel with one lengthscale and one nu; that of the edges of a graph has three"
        )
    if isinstance(thing, spaces.DiscreteSpectrumSpace):
        thing = kernels.MaternGeometricKernel(thing, num)
    if isinstance(thing, kernels.MaternKarhunenLoeveKernel) and thing.normalize:
        if isinstance(thing.space, spaces.Graph | spaces.Mesh):
            return _nodes(thing.space, thing.num_levels)
        if isinstance(thing.space, spaces.SpecialOrthogonal):
            return CompactSpace("SpecialOrthogonal", thing.space.n, thing.num_levels)
        if isinstance(thing.space, spaces.Hypersphere):
            return CompactSpace("Hypersphere", thing.space.dimension, thing.num_levels)
        return OtherLevels(thing)
    if isinstance(thing, kernels.BaseGeometricKernel):
        of_kernel = thing.space if isinstance(thing.space, list) else [thing.space]
        return OtherKernel(thing, sum(map(num_columns_of, of_kernel)))
    raise ValueError(f"thing expects a space or a kernel of geometric-kernels, got {type(thing).__name__}")
