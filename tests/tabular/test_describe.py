"""Models in words."""

import numpy as np
import pytest

import mercer.kernels as k
from mercer.tabular import describe
from mercer.tabular.training import default_kernel


def test_a_sum_in_words():
    lines = describe.in_words(k.Matern52([1.0, 4.0], 3.0) + k.Matern12(0.5, 1.0), 2)
    assert lines == [
        "a sum of independent functions",
        "   75 %  a smooth function (Matérn 5/2), lengthscales from 1 to 4",
        "   25 %  a rough function (Matérn 1/2), lengthscale 0.5",
    ]


def test_parts_within_parts():
    kernel = 2.0 * (k.RBF(0.3).on([0, 2]) * k.Periodic() + k.Linear(1.0))
    lines = describe.in_words(kernel, 3)
    assert lines[0] == "a sum of independent functions"
    assert lines[1] == "   25 %  a function whose kernel is a product"
    assert lines[2].strip() == "a function with derivatives of all orders (RBF), lengthscale 0.3 of the features 1, 3"
    assert lines[4] == "   75 %  a linear function"


@pytest.mark.parametrize("kernel", [k.ArcCosine(1), k.ChangePoints([k.RBF(), k.Linear()], [0.0]), k.SpectralMixture()])
def test_any_kernel_has_words(kernel):
    assert describe.in_words(kernel, 1)[0].startswith("a ")
    assert describe.relevance(kernel, [[0]], 1) == pytest.approx(1.0)


def test_lengthscales_by_part():
    kernel = k.Matern52([1.0, 2.0, 3.0]) + k.RBF(0.5).on([2]) * k.RBF(0.1) + k.Linear()
    found = describe.lengthscales(kernel, 3)
    assert list(found) == ["Matérn 5/2", "RBF", "RBF #2"]
    np.testing.assert_allclose(found["Matérn 5/2"], [1.0, 2.0, 3.0])
    np.testing.assert_allclose(found["RBF"], [np.nan, np.nan, 0.5])
    np.testing.assert_allclose(found["RBF #2"], 0.1)
    assert list(describe.lengthscales(default_kernel(3), 3)) == ["Matérn 5/2", "Matérn 1/2", "additive"]


class TestRelevance:
    def test_of_a_stationary_kernel(self):
        """1 - correlation at one standard deviation, up to the sum."""
        change = 1.0 - np.exp(-0.5 / np.array([0.5, 1.0, 50.0]) ** 2)
        found = describe.relevance(k.RBF([0.5, 1.0, 50.0], 3.0), [[0], [1], [2]], 3)
        np.testing.assert_allclose(found, change / change.sum())

    def test_features_of_one_column_move_together(self):
        found = describe.relevance(k.RBF([1.0, 1.0, 1.0]), [[0, 1], [2]], 3)
        together, alone = 1.0 - np.exp(-1.0), 1.0 - np.exp(-0.5)
        np.testing.assert_allclose(found, np.array([together, alone]) / (together + alone))

    def test_what_is_not_seen_is_not_relevant(self):
        found = describe.relevance(k.Additive([1.0, 1.0], [1.0, 1e-12]) + k.Linear().on(0), [[0], [1]], 2)
        assert found[0] == pytest.approx(1.0) and found[1] == pytest.approx(0.0, abs=1e-9)
        assert (describe.relevance(k.Constant(), [[0], [1]], 2) == 0.0).all()


def test_sparkline():
    assert describe.sparkline(np.array([0.0, 7.0, 3.0])) == "▁█▄"
    assert describe.sparkline(np.ones(5)) == "▁" * 5
    assert describe.sparkline(np.zeros(0)) == ""
    assert len(describe.sparkline(np.arange(1000.0))) == 40
    assert len(describe.sparkline(np.array([1.0, np.nan, 2.0]))) == 3
