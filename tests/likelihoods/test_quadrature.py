"""Expectations against dense quadrature: marginals from narrow to wide, observations from typical to surprising.

The truth is composite Gauss-Legendre quadrature in NumPy, with thousands of nodes that are dense around the mean, at
the scale of the marginal, and around the places where the likelihood bends, at all scales. Its integrand is the
likelihood's own log density, which another test compares with SciPy's.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, log_ndtr, ndtr

from cases import mostly_slow
from mercer import likelihoods as ml
from mercer.likelihoods import expectations
from mercer.parameters import param, real


class Geometric(ml.ScalarLikelihood):
    """p(y | f) = p (1 - p)^y, p = 1 / (1 + exp(-f)): of a user, who says nothing of where it bends."""

    discrete = True

    def _log_prob(self, f, y, X):
        return jax.nn.log_sigmoid(f) + y * jax.nn.log_sigmoid(-f)

    def _predict(self, mean, var, X, key):
        raise NotImplementedError


# Likelihood, observations, and where it bends for each of them.
CASES = {
    "gaussian": (ml.Gaussian(0.3), [-3.0, 0.7, 12.0], lambda y: [y]),
    "laplace": (ml.Laplace(0.6), [-3.0, 0.7, 12.0], lambda y: [y]),
    "student": (ml.StudentT(4.0, 0.5), [-3.0, 0.7, 12.0], lambda y: [y]),
    "student_sharp": (ml.StudentT(3.0, 0.05), [-3.0, 0.7, 12.0], lambda y: [y]),
    "student_light": (ml.StudentT(30.0, 0.1), [-3.0, 0.7, 12.0], lambda y: [y]),
    "probit": (ml.Bernoulli(), [0.0, 1.0], lambda y: [0.0]),
    "logit": (ml.Bernoulli("logit"), [0.0, 1.0], lambda y: [0.0]),
    "binomial": (ml.Binomial(5), [0.0, 2.0, 5.0], lambda y: [0.0]),
    "binomial_logit": (ml.Binomial(3, "logit"), [0.0, 1.0], lambda y: [0.0]),
    "poisson": (ml.Poisson(0.5), [0.0, 3.0, 1000.0], lambda y: [np.log(max(y, 1.0) / 0.5)]),
    "negative_binomial": (ml.NegativeBinomial(0.5), [0.0, 3.0, 1000.0], lambda y: [np.log(2.0), np.log(max(y, 1.0))]),
    "gamma": (ml.Gamma(1.5), [0.001, 1.0, 200.0], lambda y: [np.log(y)]),
    "exponential": (ml.Exponential(), [0.001, 1.0, 200.0], lambda y: [np.log(y)]),
    "beta": (ml.Beta(4.0), [0.001, 0.3, 0.9999], lambda y: [-4.75, 0.0, 4.75]),
    "ordinal": (ml.Ordinal(jnp.array([-0.5, 0.2, 1.0]), 0.7), [0.0, 1.0, 3.0], lambda y: [-0.5, 0.2, 1.0]),
    "ordinal_sharp": (ml.Ordinal(jnp.array([-5.0, 0.2, 4.0]), 0.05), [0.0, 1.0, 3.0], lambda y: [-5.0, 0.2, 4.0]),
    "geometric": (Geometric(), [0.0, 3.0, 30.0], lambda y: [0.0]),
}
MEANS = [-5.0, 0.3, 2.0]
DEVIATIONS = [1e-6, 1e-3, 0.1, 0.5, 1.0, 3.0, 10.0]
POINTS, WEIGHTS = np.polynomial.legendre.leggauss(16)


def composite(breaks):
    """Nodes and weights of Gauss-Legendre quadrature between sorted breaks."""
    breaks = np.sort(breaks)
    middle, half = 0.5 * (breaks[1:] + breaks[:-1]), 0.5 * np.diff(breaks)
    return np.ravel(middle[:, None] + half[:, None] * POINTS), np.ravel(half[:, None] * WEIGHTS)


def around(centre, distances):
    return np.concatenate([[centre], centre + distances, centre - distances])


def truth(log_prob, mean, sd, y, places):
    """E[log p(y | f)] and log E[p(y | f)], f ~ N(mean, sd^2)."""
    breaks = [around(mean, sd * np.linspace(0.2, 9.0, 30)), around(mean, sd * np.geomspace(1.0, 1e4, 250))]
    breaks += [around(place, np.geomspace(1e-4, 1e4, 70)) for place in places]
    f, weights = composite(np.concatenate(breaks))
    log_p = np.asarray(log_prob(jnp.asarray(f)[:, None], y))[:, 0]
    with np.errstate(divide="ignore"):
        log_q = np.log(weights) - 0.5 * ((f - mean) / sd) ** 2 - 0.5 * np.log(2.0 * np.pi * sd**2)
    bulk = log_q > -500.0
    log_joint = np.where(np.isnan(log_p), -np.inf, log_p) + log_q
    return np.exp(log_q[bulk]) @ log_p[bulk], np.logaddexp.reduce(log_joint)


@eqx.filter_jit
def both(likelihood, mean, var, y):
    return jnp.stack([likelihood.expected_log_prob(mean, var, y), likelihood.log_predictive(mean, var, y)])


@pytest.mark.parametrize(
    "name", mostly_slow(CASES, "gaussian", "student_sharp", "probit", "poisson", "ordinal_sharp", "geometric")
)
def test_expectations_are_those_of_dense_quadrature(name):
    """To 1e-6 nats in float64, 1e-3 in float32 (1e-9 and 5e-6 of large values); all deviations together, or apart."""
    likelihood, observations, bends = CASES[name]
    rows = np.array(list(itertools.product(MEANS, observations)))
    mean, y = rows[:, :1], rows[:, 1:]
    log_prob = jax.jit(lambda f, y: likelihood._log_prob(f, y, None))
    expected = np.array([[truth(log_prob, m, sd, y, bends(y)) for m, y in rows] for sd in DEVIATIONS])
    times = (len(DEVIATIONS), 1)  # also apart, so that one function is compiled for both
    mean, y = np.tile(mean, times), np.tile(y, times)
    for dtype, atol, rtol in ((jnp.float64, 1e-6, 1e-9), (jnp.float32, 1e-3, 5e-6)):
        narrow_mean = mean.astype(dtype)
        apart = [both(likelihood, narrow_mean, np.full(mean.shape, sd**2, dtype), y) for sd in DEVIATIONS]
        np.testing.assert_allclose(np.swapaxes(apart, 1, 2)[:, : len(rows)], expected, atol=atol, rtol=rtol)
        var = np.repeat(np.square(DEVIATIONS), len(rows))[:, None].astype(dtype)
        together = both(likelihood, narrow_mean, var, y)
        np.testing.assert_allclose(together.T, expected.reshape(-1, 2), atol=atol, rtol=rtol)


DIFFERENTIATED = ["student", "probit", "logit", "poisson", "ordinal", "geometric"]


@pytest.mark.parametrize("name", mostly_slow(DIFFERENTIATED, "student", "ordinal", "geometric"))
def test_derivatives_are_those_of_finite_differences(name):
    """By the mean and by the deviation, for wide marginals."""
    likelihood, observations, _ = CASES[name]
    cases = itertools.product(MEANS, [0.1, 1.0, 8.0], observations)
    mean, sd, y = (jnp.array(a)[:, None] for a in zip(*cases, strict=True))

    def total(mean, sd):
        return jnp.stack([jnp.sum(value) for value in both(likelihood, mean, sd**2, y)])

    got = jax.jit(jax.jacrev(total, (0, 1)))(mean, sd)
    h = 1e-4
    for by, (dm, ds) in zip(got, ((h, 0.0), (0.0, h)), strict=True):
        above, below = (both(likelihood, mean + sign * dm, (sd + sign * ds) ** 2, y) for sign in (1.0, -1.0))
        np.testing.assert_allclose(by[..., 0], (above - below) / (2.0 * h), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("likelihood", "given"),
    [
        (ml.Binomial(5), lambda f: (5.0 * ndtr(f), 5.0 * ndtr(f) * ndtr(-f))),
        pytest.param(
            ml.Binomial(3, "logit"), lambda f: (3.0 * expit(f), 3.0 * expit(f) * expit(-f)), marks=pytest.mark.slow
        ),
        pytest.param(ml.Bernoulli("logit"), lambda f: (expit(f), expit(f) * expit(-f)), marks=pytest.mark.slow),
        (ml.Beta(4.0), lambda f: (fraction(f), fraction(f) * fraction(-f) / 5.0)),
    ],
)
def test_moments_are_those_of_dense_quadrature(likelihood, given):
    mean, sd = np.array(list(itertools.product(MEANS, DEVIATIONS))).T[:, :, None]
    z = np.linspace(-9.0, 9.0, 20_001)
    weights = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    y_mean, y_var = given(mean + sd * z)
    average = (y_mean @ weights)[:, None]
    variance = ((y_var + (y_mean - average) ** 2) @ weights)[:, None]
    for dtype, rtol in ((jnp.float64, 1e-6), (jnp.float32, 1e-3)):
        got = eqx.filter_jit(likelihood.predict)(mean.astype(dtype), np.square(sd).astype(dtype))
        np.testing.assert_allclose(got[0], average, rtol=rtol)
        np.testing.assert_allclose(got[1], variance, rtol=rtol)


def fraction(f):
    return 1e-6 + (1.0 - 2e-6) * ndtr(f)


def test_heteroskedastic_predictive_is_that_of_dense_quadrature():
    cases = itertools.product([-5.0, 0.0, 3.0], [1e-3, 1.0, 10.0], [1e-6, 1.0, 10.0], [0.0, 0.5, 30.0])
    m_g, s_g, s_f, y = (np.array(a)[:, None] for a in zip(*cases, strict=True))
    expected = []
    for m, s, v, d in zip(m_g[:, 0], s_g[:, 0], s_f[:, 0] ** 2, y[:, 0], strict=True):

        def log_prob(g, y, v=v):
            return -0.5 * (np.log(2.0 * np.pi * (v + np.exp(g))) + y**2 / (v + np.exp(g)))

        with np.errstate(all="ignore"):
            expected.append(truth(log_prob, m, s, d, [np.log(v), np.log(v + d**2)])[1])
    mean, var = np.concatenate([0.0 * y, m_g], axis=1), np.concatenate([s_f, s_g], axis=1) ** 2
    got = eqx.filter_jit(ml.HeteroskedasticGaussian().log_predictive)
    np.testing.assert_allclose(got(mean, var, y), expected, atol=1e-6, rtol=1e-9)
    narrow = got(mean.astype(np.float32), var.astype(np.float32), y)
    np.testing.assert_allclose(narrow, expected, atol=1e-3, rtol=5e-6)


@pytest.mark.parametrize("classes", mostly_slow([2, 3, 10], 3))
def test_robust_max_is_dense_quadrature(classes):
    """Also where the marginals of the classes have very different widths, and where their means are the same."""
    rng, epsilon, num = np.random.default_rng(0), 1e-3, 40
    mean = rng.standard_normal((num, classes)) * rng.choice([0.0, 1.0, 5.0], (num, 1))
    similar = rng.choice(DEVIATIONS, (num // 2, 1)) * rng.uniform(0.8, 1.2, (num // 2, classes))
    sd = np.concatenate([similar, rng.choice(DEVIATIONS, (num // 2, classes))])
    largest = np.array([[probability_largest(m, s, k) for k in range(classes)] for m, s in zip(mean, sd, strict=True)])
    p = (1.0 - epsilon) * largest + epsilon * (1.0 - largest) / (classes - 1)
    y = rng.integers(0, classes, (num, 1))
    of_label = np.take_along_axis(largest, y, axis=1)[:, 0]
    expected = of_label * np.log1p(-epsilon) + (1.0 - of_label) * np.log(epsilon / (classes - 1))
    likelihood = ml.RobustMax(classes, epsilon)
    for part in (slice(0, num // 2), slice(num // 2, num)):
        for dtype, tolerance in ((jnp.float64, 1e-6), (jnp.float32, 1e-3)):
            m, v, labels = mean[part].astype(dtype), np.square(sd[part]).astype(dtype), y[part]
            got = both(likelihood, m, v, labels)
            np.testing.assert_allclose(got[0], expected[part], atol=tolerance)
            np.testing.assert_allclose(got[1], np.log(np.take_along_axis(p, y, axis=1)[part, 0]), atol=tolerance)
            np.testing.assert_allclose(eqx.filter_jit(likelihood.predict)(m, v)[0], p[part], rtol=2.0 * tolerance)


def probability_largest(mean, sd, label):
    low, high = mean[label] - 9.0 * sd[label], mean[label] + 9.0 * sd[label]
    breaks = (mean[:, None] + sd[:, None] * np.linspace(-9.0, 9.0, 60)).ravel()
    f, weights = composite(np.clip(breaks, low, high))
    others = np.arange(len(mean)) != label
    log_cdf = log_ndtr((f[:, None] - mean[others]) / sd[others]).sum(axis=1)
    log_q = -0.5 * ((f - mean[label]) / sd[label]) ** 2 - 0.5 * np.log(2.0 * np.pi * sd[label] ** 2)
    return weights @ np.exp(log_cdf + log_q)


def test_a_variance_below_0_by_rounding_is_0():
    mean, y = jnp.full((2, 1), 0.3), jnp.array([[0.0], [1.0]])
    for var in (0.0, -1e-17):
        got = both(ml.Bernoulli("logit"), mean, jnp.full((2, 1), var), y)
        np.testing.assert_allclose(got, jnp.broadcast_to(ml.Bernoulli("logit").log_prob(mean, y), (2, 2)), rtol=1e-12)


def test_places_may_be_anywhere():
    """One that is far away, one exactly at the mean, several in one place."""
    mean, var = jnp.array([0.0, 1.0, -2.0]), jnp.array([1.0, 9.0, 100.0])
    for places in ([(50.0, 0.1)], [(mean, 0.05)], [(1.0, 0.1), (1.0, 0.1)], [(-3.0, 1.0), (3.0, 1.0)]):
        got = expectations.expectation(lambda f: f**2, mean, var, 20, places)
        np.testing.assert_allclose(got, mean**2 + var, rtol=1e-6)


class Network(ml.ScalarLikelihood):
    """y ~ N(f, s(x)^2), where log s is a small network of x: more numbers than are differentiated one by one."""

    weights: jax.Array = param(real)

    def _log_prob(self, f, y, X):
        log_s = jnp.sum(jnp.tanh(X @ self.weights), axis=1, keepdims=True)
        return -0.5 * ((y - f) * jnp.exp(-log_s)) ** 2 - log_s

    def _predict(self, mean, var, X, key):
        raise NotImplementedError


@pytest.mark.slow
def test_a_likelihood_with_many_numbers_has_its_derivative():
    """In closed form: E (y - f)^2 = (y - mean)^2 + var. Few nodes, more nodes, and the log of an expectation."""
    rng = np.random.default_rng(0)
    weights, X = jnp.asarray(0.3 * rng.standard_normal((3, 20))), jnp.asarray(rng.standard_normal((7, 3)))
    mean, y = (jnp.asarray(rng.standard_normal((7, 1))) for _ in range(2))

    def scale(weights):
        return jnp.exp(jnp.sum(jnp.tanh(X @ weights), axis=1, keepdims=True))

    def closed(weights, mean, var):
        s = scale(weights)
        expected = jnp.sum(-0.5 * ((y - mean) ** 2 + var) / s**2 - jnp.log(s))
        total = s**2 + var
        return expected, jnp.sum(-0.5 * (y - mean) ** 2 / total - 0.5 * jnp.log(total))

    def by_quadrature(weights, mean, var):
        likelihood = Network(weights)
        return tuple(
            jnp.sum(rule(mean, var, y, X)) for rule in (likelihood.expected_log_prob, likelihood.log_predictive)
        )

    for sd in (0.1, 2.0):
        var = jnp.full_like(mean, sd**2)
        got, expected = (jax.jit(jax.jacrev(fn, (0, 1, 2)))(weights, mean, var) for fn in (by_quadrature, closed))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), got, expected)


@pytest.mark.parametrize(
    "sd", [0.6, pytest.param(0.05, marks=pytest.mark.slow), pytest.param(5.0, marks=pytest.mark.slow)]
)
def test_second_derivatives(sd):
    """Of E[log p] by the mean, which is twice its derivative by the variance; forward and reverse."""
    likelihood, y = ml.StudentT(4.0, 0.5), jnp.array([[0.3], [-2.0]])
    mean = jnp.array([[0.1], [0.4]])
    var = jnp.full_like(mean, sd**2)

    def total(mean, var):
        return jnp.sum(likelihood.expected_log_prob(mean, var, y))

    by_var = 2.0 * jax.jit(jax.grad(total, 1))(mean, var)[:, 0]
    for second in (jax.jacfwd, jax.jacrev):
        hessian = jax.jit(second(jax.grad(total)))(mean, var)[:, 0, :, 0]
        np.testing.assert_allclose(hessian, jnp.diag(by_var), rtol=1e-4, atol=1e-8)
