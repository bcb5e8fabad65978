"""Distributions in the place of inputs."""

from mercer.inputs.normal import Normal

__all__ = ["Normal"]
