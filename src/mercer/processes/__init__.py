"""Processes: each gives a Gaussian at any inputs."""

from mercer.layouts import Layout
from mercer.processes.base import Function, Process
from mercer.processes.conditioned import CachedConditioned, CachedKronecker, Conditioned
from mercer.processes.gaussian import Gaussian
from mercer.processes.prior import GP
from mercer.processes.sparse import CachedSparse, Sparse
from mercer.processes.tempered import Tempered

__all__ = [
    "Process",
    "Function",
    "Gaussian",
    "Layout",
    "GP",
    "Conditioned",
    "CachedConditioned",
    "CachedKronecker",
    "Sparse",
    "CachedSparse",
    "Tempered",
]
