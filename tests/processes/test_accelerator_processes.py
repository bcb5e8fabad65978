"""Processes of several latent functions, which a GPU goes through all at a time, give the numbers of the loop on the CPU."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from cases import mostly_slow

M, N, P = 6, 20, 3
random = np.random.default_rng(0)
X = np.sort(random.uniform(-1.0, 1.0, (N, 1)), axis=0)
Y = np.sin(3.0 * X + np.arange(P)) + 0.1 * random.normal(size=(N, P))
GAPS = Y.copy()
GAPS[3:5, 1] = np.nan

ALIKE = mc.kernels.SeparateIndependent([mc.kernels.Matern32(0.3 + 0.1 * i) for i in range(P)])
MIXED = mc.kernels.LinearCoregionalisation([mc.kernels.RBF(0.4), mc.kernels.RBF(0.7)], random.normal(size=(P, 2)))
Z = np.linspace(-1.0, 1.0, M)[:, None]
SHARED = mc.inducing.Shared(mc.inducing.Points(Z))


def separate(num):
    return mc.inducing.Separate([mc.inducing.Points(Z + 0.05 * i) for i in range(num)])


def sparse(kernel, inducing, **options):
    """A posterior with a q(u) that is nothing in particular."""
    process = mc.Sparse(mc.GP(kernel), inducing, **options)
    M, L = process.q_mu.shape
    root = 0.1 * np.tril(random.normal(size=(L, M, M))) + 0.5 * np.eye(M)
    return process.with_whitened(jnp.asarray(random.normal(size=(M, L))), jnp.asarray(root))


PROCESSES = {
    "separate": lambda: sparse(ALIKE, separate(P)),
    "separate, not whitened": lambda: sparse(ALIKE, separate(P), whiten=False),
    "one set of points": lambda: sparse(ALIKE, SHARED),
    "mixed": lambda: sparse(MIXED, separate(2)),
    "several outputs of one kernel": lambda: sparse(mc.kernels.RBF(0.4), mc.inducing.Points(Z), num_outputs=P),
}


def assert_close(one, other, tolerance=1e-9):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, float(np.abs(b).max())))


def with_gradients(function):
    """The value of a function of a model and its derivatives, by the parameters that are floating-point numbers."""

    def compute(model, *arguments):
        numbers, rest = eqx.partition(model, eqx.is_inexact_array)
        return jax.value_and_grad(lambda numbers: function(eqx.combine(numbers, rest), *arguments))(numbers)

    return compute


@pytest.mark.parametrize("name", mostly_slow(["separate", "one set of points"], "one set of points"))
def test_sparse_posteriors(both_ways, name):
    process = PROCESSES[name]()

    def predictions(process):
        joint = process.predict(X[:4], covariance="full")
        return tuple(process.predict(X)), tuple(joint), process.kl()

    assert_close(*both_ways(predictions, process))


@pytest.mark.parametrize("name", mostly_slow(PROCESSES, "separate, not whitened", "several outputs of one kernel"))
def test_bounds_and_their_gradients(both_ways, name):
    model = mc.Model(PROCESSES[name](), mc.likelihoods.Gaussian(0.1))
    assert_close(*both_ways(with_gradients(lambda model: mc.objectives.ELBO()(model, (X, GAPS))), model))


def fourier():
    features = mc.inducing.FourierFeatures(-1.5, 1.5, 3)
    return mc.Sparse(mc.GP(ALIKE), mc.inducing.Separate([features] * P))


OBJECTIVES = {
    "collapsed": (lambda: sparse(ALIKE, separate(P)), mc.objectives.CollapsedELBO(), Y),
    "collapsed, with gaps": (lambda: sparse(ALIKE, SHARED), mc.objectives.CollapsedELBO(), GAPS),
    "collapsed, Fourier features": (fourier, mc.objectives.CollapsedELBO(), Y),
    "exact": (lambda: mc.GP(ALIKE), mc.objectives.MarginalLikelihood(), Y),
}


@pytest.mark.parametrize("name", mostly_slow(OBJECTIVES, "collapsed, with gaps", "exact"))
def test_other_objectives_and_their_gradients(both_ways, name):
    posterior, objective, Y = OBJECTIVES[name]
    model = mc.Model(posterior(), mc.likelihoods.Gaussian(0.1))
    assert_close(*both_ways(with_gradients(lambda model: objective(model, (X, Y))), model))


def test_divergence_from_another_prior(both_ways):
    process = PROCESSES["separate"]()
    other = mc.GP(mc.kernels.SeparateIndependent([mc.kernels.Matern32(0.5) for _ in range(P)]))
    assert_close(*both_ways(with_gradients(lambda process: process.kl(other)), process))


@pytest.mark.parametrize(
    "divergence", [mc.divergences.Renyi(0.5), pytest.param(mc.divergences.Wasserstein(), marks=pytest.mark.slow)]
)
def test_joint_divergences(both_ways, divergence):
    """Between the values of two processes at some inputs, independent between outputs."""
    prior = mc.GP(ALIKE)
    value = with_gradients(lambda process: divergence.between(process, prior, X[::4]))
    assert_close(*both_ways(value, PROCESSES["separate"]()))
