"""Spherical harmonics and zonal kernels, or their homogeneous extensions: Kuu = diag(1 / lambda), Kuf = phi(x)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer import validation
from mercer.covariances.dispatch import Kuf, Kuu, feature_parameters, has_fixed_features
from mercer.covariances.draws import draw_jointly
from mercer.harmonics import SphericalHarmonics as Basis
from mercer.harmonics.gegenbauer import zonal_features
from mercer.inducing.spherical import SphericalHarmonics
from mercer.kernels.base import Kernel
from mercer.kernels.maps import Draw, Map
from mercer.kernels.zonal import shares_of_levels
from mercer.linalg.operators import PSD, Diagonal
from mercer.linalg.products import matmul
from mercer.parameters import cast, constant


def eigenvalues_of(basis: Basis, kernel: Kernel) -> Float[Array, " M"]:
    """lambda_m of each harmonic. What rounding has left at or below 0 is a number that is as good as 0, and can be divided by."""
    eigenvalues = kernel.eigenvalues(basis.dimension, max(basis.levels) + 1)
    least = jnp.finfo(eigenvalues.dtype).tiny ** 0.5 * jnp.max(eigenvalues)
    return jnp.maximum(eigenvalues, least)[basis.degrees]


def unit_vectors(dimension: int, kernel: Kernel, X: Any) -> tuple[Float[Array, "N d"], Float[Array, " N"] | None]:
    """Inputs as points of the sphere in R^d, and the factors of a kernel there."""
    X = validation.inputs(X)
    units, scale = cast(kernel, X.dtype).on_sphere(X)
    if units.shape[1] != dimension:
        raise ValueError(
            f"{type(kernel).__name__} with X of {X.shape[1]} columns lives on the sphere in {units.shape[1]} dimensions, "
            f"the inducing variables in {dimension}"
        )
    return units, scale


@Kuu.dispatch
def _(inducing: SphericalHarmonics, kernel: Kernel) -> PSD:
    return Diagonal(1.0 / eigenvalues_of(inducing.basis_under(kernel), kernel))


@Kuf.dispatch
def _(inducing: SphericalHarmonics, kernel: Kernel, X) -> Array:
    units, scale = unit_vectors(inducing.dimension, kernel, X)
    features = inducing.basis_under(kernel).rows(units)
    return features if scale is None else features * scale


@feature_parameters.dispatch
def _(inducing: SphericalHarmonics, kernel: Kernel) -> tuple:
    return kernel.sphere_parameters()


@has_fixed_features.dispatch
def _(inducing: SphericalHarmonics, kernel: Kernel) -> bool:
    return not kernel.sphere_parameters()


@draw_jointly.dispatch
def _(inducing: SphericalHarmonics, kernel: Kernel, key: Any, num_features: int, num_outputs: int) -> tuple:
    """The Karhunen-Loeve expansion over the levels of the variables, and random zonal functions of all other levels.

    f = sum_m sqrt(lambda_m) xi_m phi_m has u_m = xi_m / sqrt(lambda_m).
    """
    basis = inducing.basis_under(kernel)
    whole = Basis(basis.dimension, basis.levels)
    draw, xi = draw_of_levels(whole, kernel, key, num_features, num_outputs)
    return draw, (xi / jnp.sqrt(eigenvalues_of(whole, kernel))[:, None])[: basis.num]


def draw_of_levels(
    basis: Basis, kernel: Kernel, key: Any, num_features: int, num_outputs: int
) -> tuple[Draw, Float[Array, "M P"]]:
    """A draw f = sum_m sqrt(lambda_m) xi_m phi_m over the whole levels of a basis, with all other levels by random zonal
    functions; and xi."""
    root = jnp.sqrt(eigenvalues_of(basis, kernel))[:, None]
    key_low, key_rest = jax.random.split(key)
    xi = jax.random.normal(key_low, (basis.num, num_outputs), root.dtype)
    return Draw(_Expansion(kernel, basis, root * xi, key_rest, max(num_features - basis.num, 64))), xi


class _Expansion(Map):
    """sum_m weights_m phi_m(x) over whole levels, and all other levels by random zonal functions."""

    kernel: Kernel = constant()
    basis: Basis = constant()
    weights: Float[Array, "M P"] = constant()
    key: Array = constant()
    num_features: int = eqx.field(static=True, default=64)

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        kernel = cast(self.kernel, X.dtype)
        units, scale = unit_vectors(self.basis.dimension, kernel, X)
        key_features, key_weights = jax.random.split(self.key)
        shares = shares_of_levels(kernel, self.basis.dimension, max(self.basis.levels) + 2)
        phi = zonal_features(
            key_features, self.num_features, units, shares.at[np.array(self.basis.levels, np.int32)].set(0.0)
        )
        values = matmul(self.basis.rows(units).T, self.weights.astype(X.dtype))
        values = values + matmul(phi, jax.random.normal(key_weights, (phi.shape[1], values.shape[1]), X.dtype))
        return values if scale is None else scale[:, None] * values
