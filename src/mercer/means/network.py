"""A mean that is a neural network, or any other function with parameters."""

from mercer import modules
from mercer.means.base import Mean
from mercer.parameters import param, real


class Network(Mean):
    """module(x): an `equinox` module that takes a row [D] to [P]. All of its arrays are parameters."""

    module: modules.Module = param(real)

    def __check_init__(self):
        modules.check_module(self.module, "Network")

    def _values(self, X):
        return modules.of_rows(self.module, X, "Network")
