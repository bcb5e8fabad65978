"""Linear regression on features against dense Gaussian algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from mercer.linalg.regression import Regression, left_out

RNG = np.random.default_rng(0)
C, R = RNG.normal(size=(5, 12)), RNG.normal(size=12)
NOISE = RNG.uniform(0.1, 2.0, size=12)
COVARIANCE = np.linalg.inv(np.eye(5) + C / NOISE @ C.T)
MEAN = COVARIANCE @ C @ (R / NOISE)


def regression(num_groups=1):
    return Regression.of(jnp.asarray(C / NOISE @ C.T)[None], jnp.asarray(C @ (R / NOISE))[None], num_groups)


def test_the_posterior():
    mean, root = regression().best()
    np.testing.assert_allclose(mean[0], MEAN, rtol=1e-12)
    np.testing.assert_allclose(root[0] @ root[0].T, COVARIANCE, rtol=1e-12)
    np.testing.assert_array_equal(root[0], np.tril(root[0]))


def test_the_evidence():
    density = stats.multivariate_normal.logpdf(R, np.zeros(12), C.T @ C + np.diag(NOISE))
    alone = stats.norm.logpdf(R, 0.0, np.sqrt(NOISE)).sum()
    np.testing.assert_allclose(alone + regression().evidence(), density, rtol=1e-12)


def test_groups_of_the_whole_are_the_whole_and_single_ones_mean_field():
    mean, root = regression(5).best()
    np.testing.assert_allclose(mean[0], MEAN, rtol=1e-12)
    precisions = np.diag(np.linalg.inv(COVARIANCE))
    np.testing.assert_allclose(root[:, 0, 0] ** -2, precisions, rtol=1e-12)
    gap = 0.5 * (np.log(precisions).sum() + np.linalg.slogdet(COVARIANCE)[1])
    np.testing.assert_allclose(regression().evidence() - regression(5).evidence(), gap, rtol=1e-10)


@pytest.mark.parametrize("row", [0, 7])
def test_leaving_out_a_row(row):
    rest = np.delete(np.arange(12), row)
    precision = np.eye(5) + C[:, rest] / NOISE[rest] @ C[:, rest].T
    mean = C[:, row] @ np.linalg.solve(precision, C[:, rest] @ (R / NOISE)[rest])
    variance = C[:, row] @ np.linalg.solve(precision, C[:, row])
    given = C.T @ MEAN, np.einsum("mn,mk,kn->n", C, COVARIANCE, C), R, 1.0 / NOISE
    found = left_out(*map(jnp.asarray, given))
    np.testing.assert_allclose([array[row] for array in found], [mean, variance], rtol=1e-12)


@pytest.mark.parametrize("num_groups, systems", [(1, 1), (1, 3), (5, 1)])
def test_derivatives_of_the_evidence(num_groups, systems):
    """Against those of the formula itself, and again of these."""
    gram, b = jnp.asarray(C / NOISE @ C.T)[None], jnp.asarray(RNG.normal(size=(systems, 5)))
    direction = jnp.asarray(RNG.normal(size=(5, 5)))
    direction = direction + direction.T

    def plain(B, b):
        blocks = B if num_groups == 1 else jnp.diagonal(B)[:, None, None]
        return 0.5 * jnp.sum(b * jnp.linalg.solve(B, b.T).T) - 0.5 * systems * jnp.sum(jnp.linalg.slogdet(blocks)[1])

    def along(evidence):
        def function(t, b):
            return evidence(jnp.eye(5) + gram[0] + t * direction, b)

        return jax.grad(function, argnums=(0, 1))(0.1, b), jax.grad(jax.grad(function))(0.1, b)

    found = along(lambda B, b: Regression(B[None], b, num_groups).evidence())
    for a, expected in zip(jax.tree.leaves(found), jax.tree.leaves(along(plain)), strict=True):
        np.testing.assert_allclose(a, expected, rtol=1e-9)
