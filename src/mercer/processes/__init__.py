"""Processes: each gives a Gaussian, or a mixture of Gaussians, at any inputs."""

from mercer.layouts import Layout
from mercer.processes.activated_units import ActivatedUnits
from mercer.processes.base import Function, Process
from mercer.processes.bayesian_network import BayesianNetwork
from mercer.processes.cached import CachedConditioned, CachedKronecker
from mercer.processes.cached_sparse import CachedSparse
from mercer.processes.conditioned import Conditioned
from mercer.processes.deep import Deep, DeepDraw
from mercer.processes.deterministic import Deterministic, DeterministicFunction
from mercer.processes.from_network import Remainder
from mercer.processes.gaussian import Gaussian, Mixture, Prediction
from mercer.processes.network import Network, NetworkDraw, NetworkPrior
from mercer.processes.prior import GP
from mercer.processes.sparse import Sparse
from mercer.processes.stochastic import Pass, Stochastic
from mercer.processes.tempered import Tempered
from mercer.processes.uncertain import Uncertain
from mercer.processes.weights import (
    DiagonalCovariance,
    FullCovariance,
    KroneckerBlock,
    KroneckerCovariance,
    LowRankCovariance,
    ReducedCovariance,
    SharedCovariance,
    WeightCovariance,
)

__all__ = [
    "Process",
    "Function",
    "Prediction",
    "Gaussian",
    "Mixture",
    "Layout",
    "GP",
    "Conditioned",
    "CachedConditioned",
    "CachedKronecker",
    "Sparse",
    "CachedSparse",
    "Tempered",
    "Network",
    "NetworkDraw",
    "NetworkPrior",
    "Deep",
    "DeepDraw",
    "Deterministic",
    "DeterministicFunction",
    "Stochastic",
    "Pass",
    "Remainder",
    "ActivatedUnits",
    "Uncertain",
    "BayesianNetwork",
    "WeightCovariance",
    "FullCovariance",
    "DiagonalCovariance",
    "LowRankCovariance",
    "ReducedCovariance",
    "SharedCovariance",
    "KroneckerBlock",
    "KroneckerCovariance",
]
