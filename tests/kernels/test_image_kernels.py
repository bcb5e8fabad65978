"""Kernels on images: sums over pairs of patches, whatever the blocks they are worked out in, and inducing patches."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mercer as mc
from cases import mostly_slow
from mercer import covariances, inducing, kernels
from mercer.kernels import Convolutional, ImageToImage, images

BASE = kernels.Matern52(0.8, 1.3)
RNG = np.random.default_rng(0)
KEY = jax.random.key(1)
# name: image_shape, patch_shape, reduce, with weights, base
CASES = {
    "sum": ((4, 3), (2, 2), "sum", False, BASE),
    "mean": ((4, 5), (3, 2), "mean", False, BASE),
    "channels": ((3, 4, 2), (2, 3), "sum", False, kernels.RBF(np.linspace(0.5, 1.5, 12), 0.7)),
    "weights": ((4, 3, 3), (2, 1), "sum", True, kernels.RBF(1.1) + kernels.Linear(0.1)),
    "weighted mean": ((5, 4), (2, 2), "mean", True, kernels.RBF(1.1, 2.0)),
    "one patch": ((3, 2), (3, 2), "mean", True, BASE),
    "one pixel": ((3, 2), (1, 1), "sum", False, BASE),
    "white noise": ((3, 3), (2, 2), "sum", True, BASE + kernels.White(0.3)),
}


def convolutional(name):
    image, patch, reduce, weighted, base = CASES[name]
    P = (image[0] - patch[0] + 1) * (image[1] - patch[1] + 1)
    return Convolutional(base, image, patch, reduce, np.linspace(0.5, -1.0, P) if weighted else None)


def image_to_image(name):
    image, patch, _, _, base = CASES[name]
    return ImageToImage(base, image, patch)


def some_images(kernel, num=5, seed=0, dtype=float):
    return jnp.asarray(np.random.default_rng(seed).uniform(size=(num, int(np.prod(kernel.image_shape)))), dtype)


def plain_patches(kernel, x):
    """The patches of one image, by loops."""
    (H, W, C), (h, w) = kernel.image_shape, kernel.patch_shape
    image = np.asarray(x).reshape(H, W, C)
    return np.array([image[i : i + h, j : j + w].ravel() for i in range(H - h + 1) for j in range(W - w + 1)])


def double_sum(kernel, between):
    """sum_pp' w_p w_p' of the values between all patches of some images and all of others, by loops."""
    P = kernel.num_patches
    weights = np.ones(P) if kernel.weights is None else np.asarray(kernel.weights)
    between = np.asarray(between).reshape(-1, P, between.shape[1] // P, P)
    total = sum(weights[p] * weights[q] * between[:, p, :, q] for p in range(P) for q in range(P))
    return total / P**2 if kernel.reduce == "mean" else total


@pytest.fixture
def tiny_blocks(monkeypatch):
    """One image, or one pair, at a time."""
    monkeypatch.setattr(images, "_BYTES_ON_CPU", 1)
    monkeypatch.setattr(images, "_BYTES_ON_GPU", 1)


@pytest.mark.parametrize("name", mostly_slow(CASES, "mean", "channels", "weights", "white noise"))
def test_values_are_those_of_the_base_at_all_pairs_of_patches(name):
    """Convolutional is a double sum of them, ImageToImage has them all, and its layouts are slices."""
    kernel, outputs = convolutional(name), image_to_image(name)
    X, X2, P = some_images(kernel, 3), some_images(kernel, 2, seed=1), kernel.num_patches
    p, p2 = jnp.array([0, 1, 2]) % P, jnp.array([1, 0]) % P

    @jax.jit
    def values(X, X2, patches, patches2):
        base = kernel.base(patches), kernel.base(patches, patches2)
        every = {layout: outputs(X, covariance=layout) for layout in ("full", "inputs", "outputs", "diag")}
        cross = outputs(X, X2), outputs(X, X2, covariance="inputs"), outputs.between(X, p, X2, p2)
        return kernel.patches(X), base, (kernel(X), kernel(X, X2), kernel.diag(X)), every, cross

    patches, patches2 = (np.concatenate([plain_patches(kernel, x) for x in images]) for images in (X, X2))
    found, (own, between), (matrix, cross, diagonal), every, (full, inputs, some) = values(X, X2, patches, patches2)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(found.reshape(patches.shape), patches)
    close(matrix, double_sum(kernel, own))
    close(cross, double_sum(kernel, between))
    close(diagonal, np.diag(double_sum(kernel, own)))

    own, between = own.reshape(3, P, 3, P), between.reshape(3, P, 2, P)
    close(every["full"], own)
    close(every["inputs"], np.einsum("npmp->pnm", own))
    close(every["outputs"], np.einsum("npnq->npq", own))
    close(every["diag"], np.einsum("npnp->np", own))
    close(full, between)
    close(inputs, np.einsum("npmp->pnm", between))
    close(some, [[between[n, p[n], m, p2[m]] for m in range(2)] for n in range(3)])
    # the sum of the outputs, weighted, is the convolutional process
    weights = kernel.patch_weights(X.dtype)
    close(np.einsum("p,npmq,q->nm", weights, every["full"], weights), matrix)


@pytest.mark.parametrize("name", ["weights", "weighted mean"])
def test_covariances_with_patches_are_those_of_images_of_one_patch(name):
    """An image of one patch is that patch, and the convolutional kernel on it is the base."""
    kernel, outputs = convolutional(name), image_to_image(name)
    of_one_patch = Convolutional(kernel.base, (*kernel.patch_shape, kernel.image_shape[2]), kernel.patch_shape)
    X, Z, Z2 = some_images(kernel, 4), RNG.uniform(size=(3, kernel.patch_dim)), RNG.uniform(size=(2, kernel.patch_dim))
    P = kernel.num_patches

    @jax.jit
    def values(X, Z, Z2):
        u, v = inducing.Patches(Z), inducing.Patches(Z2)
        of_kernel = covariances.Kuu(u, kernel).dense(), covariances.Kuv(u, kernel, v), covariances.Kuf(u, kernel, X)
        of_outputs = covariances.Kuu(u, outputs).dense(), covariances.Kuf(u, outputs, X)
        patches = kernel.patches(X).reshape(-1, kernel.patch_dim)
        expected = of_one_patch(Z), of_one_patch(Z, Z2), of_one_patch(Z, patches).reshape(3, 4, P)
        return of_kernel, of_outputs, covariances.Kuv(u, kernel, inducing.Points(X)), expected

    (uu, uv, uf), (uu_outputs, uf_outputs), with_points, (own, cross, every) = values(X, Z, Z2)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)
    close(uu, own)
    close(uu_outputs, own)
    close(uv, cross)
    close(uf, every @ kernel.patch_weights(X.dtype))
    close(with_points, uf)
    assert uf_outputs.shape == (1, 3, 4, P)
    close(uf_outputs[0], every)


def all_values(kernel, Z, X):
    cross = covariances.Kuf(inducing.Patches(Z), kernel, X)
    return kernel(X), kernel(X, 0.9 * X[:3]), kernel.diag(X), cross, kernel.draw(16, 2, key=KEY)(X)


@pytest.mark.slow
def test_blocks_change_neither_values_nor_derivatives(monkeypatch):
    kernel = convolutional("weighted mean")
    X, Z = some_images(kernel), RNG.uniform(size=(20, kernel.patch_dim))

    def with_derivative(size):
        monkeypatch.setattr(images, "_BYTES_ON_CPU", size)
        monkeypatch.setattr(images, "_BYTES_ON_GPU", size)

        @jax.jit
        def compiled(*arguments):
            values, pull = jax.vjp(all_values, *arguments)
            return values, pull(jax.tree.map(jnp.cos, values))

        return compiled(kernel, Z, X)

    # room for two by two images, or with 20 patches for two: five make blocks that are not full
    in_blocks, at_once = with_derivative(4 * 8 * kernel.num_patches**2), with_derivative(2**30)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11), in_blocks, at_once)


@pytest.mark.parametrize("name", mostly_slow(["weighted mean", "channels"], "weighted mean"))
def test_derivative_of_the_diagonal_is_that_of_the_matrix(name):
    """The diagonal takes its derivative on the way forward, the matrix does not."""
    kernel = convolutional(name)
    X, c = some_images(kernel), jnp.arange(1.0, 6.0)

    def by_diagonal(kernel, X):
        return jnp.sum(c * jnp.sin(kernel.diag(X)))

    def by_matrix(kernel, X):
        return jnp.sum(c * jnp.sin(jnp.diag(kernel(X))))

    check = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11)

    def derivatives(function):
        @jax.jit
        def compiled(kernel, X):
            forward = jax.jvp(function, (kernel, X), (kernel, jnp.cos(X)))
            second = jax.grad(lambda k: jax.grad(function)(k, X).base.lengthscale.sum())(kernel)
            return [jax.grad(function, argument)(kernel, X) for argument in (0, 1, (0, 1))], forward, second

        return compiled(kernel, X)

    jax.tree.map(check, derivatives(by_diagonal), derivatives(by_matrix))


def test_several_models_at_once(tiny_blocks):
    """Restarts map over kernels."""
    kernel = convolutional("weighted mean")
    X = some_images(kernel)
    two = jax.tree.map(lambda leaf: jnp.stack([leaf, 1.3 * leaf]), kernel)
    slope = jax.grad(lambda k: jnp.sum(k.diag(X) ** 2))
    slopes = jax.jit(jax.vmap(slope))(two)
    second = jax.jit(slope)(jax.tree.map(lambda leaf: 1.3 * leaf, kernel))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b, rtol=1e-10), slopes, second)


@pytest.mark.parametrize("name", ["weights"])
def test_draws_have_the_covariance_of_the_kernel(name):
    """2000 draws: standard errors are at most sqrt(2 / 2000) = 3.2 % of a variance, and five of them are allowed."""
    kernel, outputs = convolutional(name), image_to_image(name)
    X, num = some_images(kernel, 3), 2000
    values = jax.jit(jax.vmap(lambda key: kernel.draw(32, 2, key=key)(X)))(jax.random.split(KEY, num // 2))
    values, expected = values.swapaxes(0, 1).reshape(3, num), kernel(X)
    np.testing.assert_allclose(values @ values.T / num, expected, atol=0.16 * float(jnp.max(expected)))

    @jax.jit
    def responses(X):
        draw, every, patches = kernel.draw(32, 2, key=KEY), outputs.draw(32, key=KEY), kernel.patches(X)
        latent = draw.latent(patches.reshape(-1, kernel.patch_dim)).reshape(3, -1, 2)
        return draw(X), latent, kernel.draw(32, key=KEY)(X), every(X), every.latent(patches[0])

    two, latent, one, every, every_latent = responses(X)
    weights = kernel.patch_weights(X.dtype)
    np.testing.assert_allclose(two, jnp.einsum("p,npl->nl", weights, latent), atol=1e-10)
    # of the same key, all outputs and their sum
    np.testing.assert_allclose(every @ weights, one[:, 0], atol=1e-10)
    np.testing.assert_allclose(every_latent[:, 0], every[0], atol=1e-12)


def test_features_are_sums_over_patches():
    kernel = convolutional("weighted mean")
    X = some_images(kernel, 3)
    phi = jax.jit(kernel.features(10_000, key=KEY))(
        X
    )  # whose products have a relative standard error of about 1 / sqrt(10000)
    np.testing.assert_allclose(phi @ phi.T, kernel(X), atol=0.06 * float(kernel.diag(X).max()))


def test_sparse_posterior_of_patches():
    """With patches as inducing variables at all patches of some images, the posterior there is known: it is q(u), summed."""
    kernel = convolutional("mean")
    X = some_images(kernel, 2)
    Z = kernel.patches(X).reshape(-1, kernel.patch_dim)
    q = mc.Sparse(mc.GP(kernel), inducing.Patches(Z), 1, whiten=False)
    q = eqx.tree_at(
        lambda q: (q.q_mu, q.q_sqrt), q, (jnp.sin(jnp.arange(len(Z)))[:, None], 0.1 * jnp.eye(len(Z))[None])
    )
    predicted = q.predict(X)
    mean = jnp.sin(jnp.arange(len(Z))).reshape(2, -1).mean(axis=1)
    np.testing.assert_allclose(predicted.mean[:, 0], mean, atol=1e-6)
    np.testing.assert_allclose(predicted.cov[:, 0], 0.01 / kernel.num_patches, atol=1e-6)
    paths = jax.jit(jax.vmap(lambda key: q._sample_function(key, 512)(X)[:, 0]))(jax.random.split(KEY, 20))
    np.testing.assert_allclose(paths, jnp.broadcast_to(mean, paths.shape), atol=5 * 0.1 / kernel.num_patches**0.5)


@pytest.mark.slow
def test_classes_of_tiny_images_are_learnt():
    """Images with a bright pixel, a bar across or a bar down, anywhere; the function on patches does not ask where."""
    shapes = [np.eye(3)[1][:, None] * np.eye(3)[1], np.tile(np.eye(3)[1][:, None], 3), np.tile(np.eye(3)[1], (3, 1))]
    labels = RNG.integers(3, size=120)
    X = np.zeros((120, 6, 6))
    for x, label in zip(X, labels, strict=True):
        i, j = RNG.integers(4, size=2)
        x[i : i + 3, j : j + 3] = shapes[label]
    X = X.reshape(120, -1) + 0.05 * RNG.normal(size=(120, 36))
    kernel = Convolutional(kernels.RBF(1.0, 5.0), (6, 6), (3, 3))
    Z = inducing.random_patches(X, kernel, 15, key=KEY)
    model = mc.Model(
        mc.Sparse(mc.GP(kernel), inducing.Patches(Z), num_outputs=3), mc.likelihoods.Softmax(3, num_samples=16)
    )
    trained, history = mc.fit(
        model, mc.objectives.ELBO(), (X[:90], labels[:90, None].astype(float)),
        steps=150, batch_size=30, optimiser=optax.adam(0.05), key=KEY,
    )  # fmt: skip
    assert history[-10:].mean() < 0.6 * history[:10].mean()
    assert np.mean(np.argmax(trained.predict(X[90:]).mean, axis=1) == labels[90:]) > 0.9


def test_single_precision(tiny_blocks):
    kernel, outputs = convolutional("weighted mean"), image_to_image("weighted mean")
    X, Z = some_images(kernel), RNG.uniform(size=(3, kernel.patch_dim))

    @jax.jit
    def values(Z, X):
        return *all_values(kernel, Z, X)[:4], *(outputs(X, covariance=c) for c in ("full", "inputs", "outputs", "diag"))

    single = values(jnp.asarray(Z, jnp.float32), X.astype(jnp.float32))
    assert all(value.dtype == jnp.float32 for value in single)
    for value, expected in zip(single, values(Z, X), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4)


def test_random_patches_are_different_patches_of_the_images():
    kernel = image_to_image("channels")
    X = np.array(some_images(kernel, 6))
    X[:4] = 0.5  # whose patches are all the same
    found = inducing.random_patches(X, kernel, 8, key=KEY)
    every = {patch.tobytes() for x in X[4:] for patch in plain_patches(kernel, x)}
    assert len(every) == 8  # two images of four patches each
    assert {np.asarray(patch).tobytes() for patch in found} == every
    with_constant = np.asarray(inducing.random_patches(X, kernel, 9, key=KEY))
    np.testing.assert_array_equal(with_constant[8], 0.5)
    with pytest.raises(ValueError, match="different patches of X, 9, got 10"):
        inducing.random_patches(X, kernel, 10, key=KEY)
    other = inducing.random_patches(X, kernel, 3, key=jax.random.key(2))
    assert not np.array_equal(found[:3], other)


ERRORS = {
    "base": (lambda: Convolutional(image_to_image("sum"), (4, 3), (2, 2)), "base expects a kernel of one output"),
    "image length": (lambda: Convolutional(BASE, (4,), (2, 2)), "image_shape expects positive integers"),
    "image number": (lambda: ImageToImage(BASE, 4, (2, 2)), "image_shape expects .*got 4"),
    "image zero": (lambda: ImageToImage(BASE, (4, 0), (2, 2)), "image_shape expects positive integers"),
    "patch length": (lambda: ImageToImage(BASE, (4, 3), (2, 2, 1)), "patch_shape expects positive integers"),
    "patch fraction": (lambda: Convolutional(BASE, (4, 3), (2.0, 2)), "patch_shape expects positive integers"),
    "patch too large": (lambda: Convolutional(BASE, (4, 3), (2, 4)), "fits into images of"),
    "reduce": (lambda: Convolutional(BASE, (4, 3), (2, 2), "max"), 'reduce must be "sum" or "mean", got \'max\''),
    "weights": (lambda: Convolutional(BASE, (4, 3), (2, 2), weights=np.ones(5)), r"weights expects shape \(6,\)"),
    "weights nan": (lambda: Convolutional(BASE, (4, 3), (2, 2), weights=np.full(6, np.nan)), "weights expects finite"),
    "images": (lambda: convolutional("sum")(np.ones((2, 11))), "X expects 12 columns.* got 11"),
    "images diag": (lambda: convolutional("sum").diag(np.ones((2, 13))), "X expects 12 columns.* got 13"),
    "images patches": (lambda: convolutional("sum").patches(np.ones((2, 13))), "X expects 12 columns.* got 13"),
    "images outputs": (lambda: image_to_image("sum")(np.ones((2, 13))), "X expects 12 columns.* got 13"),
    "images draw": (lambda: convolutional("sum").draw(4, key=KEY)(jnp.ones((2, 13))), "X expects 12 columns.* got 13"),
    "images Kuf": (
        lambda: covariances.Kuf(inducing.Patches(np.ones((2, 4))), convolutional("sum"), np.ones((2, 13))),
        "X expects 12 columns.* got 13",
    ),
    "patches Kuu": (
        lambda: covariances.Kuu(inducing.Patches(np.ones((2, 5))), convolutional("sum")),
        "Z expects 4 columns.* got 5",
    ),
    "patches Kuf": (
        lambda: covariances.Kuf(inducing.Patches(np.ones((2, 5))), image_to_image("sum"), np.ones((2, 12))),
        "Z expects 4 columns.* got 5",
    ),
    "patches of RBF": (
        lambda: covariances.Kuu(inducing.Patches(np.ones((2, 4))), kernels.RBF()),
        "not defined for Patches with RBF",
    ),
    "Z": (lambda: inducing.Patches(np.ones(4)), "Z must be two-dimensional"),
    "of_function": (lambda: inducing.Patches(np.ones((2, 4))).of_function(jnp.sin), "must be a draw of a"),
    "num": (
        lambda: inducing.random_patches(np.ones((2, 12)), convolutional("sum"), 13, key=KEY),
        "num must be between 1 and the number of patches of X, 12",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        call()
