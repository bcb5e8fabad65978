"""Divergences between Gaussians over numbers: their definitions by quadrature, their laws, and their digits."""

import functools
from decimal import Decimal, localcontext

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from divergence_instances import INVARIANT, SCALAR, SYMMETRIC
from hypothesis import given

from mercer.divergences import (
    KL,
    Bhattacharyya,
    GaussianWasserstein,
    Hellinger,
    Jeffreys,
    Projected,
    Renyi,
    ReverseKL,
    SquaredDifference,
    Wasserstein,
)
from mercer.divergences.elementary import exp_excess, log1p_deficit, log_cosh

DTYPES = [np.float32, np.float64]
WIDEST = {np.float32: 15, np.float64: 30}  # decades of a variance, either way
EPS = {dtype: np.finfo(dtype).eps for dtype in DTYPES}


@functools.cache
def compiled(name):
    """Value and gradient by all four arguments, for vectors of 5 numbers."""
    divergence = SCALAR[name]
    value = jax.jit(divergence.__call__)
    return value, jax.jit(jax.grad(lambda *a: jnp.sum(divergence(*a)), argnums=(0, 1, 2, 3)))


def gaussians(dtype, decades):
    """Means and variances of two Gaussians, vectors of 5."""

    def of(low, high):
        return st.lists(st.floats(low, high), min_size=5, max_size=5).map(np.asarray)

    means, exponents = of(-3.0, 3.0), of(-decades, decades)
    return st.tuples(means, exponents, means, exponents).map(
        lambda a: tuple(x.astype(dtype) for x in (a[0], 10.0 ** a[1], a[2], 10.0 ** a[3]))
    )


# Two pairs: one of Gaussians that differ in all, one of nearly the same width.
PAIRS = [(0.3, 0.6, -0.4, 1.7), (1.0, 1.5, 0.8, 1.4)]


def integral(f, mean_q, var_q, mean_p, var_p):
    width = 12.0 * max(var_q, var_p) ** 0.5
    centre = 0.5 * (mean_q + mean_p)
    return scipy.integrate.quad(f, centre - width, centre + width, epsabs=1e-12, limit=200)[0]


def by_definition(name, mean_q, var_q, mean_p, var_p, alpha=0.5):
    q, p = scipy.stats.norm(mean_q, var_q**0.5), scipy.stats.norm(mean_p, var_p**0.5)
    arguments = (mean_q, var_q, mean_p, var_p)

    def kl(a, b):
        return integral(lambda x: a.pdf(x) * (a.logpdf(x) - b.logpdf(x)), *arguments)

    def overlap(alpha):
        return integral(lambda x: np.exp(alpha * q.logpdf(x) + (1.0 - alpha) * p.logpdf(x)), *arguments)

    if name == "Wasserstein":
        return scipy.integrate.quad(lambda u: (q.ppf(u) - p.ppf(u)) ** 2, 0.0, 1.0, epsabs=1e-10)[0]
    return {
        "KL": lambda: kl(q, p),
        "ReverseKL": lambda: kl(p, q),
        "Jeffreys": lambda: kl(q, p) + kl(p, q),
        "Renyi": lambda: np.log(overlap(alpha)) / (alpha - 1.0),
        "Bhattacharyya": lambda: -np.log(overlap(0.5)),
        "Hellinger": lambda: 0.5 * integral(lambda x: (q.pdf(x) ** 0.5 - p.pdf(x) ** 0.5) ** 2, *arguments),
    }[name]()


@pytest.mark.parametrize("arguments", PAIRS)
@pytest.mark.parametrize("divergence", [KL(), ReverseKL(), Jeffreys(), Bhattacharyya(), Hellinger(), Wasserstein()])
def test_definitions(divergence, arguments):
    expected = by_definition(type(divergence).__name__, *arguments)
    np.testing.assert_allclose(divergence(*arguments), expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("arguments", PAIRS)
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9, 1.2, 3.0])
def test_definition_of_renyi(alpha, arguments):
    np.testing.assert_allclose(Renyi(alpha)(*arguments), by_definition("Renyi", *arguments, alpha), rtol=1e-8)


