"""The importance-weighted bound: between the ELBO and the log likelihood, with a gradient that keeps its signal."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from mercer.objectives import ELBO, Batch, ImportanceWeighted

Y = np.array([[0.5], [-1.0], [2.0]])
SLOPE, NOISE = 1.5, 0.3


def line(variance=0.5):
    """y = 1.5 w + noise, with w latent: everything is known in closed form."""
    q = mc.Sparse(
        mc.GP(mc.kernels.Linear(1.0)),
        mc.inducing.Points(np.ones((1, 1))),
        q_mu=np.array([[SLOPE]]),
        q_sqrt=np.array([[[1e-6]]]),
    )
    return mc.Model(mc.Uncertain(q, mc.inputs.Latent(0.3 * Y, variance)), mc.likelihoods.Gaussian(NOISE))


MODEL = line()
OFFSET = float(MODEL.posterior.kl()) / len(Y)
BATCH = Batch(None, jnp.asarray(Y), complete=True)


def bounds(objective, num, model=MODEL, batch=BATCH):
    """Of many keys, without the divergence of q(u)."""
    of_key = jax.jit(jax.vmap(lambda key: -objective(model, batch, key)))
    return np.asarray(of_key(jax.random.split(jax.random.key(1), num)))


def test_from_the_elbo_to_the_log_likelihood():
    variance = SLOPE**2 + NOISE
    truth = float(np.mean(-0.5 * (np.log(2.0 * np.pi * variance) + Y**2 / variance)))
    found = [bounds(ImportanceWeighted(K), 2000) + OFFSET for K in (1, 4, 200)]
    means, errors = [x.mean() for x in found], [x.std() / np.sqrt(len(x)) for x in found]
    elbo = -float(ELBO()(MODEL, (None, Y))) + OFFSET
    assert abs(means[0] - elbo) < 4.0 * errors[0]
    assert means[0] < means[1] < means[2] < truth + 4.0 * errors[2]
    assert abs(means[2] - truth) < 0.01


def gradients(K, doubly, num=3000):
    """In the mean of q(w) of the first row: mean and standard deviation over keys."""

    def loss(mean, key):
        model = eqx.tree_at(lambda model: model.posterior.inputs.mean, MODEL, mean)
        return ImportanceWeighted(K, doubly)(model, BATCH, key)

    of_key = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))
    found = np.asarray(of_key(MODEL.posterior.inputs.mean, jax.random.split(jax.random.key(2), num)))[:, 0, 0]
    return found.mean(), found.std()


def test_the_doubly_reparameterised_gradient():
    # With two draws the bound is an integral over a plane.
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    one, other = (grid.ravel() for grid in np.meshgrid(nodes, nodes))
    shares = np.outer(weights, weights).ravel() / weights.sum() ** 2

    def bound(mean):
        def log_weight(noise):
            w = mean + jnp.sqrt(0.5) * noise
            log_p = -0.5 * ((Y[0, 0] - SLOPE * w) ** 2 / NOISE + w**2)
            return log_p + 0.5 * noise**2

        return -jnp.sum(shares * jnp.logaddexp(log_weight(one), log_weight(other))) / len(Y)

    expected = jax.grad(bound)(0.3 * Y[0, 0])
    mean, sd = gradients(2, True)
    assert abs(mean - expected) < 4.0 * sd / np.sqrt(3000)
    signal = {(K, doubly): np.divide(*map(abs, gradients(K, doubly))) for K in (10, 200) for doubly in (True, False)}
    assert signal[200, True] > signal[10, True]
    assert signal[200, True] > 10.0 * signal[200, False]


def layer(outputs=1, seed=0):
    Z = np.linspace(-2.0, 2.0, 4)[:, None]
    random = np.random.default_rng(seed)
    return mc.Sparse(
        mc.GP(mc.kernels.RBF(0.9)),
        mc.inducing.Points(Z),
        q_mu=random.normal(size=(4, outputs)),
        q_sqrt=0.3 * np.eye(4)[None],
    )


BINARY = pytest.param(mc.likelihoods.Bernoulli(), marks=pytest.mark.slow)


@pytest.mark.parametrize("likelihood", [mc.likelihoods.Gaussian(0.05), BINARY], ids=["real", "binary"])
def test_deep_processes(likelihood):
    X = np.linspace(-3.0, 3.0, 3)[:, None]  # beyond the inducing points, where a layer is not determined by them
    batch = Batch(X, jnp.asarray((Y > 0.0).astype(float)), complete=True)
    model = mc.Model(mc.Deep([layer(), layer(seed=1)]), likelihood)
    elbo = bounds(ELBO(), 1500, model, batch)
    one, many = (bounds(ImportanceWeighted(K), 1500, model, batch) for K in (1, 20))
    error = np.hypot(elbo.std(), one.std()) / np.sqrt(1500)
    assert abs(elbo.mean() - one.mean()) < 4.0 * error
    assert many.mean() > one.mean() + 3.0 * error
    shallow = mc.Model(layer(), likelihood)
    np.testing.assert_allclose(ImportanceWeighted(7)(shallow, batch), ELBO()(shallow, batch), rtol=1e-9)


def test_errors():
    with pytest.raises(ValueError, match="num_samples expects a whole number, at least 1, got 0"):
        ImportanceWeighted(0)
    X = np.zeros((3, 1))
    exact = mc.Conditioned(mc.GP(mc.kernels.RBF(1.0)), X[:1], Y[:1], 0.1)
    with pytest.raises(ValueError, match="Conditioned cannot be given a draw"):
        ImportanceWeighted(2)(mc.Model(mc.Deep([exact, layer()]), mc.likelihoods.Gaussian(0.1)), (X, Y))
