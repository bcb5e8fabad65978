"""Linear regression on features against dense Gaussian algebra."""

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