def test_definition_of_the_squared_difference():
    assert SquaredDifference()(3.0, 1.0, 1.0, 4.0) == 4.0 + 9.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SCALAR)
class TestLaws:
    @given(data=st.data())
    def test_positive_with_finite_gradients(self, name, dtype, data):
        """For variances 10^-30 ... 10^30 in double precision; in single, as far as gradients are numbers at all."""
        arguments = data.draw(gaussians(dtype, WIDEST[dtype]))
        value, gradient = compiled(name)
        found = value(*arguments)
        assert found.dtype == dtype and np.isfinite(found).all() and (found >= 0.0).all()
        slopes = gradient(*(data.draw(gaussians(dtype, 9)) if dtype == np.float32 else arguments))
        assert all(np.isfinite(slope).all() for slope in slopes)

    @given(data=st.data())
    def test_zero_if_equal_and_only_then(self, name, dtype, data):
        mean, var, _, _ = data.draw(gaussians(dtype, WIDEST[dtype]))
        value, gradient = compiled(name)
        np.testing.assert_array_equal(value(mean, var, mean, var), 0.0)
        assert all(np.isfinite(slope).all() for slope in gradient(mean, var, mean, var))
        # A relative difference of 1e-3 of the variance is a number in each of the divergences, also in single precision.
        assert (value(mean, var, mean, var * dtype(1.001)) > 0.0).all()

    @given(data=st.data())
    def test_nearly_equal(self, name, dtype, data):
        """To second order all are c (log v_q / v_p)^2: four times as much at twice the distance."""
        mean, var, _, _ = data.draw(gaussians(dtype, 3))
        h = dtype(2.0**-9 if dtype == np.float32 else 2.0**-24)
        value, _ = compiled(name)
        near, far = value(mean, var * (1 + h), mean, var), value(mean, var * (1 + 2 * h), mean, var)
        np.testing.assert_allclose(far / near, 4.0, rtol=6.0 * h + 100.0 * EPS[dtype])


@pytest.mark.parametrize("name", SYMMETRIC)
@given(arguments=gaussians(np.float64, 6))
def test_symmetric(name, arguments):
    value, _ = compiled(name)
    np.testing.assert_allclose(value(*arguments), value(*arguments[2:], *arguments[:2]), rtol=1e-12)


@pytest.mark.parametrize("name", INVARIANT)
@given(arguments=gaussians(np.float64, 3), scale=st.floats(0.1, 10.0), shift=st.floats(-3.0, 3.0))
def test_invariant_to_a_common_affine_map(name, arguments, scale, shift):
    value, _ = compiled(name)
    mean_q, var_q, mean_p, var_p = arguments
    moved = (scale * mean_q + shift, scale**2 * var_q, scale * mean_p + shift, scale**2 * var_p)
    # d, the difference of the means, is rounded by moving them
    tolerance = 1e-12 * (1.0 + scale**-1) * (1.0 / var_q + 1.0 / var_p)
    np.testing.assert_array_less(np.abs(value(*moved) - value(*arguments)), 1e-11 * value(*arguments) + 50 * tolerance)


@given(arguments=gaussians(np.float64, 6))
def test_how_they_are_related(arguments):
    value = {name: compiled(name)[0](*arguments) for name in SCALAR}
    swapped = {name: compiled(name)[0](*arguments[2:], *arguments[:2]) for name in SCALAR}
    np.testing.assert_allclose(value["KL"], swapped["ReverseKL"], rtol=1e-14)
    np.testing.assert_allclose(value["Jeffreys"], value["KL"] + value["ReverseKL"], rtol=1e-11)
    np.testing.assert_allclose(value["Renyi(1)"], value["KL"], rtol=1e-14)
    np.testing.assert_allclose(value["Renyi(0.5)"], 2.0 * value["Bhattacharyya"], rtol=1e-12)
    np.testing.assert_allclose(value["Hellinger"], 1.0 - np.exp(-value["Bhattacharyya"]), rtol=1e-9, atol=1e-15)
    # (1 - alpha) R_alpha[Q || P] = alpha R_{1 - alpha}[P || Q]
    np.testing.assert_allclose(
        (1.0 - 0.9) * value["Renyi(0.9)"], 0.9 * Renyi(1.0 - 0.9)(*arguments[2:], *arguments[:2]), rtol=1e-11
    )


