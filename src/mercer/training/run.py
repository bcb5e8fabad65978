"""A run of training: chunks of steps by a compiled loop, and what the host does between them.

The parameters are mapped to free space, and a compiled loop takes a chunk of steps at a time. Between chunks the host looks at
the losses, shows progress, calls callbacks and writes checkpoints.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from mercer.model import align
from mercer.modules import refuse_state
from mercer.parameters import constrain, not_finite
from mercer.training import checkpoint as checkpoints
from mercer.training.best import Best, better
from mercer.training.feed import feed_of
from mercer.training.identity import description
from mercer.training.loop import State, Static, compiled_loop
from mercer.training.natural import NaturalGradient
from mercer.training.progress import Progress
from mercer.training.results import Callback, Fit, Progressed, TrainingError
from mercer.training.starts import movable, starts
from mercer.training.steps import GradientStepper, NaturalStepper, Params, finite_starts
from mercer.training.tunable import form_and_numbers

_ADAM = optax.adam(0.01)  # one for all calls, so that they share what is compiled
_constrain = eqx.filter_jit(constrain)


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
        validate=None,
        patience=None,
    ):
        self.objective, self.every, self.restarts, self.perturb = objective, every, restarts, perturb
        self.validate, self.patience = validate, patience
        self.key = key = jax.random.key(0) if key is None else key
        self.optimiser = optimiser = _ADAM if optimiser is None else optimiser
        refuse_state((model, objective), "fit")
        self.seed = tuple(int(word) for word in np.asarray(jax.random.key_data(key)).ravel())
        moves = movable(model, objective, frozen, optimiser).model
        held = [leaf for leaf, moved in zip(jax.tree.leaves(model), jax.tree.leaves(moves), strict=True) if not moved]
        self.feed = feed_of(objective, model, data, batch_size, self.seed, held)
        _check_arguments(objective, optimiser, every, restarts, self.feed.batch_size is not None)
        _check_validation(validate, patience)
        self.model_before = model = align(model, self.feed.example.dtype)
        self.movable = movable(model, objective, frozen, optimiser)
        models, free = starts(model, objective, self.feed.example.dtype, restarts, perturb, key)
        self.params, self.fixed = eqx.partition(free, self.movable)
        self.held = eqx.filter(models, self.movable.model, inverse=True)
        if not jax.tree.leaves(self.params.model):
            raise ValueError(f"{'the model has' if frozen is None else 'frozen leaves'} no parameter to train")
        natural = isinstance(optimiser, NaturalGradient)
        num_data = self.feed.example.num_data
        form, self.numbers = form_and_numbers(optimiser)
        self.stepper = NaturalStepper(form, num_data) if natural else GradientStepper(form)
        self.arrays, self.static = Static.of(self.fixed)
        shapes = tuple(map(np.shape, jax.tree.leaves((self.params, self.arrays, self.feed.example))))
        objective = eqx.filter(objective, eqx.is_array, inverse=True)
        # begun(params, arrays, data, numbers): the state before the first step
        # stepped(state, arrays, data, fed, count, key): some steps
        self.begun, self.stepped = compiled_loop(objective, self.stepper, every, restarts, self.static, shapes)

    def start(self) -> State:
        """The state before the first step."""
        return self.begun(self.params, self.arrays, self.feed.example, self.numbers)

    def chunk(self, state: State, count: int) -> tuple[State, np.ndarray]:
        """The state after `count` steps (at most `every`) and their losses; fewer if none is finite any more."""
        fed = self.feed.chunk(int(state.step), count, self.every)
        # `count` as an array: a number would be a part of what is compiled.
        results = self.stepped(state, self.arrays, self.feed.data, fed, np.asarray(count), self.key)
        done, state, losses = jax.block_until_ready(results)
        return state, np.asarray(losses)[: int(done)]

    def model(self, state: State, history: np.ndarray | None = None) -> Any:
        """The model at a state; of several starts the one whose last losses are the lowest."""
        return self._result(state.params, np.zeros((1, self.restarts)) if history is None else history).model

    def no_best(self) -> Best | None:
        """Before the first step, where models are validated."""
        return None if self.validate is None else Best.none(self.params)

    def better(self, best: Best | None, params: Params, history: np.ndarray) -> Best | None:
        """The best so far, with the parameters of now in view."""
        if best is None:
            return None
        params = jax.tree.map(jnp.asarray, params)
        model = self.objective.finish(self._result(params, history).model, self.feed.example)
        return better(best, self.validate, model, params, len(history))

    def is_over(self, best: Best | None, history: np.ndarray) -> bool:
        """Whether nothing has been better for as long as patience goes."""
        return best is not None and best.is_old(self.patience, len(history))

    def _result(self, params: Params, history: np.ndarray, until: int | None = None) -> Fit:
        free, held = eqx.combine(params, self.fixed), self.held
        if self.restarts > 1:
            recent = np.mean(history[:until][-10:], axis=0)
            usable = np.isfinite(recent) & np.asarray(finite_starts(params, self.restarts))
            best = int(np.argmin(np.where(usable, recent, np.inf)))
            free, held = jax.tree.map(lambda leaf: leaf[best] if eqx.is_array(leaf) else leaf, (free, held))
            history = history[:, best]
        # What is held still is taken from the start, as the way to free space and back rounds.
        moved = eqx.filter(_constrain(free.model), self.movable.model)
        objective = _constrain(free.objective) if self.objective.trained else self.objective
        return Fit(eqx.combine(moved, held), history, objective)

    def train(self, steps, callbacks, checkpoint, progress) -> Fit:
        """What `fit` returns after `steps` steps, or fewer where a callback ends them."""
        state = self.start()
        history = np.zeros((0,) if self.restarts == 1 else (0, self.restarts), self.feed.example.Y.dtype)
        identity = {} if checkpoint is None else self.identity()
        best = self.no_best()
        if checkpoint is not None and checkpoint.exists():
            (state, best), history = checkpoints.load(checkpoint, identity, (state, best))
        before, before_length = state, len(history)
        with Progress(steps, len(history), progress) as bar:
            # A run that goes on asks its callbacks first: it may have been cut off before they could end it.
            ended = 0 < len(history) < steps and self._ends(callbacks, state, history, best)
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
                best = self.better(best, state.params, history)
                if checkpoint is not None:
                    checkpoints.save(checkpoint, identity, (state, best), history)
                ended = self._ends(callbacks, state, history, best)
        return self.finished(state, history, best)

    def finished(self, state: State, history: np.ndarray, best: Best | None = None) -> Fit:
        """What `fit` returns at a state after the last step, or at the best."""
        if best is not None and not best.found:
            raise TrainingError("validate gave no finite number", self._result(state.params, history))
        params, until = (state.params, None) if best is None else (best.params, int(best.step))
        fitted = self._result(params, history, until)
        model = self.objective.finish(fitted.model, self.feed.example)
        if (place := not_finite(model)) is not None:
            raise TrainingError(f"model{place} holds NaN or infinite numbers after training", fitted)
        return Fit(model, fitted.history, fitted.objective)

    def _ends(self, callbacks: Sequence[Callback], state: State, history: np.ndarray, best: Best | None) -> bool:
        """Whether a callback ends training, or patience does. All callbacks are called."""
        seen = Progressed(len(history), history, lambda: self.model(state, history), best)
        return any([callback(seen) for callback in callbacks]) or self.is_over(best, history)

    def _error(self, start: State, good: int, history: np.ndarray) -> TrainingError:
        """The last good model is found by taking the steps before the bad one again."""
        state = self.chunk(start, good - 1)[0] if good > 1 else start
        last = f"{np.nanmin(history[-1]):.6g}" if len(history) else "none"
        return TrainingError(
            f"the objective is not finite at step {len(history)} (the last finite value is {last}); the error's "
            "`fit.model` is the last good model. "
            "A smaller learning rate, float64, or more jitter-proof inducing inputs usually help",
            self._result(state.params, history) if len(history) else Fit(None, history),
        )

    def identity(self) -> dict[str, str]:
        """What must be the same for a checkpoint to belong to this run: a text for each part of it.

        Of the parameters that are trained it is where they are and their shapes, of all that is held still the values, too.
        """
        parts = description(self.model_before, "model")
        trained = jax.tree_util.tree_flatten_with_path(eqx.filter(self.model_before, self.movable.model))[0]
        for path, leaf in trained:
            parts[f"model{jax.tree_util.keystr(path)}"] = f"trained, {leaf.dtype}{list(leaf.shape)}"
        parts |= description(self.objective, "objective") | description(self.optimiser, "optimiser")
        parts |= self.feed.identity() | {"key": str(list(self.seed)), "restarts": str(self.restarts)}
        parts |= description(self.perturb, "perturb") if self.restarts > 1 else {}
        return parts | (description(self.validate, "validate") if self.validate is not None else {})


def check_count(name: str, value: Any) -> None:
    """Refuses what is not a whole number from 1."""
    if not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a whole number, at least 1, got {value!r}")


def _check_arguments(objective, optimiser, every, restarts, minibatches):
    check_count("every", every)
    check_count("restarts", restarts)
    if isinstance(optimiser, NaturalGradient) and _searches_lines(optimiser.rest):
        raise ValueError("NaturalGradient: rest must not be an optimiser that searches along lines, such as L-BFGS")
    if minibatches and not objective.minibatched:
        raise ValueError(f"{type(objective).__name__} is not a mean over data: leave batch_size out")
    if minibatches and _searches_lines(optimiser):
        raise ValueError(
            "an optimiser that searches along lines, such as L-BFGS, needs all the data: leave batch_size out"
        )


def _check_validation(validate, patience):
    if validate is not None and not callable(validate):
        raise ValueError(f"validate expects a function from the model to a number, got {type(validate).__name__}")
    if patience is not None:
        check_count("patience", patience)
        if validate is None:
            raise ValueError("patience needs validate, the number that is to come down")


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
