"""What is done for each of several things that differ in numbers alone: compiled once, and gone through in a loop."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from mercer.linalg.products import on_cpu


def for_each(function: Callable[..., Any], trees: Sequence[Any], *arrays: Array) -> Any:
    """function(tree, *entries) for each tree and the entries of the arrays along their first axis, stacked.

    Trees of one form are gone through in a loop that is compiled once; on a GPU, all at a time.
    """
    first, *others = trees
    alike = all(form(first) == form(tree) for tree in others)
    if not alike or not others:
        results = [function(tree, *(array[i] for array in arrays)) for i, tree in enumerate(trees)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)
    dynamic, static = zip(*(eqx.partition(tree, eqx.is_array) for tree in trees), strict=True)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *dynamic)

    def one(entries):
        tree, *rest = entries
        return function(eqx.combine(tree, static[0]), *rest)

    entries = (stacked, *arrays)
    return jax.lax.map(one, entries) if on_cpu() else jax.vmap(one)(entries)


def form(tree: Any) -> Any:
    """What two trees must have in common to be stacked: classes, fields that are not arrays, and shapes."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, jnp.result_type(leaf)) if eqx.is_array(leaf) else leaf for leaf in leaves]
