"""Minibatches: an endless row of shuffled passes over the data, cut into batches."""

import jax
import numpy as np
import optax
import pytest
from toys import KEY, RowsSeen

import mercer as mc
from mercer.training.minibatches import Minibatches

NUM_DATA = 10


def rows_seen(batch_size, steps, every=100, key=KEY):
    """How often each step of a `fit` saw each row, [steps, N]: row i has the input 4^i, the history holds sums of inputs."""
    X = 4.0 ** np.arange(NUM_DATA)[:, None]
    model = mc.means.Constant(0.0)
    options = dict(optimiser=optax.sgd(0.0), steps=steps, batch_size=batch_size, every=every, key=key)
    sums = mc.fit(model, RowsSeen(), (X, X), **options).history.astype(int)
    return sums[:, None] // 4 ** np.arange(NUM_DATA) % 4


@pytest.mark.parametrize("batch_size", [1, 5, 4])
def test_each_pass_sees_every_row_once(batch_size):
    passes = batch_size  # so that they end together with a batch
    seen = rows_seen(batch_size, NUM_DATA)
    assert (seen.sum(axis=1) == batch_size).all()
    assert (seen.sum(axis=0) == passes).all()
    per_pass = NUM_DATA / batch_size
    for number in range(1, passes + 1):
        # Before the end of pass n no row was seen more than n times, after it none less.
        assert (seen[: int(number * per_pass)].sum(axis=0) <= number).all()
        assert (seen[: int(np.ceil(number * per_pass))].sum(axis=0) >= number).all()


def test_passes_are_in_different_orders():
    seen = rows_seen(1, 2 * NUM_DATA)
    assert not np.array_equal(seen[:NUM_DATA], seen[NUM_DATA:])


def test_what_a_step_sees_depends_on_key_and_number_alone():
    whole = rows_seen(3, 20)
    assert np.array_equal(whole, rows_seen(3, 20, every=7))
    assert not np.array_equal(whole, rows_seen(3, 20, key=jax.random.key(8)))


def test_all_the_data_are_one_batch_without_shuffling():
    assert (rows_seen(NUM_DATA, 3) == 1).all()


@pytest.mark.parametrize("first, count", [(0, 1), (3, 4), (8, 12), (19, 1)])
def test_steps_can_be_asked_for_in_any_pieces(first, count):
    whole = Minibatches(NUM_DATA, 3, (1, 2)).indices(0, 20)
    assert np.array_equal(Minibatches(NUM_DATA, 3, (1, 2)).indices(first, count), whole[first : first + count])
