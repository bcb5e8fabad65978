"""Where inducing points are put."""

import jax
import numpy as np
import pytest

import mercer as mc
from mercer.inducing import greedy_indices, greedy_variance, kmeans, random_subset

N, D = 40, 2
X = np.random.default_rng(0).normal(size=(N, D))
KEY = jax.random.key(0)
KERNELS = {
    "RBF": mc.kernels.RBF(0.7),
    "Matern12": mc.kernels.Matern12([0.5, 2.0], 3.0),
    "ArcCosine": mc.kernels.ArcCosine(order=1),
    "sum": mc.kernels.Matern32(0.3) + mc.kernels.Linear(2.0),
}


def left(kernel, chosen):
    """The variance at each row of X that is left given the chosen rows: diag(Kff - Kfz Kzz^-1 Kzf)."""
    K = np.asarray(kernel(X))
    if not len(chosen):
        return np.diagonal(K)
    return np.diagonal(K - K[:, chosen] @ np.linalg.solve(K[np.ix_(chosen, chosen)], K[chosen]))


def naive(kernel, M):
    """Paper 000, Algorithm 1, as it is written."""
    chosen = []
    while len(chosen) < M:
        chosen.append(int(np.argmax(left(kernel, chosen))))
    return chosen


@pytest.mark.parametrize("name", KERNELS)
def test_greedy_is_the_naive_algorithm(name):
    chosen = greedy_indices(X, KERNELS[name], 20)
    np.testing.assert_array_equal(chosen, naive(KERNELS[name], 20))
    np.testing.assert_array_equal(greedy_variance(X, KERNELS[name], 20, key=KEY), X[chosen])


@pytest.mark.parametrize("M", [1, 3, 17, N])
def test_greedy_of_few_points_begins_greedy_of_many(M):
    chosen = greedy_indices(X, KERNELS["Matern12"], M)
    np.testing.assert_array_equal(chosen, naive(KERNELS["Matern12"], N)[:M])


@pytest.mark.parametrize("tolerance", [0.5, 0.05])
def test_greedy_stops_when_little_variance_is_left(tolerance):
    kernel = KERNELS["RBF"]
    chosen = greedy_indices(X, kernel, N, tolerance=tolerance)
    total = left(kernel, []).sum()
    assert 1 < len(chosen) < N
    assert left(kernel, chosen).sum() <= tolerance * total < left(kernel, chosen[:-1]).sum()


def test_greedy_takes_no_row_twice_and_twins_last():
    twins = np.concatenate([X[:10], X[:10]])
    chosen = greedy_indices(twins, KERNELS["Matern12"], 10)
    assert sorted(chosen % 10) == list(range(10))
    everything = greedy_indices(X[:10], KERNELS["RBF"], 10)
    assert len(set(everything.tolist())) == len(everything)


def test_greedy_stops_at_the_rank_of_the_kernel():
    """Two points determine all of a linear function of two inputs; what is left of the variance is rounding."""
    chosen = greedy_indices(X, mc.kernels.Linear(), 5, tolerance=1e-12)
    np.testing.assert_array_equal(chosen, naive(mc.kernels.Linear(), 2))


def test_greedy_among_candidates():
    chosen = np.asarray(greedy_variance(X, KERNELS["RBF"], 5, candidates=12, key=KEY))
    assert chosen.shape == (5, D)
    candidates = np.asarray(random_subset(X, 12, key=KEY))
    assert all((row == candidates).all(1).any() for row in chosen)


def test_a_random_subset_is_of_distinct_rows():
    for M in (1, 7, N):
        Z = np.asarray(random_subset(X, M, key=KEY))
        assert Z.shape == (M, D)
        assert len(np.unique(Z, axis=0)) == M
        assert all((row == X).all(1).any() for row in Z)
    assert not np.array_equal(random_subset(X, 7, key=KEY), random_subset(X, 7, key=jax.random.key(1)))


def within(X, centres):
    """The sum of squared distances to the nearest centre."""
    return (((X[:, None] - np.asarray(centres)[None]) ** 2).sum(-1)).min(1).sum()


def test_kmeans_is_better_than_random_rows_and_more_iterations_than_fewer():
    for seed in range(3):
        key = jax.random.key(seed)
        by_chance, seeds, once, often = (
            within(X, Z)
            for Z in (random_subset(X, 6, key=key), *(kmeans(X, 6, iterations=i, key=key) for i in (0, 1, 20)))
        )
        assert often < by_chance
        assert often <= once <= seeds


def test_kmeans_ends_at_means_of_clusters():
    Z = np.asarray(kmeans(X, 6, iterations=20, key=KEY))
    nearest = ((X[:, None] - Z[None]) ** 2).sum(-1).argmin(1)
    np.testing.assert_allclose(Z, [X[nearest == i].mean(0) for i in range(6)], rtol=0, atol=1e-12)


def test_kmeans_finds_separated_clusters():
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    labels = np.arange(N) % 4
    clustered = centres[labels] + 0.1 * X
    expected = np.array([clustered[labels == i].mean(0) for i in range(4)])
    for seed in range(5):
        Z = np.asarray(kmeans(clustered, 4, key=jax.random.key(seed)))
        order = [int(np.argmin(((Z - c) ** 2).sum(1))) for c in centres]
        np.testing.assert_allclose(Z[order], expected, rtol=0, atol=1e-12)


def test_kmeans_with_as_many_centres_as_rows_is_the_rows():
    Z = np.asarray(kmeans(X, N, key=KEY))
    np.testing.assert_allclose(np.sort(Z, axis=0), np.sort(X, axis=0), rtol=0, atol=1e-12)


def test_float32_stays_float32():
    x = X.astype(np.float32)
    for Z in (random_subset(x, 3, key=KEY), kmeans(x, 3, key=KEY), greedy_variance(x, KERNELS["RBF"], 3, key=KEY)):
        assert Z.dtype == np.float32


@pytest.mark.parametrize("M", [0, -1, N + 1])
def test_impossible_numbers_of_points(M):
    for select in (
        lambda: random_subset(X, M, key=KEY),
        lambda: kmeans(X, M, key=KEY),
        lambda: greedy_variance(X, KERNELS["RBF"], M, key=KEY),
        lambda: greedy_indices(X, KERNELS["RBF"], M),
    ):
        with pytest.raises(ValueError, match=f"M must be between 1 and the number of rows of X, {N}, got {M}"):
            select()


def test_other_wrong_arguments():
    with pytest.raises(ValueError, match=r"tolerance must be in \[0, 1\), got 1.0"):
        greedy_indices(X, KERNELS["RBF"], 3, tolerance=1.0)
    for select in (random_subset, kmeans):
        with pytest.raises(ValueError, match="X must be two-dimensional"):
            select(X[:, 0], 3, key=KEY)
        with pytest.raises(ValueError, match="X must be finite"):
            select(X * np.nan, 3, key=KEY)
