"""Parameters: which numbers of a model an optimiser may move, and in which space it moves them.

A field of a mercer class that holds arrays is declared `param(constraint)` or `constant()`. The declaration belongs to the
class; the value is a plain array, always in the space that the mathematics speaks of. An optimiser works on the image of the
model under `unconstrain` and `constrain` brings it back. Both walk the tree: a foreign module (`equinox.nn`, say) is all
parameters without constraints, and everything below a constant is constant.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mercer import deprecation

Tree = TypeVar("Tree")
_DECLARATION = "mercer"


class Constraint(abc.ABC):
    """A set of values, and a smooth map onto it from the whole real space."""

    expected: str

    @abc.abstractmethod
    def constrain(self, free: Array) -> Array:
        """The member of the set that `free` stands for."""

    @abc.abstractmethod
    def unconstrain(self, value: Array) -> Array:
        """The inverse of `constrain`."""

    @abc.abstractmethod
    def contains(self, value: np.ndarray) -> bool:
        """Whether a concrete value lies in the set."""

    def __repr__(self) -> str:
        return type(self).__name__.removeprefix("_")


class _Real(Constraint):
    expected = "finite values"

    def constrain(self, free):
        return free

    def unconstrain(self, value):
        return value

    def contains(self, value):
        return bool(np.isfinite(value).all())


def _inverse_softplus(value: Array) -> Array:
    return value + jnp.log(-jnp.expm1(-value))


class _Positive(Constraint):
    expected = "positive, finite values"

    def constrain(self, free):
        return jax.nn.softplus(free)

    def unconstrain(self, value):
        return _inverse_softplus(value)

    def contains(self, value):
        return bool((np.isfinite(value) & (value > 0)).all())


class _UnitInterval(Constraint):
    expected = "values strictly between 0 and 1"

    def constrain(self, free):
        return jax.nn.sigmoid(free)

    def unconstrain(self, value):
        return jnp.log(value) - jnp.log1p(-value)

    def contains(self, value):
        return bool(((value > 0) & (value < 1)).all())


class _LowerTriangular(Constraint):
    expected = "finite lower triangular matrices with a non-zero diagonal"

    def constrain(self, free):
        return jnp.tril(free)

    def unconstrain(self, value):
        return jnp.tril(value)

    def contains(self, value):
        square = value.ndim >= 2 and value.shape[-1] == value.shape[-2]
        return square and bool(
            np.isfinite(value).all()
            and (np.triu(value, 1) == 0).all()
            and (np.diagonal(value, axis1=-2, axis2=-1) != 0).all()
        )


class _Ordered(Constraint):
    expected = "strictly increasing, finite values along the last axis"

    def constrain(self, free):
        steps = jnp.concatenate([free[..., :1], jax.nn.softplus(free[..., 1:])], axis=-1)
        return jnp.cumsum(steps, axis=-1)

    def unconstrain(self, value):
        return jnp.concatenate([value[..., :1], _inverse_softplus(jnp.diff(value, axis=-1))], axis=-1)

    def contains(self, value):
        return value.ndim >= 1 and bool(np.isfinite(value).all() and (np.diff(value, axis=-1) > 0).all())


class _PositiveDefinite(Constraint):
    """Symmetric positive definite matrices, by a Cholesky factor whose diagonal is a softplus."""

    expected = "symmetric positive definite matrices"

    def constrain(self, free):
        diagonal = jax.nn.softplus(jnp.diagonal(free, axis1=-2, axis2=-1))
        factor = jnp.tril(free, -1) + diagonal[..., None] * jnp.eye(free.shape[-1], dtype=free.dtype)
        return factor @ factor.mT

    def unconstrain(self, value):
        from mercer.linalg import safe_cholesky  # here, as its modules declare their fields with this one

        factor = safe_cholesky(value, always=False).factor
        diagonal = _inverse_softplus(jnp.diagonal(factor, axis1=-2, axis2=-1))
        return jnp.tril(factor, -1) + diagonal[..., None] * jnp.eye(value.shape[-1], dtype=value.dtype)

    def contains(self, value):
        square = value.ndim >= 2 and value.shape[-1] == value.shape[-2]
        return square and bool(
            np.isfinite(value).all()
            and np.allclose(value, np.swapaxes(value, -1, -2), rtol=1e-5)
            and (np.linalg.eigvalsh(value) > 0).all()
        )


real = _Real()
positive = _Positive()
unit_interval = _UnitInterval()
lower_triangular = _LowerTriangular()
ordered = _Ordered()
positive_definite = _PositiveDefinite()


@dataclasses.dataclass(frozen=True)
class Declaration:
    """What a class says of one of its fields: the set its values lie in, and whether an optimiser may move them.

    `finite` is False where NaN and infinities mean something, such as an output that was not observed.
    """

    constraint: Constraint
    trainable: bool
    finite: bool = True


_CONSTANT = Declaration(real, trainable=False)
_FOREIGN = Declaration(real, trainable=True)


def as_parameter(value: Any) -> Any:
    """Numbers and sequences of numbers as floating-point arrays; modules, functions and None as they are.

    A Python number stays weakly typed, so that it takes the dtype of the data it meets.
    """
    if value is None or callable(value):
        return value
    if isinstance(value, bool | int | float):
        return jnp.asarray(float(value))
    value = jnp.asarray(value)
    return value if jnp.issubdtype(value.dtype, jnp.inexact) else value.astype(float)


def _as_constant(value: Any) -> Any:
    return jnp.asarray(value) if isinstance(value, np.ndarray | list | tuple | bool | int | float) else value


def param(constraint: Constraint, **kwargs: Any) -> Any:
    """A field whose arrays are trained, inside `constraint`. `kwargs` are those of `equinox.field` (`default`, ...)."""
    metadata = {_DECLARATION: Declaration(constraint, trainable=True)}
    return eqx.field(converter=as_parameter, metadata=metadata, **kwargs)


def constant(*, finite: bool = True, **kwargs: Any) -> Any:
    """A field whose arrays no optimiser moves: data, quadrature nodes, tables. `finite` as in `Declaration`."""
    metadata = {_DECLARATION: dataclasses.replace(_CONSTANT, finite=finite)}
    return eqx.field(converter=_as_constant, metadata=metadata, **kwargs)


class Module(eqx.Module):
    """Base of every mercer class: an immutable value, whose declared fields are checked when it is made."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        deprecation.adapt(cls)

    def __check_init__(self):
        for field in dataclasses.fields(self):
            declaration = field.metadata.get(_DECLARATION)
            if declaration is None or not declaration.trainable:
                continue
            for leaf in jax.tree.leaves(getattr(self, field.name, None)):
                looked_at = _is_inexact(leaf) and is_concrete(leaf)  # a random key of a foreign module is no number
                if looked_at and not declaration.constraint.contains(np.asarray(leaf)):
                    raise ValueError(
                        f"{type(self).__name__}: {field.name} expects {declaration.constraint.expected}, got {_brief(leaf)}"
                    )

    def _repr_html_(self) -> str:
        """What a notebook shows: the table of `mercer.summary`."""
        from mercer.overview import summary  # which looks at modules

        return summary(self)._repr_html_()


