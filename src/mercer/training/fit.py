"""The verb: `fit` makes an objective small, for any model.

The parameters are mapped to free space, and a compiled loop takes a chunk of steps at a time. Between chunks the host looks at
the losses, shows progress, calls callbacks and writes checkpoints. The length of a chunk is an argument of the
compiled loop, not a part of it, so that nothing is compiled twice and the numbers do not depend on the chunks. The last few
loops are kept: training again with the same objective, optimiser and shapes compiles nothing.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from mercer.linalg import quiet_blas
from mercer.model import align
from mercer.modules import refuse_state
from mercer.objectives.base import Batch, Context, Objective
from mercer.parameters import constrain, not_finite, trainable, unconstrain
from mercer.training import checkpoint as checkpoints
from mercer.training.feed import feed_of
from mercer.training.identity import description
from mercer.training.natural import NaturalGradient
from mercer.training.progress import Progress
from mercer.training.sources import Source
from mercer.training.steps import GradientStepper, NaturalStepper, Params, finite_starts


class Fit(eqx.Module):
    """A trained model, and the objective before each step, [steps] (with restarts: [steps] of the best).

    Unpacks as `model, history = fit(...)`. `objective` is what was made small, with the values that its own parameters have after
    training.
    """

    model: Any
    history: np.ndarray
    objective: Objective | None = None

    def __iter__(self):
        return iter((self.model, self.history))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Any:
        return (self.model, self.history)[i]


class TrainingError(ValueError):
    """The objective became NaN or infinite. `fit` holds the last good model and the history up to it."""

    def __init__(self, message: str, fit: Fit):
        super().__init__(message)
        self.fit = fit


class Progressed(NamedTuple):
    """What a callback sees after each chunk: steps done, the history so far, and the model as it is (made when called)."""

    step: int
    history: np.ndarray
    model: Callable[[], Any]


Callback = Callable[[Progressed], bool | None]


def fit(
    model: Any,
    objective: Objective,
    data: tuple[Any, ...] | Batch | Source,
    *,
    optimiser: optax.GradientTransformation | NaturalGradient | None = None,
    steps: int = 1000,
    batch_size: int | None = None,
    key: PRNGKeyArray | None = None,
    frozen: Callable[[Any], Any] | None = None,
    callbacks: Sequence[Callback] | Callback = (),
    checkpoint: str | Path | None = None,
    progress: bool = False,
    every: int = 100,
    restarts: int = 1,
    perturb: Callable[[Any, PRNGKeyArray], Any] | None = None,
) -> Fit:
    """Makes `objective` small over the parameters of `model`.

    - `data`: a pair (X, Y), or a triple (X, Y, weights) where a row counts as often as its weight says. Its dtype becomes
      the model's. Or a `mercer.training.Source`, for data that do not fit into memory.
    - `optimiser`: any of optax (by default Adam with learning rate 0.01), `optax.lbfgs()` for objectives without
      minibatches, or `mercer.training.NaturalGradient`.
    - `batch_size`: rows in a step; all of them by default. Passes over the data are shuffled.
    - `frozen`: a function from the model to the parts that are held still.
    - `callbacks`: one or several, called with a `Progressed` after every `every` steps; one that returns True ends training.
    - `checkpoint`: a file, written after every `every` steps. If it is there at the start, the run goes on from it.
    - `restarts`: how many starts are trained at once; the first is the model, the others are `perturb(model, key)`, by
      default with noise on its vectors and numbers in free space. The best at the end is returned.

    Raises `TrainingError` at the first loss that is not finite; it holds the last good model.
    """
    _check_count("steps", steps)
    callbacks = (callbacks,) if callable(callbacks) else callbacks
    if checkpoint is not None and not Path(checkpoint).parent.is_dir():
        raise ValueError(f"checkpoint expects a file in a folder that exists, got {checkpoint}")
    run = Run(
        model,
        objective,
        data,
        optimiser,
        batch_size=batch_size,
        key=key,
        frozen=frozen,
        every=every,
        restarts=restarts,
        perturb=perturb,
    )
    with quiet_blas():
        return run.train(steps, callbacks, None if checkpoint is None else Path(checkpoint), progress)


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a whole number, at least 1, got {value!r}")


def _check_arguments(objective, optimiser, every, restarts, minibatches):
    _check_count("every", every)
    _check_count("restarts", restarts)
    if isinstance(optimiser, NaturalGradient) and _searches_lines(optimiser.rest):
        raise ValueError("NaturalGradient: rest must not be an optimiser that searches along lines, such as L-BFGS")
    if minibatches and not objective.minibatched:
        raise ValueError(f"{type(objective).__name__} is not a mean over data: leave batch_size out")
    if minibatches and _searches_lines(optimiser):
        raise ValueError(
            "an optimiser that searches along lines, such as L-BFGS, needs all the data: leave batch_size out"
        )


def _searches_lines(optimiser) -> bool:
    """Whether an optimiser evaluates the loss itself (optax gives it no other mark than asking for the loss)."""
    if optimiser is None or isinstance(optimiser, NaturalGradient):
        return False
    optimiser = optax.with_extra_args_support(optimiser)
    try:
        jax.eval_shape(lambda x: optimiser.update(x, optimiser.init(x), x), np.zeros(1))
    except TypeError:
        return True
    return False


def _starts(model, restarts, perturb, key):
    """The starting models stacked along a new first axis; with one start, the model itself."""
    if restarts == 1:
        return model
    perturb = _perturb if perturb is None else perturb
    models = [model] + [perturb(model, k) for k in jax.random.split(jax.random.fold_in(key, 1), restarts - 1)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *models)


def _perturb(model, key):
    free = unconstrain(model)
    flags, leaves = jax.tree.leaves(trainable(model)), jax.tree.leaves(free)
    keys = jax.random.split(key, len(leaves))
    moved = [
        leaf + jax.random.normal(k, leaf.shape, leaf.dtype) if flag and leaf.ndim <= 1 else leaf
        for k, leaf, flag in zip(keys, leaves, flags, strict=True)
    ]
    return constrain(jax.tree.unflatten(jax.tree.structure(free), moved))


_ADAM = optax.adam(0.01)  # one for all calls, so that they share what is compiled
_unconstrain = eqx.filter_jit(unconstrain)
_constrain = eqx.filter_jit(constrain)


class _State(NamedTuple):
    """What training carries from step to step."""

    params: Params
    optimiser: Any
    objective: Any
    step: Array


class Run:
    """What one call of `fit` works with: the free parameters, what stays as it is, and the compiled loop over them.

    Its arguments are those of `fit`. `start` gives the state before the first step, and `chunk` takes some steps from it.
    """

    def __init__(
        self,
        model,
        objective,
        data,
        optimiser=None,
        *,
        batch_size=None,
        key=None,
        frozen=None,
        every=100,
        restarts=1,
        perturb=None,
    ):
        self.objective, self.every, self.restarts, self.perturb = objective, every, restarts, perturb
        self.key = key = jax.random.key(0) if key is None else key
        self.optimiser = optimiser = _ADAM if optimiser is None else optimiser
        refuse_state((model, objective), "fit")
        self.seed = tuple(int(word) for word in np.asarray(jax.random.key_data(key)).ravel())
        self.feed = feed_of(objective, model, data, batch_size, self.seed)
        _check_arguments(objective, optimiser, every, restarts, self.feed.batch_size is not None)
        self.model_before = model = align(model, self.feed.example.dtype)
        self.movable = Params(_movable(model, frozen, optimiser), _movable_of_objective(objective, optimiser))
        models = _starts(model, restarts, perturb, key)
        free = Params(_unconstrain(models), _copies(_free(objective, self.feed.example.dtype), restarts))
        self.params, self.fixed = eqx.partition(free, self.movable)
        self.held = eqx.filter(models, self.movable.model, inverse=True)
        if not jax.tree.leaves(self.params.model):
            raise ValueError(f"{'the model has' if frozen is None else 'frozen leaves'} no parameter to train")
        natural = isinstance(optimiser, NaturalGradient)
        num_data = self.feed.example.num_data
        self.stepper = NaturalStepper(optimiser, num_data) if natural else GradientStepper(optimiser)
        form = eqx.filter(objective, eqx.is_array, inverse=True)
        self._init, self._loop = _compiled(form, self.stepper, every, restarts, _shapes(self.feed.example))

    def start(self) -> _State:
        """The state before the first step."""
        return self._init(self.params, self.fixed, self.feed.example)

    def chunk(self, state: _State, count: int) -> tuple[_State, np.ndarray]:
        """The state after `count` steps (at most `every`) and their losses; fewer if none is finite any more."""
        fed = self.feed.chunk(int(state.step), count, self.every)
        # `count` as an array: a number would be a part of what is compiled.
        results = self._loop(state, self.fixed, self.feed.data, fed, np.asarray(count), self.key)
        done, state, losses = jax.block_until_ready(results)
        return state, np.asarray(losses)[: int(done)]

    def model(self, state: _State, history: np.ndarray | None = None) -> Any:
        """The model at a state; of several starts the one whose last losses are the lowest."""
        return self._result(state, np.zeros((1, self.restarts)) if history is None else history).model

    def _result(self, state: _State, history: np.ndarray) -> Fit:
        free, held = eqx.combine(state.params, self.fixed), self.held
        if self.restarts > 1:
            recent = np.mean(history[-10:], axis=0)
            usable = np.isfinite(recent) & np.asarray(finite_starts(state.params, self.restarts))
            best = int(np.argmin(np.where(usable, recent, np.inf)))
            free, held = jax.tree.map(lambda leaf: leaf[best] if eqx.is_array(leaf) else leaf, (free, held))
            history = history[:, best]
        # What is held still is taken from the start, as the way to free space and back rounds.
        moved = eqx.filter(_constrain(free.model), self.movable.model)
        objective = _constrain(free.objective) if self.objective.trained else self.objective
        return Fit(eqx.combine(moved, held), history, objective)

    def train(self, steps, callbacks, checkpoint, progress):
        state = self.start()
        history = np.zeros((0,) if self.restarts == 1 else (0, self.restarts), self.feed.example.Y.dtype)
        identity = None
        if checkpoint is not None:
            identity = self._identity()
            if checkpoint.exists():
                state, history = checkpoints.load(checkpoint, identity, state)
        before, before_length = state, len(history)
        with Progress(steps, len(history), progress) as bar:
            # A run that goes on asks its callbacks first: it may have been cut off before they could end it.
            ended = 0 < len(history) < steps and self._ends(callbacks, state, history)
            while len(history) < steps and not ended:
                count = min(self.every - len(history) % self.every, steps - len(history))
                start, (state, losses) = state, self.chunk(state, count)
                finite = np.isfinite(losses[-1]).any() and np.asarray(finite_starts(state.params, self.restarts)).any()
                if len(losses) < count or not finite:
                    good = int(np.sum(np.isfinite(losses).reshape(len(losses), -1).any(axis=1)))
                    history = np.concatenate([history, losses[:good]])
                    if good == 0:
                        start, good = before, len(history) - before_length
                    raise self._error(start, good, history)
                before, before_length = start, len(history)
                history = np.concatenate([history, losses])
                bar.update(len(history), np.nanmin(history[-1]))
                if checkpoint is not None:
                    checkpoints.save(checkpoint, identity, state, history)
                ended = self._ends(callbacks, state, history)
        fitted = self._result(state, history)
        model = self.objective.complete(fitted.model, self.feed.example)
        if (place := not_finite(model)) is not None:
            raise TrainingError(f"model{place} holds NaN or infinite numbers after training", fitted)
        return Fit(model, fitted.history, fitted.objective)

    def _ends(self, callbacks: Sequence[Callback], state: _State, history: np.ndarray) -> bool:
        """Whether a callback ends training. All of them are called."""
        seen = Progressed(len(history), history, lambda: self.model(state, history))
        return any([callback(seen) for callback in callbacks])

    def _error(self, start: _State, good: int, history: np.ndarray) -> TrainingError:
        """The last good model is found by taking the steps before the bad one again."""
        state = self.chunk(start, good - 1)[0] if good > 1 else start
        last = f"{np.nanmin(history[-1]):.6g}" if len(history) else "none"
        return TrainingError(
            f"the objective is not finite at step {len(history)} (the last finite value is {last}); the error's "
            "`fit.model` is the last good model. "
            "A smaller learning rate, float64, or more jitter-proof inducing inputs usually help",
            self._result(state, history) if len(history) else Fit(None, history),
        )

    def _identity(self) -> dict[str, str]:
        """What must be the same for a checkpoint to belong to this run: a text for each part of it.

        Of the parameters that are trained it is where they are and their shapes, of all that is held still the values, too.
        """
        parts = description(self.model_before, "model")
        trained = jax.tree_util.tree_flatten_with_path(eqx.filter(self.model_before, self.movable.model))[0]
        for path, leaf in trained:
            parts[f"model{jax.tree_util.keystr(path)}"] = f"trained, {leaf.dtype}{list(leaf.shape)}"
        parts |= description(self.objective, "objective") | description(self.optimiser, "optimiser")
        parts |= self.feed.identity() | {"key": str(list(self.seed)), "restarts": str(self.restarts)}
        return parts | (description(self.perturb, "perturb") if self.restarts > 1 else {})


@functools.lru_cache(maxsize=16)
def _compiled(
    form: Objective,
    stepper: GradientStepper | NaturalStepper,
    every: int,
    restarts: int,
    shapes: tuple[tuple[int, ...], ...],
):
    """The compiled start of a run and loop over steps, for an objective given without its numbers.

    A cache of few entries, as each keeps what XLA made of it; `shapes`, of the data, are there to tell entries apart.
    """

    def over_restarts(function):
        return jax.vmap(function) if restarts > 1 else function

    def parts(params, arrays, rest):
        """The model and the objective that free parameters stand for."""
        free = eqx.combine(params, arrays, rest)
        return constrain(free.model), constrain(free.objective) if form.trained else free.objective

    def step(rest, data, batch, key, number):
        """One step on a batch, for one start or for all of them."""

        def one(params, arrays, optimiser, state):
            def loss(params):
                model, objective = parts(params, arrays, rest)
                return objective._value_in_training(model, batch, key, Context(number, data, state))

            params, optimiser, loss, after = stepper.step(params, optimiser, loss, number)
            return params, optimiser, _as_before(form, state, after), loss

        return over_restarts(one)

    # `jax.jit` of a function that goes lets go of what XLA made of it; `eqx.filter_jit` keeps it for ever.
    @functools.partial(jax.jit, static_argnums=(0, 1), compiler_options=_compiler_options())
    def compiled(structure, leaves, state: _State, arrays, data, fed, count, key):
        """Up to `count` steps; fewer if no start has a finite loss any more. Returns the state and the losses."""
        rest = jax.tree.unflatten(structure, leaves)

        def go_on(carry):
            i, _, _, finite = carry
            return (i < count) & finite

        def body(carry):
            i, state, losses, _ = carry
            batch = data if fed is None else fed.batch(data, i)
            take = step(rest, data, batch, jax.random.fold_in(key, state.step), state.step)
            *moved, loss = take(state.params, arrays, state.optimiser, state.objective)
            state = _State(*moved, state.step + 1)
            return i + 1, state, losses.at[i].set(loss.astype(losses.dtype)), jnp.any(jnp.isfinite(loss))

        dtype = jax.tree.leaves(state.params)[0].dtype
        losses = jnp.full((every,) if restarts == 1 else (every, restarts), jnp.nan, dtype)
        done, state, losses, _ = jax.lax.while_loop(go_on, body, (0, state, losses, True))
        return done, state, losses

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def begin(structure, leaves, params, arrays, example):
        rest = jax.tree.unflatten(structure, leaves)

        def one(params, arrays):
            model, objective = parts(params, arrays, rest)
            return stepper.init(params), jax.tree.map(jnp.asarray, objective.init(model, example))

        state = _State(params, *over_restarts(one)(params, arrays), jnp.zeros((), jnp.int32))
        # Without weak types, which the state after a step does not have: else the loop is compiled twice.
        return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), state)

    def apart(fixed):
        """The arrays of what is fixed, and the rest, which is a part of what is compiled."""
        arrays, rest = eqx.partition(fixed, lambda leaf: isinstance(leaf, jax.Array | np.ndarray))
        leaves, structure = jax.tree.flatten(rest)
        return arrays, (structure, tuple(leaves))

    def init(params, fixed, example):
        arrays, static = apart(fixed)
        return begin(*static, params, arrays, example)

    def loop(state, fixed, *others):
        arrays, static = apart(fixed)
        return compiled(*static, state, arrays, *others)

    return init, loop


def _compiler_options() -> dict[str, bool] | None:
    """On a GPU matrix products are cuBLAS's alone: XLA would compile dozens of its own for each, to see which is the fastest.

    That takes four fifths of the time to compile, and steps do not become faster by it (measured, at M = 500 and 2000).
    """
    return {"xla_gpu_enable_triton_gemm": False} if jax.default_backend() == "gpu" else None


def _as_before(objective: Objective, before: Any, after: Any) -> Any:
    """The state that an objective returned, in the dtypes of the one that it was given; an error where its form differs."""
    forms: list[Any] = [
        (jax.tree.structure(state), list(map(jnp.shape, jax.tree.leaves(state)))) for state in (before, after)
    ]
    if forms[0] != forms[1]:
        raise ValueError(
            f"{type(objective).__name__}: the state of a step must have the form of the one before (or of what init gave), got "
            f"{eqx.tree_pformat(after)} after {eqx.tree_pformat(before)}"
        )
    return jax.tree.map(lambda old, new: jnp.asarray(new, old.dtype), before, after)


def _shapes(batch: Batch) -> tuple[tuple[int, ...], ...]:
    return tuple(leaf.shape for leaf in jax.tree.leaves(batch))


def _free(objective: Objective, dtype: Any) -> Any:
    """An objective with its own parameters in free space, where it has some."""
    return _unconstrain(align(objective, dtype)) if objective.trained else objective


def _copies(objective: Objective, restarts: int) -> Objective:
    """An objective for each start, along a first axis of its arrays."""
    if restarts == 1:
        return objective
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * restarts) if eqx.is_array(leaf) else leaf, objective)


def _movable_of_objective(objective: Objective, optimiser: Any) -> Any:
    """Which leaves of an objective the optimiser moves: its parameters, where it says so."""
    if not objective.trained or (isinstance(optimiser, NaturalGradient) and optimiser.rest is None):
        return jax.tree.map(lambda _: False, objective)
    return trainable(objective)


def _movable(model, frozen, optimiser):
    """Which leaves the optimiser moves: the parameters that are not frozen."""
    moves = trainable(model)
    if isinstance(optimiser, NaturalGradient):
        optimiser.check_model(model)
        if optimiser.rest is None:
            nothing = jax.tree.map(lambda _: False, moves)
            moves = eqx.tree_at(optimiser.parameters, nothing, (True,) * len(optimiser.parameters(model)))
    if frozen is None:
        return moves
    try:
        held = eqx.tree_at(frozen, moves, replace_fn=lambda part: jax.tree.map(lambda _: False, part))
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"frozen must be a function from the model to parts of it: {error}") from error
    if isinstance(optimiser, NaturalGradient) and not all(optimiser.parameters(held)):
        raise ValueError("frozen must leave q_mu and q_sqrt free under NaturalGradient")
    return held
