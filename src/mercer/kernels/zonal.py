"""Zonal kernels: functions kappa(t) of the dot product t of two unit vectors, which rotations leave as they are (paper 001,
section 3.1).

They are to the sphere what stationary kernels are to flat space, and spherical harmonics are to them what Fourier's
functions are to those: kappa(x . x') = sum_n lambda_n sum_j phi_nj(x) phi_nj(x') in any dimension d, with one eigenvalue
for all harmonics of a degree, the Funk-Hecke coefficient of kappa. These are `eigenvalues(dimension, levels)`, and the sum
of lambda_n N_n is kappa(1).

Inputs are unit vectors. `mercer.kernels.Homogeneous` takes a zonal kernel to all of flat space.
"""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer.harmonics.basis import SphericalHarmonics
from mercer.harmonics.funk_hecke import coefficients_of_derivatives, constant_coefficients, rectified_coefficients
from mercer.harmonics.gegenbauer import log_num_harmonics, num_harmonics, zonal_features, zonal_series
from mercer.harmonics.sphere import check_unit
from mercer.kernels.arc_cosine import angular, cosines
from mercer.kernels.base import Kernel
from mercer.kernels.maps import Map
from mercer.kernels.stationary import matern32, matern52
from mercer.linalg.products import matmul
from mercer.parameters import cast, constant, dtype_of, param, positive, unit_interval
from mercer.roots import safe_sqrt

_LEVELS = 64  # of the spectrum that draws see, at most; what is above is drawn at the last of them
_MOST_HARMONICS = 1e30  # of a level that they see: more are no numbers in float32


class Zonal(Kernel):
    """kappa(x . x') on the unit sphere. A new zonal kernel says only its shape, kappa."""

    @abc.abstractmethod
    def shape(self, t: Float[Array, "..."]) -> Float[Array, "..."]:
        """kappa(t)."""

    def _matrix(self, X, X2):
        t = matmul(X, (X if X2 is None else X2).T)
        return self.shape_on(X.shape[1], cosines(t, terms=X.shape[1]))

    def _diagonal(self, X):
        return jnp.broadcast_to(self.shape_on(X.shape[1], jnp.ones((), X.dtype)), len(X))

    def check_inputs(self, X):
        check_unit(X)

    def _features(self, key, num, X):
        """sqrt(kappa(1) / num) sqrt(N_n) R_n(w . x), w uniform on the sphere and n drawn in proportion to lambda_n N_n."""
        return zonal_features(key, num, X, shares_of_levels(cast(self, X.dtype), X.shape[1]))

    def _drawn(self, key, num_features, num_outputs):
        return KarhunenLoeve(self, key, num_features, num_outputs)


def shares_of_levels(kernel: Kernel, dimension: int, levels: int = 2) -> Float[Array, " L"]:
    """lambda_n N_n, the part of the variance that is in each level, at least so many; of the last that above it, too."""
    levels = max(levels, sum(num_harmonics(dimension, n) < _MOST_HARMONICS for n in range(_LEVELS)))
    counts = np.array([float(num_harmonics(dimension, n)) for n in range(levels)])
    eigenvalues = kernel.eigenvalues(dimension, levels)
    shares = jnp.maximum(eigenvalues, 0.0) * jnp.asarray(counts, eigenvalues.dtype)
    rest = kernel.shape_on(dimension, jnp.ones((), shares.dtype)) - jnp.sum(shares)
    return shares.at[-1].add(jnp.maximum(rest, 0.0))


class KarhunenLoeve(Map):
    """Independent functions with a zonal kernel: sum_m sqrt(lambda_m) xi_m phi_m(x), xi normal (equation 2.34).

    All levels whose harmonics are no more than half of `num_features` are in it one by one. What is above them is drawn at
    random, by zonal functions around random points, which have the right covariance on average.
    """

    kernel: Kernel = constant()
    key: Array = constant()
    num_features: int = eqx.field(static=True)
    num_outputs: int = eqx.field(static=True)

    def __call__(self, X: Float[Array, "N d"]) -> Float[Array, "N P"]:
        kernel, d = cast(self.kernel, X.dtype), X.shape[1]
        shares, levels = shares_of_levels(kernel, d), 1
        while (
            levels < len(shares) - 1 and sum(num_harmonics(d, n) for n in range(levels + 1)) <= self.num_features // 2
        ):
            levels += 1
        basis = SphericalHarmonics(d, levels)
        key_low, key_high, key_weights = jax.random.split(self.key, 3)
        xi = jax.random.normal(key_low, (basis.num, self.num_outputs), X.dtype)
        low = matmul(basis.rows(X).T, root_of_eigenvalues(kernel, basis)[:, None] * xi)
        num = self.num_features - basis.num
        phi = zonal_features(key_high, max(num, 1), X, shares.at[:levels].set(0.0))
        return low + matmul(phi, jax.random.normal(key_weights, (phi.shape[1], self.num_outputs), X.dtype))


