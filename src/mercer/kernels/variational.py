"""Variational kernels: covariances of posteriors that are free in form (paper 000, section 5.1.2).

A posterior of generalised variational inference is a `GP` whose mean is any function and whose kernel is one of these. They
look at a prior kernel k through inducing points Z. With W = chol(k(Z, Z))^-1 and C(x) = W k(Z, x), what Z leaves undetermined
of the prior is k(x, x') - C(x)^T C(x'), which is 0 at Z; the kernels differ in what they add to it, or in which kernel they
condition.

The prior kernel and Z are settled before (`mercer.inducing.alternate`), so W is worked out when the kernel is made, and no
gradient passes through it; only `SparsePosterior` learns the kernel that it conditions, and its Z. A posterior of the form
of `CholeskySVGP` in which all of that is learned is `mercer.Sparse`. Variances are kept above the jitter of their dtype times
the prior's, so that divergences from a prior stay finite at Z.
"""

import abc
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer import validation
from mercer.kernels.base import Kernel
from mercer.kernels.maps import Features, Map
from mercer.linalg.cholesky import JITTER, inverse_factor, raise_if_failed
from mercer.linalg.products import matmul, weighted_gram
from mercer.linalg.regression import plus_identity, posterior_root
from mercer.parameters import cast, constant, is_concrete, lower_triangular, param, positive, real
from mercer.validation import AnyArray


def points(Z: AnyArray, *kernels: Kernel) -> Float[Array, "M D"]:
    """Z, after checks of it and of the kernels that are to be seen through it."""
    for kernel in kernels:
        if not isinstance(kernel, Kernel):
            raise ValueError(f"a variational kernel expects a mercer kernel of one output, got {type(kernel).__name__}")
    return validation.inputs(Z, "Z")


def whitener(kernel: Kernel, Z: Float[Array, "M D"]) -> Float[Array, "M M"]:
    """W = chol(k(Z, Z))^-1, so that W k(Z, x) whitens."""
    matrix = kernel(Z)
    W = inverse_factor(matrix)
    if is_concrete(matrix) and is_concrete(W):
        raise_if_failed(matrix, W, "k(Z, Z)")
    return W


def _at_least(variance: Float[Array, " N"], prior: Float[Array, " N"]) -> Float[Array, " N"]:
    return jnp.maximum(variance, JITTER[prior.dtype][0] * prior)


def checked(
    kernel: Kernel, Z: AnyArray, X: AnyArray, noise: float | AnyArray
) -> tuple[Kernel, Float[Array, "M D"], Float[Array, "N D"]]:
    """Kernel, inducing points and inputs in one dtype, after checks of what an optimum is asked for."""
    Z, X, noise = points(Z, kernel), validation.inputs(X), jnp.asarray(noise)
    validation.same_columns(X, Z, "Z")
    if noise.ndim or (is_concrete(noise) and not float(noise) > 0.0):
        raise ValueError(f"noise expects a positive number, the variance of the noise, got {noise}")
    return cast(kernel, X.dtype), Z.astype(X.dtype), X


