"""Distributions in the place of inputs."""

from mercer.inputs.latent import Amortised, Latent, LatentInputs, LatentRows
from mercer.inputs.normal import Normal

__all__ = ["Normal", "LatentInputs", "LatentRows", "Latent", "Amortised"]
