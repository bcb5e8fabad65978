"""Covariances of inducing variables, chosen by the pair (inducing variables, kernel)."""

# These modules register their pairs.
from mercer.covariances import activated as _activated  # noqa: F401
from mercer.covariances import derivative as _derivative  # noqa: F401
from mercer.covariances import fourier as _fourier  # noqa: F401
from mercer.covariances import integral as _integral  # noqa: F401
from mercer.covariances import mixed as _mixed  # noqa: F401
from mercer.covariances import multioutput as _multioutput  # noqa: F401
from mercer.covariances import multiscale as _multiscale  # noqa: F401
from mercer.covariances import patches as _patches  # noqa: F401
from mercer.covariances import per_term as _per_term  # noqa: F401
from mercer.covariances import points as _points  # noqa: F401
from mercer.covariances import spherical as _spherical  # noqa: F401
from mercer.covariances import weighted as _weighted  # noqa: F401
from mercer.covariances.dispatch import Kuf, Kuu, Kuv, feature_parameters, has_fixed_features, size
from mercer.covariances.draws import draw_jointly
from mercer.covariances.expectations import psi0, psi1, psi2, psi2_sum, psi2_traces

__all__ = [
    "Kuf",
    "Kuu",
    "Kuv",
    "draw_jointly",
    "feature_parameters",
    "has_fixed_features",
    "psi0",
    "psi1",
    "psi2",
    "psi2_sum",
    "psi2_traces",
    "size",
]
