"""Divergences of processes seen at inputs; between a sparse posterior and a prior, of the inducing variables."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from cases import mostly_slow
from mercer.divergences import KL, GaussianWasserstein, Projected, Renyi, Wasserstein

N, M, D = 5, 3, 2
_rng = np.random.default_rng(0)
X, Z = _rng.uniform(-1.0, 1.0, size=(N, D)), _rng.uniform(-1.0, 1.0, size=(M, D))
POINTS = mc.inducing.Points(Z)
RBF, MATERN = mc.kernels.RBF(0.8, 1.2), mc.kernels.Matern32(0.5, 0.9)
W = np.array([[1.0, 0.3], [-0.4, 0.8]])
OWN, OTHER = mc.means.Constant([0.3, -0.5]), mc.means.Linear(np.array([[0.2, 0.1], [-0.3, 0.4]]), 0.7)


def sparse(prior, inducing, num_outputs=None, whiten=True, seed=1, **options):
    """With a q(u) away from the prior."""
    rng = np.random.default_rng(seed)
    q = mc.Sparse(prior, inducing, num_outputs, whiten, **options)
    q_sqrt = 0.7 * q.q_sqrt + 0.1 * np.tril(rng.normal(size=q.q_sqrt.shape))
    return eqx.tree_at(lambda q: (q.q_mu, q.q_sqrt), q, (q.q_mu + rng.normal(size=q.q_mu.shape), q_sqrt))


def dense_kl(m, S, n, K):
    inverse, d = np.linalg.inv(K), m - n
    logs = np.linalg.slogdet(K)[1] - np.linalg.slogdet(S)[1]
    return 0.5 * (np.trace(inverse @ S) - len(m) + logs + d @ inverse @ d)


def independent(kernels):
    return mc.kernels.SeparateIndependent(kernels)


# The posterior's prior, the other prior, the inducing variables, and the number of outputs where it has to be said
CASES = {
    "single": (mc.GP(RBF, OWN), mc.GP(MATERN, OTHER), POINTS, 2),
    "other mean only": (mc.GP(RBF, OWN), mc.GP(RBF), POINTS, 2),
    "shared": (
        mc.GP(mc.kernels.SharedIndependent(RBF, 2), OWN),
        mc.GP(independent([MATERN, RBF]), OTHER),
        mc.inducing.Shared(POINTS),
        None,
    ),
    "separate": (
        mc.GP(independent([RBF, MATERN]), OWN),
        mc.GP(mc.kernels.SharedIndependent(RBF, 2), OTHER),
        mc.inducing.Separate([POINTS, mc.inducing.Points(Z + 0.3)]),
        None,
    ),
    "coregionalised": (
        mc.GP(mc.kernels.LinearCoregionalisation([RBF, MATERN], W)),
        mc.GP(mc.kernels.LinearCoregionalisation([MATERN, RBF], W)),
        mc.inducing.Shared(POINTS),
        None,
    ),
    "all outputs at points": (
        mc.GP(mc.kernels.LinearCoregionalisation([RBF, MATERN], W), OWN),
        mc.GP(mc.kernels.IntrinsicCoregionalisation(RBF, W), OTHER),
        POINTS,
        None,
    ),
}


def kernels_of(kernel, num_groups):
    if isinstance(kernel, mc.kernels.MultioutputKernel):
        parts = kernel.latent.parts
        return parts * (num_groups // len(parts))
    return (kernel,) * num_groups


def moments(name, prior, inducing):
    """Means [M] and covariances [M, M] of u under a prior, for each group."""
    if name == "all outputs at points":
        g = mc.GP(prior.kernel, prior.mean).predict(Z, "full")
        return [np.asarray(g.mean).ravel()], [np.asarray(g.cov).reshape(2 * M, 2 * M)]
    points = [part.Z for part in inducing.parts(2)] if isinstance(inducing, mc.inducing.Separate) else [Z, Z]
    means = [np.zeros(M)] * 2
    if name != "coregionalised":
        means = [np.broadcast_to(prior.mean(z), (M, 2))[:, p] for p, z in enumerate(points)]
    return means, [np.asarray(k(z)) for k, z in zip(kernels_of(prior.kernel, 2), points, strict=True)]


@pytest.mark.parametrize(
    ("name", "whiten"),
    mostly_slow(
        itertools.product(CASES, [True, False]), *((name, number % 2 == 0) for number, name in enumerate(CASES))
    ),
)
def test_kl_of_the_inducing_variables_under_another_prior(name, whiten):
    own, other, inducing, num_outputs = CASES[name]
    q = sparse(own, inducing, num_outputs, whiten)
    (own_means, own_covs), (means, covs) = moments(name, own, inducing), moments(name, other, inducing)
    expected = 0.0
    for group, (m, K) in enumerate(zip(own_means, own_covs, strict=True)):
        R = np.linalg.cholesky(K) if whiten else np.eye(len(K))
        root = R @ q.q_sqrt[group]
        expected += dense_kl(m + R @ q.q_mu[:, group], root @ root.T, means[group], covs[group])
    np.testing.assert_allclose(KL().between(q, other, X), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["single", "separate"])
def test_kl_under_the_same_prior_passed_explicitly(name):
    own, _, inducing, num_outputs = CASES[name]
    by_own, usual = eqx.filter_jit(lambda q: (q.kl(q.prior), q.kl()))(sparse(own, inducing, num_outputs))
    np.testing.assert_allclose(by_own, usual, rtol=1e-7)


def test_kl_under_another_prior_of_blocks_and_other_variables():
    """Block-diagonal q(u), and variables that are not values."""
    q = sparse(mc.GP(RBF), mc.inducing.Derivative(Z, 0), covariance="diag")
    S = np.asarray(q.root()[0])
    R = np.linalg.cholesky(q.Kuu().dense())
    K = mc.covariances.Kuu(q.inducing, mc.kernels.Matern52(0.7)).dense()
    other = mc.GP(mc.kernels.Matern52(0.7), mc.means.Linear(np.array([[0.5], [0.0]])))
    expected = dense_kl(R @ q.q_mu[:, 0], R @ S @ S.T @ R.T, np.full(M, 0.5), np.asarray(K))
    np.testing.assert_allclose(KL().between(q, other, X), expected, rtol=1e-6)


def test_kl_of_a_sparse_posterior_does_not_see_the_inputs():
    q = sparse(mc.GP(RBF, OWN), POINTS, 2)
    assert KL().between(q, q.prior, X) == KL().between(q, q.prior, X[:1]) == eqx.filter_jit(mc.Sparse.kl)(q)
    other = CASES["single"][1]
    assert KL().between(q, other, X) == KL().between(q, other, X[:2])


def test_other_priors_that_do_not_fit():
    q = sparse(mc.GP(RBF), POINTS, 2)
    with pytest.raises(ValueError, match=r"kl expects a mercer.GP, got Conditioned"):
        q.kl(mc.Conditioned(mc.GP(RBF), X, X[:, :1]))
    with pytest.raises(ValueError, match="expects a kernel of one output, got SharedIndependent"):
        q.kl(mc.GP(mc.kernels.SharedIndependent(RBF, 2)))
    latent = mc.Sparse(mc.GP(mc.kernels.SharedIndependent(RBF, 2)), mc.inducing.Shared(POINTS))
    with pytest.raises(ValueError, match="expects a kernel of 2 latent functions, got RBF"):
        latent.kl(mc.GP(RBF))
    joint = mc.Sparse(mc.GP(mc.kernels.IntrinsicCoregionalisation(RBF, W)), POINTS)
    with pytest.raises(ValueError, match="expects a kernel of 2 outputs, got RBF"):
        joint.kl(mc.GP(RBF))


CONDITIONED = mc.Conditioned(mc.GP(RBF), X[:2], np.array([[0.3, -0.2], [0.5, 1.0]]), noise=0.1)
MIXED = mc.GP(mc.kernels.IntrinsicCoregionalisation(RBF, W), OWN)


@pytest.mark.parametrize("q", [mc.GP(MATERN, OWN), CONDITIONED, MIXED], ids=["GP", "Conditioned", "coregionalised"])
def test_between_is_joint_at_the_inputs(q):
    p = mc.GP(RBF, mc.means.Constant(0.1)) if q is not MIXED else mc.GP(independent([RBF, MATERN]))
    layout = "inputs" if q is not MIXED else "full"
    expected = KL().joint(q.predict(X, layout), p.predict(X, layout))
    compiled = eqx.filter_jit(lambda q, p, X: KL().between(q, p, X))
    np.testing.assert_allclose(compiled(q, p, jnp.asarray(X)), expected, rtol=1e-9)


def test_layouts():
    q, p = mc.GP(MATERN, OWN), mc.GP(RBF)
    marginals = q.predict(X), p.predict(X)
    for divergence in (Projected(Renyi(0.5)), GaussianWasserstein(trace=False)):
        assert divergence.layout(q, p) == divergence.layout(MIXED, p) == "diag"
        np.testing.assert_allclose(divergence.between(q, p, X), divergence.joint(*marginals), rtol=1e-12)
    assert (KL().layout(q, p), KL().layout(MIXED, p), KL().layout(sparse(p, POINTS), p)) == ("inputs", "full", None)
    distance = Wasserstein().between(q, p, X) / N
    np.testing.assert_allclose(GaussianWasserstein().between(q, p, X), distance, rtol=1e-12)


def test_gradients_go_to_both_processes():
    @eqx.filter_jit
    @eqx.filter_grad
    def gradient(processes):
        return GaussianWasserstein().between(*processes, X) + Renyi(0.5).between(*processes, X)

    for leaf in jax.tree.leaves(gradient((mc.GP(MATERN, OWN), mc.GP(RBF)))):
        assert np.isfinite(leaf).all() and np.any(leaf != 0.0)


def test_dtype_of_the_inputs():
    q = sparse(mc.GP(RBF, OWN), POINTS, 2)
    for divergence in (KL(), Projected(KL())):
        assert divergence.between(q, mc.GP(MATERN), X.astype(np.float32)).dtype == np.float32


def test_what_is_no_process_and_no_input():
    with pytest.raises(ValueError, match="two processes, got GP and RBF"):
        KL().between(mc.GP(RBF), RBF, X)
    with pytest.raises(ValueError, match="X must be two-dimensional"):
        KL().between(mc.GP(RBF), mc.GP(MATERN), X[:, 0])
    for divergence in (Projected(KL()), GaussianWasserstein()):
        with pytest.raises(ValueError, match="is a mean over inputs, got Derivative"):
            divergence.between(mc.GP(RBF), mc.GP(RBF), mc.inducing.Derivative(X, 0))
    # A joint divergence may be seen at any functionals.
    assert KL().between(mc.GP(RBF), mc.GP(mc.kernels.RBF(1.0)), mc.inducing.Derivative(X, 0)) > 0.0
