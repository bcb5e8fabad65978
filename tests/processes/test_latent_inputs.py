"""Latent inputs: bounds against sums over a grid and against numpy, minibatches, new rows, densities with two branches."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.stats import norm

import mercer as mc
from mercer.objectives import ELBO, Batch, CollapsedELBO

RANDOM = np.random.default_rng(0)
KEY = jax.random.key(0)
N, Q, P, M = 12, 2, 3, 5
MEAN, VARIANCE = RANDOM.normal(size=(N, Q)), RANDOM.uniform(0.05, 0.5, (N, Q))
Z = RANDOM.normal(size=(M, Q))
Y = RANDOM.normal(size=(N, P))
MISSING = np.where(RANDOM.uniform(size=Y.shape) < 0.2, np.nan, Y)
MISSING[:, 0] = Y[:, 0]
KERNEL = mc.kernels.RBF([0.8, 1.1], 1.3)


def model(likelihood=None, inputs=None, q_mu=None, mean=None):
    q = mc.Sparse(mc.GP(KERNEL, mean), mc.inducing.Points(Z), num_outputs=P)
    if q_mu is not None:
        q = eqx.tree_at(lambda q: (q.q_mu, q.q_sqrt), q, (jnp.asarray(q_mu), 0.4 * q.q_sqrt))
    inputs = mc.inputs.Latent(MEAN, VARIANCE) if inputs is None else inputs
    return mc.Model(mc.Uncertain(q, inputs), likelihood or mc.likelihoods.Gaussian(0.2))


MOVED = RANDOM.normal(size=(M, P))


def by_numpy(Y, noise):
    """The bound of Titsias and Lawrence (2010), output by output, as they write it."""
    l2, variance = np.array([0.8, 1.1]) ** 2, 1.3
    apart, middle = Z[:, None] - Z, 0.5 * (Z[:, None] + Z)
    K = variance * np.exp(-0.5 * np.sum(apart**2 / l2, -1))
    s, mu = VARIANCE[:, None], MEAN[:, None]
    psi1 = variance * np.prod(np.exp(-0.5 * (mu - Z) ** 2 / (l2 + s)) / np.sqrt(1.0 + s / l2), -1)
    s, mu = s[:, None], mu[:, None]
    psi2 = variance**2 * np.prod(
        np.exp(-(apart**2) / (4.0 * l2) - (mu - middle) ** 2 / (l2 + 2.0 * s)) / np.sqrt(1.0 + 2.0 * s / l2), -1
    )
    total = -0.5 * np.sum(VARIANCE + MEAN**2 - 1.0 - np.log(VARIANCE))
    for y in Y.T:
        seen = ~np.isnan(y)
        n, p1, p2, y = seen.sum(), psi1[seen], psi2[seen].sum(0), y[seen]
        A = K + p2 / noise
        total += -0.5 * n * np.log(2.0 * np.pi * noise) - 0.5 * y @ y / noise
        total += 0.5 * np.linalg.slogdet(K)[1] - 0.5 * np.linalg.slogdet(A)[1]
        total += 0.5 * (p1.T @ y) @ np.linalg.solve(A, p1.T @ y) / noise**2
        total -= 0.5 * (n * variance - np.trace(np.linalg.solve(K, p2))) / noise
    return total


@pytest.mark.parametrize("data", [Y, MISSING], ids=["complete", "missing"])
def test_the_collapsed_bound(data):
    start = model()
    bound = CollapsedELBO().bound(start, None, data)
    np.testing.assert_allclose(bound, by_numpy(data, 0.2), rtol=1e-6)
    # At the best q(u) the free bound is the same, and it is a maximum.
    best = mc.Model(CollapsedELBO().posterior(start, None, data), start.likelihood)
    np.testing.assert_allclose(mc.elbo(best, None, data), bound, rtol=1e-9)
    gradient = eqx.filter_grad(lambda q: ELBO()(mc.Model(q, start.likelihood), (None, data)))(best.posterior)
    np.testing.assert_allclose(gradient.process.q_mu, 0.0, atol=1e-6)


def test_the_bound_over_a_grid_of_inputs():
    """E_q(x) of the terms of each row, with any likelihood, less the divergence of q(x) from N(0, I)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    grid = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    shares = np.outer(weights, weights).ravel() / weights.sum() ** 2
    places = MEAN[:, None] + np.sqrt(VARIANCE)[:, None] * grid
    kl = 0.5 * np.sum(VARIANCE + MEAN**2 - 1.0 - np.log(VARIANCE), axis=1)
    cases = ((mc.likelihoods.Gaussian(0.2), Y, 1e-6), (mc.likelihoods.StudentT(4.0, 0.5), MISSING, 0.03))
    for likelihood, data, tolerance in cases:
        of = model(likelihood, q_mu=MOVED)
        q = of.posterior.process.predict(places.reshape(-1, Q))
        terms = likelihood.expected_log_prob(q.mean, q.cov, np.repeat(data, len(grid), axis=0)).reshape(N, -1)
        expected = np.sum(terms @ shares - kl) - of.posterior.kl()
        many = eqx.tree_at(
            lambda m: m.posterior, of, mc.Uncertain(of.posterior.process, of.posterior.inputs, 100, 5000)
        )
        np.testing.assert_allclose(mc.elbo(many, None, data), expected, rtol=tolerance)


