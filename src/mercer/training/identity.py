"""What a training run is made of, in words that two runs can be compared by.

A description takes a tree of modules, settings and functions to pairs of a path and a short text. An optimiser of optax is two
functions: what it was made with is in their closures, which are read like any other part. Nothing in a text depends on the
process that wrote it (no address, no order of a set), so that a run can be told from another one tomorrow.
"""

import dataclasses
import functools
import hashlib
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

_FEW = 8  # numbers that are written out
_PIECE = 2**22  # bytes that are digested at a time

# Functions of these are known by name and by what they enclose; of any other function, the code counts, too.
_LIBRARIES = ("equinox", "functools", "jax", "jaxlib", "mercer", "numpy", "optax")


def description(value: Any, name: str) -> dict[str, str]:
    """What `value` is made of: a text for each path that begins with `name`."""
    return dict(_described(value, name, ()))


def _described(value: Any, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    if id(value) in above:
        return  # a function that knows itself
    above = (*above, id(value))
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield path, f"{value:.17g}"  # 5 is 5.0: a schedule of optax makes the one the other when it is first asked
    elif value is None or isinstance(value, bool | complex | str | bytes):
        yield path, repr(value)
    elif isinstance(value, jax.Array | np.ndarray):
        yield path, text_of_array(value)
    elif isinstance(value, type):
        yield path, _name(value)
    else:
        text, parts = _parts(value)
        yield path, text
        for part, inner in parts.items():
            yield from _described(inner, f"{path}{part}", above)


def _parts(value: Any) -> tuple[str, dict[str, Any]]:
    """What an object is called, and what it holds."""
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", None)
        items = {f".{n}": v for n, v in zip(names, value, strict=True)} if names else _numbered(value)
        return f"{_name(type(value))} of {len(value)}", items
    if isinstance(value, dict):
        return f"dict of {len(value)}", {f"[{key!r}]": value[key] for key in sorted(value, key=repr)}
    if isinstance(value, set | frozenset):
        return _name(type(value)), _numbered(sorted(value, key=repr))
    if isinstance(value, functools.partial):
        return _name(type(value)), {".func": value.func, ".args": value.args, ".keywords": value.keywords}
    if isinstance(value, types.MethodType):
        return "method", {".function": value.__func__, ".owner": value.__self__}
    if isinstance(value, types.FunctionType):
        return _function_parts(value)
    if isinstance(value, types.CodeType):
        return "code " + hashlib.blake2b(value.co_code, digest_size=8).hexdigest(), _code_parts(value)
    if hasattr(value, "__wrapped__"):  # a compiled function
        return _name(type(value)), {".wrapped": value.__wrapped__}
    if dataclasses.is_dataclass(value):
        fields = (field.name for field in dataclasses.fields(value))
        return _name(type(value)), {f".{name}": getattr(value, name) for name in fields if hasattr(value, name)}
    return _name(value if hasattr(value, "__qualname__") else type(value)), {}


def _numbered(values: Any) -> dict[str, Any]:
    return {f"[{i}]": value for i, value in enumerate(values)}


def _function_parts(function: types.FunctionType) -> tuple[str, dict[str, Any]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    parts = {f".{name}": _content(cell) for name, cell in cells}
    library = (function.__module__ or "").split(".")[0]  # decorators may leave none
    if library not in _LIBRARIES:
        parts |= {".code": function.__code__, ".defaults": (function.__defaults__, function.__kwdefaults__)}
    return _name(function), parts


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _code_parts(code: types.CodeType) -> dict[str, Any]:
    return {".names": code.co_names, ".constants": code.co_consts}


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}".removeprefix("builtins.")


def text_of_array(array: Any) -> str:
    """Shape, dtype, and the numbers themselves where they are few, a digest of all of them where they are many."""
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    kind = f"{array.dtype}{list(array.shape)}"
    if array.size <= _FEW:
        return f"{kind} {np.asarray(array).tolist()}"
    digest = hashlib.blake2b(digest_size=16)
    flat = np.asarray(array)
    rows = max(1, _PIECE * len(flat) // max(1, flat.nbytes))
    for start in range(0, len(flat), rows):
        digest.update(np.ascontiguousarray(flat[start : start + rows]).tobytes())
    return f"{kind} {digest.hexdigest()}"
