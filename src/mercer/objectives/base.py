"""What an objective is: a number to make small, for a model on a batch of data.

Objectives are per datum (minus a bound, divided by the number of data), so that learning rates and tolerances carry over
between data sets, and unbiased under minibatching.
"""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mercer import deprecation, validation
from mercer.inducing.functionals import as_inputs, is_array, is_functional
from mercer.model import Model, align, check_latents
from mercer.parameters import Module, constant, dtype_of, is_concrete
from mercer.validation import AnyArray


class Batch(Module):
    """Rows of a data set that has `num_data` rows in all; `complete` says that nothing in it is missing (NaN).

    X is inputs [B, D], functionals (`mercer.inducing`) that were observed in the place of values at inputs, None (where inputs
    are latent), or any tree of arrays with one row for each datum. A weight says how often a row counts: its likelihood is
    taken to that power. None counts each once. `index` is the number of each row in the data set.
    """

    X: Float[Array, "B D"] | eqx.Module | dict | tuple | None = constant()
    Y: Float[Array, "B P"] = constant(finite=False)  # NaN where nothing was observed
    weights: Float[Array, " B"] | None = constant()
    index: Int[Array, " B"] = constant()
    num_data: int = eqx.field(static=True)
    complete: bool = eqx.field(static=True)

    def __init__(
        self,
        X: Any,
        Y: AnyArray,
        num_data: int | None = None,
        complete: bool | None = None,
        weights: AnyArray | None = None,
        index: AnyArray | None = None,
    ):
        self.X, self.Y, self.weights = X, Y, weights
        self.index = np.arange(len(Y), dtype=np.int32) if index is None else index
        self.num_data = len(Y) if num_data is None else num_data
        self.complete = validation.is_complete(jnp.asarray(Y)) if complete is None else complete

    @property
    def inputs(self) -> Any:
        """X where it is an array of inputs; else None."""
        return self.X if is_array(self.X) else None

    @property
    def dtype(self) -> Any:
        """The dtype of the data, which that of the model follows: that of X, where it has one."""
        return dtype_of(self.X) or self.Y.dtype

    def rows(self, index: AnyArray) -> "Batch":
        """A minibatch."""
        X, Y, weights, numbers = jax.tree.map(lambda leaf: leaf[index], (self.X, self.Y, self.weights, self.index))
        return Batch(X, Y, self.num_data, self.complete, weights, numbers)

    def weighted(self, terms: Float[Array, " B"]) -> Float[Array, " B"]:
        """One term for each row, each as often as its row counts."""
        return terms if self.weights is None else self.weights * terms


# What may be trained on: (X, Y), or (X, Y, weights). X is an array, functionals, any tree with rows, or None.
Data = Batch | tuple[Any, AnyArray] | tuple[Any, AnyArray, AnyArray | None]


def as_batch(data: Any, *, discrete: bool = False) -> Batch:
    """A pair (X, Y) or a triple (X, Y, weights), checked, as a batch that is the whole data set."""
    if isinstance(data, Batch):
        return data
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise ValueError(f"data expects a pair (X, Y) or a triple (X, Y, weights), got {type(data).__name__}")
    X, num_data = _checked_rows(data[0])
    Y = validation.outputs(data[1], np.shape(data[1])[0] if num_data is None else num_data, discrete=discrete)
    if len(Y) == 0:
        raise ValueError("X must have at least one row, got none")
    dtype = dtype_of(X) or Y.dtype
    weights = None if len(data) == 2 or data[2] is None else _checked_weights(data[2], len(Y)).astype(dtype)
    return Batch(X, Y.astype(dtype), weights=weights)


def _checked_rows(X: Any) -> tuple[Any, int | None]:
    """Inputs, functionals or a tree of arrays, and how many rows they are; None, of which the number is not known."""
    if X is None:
        return None, None
    if is_functional(X) or is_array(X):
        # A large array that lies well in memory is used where it is: for the time of training there is one of it.
        X = as_inputs(jax.device_put(X, may_alias=True) if isinstance(X, np.ndarray) else X)
        return X, len(X)
    leaves = jax.tree.leaves(X)
    lengths = {leaf.shape[:1] for leaf in leaves}
    if len(lengths) != 1 or () in lengths:
        raise ValueError(
            f"X: all arrays of a tree expect the same number of rows, got shapes {[x.shape for x in leaves]}"
        )
    for leaf in leaves:
        validation.finite(leaf, "X")
    return jax.tree.map(jnp.asarray, X), len(leaves[0])


