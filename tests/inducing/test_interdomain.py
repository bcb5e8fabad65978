"""Integrals, windows and slopes as inducing variables: their covariances are those that quadrature and differences find."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from mercer.covariances import Kuf, Kuu, Kuv, has_fixed_features
from mercer.inducing import Derivative, FourierFeatures, Integral, Mixed, Multiscale, Points
from mercer.kernels import RBF, Constant, Matern12, Matern32, Matern52, Periodic

_rng = np.random.default_rng(0)
X1, X2, X3 = (jnp.asarray(_rng.normal(size=(4, D))) for D in (1, 2, 3))


# compiled whole: one by one, their operations take longer to compile than all the rest
kuu = eqx.filter_jit(lambda variables, kernel: Kuu(variables, kernel).dense())
kuf = eqx.filter_jit(lambda variables, kernel, X: Kuf(variables, kernel, X))
kuv = eqx.filter_jit(lambda first, kernel, second: Kuv(first, kernel, second))
# by quadrature: the functional of Kuf
kuv_of_function = eqx.filter_jit(lambda a, kernel, b: b.of_function(lambda at: Kuf(a, kernel, at).T).T)


def close(found, expected, rtol=1e-8, atol=1e-12):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


# ---- integrals of one-dimensional kernels, with kinks, against quadrature on pieces

LENGTHSCALE, VARIANCE = 0.6, 1.3
PROFILES = {
    RBF: lambda r: np.exp(-0.5 * r**2),
    Matern12: lambda r: np.exp(-r),
    Matern32: lambda r: (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
    Matern52: lambda r: (1 + np.sqrt(5) * r + 5 / 3 * r**2) * np.exp(-np.sqrt(5) * r),
}
# overlapping, nested, with a common end, apart, the same twice; of all lengths from 1e-7 to 40
LOWER = np.array([0.0, 0.5, 0.2, 0.0, 2.0, -20.0, 0.3, 0.0, 0.7])
UPPER = np.array([1.0, 1.5, 0.4, 0.3, 2.9, 20.0, 0.3 + 1e-7, 1.0, 0.7001])
BOXES = Integral(LOWER[:, None], UPPER[:, None])
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


def quadrature(f, a, b, breaks):
    """∫_a^b f(x) dx, on pieces that end at the breaks, cut until they are short."""
    edges = np.unique(np.clip(np.concatenate([[a, b], breaks, np.arange(-20.0, 20.0, 0.5)]), a, b))
    total = 0.0
    for start, stop in itertools.pairwise(edges):
        x = start + (stop - start) * (_NODES + 1) / 2
        total += (stop - start) / 2 * sum(w * f(value) for w, value in zip(_WEIGHTS, x, strict=True))
    return total


def quadrature_to(profile, a, b, x):
    """∫_a^b k(t, x) dt at an array x."""
    result = []
    for value in np.atleast_1d(x):
        edges = np.unique(np.clip(np.concatenate([[a, b, value], np.arange(-20.0, 20.0, 0.5)]), a, b))
        start, h = edges[:-1, None], np.diff(edges)[:, None]
        t = start + h * (_NODES + 1) / 2
        result.append(np.sum(h / 2 * _WEIGHTS * profile(np.abs(t - value) / LENGTHSCALE)))
    return VARIANCE * np.asarray(result)


@pytest.mark.parametrize("kind", PROFILES)
def test_integrals_over_intervals(kind):
    kernel, profile = kind(LENGTHSCALE, VARIANCE), PROFILES[kind]
    at = np.array([-0.4, 0.0, 0.2500001, 0.8, 1.0, 4.0])
    expected = [quadrature_to(profile, a, b, at) for a, b in zip(LOWER, UPPER, strict=True)]
    close(kuf(BOXES, kernel, at[:, None]), expected, rtol=1e-10)

    def double(i, j):
        breaks = [LOWER[j], UPPER[j]]
        return quadrature(lambda x: quadrature_to(profile, LOWER[j], UPPER[j], x)[0], LOWER[i], UPPER[i], breaks)

    found = np.asarray(kuu(BOXES, kernel))
    pairs = [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        (0, 4),
        (0, 5),
        (0, 6),
        (0, 7),
        (2, 5),
        (3, 4),
        (5, 5),
        (6, 6),
        (6, 8),
        (8, 8),
    ]
    close([found[pair] for pair in pairs], [double(*pair) for pair in pairs], rtol=1e-10, atol=0.0)
    close([found[j, i] for i, j in pairs], [found[pair] for pair in pairs], rtol=1e-15)


@pytest.mark.parametrize("kind", PROFILES)
def test_short_intervals_keep_their_digits(kind):
    """Over an interval of length h the integral is h times a value, up to h^2."""
    for h in (1e-3, 1e-6, 1e-9):
        boxes = Integral([[0.5], [0.9]], [[0.5 + h], [0.9 + h]])
        h = np.asarray(boxes.masses())[:, 0]
        middle = np.asarray(boxes.lower)[:, 0] + 0.5 * h
        kernel = kind(1.0, 1.0)
        values = PROFILES[kind](np.abs(middle[:, None] - middle))
        order = 1.0 if kind is Matern12 else 2.0  # a kink on the diagonal costs h, a curve h^2
        close(kuu(boxes, kernel) / h[:, None] / h, values, rtol=1e-10 + h[0] ** order)
        close(kuf(boxes, kernel, np.zeros((1, 1)))[:, 0] / h, PROFILES[kind](middle), rtol=1e-10 + h[0] ** 2)


# ---- smooth kernels: Kuf is the functional of the kernel, Kuu and Kuv are the functional of Kuf

INTEGRALS = {
    1: Integral([[-1.0], [0.1], [0.3]], [[0.5], [1.2], [0.31]]),
    2: Integral(X2 - jnp.asarray([0.6, 0.2]), X2 + jnp.asarray([0.1, 0.9])),
    3: Integral(X3 - 0.3, X3 + jnp.asarray([0.2, 0.4, 0.05])),
}
WINDOWS = {
    1: Multiscale(X1, 0.4),
    2: Multiscale(X2, [0.3, 0.15]),
    3: Multiscale(X3, 0.1 + 0.2 * _rng.uniform(size=(4, 3))),
}
SMOOTH = {
    "RBF": (1, RBF(0.7, 1.3)),
    "RBF ARD": (2, RBF([0.8, 1.9], 1.3)),
    "Sum": (2, RBF([0.8, 1.9]) + 0.3 * RBF(0.9).on(1) + Constant(0.4)),
    "OnDimensions": (3, RBF([0.9, 1.4], 0.8).on([2, 0])),
    "Product": (3, 0.7 * (RBF(0.9).on(2) * (RBF(1.1, 1.3).on(0) + Constant(0.5)))),
    "Product in columns": (3, (RBF(0.9).on(1) * RBF(1.1, 1.3).on(0)).on([2, 0])),
}


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("family", [INTEGRALS, WINDOWS], ids=["Integral", "Multiscale"])
def test_covariances_are_functionals_of_the_kernel(family, name):
    D, kernel = SMOOTH[name]
    variables, X = family[D], (X1, X2, X3)[D - 1]
    close(kuf(variables, kernel, X), kuv_of_function(Points(X), kernel, variables).T)
    K = kuu(variables, kernel)
    close(K, kuv_of_function(variables, kernel, variables), rtol=1e-7)
    close(K, K.T, rtol=1e-14)
    assert np.linalg.eigvalsh(K).min() > -1e-12


def test_covariances_between_kinds():
    points, slopes = Points(X2), Derivative(X2, 1)
    kernel, product = SMOOTH["RBF ARD"][1], RBF(0.9).on(1) * (0.7 * RBF(1.1).on(0))
    cases = [(kernel, INTEGRALS[2], WINDOWS[2]), (product, WINDOWS[2], INTEGRALS[2]), (kernel, WINDOWS[2], points)]
    for k, first, second in [*cases, (kernel, slopes, INTEGRALS[2]), (kernel, points, slopes)]:
        close(kuv(first, k, second), kuv_of_function(first, k, second), rtol=1e-7)
    close(kuv(slopes, kernel, slopes), kuu(slopes, kernel))


def test_boxes_of_matern_kernels_in_two_columns():
    kernel = Matern12(0.8).on(1) * Matern52(0.6, 1.2).on(0)
    columns = [INTEGRALS[2].on([d]) for d in (0, 1)]
    expected = kuf(columns[0], Matern52(0.6, 1.2), X2[:, :1]) * kuf(columns[1], Matern12(0.8), X2[:, 1:])
    close(kuf(INTEGRALS[2], kernel, X2), expected, rtol=1e-13)
    expected = kuu(columns[0], Matern52(0.6, 1.2)) * kuu(columns[1], Matern12(0.8))
    close(kuu(INTEGRALS[2], kernel), expected, rtol=1e-13)


def test_fourier_features_and_integrals():
    """Kuf of Fourier features is smooth, so a quadrature over a box is exact; with a sum, terms are constant elsewhere."""
    one = FourierFeatures(-3.0, 4.0, 4)
    several = FourierFeatures([-3.0, -4.0], 4.0, (2, 3))
    sum_of_terms = Matern12().on(0) + Matern32().on(1) + Matern32(0.7).on(1) * Matern52().on(0)
    for features, kernel, D in ((one, 0.5 * Matern32(), 1), (several, sum_of_terms, 2)):
        expected = kuv_of_function(features, kernel, INTEGRALS[D])
        close(kuv(features, kernel, INTEGRALS[D]), expected, rtol=1e-9)
        close(kuv(INTEGRALS[D], kernel, features), expected.T, rtol=1e-9)


# ---- the variables of a function


def test_variables_of_a_function():
    def f(X):
        return jnp.stack([jnp.exp(0.5 * X[:, 0]), X[:, 0] ** 3], axis=1)

    a, b = np.asarray(INTEGRALS[1].lower)[:, 0], np.asarray(INTEGRALS[1].upper)[:, 0]
    exact = np.stack([2 * (np.exp(b / 2) - np.exp(a / 2)), (b**4 - a**4) / 4], axis=1)
    close(INTEGRALS[1].of_function(f), exact, rtol=1e-13)
    z = np.asarray(X1)[:, 0]
    exact = np.stack([np.exp(z / 2 + 0.4**2 / 8), z**3 + 3 * z * 0.4**2], axis=1)
    close(WINDOWS[1].of_function(f), exact, rtol=1e-12)
    close(Derivative(X1, 0).of_function(f), np.stack([0.5 * np.exp(z / 2), 3 * z**2], axis=1), rtol=1e-13)
    mixed = Mixed([INTEGRALS[1], Mixed([Points(X1), WINDOWS[1]])])
    parts = [INTEGRALS[1], Points(X1), WINDOWS[1]]
    close(mixed.of_function(f), np.concatenate([part.of_function(f) for part in parts]), rtol=1e-15)
    assert mixed.num == len(mixed) == 11 and not mixed.pointwise
    assert Mixed([Points(X1), Derivative(X1, 0)]).pointwise
    fourier = FourierFeatures(0, 1, 2)
    assert has_fixed_features(fourier, Matern32()) and has_fixed_features(Mixed([fourier]), Matern32())
    assert not has_fixed_features(mixed, Matern32())
    close(Integral(0, 2).of_function(lambda X: X), [[2.0]], rtol=1e-14)
    close(Integral([0, 1], [2, 4]).of_function(lambda X: X), [[6.0, 15.0]], rtol=1e-14)
    windows = Integral.gaussian(X2, 0.3)
    assert isinstance(windows, Multiscale) and windows.num == 4


def test_windows_tend_to_points():
    for scale, tolerance in ((1e-3, 2e-6), (1e-8, 1e-12)):
        windows = Multiscale(X2, scale)
        close(kuu(windows, RBF([0.8, 1.9])), RBF([0.8, 1.9])(X2), rtol=10 * tolerance, atol=tolerance)
        close(kuf(windows, RBF([0.8, 1.9]), X2), RBF([0.8, 1.9])(X2), rtol=10 * tolerance, atol=tolerance)


# ---- mixtures of kinds

MIXED = Mixed([Points(X1), Derivative(X1 + 0.05, 0), Mixed([INTEGRALS[1], Points(X1[:1] + 0.2)])])
MIXTURES = {
    "Sum": (RBF(0.7, 1.3) + 0.2 * RBF(0.3), Mixed([WINDOWS[1], MIXED])),
    "Scaled": (1.2 * Matern32(0.7, 1.3), Mixed([FourierFeatures(-4.0, 5.0, 3), MIXED])),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_the_joint_covariance_of_a_mixture(name):
    kernel, mixed = MIXTURES[name]

    @eqx.filter_jit
    def computed(kernel):
        joint, cross = kuu(mixed, kernel), kuf(mixed, kernel, X1)
        return joint, cross, kuv(mixed, kernel, Points(X1)), kuv(Points(X1), kernel, mixed)

    joint, cross, with_points, of_points = map(np.asarray, computed(kernel))
    assert joint.shape == (mixed.num, mixed.num)
    close(joint, joint.T, rtol=1e-13)
    # no variance is explained by more than it is: the joint covariance with the values at X1 is positive, too
    everything = np.block([[joint, cross], [cross.T, np.asarray(kernel(X1))]])
    assert np.linalg.eigvalsh(everything).min() > -1e-8 * np.linalg.eigvalsh(everything).max()
    close(with_points, cross)
    close(of_points, cross.T)


def test_two_mixtures():
    """Block by block, whichever side is cut first; coincident points are so to rounding, which Matern kernels see."""
    mixed = Mixed([Points(X1), Mixed([WINDOWS[1], Points(X1[:1] + 0.2)])])
    close(kuv(mixed, RBF(0.7), mixed), kuu(mixed, RBF(0.7)), rtol=1e-7)


def test_sparse_regression_through_a_mixture():
    """With the values at the data among the variables nothing is lost, and drawn functions have the variables of q."""
    X = jnp.linspace(-2.0, 2.0, 9)[:, None]
    Y = jnp.sin(2.0 * X)
    variables = Mixed([Points(X), Derivative(X[::4], 0), Multiscale(X[::4], 0.4)])
    model = mc.Model(mc.Sparse(mc.GP(RBF(0.7)), variables), mc.likelihoods.Gaussian(0.1))
    exact = mc.Conditioned(mc.GP(RBF(0.7)), X, Y, 0.1)
    objective = mc.objectives.CollapsedELBO()
    close(objective.bound(model, X, Y), exact.log_marginal_likelihood(), rtol=1e-5)
    few = Mixed([Derivative(X[::4], 0), Integral(-1.0, 1.0)])
    q_mu = jnp.asarray([[0.3], [-0.2], [0.5], [0.7]])
    certain = mc.Sparse(mc.GP(RBF(0.7)), few, whiten=False, q_mu=q_mu, q_sqrt=1e-5 * jnp.eye(4)[None])
    drawn = jax.jit(lambda key: few.of_function(certain.sample_function(num_features=30, key=key)))(jax.random.key(0))
    close(drawn, q_mu, rtol=0, atol=1e-3)


def test_parameters_of_variables_and_kernels_are_trained():
    """The derivative of the covariances in every parameter is that of a difference."""
    variables, kinds = Mixed([WINDOWS[1], INTEGRALS[1]]), (RBF, Matern52)
    start, h = jnp.asarray([0.7, 1.3, 0.05]), 1e-4
    around = start + h * jnp.concatenate([jnp.eye(3), -jnp.eye(3)])

    def total(parameters):
        k, matern = (kind(parameters[0], parameters[1]) for kind in kinds)
        moves = mc.parameters.trainable(variables)
        u = jax.tree.map(lambda leaf, moves: leaf + parameters[2] * moves, variables, moves)
        covariances = [Kuu(u, k).dense(), Kuf(u, k, X1), Kuu(u.parts[1], matern).dense()]
        return sum(jnp.sum(jnp.sin(covariance)) for covariance in covariances)

    value_and_gradient = jax.jit(jax.value_and_grad(total))
    gradient, values = value_and_gradient(start)[1], np.asarray([value_and_gradient(p)[0] for p in around])
    close(gradient, (values[:3] - values[3:]) / (2 * h), rtol=1e-5, atol=1e-6)


def test_single_precision():
    X = X1.astype(jnp.float32)
    boxes = Integral(X - 0.2, X + 0.3)
    cases = [(boxes, RBF(0.7)), (boxes, Matern32(0.7)), (Integral(0.0, 0.5), Matern12()), (Multiscale(X, 0.3), RBF())]
    cases += [(Derivative(X, 0), Matern32(0.7)), (FourierFeatures(-4.0, 4.0, 2), Matern32(0.7))]
    for kind, kernel in cases:
        single, double = (mc.parameters.cast((kind, kernel), dtype) for dtype in (jnp.float32, jnp.float64))
        K = kuu(*single)
        assert K.dtype == kuf(kind, kernel, X).dtype == jnp.float32
        close(K, kuu(*double), rtol=1e-4, atol=1e-5)
    mixed = Mixed([boxes, Derivative(X, 0), Multiscale(X, 0.3)])
    assert kuu(mixed, RBF(0.7)).dtype == jnp.float32


# ---- errors

ERRORS = {
    "scales": (
        lambda: Multiscale(X2, [1.0, 2.0, 3.0]),
        r"scales expects a number or shape \(2,\) or \(4, 2\).*got \(3,\)",
    ),
    "negative scales": (lambda: Multiscale(X2, -1.0), "scales expects positive"),
    "dim": (lambda: Derivative(X2, 2), "dim expects the number of a column of X, 0 to 1, got 2"),
    "no dim": (lambda: Derivative(X2, 0.5), "dim expects the number of a column"),
    "order": (lambda: Integral([0.0, 1.0], [1.0, 1.0]), "lower < upper, got 1.0 and 1.0 in row 0, column 1"),
    "infinite": (lambda: Integral(0.0, np.inf), "expect finite values"),
    "shapes": (lambda: Integral([0.0, 1.0], 2.0), r"one shape \[M, D\], got \(1, 2\) and \(1, 1\)"),
    "axes": (lambda: Integral(np.zeros((1, 2, 3)), np.ones((1, 2, 3))), r"one shape \[M, D\]"),
    "empty": (lambda: Mixed([]), "one or more inducing variables"),
    "foreign": (lambda: Mixed([X1]), "one or more inducing variables"),
    "columns": (
        lambda: Kuf(WINDOWS[2], RBF(), X1),
        "Multiscale of functions of 2 columns expects X with as many, got 1",
    ),
    "dims": (lambda: Kuu(WINDOWS[1], RBF().on(1)), "expects variables of more columns, got 1"),
    "product": (lambda: Kuu(WINDOWS[2], RBF() * RBF()), r"see different columns.* on \[0, 1\], \[0, 1\]"),
    "Matern": (lambda: Kuu(INTEGRALS[2], Matern32()), r"one column only, got 2.*Matern32\(\).on\(0\)"),
    "pair": (lambda: Kuu(INTEGRALS[1], Periodic()), r"not defined for Integral with Periodic.*\(Integral, Matern32\)"),
    "window": (
        lambda: Kuf(WINDOWS[1], Matern32(), X1),
        r"not defined for Multiscale with Matern32.*\(Multiscale, RBF\)",
    ),
    "in a sum": (lambda: Kuu(WINDOWS[1], RBF() + Periodic()), "not defined for Multiscale with Periodic"),
    "kinds": (
        lambda: Kuv(FourierFeatures(-4, 4, 2), Matern32(), WINDOWS[1]),
        "FourierFeatures with Multiscale under Matern32 is not known",
    ),
    "grid": (
        lambda: Multiscale(np.zeros((2, 4)), 1.0).of_function(lambda X: X),
        "Multiscale variables of a given function .* up to 3 columns, got 4",
    ),
    "grid of a box": (lambda: Integral([0.0] * 4, [1.0] * 4).of_function(lambda X: X), "up to 3 columns, got 4"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        call()
