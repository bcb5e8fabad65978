"""Experiments: any model from YAML, and back."""

from mercer.experiments.building import from_yaml, to_yaml
from mercer.experiments.text import ConfigurationError

__all__ = ["from_yaml", "to_yaml", "ConfigurationError"]
