"""The fused marginals of a sparse posterior: values and hand-written derivatives, well conditioned and not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mercer.linalg import JITTER, Dense, Diagonal, marginals, whitened_marginals
from mercer.linalg.marginals import _forward

M = 12
GRID = np.linspace(0.0, 1.0, M)
BASIS = {"spread": 0.05, "close": 1.5}  # lengthscales at which the points are far apart, or all but the same


def rbf(x, x2, lengthscale):
    return np.exp(-0.5 * ((x[:, None] - x2[None, :]) / lengthscale) ** 2)


def case(points, B=9):
    """Kuu, Kuf, m and L."""
    lengthscale, rng = BASIS[points], np.random.default_rng(0)
    x = rng.uniform(0.0, 1.0, B)
    root = 0.4 * np.tril(rng.normal(size=(M, M))) / M**0.5
    return rbf(GRID, GRID, lengthscale), rbf(GRID, x, lengthscale), rng.normal(size=M), root


def cotangents(B=9):
    return tuple(np.random.default_rng(1).normal(size=(2, B)))


def extended_cholesky(A):
    """L L^T = A in extended precision, in which 1e-10 of jitter is large."""
    A, L = A.astype(np.longdouble), np.zeros(A.shape, np.longdouble)
    for j in range(len(A)):
        L[j:, j] = (A[j:, j] - L[j:, :j] @ L[j, :j]) / np.sqrt(A[j, j] - L[j, :j] @ L[j, :j])
    return L


def extended_solve(L, B):
    """L^-1 B for lower triangular L."""
    X = np.zeros(B.shape, np.longdouble)
    for i in range(len(L)):
        X[i] = (B[i] - L[i, :i] @ X[:i]) / L[i, i]
    return X


def jittered(Kuu, dtype="float64"):
    return Kuu + JITTER[jnp.dtype(dtype)][0] * np.mean(np.diagonal(Kuu)) * np.eye(len(Kuu))


def extended(Kuu, Kuf, m, L):
    """The mean and the reduction, C = chol(Kuu)^-1 Kuf and chol(Kuu)^-1, in extended precision."""
    R = extended_cholesky(Kuu)
    C, W = extended_solve(R, Kuf.astype(np.longdouble)), extended_solve(R, np.eye(len(R), dtype=np.longdouble))
    return C.T @ m, (C**2).sum(0) - ((L.T @ C) ** 2).sum(0), C, W


def plain(Kuu, Kuf, m, L):
    """The textbook formula, for automatic differentiation."""
    Kuu = (Kuu + Kuu.T) / 2
    Kuu = Kuu + jax.lax.stop_gradient(JITTER[Kuu.dtype][0] * jnp.mean(jnp.diagonal(Kuu))) * jnp.eye(M)
    C = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(Kuu), Kuf, lower=True)
    return m @ C, jnp.sum(C**2, axis=0) - jnp.sum((L.T @ C) ** 2, axis=0)


def pull_back(function, arguments, cotangents):
    return jax.jit(lambda args, ct: jax.vjp(function, *args)[1](ct))(arguments, cotangents)


@pytest.mark.parametrize("points, quick", [("spread", True), ("close", False)])
def test_both_branches_are_tested_here(points, quick):
    *_, (*_, takes_quick) = _forward(*map(jnp.asarray, case(points)), "full")[1]
    assert bool(takes_quick) == quick


# 2100 columns are worked through in slices
@pytest.mark.parametrize("points, B", [("spread", 9), ("close", 9), ("close", 2100)])
def test_values(points, B):
    Kuu, *rest = case(points, B)
    mean, reduction, *_ = extended(jittered(Kuu), *rest)
    computed = jax.jit(whitened_marginals)(Kuu, *rest)
    tolerance = 1e-9 if points == "spread" else 1e-6
    np.testing.assert_allclose(computed[0], mean.astype(float), rtol=0, atol=tolerance)
    np.testing.assert_allclose(computed[1], reduction.astype(float), rtol=0, atol=1e-9)


def test_gradients_are_those_of_automatic_differentiation():
    arguments = tuple(map(jnp.asarray, case("spread")))
    ours, theirs = (pull_back(f, arguments, cotangents()) for f in (whitened_marginals, plain))
    theirs = (*theirs[:3], jnp.tril(theirs[3]))
    for name, computed, expected in zip(("Kuu", "Kuf", "m", "L"), ours, theirs, strict=True):
        np.testing.assert_allclose(computed, expected, rtol=0, atol=1e-8, err_msg=name)


def test_gradients_of_close_points():
    """Against the closed forms in extended precision; in Kuu along a change of lengthscale, by finite differences."""
    Kuu, Kuf, m, L = case("close")
    gm, gv = cotangents()
    _, _, C, W = extended(jittered(Kuu), Kuf, m, L)
    AC = C - L @ (L.T @ C)
    expected = {
        "Kuf": W.T @ (np.outer(m, gm) + 2.0 * AC * gv),
        "m": C @ gm,
        "L": np.tril(-2.0 * (C * gv) @ C.T @ L),
    }
    dKuu, *rest = pull_back(whitened_marginals, (Kuu, Kuf, m, L), (gm, gv))
    for (name, value), computed in zip(expected.items(), rest, strict=True):
        scale = float(np.abs(value).max())
        np.testing.assert_allclose(computed, value.astype(float), rtol=0, atol=1e-5 * scale, err_msg=name)

    lengthscale, h = np.longdouble(BASIS["close"]), np.longdouble(1e-5)
    x = GRID.astype(np.longdouble)

    def total(step):
        # the jitter is held still: the derivative knows nothing of it
        K = rbf(x, x, lengthscale + step) + (jittered(Kuu) - Kuu)
        mean, reduction, *_ = extended(K, Kuf, m, L)
        return mean @ gm, reduction @ gv

    slopes = [float((a - b) / (2.0 * h)) for a, b in zip(total(h), total(-h), strict=True)]
    change = Kuu * (GRID[:, None] - GRID) ** 2 / BASIS["close"] ** 3
    np.testing.assert_allclose(np.vdot(dKuu, change), sum(slopes), rtol=1e-4)


def test_outputs_share_kuu_and_kuf_and_nothing_else():
    Kuu, Kuf, m, L = case("spread")
    q_mu, q_root = np.stack([m, -2.0 * m], axis=1), np.stack([L, 0.5 * L])
    together = jax.jit(lambda K, *args: marginals(Dense(K), *args))(Kuu, Kuf, q_mu, q_root)
    single = jax.jit(whitened_marginals)
    for p in range(2):
        for both, one in zip(together, single(Kuu, Kuf, q_mu[:, p], q_root[p]), strict=True):
            np.testing.assert_allclose(both[:, p], one, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_outputs_share_has_the_derivative_of_each(dtype):
    """Of a sum over outputs: those of q(u) one by one, those of Kuu and Kuf added up."""
    Kuu, Kuf, q_mu, q_root = case("spread")
    roots = np.stack([q_root, 0.5 * q_root + np.eye(len(q_mu)), np.eye(len(q_mu)) * 0.7])
    means = np.stack([q_mu, -q_mu, 0.3 + q_mu], axis=1)
    arguments = [jnp.asarray(array, dtype) for array in (Kuu, Kuf, means, roots)]
    gm, gv = cotangents()
    weights = np.stack([gm, 2.0 * gm, -gm], axis=1), np.stack([gv, 0.5 * gv, 3.0 * gv], axis=1)

    def together(K, *rest):
        mean, reduction = marginals(Dense(K), *rest)
        return jnp.sum(weights[0] * mean) + jnp.sum(weights[1] * reduction)

    def apart(K, Kuf, means, roots):
        single = [whitened_marginals(K, Kuf, means[:, p], roots[p]) for p in range(3)]
        return sum(jnp.sum(weights[0][:, p] * m) + jnp.sum(weights[1][:, p] * r) for p, (m, r) in enumerate(single))

    found = jax.jit(jax.grad(together, (0, 1, 2, 3)))(*arguments)
    expected = jax.jit(jax.grad(apart, (0, 1, 2, 3)))(*arguments)
    tolerance = 1e-9 if dtype == "float64" else 2e-2
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == dtype
        scale = float(jnp.abs(want).max())
        np.testing.assert_allclose(got, want, atol=tolerance * scale)


def test_vmap_over_all_arguments():
    pair = [np.stack(parts) for parts in zip(case("spread"), case("close"), strict=True)]
    single = jax.jit(whitened_marginals)
    together = jax.jit(jax.vmap(whitened_marginals))(*pair)
    for i, points in enumerate(("spread", "close")):
        for both, one in zip(together, single(*case(points)), strict=True):
            np.testing.assert_allclose(both[i], one, rtol=0, atol=1e-6)


@pytest.mark.parametrize("points", ["spread", "close"])
def test_float32_stays_float32_and_is_accurate(points):
    narrow = tuple(a.astype(np.float32) for a in case(points))
    Kuu, Kuf, m, L = (a.astype(float) for a in narrow)
    mean, reduction, C, W = extended(jittered(Kuu, "float32"), Kuf, m, L)
    gm, gv = cotangents()
    expected = {"mean": mean, "reduction": reduction, "m": C @ gm, "L": np.tril(-2.0 * (C * gv) @ C.T @ L)}
    value, pull = jax.vjp(jax.jit(whitened_marginals), *map(jnp.asarray, narrow))
    _, dKuf, dm, dL = gradients = pull((jnp.float32(gm), jnp.float32(gv)))
    assert {a.dtype for a in (*value, *gradients)} == {np.dtype("float32")}
    for (name, truth), computed in zip(expected.items(), (*value, dm, dL), strict=True):
        scale = max(1.0, float(np.abs(truth).max()))
        np.testing.assert_allclose(computed, truth.astype(float), rtol=0, atol=1e-3 * scale, err_msg=name)
    truth = W.T @ (np.outer(m, gm) + 2.0 * (C - L @ (L.T @ C)) * gv)
    np.testing.assert_allclose(dKuf, truth.astype(float), rtol=0, atol=5e-3 * float(np.abs(truth).max()))


def test_the_prior_explains_nothing_away():
    """At q = prior the mean is 0 and the variance is not reduced, whatever the inputs."""
    for points in BASIS:
        Kuu, Kuf, m, _ = case(points)
        mean, reduction = jax.jit(whitened_marginals)(Kuu, Kuf, 0.0 * m, np.eye(M))
        np.testing.assert_array_equal(mean, 0.0)
        np.testing.assert_allclose(reduction, 0.0, atol=1e-12)


@pytest.mark.parametrize("B", [9, 2100])
def test_a_diagonal_operator(B):
    """Values and derivatives of several q(u) against the plain formula."""
    _, Kuf, m, L = case("spread", B)
    entries = jnp.linspace(0.5, 2.0, M)
    given = entries, jnp.asarray(Kuf), jnp.stack([m, 2.0 * m], axis=1), jnp.stack([L, 0.5 * L + jnp.eye(M)])

    def plain(entries, Kuf, m, L):
        C = Kuf / jnp.sqrt(entries)[:, None]
        return C.T @ m, jnp.sum(C**2, axis=0)[:, None] - jnp.sum((L.mT @ C) ** 2, axis=1).T

    def fused(entries, Kuf, m, L):
        return marginals(Diagonal(entries), Kuf, m, L)

    ct = tuple(np.random.default_rng(1).normal(size=(2, B, 2)))
    for found, expected in zip(fused(*given), plain(*given), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)
    for found, expected in zip(pull_back(fused, given, ct)[:3], pull_back(plain, given, ct)[:3], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(pull_back(fused, given, ct)[3], np.tril(pull_back(plain, given, ct)[3]), rtol=1e-10)
