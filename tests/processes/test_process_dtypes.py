"""The dtype of a result is that of the data, also where JAX would rather have float64."""

import jax
import numpy as np
import pytest
from dense_gaussians import MISSING, X_NEW, X, Y, Z, predictions, prior, some_q

import mercer as mc

NARROW = np.float32
KEY = jax.random.key(0)


def processes(dtype):
    x, y, z, missing, new = (a.astype(dtype) for a in (X, Y[:, :2], Z, MISSING[:, :2], X_NEW))
    q_mu, q_sqrt = (a.astype(dtype) for a in some_q(2))
    points = mc.inducing.Points(z)
    return new, {
        "GP": prior(2),  # whose parameters stay float64
        "Conditioned": mc.Conditioned(prior(2), x, y, 0.1),
        "Conditioned, missing": mc.Conditioned(prior(2), x, missing, 0.1),
        "Sparse": mc.Sparse(prior(2), points, 2, q_mu=q_mu, q_sqrt=q_sqrt),
        "Sparse, not whitened": mc.Sparse(prior(2), points, 2, False, q_mu=q_mu, q_sqrt=q_sqrt),
    }


@pytest.mark.parametrize("name", processes(float)[1])
def test_float32_in_float32_out(name):
    (new, narrow), (wide_new, wide) = ((at, named[name]) for at, named in (processes(NARROW), processes(float)))
    computed, expected = predictions(narrow, new), predictions(wide, wide_new)
    for layout in computed:
        for found, truth in zip(computed[layout], expected[layout], strict=True):
            assert found.dtype == NARROW, layout
            np.testing.assert_allclose(found, truth, rtol=0, atol=2e-3, err_msg=layout)
    assert narrow.predict(new).mean.dtype == NARROW
    assert narrow.sample(KEY, new, 2).dtype == NARROW
    assert narrow.sample_function(KEY, num_features=8)(new).dtype == NARROW
    if hasattr(narrow, "cached"):
        for found, truth in zip(narrow.cached().predict(new), expected["diag"], strict=True):
            assert found.dtype == NARROW
            np.testing.assert_allclose(found, truth, rtol=0, atol=2e-3)


def test_numbers_of_float32_processes_are_float32():
    _, named = processes(NARROW)
    _, wide = processes(float)
    for name in ("Conditioned", "Conditioned, missing"):
        value, loo = named[name].log_marginal_likelihood(), named[name].leave_one_out()
        assert {value.dtype, loo.mean.dtype, loo.cov.dtype} == {np.dtype(NARROW)}
        np.testing.assert_allclose(value, wide[name].log_marginal_likelihood(), rtol=1e-3)
    for name in ("Sparse", "Sparse, not whitened"):
        assert named[name].kl().dtype == NARROW
        np.testing.assert_allclose(named[name].kl(), wide[name].kl(), rtol=1e-3)


def test_a_new_sparse_posterior_has_the_dtype_of_its_points():
    for whiten in (True, False):
        q = mc.Sparse(prior(1), mc.inducing.Points(Z.astype(NARROW)), whiten=whiten)
        assert {q.q_mu.dtype, q.q_sqrt.dtype} == {np.dtype(NARROW)}


def test_float64_inputs_to_a_float32_posterior():
    """A sparse posterior follows the inputs; an exact one has data of its own, and takes the wider of the two."""
    _, narrow = processes(NARROW)
    new, wide = processes(float)
    assert narrow["Sparse"].predict(new).mean.dtype == np.float64
    assert narrow["Conditioned"].predict(new).mean.dtype == np.float64
    assert wide["Conditioned"].predict(new.astype(NARROW)).mean.dtype == np.float64
