"""Variables of the terms of a sum of kernels, which are independent of each other: block by block.

Terms that differ in numbers and in columns alone, such as one kernel on each pair of columns, are gone through in a loop that is
compiled once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mercer.covariances.dispatch import Kuf, Kuu, feature_parameters, has_fixed_features
from mercer.inducing.base import InducingVariables
from mercer.inducing.per_term import PerTerm
from mercer.kernels.base import Kernel, OnDimensions, Sum
from mercer.linalg.loops import for_each, form
from mercer.linalg.operators import PSD, block_diagonal

Pair = tuple[InducingVariables, Kernel]


def pairs_of_terms(inducing: PerTerm, kernel: Sum) -> list[Pair]:
    """The variables and the kernel of each term."""
    if len(inducing.parts) != len(kernel.kernels):
        raise ValueError(
            f"PerTerm expects variables for each of the {len(kernel.kernels)} terms of the kernel, got {len(inducing.parts)}"
        )
    return list(zip(inducing.parts, kernel.kernels, strict=True))


class _Group(NamedTuple):
    """Terms of one form."""

    numbers: list[int]  # their places among all terms
    pairs: list[Pair]
    dims: list[tuple[int, ...] | None]  # the columns that each of them sees; None: all of X


def _groups(inducing: PerTerm, kernel: Sum) -> list[_Group]:
    """The terms, put together where they differ in numbers and in columns alone."""
    groups: list[tuple[Any, _Group]] = []
    for number, pair in enumerate(pairs_of_terms(inducing, kernel)):
        pair, dims = _without_columns(*pair)
        kind = form(pair), None if dims is None else len(dims)
        group = next((group for other, group in groups if other == kind), None)
        if group is None:
            group = _Group([], [], [])
            groups.append((kind, group))
        for values, value in zip(group, (number, pair, dims), strict=True):
            values.append(value)
    return [group for _, group in groups]


def _without_columns(part: InducingVariables, kernel: Kernel) -> tuple[Pair, tuple[int, ...] | None]:
    """A pair on some columns, and which they are, where it is known that these columns are all that it sees."""
    if part.free_of_inputs and isinstance(kernel, OnDimensions):
        return (part, kernel.kernel), kernel.dims
    return (part, kernel), None


def _in_order(inducing: PerTerm, kernel: Sum, of_group: Callable[[_Group], Any]) -> list[Any]:
    """What is found for the terms of each group, stacked, as one entry for each term."""
    entries: list[Any] = [None] * len(inducing.parts)
    for group in _groups(inducing, kernel):
        stacked = of_group(group)
        for i, number in enumerate(group.numbers):
            entries[number] = jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
    return entries


@Kuu.dispatch
def _(inducing: PerTerm, kernel: Sum) -> PSD:
    return block_diagonal(_in_order(inducing, kernel, lambda group: for_each(lambda pair: Kuu(*pair), group.pairs)))


@Kuf.dispatch
def _(inducing: PerTerm, kernel: Sum, X) -> Array:
    def crosses(group):
        if group.dims[0] is None:
            return for_each(lambda pair: Kuf(pair[0], pair[1], X), group.pairs)
        columns = jnp.stack([X[:, list(dims)] for dims in group.dims])
        return for_each(lambda pair, X: Kuf(pair[0], pair[1], X), group.pairs, columns)

    return jnp.concatenate(_in_order(inducing, kernel, crosses))


@feature_parameters.dispatch
def _(inducing: PerTerm, kernel: Sum) -> Any:
    parameters = [feature_parameters(*pair) for pair in pairs_of_terms(inducing, kernel)]
    return None if any(of is None for of in parameters) else parameters


@has_fixed_features.dispatch
def _(inducing: PerTerm, kernel: Sum) -> bool:
    return all(has_fixed_features(*pair) for pair in pairs_of_terms(inducing, kernel))
