"""What a kernel says of itself: its parts, the columns it sees, where it is rough, and its terms."""

import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from mercer.kernels import RBF, ArcCosine, ChangePoints, Constant, Kernel, Matern12, Matern32, White

X = np.random.default_rng(0).normal(size=(6, 3))


class Warped(Kernel):
    """A kernel from outside of the package, which says no more than it must."""

    inner: Kernel

    def _matrix(self, X, X2):
        return self.inner._matrix(jnp.tanh(X), None if X2 is None else jnp.tanh(X2))

    def _diagonal(self, X):
        return self.inner._diagonal(jnp.tanh(X))


def test_a_kernel_of_ones_own():
    smooth, rough = Warped(RBF()), Warped(Matern12())
    assert smooth.parts() == (smooth.inner,)
    assert smooth.columns(3) == {0, 1, 2}
    assert smooth.rough_part(0) is None and rough.rough_part(0) == "Matern12"
    (term,) = smooth.terms((0, 2))
    assert term.factors == ((smooth, (0, 2)),)
    with pytest.raises(ValueError, match="Matern12 has no derivative in the mean-square sense along column 1"):
        mc.covariances.Kuu(mc.inducing.Derivative(X, 1), rough)


@pytest.mark.parametrize(
    ("kernel", "columns"),
    [
        (RBF(), {0, 1, 2}),
        (Constant(), set()),
        (2.0 * RBF().on([2, 0]), {0, 2}),
        ((RBF().on(0) * Constant()).on([1, 2]), {1}),
        (RBF().on(1) + 3.0 * (Constant().on(0) * Matern32().on(2)), {1, 2}),
    ],
)
def test_the_columns_are_those_that_change_the_kernel(kernel, columns):
    assert kernel.columns(3) == columns
    for d in range(3):
        moved = X.copy()
        moved[:, d] += np.linspace(0.0, 1.0, len(X))
        assert np.allclose(kernel(moved), kernel(X), atol=1e-12) == (d not in columns)


@pytest.mark.parametrize(
    ("kernel", "rough"),
    [
        (RBF() + Matern12(), ("Matern12", "Matern12")),
        (2.0 * Matern12().on(0), ("Matern12", None)),
        (RBF().on(0) * Matern12().on(1), (None, "Matern12")),
        (White().on(0) + RBF(), ("White", "White")),
        ((RBF() + White()).on(1), ("White", "White")),
        (ArcCosine(order=0), ("ArcCosine of order 0", "ArcCosine of order 0")),
        (ArcCosine(order=1), (None, None)),
        (ChangePoints([RBF(), Matern12()], [0.0]), ("Matern12", "Matern12")),
    ],
)
def test_where_functions_are_rough(kernel, rough):
    assert tuple(kernel.rough_part(d) for d in range(2)) == rough


def test_the_terms_add_up_to_the_kernel():
    kernel = 2.0 * ((RBF() + 3.0 * Matern32().on(1)).on([2, 0]) * Matern12().on(1)) + 0.5 * RBF(0.3).on(0)
    terms = kernel.terms((0, 1, 2))
    assert [tuple(columns for _, columns in term.factors) for term in terms] == [((2, 0), (1,)), ((0,), (1,)), ((0,),)]

    def value(term):
        return term.scale * np.prod([part(X[:, columns]) for part, columns in term.factors], axis=0)

    np.testing.assert_allclose(sum(map(value, terms)), kernel(X), rtol=1e-12)
