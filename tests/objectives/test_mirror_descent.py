"""Mirror descent: its closed forms against dense algebra in natural parameters, and what it ends at against exact regression."""

import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mercer as mc
from cases import mostly_slow
from mercer.kernels import nngp
from mercer.linalg.gaussian_products import condition_last, geometric_mean
from mercer.objectives import FBNN, MirrorDescent, measurement
from mercer.objectives.fbnn import spectral_stein_gradient

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(0)
X = np.sort(RANDOM.uniform(-2.0, 2.0, (12, 1)), axis=0)
Y = np.sin(2.0 * X) + 0.1 * RANDOM.normal(size=X.shape)
KERNEL = mc.kernels.RBF(0.8, 1.3)
ROUGH = mc.kernels.Matern12(0.3)
PRIOR, NOISE = mc.GP(KERNEL), 0.05
POINTS = np.linspace(-1.9, 1.9, 5)[:, None]


def network(num=30, outputs=1, kernel=KERNEL, **options):
    features = mc.features.RandomFourier.of(kernel, num, 1, key=KEY)
    return mc.Network(features, num_outputs=outputs, **options)


def model(likelihood=None, **options):
    return mc.Model(network(**options), likelihood or mc.likelihoods.Gaussian(NOISE))


def descent(**options):
    options = {"prior": PRIOR, "measurement": measurement.Points(POINTS), "jitter": 1e-9} | options
    return MirrorDescent(**options)


class TestProducts:
    """N(p, P)^beta N(q, Q)^(1 - beta), and regression on what comes out of it."""

    @staticmethod
    def gaussians(n=6):
        roots = RANDOM.normal(size=(2, n, n))
        return [(RANDOM.normal(size=n), A @ A.T + 0.3 * np.eye(n)) for A in roots]

    @pytest.mark.parametrize("beta", [0.01, 0.3, 0.9, 1.0])
    def test_natural_parameters_are_weighted_means(self, beta):
        (p, P), (q, Q) = self.gaussians()
        mean, K = geometric_mean(jnp.asarray(beta), *map(jnp.asarray, (p, P, q, Q)))
        precision = beta * np.linalg.inv(P) + (1.0 - beta) * np.linalg.inv(Q)
        np.testing.assert_allclose(np.linalg.inv(K), precision, rtol=1e-6, atol=1e-8)
        expected = beta * np.linalg.solve(P, p) + (1.0 - beta) * np.linalg.solve(Q, q)
        np.testing.assert_allclose(precision @ mean, expected, rtol=1e-6, atol=1e-8)

    def test_a_singular_factor_is_no_obstacle(self):
        (p, P), _ = self.gaussians()
        A = RANDOM.normal(size=(6, 2))
        _, K = geometric_mean(jnp.asarray(0.4), *map(jnp.asarray, (p, P, p, A @ A.T)))
        # On the span of A, ((1 - beta) I + beta A^T P^-1 A)^-1; nothing outside.
        expected = A @ np.linalg.inv(0.6 * np.eye(2) + 0.4 * A.T @ np.linalg.solve(P, A)) @ A.T
        np.testing.assert_allclose(K, expected, atol=1e-8)

    def test_conditioning_leaves_out_what_is_missing(self):
        (m, K), _ = self.gaussians()
        y, noise, seen = np.array([0.3, np.nan, -1.0]), np.array([0.1, 0.2, 0.3]), np.array([True, False, True])
        mean, cov = condition_last(*map(jnp.asarray, (m, K, y, noise, seen)))
        rows = [3, 5]
        G = K[:3, rows] @ np.linalg.inv(K[np.ix_(rows, rows)] + np.diag(noise[[0, 2]]))
        np.testing.assert_allclose(mean, m[:3] + G @ (y[[0, 2]] - m[rows]), rtol=1e-9)
        np.testing.assert_allclose(cov, K[:3, :3] - G @ K[rows, :3], rtol=1e-8, atol=1e-10)

    @pytest.mark.parametrize("beta", [0.01, 0.5, 0.99])
    def test_covariances_stay_positive_in_float32(self, beta):
        # 200 close points of a smooth kernel: without jitter neither matrix could be factorised in float32.
        inputs = np.linspace(-1.0, 1.0, 200, dtype=np.float32)[:, None]
        P = mc.kernels.RBF(1.0)(inputs) + 1e-5 * jnp.eye(200, dtype=jnp.float32)
        Q = network().predict(inputs, "inputs").cov[0] + 1e-5 * jnp.eye(200, dtype=jnp.float32)
        zeros, beta = jnp.zeros(200, jnp.float32), jnp.asarray(beta, jnp.float32)
        mean, K = geometric_mean(beta, zeros, P, zeros, Q)
        _, K = condition_last(mean, K, zeros[:100], jnp.full(100, 0.01, jnp.float32), jnp.ones(100, bool))
        eigenvalues = np.linalg.eigvalsh(np.asarray(0.5 * (K + K.T), np.float64))
        assert K.dtype == jnp.float32 and eigenvalues.min() > -1e-6 * eigenvalues.max()


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_whole_step_on_all_data_is_exact_conditioning(outputs):
    targets = np.concatenate([Y, -0.5 * Y], axis=1)[:, :outputs]
    targets[3, 0] = np.nan
    exact = mc.Conditioned(PRIOR, X, targets, NOISE).predict(POINTS, "inputs")
    found = descent().target(model(outputs=outputs), (X, targets), POINTS, beta=1.0)
    np.testing.assert_allclose(found.mean, exact.mean, atol=1e-6)
    np.testing.assert_allclose(found.cov, exact.cov, atol=1e-6)


