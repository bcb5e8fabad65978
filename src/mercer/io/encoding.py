"""Values of a model as JSON and arrays, for a file."""

import contextlib
import functools
import math
import struct
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.io import registry
from mercer.io.values import COMPLEX, KEY_IMPLEMENTATIONS, MAX_DEPTH, SUPPORTED, brief, check_empty
from mercer.parameters import not_finite

_PARTIALS = {"partial": functools.partial, "Partial": jax.tree_util.Partial}


class Encoder:
    """Values as JSON, and the arrays among them under the names of their places in the model."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._in_module = False

    def encode(self, value: Any, path: str, depth: int) -> Any:
        """The value at a place of the model, `depth` levels below it."""
        if depth > MAX_DEPTH:
            raise ValueError(f"{path[:200]} ... cannot be saved: it is nested more than {MAX_DEPTH} deep")
        kind, below = type(value), depth + 1
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            if not -(2**63) <= value < 2**64:
                raise ValueError(f"{path} cannot be saved: it is an integer of more than 64 bits")
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if kind is complex:
            return {"complex": [self.encode(part, path, below) for part in (value.real, value.imag)]}
        if kind is bytes:
            return {"bytes": value.hex()}
        if kind in (list, tuple):
            items = [self.encode(item, f"{path}[{i}]", below) for i, item in enumerate(value)]
            return items if kind is list else {"tuple": items}
        if kind is dict:
            keys = [self.encode(key, f"{path}.keys[{i}]", below) for i, key in enumerate(value)]
            items = [self.encode(item, f"{path}[{key!r}]", below) for key, item in value.items()]
            return {"dict": [list(pair) for pair in zip(keys, items, strict=True)]}
        if kind is slice:
            return {"slice": [self.encode(part, path, below) for part in (value.start, value.stop, value.step)]}
        if isinstance(value, np.dtype) and value.isnative and value.name in SUPPORTED:
            return {"dtype": value.name}
        if isinstance(value, jax.Array | np.ndarray | np.generic) and not isinstance(value, jax.core.Tracer):
            with _at(path):
                return self._array(value, path)
        return self._object(value, path, below)

    def _array(self, value: Any, path: str) -> Any:
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            implementation = jax.random.key_impl(value)
            if implementation not in KEY_IMPLEMENTATIONS:
                raise ValueError(f"its implementation {implementation} is none of {KEY_IMPLEMENTATIONS}")
            self._store(jax.random.key_data(value), path)
            return {"key": path, "impl": implementation}
        if isinstance(value, jax.Array):
            kind = "weak" if value.weak_type else "jax"
        elif isinstance(value, np.generic):
            kind = "scalar"
        elif type(value) is np.ndarray:
            kind = "numpy"
        else:
            raise ValueError(f"{type(value).__name__} is not supported; make it an array with numpy.asarray")
        return {"array": path, "type": kind, "dtype": self._store(value, path)}

    def _store(self, value: Any, path: str) -> str:
        array = np.asarray(value, order="C")
        dtype = array.dtype.name
        if not array.dtype.isnative or dtype not in SUPPORTED:
            raise ValueError(f"arrays of the dtype {array.dtype} are not supported; convert it")
        check_empty(path, array.shape)
        if path in self.arrays:
            raise ValueError("another array is at a place that reads the same")
        self.arrays[path] = _pairs(array) if dtype in COMPLEX else array
        return dtype

    def _object(self, value: Any, path: str, below: int) -> Any:
        for tag, kind in _PARTIALS.items():
            if type(value) is kind:
                keywords = {key: self.encode(item, f"{path}.{key}", below) for key, item in value.keywords.items()}
                args = [self.encode(item, f"{path}.args[{i}]", below) for i, item in enumerate(value.args)]
                return {tag: self.encode(value.func, f"{path}.func", below), "args": args, "keywords": keywords}
        if (name := registry.function_name(value)) is not None:
            return {"function": name}
        with _at(path):
            if (name := registry.class_name(type(value))) is None:
                raise ValueError(registry.refusal(value))
            fields = registry.fields(value)
        outermost = isinstance(value, eqx.Module) and not self._in_module
        self._in_module |= outermost
        encoded = {key: self.encode(item, f"{path}.{key}", below) for key, item in fields.items()}
        self._in_module &= not outermost
        with _at(path):
            registry.check(value)
        if outermost and (place := not_finite(value)) is not None:
            raise ValueError(f"{path}{place} cannot be saved: it holds NaN or infinite numbers")
        return {"class": name, "fields": encoded}


@contextlib.contextmanager
def _at(path: str) -> Iterator[None]:
    """Says where in the model something went wrong."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{path} cannot be saved: {brief(error)}") from error


def _pairs(array: np.ndarray) -> np.ndarray:
    """Complex numbers as real ones, with an axis of length 2 at the end."""
    return array.reshape(-1).view(COMPLEX[array.dtype.name]).reshape(*array.shape, 2)
