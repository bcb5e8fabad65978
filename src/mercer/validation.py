"""Checks of what users pass in: each raises a ValueError that names the argument, what came and what was expected."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mercer.parameters import is_concrete

AnyArray = jax.Array | np.ndarray  # what users pass for an array; what they get is JAX's
OneOrMany = AnyArray | np.generic | float | Sequence[Any]  # one number or many, as `numpy.asarray` takes them


def inputs(X: Any, name: str = "X") -> Array:
    """X as a JAX array [N, D] of finite floating-point numbers."""
    X = floating(X, name)
    if X.ndim != 2:
        hint = f"; for one-dimensional inputs pass {name}[:, None]" if X.ndim == 1 else ""
        raise ValueError(f"{name} must be two-dimensional [N, D], got shape {X.shape}{hint}")
    finite(X, name)
    return X


def floating(values: Any, name: str) -> Array:
    """An array of float32 or float64, the dtypes that factorisations work in."""
    if not isinstance(values, jax.Array | np.ndarray):
        values = np.asarray(values)
    if values.dtype not in (jnp.float32, jnp.float64):
        raise ValueError(f"{name} must be float32 or float64, got {values.dtype}; convert it with {name}.astype(float)")
    return jnp.asarray(values)


def finite(values: AnyArray, name: str) -> None:
    """Refuses NaN and infinities where the numbers are known."""
    if is_concrete(values) and not is_finite(values):
        rows = np.unique(np.argwhere(~np.isfinite(np.asarray(values)))[:, 0])
        raise ValueError(
            f"{name} must be finite, got NaN or inf in {len(rows)} of {len(values)} rows (first: row {rows[0]})"
        )


def is_finite(values: AnyArray) -> bool:
    """Whether numbers that are known hold neither NaN nor infinities."""
    return not _any(lambda xp, values: ~xp.isfinite(values), values)


def _any(predicate: Callable[[Any, AnyArray], Any], values: AnyArray) -> bool:
    """Whether a predicate is true of a number, by NumPy where that moves nothing: then nothing is compiled."""
    if jax.default_backend() == "cpu":
        return bool(predicate(np, np.asarray(values)).any())
    with jax.ensure_compile_time_eval():  # a concrete array may meet us inside somebody's jit
        return bool(predicate(jnp, values).any())


def elementwise(function: Any, name: str) -> None:
    """Refuses what is not a function of each entry of an array, or holds parameters."""
    if not callable(function):
        raise ValueError(f"{name} expects a function of an array, got {function!r}")
    try:
        hash(function)
    except TypeError as error:
        raise ValueError(f"{name} expects a function without parameters, got {function!r}") from error
    probe = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    try:
        found = jax.eval_shape(function, probe)
    except Exception as error:
        brief = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{name} fails on an array of shape (2, 3): {brief}") from error
    if getattr(found, "shape", None) != probe.shape or not jnp.issubdtype(found.dtype, jnp.floating):
        raise ValueError(
            f"{name} expects to return a number for each entry: for float32 of shape (2, 3) it gave {found}"
        )


def outputs(Y: Any, num_data: int, name: str = "Y", *, discrete: bool = False) -> Array:
    """Y as a JAX array [N, P]; NaN means not observed. Integers are taken where the likelihood is over integers."""
    if discrete and not isinstance(Y, jax.Array):
        Y = np.asarray(Y)
    if discrete and jnp.issubdtype(Y.dtype, jnp.integer):
        Y = jnp.asarray(Y).astype(float)
    Y = floating(Y, name)
    if Y.ndim != 2:
        hint = f"; for one output pass {name}[:, None]" if Y.ndim == 1 else ""
        raise ValueError(f"{name} must be two-dimensional [N, P], got shape {Y.shape}{hint}")
    if len(Y) != num_data:
        raise ValueError(f"X and {name} must have the same number of rows, got {num_data} and {len(Y)}")
    if is_concrete(Y) and _any(lambda xp, y: xp.isinf(y), Y):
        raise ValueError(f"{name} must not hold infinities (NaN means not observed)")
    return Y


def same_columns(X: Array, X2: Array, name: str = "X2") -> None:
    """Refuses inputs of different dimension."""
    if X.shape[1] != X2.shape[1]:
        raise ValueError(f"X and {name} must have the same number of columns, got {X.shape[1]} and {X2.shape[1]}")


def is_complete(Y: Array) -> bool:
    """Whether Y is known to hold no NaN."""
    return is_concrete(Y) and not _any(lambda xp, y: xp.isnan(y), Y)
