"""Variables of the terms of a sum of kernels, which are independent of each other: block by block."""

import jax.numpy as jnp
from jaxtyping import Array

from mercer.covariances.dispatch import Kuf, Kuu, has_fixed_features
from mercer.inducing.base import InducingVariables
from mercer.inducing.per_term import PerTerm
from mercer.kernels.base import Kernel, Sum
from mercer.linalg.operators import PSD, BlockDiagonal


def pairs_of_terms(inducing: PerTerm, kernel: Sum) -> list[tuple[InducingVariables, Kernel]]:
    """The variables and the kernel of each term."""
    if len(inducing.parts) != len(kernel.kernels):
        raise ValueError(
            f"PerTerm expects variables for each of the {len(kernel.kernels)} terms of the kernel, got {len(inducing.parts)}"
        )
    return list(zip(inducing.parts, kernel.kernels, strict=True))


@Kuu.dispatch
def _(inducing: PerTerm, kernel: Sum) -> PSD:
    return BlockDiagonal([Kuu(*pair) for pair in pairs_of_terms(inducing, kernel)])


@Kuf.dispatch
def _(inducing: PerTerm, kernel: Sum, X) -> Array:
    return jnp.concatenate([Kuf(*pair, X) for pair in pairs_of_terms(inducing, kernel)])


@has_fixed_features.dispatch
def _(inducing: PerTerm, kernel: Sum) -> bool:
    return all(has_fixed_features(*pair) for pair in pairs_of_terms(inducing, kernel))
