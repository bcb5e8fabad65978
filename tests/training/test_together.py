"""Several runs in one program give what each gives alone."""

import equinox as eqx
import jax
import numpy as np
import optax
import pytest

import mercer as mc
from mercer.training import loop, together
from mercer.training.together import Job, fit_together
from mercer.training.tunable import tunable

Z = np.linspace(-2.0, 2.0, 5)[:, None]
RATES = (0.05, 0.01, 0.001)


def job(i, rate, M=5):
    """A sparse regression with numbers, data and a rate of its own."""
    rng = np.random.default_rng(i)
    X = rng.uniform(-2.0, 2.0, (30, 1))
    Y = np.sin((2.0 + i) * X) + 0.1 * rng.normal(size=X.shape)
    posterior = mc.Sparse(mc.GP(mc.kernels.RBF(0.6 + 0.1 * i)), mc.inducing.Points(Z[:M] + 0.01 * i))
    model = mc.Model(posterior, mc.likelihoods.Gaussian(0.1 + 0.1 * i))
    return Job(model, mc.objectives.ELBO(), (X, Y), jax.random.key(i), tunable(optax.adam, {"learning_rate": rate}))


@pytest.fixture(scope="module")
def jobs():
    return [job(i, rate) for i, rate in enumerate(RATES)]


@pytest.mark.parametrize("batch_size", [None, 7])
def test_each_is_what_it_is_alone(jobs, batch_size):
    options = {"steps": 25, "batch_size": batch_size, "every": 10}
    together = fit_together(jobs, frozen=lambda model: model.posterior.inducing, **options)
    for one, found in zip(jobs, together, strict=True):
        alone = mc.fit(
            one.model,
            one.objective,
            one.data,
            optimiser=optax.adam(one.optimiser.init.numbers[0]),
            key=one.key,
            frozen=lambda model: model.posterior.inducing,
            **options,
        )
        assert np.allclose(found.history, alone.history, rtol=1e-10, atol=1e-10)
        leaves = zip(jax.tree.leaves(found.model), jax.tree.leaves(alone.model), strict=True)
        assert all(np.allclose(a, b, rtol=1e-10, atol=1e-10) for a, b in leaves)
        assert jax.tree.structure(found.model) == jax.tree.structure(alone.model)


def test_with_options_of_the_compiler(jobs, monkeypatch):
    """As on a GPU: JAX takes them for a whole program, and refuses them in a part of one."""
    for module in (loop, together):
        monkeypatch.setattr(module, "compiler_options", lambda: {"xla_cpu_enable_fast_math": False})
    # an `every` that no other test has: loops are kept
    assert None not in fit_together(jobs[:2], steps=2, every=3)


def test_one_that_is_not_finite_leaves_the_others_as_they_are(jobs):
    good = fit_together(jobs[:2], steps=20)
    wild = jobs[2]._replace(optimiser=tunable(optax.adam, {"learning_rate": 1e300}))
    found = fit_together([jobs[0], wild, jobs[1]], steps=20)
    assert found[1] is None
    for one, other in zip(good, (found[0], found[2]), strict=True):
        assert np.allclose(one.history, other.history, rtol=1e-10)


def test_they_must_be_of_one_form(jobs):
    with pytest.raises(ValueError, match="the jobs are not of one form"):
        fit_together([jobs[0], job(1, 0.1, M=4)], steps=2)
    other = eqx.tree_at(lambda model: model.likelihood, jobs[1].model, mc.likelihoods.StudentT())
    with pytest.raises(ValueError, match="the jobs are not of one form"):
        fit_together([jobs[0], jobs[1]._replace(model=other)], steps=2)
    sgd = jobs[1]._replace(optimiser=tunable(optax.sgd, {"learning_rate": 0.1}))
    with pytest.raises(ValueError, match="the jobs are not of one form"):
        fit_together([jobs[0], sgd], steps=2)
