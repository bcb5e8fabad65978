"""Exact regression: the evidence, leaving one out, limits, and the numbers of other libraries."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from dense_gaussians import BIAS, KERNEL, MISSING, WEIGHTS, X_NEW, X, Y, k, posterior, prior, prior_mean

import mercer as mc
from reference_data import GPFLOW, LENGTHSCALE, NOISE, REFERENCE, VARIANCE, column
from reference_data import X_NEW as SNELSON_X_NEW
from reference_data import X as SNELSON_X

PER_OUTPUT, PER_DATUM = np.array([0.1, 0.2, 0.3]), np.linspace(0.05, 0.5, len(X))[:, None]
CASES = {  # Y and the noise
    "one output": (Y[:, :1], 0.1),
    "three outputs": (Y, 0.1),
    "noise per output": (Y, PER_OUTPUT),
    "noise per datum": (Y, PER_DATUM),
    "missing": (MISSING, PER_DATUM * PER_OUTPUT),
}


def evidence(Y, noise):
    """log p(Y) by SciPy, one output after the other, over what was observed."""
    noise, mean, total = np.broadcast_to(noise, Y.shape), prior_mean(X, Y.shape[1]), 0.0
    for p in range(Y.shape[1]):
        seen = ~np.isnan(Y[:, p])
        K = k(X, X)[np.ix_(seen, seen)] + np.diag(noise[seen, p])
        total += scipy.stats.multivariate_normal(mean[seen, p], K).logpdf(Y[seen, p])
    return total


@pytest.mark.parametrize("name", CASES)
def test_the_log_marginal_likelihood_is_a_multivariate_normal_density(name):
    Y, noise = CASES[name]
    process = mc.Conditioned(prior(Y.shape[1]), X, Y, noise)
    np.testing.assert_allclose(process.log_marginal_likelihood(), evidence(Y, noise), rtol=1e-11)


@pytest.mark.parametrize("name", ["one output", "missing"])
def test_its_gradient_is_that_of_finite_differences(name):
    Y, noise = CASES[name]
    P = Y.shape[1]
    start = {
        "lengthscale": KERNEL.lengthscale,
        "variance": KERNEL.variance,
        "noise": jnp.asarray(noise),
        "weights": jnp.asarray(WEIGHTS[:, :P]),
        "bias": jnp.asarray(BIAS[:P]),
        "X": jnp.asarray(X),
    }

    @jax.jit
    def value_and_gradient(t):
        def value(t):
            mean = mc.means.Linear(t["weights"], t["bias"])
            process = mc.GP(mc.kernels.Matern32(t["lengthscale"], t["variance"]), mean)
            complete = not np.isnan(Y).any()
            return mc.Conditioned(process, t["X"], Y, t["noise"], complete).log_marginal_likelihood()

        return jax.value_and_grad(value)(t)

    _, gradient = value_and_gradient(start)
    rng, h = np.random.default_rng(0), 1e-5
    for name in start:
        direction = rng.normal(size=start[name].shape)
        up, down = (value_and_gradient(start | {name: start[name] + s * h * direction})[0] for s in (1, -1))
        slope = np.vdot(gradient[name], direction)
        np.testing.assert_allclose(slope, (up - down) / (2 * h), rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_leave_one_out_is_refitting_without_it(name):
    Y, noise = CASES[name]
    P, noise = Y.shape[1], np.broadcast_to(noise, Y.shape)
    loo = mc.Conditioned(prior(P), X, Y, CASES[name][1]).leave_one_out()
    for n, p in np.argwhere(~np.isnan(Y)):
        rest = Y.copy()
        rest[n, p] = np.nan
        mean, cov = posterior(X[[n]], rest, noise)
        np.testing.assert_allclose(loo.mean[n, p], mean[p], rtol=0, atol=1e-10)
        np.testing.assert_allclose(loo.cov[n, p], cov[p, p] + noise[n, p], rtol=0, atol=1e-10)


def test_nothing_observed_is_the_prior():
    process = mc.Conditioned(prior(1), X, np.full((len(X), 1), np.nan), 0.1)
    for computed, expected in zip(process.predict(X_NEW, "inputs"), prior(1).predict(X_NEW, "inputs"), strict=True):
        np.testing.assert_allclose(computed, expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(process.log_marginal_likelihood(), 0.0, atol=1e-12)


def test_little_noise_interpolates_and_much_noise_leaves_the_prior():
    exact = mc.Conditioned(prior(3), X, Y, 1e-9).predict(X)
    np.testing.assert_allclose(exact.mean, Y, rtol=0, atol=1e-6)
    np.testing.assert_allclose(exact.cov, 0.0, atol=1e-8)
    vague = mc.Conditioned(prior(3), X, Y, 1e9).predict(X)
    np.testing.assert_allclose(vague.mean, prior_mean(X, 3), rtol=0, atol=1e-7)
    np.testing.assert_allclose(vague.cov, KERNEL.variance, rtol=0, atol=1e-7)


def test_data_in_two_parts_or_at_once():
    """Seeing the same output twice with noise 2s is seeing it once with noise s."""
    once = mc.Conditioned(prior(1), X, Y[:, :1], 0.1).predict(X_NEW, "inputs")
    twice = mc.Conditioned(prior(1), np.tile(X, (2, 1)), np.tile(Y[:, :1], (2, 1)), 0.2).predict(X_NEW, "inputs")
    for one, two in zip(once, twice, strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-10)


REFERENCE_KERNELS = {
    "RBF": mc.kernels.RBF(LENGTHSCALE, VARIANCE),
    "Matern12": mc.kernels.Matern12(LENGTHSCALE, VARIANCE),
    "Linear+RBF": mc.kernels.Linear(REFERENCE["kernels"]["Linear"]["variance"]) + mc.kernels.RBF(LENGTHSCALE, VARIANCE),
}


@pytest.mark.parametrize("name", REFERENCE_KERNELS)
def test_numbers_of_gpflow_and_gpytorch(name):
    """GPR on Snelson's data; the two libraries agree on these to 1e-11."""
    Y, Y_new = (jnp.asarray(column(of, "real")) for of in ("y", "y_new"))

    @eqx.filter_jit
    def found(prior):
        process = mc.Conditioned(prior, SNELSON_X, Y, NOISE, complete=True)
        model = mc.Model(process.cached(), mc.likelihoods.Gaussian(NOISE))
        f, y = process.predict(SNELSON_X_NEW, "inputs"), model.predict(SNELSON_X_NEW)
        return f.cov[0], {
            "log_marginal_likelihood": process.log_marginal_likelihood(),
            "f_mean": f.mean[:, 0],
            "f_var": f.variance[:, 0],
            "y_mean": y.mean[:, 0],
            "y_var": y.cov[:, 0],
            "log_density": model.log_density(SNELSON_X_NEW, Y_new),
        }

    covariance, numbers = found(mc.GP(REFERENCE_KERNELS[name]))
    for quantity, value in numbers.items():
        for library in ("gpflow", "gpytorch"):
            expected = REFERENCE[library]["gpr"][name][quantity]
            np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-9, err_msg=f"{library} {quantity}")
    if name in GPFLOW["gpr_f_cov"]:
        np.testing.assert_allclose(covariance, GPFLOW["gpr_f_cov"][name], rtol=0, atol=1e-9)