def _checked_weights(weights: Any, num_data: int) -> Array:
    weights = validation.floating(weights, "weights")
    if weights.shape != (num_data,):
        raise ValueError(f"weights must be a vector with one number for each of {num_data} rows, got {weights.shape}")
    if is_concrete(weights) and not bool(jnp.all(jnp.isfinite(weights) & (weights > 0.0))):
        raise ValueError("weights must be positive and finite; leave out the rows that do not count")
    return weights


class Context(NamedTuple):
    """What an objective may see of a training run beside the batch."""

    step: Int[Array, ""]  # the number of the step, from 0
    data: Batch  # the whole data set, where the objective says `needs_data`
    state: Any  # what it returned at the step before; at the first, what `init` gave


class Objective(Module):
    """A function (model, batch, key) -> scalar to be made small. A new objective says `_value`.

    One that needs to know more than the batch is a `TrainingObjective`.
    """

    minibatched: ClassVar[bool] = True  # whether it is a mean over data, so that a part of them gives an estimate
    needs_data: ClassVar[bool] = False  # whether it looks at all of the data in each step
    trained: ClassVar[bool] = False  # whether its own fields that are declared `param` are trained with the model

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        deprecation.rename_method(cls, "complete", "finish")

    @abc.abstractmethod
    def _value(self, model: Any, batch: Batch, key: PRNGKeyArray | None) -> Float[Array, ""]:
        """The objective per datum."""

    def _value_in_training(
        self, model: Any, batch: Batch, key: PRNGKeyArray | None, context: Context
    ) -> tuple[Float[Array, ""], Any]:
        """The objective per datum at a step of training, and the state for the next step."""
        return self._value(model, batch, key), context.state

    def value_in_training(
        self, model: Any, batch: Batch, context: Context, *, key: PRNGKeyArray | None
    ) -> tuple[Float[Array, ""], Any]:
        """What `fit` makes small: the objective per datum at a step, and the state for the next one."""
        return self._value_in_training(model, batch, key, context)

    def init(self, model: Any, batch: Batch) -> Any:
        """The state before the first step, from the model and the first rows of the data (all of them, in memory)."""
        return None

    def __call__(self, model: Any, batch: Data, key: PRNGKeyArray | None = None) -> Float[Array, ""]:
        """The objective per datum of a batch, or of a pair (X, Y) taken as the whole data set, as before the first step."""
        batch = self.prepare(model, self.checked(model, batch))
        return self._value(align(model, batch.dtype), batch, key)

    def checked(self, model: Any, data: Data) -> Batch:
        """The data as a batch, after all checks that can be made before anything is compiled."""
        likelihood = getattr(model, "likelihood", None)
        batch = as_batch(data, discrete=likelihood is not None and likelihood.discrete)
        if isinstance(model, Model):
            check_latents(model, batch.Y)
            model.likelihood.validate(batch.Y)
            model.posterior.check_data(batch.X, batch.Y, batch.num_data)
        return batch

    def prepare(self, model: Any, batch: Batch) -> Batch:
        """The checked data as the steps of training see them, such as sums over them that no parameter changes."""
        return batch

    def prepare_for(self, model: Any, batch: Batch, held: Sequence[Any]) -> Batch:
        """The same for a run in which some arrays of the model, `held`, stay as they are."""
        return self.prepare(model, batch)

    def finish(self, model: Any, batch: Batch) -> Any:
        """The model as `fit` gives it back, such as with the best posterior: by default as training left it."""
        return model

    complete = deprecation.old_name("Objective.complete", finish)


class TrainingObjective(Objective):
    """An objective that sees the run that it is made small in. A new one says `_value_in_training`, and `init` if it has a state.

    The `Context` that it is given holds the number of the step, the whole data set (with `needs_data = True`), and the state: a
    tree of arrays that `init` gives before the first step, and each step returns for the next, in the same shapes. `fit` carries
    it, writes it into checkpoints and has one for each restart.
    """

    @abc.abstractmethod
    def _value_in_training(
        self, model: Any, batch: Batch, key: PRNGKeyArray | None, context: Context
    ) -> tuple[Float[Array, ""], Any]:
        """The objective per datum at a step of training, and the state for the next step."""

    def _value(self, model, batch, key):
        """The objective as it is before the first step."""
        start = Context(jnp.zeros((), jnp.int32), batch, self.init(model, batch))
        return self._value_in_training(model, batch, key, start)[0]
