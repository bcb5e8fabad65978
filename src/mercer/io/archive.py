"""Saved models: one file of arrays and of a JSON text that says what they belong to, loaded without running code.

The file is safetensors. Its metadata hold, as "mercer", the JSON text

    {"format": 1, "version": "0.1.0", "sha256": digest, "structure": value}

A value is null, true, a number, a text or a list as in JSON; all else is an object whose first key says what it is:

    {"tuple": [...]}  {"dict": [[key, value], ...]}  {"slice": [a, b, c]}
    {"float": the 8 bytes, of what is not finite}  {"complex": [re, im]}  {"bytes": hexadecimal}  {"dtype": name}
    {"array": name, "type": "jax" | "weak" | "numpy" | "scalar", "dtype": name}  {"key": name, "impl": name}
    {"class": name, "fields": {...}}  {"function": name}  {"partial" | "Partial": function, "args": [...], "keywords": {...}}

Classes and functions are those of `mercer.io.registry`. The digest is that of the whole file with zeros in its place: it finds
damage. It does not make a file trustworthy, and nothing below relies on it.
"""

import contextlib
import functools
import hashlib
import json
import math
import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
from safetensors.numpy import save as serialise

import mercer
from mercer.io import registry
from mercer.io.atomic import replacing
from mercer.parameters import not_finite

FORMAT = 1
_MAX_HEADER = 2**23  # bytes
_MAX_DEPTH = 100
_MAX_EMPTY = 2**20  # entries that an array without any would have if its axes of length 0 had length 1

# The names of dtypes in safetensors files and in NumPy.
_DTYPES = {
    "BOOL": "bool",
    **{f"{kind[0].upper()}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
}
_COMPLEX = {"complex64": "float32", "complex128": "float64"}  # stored as pairs
_SUPPORTED = (*_DTYPES.values(), *_COMPLEX)
_PARTIALS = {"partial": functools.partial, "Partial": jax.tree_util.Partial}
_IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")
_ZEROS = b"0" * 64


class FormatError(ValueError):
    """A file that is not a saved model, is damaged, needs a newer mercer, or names what is not known here."""


class _Refused(Exception):
    """A sentence that begins with the name of the file."""


def save(path: str | os.PathLike[str], model: Any) -> None:
    """Writes a model, or any value made of arrays, Python data and registered classes, to one file.

    An existing file is replaced as a whole, or left as it was where saving fails. A value that `load` could not give back is
    refused with a ValueError that says where in the model it is, and so is a parameter or a constant that is not finite.
    """
    file = Path(path)
    if not file.parent.is_dir() or file.is_dir():
        raise ValueError(f"path expects a file in a folder that exists, got {str(path)!r}")
    content = _content(model)
    with replacing(file) as out:
        out.write(content)


def load(path: str | os.PathLike[str]) -> Any:
    """The model that `save` wrote to a file, exactly: types, bits, dtypes and static values.

    The file may be from anywhere: it is data, and loading it runs none of it. Every refusal is a `FormatError`, but for a
    file that does not exist (`FileNotFoundError`).
    """
    file = Path(path)
    try:
        header, content = _read(file)
        # Double precision stays so in a process without it, where the arrays and the checks of classes would round.
        with jax.enable_x64(True):
            return _Decoder(_tensors(content)).model(header["structure"])
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {str(file)!r}") from None
    except _Refused as error:
        raise FormatError(f"{str(file)!r} {error}") from None
    except Exception as error:  # whatever a strange file brings about
        raise FormatError(f"{str(file)!r} cannot be loaded: {_brief(error)}") from error


def _brief(error: Exception) -> str:
    """An error in one line of bounded length."""
    name = "" if type(error) is ValueError else f"{type(error).__name__}: "
    text = " ".join(str(error).split())
    return name + (text if len(text) <= 400 else f"{text[:400]} ...")


# The file


def _content(model: Any) -> bytes:
    """The bytes of the file."""
    encoder = _Encoder()
    with jax.enable_x64(True):
        structure = encoder.encode(model, "model", 0)
    header = {"format": FORMAT, "version": mercer.__version__, "sha256": _ZEROS.decode(), "structure": structure}
    text = json.dumps(header, allow_nan=False, separators=(",", ":"))
    content = serialise(encoder.arrays, {"mercer": text})
    if int.from_bytes(content[:8], "little") > _MAX_HEADER:
        raise ValueError(f"the model has more structure (not arrays) than the {_MAX_HEADER} bytes that a file can hold")
    position = content.index(_ZEROS)  # nothing before it is of the user's making
    digest = hashlib.sha256(content).hexdigest().encode()
    return b"".join([content[:position], digest, memoryview(content)[position + len(digest) :]])


def _read(file: Path) -> tuple[dict[str, Any], bytes]:
    """What the file says of itself, and all its bytes, once they are known to be those that were written."""
    status = os.stat(file)
    if not stat.S_ISREG(status.st_mode):
        raise _Refused("is a folder or a device, not a file written by mercer.save")
    with open(file, "rb") as source:
        start = source.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(status.st_size - 8, _MAX_HEADER):
            raise _Refused("is not a file written by mercer.save, or it is cut off")
        start += source.read(length)
        header = _header(start[8:])
        content = start + source.read()
    digest = header["sha256"].encode()
    position = content.find(digest, 0, len(start))
    hashed = hashlib.sha256(content[:position] + _ZEROS)
    hashed.update(memoryview(content)[position + len(_ZEROS) :])
    if position < 0 or hashed.hexdigest().encode() != digest:
        raise _Refused("is damaged, or was altered after it was written: its digest is not that of its content")
    return header, content


def _header(text: bytes) -> dict[str, Any]:
    """The metadata of mercer, where they are of this format."""
    try:
        metadata = _json(text.decode())["__metadata__"]
        header = _json(metadata["mercer"])
        number, version, keys = header["format"], header.get("version"), set(header)
    except Exception as error:
        raise _Refused(f"is not a file written by mercer.save, or it is damaged ({_brief(error)})") from error
    if "run" in keys:
        raise _Refused("is a checkpoint of a training run, not a saved model: it is for fit(..., checkpoint=...)")
    if type(number) is int and number > FORMAT:
        raise _Refused(
            f"was written by a newer mercer (format {number}, version {str(version)[:40]!r}): upgrade mercer"
        )
    if number != FORMAT or keys != {"format", "version", "sha256", "structure"} or type(header["sha256"]) is not str:
        raise _Refused("is not of a format that mercer has written")
    return header


def _json(text: str) -> Any:
    """Strict JSON: no duplicate keys, no NaN, no number that Python would round or that is too large for 64 bits."""

    def pairs(items):
        if len(found := dict(items)) < len(items):
            raise ValueError("a key appears twice")
        return found

    def integer(digits):
        if len(digits) > 20 or not -(2**63) <= (value := int(digits)) < 2**64:
            raise ValueError(f"the integer {digits[:24]} has more than 64 bits")
        return value

    def real(digits):
        if not math.isfinite(value := float(digits)):
            raise ValueError(f"the number {digits[:24]} is not finite")
        return value

    def constant(name):
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, object_pairs_hook=pairs, parse_int=integer, parse_float=real, parse_constant=constant)


