"""Inducing variables, and where to put inducing points."""

from mercer.inducing.base import InducingVariables
from mercer.inducing.derivative import Derivative
from mercer.inducing.fourier import FourierFeatures
from mercer.inducing.integral import Integral
from mercer.inducing.mixed import Mixed
from mercer.inducing.multiscale import Multiscale
from mercer.inducing.points import Points
from mercer.inducing.selection import greedy_indices, greedy_variance, kmeans, random_subset
from mercer.inducing.weighted import Weighted

__all__ = [
    "InducingVariables",
    "Points",
    "Derivative",
    "Weighted",
    "Integral",
    "Multiscale",
    "FourierFeatures",
    "Mixed",
    "greedy_indices",
    "greedy_variance",
    "kmeans",
    "random_subset",
]
