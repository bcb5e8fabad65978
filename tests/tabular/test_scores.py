"""Scores against values worked out by hand, brute force, and the laws that they follow."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mercer.tabular import scores
from mercer.tabular.evaluation import Evaluation, baselines

RNG = np.random.default_rng(0)
CLASSES = RNG.integers(0, 3, 60).astype(float)
PROBABILITIES = RNG.dirichlet(np.ones(3), 60)


def binary(p):
    p = np.asarray(p, dtype=float)
    return np.stack([1.0 - p, p], axis=1)


class TestNumbers:
    Y = np.array([1.0, 2.0, 3.0, 6.0])
    MEAN = np.array([1.0, 4.0, 3.0, 4.0])

    def test_by_hand(self):
        assert scores.rmse(self.Y, self.MEAN) == pytest.approx(np.sqrt(2.0))
        assert scores.mae(self.Y, self.MEAN) == 1.0
        assert scores.r2(self.Y, self.MEAN) == pytest.approx(1.0 - 8.0 / 14.0)
        assert scores.coverage(self.Y, np.array([1.0, 0.0, 4.0, 0.0]), np.full(4, 5.0)) == 0.5

    def test_the_mean_explains_nothing_and_the_truth_everything(self):
        assert scores.r2(self.Y, np.full(4, 3.0)) == pytest.approx(0.0)
        assert scores.r2(self.Y, self.Y) == 1.0
        assert np.isnan(scores.r2(np.ones(3), np.zeros(3)))

    @pytest.mark.parametrize("size", [1e-300, 1e300])
    def test_units(self, size):
        assert scores.rmse(size * self.Y, size * self.MEAN) == pytest.approx(size * np.sqrt(2.0))
        assert scores.r2(size * self.Y, size * self.MEAN) == pytest.approx(1.0 - 8.0 / 14.0)
        assert scores.r2(self.Y, 1e300 * self.MEAN) == -np.inf


class TestClasses:
    def test_by_hand(self):
        y, p = np.array([0.0, 1.0, 1.0]), binary([0.2, 0.6, 0.4])
        assert scores.accuracy(y, p) == pytest.approx(2 / 3)
        assert scores.auc(y, p) == 1.0
        assert scores.brier(y, p) == pytest.approx((0.04 + 0.16 + 0.36) / 3)
        # Two rows are 60 % sure and one of them is right; one is 80 % sure, and right.
        assert scores.calibration_error(y, p) == pytest.approx(2 / 3 * abs(0.5 - 0.6) + 1 / 3 * 0.2)

    def test_brier_of_three_classes_is_not_halved(self):
        certain = np.eye(3)[[1, 1]]
        assert scores.brier(np.array([0.0, 1.0]), certain) == 1.0

    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=30))
    def test_auc_counts_pairs_and_reverses(self, rows):
        y, p = np.array([float(c) for c, _ in rows]), np.array([s / 5.0 for _, s in rows])
        area = scores.auc(y, binary(p))
        if len(set(y)) < 2:
            assert np.isnan(area)
            return
        pairs = list(itertools.product(p[y == 1.0], p[y == 0.0]))
        assert area == pytest.approx(np.mean([(a > b) + 0.5 * (a == b) for a, b in pairs]))
        assert scores.auc(y, binary(1.0 - p)) == pytest.approx(1.0 - area)
        assert scores.auc(y, binary(p**3)) == pytest.approx(area)

    def test_auc_of_classes_is_the_mean_over_those_that_occur(self):
        each = [scores.auc(1.0 * np.equal(CLASSES, c), binary(PROBABILITIES[:, c])) for c in range(3)]
        assert scores.auc(CLASSES, PROBABILITIES) == pytest.approx(np.mean(each))
        absent = np.concatenate([PROBABILITIES, np.zeros((60, 1))], axis=1)
        assert scores.auc(CLASSES, absent) == pytest.approx(np.mean(each))

    def test_calibration_by_bins(self):
        best, right = PROBABILITIES.max(axis=1), PROBABILITIES.argmax(axis=1) == CLASSES
        total = 0.0
        for low in np.arange(10) / 10:
            inside = (best >= low) & (best < low + 0.1)
            if inside.any():
                total += inside.mean() * abs(right[inside].mean() - best[inside].mean())
        assert scores.calibration_error(CLASSES, PROBABILITIES) == pytest.approx(total)
        assert scores.reliability(CLASSES, PROBABILITIES)[2].sum() == pytest.approx(1.0)

    def test_certain_and_right(self):
        certain = np.eye(3)[CLASSES.astype(int)]
        assert scores.calibration_error(CLASSES, certain) == scores.brier(CLASSES, certain) == 0.0
        assert scores.accuracy(CLASSES, certain) == scores.auc(CLASSES, certain) == 1.0


class TestBaselines:
    X = RNG.normal(size=(400, 2)) * np.array([1e6, 1.0])
    Y = 3.0 * X[:, 0] / 1e6 - X[:, 1] + 5.0 + 0.5 * RNG.normal(size=400)

    def test_the_mean_is_a_normal(self):
        mean = baselines("regression", self.X, self.Y, 0)["mean"]
        expected = stats.norm(self.Y.mean(), self.Y.std())
        predicted = mean.predictive(self.X)
        np.testing.assert_allclose(predicted.log_density(self.Y[:, None]), expected.logpdf(self.Y))
        lower, upper = predicted.rows(slice(3)).interval(0.9)
        assert lower.shape == upper.shape == (3, 1)
        np.testing.assert_allclose([lower[0, 0], upper[0, 0]], expected.interval(0.9))

    def test_linear_finds_a_line_and_its_noise(self):
        linear = baselines("regression", self.X, self.Y, 0)["linear"]
        predicted = linear.predictive(np.array([[0.0, 0.0], [1e6, 0.0]]))
        np.testing.assert_allclose(predicted.mean[:, 0], [5.0, 8.0], atol=0.2)
        np.testing.assert_allclose(predicted.sd, 0.5, atol=0.05)

    def test_linear_with_more_columns_than_rows_and_with_a_constant(self):
        X = np.concatenate([RNG.normal(size=(10, 30)), np.full((10, 1), 1e300)], axis=1)
        predicted = baselines("regression", X, self.Y[:10], 0)["linear"].predictive(X)
        assert np.isfinite(predicted.mean).all() and (predicted.sd > 0.0).all()

    @pytest.mark.parametrize("y", [RNG.poisson(3.0, 500), RNG.negative_binomial(2, 0.3, 500), np.array([4, 4, 5, 5])])
    def test_counts_have_the_moments_of_the_data(self, y):
        same = baselines("counts", np.zeros((len(y), 1)), y.astype(float), 0)["mean"]
        predicted = same.predictive(np.zeros((1000, 1)))
        np.testing.assert_allclose(predicted.mean, np.full((1000, 1), y.mean()))
        np.testing.assert_allclose(predicted.sd**2, np.full((1000, 1), max(y.var(), y.mean())))
        assert np.exp(predicted.log_density(np.arange(1000.0)[:, None])).sum() == pytest.approx(1.0)

    def test_frequencies_are_never_0(self):
        shares = baselines("multiclass", np.zeros((3, 1)), np.array([0.0, 1.0, 1.0]), 4)["frequencies"]
        predicted = shares.predictive(np.zeros((1, 1)))
        np.testing.assert_allclose(predicted.probabilities[0], [2 / 7, 3 / 7, 1 / 7, 1 / 7])
        assert predicted.log_density(np.array([3.0])) == np.log(1 / 7)

    def test_a_calibrated_model_covers_what_it_says(self):
        others = baselines("regression", self.X, self.Y, 0)
        found = Evaluation.of(others["linear"], {"mean": others["mean"]}, self.X, self.Y)
        assert found.methods == ("mercer", "mean") and found.num_rows == 400
        said, seen = np.asarray(found.calibration)
        np.testing.assert_allclose(seen, said, atol=0.06)
        by_name = dict(zip(found.scores, np.asarray(found.values).T, strict=True))
        assert by_name["R2"][0] > 0.9 and by_name["R2"][1] == pytest.approx(0.0)
        assert by_name["in the 90 % interval"][0] == seen[said == 0.9]
