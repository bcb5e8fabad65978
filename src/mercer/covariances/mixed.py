"""Several kinds of variables of one process: block by block, each pair of kinds by its own rule."""

import jax.numpy as jnp
from jaxtyping import Array

from mercer.covariances.dispatch import Kuf, Kuu, Kuv, has_fixed_features
from mercer.inducing.mixed import Mixed
from mercer.kernels.base import Kernel
from mercer.linalg.operators import PSD, Dense


@Kuu.dispatch
def _(inducing: Mixed, kernel: Kernel) -> PSD:
    parts = inducing.parts
    lower = {(i, j): Kuv(parts[i], kernel, parts[j]) for i in range(len(parts)) for j in range(i)}
    diagonal = [Kuu(part, kernel).dense() for part in parts]

    def block(i, j):
        return diagonal[i] if i == j else lower[i, j] if i > j else lower[j, i].T

    return Dense(jnp.block([[block(i, j) for j in range(len(parts))] for i in range(len(parts))]))


@Kuf.dispatch
def _(inducing: Mixed, kernel: Kernel, X) -> Array:
    return jnp.concatenate([Kuf(part, kernel, X) for part in inducing.parts])


@has_fixed_features.dispatch
def _(inducing: Mixed, kernel: Kernel) -> bool:
    return all(has_fixed_features(part, kernel) for part in inducing.parts)


# Before the rules of a part's own kind with anything.
@Kuv.dispatch(precedence=1)
def _(first: Mixed, kernel: Kernel, second) -> Array:
    return jnp.concatenate([Kuv(part, kernel, second) for part in first.parts])


@Kuv.dispatch(precedence=1)
def _(first, kernel: Kernel, second: Mixed) -> Array:
    return jnp.concatenate([Kuv(first, kernel, part) for part in second.parts], axis=1)


@Kuv.dispatch(precedence=1)
def _(first: Mixed, kernel: Kernel, second: Mixed) -> Array:
    return jnp.concatenate([Kuv(part, kernel, second) for part in first.parts])
