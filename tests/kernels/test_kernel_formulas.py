"""Each kernel against its formula, written for two points in plain numpy; limits and identities between kernels."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_instances import ARD, FEATURES, KERNELS, MIXTURE, PRIOR, ROOT, Z, some_inputs
from scipy.special import ndtr

from mercer import kernels
from mercer.kernels.arc_cosine import angular

ARD = np.array(ARD)
PERIODS = np.array([1.1, 2.0, 0.8])


def _r(x, y, lengthscale):
    return math.sqrt(sum(((x - y) / lengthscale) ** 2))


def _matern32(x, y, lengthscale, variance):
    a = math.sqrt(3.0) * _r(x, y, lengthscale)
    return variance * (1.0 + a) * math.exp(-a)


def _matern52(x, y, lengthscale, variance):
    r = _r(x, y, lengthscale)
    return variance * (1.0 + math.sqrt(5.0) * r + 5.0 * r**2 / 3.0) * math.exp(-math.sqrt(5.0) * r)


def _in_polar(x, weights, bias):
    """The norm and the direction of [sqrt(weights) x, sqrt(bias)]."""
    z = np.append(np.sqrt(weights) * x, math.sqrt(bias))
    return math.sqrt(z @ z), z / math.sqrt(z @ z)


def _homogeneous(x, y):
    (r, u), (s, v) = (_in_polar(a, ARD, 0.6) for a in (x, y))
    return r * s * _matern52(u, v, 0.8, 1.2)


def _heat(x, y):
    """On the sphere in R^4, where R_n(cos a) is sin((n + 1) a) / ((n + 1) sin a), and there are (n + 1)^2 harmonics."""
    angle = math.acos(_in_polar(x, 0.4, 0.9)[1] @ _in_polar(y, 0.4, 0.9)[1])
    n = np.arange(12)
    shares = (n + 1) ** 2 * np.exp(-0.5 * 0.6**2 * n * (n + 2))
    return 1.1 * np.sum(shares * np.sin((n + 1) * angle) / ((n + 1) * math.sin(angle))) / np.sum(shares)


def _jittered(K):
    return K + 1e-10 * np.mean(np.diagonal(K)) * np.eye(len(K))


def _explained(kernel, x, y, inner):
    """k(x, Z) inner k(Z, y)."""
    return float(kernel(x[None], Z)[0] @ inner @ kernel(Z, y[None])[:, 0])


def _undetermined(kernel, x, y, inverse_of=None):
    """k(x, y) - k(x, Z) K^-1 k(Z, y), K by default k(Z, Z)."""
    inner = np.linalg.inv(_jittered(np.asarray((inverse_of or kernel)(Z))))
    return float(kernel(x[None], y[None])[0, 0]) - _explained(kernel, x, y, inner)


def _cholesky_svgp(x, y):
    W = np.linalg.inv(np.linalg.cholesky(_jittered(np.asarray(PRIOR(Z)))))
    return _undetermined(PRIOR, x, y) + _explained(PRIOR, x, y, W.T @ ROOT @ ROOT.T @ W)


def _spectral_mixture(x, y):
    total, tau = 0.0, x - y
    for w, mean, scale in zip(*(np.asarray(a) for a in (MIXTURE.weights, MIXTURE.means, MIXTURE.scales)), strict=True):
        total += w * math.exp(-2.0 * math.pi**2 * sum((tau * scale) ** 2)) * math.cos(2.0 * math.pi * sum(tau * mean))
    return total


def _arc_cosine(x, y, order, depth, weight, bias, variance):
    def inner(a, b):
        return sum(weight * a * b) + bias

    def J(t):
        return (
            math.pi - t,
            math.sin(t) + (math.pi - t) * math.cos(t),
            3.0 * math.sin(t) * math.cos(t) + (math.pi - t) * (1.0 + 2.0 * math.cos(t) ** 2),
        )[order]

    xx, xy, yy = inner(x, x), inner(x, y), inner(y, y)
    for _ in range(depth):
        t = math.acos(min(1.0, xy / math.sqrt(xx * yy)))
        xx, xy, yy = (
            xx**order * J(0.0) / math.pi,
            (xx * yy) ** (order / 2) * J(t) / math.pi,
            yy**order * J(0.0) / math.pi,
        )
    return variance * xy


def _angle(k11, k12, k22):
    return math.acos(max(-1.0, min(1.0, k12 / math.sqrt(k11 * k22))))


def _relu(k11, k12, k22):
    """E[max(0, u) max(0, v)], and E of the product of the derivatives."""
    t = _angle(k11, k12, k22)
    return math.sqrt(k11 * k22) * (math.sin(t) + (math.pi - t) * math.cos(t)) / 2 / math.pi, (math.pi - t) / 2 / math.pi


def _erf(k11, k12, k22):
    square = (1.0 + 2.0 * k11) * (1.0 + 2.0 * k22)
    value = 2.0 / math.pi * math.asin(2.0 * k12 / math.sqrt(square))
    return value, 4.0 / math.pi / math.sqrt(square - 4.0 * k12**2)


def _gelu(k11, k12, k22):
    """Of u Phi(u), by quadrature with many points."""
    z, w = np.polynomial.hermite_e.hermegauss(120)
    w = w / math.sqrt(2.0 * math.pi)
    t = _angle(k11, k12, k22)
    u = math.sqrt(k11) * z[:, None]
    v = math.sqrt(k22) * (math.cos(t) * z[:, None] + math.sin(t) * z[None])
    values = [a * ndtr(a) for a in (u, v)]
    slopes = [ndtr(a) + a * np.exp(-0.5 * a**2) / math.sqrt(2.0 * math.pi) for a in (u, v)]
    return tuple(float(np.sum(w[:, None] * w * a * b)) for a, b in (values, slopes))


def _wide(x, y, tangent):
    """The network of `kernel_instances.WIDE`: dense, relu, a branch of (dense, erf, dense), gelu, dense."""

    def dense(K, T, weight, bias):
        new = {p: weight**2 * K[p] + bias**2 for p in K}
        return new, {p: new[p] + weight**2 * T[p] for p in K}

    def activation(f, K, T):
        pairs = {(i, j): f(K[i, i], K[i, j], K[j, j]) for i, j in K}
        return {p: pairs[p][0] for p in K}, {p: pairs[p][1] * T[p] for p in K}

    points = (x, y)
    K = {(i, j): sum(points[i] * points[j]) / 3.0 for i in (0, 1) for j in (0, 1)}
    K, T = activation(_relu, *dense(K, dict.fromkeys(K, 0.0), 1.3, 0.4))
    Kb, Tb = dense(*activation(_erf, *dense(K, T, 0.8, 0.3)), 1.1, 0.0)
    K, T = {p: K[p] + Kb[p] for p in K}, {p: T[p] + Tb[p] for p in K}
    K, T = dense(*activation(_gelu, K, T), 0.9, 0.2)
    return (T if tangent else K)[0, 1]


def _tanh(x, y):
    z, w = np.polynomial.hermite_e.hermegauss(150)
    w = w / math.sqrt(2.0 * math.pi)
    k11, k12, k22 = (0.16 * sum(a * b) / 3.0 + 0.09 for a, b in ((x, x), (x, y), (y, y)))
    t = _angle(k11, k12, k22)
    u, v = math.sqrt(k11) * z[:, None], math.sqrt(k22) * (math.cos(t) * z[:, None] + math.sin(t) * z[None])
    return float(np.sum(w[:, None] * w * np.tanh(u) * np.tanh(v)))


def _change_points(x, y):
    def sigmoid(t):
        return 1.0 / (1.0 + math.exp(-t))

    def weights(z):
        first, second = sigmoid(3.0 * (z[1] + 0.5)), sigmoid(1.5 * (z[1] - 0.8))
        return 1.0 - first, first * (1.0 - second), second

    parts = math.exp(-0.5 * _r(x, y, 0.7) ** 2), 0.5 * sum(x * y), _matern32(x, y, 1.2, 1.0)
    return sum(w * v * k for w, v, k in zip(weights(x), weights(y), parts, strict=True))


FORMULAS = {
    "RBF": lambda x, y: 1.3 * math.exp(-0.5 * _r(x, y, 0.7) ** 2),
    "RBF ARD": lambda x, y: 0.4 * math.exp(-0.5 * _r(x, y, ARD) ** 2),
    "Matern12": lambda x, y: 1.3 * math.exp(-_r(x, y, 0.9)),
    "Matern32": lambda x, y: _matern32(x, y, ARD, 1.3),
    "Matern52": lambda x, y: _matern52(x, y, 1.4, 0.8),
    "Additive": lambda x, y: sum(
        v * _matern32(x[d : d + 1], y[d : d + 1], 1.3 * ARD[d], 0.9) for d, v in enumerate([0.3, 1.2, 0.6])
    ),
    "RationalQuadratic": lambda x, y: 1.2 * (1.0 + _r(x, y, ARD) ** 2 / 1.2) ** -0.6,
    "Periodic": lambda x, y: 1.7 * math.exp(-2.0 * sum(np.sin(math.pi * (x - y) / 0.9) ** 2) / 1.2**2),
    "Periodic ARD": lambda x, y: 0.5 * math.exp(-2.0 * sum(np.sin(math.pi * (x - y) / PERIODS) ** 2 / ARD**2)),
    "Cosine": lambda x, y: 1.4 * math.cos(2.0 * math.pi * sum((x - y) / ARD)),
    "SpectralMixture": _spectral_mixture,
    "Linear": lambda x, y: 0.6 * sum(x * y),
    "Linear ARD": lambda x, y: sum(ARD * x * y),
    "Polynomial": lambda x, y: (0.3 * sum(x * y) + 0.8) ** 3,
    "Polynomial ARD": lambda x, y: (sum(ARD * x * y) + 1.5) ** 2,
    "Homogeneous": _homogeneous,
    "Homogeneous heat": _heat,
    "ArcCosine": lambda x, y: _arc_cosine(x, y, 1, 1, np.ones(3), 1.0, 1.0),
    **{
        f"ArcCosine order {n} depth {d}": lambda x, y, n=n, d=d: _arc_cosine(x, y, n, d, ARD, 0.7, 1.3)
        for n in (0, 1, 2)
        for d in (1, 2, 3)
    },
    "Constant": lambda x, y: 0.3,
    "White": lambda x, y: 0.0,
    "ChangePoints": _change_points,
    "Convolutional": lambda x, y: sum(
        v * w * math.exp(-0.5 * _r(x[i : i + 2], y[j : j + 2], 0.7) ** 2) / 4.0
        for i, v in enumerate((0.5, 1.2))
        for j, w in enumerate((0.5, 1.2))
    ),
    "FeatureMap": lambda x, y: (0.7 * sum(np.asarray(FEATURES(x)) * np.asarray(FEATURES(y))) + 0.4) ** 2,
    "CholeskySVGP": _cholesky_svgp,
    "DiagonalSVGP": lambda x, y: _undetermined(PRIOR, x, y) + _explained(PRIOR, x, y, np.diag([0.3, 0.1, 0.7, 0.2])),
    "KernelisedSVGP": lambda x, y: _undetermined(PRIOR, x, y) + _matern52(x, y, 0.6, 0.3),
    "SparsePosterior": lambda x, y: _undetermined(PRIOR, x, y),
    "FixedSparsePosterior": lambda x, y: _undetermined(kernels.RBF(ARD, 1.1), x, y, PRIOR),
    "Tempered": lambda x, y: 0.6 * _undetermined(kernels.Matern32(1.2), x, y),
    "NNGP": lambda x, y: _wide(x, y, tangent=False),
    "NNGP relu": lambda x, y: _relu(*(1.3**2 * sum(a * b) / 3.0 for a, b in ((x, x), (x, y), (y, y))))[0],
    "NNGP tanh": _tanh,
    "NTK": lambda x, y: _wide(x, y, tangent=True),
}


def test_every_kernel_has_a_formula():
    algebra = {kernels.Sum, kernels.Product, kernels.Scaled, kernels.OnDimensions}
    assert set(FORMULAS) == {name for name, kernel in KERNELS.items() if type(kernel) not in algebra}


@pytest.mark.parametrize("name", FORMULAS)
def test_formula(name):
    X, X2 = some_inputs(), some_inputs(seed=1)[:4]
    expected = [[FORMULAS[name](x, y) for y in np.asarray(X2)] for x in np.asarray(X)]
    computed = eqx.filter_jit(lambda kernel, X, X2: kernel(X, X2))(KERNELS[name], X, X2)
    np.testing.assert_allclose(computed, expected, rtol=1e-10, atol=1e-12)


def test_every_kernel_of_parameters_has_defaults():
    of_kernels = (kernels.Sum, kernels.Product, kernels.Scaled, kernels.OnDimensions, kernels.ChangePoints)
    of_kernels += (kernels.Convolutional, kernels.FeatureMap, kernels.CholeskySVGP, kernels.DiagonalSVGP)
    of_kernels += (kernels.KernelisedSVGP, kernels.SparsePosterior, kernels.FixedSparsePosterior, kernels.Tempered)
    of_kernels += (kernels.nngp.NNGP, kernels.nngp.NTK, kernels.Homogeneous)
    for kind in {type(kernel) for kernel in KERNELS.values()}.difference(of_kernels):
        assert jax.eval_shape(kind(), jnp.ones((2, 1))).shape == (2, 2)


def test_white_is_noise_of_the_call_not_of_the_values():
    X = some_inputs()
    np.testing.assert_array_equal(KERNELS["White"](X), 0.2 * np.eye(7))
    np.testing.assert_array_equal(KERNELS["White"](X, X), np.zeros((7, 7)))


class TestAlgebra:
    a, b, X, X2 = kernels.RBF(0.7), kernels.Linear(0.4), some_inputs(), some_inputs(seed=1)[:4]

    def test_sum(self):
        np.testing.assert_allclose(
            (self.a + self.b)(self.X, self.X2), self.a(self.X, self.X2) + self.b(self.X, self.X2)
        )

    def test_sum_over_subsets_of_columns(self):
        X = np.random.default_rng(0).normal(size=(5, 3))
        pairs = [kernels.RBF(0.7).on(dims) for dims in (0, 1, 2, (0, 1), (0, 2), (1, 2))]
        np.testing.assert_allclose(kernels.Sum.of_subsets(kernels.RBF(0.7), 3)(X), sum(kernel(X) for kernel in pairs))
        np.testing.assert_allclose(
            kernels.Sum.of_subsets(kernels.RBF(0.7), 3, 1)(X), sum(kernel(X) for kernel in pairs[:3])
        )
        with pytest.raises(ValueError, match="size expects a number from 1 to 3, the columns, got 4"):
            kernels.Sum.of_subsets(kernels.RBF(), 3, 4)

    def test_product(self):
        np.testing.assert_allclose(
            (self.a * self.b)(self.X, self.X2), self.a(self.X, self.X2) * self.b(self.X, self.X2)
        )

    @pytest.mark.parametrize("scaled", [2.5 * a, a * 2.5], ids=["left", "right"])
    def test_multiple(self, scaled):
        np.testing.assert_allclose(scaled(self.X), 2.5 * self.a(self.X))

    @pytest.mark.parametrize("dims", [1, [0, 2], (2, 0)])
    def test_on(self, dims):
        columns = np.atleast_1d(dims)
        np.testing.assert_allclose(self.b.on(dims)(self.X, self.X2), self.b(self.X[:, columns], self.X2[:, columns]))

    def test_sums_and_products_are_flat(self):
        assert len((self.a + self.b + (self.a + self.b)).kernels) == 4
        assert len((self.a * self.b * (self.a * self.b)).kernels) == 4
        assert len((self.a * self.b + self.a).kernels) == 2

    def test_distributive(self):
        c = kernels.Matern32(1.2)
        np.testing.assert_allclose((self.a * (self.b + c))(self.X), (self.a * self.b + self.a * c)(self.X), rtol=1e-12)

    def test_only_kernels_are_added(self):
        with pytest.raises(TypeError):
            self.a + 1.0


class TestLimits:
    X = some_inputs()

    def test_rational_quadratic_tends_to_rbf(self):
        np.testing.assert_allclose(
            kernels.RationalQuadratic(0.8, 1.3, 1e8)(self.X), kernels.RBF(0.8, 1.3)(self.X), atol=1e-6
        )

    def test_long_period_tends_to_rbf(self):
        # sin(pi t / p) -> pi t / p, an RBF kernel of lengthscale l p / (2 pi)
        period = 1e4
        periodic = kernels.Periodic(0.7 * 2.0 * math.pi / period, period)
        np.testing.assert_allclose(periodic(self.X), kernels.RBF(0.7)(self.X), atol=1e-6)

    def test_periodic_repeats(self):
        kernel = KERNELS["Periodic ARD"]
        np.testing.assert_allclose(kernel(self.X + PERIODS, self.X), kernel(self.X), rtol=1e-10)

    def test_spectral_mixture_at_frequency_zero_is_rbf(self):
        mixture = kernels.SpectralMixture([1.3], [[0.0] * 3], [1.0 / (2.0 * math.pi * ARD)])
        np.testing.assert_allclose(mixture(self.X), kernels.RBF(ARD, 1.3)(self.X), rtol=1e-10)

    def test_narrow_spectral_mixture_is_cosine(self):
        mixture = kernels.SpectralMixture([1.4], [1.0 / ARD], [[1e-8] * 3])
        np.testing.assert_allclose(mixture(self.X), kernels.Cosine(ARD, 1.4)(self.X), atol=1e-10)

    def test_polynomial_of_degree_one_is_linear_and_constant(self):
        expected = kernels.Linear(0.3) + kernels.Constant(0.8)
        np.testing.assert_allclose(kernels.Polynomial(1, 0.3, 0.8)(self.X), expected(self.X), rtol=1e-10)

    def test_far_from_change_points_one_kernel_holds(self):
        parts = [kernels.RBF(0.7), kernels.Linear(0.5), kernels.Matern32(1.2)]
        changing = kernels.ChangePoints(parts, [-100.0, 100.0], 2.0)
        for part, shift in zip(parts, (-200.0, 0.0, 200.0), strict=True):
            X = self.X + shift
            np.testing.assert_allclose(changing(X), part(X), rtol=1e-9)

    def test_without_change_points_there_is_one_kernel(self):
        one = kernels.ChangePoints([kernels.RBF()], [])
        np.testing.assert_allclose(one(self.X), kernels.RBF()(self.X))


class TestArcCosine:
    @pytest.mark.parametrize(
        "kernel, made",
        [
            (kernels.ArcCosine(2), lambda scales: kernels.ArcCosine.with_lengthscales(scales, order=2)),
            (
                kernels.Homogeneous(kernels.SphericalRBF(0.7), bias_variance=0.3, degree=2),
                lambda scales: kernels.Homogeneous.with_lengthscales(kernels.SphericalRBF(0.7), scales, 0.3, degree=2),
            ),
        ],
    )
    def test_columns_are_divided_by_lengthscales(self, kernel, made):
        lengthscales = np.array([0.5, 1.0, 2.0])
        X = np.random.default_rng(0).normal(size=(5, 3))
        np.testing.assert_allclose(made(lengthscales)(X), kernel(X / lengthscales), rtol=1e-12)
        with pytest.raises(ValueError, match="expects positive, finite values"):
            made(-lengthscales)

    @pytest.mark.parametrize("order", [0, 1, 2])
    def test_slope_of_the_angular_function(self, order):
        c, h = jnp.linspace(-0.95, 0.95, 39), 1e-6
        numeric = (angular(order, c + h) - angular(order, c - h)) / (2.0 * h)
        np.testing.assert_allclose(jax.vmap(jax.grad(lambda c: angular(order, c)))(c), numeric, rtol=1e-6, atol=1e-8)

    @pytest.mark.parametrize("order", [0, 1, 2])
    def test_depth_is_composition(self, order):
        X = some_inputs()
        eigenvalues, eigenvectors = jnp.linalg.eigh(kernels.ArcCosine(order, 1, ARD, 0.7)(X))
        rows = eigenvectors * jnp.sqrt(jnp.maximum(eigenvalues, 0.0))  # rows . rows' is the kernel of the first layer
        composed = kernels.ArcCosine(order, 1, 1.0, 1e-30)(rows)
        loose = 1e-3 if order == 0 else 1e-7
        np.testing.assert_allclose(kernels.ArcCosine(order, 2, ARD, 0.7)(X), composed, rtol=loose)

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_repeated_rows_are_told_apart_by_nothing(self, depth):
        """Order 0 falls off as the root of the distance at each layer: rounding may not be seen through it."""
        X = jnp.concatenate([some_inputs(seed) + 10.0 * seed for seed in range(10)])
        kernel = kernels.ArcCosine(0, depth, ARD, 0.7)
        np.testing.assert_array_equal(np.diagonal(kernel(X, X)), kernel.diag(X))


MIXED_DERIVATIVES = {  # d^2 k(x, x') / dx dx' at x = x' in one dimension, for lengthscale 0.7 and variance 1.3
    "RBF": (kernels.RBF(0.7, 1.3), 1.3 / 0.7**2),
    "RationalQuadratic": (kernels.RationalQuadratic(0.7, 1.3, 0.6), 1.3 / 0.7**2),
    "Periodic": (kernels.Periodic(0.7, 0.9, 1.3), 1.3 * (2.0 * math.pi / 0.9 / 0.7) ** 2),
    "Cosine": (kernels.Cosine(0.7, 1.3), 1.3 * (2.0 * math.pi / 0.7) ** 2),
    "SpectralMixture": (kernels.SpectralMixture([1.3], [[0.4]], [[0.2]]), 1.3 * (2 * math.pi) ** 2 * (0.4**2 + 0.2**2)),
    "Linear": (kernels.Linear(1.3), 1.3),
    "Polynomial": (kernels.Polynomial(2, 1.0, 1.0), 2.0 + 4.0 * 0.3**2),
    # k = J_1 |x||x'| / pi is E 2 relu relu', and relu' is 1 on half of the plane: the mixed derivative is the weight.
    "ArcCosine": (kernels.ArcCosine(1, 1, 1.7, 0.7), 1.7),
    "Matern32": (kernels.Matern32(0.7, 1.3), 1.3 * 3.0 / 0.7**2),
    "Matern52": (kernels.Matern52(0.7, 1.3), 1.3 * 5.0 / 3.0 / 0.7**2),
}


@pytest.mark.parametrize("name", MIXED_DERIVATIVES)
def test_variance_of_the_derivative(name):
    """The variance of f'(x) is a derivative of the kernel at coincident points."""
    kernel, expected = MIXED_DERIVATIVES[name]

    def k(x, y):
        return kernel(x[None, None], y[None, None])[0, 0]

    x = jnp.asarray(0.3)
    np.testing.assert_allclose(jax.jit(jax.grad(jax.grad(k), argnums=1))(x, x), expected, rtol=1e-6)


def test_parameters_may_be_traced():
    X, lengthscales = some_inputs(), jnp.asarray([0.5, 1.0, 2.0])
    batch = jax.vmap(lambda l: kernels.Periodic(l)(X))(lengthscales)
    np.testing.assert_allclose(batch, jnp.stack([kernels.Periodic(l)(X) for l in lengthscales]), rtol=1e-10)
    batch = eqx.filter_vmap(lambda k: k(X))(eqx.filter_vmap(kernels.ArcCosine)(1, 2, lengthscales))
    expected = jnp.stack([kernels.ArcCosine(1, 2, l)(X) for l in lengthscales])
    np.testing.assert_allclose(batch, expected, rtol=1e-10)
