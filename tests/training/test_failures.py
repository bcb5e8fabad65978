"""An objective that becomes NaN: training ends with an error that holds the last good model."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from toys import Falling, all_finite, sparse, wave_data

import mercer as mc
from mercer.training import TrainingError

DATA = (np.zeros((2, 1)), np.zeros((2, 1)))


@pytest.mark.parametrize("bad", [1, 3, 4, 5, 8, 9, 10])
def test_the_error_holds_the_last_good_model(bad):
    """With chunks of 4 in 11 steps: in the first chunk, at boundaries, in the middle, and at the very last step."""
    with pytest.raises(TrainingError, match=f"not finite at step {bad}") as caught:
        mc.fit(mc.means.Constant(20.5), Falling(21.0 - bad), DATA, optimiser=optax.sgd(1.0), steps=11, every=4)
    model, history = caught.value.fit
    np.testing.assert_array_equal(history, 20.5 - np.arange(bad))
    assert model.constant == 20.5 - (bad - 1)


@pytest.mark.parametrize("bad", [1, 4, 8, 11])
def test_a_step_to_nan_is_an_error_also_when_no_loss_shows_it(bad):
    """The update of step `bad` - 1 is NaN while its loss is finite."""
    rate = lambda count: jnp.where(count == bad - 1, jnp.nan, 1.0)  # noqa: E731
    with pytest.raises(TrainingError) as caught:
        mc.fit(mc.means.Constant(20.5), Falling(0.0), DATA, optimiser=optax.sgd(rate), steps=11, every=4)
    model, history = caught.value.fit
    np.testing.assert_array_equal(history, 20.5 - np.arange(bad))
    assert model.constant == 20.5 - (bad - 1)


def test_a_bad_start_is_an_error_without_history():
    with pytest.raises(TrainingError, match="step 0") as caught:
        mc.fit(mc.means.Constant(-1.0), Falling(0.0), DATA, steps=5)
    assert len(caught.value.fit.history) == 0


def test_restarts_that_all_fail():
    perturb = lambda model, key: mc.means.Constant(8.5)  # noqa: E731
    options = dict(optimiser=optax.sgd(1.0), steps=11, every=4, restarts=2, perturb=perturb)
    with pytest.raises(TrainingError) as caught:
        mc.fit(mc.means.Constant(6.5), Falling(1.0), DATA, **options)
    model, history = caught.value.fit
    assert model.constant == 1.5
    np.testing.assert_array_equal(history, 8.5 - np.arange(8))


def test_a_checkpoint_before_the_failure_stays(tmp_path):
    path, options = tmp_path / "run.ckpt", dict(optimiser=optax.sgd(1.0), every=4)
    for _ in range(2):
        with pytest.raises(TrainingError, match="step 6") as caught:
            mc.fit(mc.means.Constant(20.5), Falling(15.0), DATA, steps=11, checkpoint=path, **options)
        np.testing.assert_array_equal(caught.value.fit.history, 20.5 - np.arange(6))
        assert caught.value.fit.model.constant == 15.5
    assert [file.name for file in tmp_path.iterdir()] == ["run.ckpt"]


def test_too_large_a_learning_rate_in_earnest():
    X, Y = wave_data()
    with pytest.raises(TrainingError, match="smaller learning rate") as caught:
        mc.fit(sparse(), mc.objectives.ELBO(), (X, Y), optimiser=optax.sgd(1e5), steps=50, every=10, batch_size=10)
    model, history = caught.value.fit
    assert 1 <= len(history) < 50
    assert np.isfinite(history).all()
    assert all_finite(model)
