"""Checkpoints: the state of a training run in one file, from which it goes on to the same numbers.

The file is safetensors: arrays and a line of JSON, no code. It is replaced as a whole, so that a run that is killed while
writing leaves the file before.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialise

from mercer.errors import MercerError
from mercer.io.atomic import replacing

FORMAT = 2
_SAID = 6  # differences that an error names


class CheckpointError(MercerError):
    """A checkpoint that cannot be read, or that is of another run."""


def _named_leaves(tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree.leaves(tree)
    return {f"{i:05d}": np.asarray(_raw(leaf), order="C") for i, leaf in enumerate(leaves)}


def _raw(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def save(path: Path, run: dict[str, str], state: Any, history: np.ndarray) -> None:
    """Writes the state (a tree of arrays) and the history so far; `run` says which run it belongs to."""
    metadata = {"mercer": json.dumps({"format": FORMAT, "run": run}, sort_keys=True)}
    content = serialise(_named_leaves(state) | {"history": np.asarray(history)}, metadata)
    with replacing(path) as file:
        file.write(content)


def steps_in(path: Path) -> int:
    """How many steps a run had taken when it was written; 0 where there is no file."""
    if not path.exists():
        return 0
    try:
        with safe_open(path, framework="numpy") as file:
            return file.get_slice("history").get_shape()[0]
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error


def load(path: Path, run: dict[str, str], like: Any) -> tuple[Any, np.ndarray]:
    """The state and the history of a run, in the shape of `like`."""
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("mercer", "null"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise _unreadable(path, error) from error
    ours = isinstance(header, dict) and header.get("format") == FORMAT and isinstance(header.get("run"), dict)
    if not ours or "history" not in arrays:
        raise CheckpointError(f"checkpoint {path} is not a training checkpoint of this version of mercer")
    _check_run(path, header["run"], run)
    history = arrays.pop("history")
    leaves, structure = jax.tree.flatten(like)
    if [(a.shape, a.dtype) for a in arrays.values()] != [(np.shape(_raw(x)), _raw(x).dtype) for x in leaves]:
        raise CheckpointError(f"checkpoint {path} holds a model of another shape; delete it to begin anew")
    restored = [_restore(array, leaf) for array, leaf in zip(arrays.values(), leaves, strict=True)]
    return jax.tree.unflatten(structure, restored), history


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"checkpoint {path} cannot be read ({error}); delete it to begin anew")


def _check_run(path: Path, there: dict[str, str], here: dict[str, str]) -> None:
    """Refuses the checkpoint of another run, and says where the two differ."""
    different = [name for name in sorted(there.keys() | here.keys()) if there.get(name) != here.get(name)]
    if not different:
        return
    # What lies below a part that differs differs, too.
    named = [name for name in different if not any(_is_below(name, other) for other in different)]
    said = [f"{name} (there {there.get(name, 'nothing')}, here {here.get(name, 'nothing')})" for name in named]
    more = f" and {len(said) - _SAID} more" if len(said) > _SAID else ""
    raise CheckpointError(
        f"checkpoint {path} is of another run: it differs in {', '.join(said[:_SAID])}{more}; delete it to begin anew"
    )


def _is_below(name: str, other: str) -> bool:
    return name.startswith((f"{other}.", f"{other}["))


def _restore(array: np.ndarray, like: Any) -> Any:
    if isinstance(like, jax.Array) and jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jax.numpy.asarray(array))
    return jax.numpy.asarray(array) if isinstance(like, jax.Array) else array