def test_a_whole_step_with_outputs_that_covary():
    kernel = mc.kernels.LinearCoregionalisation([KERNEL, mc.kernels.Matern52(0.5)], [[1.0, 0.2], [-0.4, 0.7]])
    targets = np.concatenate([Y, np.cos(X)], axis=1)
    exact = mc.Conditioned(mc.GP(kernel), X, targets, NOISE).predict(POINTS, "full")
    found = descent(prior=mc.GP(kernel)).target(model(outputs=2), (X, targets), POINTS, beta=1.0)
    np.testing.assert_allclose(found.mean, exact.mean, atol=1e-6)
    np.testing.assert_allclose(found.cov, exact.cov, atol=1e-6)


def natural(gaussian):
    precision = np.linalg.inv(np.asarray(gaussian.cov[0]))
    return precision, precision @ np.asarray(gaussian.mean[:, 0])


def test_minibatch_steps_are_unbiased_in_natural_parameters():
    # At the inputs of the data q^ has the natural parameters of all that is known there. A rough kernel has numbers to compare.
    beta, start = 0.3, model(kernel=ROUGH)
    objective = descent(prior=mc.GP(ROUGH), measurement=measurement.Points(X))
    whole = natural(objective.target(start, (X, Y), X, beta))
    parts = []
    for rows in np.arange(12).reshape(4, 3):
        batch = mc.objectives.Batch(X[rows], Y[rows], num_data=12)
        parts.append(natural(objective.target(start, batch, X, beta)))
    for found, expected in zip(zip(*parts, strict=True), whole, strict=True):
        size = np.abs(expected).max()
        np.testing.assert_allclose(np.mean(found, axis=0), expected, atol=1e-5 * size)


def gradient(objective, of, data, step=0):
    batch = objective.checked(of, data)
    context = mc.objectives.Context(jnp.asarray(step), batch, None)
    moves = mc.parameters.trainable(of)
    params, rest = eqx.partition(of, moves)

    def value(params):
        return objective.value_in_training(eqx.combine(params, rest), batch, context, key=KEY)[0]

    return eqx.filter_jit(jax.value_and_grad(value))(params)


def functional_bound(objective, of, inputs):
    """Minus the bound of all data, per datum, whose divergence is that of the values at some inputs, with jitter."""
    q, p = objective._seen(of.posterior, objective.prior, jnp.asarray(inputs), KEY)
    seen = mc.Gaussian(q.mean[-12:], q.variance[-12:])
    risk = -jnp.mean(of.likelihood.expected_log_prob(seen.mean, seen.cov, Y))
    return risk + mc.divergences.KL().joint(q, p) / 12


@pytest.mark.parametrize("beta", [pytest.param(0.01, marks=pytest.mark.slow), 0.5])
def test_closed_form_agrees_with_the_bound_for_any_likelihood(beta):
    # Where the data are the measurement points, KL[q || q^] and the bound are of the same values: from q their gradients agree.
    objective = descent(prior=mc.GP(ROUGH), measurement=measurement.Points(X), beta=beta, decay=0.0)
    start = model(kernel=ROUGH)
    closed = gradient(objective, start, (X, Y))[1].posterior
    bound = eqx.filter_grad(lambda of: functional_bound(objective, of, X))(start).posterior
    for name in ("q_mu", "covariance.root", "features.frequencies", "features.lengthscale"):
        found, expected = (operator.attrgetter(name)(tree) for tree in (closed, bound))
        if name == "covariance.root":
            found, expected = jnp.tril(found), jnp.tril(expected)
        np.testing.assert_allclose(found, expected, atol=2e-3 * float(jnp.abs(expected).max()), err_msg=name)


