"""Activated variables against explicit harmonics, quadrature, closed forms and networks."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import integrate, special

import mercer as mc
from cases import mostly_slow
from mercer.covariances import Kuf, Kuu, Kuv
from mercer.harmonics import SphericalHarmonics as Basis
from mercer.harmonics import num_harmonics
from mercer.inducing import Activated, Points, Separate, Shared
from mercer.inducing.activations import Elementwise, Erf, Relu, Softplus, Swish
from mercer.kernels import ArcCosine, Homogeneous, SphericalMatern52
from mercer.training import NaturalGradient

_rng = np.random.default_rng(0)
W = _rng.normal(size=(6, 3))
X = _rng.normal(size=(25, 2))
Y = np.sin(2.0 * X[:, :1]) + 0.1 * _rng.normal(size=(25, 1))
GRADED = ArcCosine(1, 1, [0.8, 1.3], 0.6, 1.4)
MATERN = Homogeneous(SphericalMatern52(0.9, 1.2), [0.8, 1.3], 0.6)
UNITS = Activated(W, Softplus(), 6)
NOISE = mc.likelihoods.Gaussian(0.05)


def close(found, expected, rtol=1e-9, atol=1e-10):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def on_sphere(kernel, X):
    """Directions and lengths of [sqrt(weight_variance) x, sqrt(bias_variance)]."""
    Z = np.concatenate(
        [np.sqrt(kernel.weight_variance) * X, np.full((len(X), 1), np.sqrt(kernel.bias_variance))], axis=1
    )
    lengths = np.linalg.norm(Z, axis=1)
    return Z / lengths[:, None], lengths


def dense(variables, kernel, X):
    """Kuu and Kuf by explicit harmonics: g_m has the coefficients A_m, u_m = A_m <phi, f>_H."""
    d, n = variables.dimension, np.arange(variables.levels)
    kept = [int(level) for level in n[~kernel.vanishing(d, variables.levels)]]
    basis, norms = Basis(d, kept), np.linalg.norm(variables.W, axis=1)
    sigma = variables.activation.coefficients(d, variables.levels)[basis.degrees]
    A = norms[:, None] * sigma * np.asarray(basis(variables.W / norms[:, None]))
    eigenvalues = np.asarray(kernel.eigenvalues(d, variables.levels))[basis.degrees]
    units, lengths = on_sphere(kernel, X)
    return A / eigenvalues @ A.T, A @ np.asarray(basis(units)).T * lengths


# --- activations ---


def by_scipy(sigma, d, n):
    """E[sigma(t) R_n(t)], t a coordinate of a point of the sphere in R^d."""

    def weighted(theta):
        t = np.cos(theta)
        R = special.eval_chebyt(n, t) if d == 2 else special.eval_gegenbauer(n, d / 2 - 1, t)
        return sigma(t) * R / (1.0 if d == 2 else special.eval_gegenbauer(n, d / 2 - 1, 1.0)) * np.sin(theta) ** (d - 2)

    value = integrate.quad(weighted, 0.0, np.pi, points=[np.pi / 2], epsabs=1e-13)[0]
    return value / integrate.quad(lambda theta: np.sin(theta) ** (d - 2), 0.0, np.pi)[0]


ACTIVATIONS = {
    "relu": (Relu(), lambda t: np.maximum(t, 0.0)),
    "softplus": (Softplus(), lambda t: np.log1p(np.exp(3.0 * t))),
    "swish": (Swish(2.0), lambda t: t / (1.0 + np.exp(-2.0 * t))),
    "erf": (Erf(), lambda t: special.erf(3.0 * t)),
    "elementwise": (Elementwise(jnp.tanh), np.tanh),
    "kink": (Elementwise(jax.nn.leaky_relu), lambda t: np.where(t > 0, t, 0.01 * t)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("d", [2, 3, 9])
def test_coefficients_are_integrals(name, d):
    activation, sigma = ACTIVATIONS[name]
    t = np.linspace(-1.0, 1.0, 11)
    close(activation(jnp.asarray(t)), sigma(t))
    close(activation.coefficients(d, 9), [by_scipy(sigma, d, n) for n in range(9)], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("d", [2, 3, 4, 5, 9, 100])
def test_closed_forms(d):
    """ReLU and Softplus as in the list of errata of the paper."""
    n = np.arange(2, 20, 2)
    signs, logs = (-1.0) ** (n // 2 - 1), special.gammaln(d / 2) + special.gammaln((n - 1) / 2)
    relu, softplus = Relu().coefficients(d, 20), Softplus().coefficients(d, 20)
    close(relu[2::2], signs * np.exp(logs - special.gammaln((n + d + 1) / 2)) / (4 * np.pi), rtol=1e-11, atol=0)
    close([relu[1], softplus[1]], [1 / (2 * d), 3 / (2 * d)], rtol=1e-13)
    assert not relu[3::2].any() and not softplus[3::2].any()
    assert not Erf().coefficients(d, 20)[::2].any()


@pytest.mark.parametrize("d", [2, 5, 100])
def test_coefficients_of_the_exponential(d):
    """Gamma(d / 2) 2^(d/2 - 1) I_(n + d/2 - 1)(1), by the integral of Bessel's functions; to the rounding of the largest one."""
    order, n = d / 2 - 1, np.arange(20)
    expected = np.exp(special.gammaln(d / 2) + order * np.log(2.0)) * special.iv(n + order, 1.0)
    sizes = np.sqrt([float(num_harmonics(d, int(k))) for k in n])
    close(Elementwise(jnp.exp).coefficients(d, 20) * sizes, expected * sizes, rtol=1e-13, atol=2e-14)


