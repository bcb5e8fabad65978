"""What `fit` does for any model: it lowers the objective, moves what it may and nothing else, and says what is wrong."""

import sys

import jax
import numpy as np
import optax
import pytest
from toys import KEY, LeastSquares, all_finite, line, line_data, same, sparse, wave_data

import mercer as mc
from mercer.parameters import declarations
from mercer.training import EarlyStopping, NaturalGradient, loop


def changes(before, after):
    """The paths of the arrays that differ, and of those that do not."""
    moved, still = set(), set()
    for (path, old, _), (_, new, _) in zip(declarations(before), declarations(after), strict=True):
        (still if np.array_equal(old, new) else moved).add(path)
    return moved, still


@pytest.fixture(scope="module")
def trained():
    """A sparse model trained on minibatches, with a part of it frozen."""
    model, data = sparse(), wave_data()
    frozen = lambda m: (m.posterior.inducing, m.posterior.prior.kernel.lengthscale)  # noqa: E731
    fitted = mc.fit(
        model, mc.objectives.ELBO(), data, optimiser=optax.adam(0.05), steps=57, batch_size=11, every=20, frozen=frozen
    )
    return model, data, fitted


def test_fit_lowers_the_objective(trained):
    model, (X, Y), fitted = trained
    assert mc.elbo(fitted.model, X, Y) > mc.elbo(model, X, Y) + 10.0


def test_history_is_the_objective_before_each_step(trained):
    model, data = line(), line_data()
    history = mc.fit(model, LeastSquares(), data, steps=13, every=5).history
    assert history.shape == (13,)
    assert history[0] == pytest.approx(float(LeastSquares()(model, data)), rel=1e-12)
    assert trained[2].history.shape == (57,)


def test_frozen_parts_stay_and_all_others_move(trained):
    model, _, fitted = trained
    moved, still = changes(model, fitted.model)
    assert still == {".posterior.inducing.Z", ".posterior.prior.kernel.lengthscale"}
    assert moved == {
        ".posterior.prior.kernel.variance",
        ".posterior.prior.mean.constant",
        ".posterior.q_mu",
        ".posterior.q_sqrt",
        ".likelihood.variance",
    }


def test_the_model_that_was_passed_is_untouched(trained):
    assert same(trained[0], sparse())


def test_lbfgs_and_adam_reach_the_same_optimum_and_leave_the_data_alone():
    X, Y = wave_data(20)
    start = mc.Conditioned(mc.GP(mc.kernels.RBF()), X, Y, noise=0.1)
    objective = mc.objectives.MarginalLikelihood()
    quick = mc.fit(start, objective, (X, Y), optimiser=optax.lbfgs(), steps=40, every=40)
    slow = mc.fit(start, objective, (X, Y), optimiser=optax.adam(0.05), steps=1500, every=500)
    np.testing.assert_allclose(quick.history[-1], slow.history[-1], atol=1e-7)
    a, b = quick.model, slow.model
    np.testing.assert_allclose(a.prior.kernel.lengthscale, b.prior.kernel.lengthscale, rtol=1e-3)
    np.testing.assert_allclose(a.prior.kernel.variance, b.prior.kernel.variance, rtol=1e-3)
    np.testing.assert_allclose(a.noise, b.noise, rtol=1e-3)
    for fitted in (a, b):
        moved, still = changes(start, fitted)
        assert still == {".X", ".Y"}
        assert moved == {".prior.kernel.lengthscale", ".prior.kernel.variance", ".noise"}


def test_the_numbers_do_not_depend_on_the_chunks():
    model, data = line(), line_data()
    fits = [mc.fit(model, LeastSquares(), data, steps=20, batch_size=6, every=n, key=KEY) for n in (1, 3, 20, 100)]
    for other in fits[1:]:
        np.testing.assert_allclose(other.history, fits[0].history, rtol=1e-12)
        np.testing.assert_allclose(other.model.weights, fits[0].model.weights, rtol=1e-12)


def test_the_key_decides_the_run():
    model, data = line(), line_data()
    one, two, three = (
        mc.fit(model, LeastSquares(), data, steps=10, batch_size=6, key=key) for key in (KEY, KEY, jax.random.key(8))
    )
    assert same(one, two)
    assert not np.array_equal(one.history, three.history)


def test_a_sum_of_all_batches_is_all_the_data():
    """At steps of size 0 the mean over a pass of the minibatch objective is the objective of all the data."""
    (X, Y), objective = wave_data(40), mc.objectives.ELBO()
    model = sparse()
    history = mc.fit(model, objective, (X, Y), optimiser=optax.sgd(0.0), steps=8, batch_size=5, key=KEY).history
    np.testing.assert_allclose(history.mean(), objective(model, (X, Y)), rtol=1e-12)


def test_float32_data_train_in_float32():
    data = wave_data(dtype=np.float32)
    priors = [(lambda m: m.posterior.prior.kernel.lengthscale, mc.priors.LogNormal(np.zeros(()), np.ones(())))]
    objective = mc.objectives.MAP(mc.objectives.ELBO(), priors)  # with constants of float64
    optimiser = NaturalGradient(0.5, optax.adam(0.01))
    fitted = mc.fit(sparse(), objective, data, optimiser=optimiser, steps=6, batch_size=8, every=4)
    assert fitted.history.dtype == np.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(fitted.model)} == {np.dtype("float32")}
    assert all_finite(fitted.model)


