"""Divergences: how far a Gaussian q is from a Gaussian p, between numbers, jointly, and between processes."""

from mercer.divergences.base import Divergence, ScalarDivergence
from mercer.divergences.distances import SquaredDifference, Wasserstein
from mercer.divergences.over_inputs import GaussianWasserstein, Projected
from mercer.divergences.relative_entropy import KL, Jeffreys, ReverseKL
from mercer.divergences.renyi import Bhattacharyya, Hellinger, Renyi

__all__ = [
    "Divergence",
    "ScalarDivergence",
    "KL",
    "ReverseKL",
    "Jeffreys",
    "Renyi",
    "Bhattacharyya",
    "Hellinger",
    "Wasserstein",
    "SquaredDifference",
    "Projected",
    "GaussianWasserstein",
]