@given(arguments=gaussians(np.float64, 2), exponent=st.floats(-12.0, -4.0), sign=st.sampled_from([-1.0, 1.0]))
def test_renyi_tends_to_kl(arguments, exponent, sign):
    """R_alpha = KL + (alpha - 1) / 2 Var[log q / p] + ...: the slope in alpha is bounded, near 1 from both sides."""
    mean_q, var_q, mean_p, var_p = arguments
    rest = sign * 10.0**exponent
    s, d = np.log(var_q / var_p), mean_q - mean_p
    # The variance of log q / p under q, of a quadratic in a Gaussian
    slope = 0.25 * np.expm1(s) ** 2 + 0.5 * var_q * d**2 / var_p**2
    difference = Renyi(1.0 + rest)(*arguments) - KL()(*arguments)
    remainder = rest**2 * (1.0 + np.exp(s) + d**2 / var_p) ** 3 + 1e-12 * KL()(*arguments)
    assert (np.abs(difference - rest * slope) <= 10.0 * remainder + 1e-15).all()


def exactly(alpha, var_q, var_p):
    """R_alpha of zero means in a hundred digits."""
    with localcontext() as context:
        context.prec = 150
        alpha, var_q, var_p = Decimal(alpha), Decimal(float(var_q)), Decimal(float(var_p))
        s = var_q.ln() - var_p.ln()
        if alpha == 1:
            return float((s.exp() - 1 - s) / 2)
        return float(((alpha + (1 - alpha) * s.exp()).ln() / (1 - alpha) - s) / 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [1e-9, 0.3, 0.5, 0.75, 1.0 - 2.0**-23, 1.0, 1.0 + 2.0**-22])
