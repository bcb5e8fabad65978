"""Stages of an experiment: what is done with the data, one after another. Each gives a value that later ones refer to by `$`.

    select    inducing points and the kernel, in turns                     (Algorithm 2 of paper 000)
    make      anything from what is there, such as a regulariser
    fit       a model, trained on an objective
    temper    a model, its uncertainty scaled by the validation data       (5.9)

Algorithm 3 of paper 000 is the four of them. A stage of the user's own is a function (context, ...) -> value with annotated
parameters, made known by `stage`.
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax
import numpy as np
import optax
from jaxtyping import Float, PRNGKeyArray

from mercer import calibration, training
from mercer.experiments.scores import SCORES, distance, scores_of
from mercer.inducing import Alternation, alternate
from mercer.kernels import Kernel
from mercer.model import Model
from mercer.objectives import Objective
from mercer.training import Fit, NaturalGradient, Progressed
from mercer.validation import AnyArray

STAGES: dict[str, Callable[..., Any]] = {}
Function = TypeVar("Function", bound=Callable)
Number = TypeVar("Number", int, int | None)


class Stage:
    """What stages are, for the sake of a name."""


@dataclasses.dataclass(frozen=True)
class Context:
    """What a stage is given beside its settings: data in standard units, randomness, and a place for what it writes."""

    X: np.ndarray
    Y: np.ndarray
    validation: tuple[np.ndarray, np.ndarray]
    key: PRNGKeyArray
    scale: np.ndarray  # of a unit of Y, in those of the data
    checkpoint: Path | None = None
    watch: Callable[[Progressed], Any] | None = None


def stage(function: Function) -> Function:
    """Makes a function a stage, under its name."""
    STAGES[function.__name__] = function
    return function


@dataclasses.dataclass(frozen=True)
class Root:
    """A number that grows with the data: factor * N^(1 / of), rounded up, and at most `most`."""

    of: int = 2
    factor: float = 1.0
    most: int | None = None

    def __call__(self, N: int) -> int:
        """The number for N data."""
        found = math.ceil(round(self.factor * N ** (1.0 / self.of), 9))
        return found if self.most is None else min(found, self.most)


def number_for(said: Number | Root, N: int) -> Number | int:
    """A number that may grow with the data, for N of them."""
    return said(N) if isinstance(said, Root) else said


def lengthscales(X: Float[AnyArray, "N D"]) -> Float[np.ndarray, " D"]:
    """A lengthscale for each column, to begin with: sqrt(D) times its standard deviation (1 where it is constant)."""
    spread = np.std(np.asarray(X, float), axis=0)
    return np.sqrt(len(spread)) * np.where(spread > 0.0, spread, 1.0)


def noise_variances(Y: Float[AnyArray, "N P"], share: float = 0.05) -> Float[np.ndarray, " P"]:
    """A variance of the noise of each output, to begin with: a share of its variance."""
    return share * np.nanvar(np.asarray(Y, float), axis=0)


def rows_for(
    rows: int | None, X: Float[np.ndarray, "N D"], Y: Float[np.ndarray, "N P"], *, key: PRNGKeyArray
) -> tuple[np.ndarray, np.ndarray]:
    """So many rows of the data, at random and in their order; all of them where there are no more."""
    if rows is None:
        return X, Y
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    chosen = np.sort(np.asarray(jax.random.permutation(key, len(X)))[:rows])
    return X[chosen], Y[chosen]


@dataclasses.dataclass(frozen=True)
class Validation:
    """How far a score of the validation data is from what it should be."""

    score: str
    X: np.ndarray
    Y: np.ndarray
    scale: np.ndarray

    def __post_init__(self) -> None:
        if len(self.X) == 0:
            raise ValueError("validate needs rows for validation, of which there are none: see `split`")

    def __call__(self, model: Model) -> float:
        """Of a model; less is better."""
        return distance(self.score, scores_of(model, self.X, self.Y, self.scale, [self.score])[self.score])


def validation_of(score: str | None, context: Context) -> Validation | None:
    """What `fit` chooses a model by, where it is to."""
    return None if score is None else Validation(score, *context.validation, context.scale)


# What gives an array, in the place of one.
STARTS = (lengthscales, noise_variances)


@stage
def select(
    context: Context,
    kernel: Kernel,
    M: int | Root,
    noise: float = 0.1,
    rounds: int = 10,
    steps: int = 100,
    optimiser: optax.GradientTransformation | None = None,
) -> Alternation:
    """Inducing points by greedy variance and the kernel by type-II maximum likelihood, in turns: `mercer.inducing.alternate`."""
    num = number_for(M, len(context.X))
    return alternate(context.X, context.Y, kernel, num, noise=noise, rounds=rounds, steps=steps, optimiser=optimiser)


@stage
def make(context: Context, value: Any) -> Any:
    """A value, from what earlier stages gave."""
    return value


@stage
def fit(
    context: Context,
    model: Model,
    objective: Objective,
    optimiser: optax.GradientTransformation | NaturalGradient | None = None,
    steps: int = 1000,
    batch_size: int | Root | None = None,
    frozen: Callable[[Any], Any] | None = None,
    restarts: int = 1,
    every: int = 100,
    rows: int | None = None,
    validate: Literal[tuple(SCORES)] | None = None,  # type: ignore[valid-type]
    patience: int | None = None,
) -> Fit:
    """A model trained on an objective, with its history: `mercer.fit`.

    `rows` takes so many rows of the data, at random. `validate` names a score of the validation data: the model that is best by
    it, after every `every` steps, is kept, and training ends when it has not become better for `patience` steps.
    """
    model.likelihood.num_latents(context.Y.shape[1])  # what it refuses has nothing to do with units
    try:
        model.likelihood.validate(context.Y, "Y")
    except ValueError as error:
        raise ValueError(f"{error}; Y is centred and scaled unless the experiment says `standardise: [X]`") from None
    X, Y = rows_for(rows, context.X, context.Y, key=context.key)
    return training.fit(
        model,
        objective,
        (X, Y),
        optimiser=optimiser,
        steps=steps,
        batch_size=number_for(batch_size, len(X)),
        frozen=frozen,
        restarts=restarts,
        every=every,
        key=context.key,
        checkpoint=context.checkpoint,
        callbacks=() if context.watch is None else context.watch,
        validate=validation_of(validate, context),
        patience=patience,
    )


@stage
def temper(context: Context, model: Model) -> Model:
    """The model with its uncertainty scaled so that the validation data are as likely as they can be."""
    return calibration.temper(model, *context.validation)
