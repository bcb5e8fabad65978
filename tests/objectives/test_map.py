"""Maximum a posteriori objectives, and the densities of priors on parameters."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

import mercer as mc
from mercer.objectives import ELBO, MAP, Batch, CollapsedELBO
from mercer.priors import Beta, Gamma, HalfNormal, InverseGamma, LogNormal, Normal

N, M = 8, 3
_rng = np.random.default_rng(0)
X, Y, Z = _rng.uniform(-1.0, 1.0, size=(N, 2)), _rng.normal(size=(N, 1)), _rng.uniform(-1.0, 1.0, size=(M, 2))
MODEL = mc.Model(
    mc.Sparse(mc.GP(mc.kernels.RBF([0.5, 0.7], 1.3)), mc.inducing.Points(Z), q_mu=_rng.normal(size=(M, 1))),
    mc.likelihoods.Gaussian(0.2),
)

PRIORS = {  # the prior, its support, and the same by SciPy
    "Normal": (Normal(0.5, 2.0), (-np.inf, np.inf), scipy.stats.norm(0.5, 2.0)),
    "LogNormal": (LogNormal(0.3, 0.8), (0.0, np.inf), scipy.stats.lognorm(0.8, scale=np.exp(0.3))),
    "HalfNormal": (HalfNormal(1.7), (0.0, np.inf), scipy.stats.halfnorm(scale=1.7)),
    "Gamma": (Gamma(2.5, 1.5), (0.0, np.inf), scipy.stats.gamma(2.5, scale=1 / 1.5)),
    "InverseGamma": (InverseGamma(3.0, 2.0), (0.0, np.inf), scipy.stats.invgamma(3.0, scale=2.0)),
    "Beta": (Beta(2.0, 3.5), (0.0, 1.0), scipy.stats.beta(2.0, 3.5)),
}


@pytest.mark.parametrize("name", PRIORS)
def test_priors_are_densities(name):
    prior, support, reference = PRIORS[name]
    density = jax.jit(lambda x: jnp.exp(prior.log_prob(x)))
    total, _ = scipy.integrate.quad(lambda x: float(density(x)), *support, limit=200)
    np.testing.assert_allclose(total, 1.0, rtol=1e-6)
    x = reference.ppf(np.linspace(0.01, 0.99, 7))
    np.testing.assert_allclose(prior.log_prob(jnp.asarray(x)), reference.logpdf(x), rtol=1e-9)


def lengthscale(model):
    return model.posterior.prior.kernel.lengthscale


def noise(model):
    return model.likelihood.variance


def test_log_priors_are_subtracted_per_datum():
    """Over all entries of a parameter, the same in every minibatch."""
    batch = Batch(jnp.asarray(X), jnp.asarray(Y))
    objective = MAP(ELBO(), [(lengthscale, LogNormal(0.3, 0.8)), (noise, Gamma(2.5, 1.5))])
    log_prior = PRIORS["LogNormal"][2].logpdf([0.5, 0.7]).sum() + PRIORS["Gamma"][2].logpdf(0.2)
    values = eqx.filter_jit(lambda part: tuple(o(MODEL, part) for o in (objective, MAP(ELBO(), []), ELBO())))
    for part in (batch, batch.rows(jnp.arange(4))):
        with_priors, with_none, plain = values(part)
        np.testing.assert_allclose(with_priors - plain, -log_prior / N, rtol=1e-10)
        assert with_none == plain


def test_the_rest_is_that_of_the_objective():
    batch = Batch(jnp.asarray(X), jnp.asarray(Y))
    collapsed = MAP(CollapsedELBO(), [(noise, Gamma(2.5, 1.5))])
    assert (collapsed.minibatched, MAP(ELBO(), []).minibatched) == (False, True)
    found, expected = collapsed.finish(MODEL, batch), CollapsedELBO().finish(MODEL, batch)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    assert MAP(ELBO(), []).finish(MODEL, batch) is MODEL
    with pytest.raises(ValueError, match="CollapsedELBO expects"):
        collapsed(mc.Model(MODEL.posterior.prior, MODEL.likelihood), (X, Y))