def test_the_kernel_of_order_one_is_that_of_its_units():
    """lambda_n = 2 d sigma_n^2: in its space the norms of ReLU units grow with each level by N_n / (2 d)."""
    for d, levels in ((3, 21), (6, 11)):
        w = np.eye(d)[:1]
        kernel = mc.kernels.SphericalArcCosine(1)
        norm = Kuu(Activated(w, Relu(), levels), kernel).dense()[0, 0]
        kept = [n for n in range(levels) if n < 2 or n % 2 == 0]
        close(norm, sum(num_harmonics(d, n) for n in kept) / (2 * d))
        smooth = [float(Kuu(Activated(w, Softplus(), L), kernel).dense()[0, 0]) for L in (levels, 3 * levels)]
        assert d > 3 or smooth[1] < 1.3 * smooth[0]


# --- covariances ---


@pytest.mark.parametrize("activation", [Relu(), Softplus(), Elementwise(jnp.exp)])
@pytest.mark.parametrize("kernel", [GRADED, MATERN], ids=["arc-cosine", "matern"])
def test_covariances_are_those_of_explicit_harmonics(activation, kernel):
    variables = Activated(W, activation, 7)
    uu, uf = dense(variables, kernel, X)
    close(Kuu(variables, kernel).dense(), uu)
    close(Kuf(variables, kernel, X), uf)
    close(Kuu(variables, 2.0 * kernel).dense(), uu / 2.0)
    close(Kuf(variables, 2.0 * kernel, X), uf)


@pytest.mark.slow
def test_other_spheres():
    """The circle, the sphere itself without an extension, and 60 dimensions, with the fewest harmonics that say something."""
    for d, kernel in ((2, mc.kernels.SphericalMatern32(0.7)), (4, mc.kernels.SphericalArcCosine(1, 2))):
        w, at = _rng.normal(size=(4, d)), _rng.normal(size=(5, d))
        at /= np.linalg.norm(at, axis=1, keepdims=True)
        variables, norms = Activated(w, Softplus(), 5), np.linalg.norm(w, axis=1)
        basis = Basis(d, 5)
        A = norms[:, None] * Softplus().coefficients(d, 5)[basis.degrees] * np.asarray(basis(w / norms[:, None]))
        close(Kuf(variables, kernel, at), A @ np.asarray(basis(at)).T)
        close(Kuu(variables, kernel).dense(), A / np.asarray(kernel.eigenvalues(d, 5))[basis.degrees] @ A.T)
    w, at = _rng.normal(size=(4, 60)), _rng.normal(size=(5, 59))
    uu, uf = dense(Activated(w, Relu(), 3), ArcCosine(), at)
    close(Kuu(Activated(w, Relu(), 3), ArcCosine()).dense(), uu)
    close(Kuf(Activated(w, Relu(), 3), ArcCosine(), at), uf)


def test_covariances_with_other_variables():
    """Two activations have a covariance, the cross term of one process; so have values at points."""
    first, second = Activated(W, Softplus(), 7), Activated(W[:2] + 0.3, Relu(), 5)
    d, basis = 3, Basis(3, [0, 1, 2, 4])
    A, B = (
        np.linalg.norm(v.W, axis=1)[:, None]
        * v.activation.coefficients(d, 5)[basis.degrees]
        * np.asarray(basis(v.W / np.linalg.norm(v.W, axis=1)[:, None]))
        for v in (first, second)
    )
    close(Kuv(first, GRADED, second), A / np.asarray(GRADED.eigenvalues(d, 5))[basis.degrees] @ B.T)
    close(Kuv(first, GRADED, Points(X)), Kuf(first, GRADED, X))
    joint = mc.inducing.Mixed([second, Points(X[:3])])
    assert np.linalg.eigvalsh(Kuu(joint, GRADED).dense()).min() > -1e-12