def test_bound_for_any_likelihood():
    objective = descent(conjugate=False, jitter=1e-5)
    value, _ = gradient(objective, model(), (X, Y))
    expected = functional_bound(objective, model(), np.concatenate([POINTS, X]))
    np.testing.assert_allclose(value, expected, rtol=1e-8)


def test_the_step_does_not_move_prior_nor_noise_unless_asked_to():
    start = model(num=10)
    for mode, moves in (("fixed", False), ("online", True), ("marginal", True)):
        fitted = mc.fit(start, descent(hyperparameters=mode), (X, Y), steps=3, batch_size=6)
        found = fitted.model.likelihood.variance, fitted.objective.prior.kernel.lengthscale
        assert [
            not np.isclose(value, before, rtol=1e-9) for value, before in zip(found, (NOISE, 0.8), strict=True)
        ] == [moves] * 2


def test_online_hyperparameters_follow_the_bound_of_the_batch():
    start, objective = model(num=10), descent(hyperparameters="online", jitter=1e-6)
    _, online = gradient(objective, start, (X, Y))
    q = start.posterior.predict(X, "inputs")

    def bound(noise):
        return -jnp.mean(mc.likelihoods.Gaussian(noise).expected_log_prob(q.mean, q.variance + 1e-6 * 1.3, Y))

    np.testing.assert_allclose(online.likelihood.variance, jax.grad(bound)(NOISE), rtol=1e-5)


def test_marginal_hyperparameters_follow_the_marginal_likelihood_of_the_batch():
    start, objective = model(num=10), descent(hyperparameters="marginal")
    batch = mc.objectives.Batch(X[:6], Y[:6], num_data=12)

    def value(objective, of):
        return objective.value_in_training(of, batch, mc.objectives.Context(jnp.asarray(0), batch, None), key=KEY)[0]

    def evidence(prior, noise):
        return -mc.Conditioned(prior, X[:6], Y[:6], noise).log_marginal_likelihood() / 6

    of_prior, of_model = eqx.filter_jit(eqx.filter_grad(lambda both: value(*both)))((objective, start))
    expected, noise = eqx.filter_grad(lambda both: evidence(*both))((objective.prior, jnp.asarray(NOISE)))
    np.testing.assert_allclose(of_prior.prior.kernel.lengthscale, expected.kernel.lengthscale, rtol=1e-6)
    np.testing.assert_allclose(of_model.likelihood.variance, noise, rtol=1e-6)


def test_marginal_hyperparameters_come_to_those_of_the_data():
    draw = np.random.default_rng(1)
    inputs = draw.uniform(-6.0, 6.0, (150, 1))
    K = mc.kernels.RBF(0.7)(inputs, inputs)
    targets = np.linalg.cholesky(K + 1e-8 * np.eye(150)) @ draw.normal(size=(150, 1)) + 0.2 * draw.normal(size=(150, 1))
    prior = mc.GP(mc.kernels.RBF(1.5))
    objective = MirrorDescent(prior, measurement.Data(15), hyperparameters="marginal")
    features = mc.features.RandomFourier.of(prior.kernel, 20, 1, key=KEY)
    start = mc.Model(mc.Network(features), mc.likelihoods.Gaussian(0.5))
    options = {"steps": 600, "batch_size": 50, "optimiser": optax.adam(0.01)}
    fitted = mc.fit(start, objective, (inputs, targets), **options)
    # The kernel that made these data, within sampling error.
    assert 0.5 < float(fitted.objective.prior.kernel.lengthscale) < 1.0
    assert 0.02 < float(fitted.model.likelihood.variance) < 0.08


def test_marginal_hyperparameters_need_gaussian_noise_and_a_prior_with_a_kernel():
    with pytest.raises(ValueError, match='hyperparameters="marginal" expects a Gaussian likelihood, got Bernoulli'):
        descent(hyperparameters="marginal")(mc.Model(network(num=4), mc.likelihoods.Bernoulli()), (X, (Y > 0) * 1.0))
    with pytest.raises(ValueError, match="expects a GP as the prior, got NetworkPrior"):
        descent(hyperparameters="marginal", prior=network(num=4).prior)


def test_a_network_wider_than_the_prior_has_jitter_of_its_own_size():
    objective, wide = descent(jitter=1e-3), mc.Network(model(num=10).posterior.features, prior_variance=100.0)
    q, _ = objective._seen(wide, objective.prior, jnp.asarray(X), KEY)
    plain = wide.predict(X, "inputs")
    np.testing.assert_allclose(
        q.cov - plain.cov, 1e-3 * jnp.mean(plain.variance) * jnp.eye(12)[None], rtol=1e-6, atol=1e-9
    )


