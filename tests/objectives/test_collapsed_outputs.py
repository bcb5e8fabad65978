"""The collapsed bound of several outputs: it is the evidence bound at the q(u) that it finds, and no other q(u) is better."""

import sys
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

from multioutput_instances import MULTIOUTPUT, some_inputs

from cases import mostly_slow

X, Z = some_inputs(0, 7), some_inputs(1, 4)
_rng = np.random.default_rng(2)
Y = _rng.normal(size=(7, 3))
MISSING = np.where(_rng.uniform(size=Y.shape) < 0.3, np.nan, Y)
POINTS = mc.inducing.Points(Z)
INDUCING = {"Points": POINTS, "Shared": mc.inducing.Shared(POINTS)}
BOUND = mc.objectives.CollapsedELBO()
CASES = mostly_slow(
    [(name, kind, whiten) for name in MULTIOUTPUT for kind in INDUCING for whiten in (True, False)],
    ("SeparateIndependent", "Shared", False),
    ("LinearCoregionalisation", "Shared", True),
    ("IntrinsicCoregionalisation", "Points", False),
    ("ConvolutionProcess", "Points", True),
)


def model(name, kind, whiten=True, variance=(0.1, 0.3, 0.2)):
    posterior = mc.Sparse(mc.GP(MULTIOUTPUT[name]), INDUCING[kind], whiten=whiten)
    return mc.Model(posterior, mc.likelihoods.Gaussian(list(variance)))


@eqx.filter_jit
def bound_and_best(model):
    return BOUND.bound(model, X, MISSING), mc.Model(BOUND.posterior(model, X, MISSING), model.likelihood)


@eqx.filter_jit
def elbo(model):
    return mc.elbo(model, X, MISSING)


@pytest.mark.parametrize(("name", "kind", "whiten"), CASES)
def test_bound_is_the_elbo_of_the_best_posterior(name, kind, whiten):
    start = model(name, kind, whiten)
    bound, best = bound_and_best(start)
    value = elbo(best)
    np.testing.assert_allclose(bound, value, rtol=1e-6)
    if whiten:
        moved = [
            eqx.tree_at(lambda m: m.posterior.q_mu, best, best.posterior.q_mu + 0.05),
            eqx.tree_at(lambda m: m.posterior.q_sqrt, best, 1.1 * best.posterior.q_sqrt),
        ]
        assert all(elbo(other) < value for other in moved)


@pytest.mark.parametrize("name", mostly_slow(MULTIOUTPUT, "SeparateIndependent", "IntrinsicCoregionalisation"))
def test_points_at_the_data_give_the_evidence(name):
    """With Z = X and variables of all outputs nothing is lost."""
    prior, noise = mc.GP(MULTIOUTPUT[name]), np.array([0.1, 0.3, 0.2])
    exact = mc.Conditioned(prior, X, Y, noise)
    sparse = mc.Model(mc.Sparse(prior, mc.inducing.Points(X)), mc.likelihoods.Gaussian(noise))
    evidence = exact.log_marginal_likelihood()
    np.testing.assert_allclose(BOUND.bound(sparse, X, Y), evidence, atol=1e-5)
    np.testing.assert_allclose(BOUND.upper_bound(sparse, X, Y), evidence, atol=1e-5)
    best = BOUND.posterior(sparse, X, Y)
    np.testing.assert_allclose(best.predict(Z).mean, exact.predict(Z).mean, atol=1e-5)
    np.testing.assert_allclose(best.predict(Z, "outputs").cov, exact.predict(Z, "outputs").cov, atol=1e-5)


def test_training_ends_with_the_best_posterior():
    fitted = mc.fit(model("LinearCoregionalisation", "Shared"), BOUND, (X, MISSING), steps=3, every=3)
    np.testing.assert_allclose(mc.elbo(fitted.model, X, MISSING), BOUND.bound(fitted.model, X, MISSING), rtol=1e-6)


@pytest.mark.parametrize(
    "likelihood",
    [
        mc.likelihoods.CorrelatedGaussian(np.diag([0.1, 0.3, 0.2])),
        mc.likelihoods.PerOutput([mc.likelihoods.Gaussian(v) for v in (0.1, 0.3, 0.2)]),
    ],
    ids=["CorrelatedGaussian", "PerOutput"],
)
@pytest.mark.parametrize(
    "name", mostly_slow(["LinearCoregionalisation", "ConvolutionProcess"], "LinearCoregionalisation")
)
def test_likelihoods_of_several_outputs_agree(name, likelihood):
    """Correlated noise without correlations, or a likelihood for each output, is noise of each output; also with gaps."""
    apart = bound_and_best(model(name, "Shared"))[1]
    best = apart.posterior
    other = mc.Model(best, likelihood)
    np.testing.assert_allclose(elbo(other), elbo(apart), rtol=1e-9)
    density = apart.log_density(Z, jnp.asarray(Y[:4]))
    if isinstance(likelihood, mc.likelihoods.PerOutput):
        np.testing.assert_allclose(other.log_density(Z, Y[:4]), density, rtol=1e-9)
    else:  # which knows that the outputs covary
        latent, found = best.predict(Z, "outputs"), other.log_density(Z, Y[:4])
        for n in range(4):
            cov = np.asarray(latent.cov[n]) + np.diag([0.1, 0.3, 0.2])
            r = Y[n] - np.asarray(latent.mean[n])
            expected = -0.5 * (r @ np.linalg.solve(cov, r) + np.linalg.slogdet(cov)[1] + 3 * np.log(2 * np.pi))
            np.testing.assert_allclose(found[n], expected, rtol=1e-9)


def test_elbo_trains_with_gaps_and_minibatches():
    data = np.tile(X, (4, 1)) + 0.1, np.tile(MISSING, (4, 1))
    fitted = mc.fit(
        model("LinearCoregionalisation", "Shared"), mc.objectives.ELBO(), data, steps=30, batch_size=7, every=30
    )
    assert np.mean(fitted.history[-5:]) < np.mean(fitted.history[:5])
