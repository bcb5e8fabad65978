"""A wrong argument is refused where it is given, by its name."""

import jax.numpy as jnp
import numpy as np
import pytest
from kernel_instances import some_inputs

from mercer import kernels

X = some_inputs()

CONSTRUCTIONS = {
    "RBF: lengthscale expects positive, finite values, got -1.0": lambda: kernels.RBF(-1.0),
    "Matern12: variance expects positive, finite values, got 0.0": lambda: kernels.Matern12(1.0, 0.0),
    "RationalQuadratic: alpha expects positive, finite values, got nan": lambda: kernels.RationalQuadratic(
        alpha=np.nan
    ),
    "RBF: lengthscale expects a number or a vector, got shape (2, 2)": lambda: kernels.RBF(np.ones((2, 2))),
    "RationalQuadratic: alpha expects a number, got shape (3,)": lambda: kernels.RationalQuadratic(alpha=np.ones(3)),
    "Matern52: variance expects a number, got shape (3,)": lambda: kernels.Matern52(1.0, np.ones(3)),
    "Periodic: period expects a number or a vector, got shape (1, 2)": lambda: kernels.Periodic(period=np.ones((1, 2))),
    "Cosine: variance expects a number, got shape (1,)": lambda: kernels.Cosine(variance=[1.0]),
    "SpectralMixture: weights, means and scales expect shapes [Q], [Q, D] and [Q, D], got (2,), (1, 1) and (1, 1)": (
        lambda: kernels.SpectralMixture([1.0, 2.0])
    ),
    "SpectralMixture: scales expects positive": lambda: kernels.SpectralMixture(scales=[[-1.0]]),
    "Linear: variance expects positive": lambda: kernels.Linear([1.0, -1.0]),
    "Polynomial: degree expects a whole number of at least 1, got 0": lambda: kernels.Polynomial(0),
    "Polynomial: degree expects a whole number of at least 1, got 1.5": lambda: kernels.Polynomial(1.5),
    "Polynomial: offset expects a number, got shape (2,)": lambda: kernels.Polynomial(offset=[1.0, 2.0]),
    "ArcCosine: order expects 0, 1 or 2, got 3": lambda: kernels.ArcCosine(order=3),
    "ArcCosine: depth expects a whole number of at least 1, got 0": lambda: kernels.ArcCosine(depth=0),
    "ArcCosine: bias_variance expects a number, got shape (2,)": lambda: kernels.ArcCosine(bias_variance=[1.0, 1.0]),
    "Constant: variance expects a number, got shape (2,)": lambda: kernels.Constant([1.0, 1.0]),
    "White: variance expects positive": lambda: kernels.White(-0.1),
    "Scaled: scale expects positive": lambda: -2.0 * kernels.RBF(),
    "Scaled: scale expects a number, got shape (2,)": lambda: kernels.RBF() * np.ones(2),
    "ChangePoints: locations expects shape (1,) for 2 kernels, got (2,)": (
        lambda: kernels.ChangePoints([kernels.RBF(), kernels.Linear()], [0.0, 1.0])
    ),
    "ChangePoints: locations expects shape (1,) for 2 kernels, got ()": (
        lambda: kernels.ChangePoints([kernels.RBF(), kernels.Linear()], 0.0)
    ),
    "ChangePoints: locations expects strictly increasing": (
        lambda: kernels.ChangePoints([kernels.RBF(), kernels.Linear(), kernels.RBF()], [1.0, 0.0])
    ),
    "ChangePoints: steepness expects a number or one for each of the 1 locations, got shape (3,)": (
        lambda: kernels.ChangePoints([kernels.RBF(), kernels.Linear()], [0.0], np.ones(3))
    ),
    "ChangePoints: kernels expects one or more kernels": lambda: kernels.ChangePoints([], []),
    "ChangePoints: dim expects the number of a column, got -1": (
        lambda: kernels.ChangePoints([kernels.RBF(), kernels.Linear()], [0.0], dim=-1)
    ),
    "Sum expects one or more kernels": lambda: kernels.Sum([]),
    "Product expects one or more kernels": lambda: kernels.Product([kernels.RBF(), 2.0]),
    "dims expects distinct, non-negative column numbers, got (0, 0)": lambda: kernels.RBF().on([0, 0]),
}

COLUMNS = "expects one number or one for each of the 3 columns of X, got 2"
EVALUATIONS = {
    f"RBF: lengthscale {COLUMNS}": kernels.RBF([1.0, 2.0]),
    f"Periodic: lengthscale {COLUMNS}": kernels.Periodic([1.0, 2.0]),
    f"Periodic: period {COLUMNS}": kernels.Periodic(period=[1.0, 2.0]),
    f"Cosine: lengthscale {COLUMNS}": kernels.Cosine([1.0, 2.0]),
    f"Linear: variance {COLUMNS}": kernels.Linear([1.0, 2.0]),
    f"Polynomial: variance {COLUMNS}": kernels.Polynomial(2, [1.0, 2.0]),
    f"ArcCosine: weight_variance {COLUMNS}": kernels.ArcCosine(weight_variance=[1.0, 2.0]),
    "SpectralMixture: means and scales expect one column for each of the 3 columns of X, got 1": (
        kernels.SpectralMixture()
    ),
    "ChangePoints: dim 3 expects X with more columns, got 3": (
        kernels.ChangePoints([kernels.RBF(), kernels.Linear()], [0.0], dim=3)
    ),
    "dims (4,) expects X with at least 5 columns, got 3": kernels.RBF().on(4),
}

INPUTS = {
    "X must be two-dimensional [N, D], got shape (7,); for one-dimensional inputs pass X[:, None]": (X[:, 0],),
    "X must be float32 or float64, got int64": (np.ones((2, 3), int),),
    "X must be finite, got NaN or inf in 1 of 7 rows (first: row 2)": (X.at[2, 1].set(jnp.nan),),
    "X2 must be finite": (X, X.at[2, 1].set(jnp.inf)),
    "X2 must be two-dimensional": (X, X[0]),
    "X and X2 must have the same number of columns, got 3 and 2": (X, X[:, :2]),
}


def raises(message):
    return pytest.raises(ValueError, match=f"^{message}".translate({ord(c): f"\\{c}" for c in "()[]."}))


@pytest.mark.parametrize("message", CONSTRUCTIONS)
def test_construction(message):
    with raises(message):
        CONSTRUCTIONS[message]()


@pytest.mark.parametrize("message", EVALUATIONS)
def test_evaluation(message):
    kernel = EVALUATIONS[message]
    with raises(message):
        kernel(X)
    with raises(message):
        kernel(X, X)


@pytest.mark.parametrize("message", INPUTS)
def test_inputs(message):
    with raises(message):
        kernels.RBF()(*INPUTS[message])