def test_step_sizes():
    objective = descent(beta=0.5, decay=0.1)
    np.testing.assert_allclose([objective.step_size(t) for t in (0, 4)], [0.5, 0.5 / 1.2])
    np.testing.assert_allclose(descent(beta=lambda t: 0.25).step_size(3), 0.25)


def test_training_ends_at_exact_regression():
    exact = mc.Conditioned(PRIOR, X, Y, NOISE).predict(np.linspace(-1.9, 1.9, 50)[:, None])
    box = measurement.Box(-2.5, 2.5, 10)
    adam = optax.adam(optax.cosine_decay_schedule(0.01, 3000))
    fitted = mc.fit(
        model(num=50), descent(measurement=box, jitter=1e-6), (X, Y), steps=3000, batch_size=6, optimiser=adam
    )
    found = fitted.model.posterior.predict(np.linspace(-1.9, 1.9, 50)[:, None])
    assert abs(found.mean - exact.mean).max() < 0.05
    assert abs(np.sqrt(found.cov / exact.cov) - 1.0).max() < 0.15


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("likelihood", "targets", "outputs"),
    [
        (mc.likelihoods.Bernoulli(), (Y > 0.0).astype(float), 1),
        (mc.likelihoods.Softmax(3, num_samples=4), np.arange(12.0)[:, None] % 3, 3),
        (mc.likelihoods.Poisson(), np.floor(2.0 + Y), 1),
    ],
)
def test_other_likelihoods_are_trained_by_their_bound(likelihood, targets, outputs, dtype):
    start = mc.Model(network(num=10, outputs=outputs), likelihood)
    data = X.astype(dtype), targets.astype(dtype)
    objective = descent(jitter=1e-4, measurement=measurement.Convolved(0.8, 5))
    fitted = mc.fit(start, objective, data, steps=40, batch_size=6, optimiser=optax.adam(0.03))
    assert fitted.history[-10:].mean() < fitted.history[0]


RELU = nngp.Relu()
CNN = [
    nngp.Conv((2, 2), weight_std=1.2, bias_std=0.1),
    nngp.Residual([RELU, nngp.Conv((2, 2), bias_std=0.1)]),
    RELU,
    nngp.Flatten(),
    nngp.Dense(),
]
PRIORS = {
    "spectral mixture": mc.kernels.SpectralMixture([1.0], np.full((1, 4), 0.2), np.full((1, 4), 0.3)),
    "infinitely wide network": nngp.NNGP([nngp.Dense(1.2, 0.3), RELU, nngp.Dense()]),
    "images, residual": nngp.NNGP(CNN, image_shape=(2, 2, 1)),
    "homogeneous": mc.kernels.Homogeneous(mc.kernels.SphericalMatern52(0.7)),
    "zonal": mc.kernels.SphericalRBF(0.8),
    "arc-cosine": mc.kernels.ArcCosine(),
}


@pytest.mark.parametrize("name", mostly_slow(PRIORS, "spectral mixture", "images, residual"))
def test_any_prior(name):
    inputs = RANDOM.normal(size=(15, 4))
    inputs = inputs / np.linalg.norm(inputs, axis=1, keepdims=True)  # where zonal kernels are
    targets, prior = np.sin(3.0 * inputs[:, :1]), mc.GP(PRIORS[name])
    start = mc.Model(mc.Network(mc.features.Tangent(eqx.nn.MLP(4, 1, 8, 1, key=KEY))), mc.likelihoods.Gaussian(NOISE))
    objective = descent(prior=prior, measurement=measurement.Data(6), jitter=1e-8)
    # A whole step is exact, and training goes there.
    found = objective.target(start, (inputs, targets), inputs[:5] + 0.0, beta=1.0)
    exact = mc.Conditioned(prior, inputs, targets, NOISE).predict(inputs[:5], "inputs")
    np.testing.assert_allclose(found.mean, exact.mean, atol=1e-5)
    np.testing.assert_allclose(found.cov, exact.cov, atol=1e-5)
    objective = descent(prior=prior, measurement=measurement.Data(6), jitter=1e-4)
    fitted = mc.fit(start, objective, (inputs, targets), steps=60, batch_size=8, optimiser=optax.adam(0.01))
    assert fitted.history[-20:].mean() < fitted.history[:5].mean()