def test_the_variables_explain_no_more_than_there_is():
    explained = Kuf(Activated(W), GRADED, X).T @ Kuu(Activated(W), GRADED).solve(Kuf(Activated(W), GRADED, X))
    assert np.linalg.eigvalsh(GRADED(X) - explained).min() > -1e-10


@pytest.mark.parametrize("activation", [Relu(), Softplus()])
def test_gradients_are_differences(activation):
    """Of the bound, by the weights of the units, the kernel and the noise."""
    model = mc.Model(mc.Sparse(mc.GP(GRADED), Activated(W, activation, 8)), NOISE)
    objective = mc.objectives.CollapsedELBO()
    flat, build = jax.flatten_util.ravel_pytree(eqx.filter(model, eqx.is_inexact_array))
    rest = eqx.filter(model, eqx.is_inexact_array, inverse=True)
    bound = jax.jit(lambda flat: objective.bound(eqx.combine(build(flat), rest), X, Y))
    direction = _rng.normal(size=flat.shape)
    h = 1e-5
    difference = (bound(flat + h * direction) - bound(flat - h * direction)) / (2 * h)
    close(jax.grad(bound)(flat) @ direction, difference, rtol=1e-6)


def test_single_precision_and_high_dimension():
    """float32 is float64 up to its rounding, in 20 dimensions and 20 levels, too, where N_n is 1e10 and 1 / lambda_n 1e12."""
    for D, levels in ((2, 20), (19, 8), (19, 20)):
        w, at = _rng.normal(size=(5, D + 1)), _rng.normal(size=(6, D))
        at = np.concatenate([at, w[:, :-1] / w[:, -1:]])  # where a cosine is 1 or -1
        found = []
        for dtype in (np.float32, np.float64):
            variables, kernel = Activated(w.astype(dtype), Softplus(), levels), mc.parameters.cast(ArcCosine(), dtype)
            found.append((Kuu(variables, kernel).dense(), Kuf(variables, kernel, at.astype(dtype))))
            assert all(array.dtype == dtype for array in found[-1])
        for single, double in zip(*found, strict=True):
            scale = np.abs(np.asarray(double)).max()
            close(single, double, rtol=2e-4, atol=2e-5 * scale)


# --- processes ---


def process(kernel=GRADED, activation=None, **options):
    return mc.Sparse(mc.GP(kernel), Activated(W, activation or Softplus(), 8), **options)


@pytest.mark.parametrize("whiten", mostly_slow([True, False], True))
def test_the_mean_is_a_network(whiten):
    """V^T g, whatever the output weights V; also with outputs that mix several functions."""
    V = np.linspace(-1.0, 1.3, 12).reshape(6, 2)
    q = process(num_outputs=2, whiten=whiten).with_weights(V)
    close(q.predict(X).mean, Kuf(q.inducing, GRADED, X).T @ V)
    close(q.cached().predict(X).mean, q.linear(jnp.asarray(X), jnp.asarray(V)))
    close(q.predict(X).variance, process(num_outputs=2, whiten=whiten).predict(X).variance)
    kernel = mc.kernels.LinearCoregionalisation([GRADED, MATERN], np.array([[1.0, 0.3], [-0.5, 0.8], [0.2, 0.2]]))
    for variables in (Shared(UNITS), Separate([UNITS, Activated(2.0 * W[::-1], Relu(), 5)])):
        for covariance in ("full", "joint"):
            mixed = mc.Sparse(mc.GP(kernel), variables, whiten=whiten, covariance=covariance)
            weights = V.T.reshape(-1, 1) if covariance == "joint" else V
            parts = [
                Kuf(*pair, X).T @ V[:, i] for i, pair in enumerate(mc.Sparse(mc.GP(kernel), variables).structure.pairs)
            ]
            close(mixed.with_weights(weights).predict(X).mean, np.stack(parts, axis=1) @ np.asarray(kernel.W).T)
    with pytest.raises(ValueError, match=r"weights expects the shape of q_mu, \(6, 2\), got \(6, 1\)"):
        q.with_weights(V[:, :1])


