"""Generalised variational inference from data to calibrated posterior: Algorithm 3 of paper 000.

    kernel, Z  <-  selection and type-II maximum likelihood in turns     (Algorithm 2, `mercer.inducing.alternate`)
    P          <-  the prior with that kernel, or it conditioned on the data at Z (5.8)
    Q          <-  a GP with a free mean and a variational kernel on Z, trained on risk + divergence from P
    Q          <-  Q, tempered on data that were not trained on          (`mercer.calibration.temper`)

With `divergences.GaussianWasserstein` this is Gaussian Wasserstein inference (chapter 5), with `divergences.Projected` it is
projected GVI (chapter 6). Each stage can be used alone.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, Real

from mercer import calibration, training
from mercer.divergences import Divergence, Projected, Renyi
from mercer.inducing import Alternation, alternate
from mercer.kernels import (
    CholeskySVGP,
    DiagonalSVGP,
    FixedSparsePosterior,
    Kernel,
    KernelisedSVGP,
    SparsePosterior,
)
from mercer.likelihoods import Gaussian, Likelihood
from mercer.means import Mean
from mercer.model import Model
from mercer.objectives import GVI
from mercer.objectives.base import as_batch
from mercer.objectives.risks import ExpectedNegativeLogLikelihood, Risk
from mercer.processes import GP, Conditioned, Process
from mercer.validation import AnyArray

__all__ = ["VARIATIONAL_KERNELS", "Learned", "learn"]

Start = Callable[[Kernel, AnyArray, AnyArray, AnyArray], Kernel]

_BASE = 0.1  # of the prior's variance: where the free kernel of a KernelisedSVGP starts

VARIATIONAL_KERNELS: dict[str, Start] = {
    "cholesky-svgp": CholeskySVGP.optimal,
    "diagonal-svgp": DiagonalSVGP.optimal,
    "kernelised-svgp": lambda kernel, Z, X, noise: KernelisedSVGP(kernel, Z, _BASE * kernel),
    "sparse-posterior": lambda kernel, Z, X, noise: SparsePosterior(kernel, Z),
    "fixed-sparse-posterior": lambda kernel, Z, X, noise: FixedSparsePosterior(kernel, kernel, Z),
}


class Learned(NamedTuple):
    """What the stages of Algorithm 3 gave."""

    model: Model  # tempered
    untempered: Model
    regulariser: Process
    inducing: Alternation
    history: np.ndarray  # the objective before each step


def learn(
    X: Float[AnyArray, "N D"],
    Y: Real[AnyArray, "N P"],
    kernel: Kernel,
    mean: Mean,
    *,
    M: int | None = None,
    variational: str | Start = "sparse-posterior",
    likelihood: Likelihood | None = None,
    risk: Risk | None = None,
    divergence: Divergence | None = None,
    weight: float = 1.0,
    regulariser: Literal["prior", "posterior"] = "prior",
    validation: tuple[AnyArray, AnyArray] | float = 0.1,
    noise: float = 0.1,
    rounds: int = 10,
    steps: int = 2000,
    batch_size: int | None = None,
    optimiser: optax.GradientTransformation | None = None,
    key: PRNGKeyArray | None = None,
    **options: Any,
) -> Learned:
    """Algorithm 3: selects inducing points and learns the prior's kernel, trains the posterior, and tempers it.

    - `kernel`: of the prior, which has mean zero: standardise Y. `mean`: of the posterior, such as `mercer.means.Network`.
    - `M`: how many inducing points, by default the root of the number of data.
    - `variational`: the posterior's kernel, a name of `VARIATIONAL_KERNELS` or a function (kernel, Z, X, noise) -> kernel.
    - `likelihood`: Gaussian unless given, with the noise that Algorithm 2 found. With one over classes, Algorithm 2 has
      their indicators in the place of Y, with mean 0 and the variance of the kernel, which therefore sets the scale of the
      latent functions.
    - `risk`, `divergence`, `weight`: of `mercer.objectives.GVI`; by default the expected negative log likelihood,
      the projected Renyi divergence of order 1/2, and 1. The experiments of the paper have `weight` = N.
    - `regulariser`: the prior, or its "posterior" on the data at the inducing points.
    - `validation`: a pair (X, Y) to temper by, or the share of the data that is held out for it.
    - `noise`: the variance that Algorithm 2 starts from (for classes: relative to the kernel's), in at most `rounds` rounds.
    - all else goes to `mercer.fit`. Unless given, the optimiser is Adam with learning rate 0.001, and inducing points that
      could be learned are `frozen`.
    """
    key = jax.random.key(0) if key is None else key
    key_split, key_fit = jax.random.split(key)
    start = _start(variational)
    if regulariser not in ("prior", "posterior"):
        raise ValueError(f'regulariser expects "prior" or "posterior", got {regulariser!r}')
    objective = GVI(None, risk or ExpectedNegativeLogLikelihood(), divergence or Projected(Renyi(0.5)), weight)
    Model(GP(kernel, mean), Gaussian() if likelihood is None else likelihood)  # refuses what it cannot be made of
    data = as_batch((X, Y), discrete=likelihood is not None and likelihood.discrete)
    (X, Y), held_out = _split(data.X, data.Y, validation, key_split)

    num_points = math.ceil(math.sqrt(len(X))) if M is None else M
    targets, scale = _targets(X, Y, kernel, likelihood)
    found = alternate(X, targets, kernel, num_points, noise=noise * scale, rounds=rounds)
    prior = GP(found.kernel)
    against = prior if regulariser == "prior" else Conditioned(prior, found.Z, found.U, found.noise)
    posterior = GP(start(found.kernel, found.Z, X, found.noise), mean)

    fitted = training.fit(
        Model(posterior, Gaussian(found.noise) if likelihood is None else likelihood),
        dataclasses.replace(objective, prior=against),
        (X, Y),
        optimiser=optax.adam(1e-3) if optimiser is None else optimiser,
        steps=steps,
        batch_size=batch_size,
        key=key_fit,
        frozen=options.pop("frozen", _inducing_points),
        **options,
    )
    return Learned(calibration.temper(fitted.model, *held_out), fitted.model, against, found, fitted.history)


def _start(variational: str | Start) -> Start:
    if callable(variational):
        return variational
    if variational not in VARIATIONAL_KERNELS:
        raise ValueError(
            f"variational expects one of {', '.join(VARIATIONAL_KERNELS)}, or a function, got {variational!r}"
        )
    return VARIATIONAL_KERNELS[variational]


def _inducing_points(model: Model) -> Any:
    """The Z of a variational kernel, which Algorithm 3 holds where Algorithm 2 put it."""
    return getattr(model.posterior.kernel, "Z", ())  # type: ignore[attr-defined]


def _split(X, Y, held_out, key):
    """Data to train on and data to temper by."""
    if not isinstance(held_out, float | int):
        if len(held_out) != 2 or len(held_out[0]) == 0:
            raise ValueError("the validation set is empty: validation expects a pair (X, Y), or a share of the data")
        return (X, Y), held_out
    num = round(held_out * len(X))
    if not 0.0 < held_out < 1.0 or num == 0:
        raise ValueError(
            f"the validation set is empty: {held_out} of {len(X)} rows; a share between 0 and 1 is expected"
        )
    order = jax.random.permutation(key, len(X))
    return (X[order[num:]], Y[order[num:]]), (X[order[:num]], Y[order[:num]])


def _targets(
    X: AnyArray, Y: AnyArray, kernel: Kernel, likelihood: Likelihood | None
) -> tuple[Float[Array, "N L"], float]:
    """What the prior is learned on, and the scale of its variance: Y; for classes, their indicators in the kernel's units."""
    classes = getattr(likelihood, "classes", None)
    if classes is None:
        return jnp.asarray(Y), 1.0
    indicators = (jnp.arange(classes) == Y).astype(Y.dtype)
    indicators = indicators - jnp.mean(indicators, axis=0)
    variance = float(jnp.mean(kernel.diag(X)))
    return indicators * jnp.sqrt(variance / jnp.mean(indicators**2)), variance
