"""Sparse posteriors: the ways to hold q(u), their divergence from the prior, and the limits that are known."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from dense_gaussians import (
    KERNEL,
    WEIGHTS,
    X_NEW,
    M,
    X,
    Y,
    Z,
    assert_is,
    k,
    posterior,
    prior,
    prior_mean,
    some_q,
)

import mercer as mc
from cases import mostly_slow
from mercer.parameters import cast

K = k(Z, Z)
R = np.linalg.cholesky(K)
POINTS = mc.inducing.Points(Z)


def blocks_of(roots, size):
    """The blocks of [P, M, M] along the diagonal, [P, M / size, size, size]."""
    starts = range(0, roots.shape[-1], size)
    return np.stack([roots[:, i : i + size, i : i + size] for i in starts], axis=1)


def divergence(m, S, K):
    """KL[N(m, S) || N(0, K)]."""
    return 0.5 * (
        np.trace(np.linalg.solve(K, S))
        + m @ np.linalg.solve(K, m)
        - len(m)
        + np.linalg.slogdet(K)[1]
        - np.linalg.slogdet(S)[1]
    )


@eqx.filter_jit
def everything(process):
    """The divergence from the prior, and the mean, variance and covariance at X_NEW."""
    joint = process.predict(X_NEW, "inputs")
    return process.kl(), joint.mean, process.predict(X_NEW).cov, joint.cov


@pytest.mark.parametrize(
    ("whiten", "size"), mostly_slow(itertools.product([True, False], [M, 2, 1]), (True, 2), (False, 2), (False, 1))
)
def test_blocks_are_the_full_covariance_with_zeros(whiten, size):
    """q_sqrt as one matrix, as blocks and as a diagonal: the same process, and the closed form of the divergence."""
    q_mu, q_sqrt = some_q(2)
    blocks = blocks_of(q_sqrt, size)
    full = np.stack([scipy.linalg.block_diag(*parts) for parts in blocks])
    compact = mc.Sparse(prior(2), POINTS, 2, whiten, q_mu=q_mu, q_sqrt=blocks)
    plain = mc.Sparse(prior(2), POINTS, 2, whiten, q_mu=q_mu, q_sqrt=full)
    (kl, *computed), (plain_kl, *expected) = everything(compact), everything(plain)
    for a, b in zip(computed, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
    prior_covariance = np.eye(M) if whiten else K
    expected = sum(divergence(q_mu[:, p], full[p] @ full[p].T, prior_covariance) for p in range(2))
    np.testing.assert_allclose([kl, plain_kl], expected, rtol=1e-8)


def test_whitened_and_not_are_the_same_posterior():
    q_mu, q_sqrt = some_q(2)
    whitened = mc.Sparse(prior(2), POINTS, 2, True, q_mu=q_mu, q_sqrt=q_sqrt)
    plain = mc.Sparse(prior(2), POINTS, 2, False, q_mu=R @ q_mu, q_sqrt=R @ q_sqrt)
    for a, b in zip(everything(whitened), everything(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("whiten", [True, False])
def test_it_begins_at_the_prior(whiten):
    kl, mean, variance, covariance = everything(mc.Sparse(prior(2), POINTS, 2, whiten))
    np.testing.assert_allclose(kl, 0.0, atol=1e-7)
    np.testing.assert_allclose(mean, prior_mean(X_NEW, 2), rtol=0, atol=1e-12)
    np.testing.assert_allclose(variance, KERNEL.variance, rtol=0, atol=1e-7)
    np.testing.assert_allclose(covariance, np.stack([k(X_NEW, X_NEW)] * 2), rtol=0, atol=1e-7)


@pytest.mark.parametrize(("kind", "blocks"), mostly_slow([("block", 3), ("diag", M), ("block", 1)], ("block", 3)))
def test_unwhitened_blocks_begin_at_those_of_the_prior(kind, blocks):
    num = blocks if kind == "block" else None
    process = mc.Sparse(prior(1), POINTS, 1, False, kind, num)
    assert process.q_sqrt.shape == ((1, blocks, M // blocks, M // blocks) if blocks > 1 else (1, M, M))
    S = process.root()[0] @ process.root()[0].T
    expected = scipy.linalg.block_diag(*blocks_of(K[None], M // blocks)[0])
    np.testing.assert_allclose(S, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("whiten", [True, False])
def test_all_inputs_as_inducing_points_with_the_posterior_as_q_is_exact(whiten):
    noise, Kff = 0.1, k(X, X)
    gain = np.linalg.solve(Kff + noise * np.eye(len(X)), Kff).T
    q_mu, q_sqrt = gain @ (Y - prior_mean(X, 3)), np.linalg.cholesky(Kff - gain @ Kff)
    if whiten:
        q_mu, q_sqrt = (np.linalg.solve(np.linalg.cholesky(Kff), a) for a in (q_mu, q_sqrt))
    q_sqrt = np.broadcast_to(np.tril(q_sqrt), (3, *q_sqrt.shape))
    process = mc.Sparse(prior(3), mc.inducing.Points(X), 3, whiten, q_mu=q_mu, q_sqrt=q_sqrt)
    assert_is(process, *posterior(X_NEW, Y, noise), 3)


def test_at_the_inducing_points_it_is_q_of_u():
    q_mu, q_sqrt = some_q(2)
    mean, cov = mc.Sparse(prior(2), POINTS, 2, False, q_mu=q_mu, q_sqrt=q_sqrt).predict(Z, "inputs")
    np.testing.assert_allclose(mean, prior_mean(Z, 2) + q_mu, rtol=0, atol=1e-8)
    np.testing.assert_allclose(cov, q_sqrt @ q_sqrt.swapaxes(1, 2), rtol=0, atol=1e-8)


@pytest.mark.parametrize("whiten", [True, False])
def test_with_whitened_sets_the_law_of_v(whiten):
    q_mu, q_sqrt = some_q(2)
    process = mc.Sparse(prior(2), POINTS, 2, whiten, "diag")
    process = process.with_whitened(jnp.asarray(q_mu), jnp.asarray(q_sqrt))
    assert process.whiten == whiten
    mean, cov = process.predict(Z, "inputs")
    np.testing.assert_allclose(mean, prior_mean(Z, 2) + R @ q_mu, rtol=0, atol=1e-7)
    np.testing.assert_allclose(cov, R @ q_sqrt @ q_sqrt.swapaxes(1, 2) @ R.T, rtol=0, atol=1e-7)


@pytest.mark.parametrize("whiten", [True, False])
def test_gradients_in_all_parameters_are_those_of_finite_differences(whiten):
    q_mu, q_sqrt = some_q(1)
    start = cast(mc.Sparse(prior(1), POINTS, 1, whiten, q_mu=q_mu, q_sqrt=q_sqrt), float)
    rng = np.random.default_rng(3)
    w_mean, w_var, w_cov = (rng.normal(size=shape) for shape in ((4, 1), (4, 1), (1, 4, 4)))

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def total(process):
        diag, joint = process.predict(X_NEW), process.predict(X_NEW, "inputs")
        return jnp.sum(w_mean * diag.mean) + jnp.sum(w_var * diag.cov) + jnp.sum(w_cov * joint.cov) + process.kl()

    def where(process):
        return {
            "lengthscale": process.prior.kernel.lengthscale,
            "variance": process.prior.kernel.variance,
            "weights": process.prior.mean.weights,
            "Z": process.inducing.Z,
            "q_mu": process.q_mu,
            "q_sqrt": process.q_sqrt,
        }

    _, gradient = total(start)
    h = 1e-5
    for name in where(start):
        direction = rng.normal(size=where(start)[name].shape)
        if name == "q_sqrt":
            direction = np.tril(direction)
        moved = [
            eqx.tree_at(lambda p, n=name: where(p)[n], start, replace_fn=lambda a, s=s, d=direction: a + s * d)
            for s in (h, -h)
        ]
        difference = (total(moved[0])[0] - total(moved[1])[0]) / (2 * h)
        slope = np.vdot(where(gradient)[name], direction)
        np.testing.assert_allclose(slope, difference, rtol=1e-5, atol=1e-6, err_msg=name)


def test_jit_and_vmap_over_inputs():
    process = mc.Sparse(prior(1), POINTS, q_mu=some_q(1)[0], q_sqrt=some_q(1)[1])
    expected = process.predict(X_NEW)
    one_by_one = jax.jit(jax.vmap(lambda x: process.predict(x[None])))(X_NEW)
    np.testing.assert_allclose(one_by_one.mean[:, 0], expected.mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(one_by_one.cov[:, 0], expected.cov, rtol=0, atol=1e-10)


def test_close_inducing_points_lose_nothing_but_jitter():
    """Inducing points 1e-9 apart from their twins determine no more than one of each."""
    q = mc.Sparse(prior(1), mc.inducing.Points(np.concatenate([Z, Z + 1e-9])))
    with_twins = q.predict(X_NEW)
    np.testing.assert_allclose(with_twins.cov, KERNEL.variance, rtol=0, atol=1e-6)
    np.testing.assert_allclose(with_twins.mean, X_NEW @ WEIGHTS[:, :1] + 0.5, rtol=0, atol=1e-9)


def test_the_precision_of_gradients_is_kept():
    process = mc.Sparse(prior(2), POINTS, 1, gradients="full")
    assert process.with_whitened(process.q_mu, process.q_sqrt).gradients == "full"
    assert mc.Sparse(prior(2), POINTS).gradients == "reduced"
    with pytest.raises(ValueError, match="gradients expects one of"):
        mc.Sparse(prior(2), POINTS, gradients="half")
