"""Old spellings that still work, each with a DeprecationWarning: one mechanism for each kind of change."""

import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_MARK = "_takes_key_by_name"


def warn(message: str, depth: int = 1) -> None:
    """Warns at the line that uses an old spelling: the one that calls the function that calls this one.

    A `depth` of 2 is the caller of that one, and so on.
    """
    level, frame = 1, sys._getframe()
    passed = 0  # functions of ours or of users; a constructor or a method is called through equinox, or through checks of types
    while frame.f_back is not None and (passed <= depth or _is_between(frame)):
        level, frame = level + 1, frame.f_back
        passed += not _is_between(frame)
    warnings.warn(message, DeprecationWarning, level)


def _is_between(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").startswith(("equinox.", "jaxtyping."))


def _warn_at(function: Callable, message: str) -> None:
    """Warns where a function is written."""
    function = inspect.unwrap(function)
    code = function.__code__
    warnings.warn_explicit(message, DeprecationWarning, code.co_filename, code.co_firstlineno, function.__module__)


def key_by_name(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A function that takes its `key` by name; as a positional argument, too, which is the old way.

    A method that overrides such a one is made one by `adapt`.
    """

    @functools.wraps(function)
    def with_key(*args: Any, **kwargs: Any) -> Result:
        place = next((i for i, value in enumerate(args) if _is_key(value)), None)
        if place is not None and "key" not in kwargs:
            warn(f"{function.__qualname__}: the key comes last and by name, key=...")
            args, kwargs = args[:place] + args[place + 1 :], kwargs | {"key": args[place]}
        return function(*args, **kwargs)

    setattr(with_key, _MARK, True)
    return with_key


def _is_key(value: Any) -> bool:
    """Whether a value is a key of JAX, of either kind: one of its own dtype, or a vector of unsigned numbers."""
    if not isinstance(value, jax.Array | np.ndarray):
        return False
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key) or (value.dtype == np.uint32 and value.ndim == 1)


def adapt(cls: type) -> None:
    """Makes the methods of a new class take `key` by name where those that they override do.

    One that is written the old way, with the key first, is called that way.
    """
    for name, method in list(vars(cls).items()):
        if not callable(method) or hasattr(method, _MARK):
            continue
        overridden = next((vars(parent)[name] for parent in cls.__mro__[1:] if name in vars(parent)), None)
        if hasattr(overridden, _MARK):
            setattr(cls, name, key_by_name(_key_last(method)))


def _key_last(method: Callable) -> Callable:
    _, *parameters = inspect.signature(method).parameters.values()
    by_name = any(p.name == "key" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    if by_name and parameters[0].name != "key":
        return method
    _warn_at(method, f"{method.__qualname__}: write it with the key last and by name, (self, ..., *, key)")

    @functools.wraps(method)
    def key_first(self: Any, *args: Any, key: Any, **kwargs: Any) -> Any:
        return method(self, key, *args, **kwargs)

    return key_first


def old_name(old: str, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A function under the name that it had before, which warns."""

    @functools.wraps(function)
    def under_old_name(*args: Any, **kwargs: Any) -> Result:
        warn(f"{old} is called {function.__qualname__} now")
        return function(*args, **kwargs)

    return under_old_name


def rename_method(cls: type, old: str, new: str) -> None:
    """In a new class, makes a method that has the old name the one of the new name, and the other way round."""
    own = vars(cls)
    if new in own and old not in own:
        setattr(cls, old, old_name(f"{cls.__qualname__}.{old}", own[new]))
    elif old in own and new not in own:
        _warn_at(own[old], f"{own[old].__qualname__}: call it {new}")
        setattr(cls, new, own[old])
