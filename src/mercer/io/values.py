"""Values in a saved model: how each kind is written as JSON, and which dtypes and sizes of arrays are taken.

A value is null, true, a number, a text or a list as in JSON; all else is an object whose first key says what it is:

    {"tuple": [...]}  {"dict": [[key, value], ...]}  {"slice": [a, b, c]}
    {"float": the 8 bytes, of what is not finite}  {"complex": [re, im]}  {"bytes": hexadecimal}  {"dtype": name}
    {"array": name, "type": "jax" | "weak" | "numpy" | "scalar", "dtype": name}  {"key": name, "impl": name}
    {"class": name, "fields": {...}}  {"function": name}  {"partial" | "Partial": function, "args": [...], "keywords": {...}}

Classes and functions are those of `mercer.io.registry`.
"""

import math
from typing import Any

MAX_DEPTH = 100
_MAX_EMPTY = 2**20  # entries that an array without any would have if its axes of length 0 had length 1

# The names of dtypes in safetensors files and in NumPy.
DTYPES = {
    "BOOL": "bool",
    **{f"{kind[0].upper()}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
}
COMPLEX = {"complex64": "float32", "complex128": "float64"}  # stored as pairs
SUPPORTED = (*DTYPES.values(), *COMPLEX)
KEY_IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")


def check_empty(name: str, shape: Any) -> None:
    """An array without entries costs nothing to write, but what is done with its other axes may."""
    if 0 in shape and math.prod(max(length, 1) for length in shape) > _MAX_EMPTY:
        raise ValueError(f"the array {name!r} has no entries, but the shape {tuple(shape)}")


def brief(error: Exception) -> str:
    """An error in one line of bounded length."""
    name = "" if type(error) is ValueError else f"{type(error).__name__}: "
    text = " ".join(str(error).split())
    return name + (text if len(text) <= 400 else f"{text[:400]} ...")
