"""Draws together with their inducing variables: the moments are those of the prior, and of posteriors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from cases import mostly_slow
from mercer.covariances import Kuf, Kuu, draw_jointly
from mercer.inducing import FourierFeatures, PerTerm, Points, Shared
from mercer.kernels import RBF, Linear, LinearCoregionalisation, Matern12, Matern32, Matern52, OutputIndexed

X1, X2 = jnp.asarray([[0.1], [0.4], [0.9]]), jnp.asarray([[0.1, 0.3], [0.4, 0.9], [0.9, 0.5]])
BOX, SQUARE = FourierFeatures(-0.5, 1.5, 2), FourierFeatures([-0.5, -0.3], [1.5, 1.2], [1, 1])
PAIRS = {
    "Matern12": (BOX, Matern12(0.6, 1.3), X1),
    "Matern32": (BOX, Matern32(0.6, 1.3), X1),
    "Matern52": (BOX, Matern52(0.8, 0.7), X1),
    "product": (SQUARE, Matern32(0.6).on(0) * Matern12(0.9, 1.2).on(1), X2),
    "sum": (SQUARE, 0.5 * Matern32(0.6).on(0) + Matern52(0.9).on(1), X2),
    "PerTerm": (PerTerm([Points([[0.2], [0.7]]), BOX]), Linear(0.8) + Matern32(0.7), X1),
}
NUM = 20_000


def covariance(values, others):
    products = values[:, :, None] * others[:, None]
    return products.mean(0), products.std(0) / NUM**0.5


@pytest.mark.parametrize("name", mostly_slow(PAIRS, "PerTerm"))
def test_moments_of_the_prior(name):
    inducing, kernel, X = PAIRS[name]

    @jax.jit
    @jax.vmap
    def draw(key):
        f, u = draw_jointly(inducing, kernel, key, 10, 1)
        return u[:, 0], f(X)[:, 0]

    u, f = draw(jax.random.split(jax.random.key(0), NUM))
    for first, second, expected in (
        (u, u, Kuu(inducing, kernel).dense()),
        (u, f, Kuf(inducing, kernel, X)),
        (f, f, kernel(X)),
    ):
        found, error = covariance(first, second)
        assert np.all(np.abs(found - expected) < 5.0 * error + 1e-9)


def test_a_wave_that_is_a_feature_has_the_inner_products_of_it():
    """Matern processes on the features' own span: u of a draw that is a feature is a column of Kuu."""
    from mercer.covariances import fourier

    for kernel in (Matern12(0.6, 1.3), Matern32(0.6, 1.3), Matern52(0.8, 0.7)):
        w = BOX.frequencies(0)
        phases = -w * BOX.lower[0]
        columns = fourier.of_waves(
            BOX, 0, kernel, jnp.concatenate([w, w]), jnp.concatenate([phases, phases - jnp.pi / 2])
        )
        np.testing.assert_allclose(columns, Kuu(BOX, kernel).dense()[:, 1:], rtol=1e-9, atol=1e-9)


W = jnp.asarray([[1.0, 0.3], [-0.4, 0.8]])
MIXED = LinearCoregionalisation([Matern32(0.6), Matern52(0.9)], W)
POSTERIORS = {
    "alone": (mc.GP(Matern32(0.6)), BOX, X1, 2),
    "PerTerm": (mc.GP(RBF(0.4) + Matern32(0.7)), PAIRS["PerTerm"][0], X1, 1),
    "mixed": (mc.GP(MIXED), Shared(BOX), X1, None),
    "indexed": (mc.GP(OutputIndexed(MIXED)), Shared(BOX), jnp.asarray([[0.1, 0.0], [0.1, 1.0], [0.6, 1.0]]), None),
}


@pytest.mark.parametrize("name", mostly_slow(POSTERIORS, "indexed"))
def test_moments_of_a_posterior(name):
    prior, inducing, X, num_outputs = POSTERIORS[name]
    q = mc.Sparse(prior, inducing, num_outputs)
    random = np.random.default_rng(0)
    root = 0.5 * np.tril(random.normal(size=q.q_sqrt.shape))
    q = eqx.tree_at(lambda q: (q.q_mu, q.q_sqrt), q, (random.normal(size=q.q_mu.shape), jnp.asarray(root)))
    draw = eqx.filter_jit(lambda q, keys: jax.vmap(lambda key: q.sample_function(10, key=key)(X))(keys))
    values = draw(q, jax.random.split(jax.random.key(1), NUM))
    mean, cov = q.predict(X, "full")
    assert np.all(np.abs(values.mean(0) - mean) < 5.0 * values.std(0) / NUM**0.5)
    deviations = (values - mean).reshape(NUM, -1)
    found, error = covariance(deviations, deviations)
    assert np.all(np.abs(found - cov.reshape(found.shape)) < 5.0 * error)


def test_a_drawn_function_is_saved(tmp_path):
    prior, inducing, X, num_outputs = POSTERIORS["alone"]
    function = mc.Sparse(prior, inducing, num_outputs).sample_function(5, key=jax.random.key(0))
    mc.save(tmp_path / "f.mercer", function)
    np.testing.assert_array_equal(mc.load(tmp_path / "f.mercer")(X), function(X))
