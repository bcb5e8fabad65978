"""Inputs as functionals: a process that is asked for its values at X may as well be asked for other linear functionals.

Where these functions take X they take an array of inputs, [N, D], or inducing variables: derivatives, integrals, a mixture.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer import validation
from mercer.covariances.dispatch import Kuf, Kuu, Kuv
from mercer.inducing.base import InducingVariables
from mercer.inducing.latent import LatentVariables
from mercer.inducing.points import Points
from mercer.kernels.base import Kernel
from mercer.parameters import cast, is_concrete


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


def dtype_of(X: Any) -> Any:
    """The dtype of inputs or functionals; None where they hold no floating-point numbers."""
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(X) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.result_type(*dtypes) if dtypes else None


def all_concrete(X: Any) -> bool:
    """Whether all numbers of inputs or functionals can be looked at."""
    return all(is_concrete(leaf) for leaf in jax.tree.leaves(X))


def as_dtype(X: Any, dtype: Any) -> Any:
    """Inputs or functionals in a dtype."""
    return cast(X, dtype)


def as_variables(X: Any) -> InducingVariables:
    """Inputs as the functionals that they stand for: values at points."""
    return X if is_functional(X) else Points(X)


def cross_covariance(inducing: InducingVariables, kernel: Any, X: Any) -> Array:
    """`Kuf`, or `Kuv` where X stands for functionals."""
    return Kuv(inducing, kernel, X) if is_functional(X) else Kuf(inducing, kernel, X)


def prior_variance(kernel: Kernel, X: Any) -> Float[Array, " N"]:
    """The prior variances of f(X) for a kernel of one output."""
    return Kuu(X, kernel).diagonal() if is_functional(X) else kernel.diag(X)


def prior_matrix(kernel: Kernel, X: Any) -> Float[Array, "N N"]:
    """The prior covariance of f(X) for a kernel of one output."""
    return Kuu(X, kernel).dense() if is_functional(X) else kernel(X)