def root_of_eigenvalues(kernel: Kernel, basis: SphericalHarmonics) -> Float[Array, " M"]:
    """sqrt(lambda_m) of each harmonic of a basis."""
    eigenvalues = kernel.eigenvalues(basis.dimension, max(basis.levels) + 1)
    return safe_sqrt(eigenvalues)[basis.degrees]


class _Chordal(Zonal):
    """A stationary kernel at the chordal distance r = sqrt(2 (1 - t)) / lengthscale of two points of the sphere."""

    lengthscale: Array = param(positive, default=1.0)
    variance: Array = param(positive, default=1.0)

    def __check_init__(self):
        self._check_ranks(lengthscale=0, variance=0)

    @abc.abstractmethod
    def _log_derivatives(self, gap: Array, levels: np.ndarray) -> Array:
        """log kappa^(n) of variance 1 at 1 - t = gap for each level n, [L, K]."""

    def eigenvalues(self, dimension, levels):
        values = coefficients_of_derivatives(self._log_derivatives, dimension, levels, dtype_of(self))
        return self.variance * values


class SphericalRBF(_Chordal):
    """variance * exp(-(1 - t) / lengthscale^2)."""

    def shape(self, t):
        return self.variance * jnp.exp(-(1.0 - t) / self.lengthscale**2)

    def _log_derivatives(self, gap, levels):
        n = jnp.asarray(levels, gap.dtype)[:, None]
        return -2.0 * n * jnp.log(self.lengthscale) - gap / self.lengthscale**2


class _SphericalMatern(_Chordal):
    """Matern kernels of order p + 1/2, with a = sqrt(2p + 1) r.

    With K the modified Bessel function, the n-th derivative by t of a^nu K_nu(a) is rate^(2n) a^(nu - n) K_(nu - n)(a),
    rate = sqrt(2p + 1) / lengthscale, a polynomial times exp(-a) and a power of a.
    """

    p: eqx.AbstractClassVar[int]

    def _log_derivatives(self, gap, levels):
        rate = math.sqrt(2.0 * self.p + 1.0) / self.lengthscale
        a = rate * jnp.sqrt(2.0 * gap)
        # log of the polynomials q_k = (2k - 1) q_(k-1) + a^2 q_(k-2), q_0 = 1, q_1 = 1 + a; in a loop, which compiles fast
        highest = max(self.p, len(levels) - self.p - 1)

        def following(state, k):
            log, ratio = state
            ratio = jnp.where(k == 1.0, 1.0 + a, (2.0 * k - 1.0) + a**2 / ratio)
            log = log + jnp.log(ratio)
            return (log, ratio), log

        k = jnp.arange(1, highest + 1).astype(a.dtype)
        logs = jax.lax.scan(following, (jnp.zeros_like(a), jnp.ones_like(a)), k)[1]
        logs = jnp.concatenate([jnp.zeros_like(a)[None], logs])
        order = np.where(levels > self.p, levels - self.p - 1, self.p - levels)
        powers = jnp.asarray(np.where(levels > self.p, 2.0 * order + 1.0, 0.0), a.dtype)
        nu = self.p + 0.5
        normaliser = (1.0 - nu) * math.log(2.0) - math.lgamma(nu) + 0.5 * math.log(0.5 * math.pi)
        by_level = 2.0 * jnp.asarray(levels, a.dtype)[:, None] * jnp.log(rate)
        return normaliser + by_level + logs[order] - powers[:, None] * jnp.log(a) - a


class SphericalMatern12(_SphericalMatern):
    """variance * exp(-r)."""

    p = 0

    def shape(self, t):
        return self.variance * jnp.exp(-safe_sqrt(2.0 * (1.0 - t)) / self.lengthscale)


