"""Derivatives as inducing variables: limits of differences, by hand, and of kernels that have none."""

import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from mercer.covariances import Kuf, Kuu, Kuv
from mercer.inducing import Derivative, Integral, Mixed, Points
from mercer.kernels import RBF, ArcCosine, ChangePoints, Matern12, Matern32, Matern52, White

sys.path.append(str(Path(__file__).parents[1] / "kernels"))

from kernel_instances import KERNELS

_rng = np.random.default_rng(0)
X1, X2, X3 = (jnp.asarray(_rng.normal(size=(4, D))) for D in (1, 2, 3))

kuu = eqx.filter_jit(lambda variables, kernel: Kuu(variables, kernel).dense())
kuf = eqx.filter_jit(lambda variables, kernel, X: Kuf(variables, kernel, X))
kuv = eqx.filter_jit(lambda first, kernel, second: Kuv(first, kernel, second))


def close(found, expected, rtol=1e-8, atol=1e-12):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


DIFFERENTIABLE = [
    "RBF ARD",
    "Matern32",
    "Additive",
    "Polynomial",
    "ArcCosine order 1 depth 2",
    "ChangePoints",
    "Nested",
]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_derivatives_are_limits_of_differences(name):
    kernel, h, at = KERNELS[name], 2e-3, X3 + 0.7
    slopes, step = Derivative(X3, 1), jnp.asarray([0.0, 1.0, 0.0])

    @eqx.filter_jit
    def found_and_expected(kernel):
        def difference(f, X):
            """Central, of sixth order."""
            weights = ((1, 45.0), (2, -9.0), (3, 1.0))
            return sum(w * (f(X + i * h * step) - f(X - i * h * step)) for i, w in weights) / (60.0 * h)

        second = kuv(slopes, kernel, Derivative(at, 1))
        return (
            kuf(slopes, kernel, at),
            difference(lambda X: kernel(X, at), X3),
            second,
            difference(lambda X: kuf(slopes, kernel, X).T, at).T,
        )

    first, expected, second, expected_second = found_and_expected(kernel)
    close(first, expected, rtol=1e-9, atol=1e-10)
    close(second, expected_second, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    "kind, slope", [(RBF, 1.0), (Matern32, 3.0), (Matern52, 5.0 / 3.0), (mc.kernels.RationalQuadratic, 1.0)]
)
def test_the_variance_of_the_derivative(kind, slope):
    """-k''(0), at coincident points as elsewhere."""
    X = jnp.concatenate([X2, X2[:1]]) + 100.0
    K = np.asarray(kuu(Derivative(X, 1), kind([0.7, 0.4], 1.3)))
    close(np.diagonal(K), np.full(5, slope * 1.3 / 0.4**2), rtol=1e-13)
    close(K[0, -1], K[0, 0], rtol=1e-5)  # among others, coincident points are so to rounding
    close(K, K.T, rtol=1e-15)


def test_derivatives_of_the_rbf_kernel_by_hand():
    difference = np.asarray(X2)[:, None] - np.asarray(X2)
    K = np.asarray(RBF([0.7, 0.4], 1.3)(X2))
    close(kuf(Derivative(X2, 0), RBF([0.7, 0.4], 1.3), X2), -difference[..., 0] / 0.49 * K)
    close(kuu(Derivative(X2, 0), RBF([0.7, 0.4], 1.3)), (1 / 0.49 - difference[..., 0] ** 2 / 0.49**2) * K)
    cross = kuv(Derivative(X2, 0), RBF([0.7, 0.4], 1.3), Derivative(X2, 1))
    close(cross, -difference[..., 0] * difference[..., 1] / 0.49 / 0.16 * K)


def test_the_integral_of_the_derivative_is_a_difference_of_values():
    box, ends = Integral(-0.4, 0.8), jnp.asarray([[-0.4], [0.8]])
    kernel = RBF(0.7)
    integral = jax.jit(lambda: box.of_function(lambda at: Kuf(Derivative(at, 0), kernel, X1)))()
    close(integral[0], np.diff(kernel(ends, X1), axis=0)[0], rtol=1e-12)
    # the derivative at the ends of the box's covariances is that of values
    slopes = kuv(box, Matern32(0.7), Derivative(X1, 0))[0]
    close(slopes, -np.diff(Matern32(0.7)(ends, X1), axis=0)[0], rtol=1e-7, atol=1e-9)


ROUGH = {
    "Matern12": Matern12(),
    "White": RBF() + White(0.1),
    "ArcCosine": ArcCosine(0),
    "Product": RBF() * Matern12(),
    "Scaled": 2.0 * Matern12(),
    "OnDimensions": Matern12().on(1),
    "ChangePoints": ChangePoints([RBF(), Matern12()], [0.0]),
    "Additive": mc.kernels.Additive(base=Matern12()),
}


@pytest.mark.parametrize("name", ROUGH)
def test_processes_without_derivatives(name):
    slopes = Derivative(X2, 1)
    for call in (
        lambda k: Kuu(slopes, k),
        lambda k: kuf(slopes, k, X2),
        lambda k: kuv(Points(X2), k, slopes),
        lambda k: kuv(slopes, k, Points(X2)),
        lambda k: kuv(slopes, k, slopes),
        lambda k: Kuu(Mixed([Points(X2), slopes]), k),
    ):
        with pytest.raises(ValueError, match="has no derivative in the mean-square sense along column 1"):
            call(ROUGH[name])


def test_a_rough_column_does_not_hinder_the_others():
    kernel = Matern12().on(0) * RBF(0.7).on(1)
    expected = Matern12()(X2[:, :1]) * kuu(Derivative(X2[:, 1:], 0), RBF(0.7))
    close(kuu(Derivative(X2, 1), kernel), expected, rtol=1e-6)
