"""Generalised variational inference: Bayes' rule at one corner, unbiased batches, any prior, any posterior."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from mercer import likelihoods
from mercer.divergences import KL, GaussianWasserstein, Hellinger, Projected, Renyi, Wasserstein
from mercer.objectives import ELBO, GVI, Batch
from mercer.objectives.risks import (
    BetaDivergence,
    CrossEntropy,
    ExpectedNegativeLogLikelihood,
    NegativeLogPredictive,
    SquaredError,
)

N, M, D, P = 12, 4, 2, 2
_rng = np.random.default_rng(0)
X, Z, Y = _rng.uniform(-1.0, 1.0, size=(N, D)), _rng.uniform(-1.0, 1.0, size=(M, D)), _rng.normal(size=(N, P))
MISSING = np.where(_rng.uniform(size=Y.shape) < 0.3, np.nan, Y)
Q_MU, Q_SQRT = _rng.normal(size=(M, P)), np.tril(0.2 * _rng.normal(size=(P, M, M))) + 0.4 * np.eye(M)
PRIOR = mc.GP(mc.kernels.Matern52(0.8, 1.2), mc.means.Constant([0.3, -0.5]))
OTHER = mc.GP(mc.kernels.RBF(0.6))
GAUSSIAN = likelihoods.Gaussian(0.2)
LOSS = ExpectedNegativeLogLikelihood()


def sparse(whiten=True, likelihood=GAUSSIAN, prior=PRIOR):
    return mc.Model(mc.Sparse(prior, mc.inducing.Points(Z), P, whiten, q_mu=Q_MU, q_sqrt=Q_SQRT), likelihood)


def with_network(num_outputs=P):
    """A posterior of any mean and any kernel."""
    network = eqx.nn.MLP(D, num_outputs, 6, 1, activation=jnp.tanh, key=jax.random.key(0))
    return mc.Model(mc.GP(mc.kernels.RBF(0.7, 0.5), mc.means.Network(network)), GAUSSIAN)


@eqx.filter_jit
def value_and_gradient(objective, model, batch):
    return eqx.filter_value_and_grad(lambda m: objective(m, batch))(model)


@eqx.filter_jit
def value(objective, model, batch):
    return objective(model, batch)


def whole(Y=Y, weights=None):
    return Batch(jnp.asarray(X), jnp.asarray(Y), weights=weights)


@pytest.mark.parametrize("whiten", [True, False], ids=["whitened", "unwhitened"])
def test_the_elbo(whiten):
    """With the log likelihood, KL and the posterior's own prior: the same value and the same gradients."""
    model = sparse(whiten)
    expected, found = (value_and_gradient(o, model, whole(MISSING)) for o in (ELBO(), GVI(None, LOSS, KL())))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
    if whiten:
        explicit = value(GVI(PRIOR, LOSS, KL()), model, whole(MISSING))
        np.testing.assert_allclose(explicit, expected[0], rtol=1e-8)


