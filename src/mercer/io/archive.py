"""Saved models: one file of arrays and of a JSON text that says what they belong to, loaded without running code.

The file is safetensors. Its metadata hold, as "mercer", the JSON text

    {"format": 1, "version": "0.1.0", "sha256": digest, "structure": value}

with values as in `mercer.io.values`. The digest is that of the whole file with zeros in its place: it finds damage. It does not
make a file trustworthy, and nothing below relies on it.
"""

import hashlib
import json
import math
import os
import stat
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
from safetensors.numpy import save as serialise

import mercer
from mercer.errors import MercerError
from mercer.io.atomic import replacing
from mercer.io.decoding import Decoder
from mercer.io.encoding import Encoder
from mercer.io.values import DTYPES, brief, check_empty

FORMAT = 1
_MAX_HEADER = 2**23  # bytes
_ZEROS = b"0" * 64


class FormatError(MercerError):
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
            return Decoder(_tensors(content)).model(header["structure"])
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {str(file)!r}") from None
    except _Refused as error:
        raise FormatError(f"{str(file)!r} {error}") from None
    except Exception as error:  # whatever a strange file brings about
        raise FormatError(f"{str(file)!r} cannot be loaded: {brief(error)}") from error


def _content(model: Any) -> bytes:
    """The bytes of the file."""
    encoder = Encoder()
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
        raise _Refused(f"is not a file written by mercer.save, or it is damaged ({brief(error)})") from error
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
        dtype = DTYPES.get(tensor["dtype"])
        if dtype is None:
            raise ValueError(f"the array {name!r} has the dtype {tensor['dtype']}, which mercer does not write")
        check_empty(name, tensor["shape"])
        arrays[name] = np.frombuffer(tensor["data"], jax.numpy.dtype(dtype)).reshape(tensor["shape"])
        if dtype == "bool" and (arrays[name].view(np.uint8) > 1).any():
            raise ValueError(f"the array {name!r} holds bytes that are no booleans")
    return arrays
