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
        draws = narrow.sample(A, 2, key=KEY), narrow.sample_function(num_features=8, key=KEY)(A)
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


class Either(mc.Process):
    """A mixture of a user's: one of several processes."""

    parts: tuple[mc.Process, ...]

    def _predict(self, X, covariance):
        return mc.Mixture.of([part.predict(X, covariance) for part in self.parts])

    def _sample_function(self, key, num_features):
        return self.parts[0].sample_function(num_features, key=key)


def of_every_kind(dtype):
    """A process of each class, that holds its data and factors in a dtype."""
    q_mu, q_sqrt = (a.astype(dtype) for a in some_q(2))
    own = mc.parameters.cast(prior(2), dtype)
    exact = mc.Conditioned(own, X.astype(dtype), Y[:, :2].astype(dtype), 0.1)
    sparse = mc.Sparse(own, mc.inducing.Points(Z.astype(dtype)), 2, q_mu=q_mu, q_sqrt=q_sqrt)
    coregionalised = mc.GP(mc.kernels.IntrinsicCoregionalisation(mc.kernels.RBF(), np.eye(2) + 0.3))
    kronecker = mc.Conditioned(coregionalised, X.astype(dtype), Y[:, :2].astype(dtype), 0.1)
    return {
        "GP": own,
        "Conditioned": exact,
        "CachedConditioned": exact.cached(),
        "CachedKronecker": kronecker.cached(),
        "Sparse": sparse,
        "CachedSparse": sparse.cached(),
        "Tempered": mc.processes.Tempered(exact, 0.5),
        "Tempered, cached": mc.processes.Tempered(exact.cached(), [0.5, 2.0]),
        "mixture": Either((exact, sparse)),
    }


@pytest.mark.parametrize("asked", [np.float32, np.float64])
@pytest.mark.parametrize("held", [np.float32, np.float64])
@pytest.mark.parametrize("name", of_every_kind(float))
def test_what_a_process_gives_has_the_dtype_of_the_inputs(name, held, asked):
    process, at = of_every_kind(held)[name], X_NEW.astype(asked)

    def everything(at):
        layouts = [tuple(process.predict(at, layout)) for layout in LAYOUTS]
        draws = process.sample(at, 2, key=KEY), process.sample_function(8, key=KEY)(at)
        return layouts, draws, tuple(mc.Model(process, mc.likelihoods.Gaussian(0.1)).predict(at))

    assert {leaf.dtype for leaf in jax.tree.leaves(jax.eval_shape(everything, at))} == {np.dtype(asked)}


@pytest.mark.parametrize("name", ["Conditioned", "CachedConditioned", "CachedSparse", "Tempered, cached"])
def test_data_and_factors_are_used_in_the_precision_that_they_are_held_in(name):
    """At inputs that both dtypes hold exactly, the answer is that of double precision, rounded."""
    process, at = of_every_kind(float)[name], X_NEW.astype(np.float32)
    for found, truth in zip(process.predict(at), process.predict(at.astype(float)), strict=True):
        np.testing.assert_allclose(found, truth, rtol=1e-7)


def test_functionals_are_asked_in_their_own_dtype():
    points = mc.inducing.Derivative(X_NEW.astype(np.float32), 0)
    smooth = mc.Conditioned(mc.GP(mc.kernels.RBF()), X, Y[:, :1], 0.1)
    for process in (smooth, smooth.cached(), mc.GP(mc.kernels.RBF())):
        assert {leaf.dtype for leaf in process.predict(points)} == {np.dtype(np.float32)}