def test_training_is_that_of_the_elbo():
    options = dict(steps=12, batch_size=4, key=jax.random.key(1), every=12)
    expected = mc.fit(sparse(), ELBO(), (X, Y), **options)
    found = mc.fit(sparse(), GVI(None, LOSS, KL()), (X, Y), **options)
    np.testing.assert_allclose(found.history, expected.history, rtol=1e-10)
    for a, b in zip(jax.tree.leaves(found.model), jax.tree.leaves(expected.model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def test_a_prior_that_is_given_is_held_still():
    objective = GVI(OTHER, BetaDivergence(1.3), Projected(Renyi(0.5)))
    assert not any(jax.tree.leaves(mc.parameters.trainable(objective)))


def test_the_scale_of_each_term():
    """mean_n risk_n + weight D / N; weight = N is the mean risk plus the whole divergence."""
    model, divergence = sparse(), Projected(Renyi(0.5))
    risk = SquaredError()(GAUSSIAN, model.posterior.predict(X), Y).mean()
    whole_divergence = divergence.between(model.posterior, OTHER, X)
    for weight in (0.0, 0.3, float(N)):
        found = value(GVI(OTHER, SquaredError(), divergence, weight), model, whole())
        np.testing.assert_allclose(found, risk + weight / N * whole_divergence, rtol=1e-10)


@pytest.mark.parametrize("divergence", [KL(), Projected(Hellinger()), GaussianWasserstein(trace=False)])
def test_batches_average_to_the_whole(divergence):
    objective = GVI(OTHER, BetaDivergence(1.3), divergence, 2.0)
    expected = value(objective, sparse(), whole(MISSING))
    order = np.random.default_rng(1).permutation(N).reshape(4, 3)
    batches = [Batch(X[i], MISSING[i], num_data=N, complete=False) for i in order]
    np.testing.assert_allclose(np.mean([value(objective, sparse(), b) for b in batches]), expected, rtol=1e-10)


@pytest.mark.parametrize("divergence", [KL(), GaussianWasserstein(), Projected(Renyi(0.5))])
def test_any_posterior_with_any_prior(divergence):
    """A network as the mean, under a prior that has seen a few points: value by its parts, and finite gradients."""
    prior = mc.Conditioned(OTHER, X[:3], Y[:3], noise=0.1)
    model = with_network()
    found, gradient = value_and_gradient(GVI(prior, NegativeLogPredictive(), divergence), model, whole())
    risk = NegativeLogPredictive()(GAUSSIAN, model.posterior.predict(X), Y).mean()
    np.testing.assert_allclose(found, risk + divergence.between(model.posterior, prior, X) / N, rtol=1e-8)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_training_a_network_under_projected_renyi():
    objective = GVI(OTHER, NegativeLogPredictive(), Projected(Renyi(0.5)), N)
    history = mc.fit(with_network(), objective, (X, Y), steps=60, every=60).history
    assert np.isfinite(history).all() and history[-1] < history[0] - 0.1


def test_the_weight_is_a_number_of_the_compiled_loop():
    """Another weight is the same compiled function with another number."""
    first, second = (GVI(OTHER, LOSS, Projected(KL()), weight) for weight in (1.0, 2.0))
    forms = [eqx.partition(objective, eqx.is_array)[1] for objective in (first, second)]
    assert forms[0] == forms[1] and hash(forms[0]) == hash(forms[1])


def test_likelihoods_over_several_outputs_and_classes():
    correlated = likelihoods.CorrelatedGaussian([[0.5, 0.2], [0.2, 0.4]])
    mixed = mc.GP(mc.kernels.IntrinsicCoregionalisation(mc.kernels.RBF(), [[1.0, 0.3], [0.2, 0.8]]))
    divergences = Projected(KL()), Wasserstein()

    @eqx.filter_jit
    def found_and_expected(prior):
        model = mc.Model(prior, correlated)
        found = [GVI(OTHER, NegativeLogPredictive(), d)(model, whole()) for d in divergences]
        risk = jnp.mean(NegativeLogPredictive()(correlated, prior.predict(X, "outputs"), Y))
        return found, [risk + d.between(prior, OTHER, X) / N for d in divergences]

    for prior, layout in ((PRIOR, "inputs"), (mixed, "full")):
        np.testing.assert_allclose(*found_and_expected(prior), rtol=1e-8)
        assert Wasserstein().layout(prior, OTHER) == layout
    labels = (Y[:, :1] > 0.0).astype(float)
    classes = mc.Model(sparse().posterior, likelihoods.RobustMax(P))
    assert np.isfinite(value(GVI(OTHER, CrossEntropy(), Projected(KL())), classes, whole(labels)))


def test_weights_of_rows():
    """A row of weight 2 is there twice; the divergence does not count rows."""
    weights, objective = np.ones(N), GVI(OTHER, NegativeLogPredictive(), KL(), 1.0)
    weights[0] = 2.0
    model = sparse()
    terms = NegativeLogPredictive()(GAUSSIAN, model.posterior.predict(X), Y)
    expected = (terms.sum() + terms[0]) / N + KL().between(model.posterior, OTHER, X) / N
    np.testing.assert_allclose(value(objective, model, whole(weights=jnp.asarray(weights))), expected, rtol=1e-9)


def test_single_precision():
    x, y = jnp.asarray(X, jnp.float32), jnp.asarray(Y, jnp.float32)
    objective = GVI(OTHER, BetaDivergence(np.float64(1.3)), Projected(Renyi(np.float64(0.5))), np.float64(1.0))
    found = value(objective, sparse(), Batch(x, y))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, value(objective, sparse(), whole()), rtol=1e-3)


def test_functionals():
    """Slopes as data: KL of the inducing variables looks at no inputs, a mean over inputs is refused."""
    slopes = mc.inducing.Derivative(X, 0)
    assert np.isfinite(GVI(OTHER, LOSS, KL())(sparse(), (slopes, Y)))
    with pytest.raises(ValueError, match="Projected is a mean over inputs, got Derivative"):
        GVI(OTHER, LOSS, Projected(KL()))(sparse(), (slopes, Y))


def test_what_is_refused_when_it_is_made():
    with pytest.raises(ValueError, match="prior expects a process or None, got RBF"):
        GVI(mc.kernels.RBF(), LOSS, KL())
    with pytest.raises(ValueError, match=r"risk expects one of mercer.objectives.risks, got KL"):
        GVI(None, KL(), LOSS)
    with pytest.raises(ValueError, match=r"divergence expects one of mercer.divergences, got str"):
        GVI(None, LOSS, "KL")
    for weight in (-1.0, np.nan, np.inf, [1.0, 2.0], "1"):
        with pytest.raises(ValueError, match="weight expects a finite number, 0 or more"):
            GVI(None, LOSS, KL(), weight)


def test_what_is_refused_before_anything_is_compiled():
    objective = GVI(OTHER, LOSS, KL())
    with pytest.raises(ValueError, match="GVI expects a Model, got Sparse"):
        objective(sparse().posterior, (X, Y))
    with pytest.raises(ValueError, match="posterior's own prior, and GP has none"):
        GVI(None, LOSS, KL())(mc.Model(PRIOR, GAUSSIAN), (X, Y))
    with pytest.raises(ValueError, match="CrossEntropy expects"):
        GVI(OTHER, CrossEntropy(), KL())(sparse(), (X, Y))
    with pytest.raises(ValueError, match="the data need 2 latent functions, the posterior has 1"):
        objective(mc.Model(OTHER, GAUSSIAN), (X, Y))
    three = mc.GP(mc.kernels.RBF(), mc.means.Constant(np.zeros(3)))
    with pytest.raises(ValueError, match="the data need 2 latent functions, the prior has 3"):
        GVI(three, LOSS, KL())(sparse(), (X, Y))
    with pytest.raises(ValueError, match="kl: the other prior expects a kernel of one output"):
        GVI(mc.GP(mc.kernels.SharedIndependent(mc.kernels.RBF(), 2)), LOSS, KL())(sparse(), (X, Y))
