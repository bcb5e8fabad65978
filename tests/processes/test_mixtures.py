"""Mixtures: their moments are those of draws, and every layout is a slice of the fullest one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

import mercer as mc
from cases import mostly_slow
from mercer.likelihoods.of_predictions import expected_log_prob, log_predictive, observations

S, N, P = 3, 4, 2


def full(seed=0):
    random = np.random.default_rng(seed)
    roots = random.normal(size=(S, N * P, N * P)) / 3.0
    covs = (roots @ np.swapaxes(roots, 1, 2) + 0.05 * np.eye(N * P)).reshape(S, N, P, N, P)
    return mc.Mixture(jnp.asarray(random.normal(size=(S, N, P))), jnp.asarray(covs), "full")


def in_layout(mixture, layout):
    """The same mixture, with what a layout holds of its covariances."""
    sums = {"diag": "snpnp->snp", "outputs": "snpnq->snpq", "inputs": "snpmp->spnm", "full": "snpmq->snpmq"}
    return mc.Mixture(mixture.means, jnp.einsum(sums[layout], mixture.covs), layout)


LAYOUTS = ["diag", "outputs", "inputs", "full"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_slices_of_one(layout):
    whole, sliced = full(), in_layout(full(), layout)
    sums = {"diag": "npnp->np", "outputs": "npnq->npq", "inputs": "npmp->pnm", "full": "npmq->npmq"}
    np.testing.assert_allclose(sliced.cov, np.einsum(sums[layout], whole.cov), atol=1e-12)
    np.testing.assert_allclose(sliced.variance, np.einsum("npnp->np", whole.cov), atol=1e-12)
    mean, cov = sliced
    np.testing.assert_allclose(mean, np.mean(whole.means, axis=0), atol=1e-14)
    assert cov.shape == sliced.cov.shape


@pytest.mark.parametrize("layout", LAYOUTS)
def test_draws_have_the_moments(layout):
    mixture, num = in_layout(full(), layout), 40_000
    draws = np.asarray(mixture.sample(num, key=jax.random.key(0)))
    assert draws.shape == (num, N, P)
    error = 5.0 * np.sqrt(np.asarray(mixture.variance) / num)
    assert (np.abs(draws.mean(axis=0) - mixture.mean) < error).all()
    np.testing.assert_allclose(draws.var(axis=0), mixture.variance, rtol=0.06)
    if layout == "full":
        flat = draws.reshape(num, -1)
        np.testing.assert_allclose(np.cov(flat.T), mixture.cov.reshape(N * P, N * P), atol=0.06)


def test_one_component_is_its_gaussian():
    gaussian = mc.Gaussian(full().means[0], in_layout(full(), "diag").covs[0])
    mixture = mc.Mixture.of([gaussian])
    np.testing.assert_allclose(mixture.mean, gaussian.mean)
    np.testing.assert_allclose(mixture.cov, gaussian.cov)
    np.testing.assert_allclose(mc.divergences.KL().joint(mixture, gaussian), 0.0, atol=1e-12)


def test_a_likelihood_sees_components():
    """Against the formulas written out: the mean, the log-mean-exp, and the law of total variance."""
    mixture, likelihood = in_layout(full(), "diag"), mc.likelihoods.Poisson()
    Y = jnp.asarray(np.random.default_rng(1).poisson(2.0, (N, P)).astype(float))

    @jax.jit
    def compiled(mixture, Y):
        each = [(likelihood.expected_log_prob(*q, Y), likelihood.log_predictive(*q, Y), *likelihood.predict(*q))
                for q in mixture.components()]  # fmt: skip
        of_all = expected_log_prob(likelihood, mixture, Y), log_predictive(likelihood, mixture, Y)
        return each, of_all, observations(likelihood, mixture)

    each, (expected_of_all, log_density_of_all), predicted = compiled(mixture, Y)
    expected, log_density, means, variances = map(np.stack, zip(*each, strict=True))
    np.testing.assert_allclose(expected_of_all, expected.mean(axis=0), rtol=1e-12)
    log_mean = logsumexp(log_density, axis=0) - np.log(S)
    np.testing.assert_allclose(log_density_of_all, log_mean, rtol=1e-12)
    np.testing.assert_allclose(predicted.mean, means.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(predicted.variance, variances.mean(axis=0) + means.var(axis=0), rtol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scaling_scales_the_covariance(layout):
    mixture, root = in_layout(full(), layout), jnp.asarray([0.5, 2.0])
    scaled = mixture.scaled(root)
    whole = root[:, None, None] * full().cov * root
    sums = {"diag": "npnp->np", "outputs": "npnq->npq", "inputs": "npmp->pnm", "full": "npmq->npmq"}
    np.testing.assert_allclose(scaled.mean, mixture.mean, atol=1e-12)
    np.testing.assert_allclose(scaled.cov, np.einsum(sums[layout], whole), atol=1e-12)


DIVERGENCES = ["KL", "ReverseKL", "Jeffreys", "Bhattacharyya", "Hellinger", "Wasserstein", "Renyi"]


@pytest.mark.parametrize("name", mostly_slow(DIVERGENCES, "Jeffreys", "Wasserstein"))
def test_the_divergence_of_a_mixture_is_the_mean_over_components(name):
    divergence = getattr(mc.divergences, name)()
    q = in_layout(full(), "inputs")
    p = mc.Gaussian(jnp.zeros((N, 1)), jnp.broadcast_to(jnp.eye(N), (1, N, N)), "inputs")
    means = np.mean([divergence.joint(component, p) for component in q.components()])
    np.testing.assert_allclose(divergence.joint(q, p), means, rtol=1e-10)
    pairs = [
        divergence.joint(*pair) for pair in zip(q.components(), in_layout(full(1), "inputs").components(), strict=True)
    ]
    np.testing.assert_allclose(divergence.joint(q, in_layout(full(1), "inputs")), np.mean(pairs), rtol=1e-10)


def test_kl_of_a_mixture_is_an_upper_bound():
    """Against the KL of the mixture itself, by quadrature."""
    q = mc.Mixture(jnp.asarray([[[-1.0]], [[0.7]]]), jnp.asarray([[[0.3]], [[0.5]]]))
    p = mc.Gaussian(jnp.zeros((1, 1)), jnp.ones((1, 1)))
    x = np.linspace(-9.0, 9.0, 20_001)
    normal = lambda m, v: np.exp(-0.5 * (x - m) ** 2 / v) / np.sqrt(2.0 * np.pi * v)  # noqa: E731
    density = 0.5 * (normal(-1.0, 0.3) + normal(0.7, 0.5))
    truth = np.sum(density * np.log(density / normal(0.0, 1.0))) * (x[1] - x[0])
    assert truth < mc.divergences.KL().joint(q, p)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="Mixture expects means"):
        mc.Mixture(jnp.zeros((4, 2)), jnp.zeros((4, 2)))
    with pytest.raises(ValueError, match="one layout"):
        mc.Mixture.of([mc.Gaussian(jnp.zeros((1, 1)), jnp.ones((1, 1))), full().components()[0]])
    with pytest.raises(ValueError, match="pairs of components"):
        mc.divergences.KL().joint(full(), mc.Mixture(full().means[:2], full().covs[:2], "full"))
