"""One instance of every likelihood with valid data, and for those of one latent their distribution by SciPy."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats
from scipy.special import expit, log_expit

from mercer import likelihoods as ml

NORM = stats.norm


class Case(NamedTuple):
    likelihood: ml.Likelihood
    draw: Callable  # (rng, N) -> valid y [N, P]
    given: Callable[[float], Any] | None = None  # f -> the distribution of y: logpdf(y), mean(), var()
    support: Any = None  # "real", "positive", "unit", or the labels to sum over


class Labels:
    """A distribution over 0, 1, ..., from its log probabilities."""

    def __init__(self, log_p):
        self.log_p, self.p, self.k = np.asarray(log_p), np.exp(log_p), np.arange(len(log_p))

    def logpdf(self, y):
        return self.log_p[int(y)]

    def mean(self):
        return self.p @ self.k

    def var(self):
        return self.p @ (self.k - self.mean()) ** 2


class Counts:
    """A discrete distribution of SciPy, with the name that continuous ones have for it."""

    def __init__(self, distribution):
        self.logpdf, self.mean, self.var = distribution.logpmf, distribution.mean, distribution.var


def ordinal(f, edges=(-0.5, 0.2, 1.0), sigma=0.7):
    cdf = np.concatenate([[0.0], stats.norm.cdf((np.array(edges) - f) / sigma), [1.0]])
    with np.errstate(divide="ignore"):
        return Labels(np.maximum(np.log(np.diff(cdf)), -700.0))


def labels(high, num_outputs=2):
    return lambda rng, n: rng.integers(0, high, (n, num_outputs)).astype(float)


def beta(f, scale=4.0, margin=1e-6):
    m, rest = (margin + (1.0 - 2.0 * margin) * NORM.cdf(x) for x in (f, -f))
    return stats.beta(scale * m, scale * rest)


def normal(num_outputs=2):
    return lambda rng, n: rng.standard_normal((n, num_outputs))


def positive(rng, n):
    return rng.gamma(2.0, 1.0, (n, 2)) + 0.05


def fraction(rng, n):
    return rng.uniform(0.05, 0.95, (n, 2))


def mixed(rng, n):
    return np.column_stack([rng.standard_normal(n), rng.integers(0, 3, n), rng.poisson(2.0, n), rng.standard_normal(n)])


def noise(X):
    return 0.2 + X[:, :1] ** 2


COVARIANCE = jnp.array([[1.0, 0.4, 0.1], [0.4, 0.8, -0.3], [0.1, -0.3, 0.5]])

# Those of one latent first, then those that give a distribution over one output: pytest groups tests by position.
CASES = {
    "gaussian": Case(ml.Gaussian(0.3), normal(), lambda f: NORM(f, 0.3**0.5), "real"),
    "student": Case(ml.StudentT(4.0, 0.8), normal(), lambda f: stats.t(4.0, f, 0.8), "real"),
    "laplace": Case(ml.Laplace(0.6), normal(), lambda f: stats.laplace(f, 0.6), "real"),
    "probit": Case(ml.Bernoulli(), labels(2), lambda f: Labels([NORM.logcdf(-f), NORM.logcdf(f)]), range(2)),
    "logit": Case(ml.Bernoulli("logit"), labels(2), lambda f: Labels([log_expit(-f), log_expit(f)]), range(2)),
    "binomial": Case(ml.Binomial(5), labels(6), lambda f: Counts(stats.binom(5, NORM.cdf(f))), range(6)),
    "binomial_logit": Case(ml.Binomial(3, "logit"), labels(4), lambda f: Counts(stats.binom(3, expit(f))), range(4)),
    "poisson": Case(ml.Poisson(0.5), labels(4), lambda f: Counts(stats.poisson(0.5 * np.exp(f))), range(120)),
    "negative_binomial": Case(
        ml.NegativeBinomial(0.5),
        labels(4),
        lambda f: Counts(stats.nbinom(2.0, 2.0 / (2.0 + np.exp(f)))),
        range(400),
    ),
    "gamma": Case(ml.Gamma(1.5), positive, lambda f: stats.gamma(1.5, scale=np.exp(f)), "positive"),
    "exponential": Case(ml.Exponential(), positive, lambda f: stats.expon(scale=np.exp(f)), "positive"),
    "beta": Case(ml.Beta(4.0), fraction, beta, "unit"),
    "ordinal": Case(ml.Ordinal(jnp.array([-0.5, 0.2, 1.0]), 0.7), labels(4), ordinal, range(4)),
    "heteroskedastic": Case(ml.HeteroskedasticGaussian(), normal(), None, "real"),
    "robust_max": Case(ml.RobustMax(3), labels(3, 1), None, range(3)),
    "softmax": Case(ml.Softmax(3), labels(3, 1), None, range(3)),
    "gaussian_vector": Case(ml.Gaussian(jnp.array([0.3, 0.1])), normal()),
    "gaussian_function": Case(ml.Gaussian(noise), normal()),
    "correlated": Case(ml.CorrelatedGaussian(COVARIANCE), normal(3)),
    "per_output": Case(
        ml.PerOutput([ml.HeteroskedasticGaussian(), ml.Softmax(3), ml.Poisson(), ml.Laplace()]),
        mixed,
    ),
}
SCALAR = [name for name, case in CASES.items() if case.given is not None]


def data(name, seed=0, n=4):
    """mean, var [N, L], y [N, P] and X [N, 1] for a case."""
    case, rng = CASES[name], np.random.default_rng(seed)
    y = case.draw(rng, n)
    shape = (n, case.likelihood.num_latents(y.shape[1]))
    mean, var, X = rng.uniform(-0.8, 0.8, shape), rng.uniform(0.05, 0.8, shape), rng.standard_normal((n, 1))
    return tuple(jnp.asarray(array) for array in (mean, var, y, X))


@eqx.filter_jit
def values(likelihood, mean, var, y, X=None):
    """Every method of a likelihood, compiled together."""
    predicted = likelihood.predict(mean, var, X)
    return Values(
        likelihood.log_prob(mean, y, X),
        likelihood.expected_log_prob(mean, var, y, X),
        likelihood.log_predictive(mean, var, y, X),
        *predicted,
    )


class Values(NamedTuple):
    log_prob: jax.Array
    expected_log_prob: jax.Array
    log_predictive: jax.Array
    y_mean: jax.Array
    y_var: jax.Array


def total(likelihood, mean, var, y, X=None):
    """The sum over rows of log_prob, expected_log_prob and log_predictive, unequally weighted."""
    got = values(likelihood, mean, var, y, X)
    return jnp.sum(got.log_prob + 0.7 * got.expected_log_prob + 0.4 * got.log_predictive)


@eqx.filter_jit
def gradients(likelihood, mean, var, y, X=None):
    """The derivatives of `total` by the likelihood, the mean and the variance."""
    return eqx.filter_grad(lambda arguments: total(*arguments, y, X))((likelihood, mean, var))