class SphericalMatern32(_SphericalMatern):
    """variance * (1 + a) exp(-a), a = sqrt(3) r."""

    p = 1

    def shape(self, t):
        return self.variance * matern32(6.0 * jnp.maximum(1.0 - t, 0.0) / self.lengthscale**2)


class SphericalMatern52(_SphericalMatern):
    """variance * (1 + a + a^2 / 3) exp(-a), a = sqrt(5) r."""

    p = 2

    def shape(self, t):
        return self.variance * matern52(10.0 * jnp.maximum(1.0 - t, 0.0) / self.lengthscale**2)


class _Network(Zonal):
    """The kernel of an infinitely wide network of rectified units, without biases: its shape has no parameters but a scale."""

    depth: int = eqx.field(static=True, default=1)
    variance: Array = param(positive, default=1.0)

    def __check_init__(self):
        if not isinstance(self.depth, int) or self.depth < 1:
            raise ValueError(f"{type(self).__name__}: depth expects a whole number of at least 1, got {self.depth!r}")
        self._check_ranks(variance=0)

    @abc.abstractmethod
    def unit_shape(self, t: Float[Array, "..."]) -> Float[Array, "..."]:
        """The shape at variance 1."""

    def shape(self, t):
        return self.variance * self.unit_shape(t)

    def _unit_eigenvalues(self, dimension: int, levels: int) -> np.ndarray:
        return constant_coefficients(self.unit_shape, dimension, levels)

    def eigenvalues(self, dimension, levels):
        values = np.where(self.vanishing(dimension, levels), 0.0, self._unit_eigenvalues(dimension, levels))
        return self.variance * jnp.asarray(values, dtype_of(self))


class SphericalArcCosine(_Network):
    """variance * J_order(angle) / J_order(0), through `depth` layers (Cho and Saul, 2009): units max(0, w . x)^order.

    Of one layer the eigenvalues are squares of the Funk-Hecke coefficients of a unit, and those of every second degree
    above the order vanish.
    """

    order: int = eqx.field(static=True, default=1)

    def __init__(self, order: int = 1, depth: int = 1, variance: Array | float = 1.0):
        self.order, self.depth, self.variance = order, depth, variance

    def __check_init__(self):
        if not isinstance(self.order, int) or self.order not in (0, 1, 2):
            raise ValueError(f"SphericalArcCosine: order expects 0, 1 or 2, got {self.order!r}")

    def unit_shape(self, t):
        for _ in range(self.depth):
            t = cosines(angular(self.order, t), terms=1)
        return t

    def _unit_eigenvalues(self, dimension, levels):
        if self.depth > 1:
            return super()._unit_eigenvalues(dimension, levels)
        # E[max(0, t)^(2 order)] is the sum of N_n times the squares.
        i = np.arange(self.order)
        return (
            rectified_coefficients(self.order, dimension, levels) ** 2
            * 2.0
            / np.prod((2 * i + 1) / (dimension + 2 * i))
        )

    def vanishing(self, dimension, levels):
        n = np.arange(levels)
        return (n > self.order) & ((n - self.order) % 2 == 0) & (self.depth == 1)


class SphericalNTK(_Network):
    """The tangent kernel of an infinitely wide network of max(0, w . x) with `depth` hidden layers (Jacot et al., 2018), as
    a cosine.

    With c the kernel of a layer, k_0 and k_1 the arc-cosine shapes of order 0 and 1: theta <- k_1(c) + theta k_0(c), c <- k_1(c).
    """

    def unit_shape(self, t):
        c = theta = t
        for _ in range(self.depth):
            following = cosines(angular(1, c), terms=1)
            theta, c = following + theta * angular(0, c), following
        return theta / (self.depth + 1.0)

    def vanishing(self, dimension, levels):
        n = np.arange(levels)
        return (n > 1) & (n % 2 == 1) & (self.depth == 1)


class _OfDimension(Zonal):
    """A kernel whose shape differs with the dimension of the sphere."""

    def shape(self, t):
        raise ValueError(f"the shape of {type(self).__name__} differs with the dimension: use shape_on(dimension, t)")

    @abc.abstractmethod
    def shape_on(self, dimension: int, t: Float[Array, "..."]) -> Float[Array, "..."]:
        """kappa(t) on the sphere in R^d."""


