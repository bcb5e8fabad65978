"""Variational Fourier features: inner products in the space of the kernel, against their definition by quadrature."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from cases import mostly_slow
from mercer.covariances import Kuf, Kuu, has_fixed_features
from mercer.inducing import FourierFeatures
from mercer.kernels import RBF, Constant, Matern12, Matern32, Matern52
from mercer.linalg import BlockDiagonal, DiagonalPlusLowRank, Kronecker

LOWER, UPPER, LENGTHSCALE, VARIANCE = -1.5, 2.5, 0.7, 1.3
KERNELS = {Matern12: 0, Matern32: 1, Matern52: 2}  # how often their functions are differentiable
FEATURES = FourierFeatures(LOWER, UPPER, 3)
_rng = np.random.default_rng(0)


@eqx.filter_jit
def covariances(variables, kernel, X):
    """Kuu, Kuf, and the covariance that they explain."""
    K, cross = Kuu(variables, kernel), Kuf(variables, kernel, X)
    return K, cross, cross.T @ K.solve(cross)


def close(found, expected, rtol=1e-9, atol=1e-10):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def kernel_at(p, x):
    """t -> k(x, t) as a function that JAX differentiates, away from t = x."""
    rate = np.sqrt(2 * p + 1) / LENGTHSCALE

    def k(t):
        a = rate * jnp.abs(x - t)
        return VARIANCE * (1.0, 1.0 + a, 1.0 + a + a**2 / 3.0)[p] * jnp.exp(-a)

    return k


def features(t):
    w = 2.0 * jnp.pi * jnp.arange(1, 4) / (UPPER - LOWER)
    angle = w * (t - LOWER)
    return jnp.concatenate([jnp.ones(1), jnp.cos(angle), jnp.sin(angle)])


def derivatives(f, t, num):
    """f and its derivatives at t, [num + 1, len(t), ...]."""
    found = []
    for _ in range(num + 1):
        found.append(jax.vmap(f)(t))
        f = jax.jacfwd(f)
    return found


def inner_product(p, g, h, kink):
    """<g, h> on [LOWER, UPPER] by the definition in Durrande and others (2016), pieces ending at `kink`; h is a vector."""
    rate = np.sqrt(2 * p + 1) / LENGTHSCALE
    nodes, weights = np.polynomial.legendre.leggauss(60)
    pieces = [(LOWER, kink), (kink, UPPER)]
    t = np.concatenate([a + (b - a) * (nodes + 1) / 2 for a, b in pieces])
    w = np.concatenate([weights * (b - a) / 2 for a, b in pieces])
    binomials = [(1, 1), (1, 2, 1), (1, 3, 3, 1)][p]

    def operator(f):
        terms = derivatives(f, t, p + 1)
        return sum(c * rate ** (p + 1 - i) * term for i, (c, term) in enumerate(zip(binomials, terms, strict=True)))

    constant = [1 / (2 * rate), 1 / (4 * rate**3), 3 / (16 * rate**5)][p]
    g_at, h_at = (([d[0] for d in derivatives(f, jnp.asarray([LOWER]), p)] + [0.0, 0.0]) for f in (g, h))
    g0, g1, g2, h0, h1, h2 = *g_at[:3], *h_at[:3]
    boundary = [
        g0 * h0,
        g0 * h0 + g1 * h1 / rate**2,
        9 / 8 * g0 * h0 + 9 / 8 * g2 * h2 / rate**4 + 3 / rate**2 * (g1 * h1 + (g2 * h0 + g0 * h2) / 8),
    ][p]
    integral = jnp.einsum("t,t,tm->m", w, operator(g), operator(h))
    return (constant * integral + boundary) / VARIANCE


@pytest.mark.parametrize("kind", mostly_slow(KERNELS, Matern32))
def test_the_inner_product_reproduces_the_features(kind):
    """<k(x, .), phi> = phi(x), so that Kuf is phi; and Kuu is <phi, phi>."""
    p, kernel = KERNELS[kind], kind(LENGTHSCALE, VARIANCE)

    @jax.jit
    def computed():
        reproduced = [inner_product(p, kernel_at(p, x), features, x) for x in (-0.8, 0.3, 2.1)]
        products = [inner_product(p, lambda t, m=m: features(t)[m], features, 0.0) for m in range(7)]
        return jnp.stack(reproduced, axis=1), jnp.stack(products)

    reproduced, products = computed()
    at = jnp.asarray([[-0.8], [0.3], [2.1]])
    close(Kuf(FEATURES, kernel, at), jax.vmap(features, out_axes=1)(at[:, 0]))
    close(reproduced, Kuf(FEATURES, kernel, at))
    K = Kuu(FEATURES, kernel)
    assert isinstance(K, DiagonalPlusLowRank) and K.V.shape == (7, p + 1)
    close(K.dense(), products)
    close(Kuu(FEATURES, 2.0 * kind([LENGTHSCALE], VARIANCE)).dense(), products / 2.0)
    assert np.linalg.eigvalsh(products).min() > 0.0
    # a constant or cosine, and a sine, share no column
    assert not np.any(np.any(K.V[:4] != 0, axis=0) & np.any(K.V[4:] != 0, axis=0))


@pytest.mark.parametrize("kind", KERNELS)
def test_more_features_explain_more_of_the_variance(kind):
    """phi^T Kuu^-1 phi grows to k(x, x) in the middle of a wide box."""
    kernel, at = kind(LENGTHSCALE, VARIANCE), jnp.asarray([[0.0], [0.9]])

    @jax.jit
    def explained():
        found = []
        for F in (2, 10, 50, 400):
            variables = FourierFeatures(-6.0, 7.0, F)
            cross = Kuf(variables, kernel, at)
            found.append(cross.T @ Kuu(variables, kernel).solve(cross))
        return jnp.stack(found)

    found = np.asarray(explained())
    variances = np.diagonal(found, axis1=1, axis2=2)
    assert np.all(np.diff(variances, axis=0) > 0.0) and np.all(variances < VARIANCE)
    close(found[-1], kernel(at), rtol=0, atol={Matern12: 0.02, Matern32: 1e-4, Matern52: 1e-5}[kind])


SEVERAL = FourierFeatures([-5.0, -6.0], 7.0, (40, 30))
PRODUCT = 0.7 * (Matern52(1.0, 1.1).on(1) * (1.2 * Matern32(1.0).on(0)))
SUM = 0.5 * (Matern52(1.5).on(0) + Matern32(0.9, 1.1).on(1))
INSIDE = jnp.asarray([[0.0, 0.5], [0.8, -0.2], [1.0, 1.0]])


def test_products_are_kronecker():
    K, cross, explained = covariances(SEVERAL, PRODUCT, INSIDE)
    assert isinstance(K, Kronecker) and [f.size for f in K.factors] == [81, 61]
    assert SEVERAL.num == K.size == 81 * 61 and cross.shape == (81 * 61, 3)
    first, second = (Kuf(FourierFeatures(a, 7.0, F), Matern32(), x) for a, F, x in _columns())
    close(cross, np.einsum("in,jn->ijn", first, second).reshape(-1, 3))
    close(explained, PRODUCT(INSIDE), rtol=0, atol=2e-3)


def _columns():
    return [(-5.0, 40, INSIDE[:, :1]), (-6.0, 30, INSIDE[:, 1:])]


def test_sums_are_block_diagonal():
    variables = FourierFeatures([-5.0, -6.0], 7.0, (40, 30))
    K, cross, explained = covariances(variables, SUM, INSIDE)
    assert isinstance(K, BlockDiagonal) and K.size == len(cross) == 81 + 61
    close(cross, np.concatenate([Kuf(FourierFeatures(a, 7.0, F), Matern32(), x) for a, F, x in _columns()]))
    close(explained, SUM(INSIDE), rtol=0, atol=2e-3)
    # two terms of one column, and a product beside a kernel of one column
    both = FourierFeatures([-5.0, -6.0], 7.0, 30)
    kernel = Matern12().on(0) + Matern52().on(0) + Matern32(2.0).on(0) * Matern52(2.0).on(1)
    assert Kuu(both, kernel).size == len(Kuf(both, kernel, INSIDE)) == 61 + 61 + 61**2
    factored = (Matern12().on(0) + Matern52().on(0)) * Matern32().on(1)  # a product of sums is a sum of products
    assert Kuu(FourierFeatures(-5.0, 5.0, (1, 2)), factored).size == 30


def test_regression_approaches_the_exact_process():
    X = jnp.asarray(np.sort(_rng.uniform(-1.0, 1.0, size=(25, 1)), axis=0))
    Y = jnp.sin(3.0 * X) + 0.1 * jnp.asarray(_rng.normal(size=X.shape))
    kernel = Matern52(0.8, 1.2)
    exact = mc.Conditioned(mc.GP(kernel), X, Y, 0.05)
    model = mc.Model(mc.Sparse(mc.GP(kernel), FourierFeatures(-5.0, 5.0, 60)), mc.likelihoods.Gaussian(0.05))
    objective = mc.objectives.CollapsedELBO()
    bound, evidence = objective.bound(model, X, Y), exact.log_marginal_likelihood()
    assert bound < evidence
    close(bound, evidence, rtol=0, atol=0.05)
    best, at = objective.posterior(model, X, Y), jnp.linspace(-1.0, 1.0, 5)[:, None]
    for found, expected in zip(best.predict(at), exact.predict(at), strict=True):
        close(found, expected, rtol=0, atol=2e-3)


def test_kernels_are_trained_and_features_are_not():
    trained = mc.parameters.trainable(FEATURES)
    assert not any(jax.tree.leaves(trained)) and has_fixed_features(FEATURES, Matern32())

    @eqx.filter_jit
    def value_and_gradient(lengthscale):
        def value(l):
            return Kuu(FEATURES, Matern52(l)).log_determinant() + jnp.sum(Kuf(FEATURES, Matern52(l), jnp.ones((1, 1))))

        return jax.value_and_grad(value)(lengthscale)

    h = 1e-5
    _, gradient = value_and_gradient(jnp.asarray(0.7))
    difference = (value_and_gradient(jnp.asarray(0.7 + h))[0] - value_and_gradient(jnp.asarray(0.7 - h))[0]) / (2 * h)
    close(gradient, difference, rtol=1e-6)


def test_single_precision():
    single = mc.parameters.cast((SEVERAL, PRODUCT), jnp.float32)
    K, cross, explained = covariances(*single, INSIDE.astype(jnp.float32))
    assert K.diagonal().dtype == cross.dtype == explained.dtype == jnp.float32
    close(explained, covariances(SEVERAL, PRODUCT, INSIDE)[2], rtol=0, atol=1e-4)
    assert Kuf(SEVERAL, PRODUCT, INSIDE.astype(jnp.float32)).dtype == jnp.float32


def test_what_is_traced_is_not_looked_at():
    outside = jnp.asarray([[9.0]])
    assert jax.jit(lambda X: Kuf(FEATURES, Matern32(), X))(outside).shape == (7, 1)
    assert jax.jit(lambda: Kuf(FEATURES, Matern32(), jnp.ones((1, 1))))().shape == (7, 1)


TWO = FourierFeatures(-5.0, [5.0, 6.0], 2)
ERRORS = {
    "outside": (
        lambda: Kuf(FEATURES, Matern32(), jnp.asarray([[0.0], [2.75]])),
        r"X must lie in the box \[-1.5, 2.5\] of column 0.*got values from 0 to 2.75",
    ),
    "box outside": (
        lambda: mc.covariances.Kuv(FEATURES, Matern32(), mc.inducing.Integral(-2.0, 0.0)),
        r"the boxes of Integral must lie in the box \[-1.5, 2.5\]",
    ),
    "columns": (lambda: Kuf(FEATURES, Matern32(), INSIDE), "on 1 columns expects X with as many, got 2"),
    "several columns": (lambda: Kuu(TWO, Matern32()), r"Matern32\(\).on\(0\) \* Matern32.*got Matern32 of 2 columns"),
    "kernel": (lambda: Kuu(FEATURES, RBF()), "expect Matern12, Matern32 or Matern52.*got RBF of 1 columns"),
    "kernel of Kuf": (lambda: Kuf(FEATURES, Constant(), INSIDE[:, :1]), "got Constant of 1 columns"),
    "twice": (lambda: Kuu(TWO, Matern32().on(0) * Matern12().on(0)), r"each column once.*columns \[0\] twice"),
    "dims": (lambda: Kuu(FEATURES, Matern32().on(1)), "expects at least 2 columns, got 1"),
    "order": (lambda: FourierFeatures(1.0, 1.0, 2), "finite values with lower < upper"),
    "infinite": (lambda: FourierFeatures(0.0, np.inf, 2), "finite values with lower < upper"),
    "number": (lambda: FourierFeatures(0.0, 1.0, -1), r"whole numbers of at least 0, got \(-1,\)"),
    "whole": (lambda: FourierFeatures(0.0, 1.0, 2.5), r"whole numbers of at least 0, got \(2.5,\)"),
    "lengths": (lambda: FourierFeatures([0.0, 1.0], 2.0, (1, 2, 3)), r"got shapes \(2,\), \(1,\) and \(3,\)"),
}


def test_inputs_outside_the_box_are_refused_before_anything_is_compiled():
    prior, box = mc.GP(Matern32()), FourierFeatures(-1.0, 1.0, 3)
    coregionalised = mc.GP(mc.kernels.LinearCoregionalisation([Matern32(), Matern32()], np.eye(2)))
    posteriors = [
        mc.Sparse(prior, box),
        mc.Sparse(prior, box).cached(),
        mc.Sparse(prior, mc.inducing.Mixed([mc.inducing.Points(np.zeros((1, 1))), box])),
        mc.Sparse(coregionalised, mc.inducing.Shared(box)),
    ]
    X = np.array([[0.5], [1.5]])
    for posterior in posteriors:
        with pytest.raises(ValueError, match=r"X must lie in the box \[-1, 1\] of column 0.* from 0.5 to 1.5"):
            posterior.predict(X)
    for objective in (mc.objectives.ELBO(), mc.objectives.CollapsedELBO()):
        with pytest.raises(ValueError, match="X must lie in the box"):
            mc.fit(mc.Model(posteriors[0], mc.likelihoods.Gaussian(0.1)), objective, (X, X), steps=1)


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        call()
