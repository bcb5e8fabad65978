"""Variational kernels: where they start, what they are equal to, and what of them is learned."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from mercer import kernels
from mercer.parameters import trainable

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 2))
Y = np.stack([np.sin(2.0 * X[:, 0]), X[:, 1] - 0.3 * X[:, 0]], axis=1)
Z = X[:7] + 0.05
NEW = rng.normal(size=(6, 2))
PRIOR = kernels.Matern52([0.8, 1.2], 1.3)
NOISE = 0.2


def cholesky_model(root, mean=None):
    posterior = mc.GP(kernels.CholeskySVGP(PRIOR, Z, root), mean)
    return mc.Model(posterior, mc.likelihoods.Gaussian(NOISE))


@pytest.mark.parametrize("layout", ["diag", "inputs"])
def test_with_a_sparse_mean_the_optimum_is_the_collapsed_posterior(layout):
    base = mc.means.Constant(0.4)
    start = mc.Model(mc.Sparse(mc.GP(PRIOR, base), mc.inducing.Points(Z), 2), mc.likelihoods.Gaussian(NOISE))
    expected = mc.objectives.CollapsedELBO().posterior(start, X, Y).predict(NEW, layout)
    mean = mc.means.Sparse.optimal(PRIOR, Z, X, Y, NOISE, base)
    actual = mc.GP(kernels.CholeskySVGP.optimal(PRIOR, Z, X, NOISE), mean).predict(NEW, layout)
    np.testing.assert_allclose(actual.mean, expected.mean, rtol=1e-9)
    np.testing.assert_allclose(actual.cov, expected.cov, rtol=1e-8, atol=1e-12)


def psi():
    return np.asarray(PRIOR(Z) + PRIOR(Z, X) @ PRIOR(X, Z) / NOISE)


def test_the_starts_are_those_of_the_paper():
    Sigma = kernels.CholeskySVGP.optimal(PRIOR, Z, X, NOISE).Sigma
    np.testing.assert_allclose(Sigma, np.linalg.inv(psi()), rtol=1e-5)


def test_the_diagonal_start_is_the_best_there_is():
    """It makes the bound, as a function of v alone, stationary: that of a `Sparse` with covariance K diag(v) K."""
    K = PRIOR(Z)

    def bound(log_v):
        q_sqrt = jnp.linalg.cholesky(K @ jnp.diag(jnp.exp(log_v)) @ K)[None]
        q = mc.Sparse(mc.GP(PRIOR), mc.inducing.Points(Z), whiten=False, q_sqrt=q_sqrt)
        return mc.elbo(mc.Model(q, mc.likelihoods.Gaussian(NOISE)), X, Y[:, :1])

    v = kernels.DiagonalSVGP.optimal(PRIOR, Z, X, NOISE).v
    np.testing.assert_allclose(v, 1.0 / np.diagonal(psi()), rtol=1e-9)
    np.testing.assert_allclose(jax.jit(jax.grad(bound))(jnp.log(v)), 0.0, atol=1e-6)
    assert np.abs(jax.jit(jax.grad(bound))(jnp.log(2.0 * v))).min() > 0.1


def test_many_data_are_taken_in_blocks():
    many = np.random.default_rng(1).normal(size=(2500, 2))
    C = np.linalg.solve(np.linalg.cholesky(PRIOR(Z)), PRIOR(Z, many))
    S = np.linalg.inv(np.eye(7) + C @ C.T / NOISE)
    root = kernels.CholeskySVGP.optimal(PRIOR, Z, many, NOISE).root
    np.testing.assert_allclose(root @ root.T, S, rtol=1e-6, atol=1e-10)


def test_without_a_root_it_is_the_prior():
    np.testing.assert_allclose(kernels.CholeskySVGP(PRIOR, Z)(NEW), PRIOR(NEW), atol=1e-12)


ZERO_AT_Z = {
    "SparsePosterior": kernels.SparsePosterior(PRIOR, Z),
    "FixedSparsePosterior": kernels.FixedSparsePosterior(PRIOR, PRIOR, Z),
    "KernelisedSVGP": kernels.KernelisedSVGP(PRIOR, Z, kernels.Constant(1e-12)),
}


@pytest.mark.parametrize("name", ZERO_AT_Z)
def test_what_is_known_at_Z(name):
    """All are the covariance of the prior given its values at Z: of observations with next to no noise."""
    exact = mc.Conditioned(mc.GP(PRIOR), Z, np.zeros((7, 1)), noise=1e-10)
    np.testing.assert_allclose(ZERO_AT_Z[name](NEW), exact.predict(NEW, "inputs").cov[0], atol=1e-8)
    at_Z = ZERO_AT_Z[name].diag(Z)
    assert (at_Z > 0.0).all() and (at_Z < 1e-8).all()


def test_a_larger_base_of_the_fixed_posterior_leaves_variances_positive():
    kernel = kernels.FixedSparsePosterior(kernels.RBF(1.0, 5.0), kernels.RBF(1.0, 1.0), Z)
    assert (kernel.diag(Z) > 0.0).all()


LEARNED = {
    "CholeskySVGP": (kernels.CholeskySVGP(PRIOR, Z), {".root"}),
    "DiagonalSVGP": (kernels.DiagonalSVGP(PRIOR, Z), {".v"}),
    "KernelisedSVGP": (kernels.KernelisedSVGP(PRIOR, Z, kernels.Constant()), {".base.variance"}),
    "SparsePosterior": (
        kernels.SparsePosterior(PRIOR, Z),
        {".base.lengthscale", ".base.variance", ".Z"},
    ),
    "FixedSparsePosterior": (
        kernels.FixedSparsePosterior(PRIOR, PRIOR, Z),
        {".base.lengthscale", ".base.variance"},
    ),
    "Tempered": (kernels.Tempered(PRIOR, 0.7), {".factor"}),
    "means.Sparse": (mc.means.Sparse(PRIOR, Z, np.zeros((7, 1))), {".weights"}),
}


@pytest.mark.parametrize("name", LEARNED)
def test_what_is_learned(name):
    module, expected = LEARNED[name]
    flags = jax.tree_util.tree_flatten_with_path(trainable(module))[0]
    assert {jax.tree_util.keystr(path) for path, flag in flags if flag} == expected


def test_no_factorisation_in_the_gradient_of_the_kernels_with_a_fixed_inverse():
    """Those of a learned base alone have one."""
    for name, (kernel, _) in LEARNED.items():
        if name == "means.Sparse":
            continue
        jaxpr = str(jax.make_jaxpr(lambda k: eqx.filter_grad(lambda k: jnp.sum(k.diag(NEW)))(k))(kernel))
        assert ("cholesky" in jaxpr) == (name == "SparsePosterior")


def test_float32():
    for kernel, _ in list(LEARNED.values())[:-1]:
        single = kernel(NEW.astype(np.float32))
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, kernel(NEW), atol=2e-3)


ERRORS = {
    "expects a mercer kernel of one output, got float": lambda: kernels.CholeskySVGP(1.0, Z),
    "FeatureMap: base expects a mercer kernel": lambda: kernels.FeatureMap(1.0, jnp.tanh),
    "FeatureMap: module expects a function": lambda: kernels.FeatureMap(PRIOR, 1.0),
    "FeatureMap: module expects to return a vector": lambda: kernels.FeatureMap(PRIOR, jnp.sum)(NEW),
    "Z must be two-dimensional": lambda: kernels.SparsePosterior(PRIOR, Z[0]),
    r"root expects shape \(7, 7\), got \(6, 6\)": lambda: kernels.CholeskySVGP(PRIOR, Z, np.eye(6)),
    r"v expects shape \(7,\), got \(6,\)": lambda: kernels.DiagonalSVGP(PRIOR, Z, np.ones(6)),
    "v expects positive": lambda: kernels.DiagonalSVGP(PRIOR, Z, -np.ones(7)),
    "noise expects a positive number": lambda: kernels.CholeskySVGP.optimal(PRIOR, Z, X, 0.0),
    "X and Z must have the same number of columns": lambda: kernels.DiagonalSVGP.optimal(PRIOR, Z, X[:, :1], 0.1),
    "Tempered: kernel expects": lambda: kernels.Tempered(2.0),
    "factor expects positive": lambda: kernels.Tempered(PRIOR, -1.0),
    r"Sparse: weights expects shape \(7, P\)": lambda: mc.means.Sparse(PRIOR, Z, np.zeros(7)),
    r"k\(Z, Z\) \[7 x 7\] holds NaN or inf": lambda: kernels.CholeskySVGP(kernels.Polynomial(100), 1e9 * Z),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises(ValueError, match=message):
        ERRORS[message]()
