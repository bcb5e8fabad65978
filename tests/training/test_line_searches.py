"""Optimisers that search along lines: their steps are those of optax, and what a search ended with is not worked out again."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from toys import KEY, Valleys, wave_data

import mercer as mc
from mercer.objectives import Objective, TrainingObjective

OPTIMISERS = {
    "lbfgs": optax.lbfgs(),
    "backtracking": optax.chain(optax.sgd(0.3), optax.scale_by_backtracking_linesearch(10, store_grad=True)),
    "backtracking without gradients": optax.chain(optax.sgd(0.3), optax.scale_by_backtracking_linesearch(10)),
}


class Noisy(Objective):
    """(c - e)^2, with another e at each step."""

    def _value(self, model, batch, key):
        return (model.constant - jax.random.normal(key)) ** 2


class Drifting(TrainingObjective):
    """(c - t)^2 + (c - 1)^4 at step t."""

    def _value_in_training(self, model, batch, key, context):
        return (model.constant - context.step) ** 2 + (model.constant - 1.0) ** 4, context.state


class Remembering(TrainingObjective):
    """(c - s)^2 + (c - 1)^4, where s is half of the c before."""

    def init(self, model, batch):
        return jnp.zeros(())

    def _value_in_training(self, model, batch, key, context):
        value = (model.constant - context.state) ** 2 + (model.constant - 1.0) ** 4
        return value, jax.lax.stop_gradient(0.5 * model.constant)


VALUES = {
    "the same": (Valleys(), lambda c, key, t, s: jnp.sin(3.0 * c) + 0.1 * c**2),
    "a key": (Noisy(), lambda c, key, t, s: (c - jax.random.normal(jax.random.fold_in(key, t))) ** 2),
    "the step": (Drifting(), lambda c, key, t, s: (c - t) ** 2 + (c - 1.0) ** 4),
    "a state": (Remembering(), lambda c, key, t, s: (c - s) ** 2 + (c - 1.0) ** 4),
}


@pytest.mark.parametrize("case", VALUES)
@pytest.mark.parametrize("name", OPTIMISERS)
def test_steps_are_those_of_optax(name, case):
    """As a loop that works out the loss of each step and its gradient anew."""
    optimiser, (objective, function) = OPTIMISERS[name], VALUES[case]
    c, before, expected = jnp.asarray(0.9), jnp.zeros(()), []
    state = optimiser.init(c)
    for t in range(8):

        def loss(c, t=t, before=before):
            return function(c, KEY, t, before)

        value, slope = jax.value_and_grad(loss)(c)
        move, state = optimiser.update(slope, state, c, value=value, grad=slope, value_fn=loss)
        before, c = 0.5 * c, optax.apply_updates(c, move)
        expected.append(float(value))
    fitted = mc.fit(mc.means.Constant(0.9), objective, wave_data(5), optimiser=optimiser, steps=8, every=3, key=KEY)
    np.testing.assert_allclose(fitted.history, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(fitted.model.constant, c, rtol=1e-7)


class Counted(Objective):
    """The negative log marginal likelihood, and how often it was asked for."""

    minibatched = False
    asked: ClassVar[list[int]] = []

    def _value(self, model, batch, key):
        jax.debug.callback(lambda: self.asked.append(1))
        return mc.objectives.MarginalLikelihood()._value(model, batch, key)


def test_a_step_asks_for_the_loss_where_its_search_goes_and_nowhere_else():
    data = wave_data(20)
    model = mc.Conditioned(mc.GP(mc.kernels.RBF()), *data, noise=0.1)
    Counted.asked.clear()
    mc.fit(model, Counted(), data, optimiser=optax.lbfgs(), steps=10)
    jax.effects_barrier()
    # Most searches of L-BFGS end at their first place. With the loss of each step worked out anew there would be 20 at least.
    assert 11 <= len(Counted.asked) < 20


def test_restarts_search_as_one_does():
    model, data = mc.means.Constant(0.9), wave_data(5)
    options = dict(optimiser=optax.lbfgs(), steps=6, key=KEY)
    alone = mc.fit(model, Valleys(), data, **options).history
    several = mc.fit(model, Valleys(), data, restarts=3, perturb=lambda model, key: model, **options).history
    np.testing.assert_allclose(several, alone, rtol=1e-9)
