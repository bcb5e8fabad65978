"""Objectives that know their step, carry a state, look at all of the data, or have parameters of their own."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mercer as mc
from mercer.objectives import Batch, Objective, TrainingObjective
from mercer.objectives.fixed_features import SummedBatch
from mercer.training import NaturalGradient
from outside import Annealed, Averaged

X = np.linspace(-1.0, 1.0, 20)[:, None]
Y = 0.5 + 2.0 * X + 0.1 * np.sin(40.0 * X)


def line():
    return mc.means.Linear([[0.0]], 0.0)


def sparse():
    prior = mc.GP(mc.kernels.RBF(0.7))
    return mc.Model(mc.Sparse(prior, mc.inducing.Points(X[::5])), mc.likelihoods.Gaussian(0.1))


class LeastSquares(Objective):
    def _value(self, model, batch, key):
        return jnp.mean((batch.Y - model(batch.X)) ** 2)


class Steps(TrainingObjective):
    """Its value is the number of the step, and its state counts down from 10."""

    def init(self, model, batch):
        return {"left": jnp.asarray(10)}

    def _value_in_training(self, model, batch, key, context):
        value = context.step + 100.0 * context.state["left"] + 0.0 * model.bias
        return value, {"left": context.state["left"] - 1}


def test_the_step_and_the_state_are_carried_through_chunks():
    history = mc.fit(line(), Steps(), (X, Y), steps=5, every=2).history
    np.testing.assert_array_equal(history, [step + 100.0 * (10 - step) for step in range(5)])
    assert Steps()(line(), (X, Y)) == 1000.0  # as before the first step


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_state_goes_on_from_a_checkpoint(restarts, tmp_path):
    objective, path = Averaged(LeastSquares()), tmp_path / "run.ckpt"
    options = dict(optimiser=optax.adam(0.1), every=3, batch_size=5, restarts=restarts)
    whole = mc.fit(line(), objective, (X, Y), steps=8, **options)
    mc.fit(line(), objective, (X, Y), steps=4, checkpoint=path, **options)
    resumed = mc.fit(line(), objective, (X, Y), steps=8, checkpoint=path, **options)
    assert np.array_equal(whole.history, resumed.history)
    assert eqx.tree_equal(whole.model, resumed.model)


def test_the_state_is_what_the_formula_says():
    """With a model that is held by a learning rate of 0 the average of a constant is known."""
    value = float(LeastSquares()(line(), (X, Y)))
    history = mc.fit(line(), Averaged(LeastSquares()), (X, Y), optimiser=optax.sgd(0.0), steps=4).history
    averages = value * (1.0 - 0.9 ** np.arange(1, 5))
    np.testing.assert_allclose(history, value + 0.5 * (averages - value), rtol=1e-12)


def test_a_state_of_another_form_is_refused():
    class Growing(Steps):
        def _value_in_training(self, model, batch, key, context):
            return jnp.zeros(()), {"left": jnp.zeros(2)}

    with pytest.raises(ValueError, match="Growing: the state of a step must have the form"):
        mc.fit(line(), Growing(), (X, Y), steps=2)


def test_own_parameters_are_trained_where_they_are_declared():
    """The weight of the KL divergence has its optimum where its own penalty balances it: below 1."""
    fitted = mc.fit(sparse(), Annealed(2.0), (X, Y), optimiser=optax.adam(0.05), steps=60, batch_size=10)
    assert 0.0 < fitted.objective.temperature < 1.0
    model, history = fitted
    assert len(history) == 60
    assert np.isfinite(mc.elbo(model, X, Y))
    natural = mc.fit(sparse(), Annealed(2.0), (X, Y), optimiser=NaturalGradient(0.1, optax.adam(0.05)), steps=5)
    assert natural.objective.temperature < 2.0
    alone = mc.fit(sparse(), Annealed(2.0), (X, Y), optimiser=NaturalGradient(0.1), steps=5)
    assert alone.objective.temperature == 2.0
    several = mc.fit(sparse(), Annealed(2.0), (X, Y), optimiser=optax.adam(0.05), steps=5, restarts=2)
    assert several.objective.temperature.shape == ()


def test_maximum_a_posteriori_of_any_objective():
    """MAP hands on what its objective needs; without priors it is that objective."""
    for objective in (Averaged(LeastSquares()), Annealed()):
        model = line() if isinstance(objective, Averaged) else sparse()
        plain = mc.fit(model, objective, (X, Y), steps=3, batch_size=10)
        wrapped = mc.fit(model, mc.objectives.MAP(objective, []), (X, Y), steps=3, batch_size=10)
        np.testing.assert_allclose(wrapped.history, plain.history, rtol=1e-12)


def test_sums_are_made_once_in_preparation():
    features = mc.inducing.FourierFeatures(-3.0, 3.0, 4)
    model = mc.Model(mc.Sparse(mc.GP(mc.kernels.Matern32(0.7)), features), mc.likelihoods.Gaussian(0.1))
    objective = mc.objectives.CollapsedELBO()
    batch = objective.checked(model, (X, Y))
    assert type(batch) is Batch
    assert isinstance(objective.prepare(model, batch), SummedBatch)
    wrapped = mc.objectives.MAP(objective, [])
    assert isinstance(wrapped.prepare(model, batch), SummedBatch)
    np.testing.assert_allclose(objective._value(model, batch, None), objective(model, (X, Y)), rtol=1e-9)


class Rows(Objective):
    """The sum of the numbers of the rows in a batch."""

    def _value(self, model, batch, key):
        return jnp.sum(batch.index) + 0.0 * model.bias


def test_rows_know_their_number():
    """In a pass over the data each number comes once."""
    history = mc.fit(line(), Rows(), (X, Y), steps=8, batch_size=5).history
    np.testing.assert_array_equal(history.reshape(2, 4).sum(axis=1), [190.0, 190.0])
    assert Rows()(line(), (X, Y)) == 190.0
    batch = mc.objectives.Batch(X, Y).rows(np.array([3, 1, 3]))
    np.testing.assert_array_equal(batch.index, [3, 1, 3])
    np.testing.assert_array_equal(batch.X, X[[3, 1, 3]])
    assert batch.num_data == 20


class Located(Objective):
    """Least squares of a location for each row, which its number finds."""

    def _value(self, model, batch, key):
        shift = 0.0 if batch.X is None else batch.X["a"] + batch.X["b"][:, :1]
        return jnp.mean((batch.Y - model.locations[batch.index] - shift) ** 2)


class Locations(mc.parameters.Module):
    locations: jax.Array = mc.param(mc.parameters.real)


@pytest.mark.parametrize("inputs", ["none", "tree"])
def test_inputs_may_be_none_or_a_tree(inputs):
    tree = None if inputs == "none" else {"a": X, "b": np.concatenate([X, X], axis=1)}
    start = Locations(np.zeros((20, 1)))
    fitted = mc.fit(start, Located(), (tree, Y), optimiser=optax.adam(0.03), steps=800, batch_size=5)
    truth = Y if tree is None else Y - 2.0 * X
    np.testing.assert_allclose(fitted.model.locations, truth, atol=1e-2)


def test_processes_refuse_inputs_that_they_do_not_take():
    for tree in (None, {"a": X}):
        with pytest.raises(ValueError, match="X expects inputs, an array"):
            mc.fit(sparse(), mc.objectives.ELBO(), (tree, Y), steps=1)
        with pytest.raises(ValueError, match="X expects inputs, an array"):
            sparse().predict(tree)
    with pytest.raises(ValueError, match="same number of rows"):
        mc.fit(sparse(), mc.objectives.ELBO(), ({"a": X, "b": X[:3]}, Y), steps=1)
    with pytest.raises(ValueError, match="X must be finite"):
        mc.fit(sparse(), mc.objectives.ELBO(), ({"a": np.full((20, 1), np.nan)}, Y), steps=1)


def test_layers_with_a_state_are_refused_by_name():
    layers = [eqx.nn.Linear(1, 4, key=jax.random.key(0)), eqx.nn.BatchNorm(4, "batch", mode="ema"),
              eqx.nn.Linear(4, 1, key=jax.random.key(1))]  # fmt: skip
    with pytest.raises(ValueError, match=r"Network: BatchNorm has a state of its own.*LayerNorm"):
        mc.means.Network(eqx.nn.Sequential(layers))

    class Held(mc.parameters.Module):
        network: eqx.Module
        bias: jax.Array = mc.param(mc.parameters.real, default=0.0)

    with pytest.raises(ValueError, match="fit: BatchNorm has a state of its own"):
        mc.fit(Held(eqx.nn.Sequential(layers)), Rows(), (X, Y), steps=1)
