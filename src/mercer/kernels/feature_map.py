"""A kernel on learned features of the input (paper 000, equation 5.2; deep kernel learning, Wilson et al., 2016)."""

from mercer import modules
from mercer.kernels.base import Kernel
from mercer.parameters import cast, param, real


class FeatureMap(Kernel):
    """base(h(x), h(x')), h an `equinox` module that takes a row [D] to features [F]. Parameters: the base's and all of h's.

    With a stationary base the variances k(x, x) say nothing about h; a base that is not stationary (`Linear`, `Polynomial`,
    `ArcCosine`) lets them differ from one input to another.
    """

    base: Kernel
    module: modules.Module = param(real)

    def __check_init__(self):
        if not isinstance(self.base, Kernel):
            raise ValueError(f"FeatureMap: base expects a mercer kernel of one output, got {type(self.base).__name__}")
        modules.check_module(self.module, "FeatureMap")

    def _of_rows(self, X):
        return modules.of_rows(self.module, X, "FeatureMap")

    def _matrix(self, X, X2):
        return self.base._matrix(self._of_rows(X), None if X2 is None else self._of_rows(X2))

    def _diagonal(self, X):
        return self.base._diagonal(self._of_rows(X))

    def _features(self, key, num, X):
        return self.base.features(num, key=key)(cast(self, X.dtype)._of_rows(X))