def test_minibatches_are_unbiased():
    of, batch = model(q_mu=MOVED), Batch(None, jnp.asarray(MISSING))
    parts = [ELBO()(of, batch.rows(np.arange(i, i + 4))) for i in (0, 4, 8)]
    np.testing.assert_allclose(np.mean(parts), ELBO()(of, batch), rtol=1e-12)


def test_known_noise_on_the_inputs_of_data():
    """A prior that is q itself costs nothing; a row without noise is as it always was."""
    noisy = mc.inputs.Normal(MEAN, VARIANCE)
    of = model(q_mu=MOVED, inputs=mc.inputs.Latent(MEAN, VARIANCE, noisy))
    known = mc.Model(of.posterior.process, of.likelihood)
    np.testing.assert_allclose(mc.elbo(known, noisy, Y), mc.elbo(of, None, Y), rtol=1e-9)
    np.testing.assert_allclose(CollapsedELBO().bound(known, noisy, Y), CollapsedELBO().bound(of, None, Y), rtol=1e-9)
    still = mc.inputs.Normal(MEAN, 0.0)
    np.testing.assert_allclose(mc.elbo(known, still, Y), mc.elbo(known, MEAN, Y), rtol=1e-6)
    np.testing.assert_allclose(CollapsedELBO().bound(known, still, Y), CollapsedELBO().bound(known, MEAN, Y), rtol=1e-6)
    fitted = mc.fit(known, ELBO(), (noisy, Y), steps=3, batch_size=4)
    assert np.isfinite(fitted.history).all()


def test_columns_beside_latent_ones():
    """[x, w]: at given w as the process, at x alone the mixture over the prior of w."""
    of = model(q_mu=MOVED, inputs=mc.inputs.Latent(MEAN[:, :1], 0.1)).posterior
    inside = of.predict(MEAN)
    np.testing.assert_allclose(inside.mean, of.process.predict(MEAN).mean, rtol=1e-12)
    outside = mc.Uncertain(of.process, of.inputs, num_samples=20_000).predict(MEAN[:2, :1])
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    for row in range(2):
        values = of.process.predict(np.stack([np.full(40, MEAN[row, 0]), nodes], axis=1)).mean
        np.testing.assert_allclose(outside.mean[row], weights @ values / weights.sum(), atol=0.03)
    assert of.sample(MEAN[:2, :1], 3, key=KEY).shape == (3, 2, P)


def test_an_encoder():
    encoder = eqx.nn.MLP(2 * P, 2 * Q, 8, 1, key=KEY)
    of = model(inputs=mc.inputs.Amortised(encoder, flags=True))
    fitted = mc.fit(of, ELBO(), (None, MISSING), steps=5, batch_size=6, key=KEY)
    assert np.isfinite(fitted.history).all()
    seen = np.concatenate([np.nan_to_num(MISSING), ~np.isnan(MISSING)], axis=1)
    raw = jax.vmap(encoder)(seen)
    rows = of.posterior.inputs.of_rows(None, jnp.asarray(MISSING), None)
    np.testing.assert_allclose(rows.q.mean, raw[:, :Q])
    np.testing.assert_allclose(rows.q.variance, np.log1p(np.exp(raw[:, Q:])))


