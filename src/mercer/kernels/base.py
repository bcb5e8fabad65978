"""What a kernel is, a symmetric positive semi-definite function of two inputs; and the algebra of kernels.

Sums, products, positive multiples and restrictions to some input columns of kernels are kernels.
"""

import abc
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from mercer import validation
from mercer.deprecation import key_by_name
from mercer.harmonics.funk_hecke import funk_hecke
from mercer.kernels.maps import Draw, Features, Map, SumOfFeatures
from mercer.parameters import Module, as_parameter, cast, constant, dtype_of, param, positive
from mercer.validation import AnyArray, OneOrMany


class RandomFeatures(Map):
    """The random map phi of a kernel. Its numbers are drawn from the key, for as many columns as X has."""

    kernel: Any = constant()
    key: PRNGKeyArray = constant()
    num: int = eqx.field(static=True)

    def __call__(self, X: Float[AnyArray, "N D"]) -> Float[Array, "N F"]:
        return self.kernel._features(self.key, self.num, jnp.asarray(X))


class Mixing(NamedTuple):
    """f(X) = W g(Z): outputs are mixtures of latent functions at an input. W = None is the identity."""

    W: Float[Array, "#N P L"] | None
    Z: Any


class Term(NamedTuple):
    """scale times the product of kernels, each on some columns of the input."""

    factors: tuple[tuple["Kernel", tuple[int, ...]], ...]
    scale: Array | float = 1.0


