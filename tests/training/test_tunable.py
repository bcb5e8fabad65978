"""Optimisers whose numbers are data: they are what optax gives, and those that differ in numbers share a program."""

import jax
import numpy as np
import optax
import pytest
from toys import LeastSquares, line, line_data, same

import mercer as mc
from mercer.training import loop
from mercer.training.natural import NaturalGradient
from mercer.training.tunable import form_and_numbers, tunable

SETTINGS = [
    (optax.sgd, {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True}),
    (optax.adam, {"learning_rate": 0.05}),
    (optax.adamw, {"learning_rate": 0.05, "b1": 0.8, "weight_decay": 0.3}),
    (optax.adabelief, {"learning_rate": 0.05, "eps": 1e-8}),
    (optax.rmsprop, {"learning_rate": 0.01, "decay": 0.7, "centered": True}),
    (optax.lion, {"learning_rate": optax.cosine_decay_schedule(0.05, 20), "b1": 0.8}),
]


def trained(optimiser, **options):
    return mc.fit(line(), LeastSquares(), line_data(), optimiser=optimiser, **{"steps": 20, "every": 10} | options)


@pytest.mark.parametrize(("make", "settings"), SETTINGS, ids=lambda value: getattr(value, "__name__", ""))
def test_steps_are_those_of_optax(make, settings):
    made = tunable(make, settings)
    assert form_and_numbers(made)[1] == tuple(settings[k] for k in sorted(settings) if type(settings[k]) is float)
    expected, found = trained(make(**settings)), trained(made)
    assert np.allclose(found.history, expected.history, rtol=1e-12)
    for a, b in zip(jax.tree.leaves(found.model), jax.tree.leaves(expected.model), strict=True):
        assert np.allclose(a, b, rtol=1e-12)


def clipped(norm, rate, make=lambda make, *positional, **settings: tunable(make, settings, *positional)):
    """A chain with a rate that follows one schedule after another, of which only the numbers are given."""
    rates = (
        make(optax.constant_schedule, value=rate),
        make(optax.cosine_decay_schedule, init_value=rate, decay_steps=10),
    )
    schedule = make(optax.join_schedules, schedules=rates, boundaries=(5,))
    return make(optax.chain, make(optax.clip_by_global_norm, max_norm=norm), make(optax.adam, learning_rate=schedule))


def test_what_is_made_of_others():
    """Their numbers are data, too: a schedule's, and those of the links of a chain."""
    made = clipped(0.5, 0.05)
    assert form_and_numbers(made)[1] == (0.5, 0.05, 0.05)
    assert form_and_numbers(made)[0] == form_and_numbers(clipped(1.0, 0.01))[0]
    expected = clipped(0.5, 0.05, lambda make, *positional, **settings: make(*positional, **settings))
    assert np.allclose(trained(made).history, trained(expected).history, rtol=1e-12)


def test_a_schedule_that_cannot_be_made_of_traced_numbers():
    """It is that of optax, which asks if a number is 0; what is made with it has numbers of its own."""
    settings = {"init_value": 0.1, "transition_steps": 5, "decay_rate": 0.5}
    schedule = tunable(optax.exponential_decay, settings)
    assert form_and_numbers(schedule) == (schedule, ())
    made = tunable(optax.adam, {"learning_rate": schedule, "b1": 0.8})
    assert form_and_numbers(made)[1] == (0.8,)
    expected = optax.adam(optax.exponential_decay(**settings), b1=0.8)
    assert np.allclose(trained(made).history, trained(expected).history, rtol=1e-12)


def test_it_works_in_a_loop_of_ones_own():
    """It is an optimiser of optax like any other, also where JAX takes it apart and puts it together."""
    params, states = np.ones(3), []
    made = tunable(optax.adam, {"learning_rate": 0.1})
    for optimiser in (made, jax.tree.map(lambda part: part, made), optax.adam(0.1)):
        chain = optax.chain(optax.clip(1.0), optimiser)
        state = chain.init(params)
        states.append(chain.update(np.array([3.0, -0.5, 0.0]), state, params)[0])
    assert np.allclose(states, states[-1], rtol=1e-12)


def test_a_number_is_not_compiled(caplog):
    """Another rate compiles nothing, and the numbers are to the last bit those of a process that had no other before it."""
    options = {"every": 7, "steps": 14}  # an `every` that no other test has: loops are kept
    first = trained(tunable(optax.adam, {"learning_rate": 0.05}), **options)
    # The level is said, as the command, if a test ran it before, makes JAX silent.
    with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
        other = trained(tunable(optax.adam, {"learning_rate": 0.01}), **options)
        assert "Compiling" not in caplog.text
        trained(optax.adam(0.01), **options)
        assert "Compiling" in caplog.text
        trained(clipped(0.5, 0.05), **options)
        caplog.clear()
        trained(clipped(0.4, 0.01), **options)
        assert "Compiling" not in caplog.text
    loop.compiled_loop.cache_clear()
    assert same(trained(tunable(optax.adam, {"learning_rate": 0.01}), **options).model, other.model)
    assert not same(first.model, other.model)


def test_what_is_not_tunable_is_what_optax_makes():
    searching = tunable(optax.lbfgs, {"learning_rate": 0.5})  # it evaluates the loss
    integers = tunable(optax.adam, {"learning_rate": 1})
    no_key = tunable(optax.adamw, {"learning_rate": 0.1, "mask": {"a": True}})  # a dictionary cannot be looked up
    for made in (searching, integers, no_key):
        assert form_and_numbers(made) == (made, ())


def test_the_rest_of_natural_gradients():
    X = np.linspace(-1.0, 1.0, 12)[:, None]
    posterior = mc.Sparse(mc.GP(mc.kernels.RBF(0.5)), mc.inducing.Points(X[::3]))
    model = mc.Model(posterior, mc.likelihoods.Gaussian(0.1))
    found = [
        mc.fit(model, mc.objectives.ELBO(), (X, np.sin(X)), optimiser=NaturalGradient(0.5, rest=rest), steps=3).history
        for rest in (optax.adam(0.05), tunable(optax.adam, {"learning_rate": 0.05}))
    ]
    assert np.allclose(*found, rtol=1e-12)


def test_a_checkpoint_of_another_rate_is_refused(tmp_path):
    options = {"checkpoint": tmp_path / "run.ckpt", "steps": 10}
    trained(tunable(optax.adam, {"learning_rate": 0.05}), **options)
    with pytest.raises(mc.training.CheckpointError, match="differs in optimiser"):
        trained(tunable(optax.adam, {"learning_rate": 0.01}), **options)
