"""Risks: against quadrature of their definitions, in their limits, and for the likelihoods that they are for."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

import mercer as mc
from mercer import likelihoods
from mercer.objectives.risks import (
    BetaDivergence,
    CrossEntropy,
    ExpectedNegativeLogLikelihood,
    GammaDivergence,
    NegativeLogPredictive,
    SquaredError,
)

_rng = np.random.default_rng(0)
B, P = 4, 2
MEAN, VAR, Y = _rng.normal(size=(B, P)), _rng.uniform(0.1, 1.0, size=(B, P)), 2.0 * _rng.normal(size=(B, P))
X = _rng.normal(size=(B, 1))
LATENT = mc.Gaussian(jnp.asarray(MEAN), jnp.asarray(VAR))
NOISE = np.array([0.3, 0.8])
GAUSSIAN = likelihoods.Gaussian(NOISE)


@eqx.filter_jit
def evaluate(risk, likelihood, latent, Y, X=None):
    return risk(likelihood, latent, Y, X)


def noise_of(X):
    return 0.2 + X**2 * jnp.asarray([1.0, 2.0])


def expected_loss(loss, noise):
    """Of each row: the sum over outputs of E_q loss(y, f, noise), by quadrature over f."""

    def over_f(m, v, y, s2):
        q = scipy.stats.norm(m, v**0.5)
        return scipy.integrate.quad(
            lambda f: q.pdf(f) * loss(y, f, s2), m - 12 * v**0.5, m + 12 * v**0.5, epsabs=1e-11
        )[0]

    return np.vectorize(over_f)(MEAN, VAR, Y, np.broadcast_to(noise, (B, P))).sum(1)


def density(y, f, s2):
    return np.exp(-0.5 * (y - f) ** 2 / s2) / np.sqrt(2.0 * np.pi * s2)


def integral_of_power(c, s2):
    return scipy.integrate.quad(lambda y: density(y, 0.0, s2) ** c, -30.0, 30.0, points=[0.0], epsabs=1e-12)[0]


def beta_loss(beta):
    def loss(y, f, s2):
        return -(density(y, f, s2) ** (beta - 1.0)) / (beta - 1.0) + integral_of_power(beta, s2) / beta

    return loss


def gamma_loss(gamma):
    def loss(y, f, s2):
        normaliser = integral_of_power(gamma, s2) ** ((gamma - 1.0) / gamma)
        return -gamma / (gamma - 1.0) * density(y, f, s2) ** (gamma - 1.0) / normaliser

    return loss


LOSSES = {
    "expected": (ExpectedNegativeLogLikelihood(), lambda y, f, s2: -np.log(density(y, f, s2))),
    "squared": (SquaredError(), lambda y, f, s2: (y - f) ** 2),
    "beta": (BetaDivergence(1.4), beta_loss(1.4)),
    "gamma": (GammaDivergence(1.7), gamma_loss(1.7)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_expected_losses(name):
    risk, loss = LOSSES[name]
    np.testing.assert_allclose(evaluate(risk, GAUSSIAN, LATENT, Y), expected_loss(loss, NOISE), rtol=1e-7)


@pytest.mark.parametrize("name", ["beta", "gamma"])
def test_noise_that_is_a_number_or_a_function(name):
    risk, loss = LOSSES[name]
    np.testing.assert_allclose(
        evaluate(risk, likelihoods.Gaussian(0.5), LATENT, Y), expected_loss(loss, 0.5), rtol=1e-7
    )
    found = evaluate(risk, likelihoods.Gaussian(noise_of), LATENT, Y, X)
    np.testing.assert_allclose(found, expected_loss(loss, np.asarray(noise_of(X))), rtol=1e-7)


def test_the_predictive_risk():
    terms = scipy.stats.norm(MEAN, np.sqrt(VAR + NOISE)).logpdf(Y)
    np.testing.assert_allclose(evaluate(NegativeLogPredictive(), GAUSSIAN, LATENT, Y), -terms.sum(1), rtol=1e-12)


@pytest.mark.parametrize("risk, constant", [(BetaDivergence, -1.0), (GammaDivergence, 1.0)])
def test_robust_risks_tend_to_the_log_likelihood(risk, constant):
    """Where f is known, risk + 1 / (power - 1) + constant tends to -log p, for each output."""
    known = mc.Gaussian(LATENT.mean, jnp.zeros_like(LATENT.cov))
    exact = -scipy.stats.norm(MEAN, NOISE**0.5).logpdf(Y)
    for rest in (1e-3, 1e-5):
        found = evaluate(risk(1.0 + rest), GAUSSIAN, known, Y) + P * (1.0 / rest + constant)
        np.testing.assert_allclose(found, exact.sum(1), rtol=0.0, atol=rest * (10.0 + 2.0 * np.max(exact**2)))


@pytest.mark.parametrize("risk", [BetaDivergence(1.5), GammaDivergence(1.5)])
def test_robust_risks_are_bounded_in_y(risk):
    """An outlier costs as much as any other, and pulls at nothing."""

    def cost(mean, y):
        return evaluate(risk, likelihoods.Gaussian(0.5), mc.Gaussian(mean, jnp.ones((1, 1))), y)[0]

    values = [cost(jnp.zeros((1, 1)), np.array([[y]])) for y in (0.0, 1.0, 3.0, 1e3, 1e9)]
    assert values == sorted(values) and abs(values[-1] - values[-2]) < 1e-12
    slope = jax.grad(cost)(jnp.zeros((1, 1)), np.array([[1e3]]))
    assert slope == 0.0 and jax.grad(cost)(jnp.zeros((1, 1)), np.array([[0.5]])) < -1e-2


C = 3
CLASS_MEAN, CLASS_VAR = _rng.normal(size=(B, C)), _rng.uniform(0.3, 1.0, size=(B, C))
CLASSES, LABELS = mc.Gaussian(jnp.asarray(CLASS_MEAN), jnp.asarray(CLASS_VAR)), np.array([[0.0], [1.0], [2.0], [1.0]])


@pytest.mark.parametrize("likelihood", [likelihoods.RobustMax(C), likelihoods.Softmax(C)], ids=["RobustMax", "Softmax"])
def test_cross_entropy_of_classes(likelihood):
    p, _ = eqx.filter_jit(likelihood.predict)(CLASS_MEAN, CLASS_VAR)
    total = np.sum(p, axis=1)
    expected = -np.log(np.take_along_axis(np.asarray(p), LABELS.astype(int), 1)[:, 0] / total)
    found = evaluate(CrossEntropy(), likelihood, CLASSES, LABELS)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    predictive = evaluate(NegativeLogPredictive(), likelihood, CLASSES, LABELS)
    np.testing.assert_allclose(found, predictive + np.log(total), rtol=1e-10)


@pytest.mark.parametrize("link", ["probit", "logit"])
def test_cross_entropy_of_successes(link):
    likelihood, labels = likelihoods.Bernoulli(link), (Y > 0.0).astype(float)
    p = np.asarray(eqx.filter_jit(likelihood.predict)(MEAN, VAR)[0])
    expected = -np.log(np.where(labels == 1.0, p, 1.0 - p)).sum(1)
    np.testing.assert_allclose(evaluate(CrossEntropy(), likelihood, LATENT, labels), expected, rtol=1e-10)
    # As far into the tail as there are numbers
    far = mc.Gaussian(jnp.full((1, 1), 60.0), jnp.full((1, 1), 0.5))
    assert np.isfinite(evaluate(CrossEntropy(), likelihood, far, np.zeros((1, 1)))).all()


def test_cross_entropy_of_ordered_classes():
    likelihood, labels = likelihoods.Ordinal([-0.5, 0.5]), np.array([[0.0], [1.0], [2.0], [1.0]])
    latent = mc.Gaussian(jnp.asarray(MEAN[:, :1]), jnp.asarray(VAR[:, :1]))
    found = evaluate(CrossEntropy(), likelihood, latent, labels)
    np.testing.assert_allclose(found, evaluate(NegativeLogPredictive(), likelihood, latent, labels), rtol=1e-10)


ALL = {
    "expected": (ExpectedNegativeLogLikelihood(), GAUSSIAN, LATENT, Y),
    "predictive": (NegativeLogPredictive(), GAUSSIAN, LATENT, Y),
    "squared": (SquaredError(), GAUSSIAN, LATENT, Y),
    "beta": (BetaDivergence(1.4), GAUSSIAN, LATENT, Y),
    "gamma": (GammaDivergence(1.7), GAUSSIAN, LATENT, Y),
    "classes": (CrossEntropy(), likelihoods.RobustMax(C), CLASSES, LABELS),
    "successes": (CrossEntropy(), likelihoods.Bernoulli(), LATENT, (Y > 0.0).astype(float)),
}


@pytest.mark.parametrize("name", ALL)
def test_missing_outputs_drop_out(name):
    """Of the value, and of the derivative."""
    risk, likelihood, latent, Y = ALL[name]
    missing = Y.copy()
    missing[1, 0] = missing[2] = np.nan

    def total(mean, Y):
        terms = evaluate(risk, likelihood, mc.Gaussian(mean, latent.cov), Y)
        return jnp.sum(terms), terms

    (_, terms), slope = jax.value_and_grad(total, has_aux=True)(latent.mean, missing)
    _, whole = total(latent.mean, Y)
    np.testing.assert_allclose(terms[jnp.array([0, 3])], whole[jnp.array([0, 3])], rtol=1e-12)
    assert terms[2] == 0.0 and np.isfinite(slope).all() and np.all(slope[2] == 0.0)
    if Y.shape[1] > 1:
        alone = mc.Gaussian(latent.mean[1:2, 1:], latent.cov[1:2, 1:])
        part = likelihoods.Gaussian(NOISE[1]) if likelihood is GAUSSIAN else likelihood
        np.testing.assert_allclose(terms[1], evaluate(risk, part, alone, Y[1:2, 1:])[0], rtol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_single_precision(name):
    risk, likelihood, latent, Y = ALL[name]
    single = mc.parameters.cast(latent, jnp.float32)
    found = evaluate(risk, likelihood, single, Y.astype(np.float32))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, evaluate(risk, likelihood, latent, Y), rtol=1e-4, atol=1e-5)


def test_correlated_latents():
    """A likelihood over all outputs of a row takes their covariance; the squared error its diagonal."""
    likelihood = likelihoods.CorrelatedGaussian([[0.5, 0.2], [0.2, 0.4]])
    cov = np.eye(P) * VAR[:, :, None] + 0.05
    latent = mc.Gaussian(jnp.asarray(MEAN), jnp.asarray(cov), "outputs")
    total = cov + np.asarray(likelihood.noise_covariance)
    expected = [-scipy.stats.multivariate_normal(m, S).logpdf(y) for m, S, y in zip(MEAN, total, Y, strict=True)]
    np.testing.assert_allclose(evaluate(NegativeLogPredictive(), likelihood, latent, Y), expected, rtol=1e-10)
    expected = ((Y - MEAN) ** 2 + VAR + 0.05).sum(1)
    np.testing.assert_allclose(evaluate(SquaredError(), likelihood, latent, Y), expected, rtol=1e-12)


def test_likelihoods_that_a_risk_is_not_for():
    poisson = likelihoods.Poisson()
    wrong = [
        (
            CrossEntropy(),
            GAUSSIAN,
            "CrossEntropy expects a Bernoulli, Ordinal, RobustMax or Softmax likelihood, got Gaussian",
        ),
        (CrossEntropy(), poisson, "CrossEntropy expects"),
        (SquaredError(), poisson, "SquaredError expects a likelihood of real numbers .* got Poisson"),
        (SquaredError(), likelihoods.PerOutput([GAUSSIAN, poisson]), "SquaredError expects .* got PerOutput"),
        (SquaredError(), likelihoods.HeteroskedasticGaussian(), "one latent for each output"),
        (BetaDivergence(1.5), likelihoods.StudentT(), "BetaDivergence expects a Gaussian likelihood, got StudentT"),
        (GammaDivergence(1.5), poisson, "GammaDivergence expects a Gaussian likelihood"),
    ]
    for risk, likelihood, message in wrong:
        with pytest.raises(ValueError, match=message):
            risk.check(likelihood)
    for risk in (SquaredError(), BetaDivergence(1.5), NegativeLogPredictive()):
        with pytest.raises(ValueError, match="expects"):
            risk(GAUSSIAN, LATENT, Y[:, :1])


@pytest.mark.parametrize("power", [1.0, 0.5, np.inf, np.nan, [1.5, 2.0]])
def test_powers_that_are_none(power):
    with pytest.raises(ValueError, match="beta expects a finite number greater than 1"):
        BetaDivergence(power)
    with pytest.raises(ValueError, match="gamma expects a finite number greater than 1"):
        GammaDivergence(power)
