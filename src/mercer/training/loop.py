"""The compiled loop over steps.

The length of a chunk of steps is an argument of the loop, not a part of it, so that nothing is compiled twice and the numbers do
not depend on the chunks. The last few loops are kept: training again with the same objective, optimiser and shapes compiles
nothing.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mercer.objectives.base import Context, Objective
from mercer.parameters import constrain
from mercer.training.steps import GradientStepper, NaturalStepper, Params


class State(NamedTuple):
    """What training carries from step to step."""

    params: Params
    optimiser: Any
    objective: Any
    step: Array


class Static(NamedTuple):
    """What of a run is a part of its program: the structure of what is fixed, and its leaves that are no arrays."""

    structure: Any
    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, fixed: Params) -> tuple[Params, "Static"]:
        """The arrays of what is fixed, and the rest."""
        arrays, rest = eqx.partition(fixed, lambda leaf: isinstance(leaf, jax.Array | np.ndarray))
        leaves, structure = jax.tree.flatten(rest)
        return arrays, cls(structure, tuple(leaves))


@functools.lru_cache(maxsize=16)
def compiled_loop(
    form: Objective,
    stepper: GradientStepper | NaturalStepper,
    every: int,
    restarts: int,
    static: Static,
    shapes: tuple[tuple[int, ...], ...],
):
    """The compiled start of a run and loop over steps, for an objective given without its numbers.

    A cache of few entries, each of one program, as it keeps what XLA made of it; `shapes`, of all arrays, are there to tell
    entries apart.
    """
    rest = jax.tree.unflatten(static.structure, static.leaves)

    def over_restarts(function):
        return jax.vmap(function) if restarts > 1 else function

    def parts(params, arrays):
        """The model and the objective that free parameters stand for."""
        free = eqx.combine(params, arrays, rest)
        return constrain(free.model), constrain(free.objective) if form.trained else free.objective

    def step(data, batch, key, number):
        """One step on a batch, for one start or for all of them."""

        def one(params, arrays, optimiser, state):
            def at(params, number, key):
                model, objective = parts(params, arrays)
                return objective.value_in_training(model, batch, Context(number, data, state), key=key)

            def loss(params):
                return at(params, number, key)

            if isinstance(stepper, GradientStepper) and stepper.remembers(optimiser) and _is_fixed(at, params, state):
                params, optimiser, value = stepper.go_on(params, optimiser, loss)
                return params, optimiser, state, value
            params, optimiser, value, after = stepper.step(params, optimiser, loss, number)
            return params, optimiser, _as_before(form, state, after), value

        return over_restarts(one)

    def some_steps(state: State, arrays, data, fed, count, key):
        """Up to `count` steps; fewer if no start has a finite loss any more. Returns the state and the losses."""

        def go_on(carry):
            i, _, _, finite = carry
            return (i < count) & finite

        def body(carry):
            i, state, losses, _ = carry
            batch = data if fed is None else fed.batch(data, i)
            take = step(data, batch, jax.random.fold_in(key, state.step), state.step)
            params, optimiser, own, loss = take(state.params, arrays, state.optimiser, state.objective)
            state = State(params, optimiser, own, state.step + 1)
            return i + 1, state, losses.at[i].set(loss.astype(losses.dtype)), jnp.any(jnp.isfinite(loss))

        dtype = jax.tree.leaves(state.params)[0].dtype
        losses = jnp.full((every,) if restarts == 1 else (every, restarts), jnp.nan, dtype)
        done, state, losses, _ = jax.lax.while_loop(go_on, body, (0, state, losses, True))
        return done, state, losses

    # `jax.jit` of a function that goes lets go of what XLA made of it; `eqx.filter_jit` keeps it for ever.
    compiled = jax.jit(some_steps, compiler_options=compiler_options())

    @jax.jit
    def begin(params, arrays, example, numbers):
        def one(params, arrays):
            model, objective = parts(params, arrays)
            return stepper.init(params, numbers), jax.tree.map(jnp.asarray, objective.init(model, example))

        optimiser, own = over_restarts(one)(params, arrays)
        state = State(params, optimiser, own, jnp.zeros((), jnp.int32))
        # Without weak types, which the state after a step does not have: else the loop is compiled twice.
        return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), state)

    def loop(state, *others):
        # Options are those of a whole program: JAX refuses them in a part of one, as this is in `fit_together`.
        inside = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(state))
        steps: Callable[..., Any] = some_steps if inside else compiled
        return steps(state, *others)

    return begin, loop


def compiler_options() -> dict[str, bool] | None:
    """On a GPU matrix products are cuBLAS's alone: XLA would compile dozens of its own for each, to see which is the fastest.

    That takes four fifths of the time to compile, and steps do not become faster by it (measured, at M = 500 and 2000).
    """
    return {"xla_gpu_enable_triton_gemm": False} if jax.default_backend() == "gpu" else None


def _is_fixed(loss: Callable[..., Any], params: Params, state: Any) -> bool:
    """Whether a loss, of parameters, the number of the step and its key, looks at neither number nor key, and has no state.

    An optimiser that searches along lines sees all the data at each step (`fit` refuses minibatches).
    """
    closed, (_, after) = jax.make_jaxpr(loss, return_shape=True)(params, 0, jax.random.key(0))
    looked_at = {id(variable) for line in closed.jaxpr.eqns for variable in line.invars}
    forms: list[Any] = [jax.tree.structure(state), jax.tree.structure(after)]
    is_stateless = forms[0] == forms[1] and forms[0].num_leaves == 0
    return is_stateless and not any(id(given) in looked_at for given in closed.jaxpr.invars[-2:])


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
