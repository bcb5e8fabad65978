"""What is trained, and from where: the leaves of model and objective that move, and one start or several in free space."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from mercer.model import align
from mercer.objectives.base import Objective
from mercer.parameters import constrain, hold, trainable, unconstrain
from mercer.training.natural import NaturalGradient
from mercer.training.steps import Params

_unconstrain = eqx.filter_jit(unconstrain)


def starts(model: Any, objective: Objective, dtype: Any, restarts: int, perturb: Any, key: Any) -> tuple[Any, Params]:
    """The starting models, and all that they and the objective hold in free space, stacked along a new first axis.

    With one start, there is no such axis.
    """
    own = _unconstrain(align(objective, dtype)) if objective.trained else objective
    if restarts == 1:
        return model, Params(_unconstrain(model), own)
    perturb = _perturb if perturb is None else perturb
    models = _stacked([model] + [perturb(model, k) for k in jax.random.split(jax.random.fold_in(key, 1), restarts - 1)])
    return models, Params(_unconstrain(models), _stacked([own] * restarts))


def _stacked(trees: list) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *trees)


def _perturb(model, key):
    free = unconstrain(model)
    flags, leaves = jax.tree.leaves(trainable(model)), jax.tree.leaves(free)
    keys = jax.random.split(key, len(leaves))
    moved = [
        leaf + jax.random.normal(k, leaf.shape, leaf.dtype) if flag and leaf.ndim <= 1 else leaf
        for k, leaf, flag in zip(keys, leaves, flags, strict=True)
    ]
    return constrain(jax.tree.unflatten(jax.tree.structure(free), moved))


def movable(model: Any, objective: Objective, frozen: Any, optimiser: Any) -> Params:
    """Which leaves the optimiser moves: parameters of the model that are not frozen, and of the objective where it says so."""
    return Params(_movable_of_model(model, frozen, optimiser), _movable_of_objective(objective, optimiser))


def _movable_of_model(model, frozen, optimiser):
    moves = trainable(model)
    if isinstance(optimiser, NaturalGradient):
        optimiser.check_model(model)
        if optimiser.rest is None:
            nothing = jax.tree.map(lambda _: False, moves)
            moves = eqx.tree_at(optimiser.parameters, nothing, (True,) * len(optimiser.parameters(model)))
    held = hold(moves, frozen)
    if isinstance(optimiser, NaturalGradient) and not all(optimiser.parameters(held)):
        raise ValueError("frozen must leave q_mu and q_sqrt free under NaturalGradient")
    return held


def _movable_of_objective(objective: Objective, optimiser: Any) -> Any:
    if not objective.trained or (isinstance(optimiser, NaturalGradient) and optimiser.rest is None):
        return jax.tree.map(lambda _: False, objective)
    return trainable(objective)