class _Spectral(_OfDimension):
    """A kernel that is given by its eigenvalues: those of a process on the sphere itself, up to degree `truncation` - 1.

    The eigenvalues are scaled so that kappa(1) is the variance.
    """

    variance: Array = param(positive, default=1.0)
    truncation: int = eqx.field(static=True, default=64, kw_only=True)

    def __check_init__(self):
        if not isinstance(self.truncation, int) or self.truncation < 1:
            raise ValueError(
                f"{type(self).__name__}: truncation expects a whole number of at least 1, got {self.truncation!r}"
            )
        self._check_ranks(variance=0)

    @abc.abstractmethod
    def _log_spectrum(self, dimension: int, n: Array) -> Array:
        """log lambda_n, up to a constant."""

    def _shares(self, dimension: int) -> Array:
        n = np.arange(self.truncation)
        logs = self._log_spectrum(dimension, jnp.asarray(n, dtype_of(self)))
        return self.variance * jax.nn.softmax(logs + jnp.asarray(log_num_harmonics(dimension, n), logs.dtype))

    def shape_on(self, dimension, t):
        return zonal_series(dimension, self._shares(dimension).astype(t.dtype), t)

    def eigenvalues(self, dimension, levels):
        shares = self._shares(dimension)[:levels]
        values = shares / jnp.exp(jnp.asarray(log_num_harmonics(dimension, np.arange(len(shares))), shares.dtype))
        return jnp.concatenate([values, jnp.zeros(levels - len(values), values.dtype)])

    def vanishing(self, dimension, levels):
        return np.arange(levels) >= self.truncation


class IntrinsicMatern(_Spectral):
    """lambda_n ~ (2 nu / lengthscale^2 + n (n + d - 2))^-(nu + (d - 1) / 2): Matern's process by the Laplacian of the sphere.

    Its functions are as smooth as those of the flat kernel, and distances are along the sphere (Borovitskiy et al., 2020).
    """

    nu: float = eqx.field(static=True)
    lengthscale: Array = param(positive)

    def __init__(self, lengthscale=1.0, variance=1.0, nu: float = 1.5, *, truncation: int = 64):
        self.lengthscale, self.variance, self.nu, self.truncation = lengthscale, variance, float(nu), truncation

    def __check_init__(self):
        self._check_ranks(lengthscale=0)
        if not (math.isfinite(self.nu) and self.nu > 0.0):
            raise ValueError(f"IntrinsicMatern: nu expects a positive number, got {self.nu}; HeatKernel is its limit")

    def _log_spectrum(self, dimension, n):
        return -(self.nu + 0.5 * (dimension - 1)) * jnp.log(
            2.0 * self.nu / self.lengthscale**2 + n * (n + dimension - 2.0)
        )


class HeatKernel(_Spectral):
    """lambda_n ~ exp(-lengthscale^2 n (n + d - 2) / 2): heat that has spread on the sphere, its counterpart of an RBF."""

    lengthscale: Array = param(positive)

    def __init__(self, lengthscale=1.0, variance=1.0, *, truncation: int = 64):
        self.lengthscale, self.variance, self.truncation = lengthscale, variance, truncation

    def __check_init__(self):
        self._check_ranks(lengthscale=0)

    def _log_spectrum(self, dimension, n):
        return -0.5 * self.lengthscale**2 * n * (n + dimension - 2.0)


class PolynomialDecay(_Spectral):
    """lambda_n ~ (1 + n)^-power."""

    power: Array = param(positive)

    def __init__(self, power=4.0, variance=1.0, *, truncation: int = 64):
        self.power, self.variance, self.truncation = power, variance, truncation

    def __check_init__(self):
        self._check_ranks(power=0)

    def _log_spectrum(self, dimension, n):
        return -self.power * jnp.log1p(n)


class PoissonKernel(_OfDimension):
    """lambda_n ~ radius^n: variance * ((1 - radius)^2 / (1 - 2 radius t + radius^2))^(d / 2)."""

    radius: Array = param(unit_interval, default=0.5)
    variance: Array = param(positive, default=1.0)

    def __check_init__(self):
        self._check_ranks(radius=0, variance=0)

    def shape_on(self, dimension, t):
        ratio = (1.0 - self.radius) ** 2 / (1.0 - 2.0 * self.radius * t + self.radius**2)
        return self.variance * ratio ** (0.5 * dimension)

    def eigenvalues(self, dimension, levels):
        n = jnp.arange(levels).astype(dtype_of(self))
        return self.variance * self.radius**n * (1.0 - self.radius) ** (dimension - 1) / (1.0 + self.radius)
