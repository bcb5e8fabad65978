"""Points of the sphere: unit vectors, and those of latitudes and longitudes."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer.parameters import is_concrete
from mercer.validation import AnyArray, OneOrMany


def check_unit(X: Float[AnyArray, "N d"], name: str = "X") -> None:
    """Refuses rows that are not unit vectors, where the numbers are known."""
    if not is_concrete(X) or not len(X):
        return
    norms = np.sqrt(np.sum(np.square(np.asarray(X)), axis=1))
    tolerance = 1e-3 if X.dtype == jnp.float32 else 1e-6
    wrong = np.flatnonzero(~(np.abs(norms - 1.0) < tolerance))
    if len(wrong):
        hint = (
            "a zero vector has no direction"
            if norms[wrong[0]] == 0.0
            else "divide them by their norms, or use Homogeneous"
        )
        raise ValueError(
            f"{name} must be points of the unit sphere, got {len(wrong)} of {len(X)} rows with other norms "
            f"(first: row {wrong[0]}, norm {norms[wrong[0]]:.6g}); {hint}"
        )


def from_latlon(latitude: OneOrMany, longitude: OneOrMany) -> Float[Array, "N 3"]:
    """Unit vectors of places on the globe, given in degrees: north and east are positive. Longitudes may be of any turn."""
    latitude, longitude = (np.atleast_1d(np.asarray(degrees, dtype=float)) for degrees in (latitude, longitude))
    if latitude.ndim != 1 or latitude.shape != longitude.shape:
        raise ValueError(
            f"latitude and longitude expect vectors of one length, got shapes {latitude.shape} and {longitude.shape}"
        )
    for name, degrees in (("latitude", latitude), ("longitude", longitude)):
        if not np.isfinite(degrees).all():
            raise ValueError(f"{name} must be finite, got NaN or inf in {np.sum(~np.isfinite(degrees))} rows")
    if np.any(np.abs(latitude) > 90.0):
        first = np.flatnonzero(np.abs(latitude) > 90.0)[0]
        raise ValueError(f"latitude must lie between -90 and 90 degrees, got {latitude[first]:.6g} in row {first}")
    theta, phi = np.radians(latitude), np.radians(longitude)
    return jnp.asarray(np.stack([np.cos(theta) * np.cos(phi), np.cos(theta) * np.sin(phi), np.sin(theta)], axis=1))
