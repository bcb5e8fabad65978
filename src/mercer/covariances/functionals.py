"""Prior covariances of what stands in the place of X: an array of inputs, [N, D], or functionals of the process."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float
from plum import Dispatcher

from mercer.covariances.dispatch import Kuf, Kuu, Kuv
from mercer.inducing.base import InducingVariables
from mercer.inducing.functionals import is_functional
from mercer.kernels.base import Kernel
from mercer.kernels.multioutput import MultioutputKernel
from mercer.layouts import Layout, independent_outputs, mixed_outputs

_dispatch: Any = Dispatcher()


def cross_covariance(inducing: InducingVariables, kernel: Any, X: Any) -> Array:
    """`Kuf`, or `Kuv` where X stands for functionals."""
    return Kuv(inducing, kernel, X) if is_functional(X) else Kuf(inducing, kernel, X)


def prior_variance(kernel: Kernel, X: Any) -> Float[Array, " N"]:
    """The prior variances of f(X) for a kernel of one output."""
    return Kuu(X, kernel).diagonal() if is_functional(X) else kernel.diag(X)


def prior_matrix(kernel: Kernel, X: Any) -> Float[Array, "N N"]:
    """The prior covariance of f(X) for a kernel of one output."""
    return Kuu(X, kernel).dense() if is_functional(X) else kernel(X)


@_dispatch
def prior_covariance(kernel: Kernel, X: Any, num_outputs: int, covariance: Any) -> Array:
    """The prior covariance of f(X) in a layout; with a kernel of one output, that of `num_outputs` independent ones."""
    return independent_outputs(_of_independent((kernel,), X, num_outputs, covariance), covariance)


@prior_covariance.dispatch
def _(kernel: MultioutputKernel, X: Any, num_outputs: int, covariance: Any) -> Array:
    return kernel(X, covariance=covariance)


@prior_covariance.dispatch
def _(kernel: MultioutputKernel, X: InducingVariables, num_outputs: int, covariance: Any) -> Array:
    """Also of functionals, where the outputs are a mixture of latent functions."""
    W, Z = kernel.mixing(X)
    values = _of_independent(kernel.latent.parts, Z, kernel.num_latents, covariance)
    return independent_outputs(values, covariance) if W is None else mixed_outputs(W, values, covariance)


def _of_independent(kernels: tuple[Kernel, ...], X: Any, num: int, covariance: Layout) -> Array:
    """The variances [N, L] or covariances [L, N, N] of independent functions, as the layout needs them."""
    if covariance in ("diag", "outputs"):
        values = jnp.stack([prior_variance(kernel, X) for kernel in kernels], axis=1)
        return jnp.broadcast_to(values, (len(X), num))
    return jnp.broadcast_to(jnp.stack([prior_matrix(kernel, X) for kernel in kernels]), (num, len(X), len(X)))
