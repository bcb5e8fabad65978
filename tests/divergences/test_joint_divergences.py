"""Divergences of joint Gaussians: against dense formulas, in all layouts, and as sums over independent values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.stats
from divergence_instances import INVARIANT, SCALAR

import mercer as mc
from mercer.divergences import (
    KL,
    GaussianWasserstein,
    Hellinger,
    Projected,
    Renyi,
    SquaredDifference,
    Wasserstein,
)
from mercer.linalg import FactorisationError

LAYOUTS = ["diag", "outputs", "inputs", "full"]
N, P = 3, 2
NAMES = [*SCALAR, "Renyi(1.2)"]
DIVERGENCES = {**SCALAR, "Renyi(1.2)": Renyi(1.2)}


def gaussian(layout, seed, num=P, dtype=np.float64):
    """Of well-conditioned covariance, so that Rényi's divergence of order 1.2 is defined between two of them."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(N, num))
    G, J = {"diag": (N * num, 1), "outputs": (N, num), "inputs": (num, N), "full": (1, N * num)}[layout]
    root = np.eye(J) + 0.2 * rng.normal(size=(G, J, J))
    shape = {"diag": (N, num), "outputs": (N, num, num), "inputs": (num, N, N), "full": (N, num, N, num)}[layout]
    cov = (root @ root.transpose(0, 2, 1)).reshape(shape)
    return mc.Gaussian(jnp.asarray(mean, dtype), jnp.asarray(cov, dtype), layout)


def dense(g):
    """The mean [N P] and covariance [N P, N P] of all values, those without a covariance being independent."""
    cov = np.zeros((N, P, N, P))
    for n in range(N):
        for p in range(P):
            if g.layout == "diag":
                cov[n, p, n, p] = g.cov[n, p]
            elif g.layout == "outputs":
                cov[n, p, n, :] = g.cov[n, p]
            elif g.layout == "inputs":
                cov[n, p, :, p] = g.cov[p, n]
            else:
                cov[n, p] = g.cov[n, p]
    return np.asarray(g.mean).ravel(), cov.reshape(N * P, N * P)


def by_formula(name, m, K, n, R, alpha=None):
    """Of N(m, K) from N(n, R), by determinants, inverses and square roots."""
    d, det, inv, sqrt = m - n, np.linalg.slogdet, np.linalg.inv, scipy.linalg.sqrtm
    if name == "KL":
        return 0.5 * (np.trace(inv(R) @ K) - len(m) + det(R)[1] - det(K)[1] + d @ inv(R) @ d)
    if name == "ReverseKL":
        return by_formula("KL", n, R, m, K)
    if name == "Jeffreys":
        return by_formula("KL", m, K, n, R) + by_formula("KL", n, R, m, K)
    if name == "Renyi(1)":
        return by_formula("KL", m, K, n, R)
    if name.startswith("Renyi"):
        alpha = float(name[6:-1])
        D = alpha * R + (1.0 - alpha) * K
        logs = (det(D)[1] - (1.0 - alpha) * det(K)[1] - alpha * det(R)[1]) / (1.0 - alpha)
        return 0.5 * logs + 0.5 * alpha * d @ inv(D) @ d
    if name == "Bhattacharyya":
        H = 0.5 * (K + R)
        return d @ inv(H) @ d / 8.0 + 0.5 * (det(H)[1] - 0.5 * det(K)[1] - 0.5 * det(R)[1])
    if name == "Hellinger":
        return 1.0 - np.exp(-by_formula("Bhattacharyya", m, K, n, R))
    if name == "Wasserstein":
        root = np.real(sqrt(R))
        return d @ d + np.trace(K + R - 2.0 * np.real(sqrt(root @ K @ root)))
    return d @ d + np.sum((K - R) ** 2)


@functools.partial(jax.jit, static_argnums=2)
def values(q, p, names=tuple(NAMES)):
    """Joint divergences: compiled together, they take less time."""
    return {name: DIVERGENCES[name].joint(q, p) for name in names}


@jax.jit
def _values_and_gradients(q, p):
    return {name: jax.value_and_grad(divergence.joint)(q, p) for name, divergence in DIVERGENCES.items()}