def test_log_density_by_importance_sampling():
    """p(y) over the prior of x, whatever the encoder proposes."""
    encoder = eqx.nn.MLP(P, 2 * Q, 8, 1, key=KEY)
    q = model(q_mu=MOVED).posterior.process
    of = mc.Model(mc.Uncertain(q, mc.inputs.Amortised(encoder), num_samples=20_000), mc.likelihoods.Gaussian(0.5))
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    shares = np.log(np.outer(weights, weights).ravel() / weights.sum() ** 2)
    at = q.predict(grid)
    expected = [
        jax.nn.logsumexp(of.likelihood.log_predictive(at.mean, at.cov, np.tile(y, (len(grid), 1))) + shares)
        for y in Y[:3]
    ]
    np.testing.assert_allclose(of.log_density(None, Y[:3]), expected, atol=0.05)


@pytest.fixture(scope="module")
def circle():
    """Rows on a curve in six dimensions, and a model of one latent input, trained."""
    angle = RANDOM.uniform(0.0, 3.0, 60)
    waves = np.sin(angle[:, None] + np.linspace(0.0, 3.0, 6)) + 0.02 * RANDOM.normal(size=(60, 6))
    start = mc.gplvm(waves[:40], 1, 8)
    fitted = mc.fit(start, CollapsedELBO(), (None, waves[:40]), steps=300)
    return fitted.model, waves[40:]


def test_missing_entries_of_new_rows(circle):
    trained, new = circle
    gone = np.array(new)
    pattern = RANDOM.uniform(size=new.shape) < 0.5
    pattern[:, :2] = False  # one entry alone is had at two places of the curve
    gone[pattern] = np.nan
    found = mc.infer(trained, gone, steps=200)
    assert found.inputs.mean.shape == (20, 1) and found.bounds.shape == (20,)
    error = np.sqrt(np.mean((found.outputs.mean - new)[pattern] ** 2))
    assert error < 0.1  # the noise is 0.02, the spread of an entry 0.5
    spread = (found.outputs.mean - new)[pattern] / np.sqrt(found.outputs.variance[pattern])
    assert np.mean(np.abs(spread) < 3.0) > 0.9
    again = mc.infer(trained, gone, steps=200)
    np.testing.assert_array_equal(again.bounds, found.bounds)


@pytest.mark.slow
def test_a_dimension_that_is_not_needed_is_switched_off():
    angle = RANDOM.uniform(-1.0, 1.0, 40)
    lines = angle[:, None] * np.array([1.0, -0.5, 0.3, 0.8]) + 0.05 * RANDOM.normal(size=(40, 4))
    start = mc.gplvm(lines, 2, 8)
    fitted = mc.fit(start, CollapsedELBO(), (None, lines), steps=150, optimiser=optax.lbfgs()).model
    variances = np.mean(fitted.posterior.inputs.variance, axis=0)
    lengthscales = fitted.posterior.process.prior.kernel.lengthscale
    assert variances[0] < 0.05 and variances[1] > 0.3
    assert lengthscales[1] > 3.0 * lengthscales[0]


def test_two_branches():
    """p(y | x) with two modes: the density, quantiles and draws of y know of both; the mean is between them."""
    X = RANDOM.uniform(-1.0, 1.0, (80, 1))
    side = np.where(RANDOM.uniform(size=X.shape) < 0.5, 1.0, -1.0)
    data = X, side * (1.0 + 0.3 * X) + 0.1 * RANDOM.normal(size=X.shape)
    points = mc.inducing.Points(RANDOM.uniform(-1.5, 1.5, (12, 2)))
    encoder = eqx.nn.MLP(2, 2, 16, 1, key=KEY)
    q = mc.Sparse(mc.GP(mc.kernels.RBF([1.0, 0.5])), points)
    start = mc.Model(mc.Uncertain(q, mc.inputs.Amortised(encoder), num_samples=300), mc.likelihoods.Gaussian(0.05))
    fitted = mc.fit(
        start, mc.objectives.ImportanceWeighted(5), data, steps=800, optimiser=optax.adam(0.03), key=KEY
    ).model
    at = np.zeros((1, 1))
    densities = [float(fitted.log_density(at, np.array([[y]]))[0]) for y in (-1.0, 0.0, 1.0)]
    assert min(densities[0], densities[2]) > densities[1] + 1.0
    y = fitted.observations(at)
    low, high = y.quantiles([0.25, 0.75])[:, 0, 0]
    assert low < -0.7 and high > 0.7
    draws = y.sample(400, key=KEY)[:, 0, 0]
    assert 0.25 < np.mean(draws > 0.5) < 0.75 and np.mean(np.abs(draws) < 0.4) < 0.2
    assert abs(float(fitted.predict(at).mean[0, 0])) < 0.4


