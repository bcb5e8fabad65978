"""Zonal kernels in flat space: homogeneous functions, given by their values on a sphere (paper 001, section 3.2.1).

With a bias appended, z = [sqrt(weight_variance) x, sqrt(bias_variance)], every input is a point of R^(D + 1) other than 0,
at a distance r in the direction u, and

    k(x, x') = (r r')^degree kappa(u . u').

Its functions are r^degree times those of the sphere in R^(D + 1). With degree 1 they grow linearly, as networks of
rectified units do.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer.kernels.arc_cosine import cosines
from mercer.kernels.base import Kernel
from mercer.kernels.dot_product import augmented
from mercer.kernels.maps import Map
from mercer.kernels.zonal import SphericalArcCosine
from mercer.linalg.products import matmul
from mercer.parameters import cast, constant, param, positive
from mercer.validation import AnyArray


class _Extension(Kernel):
    """A homogeneous extension; a subclass says its zonal kernel and its degree."""

    @property
    @abc.abstractmethod
    def zonal(self) -> Kernel:
        """kappa."""

    @property
    @abc.abstractmethod
    def degree(self) -> int:
        """How a function grows along a ray."""

    weight_variance: eqx.AbstractVar[Array]
    bias_variance: eqx.AbstractVar[Array]

    def on_sphere(self, X):
        rows = augmented(X, self.per_column("weight_variance", X), self.bias_variance)
        norms = jnp.sqrt(jnp.sum(rows**2, axis=1))
        return rows / norms[:, None], norms**self.degree

    def sphere_parameters(self):
        return self.weight_variance, self.bias_variance

    def shape_on(self, dimension, t):
        return self.zonal.shape_on(dimension, t)

    def eigenvalues(self, dimension, levels):
        return self.zonal.eigenvalues(dimension, levels)

    def vanishing(self, dimension, levels):
        return self.zonal.vanishing(dimension, levels)

    def _matrix(self, X, X2):
        units, scales = zip(*(self.on_sphere(A) for A in ((X,) if X2 is None else (X, X2))), strict=True)
        t = cosines(matmul(units[0], units[-1].T), terms=X.shape[1] + 1)
        return self.zonal.shape_on(X.shape[1] + 1, t) * scales[0][:, None] * scales[-1]

    def _diagonal(self, X):
        scale = self.on_sphere(X)[1]
        return self.zonal.shape_on(X.shape[1] + 1, jnp.ones((), X.dtype)) * scale**2


def _weight_variance(lengthscales: Float[AnyArray, "D"]) -> Float[Array, "D"]:
    """With the sign of lengthscales, so that one below 0 is refused."""
    lengthscales = jnp.asarray(lengthscales)
    return jnp.sign(lengthscales) / lengthscales**2


class Homogeneous(_Extension):
    """(r r')^degree kappa(u . u'), r u = [sqrt(weight_variance) x, sqrt(bias_variance)]."""

    kernel: Kernel
    weight_variance: Array = param(positive, default=1.0)
    bias_variance: Array = param(positive, default=1.0)
    power: int = eqx.field(static=True, default=1)

    def __init__(self, zonal: Kernel, weight_variance=1.0, bias_variance=1.0, degree: int = 1):
        self.kernel, self.weight_variance, self.bias_variance, self.power = (
            zonal,
            weight_variance,
            bias_variance,
            degree,
        )

    def __check_init__(self):
        if not isinstance(self.kernel, Kernel):
            raise ValueError(f"Homogeneous expects a zonal kernel, got {type(self.kernel).__name__}")
        units = jnp.asarray(np.eye(3))
        if self.kernel.on_sphere(units)[0] is not units:  # or it raises
            raise ValueError(f"Homogeneous expects a zonal kernel of all columns, got {type(self.kernel).__name__}")
        if not isinstance(self.power, int) or isinstance(self.power, bool) or self.power < 0:
            raise ValueError(f"Homogeneous: degree expects a whole number of at least 0, got {self.power!r}")
        self._check_ranks(weight_variance=1, bias_variance=0)

    @classmethod
    def with_lengthscales(
        cls, zonal: Kernel, lengthscales: Float[AnyArray, "D"], bias_variance: float | AnyArray = 1.0, degree: int = 1
    ) -> "Homogeneous":
        """Columns are divided by lengthscales, as those of stationary kernels are: weights of variance 1 / lengthscales^2."""
        return cls(zonal, _weight_variance(lengthscales), bias_variance, degree)

    @property
    def zonal(self):
        return self.kernel

    @property
    def degree(self):
        return self.power

    def _features(self, key, num, X):
        units, scale = cast(self, X.dtype).on_sphere(X)
        return scale[:, None] * self.kernel.features(num, key=key)(units)

    def _drawn(self, key, num_features, num_outputs):
        return HomogeneousDraw(self, self.kernel.draw(num_features, num_outputs, key=key))


class HomogeneousDraw(Map):
    """Functions of the sphere, extended."""

    kernel: Any = constant()
    of_sphere: Any = constant()

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        units, scale = cast(self.kernel, X.dtype).on_sphere(X)
        return scale[:, None] * self.of_sphere(units)


class ArcCosine(_Extension):
    """variance / pi * (|x| |x'|)^order J_order(t): a network of infinitely many units max(0, w . x)^order.

    The norms and the angle t are those of the inner product sum_d weight_variance_d x_d x'_d + bias_variance, and
    J_0 = pi - t, J_1 = sin t + (pi - t) cos t, J_2 = 3 sin t cos t + (pi - t)(1 + 2 cos^2 t) (Cho and Saul, 2009).
    With greater depth, the kernel of one layer (of variance 1) is the inner product of the next. A layer takes a
    squared norm d to d^order J(0) / pi and a cosine c to J(c) / J(0), so norms and cosines pass through it apart: the
    kernel is the homogeneous extension of `SphericalArcCosine`.
    """

    order: int = eqx.field(static=True, default=1)
    depth: int = eqx.field(static=True, default=1)
    weight_variance: Array = param(positive, default=1.0)
    bias_variance: Array = param(positive, default=1.0)
    variance: Array = param(positive, default=1.0)

    def __check_init__(self):
        if not isinstance(self.order, int) or self.order not in (0, 1, 2):
            raise ValueError(f"ArcCosine: order expects 0, 1 or 2, got {self.order!r}")
        if not isinstance(self.depth, int) or self.depth < 1:
            raise ValueError(f"ArcCosine: depth expects a whole number of at least 1, got {self.depth!r}")
        self._check_ranks(weight_variance=1, bias_variance=0, variance=0)

    @classmethod
    def with_lengthscales(cls, lengthscales: Float[AnyArray, "D"], order: int = 1, depth: int = 1) -> "ArcCosine":
        """Columns are divided by lengthscales, as those of stationary kernels are: weights of variance 1 / lengthscales^2."""
        return cls(order=order, depth=depth, weight_variance=_weight_variance(lengthscales))

    @property
    def zonal(self):
        # A layer of order 2 multiplies a squared norm by J(0) / pi = 3.
        scale = 3.0 ** sum(2**i for i in range(self.depth)) if self.order == 2 else 1.0
        return SphericalArcCosine(self.order, self.depth, self.variance * scale)

    @property
    def degree(self):
        return self.order**self.depth

    def rough_part(self, dim):
        return None if dim is None or self.order else "ArcCosine of order 0"

    def _check_features(self):
        if self.depth > 1:
            super()._features(jax.random.key(0), 1, jnp.zeros((1, 1)))  # which says that there are none

    def _features(self, key, num, X):
        """The units of the network, sqrt(2 variance / num) max(0, w . x)^order; of one layer only."""
        kernel = cast(self, X.dtype)
        w = jax.random.normal(key, (num, X.shape[1] + 1), X.dtype)
        rows = augmented(X, kernel.per_column("weight_variance", X), kernel.bias_variance)
        inputs = matmul(rows, w.T)
        return jnp.sqrt(2.0 * kernel.variance / num) * jnp.where(inputs > 0.0, inputs**self.order, 0.0)
