"""The dtype of a result is that of the data, also where JAX would rather have float64."""

import equinox as eqx
import jax
import numpy as np
import pytest
from dense_gaussians import LAYOUTS, MISSING, X_NEW, X, Y, Z, prior, some_q

import mercer as mc
from cases import mostly_slow

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


@pytest.mark.parametrize("name", mostly_slow(processes(float)[1], "GP", "Conditioned, missing", "Sparse, not whitened"))
def test_float32_in_float32_out(name):
    (new, named), (wide_new, wide_named) = processes(NARROW), processes(float)
    narrow, wide = named[name], wide_named[name]

    def everything(A):
        draws = narrow.sample(KEY, A, 2), narrow.sample_function(KEY, num_features=8)(A)
        cached = narrow.cached() if hasattr(narrow, "cached") else narrow
        return draws, [tuple(process.predict(A, layout)) for process in (narrow, cached) for layout in LAYOUTS]

    shapes = jax.eval_shape(everything, new)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {np.dtype(NARROW)}
    for found, truth in zip(narrow.predict(new), wide.predict(wide_new), strict=True):
        assert found.dtype == NARROW
        np.testing.assert_allclose(found, truth, rtol=0, atol=2e-3)


@eqx.filter_jit
def numbers(process):
    if isinstance(process, mc.Sparse):
        return (process.kl(),)
    return process.log_marginal_likelihood(), *process.leave_one_out()


def test_numbers_of_float32_processes_are_float32():
    (_, named), (_, wide) = processes(NARROW), processes(float)
    for name in ("Conditioned", "Sparse", "Sparse, not whitened"):
        for found, truth in zip(numbers(named[name]), numbers(wide[name]), strict=True):
            assert found.dtype == NARROW
            np.testing.assert_allclose(found, truth, rtol=1e-3, atol=1e-3)


def test_a_new_sparse_posterior_has_the_dtype_of_its_points():
    for whiten in (True, False):
        q = mc.Sparse(prior(1), mc.inducing.Points(Z.astype(NARROW)), whiten=whiten)
        assert {q.q_mu.dtype, q.q_sqrt.dtype} == {np.dtype(NARROW)}


def test_float64_inputs_to_a_float32_posterior():
    """A sparse posterior follows the inputs; an exact one has data of its own, and takes the wider of the two."""
    _, narrow = processes(NARROW)
    new, wide = processes(float)
    for process, A in (
        (narrow["Sparse"], new),
        (narrow["Conditioned"], new),
        (wide["Conditioned"], new.astype(NARROW)),
    ):
        assert jax.eval_shape(process.predict, A).mean.dtype == np.float64
