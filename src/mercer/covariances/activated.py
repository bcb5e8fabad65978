"""Activated variables and zonal kernels, or their homogeneous extensions: Kuf is the units g_m(x), Kuu is <g_m, g_m'>_H.

Both are sums over the same degrees of the activation, so that they are covariances of the same variables.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer.covariances.dispatch import Kuf, Kuu, Kuv
from mercer.covariances.draws import draw_jointly
from mercer.covariances.spherical import draw_of_levels, unit_vectors
from mercer.harmonics import SphericalHarmonics as Basis
from mercer.harmonics.gegenbauer import root_num_harmonics, zonal_series
from mercer.inducing.activated import Activated
from mercer.kernels.arc_cosine import cosines
from mercer.kernels.base import Kernel
from mercer.linalg.operators import PSD, Dense
from mercer.linalg.products import matmul


@Kuf.dispatch
def _(inducing: Activated, kernel: Kernel, X) -> Array:
    """r |w_m| sum_n sigma_n N_n R_n(cos(w_m, x))."""
    d, amplitudes = inducing.dimension, inducing.amplitudes(kernel)
    units, scale = unit_vectors(d, kernel, X)
    norms, directions = inducing.polar()
    t = cosines(matmul(directions, units.T), terms=d)
    features = norms[:, None] * zonal_series(
        d, jnp.asarray(amplitudes * root_num_harmonics(d, len(amplitudes)), t.dtype), t
    )
    return features if scale is None else features * scale


@Kuv.dispatch
def _(first: Activated, kernel: Kernel, second: Activated) -> Array:
    """|w_m| |w_m'| sum_n sigma_n sigma'_n / lambda_n N_n R_n(cos(w_m, w_m')) (equation 4.4)."""
    if first.dimension != second.dimension:
        raise ValueError(
            f"Activated variables in {first.dimension} and in {second.dimension} dimensions have no covariance"
        )
    d, levels = first.dimension, min(first.levels, second.levels)
    (norms, directions), (norms2, directions2) = first.polar(), second.polar()
    t = cosines(matmul(directions, directions2.T), terms=d)
    # Divided by sqrt(lambda_n) twice: the derivative of 1 / lambda_n is not finite in float32, already in 33 dimensions.
    roots = jnp.sqrt(_eigenvalues(kernel, d, levels)).astype(t.dtype)
    scaled = [jnp.asarray(variables.amplitudes(kernel)[:levels], t.dtype) / roots for variables in (first, second)]
    return norms[:, None] * norms2 * zonal_series(d, scaled[0] * scaled[1], t)


@Kuu.dispatch
def _(inducing: Activated, kernel: Kernel) -> PSD:
    return Dense(Kuv(inducing, kernel, inducing))


def _eigenvalues(kernel: Kernel, dimension: int, levels: int) -> Float[Array, " levels"]:
    """lambda_n. A level has no less than the rounding of kappa(1) of the variance, and can be divided by."""
    eigenvalues = kernel.eigenvalues(dimension, levels)
    limits = jnp.finfo(eigenvalues.dtype)
    least = np.maximum(
        float(limits.eps) / root_num_harmonics(dimension, levels) ** 2, float(limits.tiny) / float(limits.eps)
    )
    total = kernel.shape_on(dimension, jnp.ones((), eigenvalues.dtype))
    return jnp.maximum(eigenvalues, total * jnp.asarray(least, eigenvalues.dtype))


@draw_jointly.dispatch
def _(inducing: Activated, kernel: Kernel, key: Any, num_features: int, num_outputs: int) -> tuple:
    """The Karhunen-Loeve expansion over the levels of the activation, and random zonal functions of all other levels.

    f = sum_nj sqrt(lambda_n) xi_nj phi_nj has u_m = |w_m| sum_nj sigma_n / sqrt(lambda_n) xi_nj phi_nj(w_m / |w_m|).
    """
    d, amplitudes = inducing.dimension, inducing.amplitudes(kernel)
    basis = Basis(d, [int(n) for n in np.flatnonzero(amplitudes)])
    draw, xi = draw_of_levels(basis, kernel, key, num_features, num_outputs)
    by_level = (amplitudes / root_num_harmonics(d, len(amplitudes))) / jnp.sqrt(
        _eigenvalues(kernel, d, len(amplitudes))
    )
    norms, directions = inducing.polar()
    return draw, norms[:, None] * matmul(basis.rows(directions).T, by_level[basis.degrees][:, None] * xi)
