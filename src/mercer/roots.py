"""The square root, where it may be of 0."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def safe_sqrt(x: Float[Array, "..."] | float) -> Float[Array, "..."]:
    """sqrt(x), with derivative 0 where x is 0; what rounding has left below 0 counts as 0."""
    positive = x > 0.0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)
