"""Inducing variables, and where to put inducing points."""

from mercer.inducing.base import InducingVariables
from mercer.inducing.latent import LatentVariables, OutputPoints, Separate, Shared
from mercer.inducing.patches import Patches, random_patches
from mercer.inducing.per_term import PerTerm
from mercer.inducing.points import Points
from mercer.inducing.selection import greedy_indices, greedy_variance, kmeans, random_subset

__all__ = [
    "InducingVariables",
    "Points",
    "OutputPoints",
    "LatentVariables",
    "Shared",
    "Separate",
    "Patches",
    "PerTerm",
    "greedy_indices",
    "greedy_variance",
    "kmeans",
    "random_subset",
    "random_patches",
]
