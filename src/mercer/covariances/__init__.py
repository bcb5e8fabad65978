"""Covariances of inducing variables, chosen by the pair (inducing variables, kernel)."""

from mercer.covariances import multioutput as _multioutput  # noqa: F401  (registers its pairs)
from mercer.covariances import patches as _patches  # noqa: F401  (registers its pairs)
from mercer.covariances import per_term as _per_term  # noqa: F401  (registers its pair)
from mercer.covariances import points as _points  # noqa: F401  (registers its pair)
from mercer.covariances.dispatch import Kuf, Kuu, Kuv

__all__ = ["Kuf", "Kuu", "Kuv"]
