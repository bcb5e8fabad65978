"""Deep convolutional processes: layers from images to images, and one from images to numbers at the end."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mercer as mc

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(0)
SHAPE, PATCH = (6, 6), (3, 3)
HIDDEN = (4, 4)  # the places of patches, and so the image that the first layer gives
X = RANDOM.uniform(size=(12, 36))
Y = (X[:, :18].sum(axis=1) > X[:, 18:].sum(axis=1))[:, None].astype(float)


def layers():
    to_image = mc.kernels.ImageToImage(mc.kernels.RBF(1.0), SHAPE, PATCH)
    to_number = mc.kernels.Convolutional(mc.kernels.RBF(1.0), HIDDEN, PATCH)
    centres = mc.means.Projection.centres(to_image)
    Z = mc.inducing.random_patches(X, to_image, 5, key=KEY)
    hidden = mc.Sparse(mc.GP(to_image, centres), mc.inducing.Patches(Z), q_sqrt=0.1 * jnp.eye(5)[None])
    Z = mc.inducing.random_patches(centres(X), to_number, 5, key=KEY)
    return [hidden, mc.Sparse(mc.GP(to_number), mc.inducing.Patches(Z))]


def test_centres_are_the_middle_pixels_of_patches():
    kernel = mc.kernels.ImageToImage(mc.kernels.RBF(), (5, 4, 2), (3, 2))
    images = jnp.asarray(RANDOM.normal(size=(3, 40)))
    middle = kernel.patches(images).reshape(3, kernel.num_patches, 3, 2, 2)[:, :, 1, 1].mean(axis=-1)
    np.testing.assert_allclose(mc.means.Projection.centres(kernel)(images), middle, rtol=1e-12)


def test_marginals_are_those_of_joint_draws():
    deep = mc.Deep(layers(), num_samples=4000)
    draws = deep.sample(X[:2], 4000, key=KEY)
    found = deep.predict(X[:2])
    np.testing.assert_allclose(found.mean, jnp.mean(draws, axis=0), atol=0.5)
    np.testing.assert_allclose(found.variance, jnp.var(draws, axis=0), rtol=0.15)


def test_draws_of_a_hidden_layer_covary_as_patches_do():
    hidden, _ = layers()
    deep = mc.Deep([hidden, mc.GP(mc.kernels.RBF(1.0, 1e-14), mc.means.Projection.identity(16))], num_samples=4000)
    expected = hidden.predict(X[:1], "outputs")
    found = deep.predict(X[:1], "outputs")
    np.testing.assert_allclose(found.cov, expected.cov, atol=0.1)


def test_training_and_saving(tmp_path):
    start = mc.Model(mc.Deep(layers(), num_samples=10), mc.likelihoods.Bernoulli())
    options = {"steps": 40, "batch_size": 6, "optimiser": optax.adam(0.02), "key": KEY, "every": 20}
    fitted = mc.fit(start, mc.objectives.ELBO(), (X, Y), checkpoint=tmp_path / "checkpoint", **options)
    assert np.mean(fitted.history[-10:]) < np.mean(fitted.history[:10])
    mc.save(tmp_path / "model", fitted.model)
    np.testing.assert_array_equal(mc.load(tmp_path / "model").predict(X).mean, fitted.model.predict(X).mean)


def test_images_of_the_wrong_size_are_refused():
    hidden, _ = layers()
    kernel = mc.kernels.Convolutional(mc.kernels.RBF(), (5, 5), PATCH)
    last = mc.Sparse(mc.GP(kernel), mc.inducing.Patches(np.ones((2, 9))))
    with pytest.raises(ValueError, match=r"layer 0 \(Sparse\) has 16 outputs, which layer 1 \(Sparse\) does not take"):
        mc.Deep([hidden, last])
