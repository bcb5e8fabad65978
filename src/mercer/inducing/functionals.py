"""What stands in the place of X: inputs, or other linear functionals of the process, derivatives, integrals, a mixture."""

from typing import Any

import jax
import numpy as np

from mercer import validation
from mercer.inducing.base import InducingVariables
from mercer.inducing.latent import LatentVariables
from mercer.inducing.points import Points


def as_inputs(X: Any, name: str = "X") -> Any:
    """Inputs, checked, or functionals as they are."""
    if isinstance(X, LatentVariables):
        raise ValueError(
            f"{name} expects inputs or functionals of the process, got {type(X).__name__} of latent functions"
        )
    if is_functional(X):
        return X
    if not is_array(X):
        raise ValueError(f"{name} expects inputs, an array [N, D], or functionals, got {type(X).__name__}")
    return validation.inputs(X, name)


def is_functional(X: Any) -> bool:
    """Whether X stands for functionals, not for inputs."""
    return isinstance(X, InducingVariables)


def is_array(X: Any) -> bool:
    """Whether X stands for an array of inputs: not for functionals, nor for a tree of several arrays, nor None."""
    if X is None or is_functional(X):
        return False
    if isinstance(X, jax.Array | np.ndarray | list):
        return True
    leaves = jax.tree.leaves(X)
    return not leaves or not all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves)


def as_variables(X: Any) -> InducingVariables:
    """Inputs as the functionals that they stand for: values at points."""
    return X if is_functional(X) else Points(X)
