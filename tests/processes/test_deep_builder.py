"""Deep processes made for given inputs: they begin near a shallow one, and can be trained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 3)) @ np.diag([1.0, 2.0, 0.1])
Y = np.sin(2.0 * X[:, :1])
KEY = jax.random.key(0)


def test_widths_outputs_and_inducing_points():
    deep = mc.Deep.of(X, 3, num_outputs=2, num_inducing=7, width=2, kernel=mc.kernels.Matern52, key=KEY)
    first, second, last = deep.layers
    assert [layer.num_outputs for layer in deep.layers] == [2, 2, 2]
    assert isinstance(last.prior.kernel, mc.kernels.Matern52) and last.prior.kernel.lengthscale.shape == (2,)
    np.testing.assert_allclose(second.inducing.Z, first.prior.mean(first.inducing.Z))
    np.testing.assert_allclose(last.inducing.Z, second.inducing.Z)
    assert isinstance(last.prior.mean, mc.means.Zero)
    assert mc.Deep.of(np.ones((50, 40)) * RANDOM.normal(size=(50, 40)), key=KEY).layers[0].num_outputs == 30
    assert mc.Deep.of(X, num_inducing=100, key=KEY).layers[0].inducing.num == 60


def test_one_layer_is_a_sparse_posterior():
    (layer,) = mc.Deep.of(X, 1, num_inducing=9, key=KEY).layers
    Z = mc.inducing.kmeans(X, 9, key=KEY)
    expected = mc.Sparse(mc.GP(mc.kernels.RBF(np.full(3, 3.0**0.5))), mc.inducing.Points(Z))
    np.testing.assert_array_equal(layer.predict(X).cov, expected.predict(X).cov)


def test_hidden_layers_begin_as_their_means():
    deep = mc.Deep.of(X, num_inducing=60, key=KEY)
    found = deep.layers[0].predict(X)
    np.testing.assert_allclose(found.mean, X, atol=1e-12)
    assert float(jnp.max(found.cov)) < 1e-3


def test_training_leaves_the_means_alone():
    start = mc.Model(mc.Deep.of(X, num_inducing=20, num_samples=10, key=KEY), mc.likelihoods.Gaussian(0.1))
    fitted = mc.fit(start, mc.objectives.ELBO(), (X, Y), steps=100, key=KEY)
    assert fitted.history[-1] < 0.5 * fitted.history[0]
    np.testing.assert_array_equal(fitted.model.posterior.layers[0].prior.mean.W, np.eye(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 0}, "num_layers expects a whole number, at least 1, got 0"),
        ({"width": 0}, "width expects a whole number, at least 1, got 0"),
        ({"kernel": lambda lengthscale: None}, "kernel expects a function from lengthscales to a kernel .* NoneType"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        mc.Deep.of(X, key=KEY, **options)
