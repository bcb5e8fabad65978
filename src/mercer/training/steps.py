"""One step of training, for each kind of optimiser, on free (unconstrained) parameters.

A stepper has `init(params)`, the state of the optimiser, and `step(params, state, loss, number)`, which returns new parameters,
a new state and the loss before the step; `loss` is the objective of the step's batch as a function of the parameters.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from mercer.training.natural import NaturalGradient, natural_step

Params = Any
Loss = Callable[[Params], Array]


@dataclasses.dataclass(frozen=True)
class GradientStepper:
    """Steps of an optax optimiser. Those that search along a line are given the loss as a function."""

    optimiser: optax.GradientTransformation

    def init(self, params: Params) -> Any:
        return self.optimiser.init(params)

    def step(self, params: Params, state: Any, loss: Loss, number: Array) -> tuple[Params, Any, Array]:
        value, gradient = jax.value_and_grad(loss)(params)
        update = optax.with_extra_args_support(self.optimiser).update
        updates, state = update(gradient, state, params, value=value, grad=gradient, value_fn=loss)
        return optax.apply_updates(params, updates), state, value


@dataclasses.dataclass(frozen=True)
class NaturalStepper:
    """A natural-gradient step for q(u), then a step of an optax optimiser for the rest, at the new q(u).

    Both at once, from one derivative, would be cheaper, but the rest would follow a q(u) that is a step behind: on kin8nm that
    takes ten times as many steps. The loss is that between the two.
    """

    natural: NaturalGradient
    where: Callable[[Params], tuple[Array, Array]]
    num_data: int

    @property
    def rest(self) -> GradientStepper | None:
        return None if self.natural.rest is None else GradientStepper(self.natural.rest)

    def _with_q(self, params: Params, q: tuple[Any, Any]) -> Params:
        return eqx.tree_at(self.where, params, q, is_leaf=lambda leaf: leaf is None)

    def init(self, params: Params) -> Any:
        return None if self.rest is None else self.rest.init(self._with_q(params, (None, None)))

    def step(self, params: Params, state: Any, loss: Loss, number: Array) -> tuple[Params, Any, Array]:
        others, (q_mu, q_sqrt) = self._with_q(params, (None, None)), self.where(params)
        value, (d_mu, d_sqrt) = jax.value_and_grad(lambda q: loss(self._with_q(others, q)))((q_mu, q_sqrt))
        # The objective is per datum; natural gradients are those of the bound, in nats.
        gamma = self.natural.step_size(number)
        q = natural_step(q_mu, q_sqrt, self.num_data * d_mu, self.num_data * d_sqrt, gamma)
        if self.rest is not None:
            others, state, value = self.rest.step(others, state, lambda rest: loss(self._with_q(rest, q)), number)
        return self._with_q(others, q), state, value


def finite_starts(params: Params, restarts: int) -> Array:
    """Which of the starts have only finite parameters, [restarts]."""
    leaves = [jnp.isfinite(leaf).reshape(restarts, -1).all(axis=1) for leaf in jax.tree.leaves(params)]
    return jnp.all(jnp.stack(leaves), axis=0)
