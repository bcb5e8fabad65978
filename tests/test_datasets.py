"""The ten curves."""

import jax
import numpy as np
import pytest

from mercer import datasets


@pytest.mark.parametrize("i", range(1, 11))
def test_parts(i):
    curve = datasets.toy_curve(i, key=jax.random.key(i))
    assert [len(part[0]) for part in (curve.train, curve.validation, curve.test)] == [640, 160, 200]
    X = np.concatenate([part[0] for part in (curve.train, curve.validation, curve.test)])
    np.testing.assert_array_equal(np.sort(X[:, 0]), np.linspace(-2.0, 2.0, 1000))
    noise = np.asarray(curve.Y - curve.truth)
    assert abs(noise.std() - 0.5) < 5.0 * 0.5 / np.sqrt(2000.0)
    # whole segments, none at the ends
    edges = np.flatnonzero(np.diff(curve.held_out.astype(int)))
    assert len(edges) <= 8 and (np.diff(edges)[::2] % 50 == 0).all()
    assert not curve.held_out[:50].any() and not curve.held_out[-50:].any()


AT_ONE = [2.0 * np.sin(1.4 * np.pi) + 1.0, 0.0, 2.2, -2.0 + 0.0 - 1.0, 1.0, 0.5, -2.0, -3.0, 1.0, 3.0 * np.sqrt(3.0)]


def test_values_worked_out_by_hand():
    """At x = 1, between two of an even number of points; by interpolation."""
    for i, value in enumerate(AT_ONE, start=1):
        curve = datasets.toy_curve(i, num=4001, key=jax.random.key(0))
        np.testing.assert_allclose(np.interp(1.0, curve.X[:, 0], curve.truth[:, 0]), value, atol=1e-9)


def test_a_key_is_a_data_set():
    a, b, c = (datasets.toy_curve(3, key=jax.random.key(k)) for k in (0, 0, 1))
    np.testing.assert_array_equal(a.Y, b.Y)
    assert (a.Y != c.Y).any() and (a.held_out != c.held_out).any()


@pytest.mark.parametrize("arguments", [{"i": 0}, {"i": 11}, {"i": 1.0}, {"i": 1, "num": 3}, {"i": 1, "noise": -1.0}])
def test_errors(arguments):
    with pytest.raises(ValueError, match="expects"):
        datasets.toy_curve(key=jax.random.key(0), **arguments)
