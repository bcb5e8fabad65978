"""Restarts: several starts trained at once; the best at the end is returned."""

import jax
import numpy as np
import optax
import pytest
from toys import KEY, Falling, Valleys, all_finite, sparse, wave_data

import mercer as mc
from mercer.training import NaturalGradient

DATA = (np.zeros((2, 1)), np.zeros((2, 1)))


def test_the_best_of_starts_run_one_by_one():
    starts = []

    def perturb(model, key):
        starts.append(mc.means.Constant(4.0 * jax.random.normal(key)))
        return starts[-1]

    model, options = mc.means.Constant(4.0), dict(optimiser=optax.sgd(0.05), steps=60, every=25)
    together = mc.fit(model, Valleys(), DATA, restarts=5, perturb=perturb, key=KEY, **options)
    alone = [mc.fit(start, Valleys(), DATA, **options) for start in [model, *starts]]
    assert len(alone) == 5
    ends = [fitted.history[-1] for fitted in alone]
    assert len(set(np.round(ends, 3))) > 1
    best = alone[int(np.argmin(ends))]
    assert together.history.shape == (60,)
    np.testing.assert_allclose(together.history, best.history, rtol=1e-12)
    np.testing.assert_allclose(together.model.constant, best.model.constant, rtol=1e-12)


def test_the_first_start_is_the_model_itself():
    away = lambda model, key: mc.means.Constant(50.0)  # noqa: E731
    options = dict(optimiser=optax.sgd(0.05), steps=20, every=8)
    together = mc.fit(mc.means.Constant(-0.4), Valleys(), DATA, restarts=2, perturb=away, **options)
    alone = mc.fit(mc.means.Constant(-0.4), Valleys(), DATA, **options)
    np.testing.assert_allclose(together.history, alone.history, rtol=1e-12)


def test_a_start_that_fails_leaves_the_others():
    perturb = lambda model, key: mc.means.Constant(3.5)  # noqa: E731
    fitted = mc.fit(
        mc.means.Constant(100.0),
        Falling(0.0),
        DATA,
        optimiser=optax.sgd(1.0),
        steps=10,
        every=4,
        restarts=2,
        perturb=perturb,
    )
    np.testing.assert_array_equal(fitted.history, 100.0 - np.arange(10))
    assert fitted.model.constant == 90.0


def test_a_start_whose_last_step_fails_is_not_the_best():
    """At its last step the perturbed start has the smaller objective, and a derivative that is NaN."""

    class Cliff(Falling):
        def _value(self, model, batch, key):
            edge = jax.numpy.where(model.constant > self.floor, 1.0, 0.0 * model.constant)
            return model.constant + 1e-9 * jax.numpy.sqrt(edge)

    perturb = lambda model, key: mc.means.Constant(3.5)  # noqa: E731
    fitted = mc.fit(
        mc.means.Constant(100.0),
        Cliff(0.0),
        DATA,
        optimiser=optax.sgd(1.0),
        steps=5,
        every=5,
        restarts=2,
        perturb=perturb,
    )
    assert all_finite(fitted.model)


@pytest.mark.parametrize("optimiser", [None, NaturalGradient(0.5, optax.adam(0.01))], ids=["adam", "natural"])
def test_a_sparse_model_can_be_restarted(optimiser):
    X, Y = wave_data()
    options = dict(optimiser=optimiser, steps=6, every=6, batch_size=20, key=KEY)
    fitted = mc.fit(sparse(), mc.objectives.ELBO(), (X, Y), restarts=3, **options)
    assert fitted.history.shape == (6,)
    assert fitted.model.posterior.q_sqrt.shape == (1, 6, 6)
    assert all_finite(fitted.model)
    fitted.model.predict(X)
