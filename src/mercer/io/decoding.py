"""Values of a model from the JSON and the arrays of a file, without running any of it."""

import functools
import struct
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mercer.io import registry
from mercer.io.values import COMPLEX, KEY_IMPLEMENTATIONS, MAX_DEPTH, SUPPORTED


class Decoder:
    """Values from JSON. Each array is used once."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays

    def model(self, node: Any) -> Any:
        """The value, with nothing left over."""
        value = self._decode(node, 0)
        if self.arrays:
            raise ValueError(f"the array {next(iter(self.arrays))!r} belongs to nothing in the model")
        return value

    def _decode(self, node: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(node, list):
            return [self._decode(item, depth + 1) for item in node]
        if not isinstance(node, dict):
            return node
        if (decode := _DECODERS.get(tuple(node))) is None:
            raise ValueError(f"an object with the keys {list(node)} is none that mercer writes")
        return decode(self, depth + 1, *node.values())

    def _list(self, depth, nodes, length=None):
        if type(nodes) is not list or length not in (None, len(nodes)):
            raise ValueError(f"{repr(nodes)[:80]} is not a list of the right length")
        return [self._decode(node, depth) for node in nodes]

    def _fields(self, depth, nodes):
        if type(nodes) is not dict:
            raise ValueError(f"{repr(nodes)[:80]} is not an object with names and values")
        return {name: self._decode(node, depth) for name, node in nodes.items()}

    def _tuple(self, depth, nodes):
        return tuple(self._list(depth, nodes))

    def _dict(self, depth, nodes):
        if type(nodes) is not list or len(found := dict(self._list(depth, pair, 2) for pair in nodes)) < len(nodes):
            raise ValueError(f"{repr(nodes)[:80]} is not a list of the items of a dictionary")
        return found

    def _slice(self, depth, nodes):
        return slice(*self._list(depth, nodes, 3))

    def _complex(self, depth, nodes):
        real, imaginary = self._list(depth, nodes, 2)
        if type(real) is not float or type(imaginary) is not float:
            raise ValueError("the parts of a complex number are not numbers")
        return complex(real, imaginary)

    def _array(self, depth, name, kind, dtype):
        array = self._take(name)
        if dtype in COMPLEX and array.dtype == COMPLEX[dtype] and array.shape[-1:] == (2,):
            array = array.reshape(-1).view(dtype).reshape(array.shape[:-1])
        if array.dtype != _dtype(dtype) or kind not in ("jax", "weak", "numpy", "scalar"):
            raise ValueError(f"the array {name!r} of dtype {array.dtype} is said to be {dtype!r}, of the type {kind!r}")
        if kind == "numpy":
            return array
        if kind == "scalar" and array.shape == ():
            return array[()]
        if kind == "scalar":
            raise ValueError(f"the array {name!r} of shape {array.shape} is said to be a number")
        array = jnp.asarray(array)
        if kind == "jax":
            return array
        # What is left of a Python number, which takes the dtype of what it meets; no public function makes it in any shape.
        return jax.lax.convert_element_type_p.bind(array, new_dtype=array.dtype, weak_type=True, sharding=None)

    def _key(self, depth, name, implementation):
        if implementation not in KEY_IMPLEMENTATIONS:
            raise ValueError(f"the random key {name!r} is of an unknown implementation, {implementation!r}")
        return jax.random.wrap_key_data(jnp.asarray(self._take(name)), impl=implementation)

    def _take(self, name):
        if not isinstance(name, str) or name not in self.arrays:
            raise ValueError(f"the array {name!r} is not in the file, or is used twice")
        return self.arrays.pop(name)

    def _class(self, depth, name, nodes):
        value = registry.assemble(registry.find_class(name), self._fields(depth, nodes))
        registry.check(value)
        return value

    def _partial(self, kind, depth, function, args, keywords):
        return kind(self._decode(function, depth), *self._list(depth, args), **self._fields(depth, keywords))


def _dtype(name: Any) -> np.dtype:
    if name not in SUPPORTED:
        raise ValueError(f"{name!r} is not the name of a dtype that mercer writes")
    return jnp.dtype(name)


# By the keys of the object: functions of the decoder, the depth and the values.
_DECODERS: dict[tuple[str, ...], Callable] = {
    ("tuple",): Decoder._tuple,
    ("dict",): Decoder._dict,
    ("slice",): Decoder._slice,
    ("float",): lambda decoder, depth, digits: struct.unpack(">d", bytes.fromhex(digits))[0],
    ("complex",): Decoder._complex,
    ("bytes",): lambda decoder, depth, digits: bytes.fromhex(digits),
    ("dtype",): lambda decoder, depth, name: _dtype(name),
    ("array", "type", "dtype"): Decoder._array,
    ("key", "impl"): Decoder._key,
    ("class", "fields"): Decoder._class,
    ("function",): lambda decoder, depth, name: registry.find_function(name),
    ("partial", "args", "keywords"): lambda decoder, *nodes: decoder._partial(functools.partial, *nodes),
    ("Partial", "args", "keywords"): lambda decoder, *nodes: decoder._partial(jax.tree_util.Partial, *nodes),
}