class _SVGP(Kernel):
    """k(x, x') - C(x)^T C(x') + what a subclass adds."""

    kernel: Kernel = constant()
    Z: Float[Array, "M D"] = constant()
    W: Float[Array, "M M"] = constant()

    @abc.abstractmethod
    def _added(self, X: Array, X2: Array | None, cross: Array, cross2: Array) -> Float[Array, "N N2"]:
        """The term that is added, from the inputs and k(Z, X) [M, N], k(Z, X2) [M, N2]."""

    @abc.abstractmethod
    def _added_variance(self, X: Array, cross: Array) -> Float[Array, " N"]:
        """Its diagonal."""

    @abc.abstractmethod
    def _added_features(self, key, num: int) -> Features:
        """Its random features."""

    def _matrix(self, X, X2):
        cross = self.kernel._matrix(self.Z, X)
        cross2 = cross if X2 is None else self.kernel._matrix(self.Z, X2)
        C, C2 = matmul(self.W, cross), matmul(self.W, cross2)
        return self.kernel._matrix(X, X2) - matmul(C.T, C2) + self._added(X, X2, cross, cross2)

    def _diagonal(self, X):
        cross = self.kernel._matrix(self.Z, X)
        prior = self.kernel._diagonal(X)
        left = prior - jnp.sum(matmul(self.W, cross) ** 2, axis=0)
        return _at_least(left + self._added_variance(X, cross), prior)

    def features(self, num, *, key):
        keys = jax.random.split(key, 3)
        left = _ConditionedFeatures(self.kernel, self.Z, self.W, self.kernel.features(num, key=keys[0]))
        return _AddedFeatures(left, self._added_features(keys[1], num), jax.random.rademacher(keys[2], (num,), float))


class _ConditionedFeatures(Map):
    """Features of k(x, x') - C(x)^T C(x'): those of k, less what their values at Z say of them."""

    kernel: Kernel = constant()
    Z: Float[Array, "M D"] = constant()
    W: Float[Array, "M M"] = constant()
    phi: Features = constant()

    def __call__(self, X: Float[AnyArray, "N D"]) -> Float[Array, "N F"]:
        X = jnp.asarray(X)
        at_Z, W, kernel = self.Z.astype(X.dtype), self.W.astype(X.dtype), cast(self.kernel, X.dtype)
        C = matmul(W, kernel._matrix(at_Z, X))
        return self.phi(X) - matmul(C.T, matmul(W, self.phi(at_Z)))


class _LinearFeatures(Map):
    """Features k(x, Z) weights."""

    kernel: Kernel = constant()
    Z: Float[Array, "M D"] = constant()
    weights: Float[Array, "M F"] = constant()

    def __call__(self, X: Float[AnyArray, "N D"]) -> Float[Array, "N F"]:
        X = jnp.asarray(X)
        cross = cast(self.kernel, X.dtype)._matrix(self.Z.astype(X.dtype), X)
        return matmul(cross.T, self.weights.astype(X.dtype))


class _AddedFeatures(Map):
    """Features of a sum of two kernels: random signs leave no cross terms in expectation."""

    first: Features = constant()
    second: Features = constant()
    signs: Float[Array, " F"] = constant()

    def __call__(self, X: Float[AnyArray, "N D"]) -> Float[Array, "N F"]:
        X = jnp.asarray(X)
        return self.first(X) + self.signs.astype(X.dtype) * self.second(X)


class CholeskySVGP(_SVGP):
    """k(x, x') - C(x)^T C(x') + C(x)^T S C(x'), S = root root^T (5.3, with Sigma = W^T S W): any Gaussian q(u) on Z.

    S is the covariance of whitened variables, I at the prior, which is the start where no root [M, M] is given. `optimal`
    starts from Titsias' optimum.
    """

    root: Float[Array, "M M"] = param(lower_triangular)

    def __init__(self, kernel: Kernel, Z: Float[AnyArray, "M D"], root: Float[AnyArray, "M M"] | None = None):
        self.kernel, self.Z = kernel, points(Z, kernel)
        self.W = whitener(kernel, self.Z)
        self.root = jnp.eye(len(self.Z), dtype=self.Z.dtype) if root is None else root

    def __check_init__(self):
        if jnp.shape(self.root) != self.W.shape:
            raise ValueError(f"CholeskySVGP: root expects shape {self.W.shape}, got {jnp.shape(self.root)}")

    @classmethod
    def optimal(
        cls, kernel: Kernel, Z: Float[AnyArray, "M D"], X: Float[AnyArray, "N D"], noise: float | AnyArray
    ) -> "CholeskySVGP":
        """Titsias' optimum for data at X with Gaussian noise of this variance: Sigma = Psi^-1 (3.15, 3.16)."""
        kernel, Z, X = checked(kernel, Z, X, noise)
        return cls(kernel, Z, optimal_root(kernel, Z, X, noise))

    @property
    def Sigma(self) -> Float[Array, "M M"]:
        """The matrix between k(x, Z) and k(Z, x') in (5.3), W^T S W."""
        half = matmul(self.W.T, self.root)
        return matmul(half, half.T)

    def _added(self, X, X2, cross, cross2):
        half = matmul(self.root.T, self.W)
        return matmul(matmul(half, cross).T, matmul(half, cross2))

    def _added_variance(self, X, cross):
        return jnp.sum(matmul(self.root.T, matmul(self.W, cross)) ** 2, axis=0)

    def _added_features(self, key, num):
        return _linear_features(self.kernel, self.Z, matmul(self.root.T, self.W), key, num)