class Kernel(Module):
    """A covariance function. A new kernel says `_matrix` and `_diagonal`; `+`, `*` and `.on(dims)` combine kernels."""

    # What multioutput kernels say, too. A kernel of one output is for any number of independent outputs.
    num_outputs: ClassVar[None] = None
    independent: ClassVar[bool] = True

    @property
    def output_kernels(self) -> "tuple[Kernel, ...]":
        """The kernels of independent outputs, one for each, or a single one that they share."""
        return (self,)

    @abc.abstractmethod
    def _matrix(self, X: Float[Array, "N D"], X2: Float[Array, "N2 D"] | None) -> Float[Array, "N N2"]:
        """k(x, x') for all pairs; X2 = None stands for X itself."""

    @abc.abstractmethod
    def _diagonal(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """k(x, x) for each row, without forming a matrix."""

    @key_by_name
    def features(self, num: int, *, key: PRNGKeyArray) -> Features:
        """A random map phi: X -> [N, num] whose products are the kernel in expectation, E phi(x) . phi(x') = k(x, x').

        The entries are independent estimates of equal expectation, E phi_i(x) phi_i(x') = k(x, x') / num, which is what
        lets a product of kernels multiply them entry by entry. A kernel that has them says `_features`.
        """
        self._check_features()
        return RandomFeatures(self, key, num)

    def _features(self, key: PRNGKeyArray, num: int, X: Float[Array, "N D"]) -> Float[Array, "N F"]:
        """phi(X)."""
        raise ValueError(
            f"{type(self).__name__} has no random features, so its sample paths cannot be drawn as functions"
        )

    def _check_features(self) -> None:
        """Refuses a kernel that has no random features, or is made of one that has none."""
        if type(self)._features is Kernel._features and type(self).features is Kernel.features:
            self._features(jax.random.key(0), 1, jnp.zeros((1, 1)))
        for part in self.parts():
            part._check_features()

    def parts(self) -> tuple["Kernel", ...]:
        """The kernels that this one is made of: those among its fields."""
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        candidates = itertools.chain(*(value if isinstance(value, tuple) else (value,) for value in values))
        return tuple(part for part in candidates if isinstance(part, Kernel))

    def columns(self, dimension: int) -> set[int]:
        """Which of the `dimension` columns of its inputs the kernel may depend on."""
        return set(range(dimension))

    def rough_part(self, dim: int | None) -> str | None:
        """The name of a part whose functions are not differentiable along column `dim`, if there is one.

        None stands for a column that the kernel does not see.
        """
        return next(filter(None, (part.rough_part(dim) for part in self.parts())), None)

    def shape(self, t: Float[Array, "..."]) -> Float[Array, "..."]:
        """kappa(t) of a zonal kernel, which is a function of the dot product t of two unit vectors alone."""
        raise ValueError(
            f"{type(self).__name__} is not a zonal kernel, a function of the angle of two unit vectors alone"
        )

    def shape_on(self, dimension: int, t: Float[Array, "..."]) -> Float[Array, "..."]:
        """kappa(t) on the sphere in R^d, where it may differ with the dimension; also of the zonal kernel that this one
        extends."""
        return self.shape(t)

    def eigenvalues(self, dimension: int, levels: int) -> Float[Array, " levels"]:
        """lambda_n of a zonal kernel on the sphere in R^d, or of the zonal kernel that this one extends, for degrees 0 to
        levels - 1.

        k(x, x') = sum_n lambda_n sum_j phi_nj(x) phi_nj(x'), with harmonics that are orthonormal under the uniform
        probability measure: the sum of lambda_n `num_harmonics(dimension, n)` is kappa(1).
        """
        return funk_hecke(lambda t: self.shape_on(dimension, t), dimension, levels, dtype_of(self))

    def vanishing(self, dimension: int, levels: int) -> np.ndarray:
        """Which of the first eigenvalues are 0 whatever the parameters, [levels]."""
        return np.zeros(levels, bool)

    def on_sphere(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N d"], Float[Array, " N"] | None]:
        """Unit vectors u and factors s with k(x, x') = s s' kappa(u . u'); factors that are all 1 are None."""
        self.shape_on(X.shape[1], jnp.ones(1, X.dtype))
        return X, None

    def sphere_parameters(self) -> tuple[Array, ...]:
        """The parameters that `on_sphere` depends on."""
        return ()

    def check_inputs(self, X: Float[Array, "N D"]) -> None:
        """Refuses inputs at which the kernel is not defined. Called before anything is compiled."""

    def terms(self, columns: tuple[int, ...]) -> list[Term]:
        """The kernel of the given columns, as a sum of products of kernels that are neither."""
        return [Term(((self, columns),))]

    @key_by_name
    def draw(self, num_features: int, num_outputs: int = 1, *, key: PRNGKeyArray) -> Draw:
        """`num_outputs` independent functions with this kernel, drawn as sums of features."""
        return Draw(self._drawn(key, num_features, num_outputs))

    def _drawn(self, key: PRNGKeyArray, num_features: int, num_outputs: int) -> Map:
        """By random features; a kernel whose own expansion is known says it here."""
        self._check_features()
        return SumOfFeatures(self, key, num_features, num_outputs)

    def __call__(self, X: Float[AnyArray, "N D"], X2: Float[AnyArray, "N2 D"] | None = None) -> Float[Array, "N N2"]:
        """The matrix of k(x, x'), [N, N2]; with X2 left out, [N, N]."""
        X = validation.inputs(X)
        if X2 is not None:
            X2 = validation.inputs(X2, "X2")
            validation.same_columns(X, X2)
            self.check_inputs(X2)
        self.check_inputs(X)
        return cast(self, X.dtype)._matrix(X, X2)

    def diag(self, X: Float[AnyArray, "N D"]) -> Float[Array, " N"]:
        """The variances k(x, x), [N]."""
        X = validation.inputs(X)
        self.check_inputs(X)
        return cast(self, X.dtype)._diagonal(X)

    def _check_ranks(self, **ranks: int) -> None:
        """Refuses parameters with more axes than `ranks` says: 0 for a number, 1 for a number or a vector."""
        for name, rank in ranks.items():
            shape = jnp.shape(getattr(self, name))
            if len(shape) > rank:
                expected = "a number or a vector" if rank else "a number"
                raise ValueError(f"{type(self).__name__}: {name} expects {expected}, got shape {shape}")

    def per_column(self, name: str, X: Float[Array, "N D"]) -> Array:
        """The parameter `name`, one number or a vector with one for each column of X."""
        value = getattr(self, name)
        if value.ndim == 1 and value.shape[0] != X.shape[1]:
            raise ValueError(
                f"{type(self).__name__}: {name} expects one number or one for each of the {X.shape[1]} columns of X, "
                f"got {value.shape[0]}"
            )
        return value

    def on(self, dims: int | Sequence[int]) -> "OnDimensions":
        """This kernel, seeing only some columns of the input."""
        return OnDimensions(self, dims)

    def __add__(self, other: "Kernel") -> "Sum":
        return Sum((self, other)) if isinstance(other, Kernel) else NotImplemented

    def __radd__(self, other: int) -> "Kernel":
        # sum([k1, k2]) begins with 0
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __mul__(self, other: "Kernel | OneOrMany") -> "Product | Scaled":
        return Product((self, other)) if isinstance(other, Kernel) else Scaled(self, as_parameter(other))

    def __rmul__(self, scale: OneOrMany) -> "Scaled":
        return Scaled(self, as_parameter(scale))


class _Combination(Kernel):
    """Several kernels on the same inputs. Those of nested sums (or products) are in one row."""

    kernels: tuple[Kernel, ...]

    def __init__(self, kernels: Sequence[Kernel]):
        kind = type(self)
        if not kernels or not all(isinstance(kernel, Kernel) for kernel in kernels):
            raise ValueError(f"{kind.__name__} expects one or more kernels, got {kernels!r}")
        parts = (kernel.kernels if isinstance(kernel, kind) else (kernel,) for kernel in kernels)
        self.kernels = tuple(itertools.chain(*parts))

    def check_inputs(self, X):
        for kernel in self.kernels:
            kernel.check_inputs(X)

    def on_sphere(self, X):
        for kernel in self.kernels:
            units, scale = kernel.on_sphere(X)
            if units is not X or scale is not None:
                raise ValueError(
                    f"{type(self).__name__} is not zonal, as {type(kernel).__name__} is on another sphere: "
                    "combine zonal kernels, inside of Homogeneous or .on(dims) where there is one"
                )
        return X, None

    def columns(self, dimension):
        return set().union(*(kernel.columns(dimension) for kernel in self.kernels))


class Sum(_Combination):
    """k_1 + k_2 + ...: independent processes added."""

    @classmethod
    def of_subsets(cls, kernel: Kernel, columns: int, size: int = 2) -> "Sum":
        """A kernel of each set of at most `size` of the columns: functions of one column, of two, and so on, added."""
        if not 1 <= size <= columns:
            raise ValueError(f"Sum.of_subsets: size expects a number from 1 to {columns}, the columns, got {size}")
        sets = itertools.chain(*(itertools.combinations(range(columns), n) for n in range(1, size + 1)))
        return cls(tuple(kernel.on(dims) for dims in sets))

    def _matrix(self, X, X2):
        return sum(kernel._matrix(X, X2) for kernel in self.kernels)

    def _diagonal(self, X):
        return sum(kernel._diagonal(X) for kernel in self.kernels)

    def shape_on(self, dimension, t):
        return sum(kernel.shape_on(dimension, t) for kernel in self.kernels)

    def eigenvalues(self, dimension, levels):
        return sum(kernel.eigenvalues(dimension, levels) for kernel in self.kernels)

    def vanishing(self, dimension, levels):
        return np.all([kernel.vanishing(dimension, levels) for kernel in self.kernels], axis=0)

    def terms(self, columns):
        return [term for kernel in self.kernels for term in kernel.terms(columns)]

    def _features(self, key, num, X):
        # Added with independent random signs, features of different terms have no cross terms in expectation.
        keys = jax.random.split(key, len(self.kernels) + 1)
        signs = jax.random.rademacher(keys[0], (len(self.kernels), num), X.dtype)
        terms = zip(signs, self.kernels, keys[1:], strict=True)
        return sum(s * kernel.features(num, key=k)(X) for s, kernel, k in terms)


class Product(_Combination):
    """k_1 k_2 ...: the entrywise product, a kernel by Schur's theorem."""

    def _matrix(self, X, X2):
        return _product(kernel._matrix(X, X2) for kernel in self.kernels)

    def _diagonal(self, X):
        return _product(kernel._diagonal(X) for kernel in self.kernels)

    def shape_on(self, dimension, t):
        return _product(kernel.shape_on(dimension, t) for kernel in self.kernels)

    def terms(self, columns):
        chosen = itertools.product(*(kernel.terms(columns) for kernel in self.kernels))
        return [
            Term(sum((term.factors for term in terms), ()), _product(term.scale for term in terms)) for terms in chosen
        ]

    def _features(self, key, num, X):
        keys = jax.random.split(key, len(self.kernels))
        factors = [kernel.features(num, key=k)(X) for kernel, k in zip(self.kernels, keys, strict=True)]
        return jnp.sqrt(float(num)) ** (len(factors) - 1) * _product(factors)


def _product(factors):
    first, *rest = factors
    for factor in rest:
        first = first * factor
    return first


class Scaled(Kernel):
    """scale * k, for a positive number."""

    kernel: Kernel
    scale: Array = param(positive)

    def __check_init__(self):
        self._check_ranks(scale=0)

    def _matrix(self, X, X2):
        return self.scale * self.kernel._matrix(X, X2)

    def _diagonal(self, X):
        return self.scale * self.kernel._diagonal(X)

    def columns(self, dimension):
        return self.kernel.columns(dimension)

    def check_inputs(self, X):
        self.kernel.check_inputs(X)

    def shape_on(self, dimension, t):
        return self.scale * self.kernel.shape_on(dimension, t)

    def eigenvalues(self, dimension, levels):
        return self.scale * self.kernel.eigenvalues(dimension, levels)

    def vanishing(self, dimension, levels):
        return self.kernel.vanishing(dimension, levels)

    def on_sphere(self, X):
        return self.kernel.on_sphere(X)

    def sphere_parameters(self):
        return self.kernel.sphere_parameters()

    def terms(self, columns):
        return [Term(term.factors, self.scale * term.scale) for term in self.kernel.terms(columns)]

    def _features(self, key, num, X):
        return jnp.sqrt(self.scale).astype(X.dtype) * self.kernel.features(num, key=key)(X)


class OnDimensions(Kernel):
    """A kernel that sees only the columns `dims` of the input."""

    kernel: Kernel
    dims: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, kernel: Kernel, dims: int | Sequence[int]):
        dims = tuple(int(d) for d in np.atleast_1d(dims))
        if not dims or min(dims) < 0 or len(set(dims)) < len(dims):
            raise ValueError(f"dims expects distinct, non-negative column numbers, got {dims}")
        self.kernel, self.dims = kernel, dims

    def _columns(self, X):
        if max(self.dims) >= X.shape[1]:
            raise ValueError(f"dims {self.dims} expects X with at least {max(self.dims) + 1} columns, got {X.shape[1]}")
        return X[:, jnp.asarray(self.dims)]

    def _matrix(self, X, X2):
        return self.kernel._matrix(self._columns(X), None if X2 is None else self._columns(X2))

    def _diagonal(self, X):
        return self.kernel._diagonal(self._columns(X))

    def check_inputs(self, X):
        self.kernel.check_inputs(self._columns(X))

    def shape_on(self, dimension, t):
        return self.kernel.shape_on(dimension, t)

    def eigenvalues(self, dimension, levels):
        return self.kernel.eigenvalues(dimension, levels)

    def vanishing(self, dimension, levels):
        return self.kernel.vanishing(dimension, levels)

    def on_sphere(self, X):
        return self.kernel.on_sphere(self._columns(X))

    def sphere_parameters(self):
        return self.kernel.sphere_parameters()

    def columns(self, dimension):
        return {self.dims[d] for d in self.kernel.columns(len(self.dims))}

    def rough_part(self, dim):
        return self.kernel.rough_part(self.dims.index(dim) if dim in self.dims else None)

    def terms(self, columns):
        if max(self.dims) >= len(columns):
            raise ValueError(f"dims {self.dims} expects at least {max(self.dims) + 1} columns, got {len(columns)}")
        return self.kernel.terms(tuple(columns[d] for d in self.dims))

    def _features(self, key, num, X):
        return self.kernel.features(num, key=key)(self._columns(X))