def test_all_digits_of_renyi(alpha, dtype):
    """From variances that differ in the last digits to those that differ by 10^60 (10^30 in single precision)."""
    wide = 10.0 ** WIDEST[dtype]
    ratios = [1e-3, 0.5, 1.0 + 1e-5, 1.0 + 1e-3, 1.3, 3.0, 1e4]
    cases = [(dtype(r * 0.7), dtype(0.7)) for r in ratios]
    if alpha <= 1.0:
        cases += [(dtype(wide), dtype(1.0 / wide)), (dtype(1.0 / wide), dtype(wide))]
    alpha = float(dtype(alpha))
    for var_q, var_p in cases:
        found = Renyi(dtype(alpha))(dtype(0.0), var_q, dtype(0.0), var_p)
        np.testing.assert_allclose(found, exactly(alpha, var_q, var_p), rtol=200 * EPS[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_all_digits_of_the_elementary_functions(dtype, sign):
    numbers = (sign * 10.0 ** np.linspace(-6.0, 1.5, 16)).astype(dtype)

    def exact(f, x):
        with localcontext() as context:
            context.prec = 80
            return float(f(Decimal(float(x))))

    functions = [(exp_excess, lambda s: s.exp() - 1 - s), (log_cosh, lambda x: ((x.exp() + (-x).exp()) / 2).ln())]
    for function, reference in functions:
        np.testing.assert_allclose(
            jax.jit(function)(numbers), [exact(reference, x) for x in numbers], rtol=40 * EPS[dtype]
        )
    above = numbers[numbers > -0.99]
    expected = [exact(lambda x: x - (1 + x).ln(), x) for x in above]
    np.testing.assert_allclose(jax.jit(log1p_deficit)(above), expected, rtol=40 * EPS[dtype])


@pytest.mark.parametrize("name", SCALAR)
def test_gradients_are_those_of_differences(name):
    value, gradient = compiled(name)
    rng = np.random.default_rng(0)
    arguments = [rng.normal(size=5), rng.uniform(0.5, 2.0, 5), rng.normal(size=5), rng.uniform(0.5, 2.0, 5)]
    for i, slope in enumerate(gradient(*arguments)):
        moved = [[a + sign * 1e-5 * (i == j) for j, a in enumerate(arguments)] for sign in (1.0, -1.0)]
        np.testing.assert_allclose(slope, (value(*moved[0]) - value(*moved[1])) / 2e-5, rtol=1e-6, atol=1e-8)


def test_point_masses():
    for divergence in (Wasserstein(), SquaredDifference()):
        assert divergence(1.0, 0.0, 1.0, 0.0) == 0.0 and divergence(1.0, 0.0, 3.0, 0.0) == 4.0
        slopes = jax.grad(divergence, argnums=(0, 1, 2, 3))(1.0, 0.0, 3.0, 0.0)
        assert np.isfinite(slopes).all()
    assert Wasserstein()(0.0, 4.0, 0.0, 0.0) == 4.0


def test_broadcasting():
    mean, var = np.arange(3.0)[:, None], np.array([1.0, 2.0])
    for divergence in SCALAR.values():
        found = divergence(mean, var, 0.5, 1.5)
        assert found.shape == (3, 2)
        np.testing.assert_allclose(found[2, 1], divergence(2.0, 2.0, 0.5, 1.5), rtol=1e-12)
    with pytest.raises(ValueError, match=r"broadcast to one shape, got mean_q \(3,\), var_q \(\), mean_p \(2,\)"):
        KL()(np.zeros(3), 1.0, np.zeros(2), 1.0)


@pytest.mark.parametrize("name", SCALAR)
def test_variances_that_are_none(name):
    divergence = SCALAR[name]
    for wrong in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="var_q must be"):
            divergence(0.0, [1.0, wrong], 0.0, 1.0)
        with pytest.raises(ValueError, match="var_p must be"):
            divergence(0.0, 1.0, 0.0, wrong)
    if name in INVARIANT:
        with pytest.raises(ValueError, match="var_q must be positive and finite, got 0"):
            divergence(0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("alpha", [0.0, -1.0, np.nan, np.inf, [0.5, 0.6]])
def test_an_alpha_that_is_none(alpha):
    with pytest.raises(ValueError, match="alpha expects"):
        Renyi(alpha)


def test_a_renyi_divergence_that_is_infinite():
    """alpha v_p + (1 - alpha) v_q = 2 - 3 < 0."""
    with pytest.raises(ValueError, match=r"alpha = 2 > 1 .* var_q is not positive; take a smaller alpha"):
        Renyi(2.0)(0.0, [1.0, 3.0], 0.0, 1.0)
    traced = jax.jit(jax.value_and_grad(lambda v: jnp.sum(Renyi(2.0)(0.1, v, 0.0, 1.0)[:1])))
    assert traced(jnp.asarray([3.0, 1.0]))[0] == np.inf and np.isfinite(traced(jnp.asarray([3.0, 1.0]))[1]).all()
    np.testing.assert_array_equal(jax.jit(lambda v: Renyi(2.0)(0.1, v, 0.0, 1.0))(jnp.asarray([2.0, 3.0])), np.inf)


def test_projected():
    rng = np.random.default_rng(1)
    mean_q, mean_p, var_q, var_p = *rng.normal(size=(2, 6, 3)), *rng.uniform(0.5, 2.0, (2, 6, 3))
    for divergence in SCALAR.values():
        expected = divergence(mean_q, var_q, mean_p, var_p).sum(1).mean()
        np.testing.assert_allclose(Projected(divergence)(mean_q, var_q, mean_p, var_p), expected, rtol=1e-12)
    found = GaussianWasserstein(trace=False)(mean_q, var_q, mean_p, var_p)
    np.testing.assert_allclose(found, ((mean_q - mean_p) ** 2 + var_q + var_p).sum(1).mean(), rtol=1e-12)


def test_what_cannot_be_projected():
    for wrong in (Projected(KL()), GaussianWasserstein(), KL, "KL"):
        with pytest.raises(ValueError, match="Projected expects a divergence between numbers"):
            Projected(wrong)
    with pytest.raises(ValueError, match=r"Projected expects arrays \[N, P\], got shape \(3,\)"):
        Projected(KL())(np.zeros(3), 1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="needs covariances between inputs"):
        GaussianWasserstein()(np.zeros((3, 1)), 1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="trace expects True or False"):
        GaussianWasserstein(trace="yes")
