"""What an objective is: a number to make small, for a model on a batch of data.

Objectives are per datum (minus a bound, divided by the number of data), so that learning rates and tolerances carry over
between data sets, and unbiased under minibatching.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from mercer import validation
from mercer.covariances.functionals import as_inputs, dtype_of, is_functional
from mercer.inducing import InducingVariables
from mercer.model import Model, align, check_latents
from mercer.parameters import Module, constant, is_concrete


class Batch(Module):
    """Rows of a data set that has `num_data` rows in all; `complete` says that nothing in it is missing (NaN).

    X is inputs, or functionals (`mercer.inducing`) that were observed in the place of values at inputs. A weight says how
    often a row counts: its likelihood is taken to that power. None counts each once.
    """

    X: Float[Array, "B D"] | InducingVariables = constant()
    Y: Float[Array, "B P"] = constant()
    weights: Float[Array, " B"] | None = constant()
    num_data: int = eqx.field(static=True)
    complete: bool = eqx.field(static=True)

    def __init__(
        self,
        X: Array,
        Y: Array,
        num_data: int | None = None,
        complete: bool | None = None,
        weights: Array | None = None,
    ):
        self.X, self.Y, self.weights = X, Y, weights
        self.num_data = len(X) if num_data is None else num_data
        self.complete = validation.is_complete(jnp.asarray(Y)) if complete is None else complete

    @property
    def inputs(self) -> Any:
        """X; None where it stands for functionals."""
        return None if is_functional(self.X) else self.X

    def rows(self, index: Array) -> "Batch":
        """A minibatch."""
        weights = None if self.weights is None else self.weights[index]
        return Batch(self.inputs[index], self.Y[index], self.num_data, self.complete, weights)

    def weighted(self, terms: Float[Array, " B"]) -> Float[Array, " B"]:
        """One term for each row, each as often as its row counts."""
        return terms if self.weights is None else self.weights * terms


def as_batch(data: Any, *, discrete: bool = False) -> Batch:
    """A pair (X, Y) or a triple (X, Y, weights), checked, as a batch that is the whole data set."""
    if isinstance(data, Batch):
        return data
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise ValueError(f"data expects a pair (X, Y) or a triple (X, Y, weights), got {type(data).__name__}")
    # A large array that lies well in memory is used where it is: for the time of training there is one of it.
    X = as_inputs(jax.device_put(data[0], may_alias=True) if isinstance(data[0], np.ndarray) else data[0])
    if len(X) == 0:
        raise ValueError("X must have at least one row, got none")
    Y = validation.outputs(data[1], len(X), discrete=discrete)
    weights = None if len(data) == 2 or data[2] is None else _checked_weights(data[2], len(X)).astype(dtype_of(X))
    return Batch(X, Y.astype(dtype_of(X)), weights=weights)


def _checked_weights(weights: Any, num_data: int) -> Array:
    weights = validation.floating(weights, "weights")
    if weights.shape != (num_data,):
        raise ValueError(f"weights must be a vector with one number for each of {num_data} rows, got {weights.shape}")
    if is_concrete(weights) and not bool(jnp.all(jnp.isfinite(weights) & (weights > 0.0))):
        raise ValueError("weights must be positive and finite; leave out the rows that do not count")
    return weights


class Objective(Module):
    """A function (model, batch, key) -> scalar to be made small. A new objective says `_value`."""

    minibatched: ClassVar[bool] = True  # whether it is a mean over data, so that a part of them gives an estimate

    @abc.abstractmethod
    def _value(self, model: Any, batch: Batch, key: PRNGKeyArray | None) -> Float[Array, ""]:
        """The objective per datum."""

    def __call__(
        self, model: Any, batch: Batch | tuple[Array, Array], key: PRNGKeyArray | None = None
    ) -> Float[Array, ""]:
        """The objective per datum of a batch, or of a pair (X, Y) taken as the whole data set."""
        batch = self.checked(model, batch)
        return self._value(align(model, batch.X), batch, key)

    def checked(self, model: Any, data: Batch | tuple[Array, Array]) -> Batch:
        """The data as a batch, after all checks that can be made before anything is compiled."""
        likelihood = getattr(model, "likelihood", None)
        batch = as_batch(data, discrete=likelihood is not None and likelihood.discrete)
        if isinstance(model, Model):
            check_latents(model, batch.Y)
            model.likelihood.validate(batch.Y)
            model.posterior.check_inputs(batch.X)
        return batch

    def complete(self, model: Any, batch: Batch) -> Any:
        """What is left to do for the model after training: by default nothing."""
        return model