def _brief(value: Any) -> str:
    value = np.asarray(value)
    return str(value) if value.size <= 8 else f"an array of shape {value.shape} with minimum {value.min():.3g}"


def is_concrete(value: Any) -> bool:
    """Whether `value` is an array whose numbers can be looked at (not one being traced)."""
    return isinstance(value, jax.Array | np.ndarray) and not isinstance(value, jax.core.Tracer)


def all_concrete(tree: Any) -> bool:
    """Whether all numbers of a tree can be looked at."""
    return all(is_concrete(leaf) for leaf in jax.tree.leaves(tree))


def dtype_of(tree: Any) -> Any:
    """The dtype of what a tree holds; None where it holds no floating-point numbers."""
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.result_type(*dtypes) if dtypes else None


def _is_inexact(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def declarations(tree: Any) -> Iterator[tuple[str, Any, Declaration | None]]:
    """Every leaf of `tree` with its path and its declaration; None where no class declares it."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        yield jax.tree_util.keystr(path), leaf, _declaration(tree, path)


def _declaration(node: Any, path: tuple) -> Declaration | None:
    """The innermost declaration on the way to a leaf; below a constant, that of a constant."""
    found, below_constant = None, False
    for key in path:
        if isinstance(node, Module):
            field = type(node).__dataclass_fields__[key.name]
            found = field.metadata.get(_DECLARATION, found if found is _FOREIGN else None)
            below_constant |= found is not None and not found.trainable
            node = getattr(node, key.name)
        elif isinstance(node, eqx.Module):
            found, node = _FOREIGN, getattr(node, key.name)
        elif isinstance(key, jax.tree_util.SequenceKey):
            node = node[key.idx]
        elif isinstance(key, jax.tree_util.DictKey):
            node = node[key.key]
        elif isinstance(key, jax.tree_util.GetAttrKey):
            node = getattr(node, key.name)
        else:
            break
    return dataclasses.replace(_CONSTANT, finite=found is None or found.finite) if below_constant else found


def trainable(tree: Tree) -> Tree:
    """A tree of booleans in the shape of `tree`: which leaves are parameters."""
    leaves, structure = jax.tree.flatten(tree)
    flags = []
    for (path, _, declaration), leaf in zip(declarations(tree), leaves, strict=True):
        if declaration is None and _is_inexact(leaf):
            raise TypeError(f"the array at {path} is declared neither param(...) nor constant() by its class")
        flags.append(declaration is not None and declaration.trainable and _is_inexact(leaf))
    return jax.tree.unflatten(structure, flags)


def hold(flags: Tree, frozen: Callable[[Any], Any] | None) -> Tree:
    """A tree of booleans, with False in the parts that `frozen`, a function from a model of its form, leads to."""
    if frozen is None:
        return flags
    try:
        return eqx.tree_at(frozen, flags, replace_fn=lambda part: jax.tree.map(lambda _: False, part))
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"frozen must be a function from the model to parts of it: {error}") from error


def _map_trainable(apply: Callable[[Constraint, Array], Array], tree: Tree) -> Tree:
    flags, structure = jax.tree.leaves(trainable(tree)), jax.tree.structure(tree)
    mapped = [
        apply(declaration.constraint, leaf) if flag else leaf  # type: ignore[union-attr]
        for (_, leaf, declaration), flag in zip(declarations(tree), flags, strict=True)
    ]
    return jax.tree.unflatten(structure, mapped)


def constrain(tree: Tree) -> Tree:
    """The model that a tree of free parameters stands for."""
    return _map_trainable(lambda constraint, free: constraint.constrain(free), tree)


def unconstrain(tree: Tree) -> Tree:
    """The tree with each parameter replaced by a free one that any step of an optimiser leaves valid."""
    return _map_trainable(lambda constraint, value: constraint.unconstrain(value), tree)


def not_finite(tree: Any) -> str | None:
    """The path of the first parameter or constant that holds NaN or inf, where its class allows neither; None if none does."""
    for path, leaf, declaration in declarations(tree):
        looked_at = declaration is not None and declaration.finite and _is_inexact(leaf) and is_concrete(leaf)
        if looked_at and not np.isfinite(np.asarray(leaf)).all():
            return path
    return None


def cast(tree: Tree, dtype: Any) -> Tree:
    """The tree with its floating-point arrays in `dtype`; as it is if that is None."""
    if dtype is None:
        return tree

    def convert(leaf):
        return leaf.astype(dtype) if _is_inexact(leaf) and (leaf.dtype != dtype or _is_weak(leaf)) else leaf

    return jax.tree.map(convert, tree)


def _is_weak(leaf: Any) -> bool:
    return getattr(leaf, "weak_type", False)