def test_weights_of_other_variables():
    """With inducing points the mean is a sum of kernels, with Fourier features one of waves."""
    for kernel, variables in (
        (mc.kernels.RBF(), Points(X[:4, :1])),
        (mc.kernels.Matern32(), mc.inducing.FourierFeatures(-9.0, 9.0, 3)),
    ):
        q = mc.Sparse(mc.GP(kernel), variables)
        weights = _rng.normal(size=q.q_mu.shape)
        close(q.with_weights(weights).predict(X[:, :1]).mean, q.Kuf(X[:, :1]).T @ weights)


@pytest.mark.slow
def test_a_network_of_rectified_units_is_the_limit():
    """With more levels the mean tends to V^T max(0, weight x + bias): the error falls as levels^-3/2 in the mean square."""
    weight, bias, V = _rng.normal(size=(8, 2)), _rng.normal(size=8), _rng.normal(size=(8, 1))
    network = np.maximum(X @ weight.T + bias, 0.0) @ V
    errors = []
    for levels in (6, 18, 54):
        variables = Activated.of_layer(GRADED, weight, bias, Relu(), levels)
        units, lengths = on_sphere(GRADED, X)
        close(lengths[:, None] * units @ variables.W.T, X @ weight.T + bias)
        mean = mc.Sparse(mc.GP(GRADED), variables).with_weights(V).predict(X).mean
        errors.append(np.sqrt(np.mean((mean - network) ** 2)))
    assert errors[1] < 0.4 * errors[0] and errors[2] < 0.4 * errors[1] and errors[2] < 0.03 * np.std(network)


def test_smooth_units_are_reached():
    """g_m of 40 levels is r |w| sigma(cos(w, z)) to many digits."""
    weight, bias = _rng.normal(size=(8, 2)), _rng.normal(size=8)
    lengths = on_sphere(GRADED, X)[1]
    for activation in (Softplus(), Swish()):
        variables = Activated.of_layer(GRADED, weight, bias, activation, 40)
        norms = np.linalg.norm(variables.W, axis=1)
        cosines = (X @ weight.T + bias) / (lengths[:, None] * norms)
        whole = lengths[:, None] * norms * np.asarray(activation(jnp.asarray(cosines)))
        close(Kuf(variables, GRADED, X).T, whole, rtol=0, atol=1e-9)


def test_the_collapsed_bound_is_the_best():
    model, objective = mc.Model(process(), NOISE), mc.objectives.CollapsedELBO()
    best = mc.Model(objective.posterior(model, X, Y), NOISE)
    bound = objective.bound(model, X, Y)
    close(mc.elbo(best, X, Y), bound, rtol=1e-8)
    natural = mc.fit(model, mc.objectives.ELBO(), (X, Y), optimiser=NaturalGradient(1.0), steps=1).model
    close(mc.elbo(natural, X, Y), bound, rtol=1e-6)
    evidence = mc.Conditioned(mc.GP(GRADED), X, Y, 0.05).log_marginal_likelihood()
    assert bound < evidence < objective.upper_bound(model, X, Y)


@pytest.mark.slow
def test_training_with_other_likelihoods_and_several_outputs():
    counts = np.abs(np.round(3.0 * Y)).astype(float)
    model = mc.Model(process(), mc.likelihoods.Poisson())
    fitted = mc.fit(model, mc.objectives.ELBO(), (X, counts), optimiser=optax.adam(0.05), steps=40, batch_size=10)
    assert mc.elbo(fitted.model, X, counts) > mc.elbo(model, X, counts) + 1.0
    kernel = mc.kernels.LinearCoregionalisation([GRADED, MATERN], np.array([[1.0, 0.3], [-0.5, 0.8]]))
    outputs = np.concatenate([Y, np.cos(X[:, 1:])], axis=1)
    for variables in (Shared(UNITS), Separate([UNITS, Activated(2.0 * W, Relu(), 5)])):
        model = mc.Model(mc.Sparse(mc.GP(kernel), variables), NOISE)
        fitted = mc.fit(model, mc.objectives.ELBO(), (X, outputs), optimiser=optax.adam(0.02), steps=10)
        assert mc.elbo(fitted.model, X, outputs) > mc.elbo(model, X, outputs)