def test_quantiles_of_mixtures():
    mixture = mc.Mixture(np.array([[[0.0]], [[4.0]]]), np.array([[[1.0]], [[0.25]]]))
    for level, value in zip((0.1, 0.5, 0.9), mixture.quantiles([0.1, 0.5, 0.9])[:, 0, 0], strict=True):
        np.testing.assert_allclose(0.5 * norm.cdf(value) + 0.5 * norm.cdf(value, 4.0, 0.5), level, rtol=1e-9)
    np.testing.assert_allclose(mc.Gaussian(np.ones((1, 1)), np.ones((1, 1))).quantiles([0.5]), 1.0, atol=1e-12)
    with pytest.raises(ValueError, match="between 0 and 1"):
        mixture.quantiles([0.0])


def test_errors():
    of = model()
    with pytest.raises(ValueError, match="Latent has 12 rows, one for each datum, and the data have 5"):
        ELBO()(of, (None, Y[:5]))
    empty = np.array(MISSING)
    empty[4] = np.nan
    with pytest.raises(ValueError, match=r"nothing is observed in 1 of 12 rows of Y \(first: row 4\)"):
        ELBO()(of, (None, empty))
    with pytest.raises(ValueError, match="does not take inputs of 3 columns, of which 2 are latent"):
        ELBO()(of, (MEAN[:, :1], Y))
    wrong = model(inputs=mc.inputs.Amortised(eqx.nn.MLP(4, 4, 3, 1, key=KEY)))
    with pytest.raises(ValueError, match="the encoder takes 4 numbers, and a row of the data has 3"):
        ELBO()(wrong, (None, Y))
    with pytest.raises(ValueError, match="even number of outputs"):
        mc.inputs.Amortised(eqx.nn.MLP(3, 3, 3, 1, key=KEY))
    with pytest.raises(ValueError, match="variance must be positive"):
        mc.inputs.Latent(MEAN, 0.0)
    with pytest.raises(ValueError, match="dimension expects a whole number from 1 to 3"):
        mc.gplvm(Y, 4, 5)
    with pytest.raises(ValueError, match="infer expects a model of an Uncertain"):
        mc.infer(mc.Model(of.posterior.process, of.likelihood), Y)
    with pytest.raises(ValueError, match="nothing is observed in 1 of 12"):
        mc.infer(of, empty)
    line = mc.means.Linear(np.ones((Q, P)))
    with pytest.raises(ValueError, match="a constant mean, got RBF with Points and Linear"):
        CollapsedELBO().bound(model(mean=line), None, Y)
    with pytest.raises(ValueError, match="latent inputs go in front of all layers"):
        mc.Deep([of.posterior])
    with pytest.raises(ValueError, match="observations expects a Gaussian likelihood"):
        model(mc.likelihoods.StudentT()).observations(MEAN)


@pytest.mark.slow
def test_a_deep_process_at_latent_inputs():
    """Both bounds train it, a row at a time, and an encoder of new rows goes with it."""
    passing = mc.Sparse(mc.GP(mc.kernels.RBF(1.0), mc.means.Linear(np.eye(Q))), mc.inducing.Points(Z), num_outputs=Q)
    last = mc.Sparse(mc.GP(KERNEL), mc.inducing.Points(Z), num_outputs=P)
    inputs = mc.inputs.Amortised(eqx.nn.MLP(P, 2 * Q, 4, 1, key=KEY))
    start = mc.Model(mc.Uncertain(mc.Deep([passing, last], num_samples=5), inputs), mc.likelihoods.Gaussian(0.2))
    for objective in (ELBO(), mc.objectives.ImportanceWeighted(3)):
        fitted = mc.fit(start, objective, (None, MISSING), steps=40, batch_size=6, optimiser=optax.adam(0.02), key=KEY)
        assert fitted.history[-10:].mean() < fitted.history[:10].mean()
    assert np.isfinite(fitted.model.log_density(None, MISSING)).all()
    assert isinstance(fitted.model.posterior.predict(MEAN), mc.Mixture)
