"""Derivatives of the process and any kernel that has them: derivatives of the kernel in one argument or in both.

Row n of a kernel's matrix depends on row n of X only, so one directional derivative with the same step in every row is all.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mercer.covariances.dispatch import Kuf, Kuu, Kuv
from mercer.inducing.derivative import Derivative
from mercer.kernels.base import Kernel
from mercer.linalg.operators import PSD, Dense


@Kuu.dispatch
def _(inducing: Derivative, kernel: Kernel) -> PSD:
    _check_differentiable(kernel, inducing.dim)

    def twice(X, step):
        def once(X2):
            return jax.jvp(lambda X: kernel(X, X2), (X,), (step,))[1]

        return jax.jvp(once, (X,), (step,))[1]

    X, step = inducing.X, inducing.direction()
    K = twice(X, step)
    # The variances one by one: among others a distance of 0 is one of 1e-8, which the derivative of a Matern 3/2 process sees.
    variances = jax.vmap(lambda x, s: twice(x[None], s[None])[0, 0])(X, step)
    return Dense(jnp.where(jnp.eye(len(X), dtype=bool), variances, 0.5 * (K + K.T)))


@Kuf.dispatch
def _(inducing: Derivative, kernel: Kernel, X) -> Array:
    _check_differentiable(kernel, inducing.dim)
    return inducing.of_function(lambda Z: kernel(Z, X))


@Kuv.dispatch
def _(first, kernel: Kernel, second: Derivative) -> Array:
    _check_differentiable(kernel, second.dim)
    return second.of_function(lambda X: Kuf(first, kernel, X).T).T


@Kuv.dispatch
def _(first: Derivative, kernel: Kernel, second) -> Array:
    return Kuv(second, kernel, first).T


@Kuv.dispatch
def _(first: Derivative, kernel: Kernel, second: Derivative) -> Array:
    _check_differentiable(kernel, second.dim)
    return second.of_function(lambda X: Kuf(first, kernel, X).T).T


def _check_differentiable(kernel: Kernel, dim: int) -> None:
    rough = kernel.rough_part(dim)
    if rough is not None:
        raise ValueError(
            f"{rough} has no derivative in the mean-square sense along column {dim}; Matern32 is the roughest kernel that does"
        )
