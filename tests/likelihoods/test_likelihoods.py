"""Truths of single likelihoods: limits, equivalences, brute force for several latents; and what is refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from likelihood_cases import COVARIANCE, data, values
from scipy import stats
from scipy.special import log_softmax, logsumexp, softmax

from cases import mostly_slow
from mercer import likelihoods as ml
from mercer.likelihoods import expectations
from mercer.parameters import trainable


def assert_same(left, right, name, rtol=1e-9):
    """Two likelihoods agree in every method, on the data of a case."""
    mean, var, y, _ = data(name)
    for a, b in zip(values(left, mean, var, y), values(right, mean, var, y), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol)


@pytest.mark.parametrize("link", mostly_slow(["probit", "logit"], "logit"))
def test_one_trial_is_bernoulli(link):
    assert_same(ml.Binomial(1, link), ml.Bernoulli(link), "probit")


def test_gamma_of_shape_one_is_exponential():
    assert_same(ml.Gamma(1.0), ml.Exponential(), "gamma")


def test_negative_binomial_without_dispersion_is_poisson():
    assert_same(ml.NegativeBinomial(1e-7), ml.Poisson(), "poisson", rtol=1e-5)


def test_student_of_many_degrees_of_freedom_is_gaussian():
    assert_same(ml.StudentT(1e7, 0.5), ml.Gaussian(0.25), "gaussian", rtol=1e-4)


def test_two_ordered_classes_are_probit():
    assert_same(ml.Ordinal([0.0], 1.0), ml.Bernoulli(), "probit")


def test_correlated_noise_without_correlation_is_gaussian():
    assert_same(ml.CorrelatedGaussian(jnp.diag(jnp.array([0.3, 0.1]))), ml.Gaussian(jnp.array([0.3, 0.1])), "gaussian")


def test_student_without_a_variance():
    _, var = ml.StudentT(jnp.array([2.0, 4.0])).predict(jnp.zeros((1, 2)), jnp.ones((1, 2)))
    np.testing.assert_allclose(var, [[np.inf, 3.0]])


def test_correlated_noise_marginalises_what_is_missing():
    mean, _, y, _ = (np.array(array) for array in data("correlated"))
    rng = np.random.default_rng(0)
    root = 0.5 * rng.standard_normal((4, 3, 3))
    var = root @ root.swapaxes(1, 2) + 0.1 * np.eye(3)
    y[0, 1] = y[1, 0] = y[1, 2] = np.nan
    likelihood, R = ml.CorrelatedGaussian(COVARIANCE), np.asarray(COVARIANCE)
    log_prob, expected, predictive = [], [], []
    for n in range(4):
        o = ~np.isnan(y[n])
        pair = np.ix_(o, o)
        log_prob.append(stats.multivariate_normal(mean[n, o], R[pair]).logpdf(y[n, o]))
        predictive.append(stats.multivariate_normal(mean[n, o], (R + var[n])[pair]).logpdf(y[n, o]))
        expected.append(log_prob[-1] - 0.5 * np.trace(np.linalg.solve(R[pair], var[n][pair])))
    mean, var, y = jnp.asarray(mean), jnp.asarray(var), jnp.asarray(y)
    np.testing.assert_allclose(likelihood.log_prob(mean, y), log_prob, rtol=1e-9)
    np.testing.assert_allclose(likelihood.expected_log_prob(mean, var, y), expected, rtol=1e-9)
    np.testing.assert_allclose(likelihood.log_predictive(mean, var, y), predictive, rtol=1e-9)
    np.testing.assert_allclose(likelihood.predict(mean, var)[1], np.diagonal(R + np.asarray(var), axis1=1, axis2=2))


def test_heteroskedastic_is_the_tensor_quadrature_of_its_two_latents():
    mean, var, y, _ = (np.asarray(array) for array in data("heteroskedastic"))
    z, w = np.polynomial.hermite_e.hermegauss(80)
    w = w / w.sum()
    f, g = (mean[:, i : i + 2, None] + np.sqrt(var[:, i : i + 2, None]) * z for i in (0, 2))
    log_p = stats.norm.logpdf(y[:, :, None, None], f[..., None], np.exp(0.5 * g)[:, :, None, :])
    expected = np.einsum("npij,i,j->n", log_p, w, w)
    predictive = np.log(np.einsum("npij,i,j->np", np.exp(log_p), w, w)).sum(axis=1)
    got = values(ml.HeteroskedasticGaussian(), *data("heteroskedastic")[:3])
    np.testing.assert_allclose(got.expected_log_prob, expected, rtol=1e-8)
    np.testing.assert_allclose(got.log_predictive, predictive, rtol=1e-6)
    np.testing.assert_allclose(got.y_var, var[:, :2] + np.exp(g) @ w, rtol=1e-8)


def test_gaussian_noise_of_a_trained_network():
    class Noise(eqx.Module):
        network: eqx.nn.MLP

        def __call__(self, X):
            return jax.nn.softplus(jax.vmap(self.network)(X))

    mean, var, y, X = data("gaussian")
    noise = Noise(eqx.nn.MLP(1, 2, 4, 1, key=jax.random.key(0)))
    likelihood = ml.Gaussian(noise)
    assert any(jax.tree.leaves(trainable(likelihood)))
    expected = stats.norm.logpdf(y, mean, np.sqrt(var + noise(X))).sum(axis=1)
    np.testing.assert_allclose(likelihood.log_predictive(mean, var, y, X), expected, rtol=1e-9)
    with pytest.raises(ValueError, match="pass X"):
        likelihood.log_prob(mean, y)


def draws_of(mean, var, num=400_000):
    return mean + np.sqrt(var) * np.random.default_rng(0).standard_normal((num, *mean.shape))


MEAN, VAR = np.array([[0.3, -0.2, 0.8, 0.1]]), np.array([[0.5, 1.0, 0.3, 0.7]])


def test_robust_max_is_the_share_of_draws():
    largest = np.bincount(draws_of(MEAN, VAR)[:, 0].argmax(axis=1), minlength=4) / 400_000
    likelihood = ml.RobustMax(4, 0.02)
    got = values(likelihood, MEAN.repeat(4, axis=0), VAR.repeat(4, axis=0), np.arange(4)[:, None])
    expected = largest * np.log(0.98) + (1 - largest) * np.log(0.02 / 3)
    np.testing.assert_allclose(got.expected_log_prob, expected, atol=0.02)
    np.testing.assert_allclose(np.exp(got.log_predictive), 0.98 * largest + 0.02 * (1 - largest) / 3, atol=0.003)


def test_robust_max_of_two_classes_is_probit():
    """S = Phi((m_1 - m_0) / sqrt(v_0 + v_1)), of which the quadrature knows nothing."""
    likelihood = ml.RobustMax(2, 1e-3)
    mean, var = np.array([[0.3, -0.4], [0.5, 0.2]]), np.array([[0.5, 0.7], [0.6, 1.5]])
    S = stats.norm.cdf((mean[:, 1] - mean[:, 0]) / np.sqrt(var.sum(axis=1)))
    p, _ = eqx.filter_jit(likelihood.predict)(mean, var)
    np.testing.assert_allclose(p[:, 1], 0.999 * S + 0.001 * (1 - S), rtol=1e-8)


def test_softmax_of_two_classes_is_logit():
    mean, var = np.array([[0.3, -0.4], [2.5, 0.2]]), np.array([[0.5, 0.7], [0.3, 1.5]])
    difference = mean[:, 1:] - mean[:, :1], var.sum(axis=1, keepdims=True)
    y = np.array([[1], [0]])
    many, logit = values(ml.Softmax(2), mean, var, y), values(ml.Bernoulli("logit"), *difference, y)
    np.testing.assert_allclose(many.expected_log_prob, logit.expected_log_prob, atol=0.01)
    np.testing.assert_allclose(many.log_predictive, logit.log_predictive, atol=0.01)
    np.testing.assert_allclose(many.y_mean[:, 1:], logit.y_mean, atol=0.005)


def test_softmax_is_the_average_of_draws():
    f, y = draws_of(MEAN, VAR)[:, 0], np.array([[2]])
    got = values(ml.Softmax(4), MEAN, VAR, y)
    log_p = log_softmax(f, axis=1)[:, 2]
    np.testing.assert_allclose(got.expected_log_prob, log_p.mean(), atol=0.01)
    np.testing.assert_allclose(got.log_predictive, logsumexp(log_p) - np.log(len(f)), atol=0.01)
    np.testing.assert_allclose(got.y_mean[0], softmax(f, axis=1).mean(axis=0), atol=0.005)


def test_softmax_with_a_key_is_unbiased():
    """Even of four draws: the average over many keys is the expectation. Rows have independent draws."""
    likelihood, y = ml.Softmax(4, num_samples=4), jnp.array([[2], [2]])
    mean, var = jnp.repeat(MEAN, 2, axis=0), jnp.repeat(VAR, 2, axis=0)
    keys = jax.random.split(jax.random.key(0), 4000)
    estimates = jax.jit(jax.vmap(lambda key: likelihood.expected_log_prob(mean, var, y, key=key)))(keys)
    truth = log_softmax(draws_of(MEAN, VAR)[:, 0], axis=1)[:, 2].mean()
    np.testing.assert_allclose(estimates.mean(axis=0), truth, atol=4.0 * estimates.std() / 4000**0.5 + 0.005)
    assert abs(np.corrcoef(estimates.T)[0, 1]) < 0.1


def test_draws_have_the_moments_of_the_normal():
    f = expectations.samples(jnp.zeros((500, 3)), jnp.full((500, 3), 4.0), 16, jax.random.key(1))
    np.testing.assert_allclose(f.mean(axis=(0, 1)), 0.0, atol=0.05)
    np.testing.assert_allclose(np.cov(f.reshape(-1, 3).T), 4.0 * np.eye(3), atol=0.2)


def test_quadrature_of_polynomials():
    moment = expectations.expectation(lambda f: f**8, jnp.zeros(1), jnp.full(1, 2.0), 20)
    np.testing.assert_allclose(moment, 105.0 * 2.0**4, rtol=1e-12)


def test_per_output_is_the_sum_of_its_parts():
    parts = [ml.Gaussian(0.2), ml.RobustMax(3), ml.Poisson()]
    likelihood = ml.PerOutput(parts)
    rng = np.random.default_rng(0)
    mean, var = rng.standard_normal((2, 5)), rng.uniform(0.1, 1.0, (2, 5))
    y = np.array([[0.3, 2.0, 1.0], [np.nan, 1.0, 0.0]])
    got = values(likelihood, mean, var, y)
    columns = [slice(0, 1), slice(1, 4), slice(4, 5)]
    separate = [
        values(q, mean[:, c], var[:, c], y[:, [p]]) for p, (q, c) in enumerate(zip(parts, columns, strict=True))
    ]
    for name in ("log_prob", "expected_log_prob", "log_predictive"):
        np.testing.assert_allclose(getattr(got, name), sum(getattr(part, name) for part in separate), rtol=1e-12)
    np.testing.assert_allclose(got.y_mean, np.concatenate([part.y_mean for part in separate], axis=1), rtol=1e-12)
    assert likelihood.num_latents(3) == 5
    assert not likelihood.discrete and ml.PerOutput([ml.Poisson()]).discrete


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize(
    "likelihood", [ml.Bernoulli(), ml.Bernoulli("logit"), ml.Ordinal([-1.0, 1.0]), ml.Binomial(2), ml.Beta(2.0)]
)
def test_far_tails_are_finite(likelihood, dtype):
    f = jnp.array([[-60.0], [-20.0], [0.0], [20.0], [60.0]], dtype)
    for value in (0.3, 0.7) if isinstance(likelihood, ml.Beta) else (0.0, 1.0):
        y = jnp.full_like(f, value)
        log_prob, derivative = jax.jit(jax.value_and_grad(lambda f, y=y: likelihood.log_prob(f, y).sum()))(f)
        assert jnp.isfinite(log_prob) and jnp.isfinite(derivative).all()


@pytest.mark.parametrize(
    ("likelihood", "wrong"),
    [
        (ml.Gaussian(), np.inf),
        (ml.Bernoulli(), 2.0),
        (ml.Bernoulli(), -1.0),
        (ml.Binomial(3), 4.0),
        (ml.Binomial(3), 0.5),
        (ml.Poisson(), -1.0),
        (ml.Poisson(), 1.5),
        (ml.NegativeBinomial(), 0.1),
        (ml.Gamma(), 0.0),
        (ml.Exponential(), -2.0),
        (ml.Beta(), 1.0),
        (ml.Beta(), 0.0),
        (ml.Ordinal([0.0, 1.0]), 3.0),
        (ml.RobustMax(3), 3.0),
        (ml.Softmax(3), -1.0),
        (ml.PerOutput([ml.Softmax(3)]), 3.0),
    ],
)
def test_values_outside_the_support_are_refused(likelihood, wrong):
    with pytest.raises(ValueError, match=r"Y expects .*, got .* at \[1, 0\]"):
        likelihood.validate(np.array([[np.nan], [wrong]]))
    likelihood.validate(np.array([[np.nan], [np.nan]]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ml.Gaussian(-1.0), "variance expects positive"),
        (lambda: ml.Gaussian(jnp.ones((2, 2))), "variance expects a number or a vector"),
        (lambda: ml.Bernoulli("cloglog"), "link expects 'probit' or 'logit'"),
        (lambda: ml.Binomial(0), "trials expects a positive integer"),
        (lambda: ml.Binomial(2.5), "trials expects a positive integer"),
        (lambda: ml.Poisson(-1.0), "bin_size expects positive"),
        (lambda: ml.Ordinal([1.0, 0.0]), "bin_edges expects strictly increasing"),
        (lambda: ml.Ordinal([]), "bin_edges expects a vector"),
        (lambda: ml.RobustMax(1), "classes expects an integer of 2 or more"),
        (lambda: ml.RobustMax(3, 1.0), "epsilon expects a number strictly between 0 and 1"),
        (lambda: ml.Softmax(3, num_samples=0), "num_samples expects a positive integer"),
        (lambda: ml.CorrelatedGaussian(jnp.ones(3)), "covariance expects"),
        (lambda: ml.PerOutput([]), "one or more likelihoods"),
        (lambda: ml.PerOutput([ml.Gaussian(), 3]), "one or more likelihoods"),
        (lambda: ml.Softmax(3).num_latents(2), "expects one output"),
        (lambda: ml.PerOutput([ml.Gaussian()]).num_latents(2), "1 likelihoods, and 2 outputs"),
        (lambda: ml.CorrelatedGaussian(jnp.eye(3)).num_latents(2), "of 3 outputs, there are 2"),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("likelihood", "mean", "var", "y", "message"),
    [
        (ml.Gaussian(), (2, 1), (2, 2), (2, 1), r"var expects shape \(2, 1\)"),
        (ml.Gaussian(), (2, 1), (2, 1), (3, 1), "same number of rows"),
        (ml.Gaussian(), (2, 1), (2, 1), (2, 2), "y expects 1 columns"),
        (ml.Gaussian(), (2,), (2,), (2, 1), r"mean must be two-dimensional"),
        (ml.Gaussian(jnp.ones(3)), (2, 1), (2, 1), (2, 1), "variance expects one number, or one for each of 1 outputs"),
        (ml.HeteroskedasticGaussian(), (2, 3), (2, 3), (2, 1), r"mean expects 2 columns \(latents\), got 3"),
        (ml.Softmax(3), (2, 2), (2, 2), (2, 1), r"mean expects 3 columns \(latents\), got 2"),
        (ml.CorrelatedGaussian(jnp.eye(2)), (2, 2), (2, 2, 3), (2, 2), r"var expects shape \(2, 2\) or \(2, 2, 2\)"),
    ],
)
def test_wrong_shapes_are_refused(likelihood, mean, var, y, message):
    with pytest.raises(ValueError, match=message):
        likelihood.expected_log_prob(jnp.ones(mean), jnp.ones(var), jnp.ones(y))


def test_integers_of_numpy_are_integers():
    assert hash(ml.Binomial(np.int64(3)).trials) == hash(3)
    assert type(ml.Softmax(np.int32(3)).classes) is int


def test_integers_are_data_of_discrete_likelihoods_only():
    mean, y = jnp.zeros((2, 1)), jnp.array([[0], [1]])
    np.testing.assert_allclose(ml.Bernoulli().log_prob(mean, y), np.log(0.5))
    with pytest.raises(ValueError, match="float32 or float64"):
        ml.Gaussian().log_prob(mean, y)