class TestMeasurement:
    def test_boxes(self):
        points = measurement.Box([-1.0, 2.0], [1.0, 3.0], 1000).draw(jnp.zeros((3, 2)), key=KEY)
        assert points.shape == (1000, 2)
        np.testing.assert_allclose(points.min(0), [-1.0, 2.0], atol=0.02)
        np.testing.assert_allclose(points.max(0), [1.0, 3.0], atol=0.02)

    def test_data(self):
        points = measurement.Data(50).draw(jnp.asarray(X), key=KEY)
        assert np.isin(points, X).all()

    def test_convolved_with_the_kernel(self):
        points = measurement.Convolved([0.5, 2.0], 20_000).draw(jnp.ones((3, 2)), key=KEY)
        np.testing.assert_allclose(points.mean(0), 1.0, atol=0.06)
        np.testing.assert_allclose(points.std(0), np.array([0.5, 2.0]) / np.sqrt(2.0), rtol=0.03)

    def test_samplers_of_users(self):
        points = measurement.Sampler(lambda X, key: X[:4] + 1.0, 4).draw(jnp.asarray(X), key=KEY)
        np.testing.assert_array_equal(points, X[:4] + 1.0)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: descent(beta=0.0), "above 0 and at most 1"),
        (lambda: descent(beta=1.5), "above 0 and at most 1"),
        (lambda: descent(beta=lambda step: 2.0), "above 0 and at most 1"),
        (lambda: descent(decay=-1.0), "decay"),
        (lambda: descent(hyperparameters="some"), "online"),
        (lambda: descent(jitter=0.0), "jitter"),
        (lambda: descent(prior=KERNEL), "expects a process"),
        (lambda: descent(measurement=POINTS), "mercer.objectives.measurement"),
        (lambda: measurement.Data(0), "at least 1"),
        (lambda: measurement.Box(1.0, 0.0, 3), "below high"),
        (lambda: measurement.Convolved(-1.0, 3), "positive"),
        (lambda: measurement.Sampler(3, 3), "function"),
        (
            lambda: descent(measurement=measurement.Sampler(lambda X, key: X, 5))(model(), (X, Y)),
            r"\(5, 1\), got \(12, 1\)",
        ),
        (lambda: descent(measurement=measurement.Points(np.zeros((3, 2))))(model(), (X, Y)), "shape"),
        (lambda: descent(measurement=measurement.Sampler(lambda X, key: X.wrong, 5))(model(), (X, Y)), "drawing"),
        (lambda: descent()(model(mc.likelihoods.Softmax(3)), (X, 0.0 * Y)), "3 latent functions"),
        (lambda: descent().target(model(mc.likelihoods.Poisson()), (X, 0.0 * Y), POINTS), "closed form"),
        (lambda: descent().target(model(), (X, Y), POINTS, beta=2.0), "beta"),
        (lambda: FBNN(PRIOR, measurement.Data(3), num_samples=1), "at least 2"),
        (lambda: FBNN(PRIOR, measurement.Data(3), weight="some"), "weight"),
    ],
)
def test_errors(make, word):
    with pytest.raises(ValueError, match=word):
        make()


def test_features_that_are_not_numbers_are_named_before_training():
    start = mc.Model(mc.Network(mc.features.Basis(lambda x: jnp.log(x), dimension=1)), mc.likelihoods.Gaussian())
    with pytest.raises(mc.MercerError, match="features"):
        mc.fit(start, descent(), (X, Y), steps=1)


class TestFBNN:
    def test_spectral_gradient_of_a_gaussian(self):
        # 400 samples of a Gaussian in three dimensions: grad log q = -V^-1 (x - m). The estimate is smooth and biased.
        root = np.array([[1.0, 0.0, 0.0], [0.4, 0.8, 0.0], [-0.2, 0.3, 0.6]])
        samples = RANDOM.normal(size=(400, 3)) @ root.T + 1.0
        found = np.asarray(spectral_stein_gradient(jnp.asarray(samples)))
        expected = -np.linalg.solve(root @ root.T, (samples - 1.0).T).T
        assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.9

    @pytest.mark.slow
    def test_trains_and_is_wider_than_the_posterior(self):
        exact = mc.Conditioned(PRIOR, X, Y, NOISE).predict(X)
        objective = FBNN(PRIOR, measurement.Box(-2.5, 2.5, 10), num_samples=50)
        adam = optax.adam(optax.cosine_decay_schedule(0.01, 1500))
        fitted = mc.fit(model(num=20), objective, (X, Y), steps=1500, batch_size=3, optimiser=adam)
        found = fitted.model.posterior.predict(X)
        assert np.median(np.sqrt(found.cov / exact.cov)) > 1.15
