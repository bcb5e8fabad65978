"""Standardised inputs, and the distribution of standardised residuals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from mercer.tabular.inputs import Inputs
from mercer.tabular.residuals import Residuals

random = np.random.default_rng(0)


class TestInputs:
    def test_columns_have_mean_0_and_standard_deviation_1(self):
        X = np.stack([random.normal(3.0, 5.0, 300), random.exponential(2.0, 300), random.integers(0, 3, 300)], axis=1)
        A = Inputs.of(X)(X)
        np.testing.assert_allclose(A.mean(axis=0), 0.0, atol=1e-9)
        np.testing.assert_allclose(A.std(axis=0), 1.0, rtol=1e-9)

    def test_a_skewed_column_is_bent_as_scipy_bends_it(self):
        x = random.lognormal(size=400)
        bent = stats.yeojohnson((x - x.mean()) / x.std())[0]
        A = Inputs.of(x[:, None])(x[:, None])[:, 0]
        np.testing.assert_allclose(A, (bent - bent.mean()) / bent.std(), atol=1e-5)
        assert abs(stats.skew(A)) < 0.5 < stats.skew(x)

    def test_a_constant_column_becomes_0(self):
        np.testing.assert_array_equal(Inputs.of(np.full((5, 1), 7.0))(np.full((5, 1), 7.0)), 0.0)

    def test_far_inputs_stay_finite(self):
        map_ = Inputs.of(random.lognormal(size=(50, 2)))
        assert np.isfinite(map_(np.array([[1e300, -1e300], [0.0, 1e-300]]))).all()

    @given(
        arrays.arrays(float, (12, 2), elements=st.floats(-1e300, 1e300, allow_subnormal=False)),
        st.floats(-1e300, 1e300),
    )
    def test_always_finite(self, X, new):
        map_ = Inputs.of(X)
        assert np.isfinite(map_(X)).all() and np.isfinite(map_(np.full((1, 2), new))).all()

    @given(st.floats(0.01, 100.0), st.floats(-50.0, 50.0))
    def test_units_do_not_matter(self, scale, shift):
        X = random.lognormal(size=(60, 1))
        np.testing.assert_allclose(Inputs.of(X)(X), Inputs.of(scale * X + shift)(scale * X + shift), atol=1e-4)

    def test_order_is_kept(self):
        X = np.sort(random.lognormal(size=(60, 1)), axis=0)
        assert (np.diff(Inputs.of(X)(X)[:, 0]) >= 0.0).all()


class TestResiduals:
    def test_of_normal_residuals(self):
        residuals = Residuals.of(random.normal(size=(20_000, 1)))
        np.testing.assert_allclose(residuals.deviation, 1.0, atol=0.02)
        assert float(residuals.freedom[0]) > 30.0
        for level in (0.5, 0.9, 0.95):
            np.testing.assert_allclose(residuals.half_width(level), stats.norm.ppf(0.5 + level / 2), rtol=0.03)

    def test_of_heavy_tails(self):
        z = stats.t.rvs(4.0, scale=0.7, size=(20_000, 1), random_state=1)
        residuals = Residuals.of(z)
        np.testing.assert_allclose(residuals.freedom, 4.0, rtol=0.15)
        np.testing.assert_allclose(residuals.scale, 0.7, rtol=0.05)
        density = residuals.log_density(z).mean()
        assert density > stats.norm.logpdf(z, 0.0, z.std()).mean()

    def test_two_outputs_are_apart(self):
        z = random.normal(size=(500, 2)) * [1.0, 3.0]
        residuals = Residuals.of(z)
        assert residuals.half_width(0.9)[1] > 1.5 * residuals.half_width(0.9)[0]
        np.testing.assert_allclose(residuals.log_density(z)[:, 1], Residuals.of(z[:, 1:]).log_density(z[:, 1:])[:, 0])

    @given(st.floats(0.01, 0.9998), st.floats(0.0, 0.9998))
    def test_wider_for_more(self, level, lower):
        residuals = Residuals.of(stats.t.rvs(3.0, size=(300, 1), random_state=2))
        low, high = sorted((level, lower))
        assert residuals.half_width(low)[0] <= residuals.half_width(high)[0] + 1e-12

    def test_few_residuals_change_little(self):
        residuals = Residuals.of(np.array([[5.0]]))
        assert 1.0 < residuals.deviation[0] < 2.0

    @pytest.mark.parametrize("z", [np.zeros((4, 1)), np.full((3, 1), np.nan), np.full((3, 1), 1e8)])
    def test_of_odd_residuals_is_finite(self, z):
        residuals = Residuals.of(z)
        assert (
            np.isfinite(residuals.half_width(0.9)).all() and np.isfinite(residuals.log_density(np.zeros((1, 1)))).all()
        )

    def test_a_residual_whose_square_is_too_large_for_a_float(self):
        z = np.r_[np.zeros(99), 1e200][:, None]
        with np.errstate(over="ignore"):
            deviation = Residuals.of(z).deviation[0]
        assert 1e198 < deviation < 1e200