def value_and_gradient(name, q, p):
    """A joint divergence and its gradient by q."""
    return _values_and_gradients(q, p)[name]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dense_formulas(layout):
    q, p = gaussian(layout, 0), gaussian(layout, 1)
    for name, value in values(q, p).items():
        expected = by_formula(name, *dense(q), *dense(p))
        np.testing.assert_allclose(value, expected, rtol=2e-8, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("name", NAMES)
def test_equal_gaussians(name):
    """0 to rounding, with a derivative that is 0 to the root of it."""
    q = gaussian("inputs", 0)
    value, gradient = value_and_gradient(name, q, q)
    assert 0.0 <= value < 1e-13
    np.testing.assert_allclose(gradient.mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(gradient.cov, 0.0, atol=1e-7)
    diagonal = gaussian("diag", 0)
    assert values(diagonal, diagonal)[name] == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_differences(name):
    q, p = gaussian("inputs", 0), gaussian("inputs", 1)
    _, gradient = value_and_gradient(name, q, p)
    rng = np.random.default_rng(3)
    step, d_mean, d_cov = 1e-5, rng.normal(size=(N, P)), rng.normal(size=(P, N, N))
    d_cov = d_cov + d_cov.transpose(0, 2, 1)

    def moved(sign):
        return mc.Gaussian(q.mean + sign * step * d_mean, q.cov + sign * step * d_cov, "inputs")

    difference = (values(moved(1.0), p)[name] - values(moved(-1.0), p)[name]) / (2.0 * step)
    slope = np.sum(gradient.mean * d_mean) + np.sum(gradient.cov * d_cov)
    np.testing.assert_allclose(slope, difference, rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_independent_values_add_up(name):
    """A diagonal covariance in any layout is what "diag" is: a sum over values, but for Hellinger's distance."""
    q, p, divergence = gaussian("diag", 0), gaussian("diag", 1), DIVERGENCES[name]
    terms = divergence(q.mean, q.cov, p.mean, p.cov)
    expected = 1.0 - np.prod(1.0 - terms) if name == "Hellinger" else np.sum(terms)
    np.testing.assert_allclose(values(q, p)[name], expected, rtol=1e-12)

    def inputs(g):
        return mc.Gaussian(g.mean, g.cov.T[:, :, None] * np.eye(N), "inputs")

    np.testing.assert_allclose(values(inputs(q), inputs(p))[name], expected, rtol=1e-8)


@pytest.mark.parametrize("name", [*INVARIANT, "Renyi(1.2)"])
def test_invariant_to_a_common_affine_map(name):
    rng = np.random.default_rng(5)
    T, t = np.eye(N) + 0.4 * rng.normal(size=(N, N)), rng.normal(size=(N, 1))
    q, p = gaussian("inputs", 0), gaussian("inputs", 1)

    def moved(g):
        return mc.Gaussian(T @ g.mean + t, T @ g.cov @ T.T, "inputs")

    np.testing.assert_allclose(values(moved(q), moved(p))[name], values(q, p)[name], rtol=1e-7)


def test_kl_by_monte_carlo():
    q, p = gaussian("full", 0), gaussian("full", 1)
    (m, K), (n, R) = dense(q), dense(p)
    draws = np.asarray(q.sample(20_000, key=jax.random.key(0))).reshape(20_000, -1)
    density = scipy.stats.multivariate_normal
    ratios = density(m, K).logpdf(draws) - density(n, R).logpdf(draws)
    error = ratios.std() / np.sqrt(len(ratios))
    assert abs(KL().joint(q, p) - ratios.mean()) < 4.0 * error


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_output_of_p_stands_for_each_of_q(layout):
    q, one = gaussian(layout, 0), gaussian(layout, 1, num=1)
    mean = jnp.broadcast_to(one.mean, (N, P))
    single = one.cov.reshape(N) if layout in ("diag", "outputs") else one.cov.reshape(N, N)
    if layout in ("diag", "outputs"):
        cov = jnp.broadcast_to(single[:, None], (N, P))
        cov = cov if layout == "diag" else cov[:, :, None] * jnp.eye(P)
    else:
        cov = jnp.broadcast_to(single, (P, N, N))
        cov = cov if layout == "inputs" else jnp.einsum("pnm,pq->npmq", cov, jnp.eye(P))
    expected, names = values(q, mc.Gaussian(mean, cov, layout)), NAMES if layout == "inputs" else ["KL", "Wasserstein"]
    for name, value in values(q, one, tuple(names)).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-12, err_msg=name)


def test_over_inputs():
    q, p = gaussian("inputs", 0), gaussian("inputs", 1)
    for divergence in (KL(), Hellinger(), Renyi(0.5)):
        expected = divergence(q.mean, q.variance, p.mean, p.variance).sum(1).mean()
        np.testing.assert_allclose(Projected(divergence).joint(q, p), expected, rtol=1e-12)
    distance = Wasserstein().joint(q, p) / N
    np.testing.assert_allclose(GaussianWasserstein().joint(q, p), distance, rtol=1e-12)
    bound = np.sum((q.mean - p.mean) ** 2 + q.variance + p.variance) / N
    for pair in ((q, p), [mc.Gaussian(g.mean, g.variance) for g in (q, p)]):
        np.testing.assert_allclose(GaussianWasserstein(trace=False).joint(*pair), bound, rtol=1e-12)
    assert bound > distance
    with pytest.raises(ValueError, match='expects the layout "inputs" or "full", got \'diag\''):
        GaussianWasserstein().joint(gaussian("diag", 0), gaussian("diag", 1))


def test_eigenvalues_sorted_separately_give_a_smaller_distance():
    """The misprint of paper 000, equation 5.11."""
    q, p = gaussian("inputs", 0), gaussian("inputs", 1)
    traces = np.sum(q.variance + p.variance) + np.sum((q.mean - p.mean) ** 2)
    wrong = traces - 2.0 * np.sum(np.sqrt(np.linalg.eigvalsh(q.cov) * np.linalg.eigvalsh(p.cov)))
    assert wrong < Wasserstein().joint(q, p) - 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_single_precision(name):
    q, p = gaussian("inputs", 0, dtype=np.float32), gaussian("inputs", 1, dtype=np.float32)
    value, gradient = value_and_gradient(name, q, p)
    assert value.dtype == gradient.cov.dtype == np.float32
    exact = values(gaussian("inputs", 0), gaussian("inputs", 1))[name]
    np.testing.assert_allclose(value, exact, rtol=2e-3)
    value, gradient = value_and_gradient(name, q, q)
    assert 0.0 <= value < 1e-4 and np.isfinite(gradient.cov).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SCALAR)
def test_singular_covariances(name, dtype):
    """Smooth kernels on close inputs have covariances that are singular to rounding: values and gradients stay finite."""
    x = np.linspace(0.0, 1e-4, N)[:, None]
    covs = [jnp.stack([mc.kernels.RBF(s)(x), mc.kernels.RBF(2.0 * s)(x)]).astype(dtype) for s in (0.5, 0.7)]
    q, p = (mc.Gaussian(jnp.zeros((N, P), dtype), cov, "inputs") for cov in covs)
    for pair in ((q, p), (q, q)):
        value, gradient = value_and_gradient(name, *pair)
        assert np.isfinite(value) and value >= 0.0 and np.isfinite(gradient.cov).all()
    assert value < (1e-2 if dtype == np.float32 else 1e-7)


def test_a_renyi_divergence_that_is_infinite():
    q, p = gaussian("inputs", 0), gaussian("inputs", 1)
    wide = mc.Gaussian(q.mean, 10.0 * q.cov, "inputs")
    with pytest.raises(ValueError, match=r"alpha = 3 > 1 the divergence is infinite, as .* not positive definite"):
        Renyi(3.0).joint(wide, p)
    value, gradient = jax.jit(jax.value_and_grad(lambda q: Renyi(3.0).joint(q, p)))(wide)
    assert value == np.inf and np.isfinite(gradient.cov).all() and np.isfinite(gradient.mean).all()
    with pytest.raises(ValueError, match="alpha = 3 > 1"):
        Projected(Renyi(3.0)).joint(wide, p)


def test_what_cannot_be_compared():
    q = gaussian("inputs", 0)
    with pytest.raises(ValueError, match=r"two mercer.Gaussian, got Gaussian and GP"):
        KL().joint(q, mc.GP(mc.kernels.RBF()))
    with pytest.raises(ValueError, match="the same layout, got 'inputs' and 'diag'"):
        KL().joint(q, gaussian("diag", 1))
    with pytest.raises(ValueError, match=r"as many inputs and outputs .* got means \(3, 2\) and \(2, 2\)"):
        KL().joint(q, mc.Gaussian(q.mean[:2], q.cov[:, :2, :2], "inputs"))
    with pytest.raises(ValueError, match="got means"):  # one output of q does not stand for each of p
        KL().joint(gaussian("inputs", 0, num=1), q)
    with pytest.raises(ValueError, match="q must have variances that are positive and finite, got -1"):
        KL().joint(mc.Gaussian(q.mean, -q.cov / q.cov[0, 0, 0], "inputs"), q)
    indefinite = mc.Gaussian(q.mean, jnp.broadcast_to(2.0 - jnp.eye(N), (P, N, N)), "inputs")
    with pytest.raises(FactorisationError, match=r"the covariance of p \[3 x 3\] is not positive definite"):
        KL().joint(q, indefinite)


def test_variances_that_rounding_has_taken_away():
    """A posterior that knows a value has a variance of 0, or a little less: divergences stay finite."""
    mean, var = jnp.zeros((3, 1)), jnp.asarray([[1e-17], [0.0], [-1e-17]])
    q, p = mc.Gaussian(mean, var), mc.Gaussian(mean, jnp.ones((3, 1)))
    for value, gradient in _values_and_gradients(q, p).values():
        assert np.isfinite(value) and np.isfinite(gradient.cov).all()
    assert SquaredDifference().joint(q, p) == 3.0
