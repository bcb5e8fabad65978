"""Processes made of latent functions: what mixes them, and what is done for each of them."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.covariances.functionals import is_functional
from mercer.kernels import Coregionalisation, Independent, Kernel, LatentKernel, MultioutputKernel, OutputIndexed
from mercer.layouts import Layout, independent_outputs, mixed_outputs
from mercer.linalg.products import matmul, on_cpu
from mercer.processes.gaussian import Gaussian


def mixing(kernel: Kernel | MultioutputKernel, X: Any) -> tuple[Float[Array, "#N P L"] | None, Independent, Any]:
    """W (None for the identity), the kernel of the latent g, and the inputs of g, where f(X) = W g(X)."""
    if isinstance(kernel, Independent):
        return None, kernel, X
    if isinstance(kernel, Coregionalisation):
        return kernel.W[None], kernel.latent, X
    if isinstance(kernel, OutputIndexed) and mixes(kernel) and not is_functional(X):
        X, outputs = kernel.split(X)
        W, latent, X = mixing(kernel.kernel, X)
        W = jnp.eye(latent.num_outputs, dtype=X.dtype)[None] if W is None else W
        return W[0][outputs][:, None, :], latent, X
    kind = "functionals" if is_functional(X) else "inputs"
    raise ValueError(f"{type(kernel).__name__} is not a mixture of latent functions at {kind}")


def mixes(kernel: Kernel | MultioutputKernel) -> bool:
    """Whether the outputs at an input are a linear mixture of latent functions at that input."""
    inner = kernel.kernel if isinstance(kernel, OutputIndexed) else kernel
    return isinstance(inner, Independent | Coregionalisation)


def latent_kernel(kernel: Any) -> LatentKernel:
    """The kernel whose latent functions are meant, also of an `OutputIndexed`."""
    return kernel.kernel if isinstance(kernel, OutputIndexed) else kernel


def mixed_mean(W: Float[Array, "#N P L"], latent: Float[Array, "N L"]) -> Float[Array, "N P"]:
    """W g at each input."""
    return matmul(latent, W[0].T) if len(W) == 1 else jnp.sum(W * latent[:, None], axis=-1)


def mixed_gaussian(
    mean: Float[Array, "N #P"],
    W: Float[Array, "#N P L"] | None,
    latent: Float[Array, "N L"],
    values: Array,
    covariance: Layout,
) -> Gaussian:
    """The Gaussian of W g + mean, g independent; W = None is the identity."""
    if W is None:
        return Gaussian(mean + latent, independent_outputs(values, covariance), covariance)
    return Gaussian(mean + mixed_mean(W, latent), mixed_outputs(W, values, covariance), covariance)


def for_each(function: Callable[..., Any], trees: Sequence[Any], *arrays: Array) -> Any:
    """function(tree, *entries) for each tree and the entries of the arrays along their first axis, stacked.

    Trees of one form are gone through in a loop that is compiled once; on a GPU, all at a time.
    """
    first, *others = trees
    alike = all(_form(first) == _form(tree) for tree in others)
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


def _form(tree: Any) -> Any:
    """What two trees must have in common to be stacked: classes, fields that are not arrays, and shapes."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, jnp.result_type(leaf)) if eqx.is_array(leaf) else leaf for leaf in leaves]
