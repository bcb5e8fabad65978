"""Algorithm 3 of paper 000 from data to a tempered posterior."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mercer as mc
from cases import mostly_slow
from mercer import calibration, datasets, divergences, gvi, kernels, likelihoods
from mercer.objectives import GVI, risks

CURVE = datasets.toy_curve(6, num=200, noise=0.2, key=jax.random.key(1))
X, Y = CURVE.train


def network(outputs=1, inputs=1):
    return mc.means.Network(eqx.nn.MLP(inputs, outputs, 32, 2, activation=jnp.tanh, key=jax.random.key(0)))


def learn(X=X, Y=Y, mean=None, **options):
    options = {"validation": CURVE.validation, "rounds": 2, "steps": 50, "optimiser": optax.adam(0.01)} | options
    return gvi.learn(X, Y, kernels.RBF(0.5), network() if mean is None else mean, **options)


@pytest.fixture(scope="module")
def learned():
    return learn(steps=1500)


def test_the_stages_agree(learned):
    """Each stage, run by hand on what the one before gave, is what `learn` gives."""
    found = mc.inducing.alternate(X, Y, kernels.RBF(0.5), 12, rounds=2)  # 12 is the root of 128, rounded up
    np.testing.assert_array_equal(found.indices, learned.inducing.indices)
    start = mc.Model(
        mc.GP(kernels.SparsePosterior(found.kernel, found.Z), network()), likelihoods.Gaussian(found.noise)
    )
    objective = GVI(
        mc.GP(found.kernel), risks.ExpectedNegativeLogLikelihood(), divergences.Projected(divergences.Renyi(0.5))
    )
    np.testing.assert_allclose(objective(start, (X, Y)), learned.history[0], rtol=1e-9)
    np.testing.assert_array_equal(learned.untempered.posterior.kernel.Z, found.Z)  # held where Algorithm 2 put it
    tempered = calibration.temper(learned.untempered, *CURVE.validation)
    np.testing.assert_allclose(tempered.predict(X).cov, learned.model.predict(X).cov)


def test_it_learns_and_is_calibrated(learned):
    assert learned.history[-1] < learned.history[0] - 0.5
    mean, variance = learned.model.predict(CURVE.X)
    # on average over the validation data the squared residuals are the variances: that is what tempering does
    X_validation, Y_validation = CURVE.validation
    seen = learned.model.predict(X_validation)
    np.testing.assert_allclose(np.mean((Y_validation - seen.mean) ** 2 / seen.cov), 1.0, rtol=1e-6)
    within = ~CURVE.held_out
    assert np.sqrt(np.mean((mean - CURVE.truth)[within] ** 2)) < 0.25
    # far from the data it is less certain
    assert learned.model.predict(np.array([[6.0]])).cov > 2.0 * np.mean(variance)


# "sparse-posterior" is in the tests above; each of the others is among the kernels that all laws are checked on.
@pytest.mark.parametrize("variational", mostly_slow(gvi.VARIATIONAL_KERNELS, "fixed-sparse-posterior"))
def test_every_variational_kernel(variational):
    result = learn(variational=variational, divergence=divergences.GaussianWasserstein(trace=True), weight=10.0)
    assert np.isfinite(result.history).all() and result.history[-1] < result.history[0]
    assert (np.asarray(result.model.predict(CURVE.X).cov) > 0.0).all()


def test_a_posterior_as_regulariser():
    result = learn(regulariser="posterior", M=5, steps=5)
    assert isinstance(result.regulariser, mc.Conditioned)
    at_Z = result.regulariser.predict(result.inducing.Z)
    assert (at_Z.cov < 0.9 * result.inducing.kernel.variance).all()


@pytest.mark.slow
def test_an_own_start_and_a_share_for_validation():
    result = learn(variational=lambda kernel, Z, X, noise: 0.5 * kernel, validation=0.25, steps=5)
    assert isinstance(result.untempered.posterior.kernel, kernels.Scaled)
    assert len(result.inducing.Z) == 10  # the root of 96


@pytest.mark.parametrize(
    "likelihood",
    [likelihoods.RobustMax(3), pytest.param(likelihoods.Softmax(3), marks=pytest.mark.slow)],
    ids=lambda x: type(x).__name__,
)
def test_classes(likelihood):
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    labels = rng.integers(0, 3, size=(150, 1))
    inputs = centres[labels[:, 0]] + 0.6 * rng.normal(size=(150, 2))
    options = {"likelihood": likelihood, "validation": 0.2, "batch_size": 60, "optimiser": optax.adam(0.03)}
    result = learn(inputs, labels.astype(float), network(3, 2), steps=400, **options)
    assert result.inducing.U.shape[1] == 3
    assert result.model.posterior.factor.shape == (3,)
    p = result.model.predict(inputs).mean
    assert np.mean(np.argmax(p, axis=1) == labels[:, 0]) > 0.93


@pytest.mark.slow
def test_a_kernel_of_a_wide_network_and_one_on_features():
    nngp = kernels.nngp
    for kernel in (
        nngp.NNGP([nngp.Dense(1.5, 0.5), nngp.Erf(), nngp.Dense(1.0)]),
        kernels.FeatureMap(kernels.Linear(0.1), eqx.nn.MLP(1, 4, 8, 1, activation=jnp.tanh, key=jax.random.key(2))),
    ):
        result = gvi.learn(X, Y, kernel, network(), validation=CURVE.validation, M=6, rounds=1, steps=10)
        assert np.isfinite(result.history).all()


@pytest.mark.slow
def test_images_with_a_convolutional_prior_and_a_convolutional_mean():
    rng, nngp = np.random.default_rng(0), kernels.nngp
    labels = rng.integers(0, 2, size=(60, 1))
    images = rng.normal(size=(60, 6, 6)) * 0.3
    images[np.arange(60), 1 + 3 * labels[:, 0]] += 1.0  # a bright row, above or below

    keys = jax.random.split(jax.random.key(0))
    layers = [
        eqx.nn.Lambda(lambda x: x.reshape(1, 6, 6)),
        eqx.nn.Conv2d(1, 4, 3, key=keys[0]),
        eqx.nn.Lambda(jax.nn.relu),
        eqx.nn.Lambda(jnp.ravel),
        eqx.nn.Linear(64, 2, key=keys[1]),
    ]
    kernel = nngp.NNGP([nngp.Conv((3, 3), bias_std=0.1), nngp.Relu(), nngp.Flatten(), nngp.Dense(2.0)], (6, 6, 1))
    result = gvi.learn(
        images.reshape(60, -1),
        labels.astype(float),
        kernel,
        mc.means.Network(eqx.nn.Sequential(layers)),
        M=6,
        rounds=1,
        variational="fixed-sparse-posterior",
        likelihood=likelihoods.Softmax(2),
        validation=0.2,
        steps=150,
        optimiser=optax.adam(0.01),
    )
    p = result.model.predict(images.reshape(60, -1)).mean
    assert np.mean(np.argmax(p, axis=1) == labels[:, 0]) > 0.9


ERRORS = {
    "variational expects one of cholesky-svgp": {"variational": "svgp"},
    'regulariser expects "prior" or "posterior"': {"regulariser": "both"},
    "the validation set is empty: validation expects": {"validation": (X[:0], Y[:0])},
    "the validation set is empty: 0.0 of 128 rows": {"validation": 0.0},
    "the validation set is empty: 0.001 of 128 rows": {"validation": 0.001},
    "M must be between": {"M": 1000},
    "weight expects": {"weight": -1.0},
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises(ValueError, match=message):
        learn(**ERRORS[message])
