"""The best model on the way: the one that it says, the same after an interruption, with restarts, and in company."""

import jax
import numpy as np
import optax
import pytest
from test_together import RATES, job
from toys import LeastSquares, line, line_data, same, wave_data

import mercer as mc
from mercer.training import TrainingError
from mercer.training.together import fit_together

X, Y = line_data()
OPTIONS = dict(optimiser=optax.adam(0.1), steps=30, every=4)


def slope_is_one(model):
    """Least on the way from 0 to 2, where the slope passes 1."""
    return abs(float(model.weights[0, 0]) - 1.0)


def train(**changes):
    return mc.fit(line(), LeastSquares(), (X, Y), **(OPTIONS | changes))


class Seen:
    """Numbers of all models on the way."""

    def __init__(self):
        self.numbers, self.best = [], []

    def __call__(self, progressed):
        self.numbers.append(slope_is_one(progressed.model()))
        self.best.append(progressed.best and (float(progressed.best.number), int(progressed.best.step)))


def test_the_best_of_those_on_the_way():
    seen, asked = Seen(), []

    def validate(model):
        asked.append(slope_is_one(model))
        return asked[-1]

    fitted = train(validate=validate, callbacks=seen)
    assert asked == seen.numbers and len(asked) == 8
    steps = (*range(4, 30, 4), 30)
    assert seen.best == [min(zip(asked[:i], steps[:i], strict=True)) for i in range(1, 9)]
    assert slope_is_one(fitted.model) == min(asked) < asked[-1] and 0 < np.argmin(asked) < 7
    assert np.array_equal(fitted.history, train().history)  # training goes its way
    shorter = train(steps=4 * (1 + int(np.argmin(asked))))
    assert same(shorter.model, fitted.model)


def test_patience():
    fitted = train(steps=1000, validate=slope_is_one, patience=12)
    best = next(n for n in range(4, 1000, 4) if same(train(steps=n).model, fitted.model))
    assert len(fitted.history) == best + 12


def test_what_is_no_number_is_not_the_best():
    numbers = iter([np.nan, 3.0, np.inf, -np.inf, 5.0])
    fitted = train(steps=20, validate=lambda model: next(numbers))
    assert same(fitted.model, train(steps=8).model)
    with pytest.raises(TrainingError, match="validate gave no finite number") as caught:
        train(steps=8, validate=lambda model: np.nan)
    assert same(caught.value.fit.model, train(steps=8).model)


@pytest.mark.parametrize("options", [{}, {"patience": 16}])
def test_a_run_that_was_interrupted_has_the_same_best(tmp_path, options):
    options = {"validate": slope_is_one, "steps": 60} | options
    whole, path = train(**options), tmp_path / "run.ckpt"
    for steps in range(4, 60, 4):  # as if it was killed after each chunk
        train(**options | {"steps": steps, "checkpoint": path})
    resumed = train(checkpoint=path, **options)
    assert same(resumed, whole)
    with pytest.raises(mc.training.CheckpointError, match="differs in validate"):
        train(checkpoint=path, **options | {"validate": lambda model: 0.0})


def test_restarts():
    fitted = train(restarts=3, validate=slope_is_one)
    on_the_way = [train(restarts=3, steps=n).model for n in (*range(4, 30, 4), 30)]
    assert same(fitted.model, min(on_the_way, key=slope_is_one))


def test_the_model_is_the_one_that_would_be_returned():
    """With the marginal likelihood, the posterior given the data, not the prior."""
    data, asked = wave_data(), []
    model = mc.Model(mc.GP(mc.kernels.RBF(0.5)), mc.likelihoods.Gaussian(0.1))

    def validate(model):
        asked.append(model)
        return -float(np.mean(model.log_density(*data)))

    fitted = mc.fit(model, mc.objectives.MarginalLikelihood(), data, steps=4, every=2, validate=validate)
    assert all(isinstance(model.posterior, mc.Conditioned) for model in (*asked, fitted.model))


def test_together():
    """Each run has its own best and its own end, and one without a number is told from the others."""
    where = np.linspace(-2.0, 2.0, 9)[:, None]

    def error(i):
        return lambda model: float(np.mean((model.predict(where).mean - np.sin((2.0 + i) * where)) ** 2))

    jobs = [job(i, rate)._replace(validate=error(i)) for i, rate in enumerate((0.3, *RATES[1:]))]
    nothing = jobs[0]._replace(validate=lambda model: np.nan)
    options = {"steps": 40, "every": 5}
    *together, none = fit_together([*jobs, nothing], patience=10, **options)
    assert none is None
    for one, found in zip(jobs, together, strict=True):
        optimiser = optax.adam(one.optimiser.init.numbers[0])
        data = {"key": one.key, "validate": one.validate, "patience": 10}
        alone = mc.fit(one.model, one.objective, one.data, optimiser=optimiser, **data, **options)
        assert found.history.shape == alone.history.shape
        assert np.allclose(found.history, alone.history, rtol=1e-10, atol=1e-10)
        leaves = zip(jax.tree.leaves(found.model), jax.tree.leaves(alone.model), strict=True)
        assert all(np.allclose(a, b, rtol=1e-10, atol=1e-10) for a, b in leaves)
    assert len({len(found.history) for found in together}) > 1


def test_refusals():
    for wrong, said in (
        ({"patience": 3}, "patience needs validate"),
        ({"validate": slope_is_one, "patience": 0}, "patience must be a whole number, at least 1"),
        ({"validate": 1.0}, "validate expects a function from the model to a number, got float"),
        ({"validate": lambda model: model.weights}, r"to one number, which gave an array \(1, 1\)"),
    ):
        with pytest.raises(ValueError, match=said):
            train(**wrong)