def _linear_features(kernel: Kernel, Z: Array, half: Array, key, num: int) -> Features:
    """Features of k(x, Z) half^T half k(Z, x')."""
    draws = jax.random.normal(key, (len(half), num), half.dtype) / jnp.sqrt(float(num))
    return _LinearFeatures(kernel, Z, matmul(half.T, draws))


def optimal_root(
    kernel: Kernel, Z: Float[Array, "M D"], X: Float[Array, "N D"], noise: float | AnyArray
) -> Float[Array, "M M"]:
    """A root of the covariance of Titsias' optimal q of the whitened variables, (I + C C^T / noise)^-1 = (W Psi W^T)^-1."""
    W = whitener(kernel, Z)
    gram = weighted_gram(X.T, jnp.ones(len(X), X.dtype), lambda columns: matmul(W, kernel._matrix(Z, columns.T)))
    return posterior_root(plus_identity(gram / noise))


class DiagonalSVGP(_SVGP):
    """k(x, x') - C(x)^T C(x') + k(x, Z) diag(v) k(Z, x') (5.3, 5.4): M free numbers v in the place of a matrix.

    `optimal` starts from the best v there is for regression. Without v [M], it is that for one observation at each point
    with a noise of a hundredth of the variance there.
    """

    v: Float[Array, " M"] = param(positive)

    def __init__(
        self, kernel: Kernel, Z: Float[AnyArray, "M D"], v: Float[AnyArray, " M"] | Sequence[float] | None = None
    ):
        self.kernel, self.Z = kernel, points(Z, kernel)
        self.W = whitener(kernel, self.Z)
        self.v = 1.0 / (101.0 * kernel.diag(self.Z)) if v is None else v

    def __check_init__(self):
        if jnp.shape(self.v) != self.Z.shape[:1]:
            raise ValueError(f"DiagonalSVGP: v expects shape {self.Z.shape[:1]}, got {jnp.shape(self.v)}")

    @classmethod
    def optimal(
        cls, kernel: Kernel, Z: Float[AnyArray, "M D"], X: Float[AnyArray, "N D"], noise: float | AnyArray
    ) -> "DiagonalSVGP":
        """The best v for data at X with Gaussian noise of this variance: 1 / diag(Psi).

        Up to a constant the bound is -tr(Psi Sigma) / 2 + log det(Sigma) / 2 (3.11 to 3.16); Psi^-1 is its largest value
        over all Sigma, and 1 / diag(Psi) that over the diagonal ones.
        """
        kernel, Z, X = checked(kernel, Z, X, noise)
        gram = weighted_gram(X.T, jnp.ones(len(X), X.dtype), lambda columns: kernel._matrix(Z, columns.T))
        return cls(kernel, Z, 1.0 / (kernel.diag(Z) + jnp.diagonal(gram) / noise))

    def _added(self, X, X2, cross, cross2):
        return matmul(cross.T, self.v[:, None] * cross2)

    def _added_variance(self, X, cross):
        return matmul(self.v, cross**2)

    def _added_features(self, key, num):
        return _linear_features(self.kernel, self.Z, jnp.diag(jnp.sqrt(self.v)), key, num)


