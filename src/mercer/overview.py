"""A model as a table: each of its arrays, what it may be and what training does with it."""

import dataclasses
import html
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.parameters import Declaration, declarations, hold, is_concrete

_FEW = 4  # numbers of an array that are shown one by one


class Row(NamedTuple):
    """One array of a model. `owner` is the class of the part that it belongs to."""

    path: str
    owner: str
    constraint: str  # of parameters
    shape: str
    dtype: str
    value: str
    training: str  # trained, held or constant


_HEADERS = Row("path", "class", "constraint", "shape", "dtype", "value", "training")


@dataclasses.dataclass(frozen=True)
class Summary:
    """What `mercer.summary` gives: `rows`, and the numbers of `trained`, `held` and `constant` values.

    It prints as a table, and shows itself as one in a notebook.
    """

    rows: tuple[Row, ...]
    trained: int
    held: int
    constant: int

    @property
    def totals(self) -> str:
        """How many numbers there are of each kind, in words."""
        return f"{self.trained + self.held} parameters: {self.trained} trained, {self.held} held; {self.constant} constants"

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(_HEADERS, *self.rows, strict=True)]
        rule = Row(*("-" * width for width in widths))
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (_HEADERS, rule, *self.rows)
        ]
        return "\n".join([*lines, self.totals])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        def line(tag: str, row: Row) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"

        body = "".join(line("td", row) for row in self.rows)
        head = line("th", _HEADERS)
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table><p>{html.escape(self.totals)}</p>"


def summary(model: Any, frozen: Callable[[Any], Any] | None = None) -> Summary:
    """The arrays of a model, a process, a kernel or any other part, as a table.

    `frozen` is that of `mercer.fit`: a function from the model to the parts that it holds still.
    """
    found = list(declarations(model))
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(model)[0]]
    structure = jax.tree.structure(model)
    flags = [declaration is not None and declaration.trainable and _is_inexact(leaf) for _, leaf, declaration in found]
    moves = jax.tree.leaves(hold(jax.tree.unflatten(structure, flags), frozen))
    rows, counts = [], {"trained": 0, "held": 0, "constant": 0}
    for keys, (path, leaf, declaration), is_parameter, is_moved in zip(paths, found, flags, moves, strict=True):
        if not isinstance(leaf, jax.Array | np.ndarray):
            continue
        training = "trained" if is_moved else "held" if is_parameter else "constant"
        counts[training] += leaf.size
        constraint = _name(declaration) if is_parameter else ""
        rows.append(
            Row(
                path.removeprefix("."),
                _owner(model, keys),
                constraint,
                str(tuple(leaf.shape)),
                str(leaf.dtype),
                _value(leaf),
                training,
            )
        )
    return Summary(tuple(rows), **counts)


def _is_inexact(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def _name(declaration: Declaration | None) -> str:
    """The constraint, as it is written in `param(...)`."""
    return "" if declaration is None else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", repr(declaration.constraint)).lower()


def _owner(node: Any, path: tuple) -> str:
    """The class of the last module on the way to a leaf."""
    owner = ""
    for key in path:
        if isinstance(node, eqx.Module):
            owner = type(node).__name__
        if isinstance(key, jax.tree_util.GetAttrKey):
            node = getattr(node, key.name)
        elif isinstance(key, jax.tree_util.SequenceKey):
            node = node[key.idx]
        elif isinstance(key, jax.tree_util.DictKey):
            node = node[key.key]
        else:
            break
    return owner


def _value(leaf: Any) -> str:
    """The numbers of a small array; of a larger one, from where to where they go."""
    if not is_concrete(leaf):
        return ""
    if not (jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == bool):
        return "key" if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else ""
    values = np.asarray(leaf)
    if values.ndim == 0:
        return _number(values)
    if values.size <= _FEW:
        return "[" + ", ".join(map(_number, values.ravel())) + "]"
    finite = values[np.isfinite(values)]
    missing = f", {values.size - finite.size} not finite" if finite.size < values.size else ""
    if np.iscomplexobj(values) or not finite.size:
        return missing.removeprefix(", ")
    least, most = _number(finite.min()), _number(finite.max())
    return (f"all {least}" if least == most else f"{least} to {most}") + missing


def _number(value: Any) -> str:
    return f"{value:.4g}" if np.issubdtype(value.dtype, np.inexact) else str(value)
