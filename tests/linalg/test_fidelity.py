"""The fidelity of two matrices: its value and its derivative, also where eigenvalues repeat or vanish."""

import jax
import numpy as np
import pytest
import scipy.linalg

from mercer.linalg import fidelity as plain_fidelity

N = 5
fidelity = jax.jit(plain_fidelity)


def spectrum(values, seed):
    """A symmetric matrix with these eigenvalues."""
    Q = np.linalg.qr(np.random.default_rng(seed).normal(size=(N, N)))[0]
    return (Q * np.asarray(values)) @ Q.T


GENERAL = spectrum([0.3, 0.7, 1.0, 2.0, 5.0], 1), spectrum([0.1, 0.5, 1.5, 2.5, 3.0], 2)
CASES = {
    "general": GENERAL,
    "identities": (np.eye(N), np.eye(N)),
    "equal": (GENERAL[0], GENERAL[0]),
    "an identity": (np.eye(N), GENERAL[1]),
    "repeated": (spectrum([2.0, 2.0, 2.0, 1.0, 1.0], 3), spectrum([3.0, 3.0, 0.5, 0.5, 0.5], 4)),
    "commuting": (spectrum([1.0, 2.0, 3.0, 4.0, 5.0], 5), spectrum([5.0, 4.0, 3.0, 2.0, 1.0], 5)),
    "very different": (1e-8 * GENERAL[0], 1e8 * GENERAL[1]),
}
SINGULAR = {
    "low rank": (spectrum([0.0, 0.0, 0.0, 2.0, 5.0], 1), spectrum([0.0, 0.0, 1.5, 2.5, 3.0], 2)),
    "low rank and an identity": (spectrum([0.0, 0.0, 0.0, 2.0, 5.0], 1), np.eye(N)),
    "equal of low rank": (spectrum([0.0, 0.0, 0.0, 2.0, 5.0], 1),) * 2,
    "negative by rounding": (spectrum([-1e-17, -1e-18, 1e-17, 2.0, 5.0], 1), GENERAL[1]),
    "nothing": (np.zeros((N, N)), GENERAL[1]),
    "nothing twice": (np.zeros((N, N)), np.zeros((N, N))),
}
value_and_gradient = jax.jit(jax.value_and_grad(plain_fidelity, argnums=(0, 1)))


def reference(R, K):
    root = np.real(scipy.linalg.sqrtm(R))
    return np.trace(np.real(scipy.linalg.sqrtm(root @ K @ root)))


@pytest.mark.parametrize("name", CASES)
def test_value_and_derivative(name):
    R, K = CASES[name]
    value, gradient = value_and_gradient(R, K)
    np.testing.assert_allclose(value, reference(R, K), rtol=1e-9)
    np.testing.assert_allclose(value, fidelity(K, R), rtol=1e-12)
    rng = np.random.default_rng(7)
    for i, slope in enumerate(gradient):
        np.testing.assert_allclose(slope, slope.T, rtol=1e-12, atol=1e-14 * np.abs(slope).max())
        direction = rng.normal(size=(N, N))
        direction = (direction + direction.T) * np.abs((R, K)[i]).max()
        step = 1e-6
        moved = [[R + sign * step * direction * (i == 0), K + sign * step * direction * (i == 1)] for sign in (1, -1)]
        difference = (fidelity(*moved[0]) - fidelity(*moved[1])) / (2.0 * step)
        np.testing.assert_allclose(np.sum(slope * direction), difference, rtol=1e-6, atol=1e-8 * value)


@pytest.mark.parametrize("name", SINGULAR)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_singular_matrices(name, dtype):
    R, K = (np.asarray(A, dtype) for A in SINGULAR[name])
    value, gradient = value_and_gradient(R, K)
    expected = np.sum(np.linalg.svd(_exact_root(SINGULAR[name][0]) @ _exact_root(SINGULAR[name][1]))[1])
    np.testing.assert_allclose(value, expected, rtol=30 * np.finfo(dtype).eps, atol=1e-15)
    assert value.dtype == dtype and all(np.isfinite(slope).all() for slope in gradient)


def _exact_root(A):
    values, vectors = np.linalg.eigh(A)
    return (vectors * np.sqrt(np.where(values > 1e-12, values, 0.0))) @ vectors.T


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_matrices_of_a_smooth_kernel(dtype):
    """Eigenvalues that fall below rounding: the fidelity of K with itself is its trace, to rounding."""
    x = np.linspace(0.0, 1.0, 60)
    K = np.exp(-0.5 * ((x[:, None] - x) / 0.3) ** 2).astype(dtype)
    np.testing.assert_allclose(fidelity(K, K), np.trace(K), rtol=100 * np.finfo(dtype).eps)


def test_the_product_of_sorted_eigenvalues_is_another_number():
    """Larger, unless the matrices commute with eigenvalues in the same order: it would give too small a distance."""
    R, K = GENERAL
    wrong = np.sum(np.sqrt(np.linalg.eigvalsh(R) * np.linalg.eigvalsh(K)))
    assert wrong > fidelity(R, K) + 0.1
    aligned = spectrum([1.0, 2.0, 3.0, 4.0, 5.0], 5)
    np.testing.assert_allclose(fidelity(aligned, aligned), 15.0)