def test_gradients_pass_through_a_prediction():
    """d mean / d noise and d variance / d noise, against finite differences, inside compiled code."""

    @eqx.filter_jit
    def at(noise, A):
        prediction = mc.Conditioned(prior(1), X, Y[:, :1], noise, complete=True).predict(A)
        return jnp.stack([prediction.mean[:, 0], prediction.cov[:, 0]])

    slope = jax.jit(jax.jacobian(at))(0.3, X_NEW)
    up, down = (at(jnp.asarray(noise), X_NEW) for noise in (0.3 + 1e-6, 0.3 - 1e-6))
    np.testing.assert_allclose(slope, (up - down) / 2e-6, rtol=1e-6, atol=1e-8)
    noise = jnp.asarray(0.3)
    in_x = jax.jit(jax.grad(lambda A: at(noise, A).sum()))(jnp.asarray(X_NEW))
    step = np.zeros_like(X_NEW)
    step[1, 0] = 1e-6
    difference = (at(noise, X_NEW + step).sum() - at(noise, X_NEW - step).sum()) / 2e-6
    np.testing.assert_allclose(in_x[1, 0], difference, rtol=1e-6)


def test_variances_are_not_negative_where_rounding_makes_them_so():
    X = np.linspace(0.0, 1.0, 200)[:, None]
    exact = mc.Conditioned(mc.GP(mc.kernels.RBF(2.0)), X, np.sin(X), 1e-12)
    assert float(exact._predict(X, "diag").cov.min()) < 0.0  # what is hidden
    for process in (exact, exact.cached()):
        variance = process.predict(X).cov
        assert float(variance.min()) >= 0.0
        assert float(variance.max()) < 1e-8
