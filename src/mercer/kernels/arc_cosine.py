"""The arc-cosine functions of wide networks of units max(0, w . x)^order (Cho and Saul, 2009), of the cosine of an angle."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.roots import safe_sqrt

# arccos(c) = sqrt(1 - c) p(c) for c in [0, 1] to 2e-8 (Abramowitz and Stegun, 4.4.46), below the rounding of float32.
_ARC_COSINE = (
    *(1.5707963050, -0.2145988016, 0.0889789874, -0.0501743046),
    *(0.0308918810, -0.0170881256, 0.0066700901, -0.0012624911),
)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def angular(order: int, c: Float[Array, "..."]) -> Float[Array, "..."]:
    """J_order(t) / J_order(0) as a function of c = cos t.

    J_0 = pi - t, J_1 = sin t + (pi - t) cos t, J_2 = 3 sin t cos t + (pi - t)(1 + 2 cos^2 t).
    """
    rest = _supplement(c)
    if order == 0:
        return rest / jnp.pi
    if order == 1:
        return (_sine(c) + rest * c) / jnp.pi
    return (_sine(c) * c + rest * (1.0 + 2.0 * c**2) / 3.0) / jnp.pi


@angular.defjvp
def _angular_jvp(order, primals, tangents):
    # J_n'(c) = n^2 J_{n-1}(c), with J_0(0) = J_1(0) = pi and J_2(0) = 3 pi. J_0'(c) = 1 / sin t has a pole at t = 0, which no
    # path of coincident inputs moves through.
    (c,), (dc,) = primals, tangents
    if order == 0:
        s = _sine(c)
        slope = jnp.where(s > 0.0, 1.0 / (jnp.pi * jnp.where(s > 0.0, s, 1.0)), 0.0)
    else:
        slope = (1.0, 4.0 / 3.0)[order - 1] * angular(order - 1, c)
    return angular(order, c), slope * dc


def _supplement(c: Array) -> Array:
    """pi - arccos(c); c beyond 1 or -1 counts as these. On the CPU XLA's arc tangent is slow, a polynomial is not (measured)."""
    if c.dtype != jnp.float32:
        return jnp.pi - jnp.arctan2(_sine(c), c)
    size = jnp.minimum(jnp.abs(c), 1.0)
    angle = jnp.sqrt(1.0 - size) * jnp.polyval(jnp.asarray(_ARC_COSINE[::-1], c.dtype), size)
    return jnp.where(c < 0.0, angle, jnp.pi - angle)


def _sine(c: Array) -> Array:
    return safe_sqrt((1.0 - c) * (1.0 + c))


def cosines(c: Float[Array, "..."], terms: int) -> Float[Array, "..."]:
    """c, with what differs from 1 or -1 by no more than the rounding of a sum of `terms` put there.

    An angle is the square root of what c lacks to 1, which would turn a rounding error of 1e-16 into one of 1e-8. The
    derivative is that of c: at coincident points its first is 0, its second is not.
    """
    tolerance = 4.0 * terms * jnp.finfo(c.dtype).eps
    exact = jnp.where(jnp.abs(c) > 1.0 - tolerance, jnp.sign(c), c)
    return c + jax.lax.stop_gradient(exact - c)