@pytest.mark.slow
def test_draws_have_the_moments_of_the_posterior():
    """Of functions of the prior with their variables, and of the posterior by Matheron's rule."""
    variables, at = Activated(W[:3], Softplus(), 6), X[:4]
    draw, u = mc.covariances.draw_jointly(variables, GRADED, jax.random.key(1), 300, 2000)
    values = np.concatenate([u, np.asarray(draw(at))])
    cross = Kuf(variables, GRADED, at)
    expected = np.block([[np.asarray(Kuu(variables, GRADED).dense()), np.asarray(cross)], [cross.T, GRADED(at)]])
    scale = np.sqrt(np.diag(expected))
    close(values @ values.T / 2000 / np.outer(scale, scale), expected / np.outer(scale, scale), rtol=0, atol=0.1)
    q = mc.Sparse(mc.GP(GRADED), variables).with_weights(_rng.normal(size=(3, 1)))
    q = eqx.tree_at(lambda q: q.q_sqrt, q, 0.1 * q.q_sqrt)
    sample = jax.jit(jax.vmap(lambda key: q.sample_function(100, key=key)(at)[:, 0]))
    functions = np.asarray(sample(jax.random.split(jax.random.key(2), 2000)))
    mean, variance = q.predict(at)
    close(functions.mean(axis=0), mean[:, 0], rtol=0, atol=0.1)
    close(functions.var(axis=0), variance[:, 0], rtol=0.15)


def test_what_is_saved_comes_back(tmp_path):
    model = mc.Model(process(activation=Elementwise(jnp.tanh), kernel=MATERN), NOISE)
    mc.save(tmp_path / "model", model)
    close(mc.load(tmp_path / "model").predict(X).mean, model.predict(X).mean, rtol=0, atol=0)
    with pytest.raises(ValueError, match="lambda"):
        mc.save(tmp_path / "other", process(activation=Elementwise(lambda t: t**2), kernel=MATERN))


# --- the example of section 2.2.1 ---


def test_heaviside_functions():
    """On the circle, with k = 1 - angle / pi, L_m = (pi / 2) d/dtheta at theta_m plus the mean over the circle has the covariance
    1 with f(theta) for theta up to half a circle after theta_m, and 0 for theta before it."""
    kernel = mc.kernels.SphericalArcCosine(0)

    def circle(theta):
        return jnp.stack([jnp.cos(theta), jnp.sin(theta)], axis=-1)

    theta_m = 0.4
    theta = theta_m + np.array([-3.0, -1.5, -0.2, 0.2, 1.5, 3.0])
    slope = jax.jacfwd(lambda at: kernel(circle(at)[None], circle(theta))[0])(jnp.asarray(theta_m))
    grid = 2.0 * np.pi * (np.arange(20_000) + 0.5) / 20_000
    mean = np.mean(kernel(circle(grid), circle(theta)), axis=0)
    close(0.5 * np.pi * slope + mean, theta > theta_m, rtol=0, atol=1e-6)


# --- errors ---


@pytest.mark.parametrize(
    "message, make",
    {
        r"row 1\); a zero vector has no direction": lambda: Activated(np.array([[1.0, 2.0], [0.0, 0.0]])),
        r"W expects shape \[M, d\] with d of at least 2": lambda: Activated(np.ones((3, 1))),
        r"W expects shape \[M, d\]": lambda: Activated(np.ones(3)),
        "levels expects a whole number of at least 1": lambda: Activated(W, Relu(), 0),
        "activation expects one of mercer.inducing.activations": lambda: Activated(W, jnp.tanh),
        "sharpness expects a positive number, got -1.0": lambda: Softplus(-1.0),
        "fn expects a function of an array": lambda: Elementwise(3.0),
        "expects to be finite between -1 and 1": lambda: Elementwise(jnp.log).coefficients(3, 4),
        "lives on the sphere in 4 dimensions, the inducing variables in 3": lambda: Kuf(
            Activated(W), ArcCosine(), np.ones((2, 3))
        ),
        "nothing is left of Elementwise": lambda: Kuu(
            Activated(W, Elementwise(lambda t: 5.0 * t**3 - 3.0 * t)), ArcCosine()
        ),
        "of_layer expects weight": lambda: Activated.of_layer(GRADED, np.ones((3, 2)), np.ones(2)),
        "of_layer expects a kernel with weight_variance": lambda: Activated.of_layer(
            mc.kernels.RBF(), np.ones((3, 2)), np.ones(3)
        ),
        "of_layer expects a homogeneous kernel of degree 1 on 2 columns": lambda: Activated.of_layer(
            ArcCosine(2), np.ones((3, 2)), np.ones(3)
        ),
        "a zero vector has no direction": lambda: Activated.of_layer(ArcCosine(), np.zeros((3, 2)), np.zeros(3)),
        "in 3 and in 2 dimensions": lambda: Kuv(Activated(W), GRADED, Activated(W[:, :2])),
    }.items(),
)
def test_errors(message, make):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_a_kernel_cannot_see_is_said():
    with pytest.warns(UserWarning, match="loses 100% of what is not linear .* ArcCosine are 0 at the levels"):
        process(activation=Erf())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        process(MATERN, Erf())
        process(activation=Swish())
