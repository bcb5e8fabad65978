"""Covariances are chosen by the pair of inducing variables and kernel, and a user adds pairs from outside."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from mercer.covariances import Kuf, Kuu
from mercer.linalg import Dense, Diagonal

_rng = np.random.default_rng(0)
X, Y, X_NEW = _rng.normal(size=(12, 2)), _rng.normal(size=(12, 2)), _rng.normal(size=(5, 2))
A, B = _rng.normal(size=(2, 4, 2))
Q_MU, Q_SQRT = _rng.normal(size=(4, 2)), np.tril(0.2 * _rng.normal(size=(2, 4, 4))) + 0.4 * np.eye(4)


class Differences(mc.inducing.InducingVariables):
    """u_m = f(a_m) - f(b_m)."""

    A: jax.Array = mc.param(mc.parameters.real)
    B: jax.Array = mc.param(mc.parameters.real)

    @property
    def num(self):
        return len(self.A)

    def of_function(self, f):
        return f(self.A) - f(self.B)


@Kuu.dispatch
def _(inducing: Differences, kernel: mc.kernels.Kernel):
    a, b = inducing.A, inducing.B
    return Dense(kernel(a) - kernel(a, b) - kernel(b, a) + kernel(b))


@Kuf.dispatch
def _(inducing: Differences, kernel: mc.kernels.Kernel, X: jax.Array):
    return kernel(inducing.A, X) - kernel(inducing.B, X)


class Slopes(mc.inducing.InducingVariables):
    """The D weights of a linear function: the variables hold no arrays, and their prior covariance is diagonal."""

    dimension: int = eqx.field(static=True)

    @property
    def num(self):
        return self.dimension


@Kuu.dispatch
def _(inducing: Slopes, kernel: mc.kernels.Linear):
    return Diagonal(jnp.broadcast_to(kernel.variance, (inducing.dimension,)))


@Kuf.dispatch
def _(inducing: Slopes, kernel: mc.kernels.Linear, X: jax.Array):
    return kernel.variance * X.T


KERNEL = mc.kernels.Matern52(0.8, 1.2)
LIKELIHOOD = mc.likelihoods.Gaussian(0.2)


def dense_conditional(at, q_mu, S):
    """The mean and the variance at `at` through u = H f(A, B), H = [I, -I], in plain NumPy."""
    H, both = np.concatenate([np.eye(4), -np.eye(4)], axis=1), np.concatenate([A, B])
    K, cross = H @ np.asarray(KERNEL(both)) @ H.T, H @ np.asarray(KERNEL(both, at))
    gain = np.linalg.solve(K, cross).T
    reduction = np.einsum("nm,lmk,nk->nl", gain, K - S, gain)
    return gain @ q_mu, np.asarray(KERNEL.diag(at))[:, None] - reduction, K


def test_variables_of_a_user_work_in_a_sparse_posterior():
    q = mc.Sparse(mc.GP(KERNEL), Differences(A, B), 2, whiten=False, q_mu=Q_MU, q_sqrt=Q_SQRT)
    model = mc.Model(q, LIKELIHOOD)
    S = Q_SQRT @ Q_SQRT.swapaxes(1, 2)
    mean, variance, K = dense_conditional(X_NEW, Q_MU, S)
    data = jnp.asarray(X), jnp.asarray(Y)
    computed = eqx.filter_jit(lambda m: (m.posterior.kl(), mc.elbo(m, *data), m.posterior.cached().predict(X_NEW)))
    kl, bound, of_cached = computed(model)
    for computed in (q.predict(X_NEW), of_cached):
        np.testing.assert_allclose(computed.mean, mean, rtol=0, atol=1e-7)
        np.testing.assert_allclose(computed.cov, variance, rtol=0, atol=1e-7)
    divergence = 0.5 * sum(
        np.trace(np.linalg.solve(K, S[p]))
        + Q_MU[:, p] @ np.linalg.solve(K, Q_MU[:, p])
        - 4
        + np.linalg.slogdet(K)[1]
        - np.linalg.slogdet(S[p])[1]
        for p in range(2)
    )
    np.testing.assert_allclose(kl, divergence, rtol=1e-7)
    mean, variance, _ = dense_conditional(X, Q_MU, S)
    fit = -0.5 * (np.log(2.0 * np.pi * 0.2) + ((Y - mean) ** 2 + variance) / 0.2)
    np.testing.assert_allclose(bound, fit.sum() - divergence, rtol=1e-7)


def test_functions_drawn_through_them_have_these_variables():
    """With q(u) all but certain, the differences of every drawn function are q_mu."""
    q = mc.Sparse(mc.GP(KERNEL), Differences(A, B), 2, whiten=False, q_mu=Q_MU, q_sqrt=1e-6 * Q_SQRT)

    @jax.jit
    def differences(key):
        f = q.sample_function(num_features=50, key=key)
        return f(A) - f(B)

    np.testing.assert_allclose(differences(jax.random.key(0)), Q_MU, rtol=0, atol=1e-4)


@pytest.mark.parametrize("whiten", [True, False])
def test_the_weights_of_a_linear_kernel_say_all_there_is(whiten):
    """Bayesian linear regression: through its weights a sparse posterior is exact, and so is its bound."""
    prior = mc.GP(mc.kernels.Linear(0.7), mc.means.Constant([0.3, -0.5]))
    model = mc.Model(mc.Sparse(prior, Slopes(2), 2, whiten), LIKELIHOOD)
    exact = mc.Conditioned(prior, X, Y, 0.2)
    collapsed = mc.objectives.CollapsedELBO()
    np.testing.assert_allclose(collapsed.bound(model, X, Y), exact.log_marginal_likelihood(), rtol=1e-9)
    best = mc.Model(collapsed.posterior(model, X, Y), LIKELIHOOD)
    np.testing.assert_allclose(mc.elbo(best, X, Y), exact.log_marginal_likelihood(), rtol=1e-9)
    for layout in ("diag", "inputs"):
        for found, expected in zip(best.posterior.predict(X_NEW, layout), exact.predict(X_NEW, layout), strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    with pytest.raises(ValueError, match="Slopes cannot be evaluated on a function"):
        best.posterior.sample_function(key=jax.random.key(0))


def test_points_and_any_kernel():
    for kernel in (KERNEL, mc.kernels.RBF() + mc.kernels.Linear()):
        points = mc.inducing.Points(A)
        np.testing.assert_allclose(Kuu(points, kernel).dense(), kernel(A), rtol=0, atol=1e-14)
        np.testing.assert_allclose(Kuf(points, kernel, jnp.asarray(X)), kernel(A, X), rtol=0, atol=1e-14)


def test_an_unknown_pair_names_those_that_exist():
    @Kuu.dispatch
    def _(inducing: Slopes, kernel: mc.kernels.Cosine | mc.kernels.Periodic):
        raise NotImplementedError

    for call in (
        lambda: Kuu(Slopes(2), mc.kernels.RBF()),
        lambda: Kuf(Slopes(2), mc.kernels.RBF(), jnp.asarray(X)),
        lambda: mc.Sparse(mc.GP(mc.kernels.RBF()), Slopes(2)).predict(X),
    ):
        with pytest.raises(ValueError, match="not defined for Slopes with RBF") as error:
            call()
        for pair in ("(Points, Kernel)", "(Differences, Kernel)", "(Slopes, Linear)"):
            assert pair in str(error.value)
