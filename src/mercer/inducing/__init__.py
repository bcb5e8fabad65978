"""Inducing variables, and where to put inducing points."""

from mercer.inducing import activations
from mercer.inducing.activated import Activated
from mercer.inducing.alternation import Alternation, alternate
from mercer.inducing.base import InducingVariables
from mercer.inducing.derivative import Derivative
from mercer.inducing.fourier import FourierFeatures
from mercer.inducing.integral import Integral
from mercer.inducing.latent import LatentVariables, OutputPoints, Separate, Shared
from mercer.inducing.mixed import Mixed
from mercer.inducing.multiscale import Multiscale
from mercer.inducing.patches import Patches, random_patches
from mercer.inducing.per_term import PerTerm
from mercer.inducing.points import Points
from mercer.inducing.selection import greedy_indices, greedy_variance, kmeans, random_subset
from mercer.inducing.spherical import SphericalHarmonics
from mercer.inducing.weighted import Weighted

__all__ = [
    "InducingVariables",
    "Points",
    "Multiscale",
    "FourierFeatures",
    "SphericalHarmonics",
    "Activated",
    "activations",
    "Derivative",
    "Integral",
    "Weighted",
    "Patches",
    "Mixed",
    "PerTerm",
    "OutputPoints",
    "LatentVariables",
    "Shared",
    "Separate",
    "Alternation",
    "alternate",
    "greedy_indices",
    "greedy_variance",
    "kmeans",
    "random_patches",
    "random_subset",
]
