"""Tempering is the best there is on the validation data; conformal intervals cover as they promise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from mercer import calibration, kernels, likelihoods

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 2))
F = np.stack([np.sin(X[:, 0]), X[:, 1]], axis=1)
Y = F + 0.3 * rng.normal(size=F.shape)
MEAN = mc.means.Linear(np.eye(2) * 0.9)
LABELS = np.argmax(np.concatenate([F, 0.3 * np.ones((60, 1))], axis=1), axis=1)[:, None]
NEW = rng.normal(size=(5, 2))


def total(model, X=X, Y=Y):
    return float(jnp.sum(model.log_density(X, Y)))


PROCESSES = {
    "GP": lambda P: mc.GP(kernels.RBF(1.0, 0.5), mc.means.Linear(0.9 * np.eye(2)[:, :P])),
    "Sparse": lambda P: mc.Sparse(mc.GP(kernels.RBF()), mc.inducing.Points(X[:6]), P, q_mu=rng.normal(size=(6, P))),
    "coregionalised": lambda P: mc.GP(kernels.IntrinsicCoregionalisation(kernels.RBF(), np.eye(P) + 0.5)),
}


@pytest.mark.parametrize("P", [1, 2])
@pytest.mark.parametrize("name", PROCESSES)
def test_regression(name, P):
    model = mc.Model(PROCESSES[name](P), likelihoods.Gaussian(0.2))
    tempered = calibration.temper(model, X, Y[:, :P])
    # y ~ N(m, factor (v + noise)), a factor for each output: the mean stays, all variances scale
    before, after = model.predict(NEW), tempered.predict(NEW)
    factor = after.cov[0] / before.cov[0]
    np.testing.assert_allclose(after.mean, before.mean)
    np.testing.assert_allclose(after.cov, factor * before.cov, rtol=1e-10)
    # a stationary point of the likelihood
    best = total(tempered, Y=Y[:, :P])
    for scale in (0.9, 1.1):
        worse = mc.Model(
            mc.processes.Tempered(model.posterior, scale * factor), likelihoods.Gaussian(0.2 * scale * factor)
        )
        assert total(worse, Y=Y[:, :P]) < best
    np.testing.assert_allclose(calibration.temper(tempered, X, Y[:, :P]).predict(NEW).cov, after.cov, rtol=1e-9)


def test_one_output_stays_a_gp_with_a_tempered_kernel():
    model = mc.Model(PROCESSES["GP"](1), likelihoods.Gaussian(0.2))
    tempered = calibration.temper(model, X, Y[:, :1])
    assert isinstance(tempered.posterior, mc.GP) and isinstance(tempered.posterior.kernel, kernels.Tempered)


def test_noise_that_is_a_function_and_missing_outputs():
    model = mc.Model(PROCESSES["GP"](2), likelihoods.Gaussian(lambda X: 0.1 + X[:, :1] ** 2))
    holes = np.where(rng.uniform(size=Y.shape) < 0.3, np.nan, Y)
    before, after = model.predict(NEW), calibration.temper(model, X, holes).predict(NEW)
    residuals = (holes - model.predict(X).mean) ** 2 / model.predict(X).cov
    np.testing.assert_allclose(after.cov, np.nanmean(residuals, axis=0) * before.cov, rtol=1e-10)


@pytest.mark.parametrize(
    "likelihood", [likelihoods.RobustMax(3), likelihoods.Softmax(3)], ids=lambda x: type(x).__name__
)
def test_classes_have_a_factor_each(likelihood):
    mean = mc.means.Linear(np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]))
    model = mc.Model(mc.GP(kernels.RBF(1.0, 4.0), mean), likelihood)
    tempered = calibration.temper(model, X, LABELS)
    factor = tempered.posterior.factor
    assert factor.shape == (3,)
    best = total(tempered, Y=LABELS)
    assert best > total(model, Y=LABELS)
    for j in range(3):
        for scale in (0.8, 1.25):
            other = mc.processes.Tempered(model.posterior, factor.at[j].multiply(scale))
            assert total(mc.Model(other, likelihood), Y=LABELS) <= best + 1e-3


@pytest.mark.parametrize("layout", ["diag", "outputs", "inputs", "full"])
def test_a_tempered_process_in_all_layouts(layout):
    """Scaling each output by the root of its factor is what the factors do."""
    process = PROCESSES["coregionalised"](2)
    factor = np.array([0.5, 2.0])
    actual = mc.processes.Tempered(process, factor).predict(NEW, layout).cov
    full = process.predict(NEW, "full").cov * np.sqrt(factor)[:, None, None] * np.sqrt(factor)
    expected = {
        "full": full,
        "inputs": jnp.einsum("npmp->pnm", full),
        "outputs": jnp.einsum("npnq->npq", full),
        "diag": jnp.einsum("npnp->np", full),
    }[layout]
    np.testing.assert_allclose(actual, expected, rtol=1e-10)


@pytest.mark.slow
def test_functions_drawn_from_a_tempered_process():
    process = mc.processes.Tempered(PROCESSES["GP"](2), [4.0, 0.25])
    draws = np.stack([process.sample_function(64, key=k)(NEW) for k in jax.random.split(jax.random.key(0), 400)])
    mean, var = process.predict(NEW)
    np.testing.assert_allclose(draws.mean(0), mean, atol=5.0 * np.sqrt(var.max() / 400))
    np.testing.assert_allclose(draws.var(0), var, rtol=0.4)


@pytest.mark.slow
def test_conformal_coverage():
    """Over many calibration sets the coverage is between level and level + 1 / (n + 1), here with a model that is wrong."""
    model = mc.Model(mc.GP(kernels.Constant(1e-3)), likelihoods.Gaussian(1.0))
    n, level, covered = 19, 0.8, []
    for seed in range(300):
        y = np.random.default_rng(seed).standard_t(2, size=(n + 50, 1))
        x = np.zeros_like(y)
        with jax.disable_jit():
            lower, upper = calibration.conformal(model, x[:n], y[:n], level).intervals(x[n:])
        covered.append(np.mean((y[n:] >= lower) & (y[n:] <= upper)))
    error = np.std(covered) / np.sqrt(len(covered))
    assert level - 4.0 * error <= np.mean(covered) <= level + 1.0 / (n + 1) + 4.0 * error


def test_conformal_half_width_is_an_order_statistic():
    model = mc.Model(mc.GP(kernels.Constant(1.0)), likelihoods.Gaussian(1.0))
    y = np.arange(1.0, 20.0)[:, None]
    for level, rank in ((0.9, 18), (0.5, 10), (0.95, 19)):
        conformal = calibration.conformal(model, np.zeros_like(y), y, level)
        np.testing.assert_allclose(conformal.half_width, rank / np.sqrt(2.0))
    assert calibration.conformal(model, np.zeros((9, 1)), y[:9], 0.9).half_width == 9.0 / np.sqrt(2.0)


GAUSSIAN = mc.Model(mc.GP(kernels.RBF()), likelihoods.Gaussian(0.1))
ERRORS = {
    "the validation set is empty: X must": lambda: calibration.temper(GAUSSIAN, X[:0], Y[:0]),
    "the validation set is empty for output 0": lambda: calibration.temper(GAUSSIAN, X, np.nan * Y[:, :1]),
    "validation set is empty": lambda: calibration.conformal(GAUSSIAN, X[:0], Y[:0]),
    "model expects a mercer.Model": lambda: calibration.temper(GAUSSIAN.posterior, X, Y),
    "level expects a probability": lambda: calibration.conformal(GAUSSIAN, X, Y, 1.0),
    "need at least 9 held-out observations, got 8": lambda: calibration.conformal(GAUSSIAN, X[:8], Y[:8, :1], 0.9),
    "is over the integers": lambda: calibration.conformal(
        mc.Model(mc.GP(kernels.RBF()), likelihoods.Bernoulli()), X, np.ones((60, 1))
    ),
    "Bernoulli: Y expects 0 or 1": lambda: calibration.temper(
        mc.Model(mc.GP(kernels.RBF()), likelihoods.Bernoulli()), X, Y
    ),
    "Tempered: factor expects": lambda: mc.processes.Tempered(PROCESSES["Sparse"](2), np.ones(3)),
    "Tempered: process expects": lambda: mc.processes.Tempered(kernels.RBF()),
    "between outputs, which have no one factor": lambda: calibration.temper(
        mc.Model(PROCESSES["Sparse"](2), likelihoods.CorrelatedGaussian(np.eye(2))), X, Y
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises(ValueError, match=message):
        ERRORS[message]()
