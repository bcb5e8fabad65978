"""A q(u) in which the variables of all latent functions covary."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from cases import mostly_slow
from mercer.inducing import Points, Separate, Shared
from mercer.kernels import RBF, LinearCoregionalisation, Matern32, OutputIndexed, SeparateIndependent

RNG = np.random.default_rng(0)
X, Z, NEW = np.linspace(0, 3, 9)[:, None], np.linspace(0, 3, 4)[:, None], np.linspace(-0.5, 3.5, 5)[:, None]
PARTS = [RBF(0.7), Matern32(1.1, 0.8)]
KERNEL = LinearCoregionalisation(PARTS, RNG.normal(size=(3, 2)))
Y = RNG.normal(size=(9, 3))
Y[2:7, 1] = np.nan
LAYOUTS = ["diag", "outputs", "inputs", "full"]


def roots(num):
    return jnp.asarray(np.tril(RNG.normal(size=(num, 4, 4))) + 2 * np.eye(4))


MIXED_OR_NOT = {"mixed": KERNEL, "independent": SeparateIndependent(PARTS)}


@pytest.mark.parametrize(
    ("name", "whiten"), mostly_slow(itertools.product(MIXED_OR_NOT, [True, False]), ("mixed", False))
)
def test_without_covariances_between_groups_it_is_the_usual_one(name, whiten):
    kernel = MIXED_OR_NOT[name]
    q_mu, q_sqrt = jnp.asarray(RNG.normal(size=(4, 2))), roots(2)
    prior = mc.GP(kernel, mc.means.Constant(0.3))
    apart = mc.Sparse(prior, Shared(Points(Z)), whiten=whiten, q_mu=q_mu, q_sqrt=q_sqrt)
    whole = jax.scipy.linalg.block_diag(*q_sqrt)[None]
    joint = mc.Sparse(prior, Shared(Points(Z)), None, whiten, "joint", q_mu=q_mu.T.reshape(8, 1), q_sqrt=whole)
    np.testing.assert_allclose(joint.kl(), apart.kl(), rtol=1e-10)
    other = mc.GP(kernel, mc.means.Constant(-0.2))
    np.testing.assert_allclose(joint.kl(other), apart.kl(other), rtol=1e-10)
    for layout in LAYOUTS:
        expected = apart.predict(NEW, layout)
        for process in (joint, joint.cached()):
            for a, b in zip(process.predict(NEW, layout), expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


def test_it_begins_at_the_prior():
    joint = mc.Sparse(mc.GP(KERNEL), Separate([Points(Z), Points(Z + 0.1)]), whiten=False, covariance="joint")
    np.testing.assert_allclose(joint.kl(), 0.0, atol=1e-6)
    np.testing.assert_allclose(joint.predict(NEW).variance, KERNEL.diag(NEW), rtol=1e-6)


def test_with_points_at_the_data_the_best_one_is_exact_where_outputs_are_missing():
    noise = np.array([0.1, 0.2, 0.05])
    exact = mc.Conditioned(mc.GP(KERNEL), X, Y, noise)
    models = {
        kind: mc.Model(mc.Sparse(mc.GP(KERNEL), Shared(Points(X)), covariance=kind), mc.likelihoods.Gaussian(noise))
        for kind in ("full", "joint")
    }
    objective = mc.objectives.CollapsedELBO()
    bounds = {kind: float(objective.bound(model, X, Y)) for kind, model in models.items()}
    np.testing.assert_allclose(bounds["joint"], exact.log_marginal_likelihood(), rtol=1e-5)
    assert bounds["full"] < bounds["joint"] - 0.1
    best = {kind: objective.posterior(model, X, Y) for kind, model in models.items()}
    for layout in ("diag", "full"):
        for a, b in zip(best["joint"].predict(NEW, layout), exact.predict(NEW, layout), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    # Mean field is too certain of the output that is missing.
    missing = slice(3, 6)
    variances = {kind: best[kind].predict(X).variance[missing, 1] for kind in best}
    assert bool(jnp.all(variances["full"] < variances["joint"]))
    # The bound of the posterior itself is the collapsed one.
    fitted = mc.Model(best["joint"], mc.likelihoods.Gaussian(noise))
    np.testing.assert_allclose(mc.elbo(fitted, X, Y), bounds["joint"], rtol=1e-6)


@pytest.mark.slow
def test_it_is_trained_saved_and_drawn_from(tmp_path):
    long = np.column_stack([np.tile(X, (3, 1)), np.repeat(np.arange(3.0), 9)])
    y = Y.T.reshape(-1, 1)
    seen = ~np.isnan(y[:, 0])
    prior = mc.GP(OutputIndexed(KERNEL))
    model = mc.Model(mc.Sparse(prior, Shared(Points(Z)), covariance="joint"), mc.likelihoods.StudentT())
    rest = mc.training.NaturalGradient(0.5)
    fit = mc.fit(model, mc.objectives.ELBO(), (long[seen], y[seen]), steps=3, optimiser=rest)
    mc.save(tmp_path / "model.mercer", fit.model)
    loaded = mc.load(tmp_path / "model.mercer")
    np.testing.assert_array_equal(loaded.posterior.predict(long).mean, fit.model.posterior.predict(long).mean)
    joint = mc.Sparse(
        mc.GP(KERNEL), Shared(Points(Z)), covariance="joint", q_mu=np.ones((8, 1)), q_sqrt=0.1 * np.eye(8)[None]
    )
    keys = jax.random.split(jax.random.key(0), 300)
    draws = jax.vmap(lambda key: joint.sample_function(200, key=key)(jnp.asarray(NEW)))(keys)
    spread = np.sqrt(joint.predict(NEW).variance / 300)
    assert np.all(np.abs(draws.mean(0) - joint.predict(NEW).mean) < 5 * spread)
    np.testing.assert_allclose(joint.latents().predict(NEW).mean.shape, (5, 2))


def test_it_needs_several_groups():
    with pytest.raises(
        ValueError, match=r'covariance="joint" is for the latent functions of several outputs; RBF has one'
    ):
        mc.Sparse(mc.GP(RBF()), Points(Z), covariance="joint")
