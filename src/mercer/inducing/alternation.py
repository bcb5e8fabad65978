"""Algorithm 2 of paper 000: a kernel and inducing points for it, learned in turns.

Greedy selection needs a kernel, and learning a kernel by the marginal likelihood of few points needs these points. So the two
take turns, each kernel learned from the same start, until the selection repeats or a number of rounds is over.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from mercer import validation
from mercer.inducing.selection import greedy_indices
from mercer.kernels.base import Kernel
from mercer.means.base import Mean
from mercer.parameters import declarations, positive
from mercer.priors import LogNormal, Prior
from mercer.validation import AnyArray

_SPREAD = 1.5  # of the logarithm of a parameter


class Alternation(NamedTuple):
    """A learned kernel, the variance of the noise, and the points chosen with the kernel, rows `indices` of X."""

    kernel: Kernel
    noise: Float[Array, ""]
    Z: Float[Array, "M D"]
    U: Float[Array, "M P"]  # the observations there
    indices: Int[np.ndarray, " M"]
    rounds: int
    converged: bool  # whether the last selection repeated an earlier one


def alternate(
    X: Float[AnyArray, "N D"],
    Y: Float[AnyArray, "N P"],
    kernel: Kernel,
    M: int,
    *,
    noise: float = 0.1,
    mean: Mean | None = None,
    rounds: int = 10,
    steps: int = 100,
    optimiser: Any = None,
    priors: Sequence[tuple[Callable[[Any], Array], Prior]] | None = None,
) -> Alternation:
    """Selects M rows of X by greedy variance and learns the kernel on them by type-II maximum likelihood, in turns.

    A round starts from the given kernel and noise variance, and takes `steps` of an optimiser (L-BFGS by default) on the
    marginal likelihood of the chosen rows (paper 000, Algorithm 2). Outputs share the kernel. It ends when a selection is one
    that was there before, or after so many rounds. The prior's mean is zero unless given, and held fixed.

    Few points can often be interpolated, or told apart by one column, and their likelihood then grows as the noise or a
    lengthscale goes to nothing. So each positive parameter has a log-normal prior around its start, by a factor of e^1.5 to
    either side; `priors` (as in `mercer.objectives.MAP`) replaces these, and () is plain maximum likelihood.
    """
    # fit and the exact objective stand above this package
    from mercer import training
    from mercer.likelihoods import Gaussian
    from mercer.model import Model
    from mercer.objectives import MAP, MarginalLikelihood
    from mercer.processes import GP

    X = validation.inputs(X)
    Y = validation.outputs(Y, len(X))
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel expects a mercer kernel of one output, got {type(kernel).__name__}")
    if not noise > 0.0:
        raise ValueError(f"noise expects a positive variance, got {noise}")
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    start = Model(GP(kernel, mean), Gaussian(noise))
    learned: Any = start
    if priors is None:
        priors = [
            (_positive_parameter(i), LogNormal(jnp.log(value), jnp.asarray(_SPREAD)))
            for i, value in enumerate(_positive_parameters(start))
        ]
    objective = MAP(MarginalLikelihood(), priors) if priors else MarginalLikelihood()
    optimiser = _lbfgs() if optimiser is None else optimiser
    selections = [greedy_indices(X, kernel, M)]
    while len(selections) <= rounds and not _repeats(selections):
        data = X[selections[-1]], Y[selections[-1]]
        learned = training.fit(start, objective, data, optimiser=optimiser, steps=steps, frozen=_mean).model
        selections.append(greedy_indices(X, learned.posterior.prior.kernel, M))
    last = selections[-1]
    found = learned.posterior.prior.kernel, learned.likelihood.variance, X[last], Y[last], last
    return Alternation(*found, len(selections) - 1, _repeats(selections))


def _mean(model: Any) -> Any:
    return model.posterior.mean


def _positive_parameters(model: Any) -> list[Array]:
    return [
        leaf for _, leaf, found in declarations(model) if found and found.trainable and found.constraint is positive
    ]


# `fit` knows what it has compiled by the functions that went into it, so that these are made once.


@functools.cache
def _positive_parameter(i: int) -> Callable[[Any], Array]:
    return lambda model: _positive_parameters(model)[i]


@functools.cache
def _lbfgs() -> Any:
    return optax.lbfgs()


def _repeats(selections: list[np.ndarray]) -> bool:
    """Whether the last selection, in whatever order, was there before."""
    *earlier, last = (frozenset(indices.tolist()) for indices in selections)
    return last in earlier
