"""What a process is expected to be before the data: mean functions."""

from mercer.means.base import Mean
from mercer.means.network import Network
from mercer.means.polynomial import Constant, Linear, Polynomial, Zero
from mercer.means.projection import Projection
from mercer.means.sparse import Sparse

__all__ = ["Mean", "Zero", "Constant", "Linear", "Polynomial", "Projection", "Network", "Sparse"]