class KernelisedSVGP(_SVGP):
    """k(x, x') - C(x)^T C(x') + base(x, x') (5.5), any kernel `base`, whose parameters are learned."""

    base: Kernel

    def __init__(self, kernel: Kernel, Z: Float[AnyArray, "M D"], base: Kernel):
        self.kernel, self.Z, self.base = kernel, points(Z, kernel, base), base
        self.W = whitener(kernel, self.Z)

    def _added(self, X, X2, cross, cross2):
        return self.base._matrix(X, X2)

    def _added_variance(self, X, cross):
        return self.base._diagonal(X)

    def _added_features(self, key, num):
        return self.base.features(num, key=key)


class _Conditioned(Kernel):
    """base(x, x') - C(x)^T C(x'), C(x) = W base(Z, x)."""

    base: Kernel

    @abc.abstractmethod
    def _C(self, X: Float[Array, "N D"]) -> Float[Array, "M N"]:
        """C at the rows of X."""

    def _matrix(self, X, X2):
        C = self._C(X)
        return self.base._matrix(X, X2) - matmul(C.T, C if X2 is None else self._C(X2))

    def _diagonal(self, X):
        prior = self.base._diagonal(X)
        return _at_least(prior - jnp.sum(self._C(X) ** 2, axis=0), prior)


class SparsePosterior(_Conditioned):
    """base(x, x') - base(x, Z) base(Z, Z)^-1 base(Z, x') (5.6): the covariance of a process that is known at Z.

    The base and Z are learned; gradients pass through the inverse.
    """

    Z: Float[Array, "M D"] = param(real)

    def __init__(self, base: Kernel, Z: Float[AnyArray, "M D"]):
        self.base, self.Z = base, points(Z, base)

    def _C(self, X):
        return matmul(inverse_factor(self.base._matrix(self.Z, None)), self.base._matrix(self.Z, X))

    def features(self, num, *, key):
        W = inverse_factor(self.base(self.Z))
        return _ConditionedFeatures(self.base, self.Z, W, self.base.features(num, key=key))


class FixedSparsePosterior(_Conditioned):
    """base(x, x') - base(x, Z) k(Z, Z)^-1 base(Z, x') (5.7): `SparsePosterior` with the inverse of the prior's k(Z, Z).

    The base is learned, Z and the inverse are fixed, so that no gradient passes through a factorisation. It is a covariance
    while base(Z, Z) is no larger than k(Z, Z), as it is at the start, base = k; variances that would be negative are raised
    to the jitter of the dtype.
    """

    Z: Float[Array, "M D"] = constant()
    W: Float[Array, "M M"] = constant()

    def __init__(self, base: Kernel, kernel: Kernel, Z: Float[AnyArray, "M D"]):
        self.base, self.Z = base, points(Z, base, kernel)
        self.W = whitener(kernel, self.Z)

    def _C(self, X):
        return matmul(self.W, self.base._matrix(self.Z, X))


class Tempered(Kernel):
    """factor * kernel(x, x') (5.9): a posterior's covariance, made wider or narrower. Only the factor is learned."""

    kernel: Kernel = constant()
    factor: Array = param(positive, default=1.0)

    def __check_init__(self):
        if not isinstance(self.kernel, Kernel):
            raise ValueError(
                f"Tempered: kernel expects a mercer kernel of one output, got {type(self.kernel).__name__}"
            )
        self._check_ranks(factor=0)

    def _matrix(self, X, X2):
        return self.factor * self.kernel._matrix(X, X2)

    def _diagonal(self, X):
        return self.factor * self.kernel._diagonal(X)

    def _features(self, key, num, X):
        return jnp.sqrt(self.factor).astype(X.dtype) * self.kernel.features(num, key=key)(X)
