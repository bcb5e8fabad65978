"""Covariances of inducing variables, chosen by the pair (inducing variables, kernel)."""

from mercer.covariances import derivative as _derivative  # noqa: F401  (these modules register their pairs)
from mercer.covariances import fourier as _fourier  # noqa: F401
from mercer.covariances import integral as _integral  # noqa: F401
from mercer.covariances import mixed as _mixed  # noqa: F401
from mercer.covariances import multiscale as _multiscale  # noqa: F401
from mercer.covariances import points as _points  # noqa: F401
from mercer.covariances import weighted as _weighted  # noqa: F401
from mercer.covariances.dispatch import Kuf, Kuu, Kuv

__all__ = ["Kuf", "Kuu", "Kuv"]
