"""One step of training, for each kind of optimiser, on free (unconstrained) parameters.

A stepper has `init(params, numbers)`, the state of the optimiser, made with the numbers of a tunable one, and
`step(params, state, loss, number)`, which returns new parameters, a new state, the loss before the step and what comes with
it; `loss` is the objective of the step's batch as a function of the parameters, with the objective's own state for the next
step beside it.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from mercer.training.natural import NaturalGradient, natural_step, pairwise
from mercer.training.tunable import Form


class Params(NamedTuple):
    """What is trained: parameters of the model, and of the objective where it has some of its own."""

    model: Any
    objective: Any


Loss = Callable[[Params], tuple[Array, Any]]
Stepped = tuple[Params, Any, Array, Any]


@dataclasses.dataclass(frozen=True)
class GradientStepper:
    """Steps of an optax optimiser. Those that search along a line are given the loss as a function.

    Where the optimiser `remembers` what its search ended with, and the loss is the same function at every step, `go_on` takes the
    place of `step` and works out less.
    """

    optimiser: optax.GradientTransformation | Form

    def init(self, params: Params, numbers: tuple[Any, ...]) -> Any:
        if isinstance(self.optimiser, Form):
            return self.optimiser.start(params, numbers)
        return self.optimiser.init(params)

    def step(self, params: Params, state: Any, loss: Loss, number: Array) -> Stepped:
        (value, beside), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        return *self._updated(params, state, loss, value, gradient), value, beside

    def remembers(self, state: Any) -> bool:
        """Whether the optimiser ends with a search along a line, which keeps the loss and its gradient where it ends."""
        found = _last(state)
        return isinstance(found, _SEARCHES) and found.grad is not None

    def go_on(self, params: Params, state: Any, loss: Loss) -> tuple[Params, Any, Array]:
        """A step whose loss is the function of the step before: its value and gradient are what the search before ended with."""
        found = _last(state)
        value, gradient = jax.lax.cond(
            jnp.isfinite(found.value),  # it is infinite before the first search
            lambda: (found.value, found.grad),
            lambda: jax.value_and_grad(lambda params: loss(params)[0].astype(found.value.dtype))(params),
        )
        return *self._updated(params, state, loss, value, gradient), value

    def _updated(self, params: Params, state: Any, loss: Loss, value: Array, gradient: Params) -> tuple[Params, Any]:
        is_form = isinstance(self.optimiser, Form)
        optimiser = self.optimiser if is_form else optax.with_extra_args_support(self.optimiser)
        updates, state = optimiser.update(
            gradient, state, params, value=value, grad=gradient, value_fn=lambda params: loss(params)[0]
        )
        return optax.apply_updates(params, updates), state


_SEARCHES = (optax.ScaleByZoomLinesearchState, optax.ScaleByBacktrackingLinesearchState)


def _last(state: Any) -> Any:
    """The state of the last link of a chain."""
    while type(state) is tuple and state:
        state = state[-1]
    return state


@dataclasses.dataclass(frozen=True)
class NaturalStepper:
    """A natural-gradient step for each q(u), then a step of an optax optimiser for the rest, at the new q(u).

    Both at once, from one derivative, would be cheaper, but the rest would follow a q(u) that is a step behind: on kin8nm that
    takes ten times as many steps. The loss is that between the two.
    """

    natural: NaturalGradient
    num_data: int

    @property
    def rest(self) -> GradientStepper | None:
        return None if self.natural.rest is None else GradientStepper(self.natural.rest)

    def _q(self, params: Params) -> tuple[Any, ...]:
        return self.natural.parameters(params.model)

    def _with_q(self, params: Params, q: tuple[Any, ...]) -> Params:
        return eqx.tree_at(self._q, params, q, is_leaf=lambda leaf: leaf is None)

    def _without_q(self, params: Params) -> Params:
        return self._with_q(params, (None,) * len(self._q(params)))

    def init(self, params: Params, numbers: tuple[Any, ...]) -> Any:
        return None if self.rest is None else self.rest.init(self._without_q(params), numbers)

    def step(self, params: Params, state: Any, loss: Loss, number: Array) -> Stepped:
        others, q = self._without_q(params), self._q(params)
        (value, beside), derivative = jax.value_and_grad(lambda q: loss(self._with_q(others, q)), has_aux=True)(q)
        # The objective is per datum; natural gradients are those of the bound, in nats.
        gamma, moved = self.natural.step_size(number), list[Array]()
        for own, slope in zip(pairwise(q), pairwise(derivative), strict=True):
            moved += natural_step(*own, self.num_data * slope[0], self.num_data * slope[1], gamma)
        if self.rest is not None:
            rest = self.rest.step(others, state, lambda rest: loss(self._with_q(rest, tuple(moved))), number)
            others, state, value, beside = rest
        return self._with_q(others, tuple(moved)), state, value, beside


def finite_starts(params: Params, restarts: int) -> Array:
    """Which of the starts have only finite parameters, [restarts]."""
    return _all_finite(jax.tree.leaves(params), restarts)


@functools.partial(jax.jit, static_argnums=1)
def _all_finite(leaves: list[Array], restarts: int) -> Array:
    found = [jnp.isfinite(leaf).reshape(restarts, -1).all(axis=1) for leaf in leaves]
    return jnp.all(jnp.stack(found), axis=0)