def test_callbacks_see_the_run_and_can_end_it():
    data, seen = line_data(), []

    def watch(progressed):
        loss = float(LeastSquares()(progressed.model(), data))
        seen.append((progressed.step, len(progressed.history), loss))
        return progressed.step >= 12

    fitted = mc.fit(line(), LeastSquares(), data, steps=100, every=4, callbacks=[lambda p: None, watch])
    assert [step for step, _, _ in seen] == [length for _, length, _ in seen] == [4, 8, 12]
    assert len(fitted.history) == 12
    # The model that a callback sees after n steps is the one whose objective is number n of the history.
    np.testing.assert_allclose([loss for _, _, loss in seen[:2]], fitted.history[[4, 8]], rtol=1e-12)
    assert seen[-1][2] == pytest.approx(float(LeastSquares()(fitted.model, data)), rel=1e-12)


@pytest.mark.parametrize("installed", [True, False])
def test_progress_is_shown_on_standard_error(installed, capsys, monkeypatch):
    if not installed:
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    mc.fit(line(), LeastSquares(), line_data(), steps=10, every=4, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "objective" in shown.err
    assert ("10/10" if installed else "step 10 of 10") in shown.err


def test_nothing_is_printed_unless_asked(capsys):
    mc.fit(line(), LeastSquares(), line_data(), steps=2)
    assert capsys.readouterr() == ("", "")


DATA = line_data()
WRONG = {
    "no steps": (dict(steps=0), "steps"),
    "chunks of none": (dict(every=0), "every"),
    "no restarts": (dict(restarts=0), "restarts"),
    "batch larger than the data": (dict(batch_size=24), "batch_size.*23.*24"),
    "batch of none": (dict(batch_size=0), "batch_size"),
    "integer X": (dict(data=(np.arange(23)[:, None], DATA[1])), "X must be float32 or float64, got int"),
    "NaN in X": (dict(data=(np.where(DATA[0] > 0.9, np.nan, DATA[0]), DATA[1])), "X must be finite"),
    "flat X": (dict(data=(DATA[0][:, 0], DATA[1])), r"X must be two-dimensional \[N, D\]"),
    "fewer rows of Y": (dict(data=(DATA[0], DATA[1][:-1])), "X and Y must have the same number of rows"),
    "no data": (dict(data=(DATA[0][:0], DATA[1][:0])), "X must have at least one row"),
    "not a pair": (dict(data=DATA[0]), "data expects a pair"),
    "everything frozen": (dict(frozen=lambda m: m), "frozen leaves no parameter"),
    "frozen is no part": (dict(frozen=lambda m: m.lengthscale), "frozen.*lengthscale"),
    "lines with minibatches": (dict(optimiser=optax.lbfgs(), batch_size=5), "batch_size"),
    "natural gradients of a line": (dict(optimiser=NaturalGradient()), "NaturalGradient expects"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case):
    options, message = WRONG[case]
    arguments = dict(data=DATA, steps=2) | options
    with pytest.raises(ValueError, match=message):
        mc.fit(line(), LeastSquares(), **arguments)


def test_what_an_objective_cannot_do_is_said_before_anything_is_compiled():
    X, Y = wave_data()
    exact = mc.Conditioned(mc.GP(mc.kernels.RBF()), X, Y)
    with pytest.raises(ValueError, match="leave batch_size out"):
        mc.fit(exact, mc.objectives.MarginalLikelihood(), (X, Y), batch_size=5)
    with pytest.raises(ValueError, match="ELBO expects a Model"):
        mc.fit(exact, mc.objectives.ELBO(), (X, Y))
    with pytest.raises(ValueError, match="MarginalLikelihood expects"):
        mc.fit(sparse(), mc.objectives.MarginalLikelihood(), (X, Y))
    with pytest.raises(ValueError, match="Bernoulli"):
        mc.fit(sparse(likelihood=mc.likelihoods.Bernoulli()), mc.objectives.ELBO(), (X, Y))
    with pytest.raises(ValueError, match="latent functions"):
        mc.fit(sparse(num_outputs=2), mc.objectives.ELBO(), (X, Y))


def test_early_stopping_waits_for_its_patience():
    """A constant objective: the first window is the best, and `patience` steps after it training ends."""
    data = line_data()
    stopping = EarlyStopping(patience=6, tolerance=1e-6, window=2)
    flat = mc.fit(line(), LeastSquares(), data, optimiser=optax.sgd(0.0), steps=100, every=2, callbacks=[stopping])
    assert len(flat.history) == 8
    falling = mc.fit(line(), LeastSquares(), data, optimiser=optax.sgd(0.01), steps=20, every=2, callbacks=[stopping])
    assert len(falling.history) == 20


def test_each_program_is_kept_by_itself():
    """Models of other structure or shape have entries of their own among the few that are kept, and numbers share one."""
    X = np.linspace(-1.0, 1.0, 12)[:, None]

    def missed(kernel, M):
        before = loop.compiled_loop.cache_info().misses
        posterior = mc.Sparse(mc.GP(kernel), mc.inducing.Points(X[:M]))
        mc.fit(mc.Model(posterior, mc.likelihoods.Gaussian(0.1)), mc.objectives.ELBO(), (X, X), steps=1, every=11)
        return loop.compiled_loop.cache_info().misses - before

    cases = [
        (mc.kernels.RBF(0.5), 3),
        (mc.kernels.RBF(0.7), 3),
        (mc.kernels.Matern32(0.5), 3),
        (mc.kernels.RBF(0.5), 4),
    ]
    assert [missed(*case) for case in cases] == [1, 0, 1, 1]
