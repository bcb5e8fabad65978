"""What holds of every likelihood; the truth is SciPy's distributions under SciPy's adaptive quadrature."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from likelihood_cases import CASES, SCALAR, data, gradients, total, values
from scipy import integrate, stats

from cases import mostly_slow
from mercer import likelihoods as ml
from mercer.parameters import constrain, trainable, unconstrain

# Parameters of the module's scope bring the tests of one case together, and it is compiled once.
every_case = pytest.mark.parametrize("name", CASES, scope="module")
every_scalar = pytest.mark.parametrize("name", SCALAR, scope="module")
# Where something more is compiled: these take the same ways through quadrature as `student` and `logit`.
SIMILAR = ("binomial", "binomial_logit", "poisson", "negative_binomial", "gamma", "exponential", "beta")
DISTINCT = [name for name in CASES if name not in SIMILAR]
one_of_each = pytest.mark.parametrize("name", mostly_slow(CASES, *DISTINCT), scope="module")


def test_every_public_likelihood_is_tested():
    public = {getattr(ml, name) for name in ml.__all__}
    assert {kind for kind in public if not inspect.isabstract(kind)} == {type(c.likelihood) for c in CASES.values()}


@every_scalar
@settings(max_examples=5)
@given(seed=st.integers(0, 2**31))
def test_log_prob_is_scipys(name, seed):
    mean, var, y, X = data(name, seed)
    case = CASES[name]
    expected = [[case.given(f).logpdf(v) for f, v in zip(*row, strict=True)] for row in zip(mean, y, strict=True)]
    np.testing.assert_allclose(values(case.likelihood, mean, var, y, X).log_prob, np.sum(expected, axis=1), rtol=1e-8)


def integral(function, mean, var, kink=0.0):
    """E[function(f)], f ~ N(mean, var), by adaptive quadrature."""
    sd = np.sqrt(var)
    low, high = mean - 7.5 * sd, mean + 7.5 * sd
    points = np.clip([mean - 3.0 * sd, mean, mean + 3.0 * sd, kink], low, high)
    density = stats.norm(mean, sd).pdf
    return integrate.quad(lambda f: function(f) * density(f), low, high, points=points, epsabs=1e-9, epsrel=1e-9)[0]


@every_scalar
def test_expectations_are_integrals(name):
    likelihood, distribution = CASES[name].likelihood, CASES[name].given
    mean, var, y, X = data(name)
    got = values(likelihood, mean, var, y, X)
    row = [tuple(float(array[0, p]) for array in (mean, var, y)) for p in range(2)]

    expected = [integral(lambda f, y=y: distribution(f).logpdf(y), m, v, y) for m, v, y in row]
    np.testing.assert_allclose(got.expected_log_prob[0], np.sum(expected), rtol=1e-7)

    density = [integral(lambda f, y=y: np.exp(distribution(f).logpdf(y)), m, v, y) for m, v, y in row]
    np.testing.assert_allclose(got.log_predictive[0], np.sum(np.log(density)), rtol=1e-7)

    y_mean = [integral(lambda f: distribution(f).mean(), m, v) for m, v, _ in row]
    np.testing.assert_allclose(got.y_mean[0], y_mean, rtol=1e-7, atol=1e-8)
    y_square = [integral(lambda f: distribution(f).var() + distribution(f).mean() ** 2, m, v) for m, v, _ in row]
    np.testing.assert_allclose(got.y_var[0], np.array(y_square) - np.square(y_mean), rtol=1e-7)


def grid(support):
    """Values y, and weights of the trapezoidal rule (or of a sum), over the whole support."""
    if isinstance(support, range):
        return np.array(support, float), 1.0
    low, high, transform, derivative = {
        "real": (-12.0, 12.0, np.sinh, np.cosh),
        "positive": (-20.0, 5.0, np.exp, np.exp),
        "unit": (-30.0, 30.0, stats.logistic.cdf, stats.logistic.pdf),
    }[support]
    t = np.linspace(low, high, 4001)
    return transform(t), derivative(t) * (t[1] - t[0])


WITH_SUPPORT = [name for name, case in CASES.items() if case.support is not None]


@pytest.mark.parametrize(
    "name", mostly_slow(WITH_SUPPORT, "student", "probit", "ordinal", "heteroskedastic", "robust_max"), scope="module"
)
def test_predictive_is_a_distribution_with_the_predicted_moments(name):
    """exp(log_predictive) sums, or integrates, to 1; its mean and variance are those of predict."""
    likelihood = CASES[name].likelihood
    y, weight = grid(CASES[name].support)
    shape = (len(y), likelihood.num_latents(1))
    mean, var = (np.broadcast_to(np.linspace(*ends, shape[1]), shape) for ends in ((-0.3, 0.6), (0.2, 0.6)))
    got = values(likelihood, mean, var, y[:, None])
    p = np.exp(got.log_predictive) * weight
    assert p.sum() == pytest.approx(1.0, abs=1e-4)

    got_mean, got_var = got.y_mean[0], got.y_var[0]
    if len(got_mean) > 1:  # the probability of each class
        np.testing.assert_allclose(got_mean, p, rtol=1e-10)
        np.testing.assert_allclose(got_var, p * (1.0 - p), rtol=1e-10)
    else:
        np.testing.assert_allclose(got_mean, p @ y, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(got_var, p @ (y - p @ y) ** 2, rtol=1e-3)


def test_classes_are_the_labels_of_their_support():
    labels = {name: len(case.support) for name, case in CASES.items() if isinstance(case.support, range)}
    found = {name: case.likelihood.num_classes for name, case in CASES.items() if case.likelihood.num_classes}
    assert found == {name: labels[name] for name in ("probit", "logit", "ordinal", "robust_max", "softmax")}


@every_case
@settings(max_examples=10)
@given(seed=st.integers(0, 2**31))
def test_jensen(name, seed):
    """E[log p] <= log E[p]."""
    got = values(CASES[name].likelihood, *data(name, seed))
    assert (got.expected_log_prob <= got.log_predictive + 1e-9).all()


@every_case
def test_without_variance_expectations_are_values(name):
    mean, var, y, X = data(name)
    got = values(CASES[name].likelihood, mean, 1e-10 * var, y, X)
    np.testing.assert_allclose(got.expected_log_prob, got.log_prob, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got.log_predictive, got.log_prob, rtol=1e-4, atol=1e-4)


@every_case
def test_nan_drops_out(name):
    """A row of NaN gives exactly 0."""
    mean, var, y, X = with_gaps(name)
    for value in values(CASES[name].likelihood, mean, var, y, X)[:3]:
        assert value[1] == 0.0
        assert jnp.isfinite(value).all()


def with_gaps(name):
    mean, var, y, X = data(name)
    return mean, var, y.at[1].set(jnp.nan).at[2, 0].set(jnp.nan), X


@one_of_each
def test_nan_has_no_derivative(name):
    """The derivative of a row of NaN is exactly 0; all derivatives are finite."""
    derivatives = gradients(CASES[name].likelihood, *with_gaps(name))
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(derivatives))
    assert all((by[1] == 0.0).all() for by in derivatives[1:])


@every_scalar
def test_nan_leaves_the_other_output_alone(name):
    """What is left with the first output missing, and with the second, adds to the whole."""
    likelihood = CASES[name].likelihood
    mean, var, y, X = data(name)
    first, second = (values(likelihood, mean, var, y.at[:, p].set(jnp.nan), X)[:3] for p in (1, 0))
    for a, b, both in zip(first, second, values(likelihood, mean, var, y, X)[:3], strict=True):
        np.testing.assert_allclose(a + b, both, rtol=1e-10)


IN_FLOAT32 = ("laplace", "softmax")


@pytest.mark.parametrize(
    ("name", "dtype"),
    mostly_slow(
        [(name, dtype) for name in CASES for dtype in ("float32", "float64")],
        *((name, "float32" if name in IN_FLOAT32 else "float64") for name in DISTINCT),
    ),
    scope="module",
)
def test_derivatives_are_finite_without_variance(name, dtype):
    mean, _, y, X = data(name)
    derivatives = gradients(CASES[name].likelihood, mean.astype(dtype), jnp.zeros_like(mean, dtype), y, X)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(derivatives))


@one_of_each
def test_derivatives_are_those_of_finite_differences(name):
    likelihood = CASES[name].likelihood
    mean, var, y, X = data(name)
    _, by_mean, by_var = gradients(likelihood, mean, var, y, X)
    along_mean, along_var = np.random.default_rng(1).standard_normal((2, *mean.shape))
    above, below = (total(likelihood, mean + h * along_mean, var + h * along_var, y, X) for h in (1e-5, -1e-5))
    directional = jnp.sum(by_mean * along_mean + by_var * along_var)
    np.testing.assert_allclose(directional, (above - below) / 2e-5, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    mostly_slow(CASES, "gaussian", "student", "ordinal", "heteroskedastic", "softmax", "correlated"),
    scope="module",
)
def test_dtype_follows_the_latents(name):
    """float32 latents give float32, with 64-bit numbers on and y in float64; the same numbers, to its precision."""
    likelihood = CASES[name].likelihood
    mean, var, y, X = data(name)
    narrow = values(likelihood, mean.astype(jnp.float32), var.astype(jnp.float32), y, X)
    for a, b in zip(values(likelihood, mean, var, y, X), narrow, strict=True):
        assert (a.dtype, b.dtype) == (jnp.float64, jnp.float32)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    "name", mostly_slow(CASES, "laplace", "ordinal", "robust_max", "gaussian_function", "correlated"), scope="module"
)
def test_rows_are_independent(name):
    """vmap over single rows gives what one call gives."""
    likelihood, arguments = CASES[name].likelihood, data(name)
    rows = eqx.filter_jit(jax.vmap(lambda *row: values(likelihood, *(array[None] for array in row))))(*arguments)
    for a, b in zip(rows, values(likelihood, *arguments), strict=True):
        np.testing.assert_allclose(a[:, 0], b, rtol=1e-9)


@every_case
def test_parameters_are_declared(name):
    likelihood = CASES[name].likelihood
    trainable(likelihood)
    back = constrain(unconstrain(likelihood))
    for a, b in zip(*(jax.tree.leaves(eqx.filter(tree, eqx.is_array)) for tree in (likelihood, back)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