def _tensors(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of the file; safetensors has checked that their shapes and the bytes that are there agree."""
    arrays = {}
    for name, tensor in safetensors.deserialize(content):
        dtype = _DTYPES.get(tensor["dtype"])
        if dtype is None:
            raise ValueError(f"the array {name!r} has the dtype {tensor['dtype']}, which mercer does not write")
        _check_empty(name, tensor["shape"])
        arrays[name] = np.frombuffer(tensor["data"], jnp.dtype(dtype)).reshape(tensor["shape"])
        if dtype == "bool" and (arrays[name].view(np.uint8) > 1).any():
            raise ValueError(f"the array {name!r} holds bytes that are no booleans")
    return arrays


def _pairs(array: np.ndarray) -> np.ndarray:
    """Complex numbers as real ones, with an axis of length 2 at the end."""
    return array.reshape(-1).view(_COMPLEX[array.dtype.name]).reshape(*array.shape, 2)


def _dtype(name: Any) -> np.dtype:
    if name not in _SUPPORTED:
        raise ValueError(f"{name!r} is not the name of a dtype that mercer writes")
    return jnp.dtype(name)


def _check_empty(name: str, shape: Any) -> None:
    """An array without entries costs nothing to write, but what is done with its other axes may."""
    if 0 in shape and math.prod(max(length, 1) for length in shape) > _MAX_EMPTY:
        raise ValueError(f"the array {name!r} has no entries, but the shape {tuple(shape)}")


# Values


class _Encoder:
    """Values as JSON, and the arrays among them under the names of their places in the model."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._in_module = False

    def encode(self, value: Any, path: str, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError(f"{path[:200]} ... cannot be saved: it is nested more than {_MAX_DEPTH} deep")
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
        if isinstance(value, np.dtype) and value.isnative and value.name in _SUPPORTED:
            return {"dtype": value.name}
        if isinstance(value, jax.Array | np.ndarray | np.generic) and not isinstance(value, jax.core.Tracer):
            with _at(path):
                return self._array(value, path)
        return self._object(value, path, below)

    def _array(self, value: Any, path: str) -> Any:
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            implementation = jax.random.key_impl(value)
            if implementation not in _IMPLEMENTATIONS:
                raise ValueError(f"its implementation {implementation} is none of {_IMPLEMENTATIONS}")
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
        if not array.dtype.isnative or dtype not in _SUPPORTED:
            raise ValueError(f"arrays of the dtype {array.dtype} are not supported; convert it")
        _check_empty(path, array.shape)
        if path in self.arrays:
            raise ValueError("another array is at a place that reads the same")
        self.arrays[path] = _pairs(array) if dtype in _COMPLEX else array
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
        raise ValueError(f"{path} cannot be saved: {_brief(error)}") from error


class _Decoder:
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
        if depth > _MAX_DEPTH:
            raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
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
        if dtype in _COMPLEX and array.dtype == _COMPLEX[dtype] and array.shape[-1:] == (2,):
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
        if implementation not in _IMPLEMENTATIONS:
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


# By the keys of the object: functions of the decoder, the depth and the values.
_DECODERS: dict[tuple[str, ...], Callable] = {
    ("tuple",): _Decoder._tuple,
    ("dict",): _Decoder._dict,
    ("slice",): _Decoder._slice,
    ("float",): lambda decoder, depth, digits: struct.unpack(">d", bytes.fromhex(digits))[0],
    ("complex",): _Decoder._complex,
    ("bytes",): lambda decoder, depth, digits: bytes.fromhex(digits),
    ("dtype",): lambda decoder, depth, name: _dtype(name),
    ("array", "type", "dtype"): _Decoder._array,
    ("key", "impl"): _Decoder._key,
    ("class", "fields"): _Decoder._class,
    ("function",): lambda decoder, depth, name: registry.find_function(name),
    ("partial", "args", "keywords"): lambda decoder, *nodes: decoder._partial(functools.partial, *nodes),
    ("Partial", "args", "keywords"): lambda decoder, *nodes: decoder._partial(jax.tree_util.Partial, *nodes),
}
