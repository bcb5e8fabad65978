"""Draws from the prior together with their inducing variables, chosen by the pair (inducing, kernel).

Matheron's rule moves a draw f of the prior, whose variables are u, to one of the posterior: f + Kuf^T Kuu^-1 (u' - u), u' drawn
from q(u). Variables that can be evaluated on any function are taken of a sum of random features. Others need a draw that is made
for them (`mercer.covariances.fourier`).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from plum import Dispatcher

from mercer.covariances.multioutput import latent_pairs
from mercer.covariances.per_term import pairs_of_terms
from mercer.inducing.latent import Separate, Shared
from mercer.inducing.per_term import PerTerm
from mercer.kernels.base import Sum
from mercer.kernels.coregionalisation import Coregionalisation
from mercer.kernels.maps import Draw, Map, SideBySide
from mercer.kernels.multioutput import Independent, OutputIndexed

_dispatch: Any = Dispatcher()


@_dispatch
def draw_jointly(inducing: Any, kernel: Any, key: Any, num_features: int, num_outputs: int) -> tuple:
    """A draw of the zero-mean process with this kernel, [N, D] -> [N, P], and the inducing variables of it, [M, P]."""
    shared = () if kernel.num_outputs else (num_outputs,)
    draw = kernel.draw(num_features, *shared, key=key)
    return draw, inducing.of_function(draw)


@draw_jointly.dispatch
def _(inducing: PerTerm, kernel: Sum, key: Any, num_features: int, num_outputs: int) -> tuple:
    pairs = pairs_of_terms(inducing, kernel)
    keys = jax.random.split(key, len(pairs))
    parts = [draw_jointly(*pair, k, num_features, num_outputs) for pair, k in zip(pairs, keys, strict=True)]
    draws, variables = zip(*parts, strict=True)
    return Draw(_Total(draws)), jnp.concatenate(variables)


@draw_jointly.dispatch
def _(inducing: Shared | Separate, kernel: Independent, key: Any, num_features: int, num_outputs: int) -> tuple:
    pairs, L = latent_pairs(inducing, kernel), kernel.num_latents
    if len(pairs) == 1:
        draw, variables = draw_jointly(*pairs[0], key, num_features, L)
        return Draw(draw, draw), variables
    keys = jax.random.split(key, L)
    parts = [draw_jointly(*pair, k, num_features, 1) for pair, k in zip(pairs, keys, strict=True)]
    draws, variables = zip(*parts, strict=True)
    draw = SideBySide(draws)
    return Draw(draw, draw), jnp.concatenate(variables, axis=1)


@draw_jointly.dispatch
def _(inducing: Shared | Separate, kernel: Coregionalisation, key: Any, num_features: int, num_outputs: int) -> tuple:
    latent, variables = draw_jointly(inducing, kernel.latent, key, num_features, num_outputs)
    return kernel.of_latents(latent), variables


@draw_jointly.dispatch
def _(inducing: Shared | Separate, kernel: OutputIndexed, key: Any, num_features: int, num_outputs: int) -> tuple:
    draw, variables = draw_jointly(inducing, kernel.kernel, key, num_features, num_outputs)
    return kernel.of_outputs((draw,)), variables


class _Total(Map):
    """The sum of several functions."""

    draws: tuple[Draw, ...]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        return sum(draw(X) for draw in self.draws[1:]) + self.draws[0](X)
