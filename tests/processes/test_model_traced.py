"""A model inside compiled code gives what it gives outside, and has derivatives."""

import equinox as eqx
import jax
import numpy as np

import mercer as mc

X = np.linspace(0.0, 3.0, 12)[:, None]
Y = np.sin(2.0 * X)


def test_prediction_and_density_inside_jit_and_grad():
    model = mc.Model(mc.Sparse(mc.GP(mc.kernels.RBF()), mc.inducing.Points(X[::3])), mc.likelihoods.Gaussian(0.1))
    outside, inside = model.predict(X), eqx.filter_jit(lambda m, x: m.predict(x))(model, X)
    np.testing.assert_allclose(inside.mean, outside.mean, atol=1e-12)
    np.testing.assert_allclose(inside.cov, outside.cov, rtol=1e-10)
    density = eqx.filter_jit(lambda m: m.log_density(X, Y))(model)
    np.testing.assert_allclose(density, model.log_density(X, Y), rtol=1e-10)
    gradient = jax.grad(lambda x: model.predict(x).cov.sum())(jax.numpy.asarray(X))
    assert np.isfinite(gradient).all()
