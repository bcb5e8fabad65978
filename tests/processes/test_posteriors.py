"""What objectives may ask of a posterior, and exact posteriors of processes."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mercer as mc
from cases import mostly_slow
from mercer.training import NaturalGradient
from outside import Either, Shaken


def data(num_data=12, num_outputs=1):
    X = np.linspace(-2.0, 2.0, num_data)[:, None]
    return X, np.sin(2.0 * X + np.arange(num_outputs))


def sparse(lengthscale=0.7, q_mu=0.0):
    prior = mc.GP(mc.kernels.RBF(lengthscale), mc.means.Constant(0.3))
    Z = np.linspace(-2.0, 2.0, 5)[:, None]
    return mc.Sparse(prior, mc.inducing.Points(Z), q_mu=jnp.full((5, 1), q_mu), q_sqrt=0.4 * jnp.eye(5)[None])


CONDITIONED = {
    "one output": (mc.kernels.RBF(0.6), 0.1, 1),
    "outputs of different noise": (mc.kernels.RBF(0.6), [0.1, 0.3], 2),
    "intrinsic": (mc.kernels.IntrinsicCoregionalisation(mc.kernels.RBF(0.6), [[1.0, 0.0], [0.4, 0.5]]), 0.1, 2),
}


@pytest.mark.parametrize(
    ("case", "missing"),
    mostly_slow(
        itertools.product(CONDITIONED, [False, True]), ("outputs of different noise", True), ("intrinsic", False)
    ),
)
def test_kl_of_an_exact_posterior_is_expected_log_likelihood_less_evidence(case, missing):
    kernel, noise, P = CONDITIONED[case]
    X, Y = data(num_outputs=P)
    Y = np.where((np.arange(len(Y)) == 3)[:, None] & (np.arange(P) == 0), np.nan, Y) if missing else Y
    exact = mc.Conditioned(mc.GP(kernel), X, Y, jnp.asarray(noise))
    expected = jnp.sum(mc.likelihoods.Gaussian(noise).expected_log_prob(*exact.predict(X), Y))
    np.testing.assert_allclose(exact.kl(), expected - exact.log_marginal_likelihood(), rtol=1e-9)
    model = mc.Model(exact, mc.likelihoods.Gaussian(noise))
    np.testing.assert_allclose(mc.elbo(model, X, Y), exact.log_marginal_likelihood(), rtol=1e-10)


@pytest.mark.parametrize("case", CONDITIONED)
def test_conditioning_twice_is_conditioning_on_both(case):
    kernel, noise, P = CONDITIONED[case]
    X, Y = data(num_outputs=P)
    prior = mc.GP(kernel, mc.means.Constant(0.2))
    twice = prior.condition(X[:7], Y[:7], jnp.asarray(noise)).condition(X[7:], Y[7:], 0.4)
    noises = np.concatenate([np.broadcast_to(noise, (7, P)), np.full((len(X) - 7, P), 0.4)])
    both = mc.Conditioned(prior, X, Y, noises)
    np.testing.assert_allclose(twice.log_marginal_likelihood(), both.log_marginal_likelihood(), rtol=1e-10)
    for a, b in zip(twice.predict(X + 0.1, "full"), both.predict(X + 0.1, "full"), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)


def test_values_and_slopes_are_conditioned_on_together():
    X, Y = data()
    prior, slopes = mc.GP(mc.kernels.RBF(0.6)), mc.inducing.Derivative(X[:4], 0)
    twice = prior.condition(X, Y, 0.1).condition(slopes, 2.0 * np.cos(2.0 * X[:4]), 0.2)
    both = mc.Conditioned(
        prior, mc.inducing.Mixed([mc.inducing.Points(X), slopes]),
        np.concatenate([Y, 2.0 * np.cos(2.0 * X[:4])]), np.repeat([0.1, 0.2], [12, 4])[:, None],
    )  # fmt: skip
    np.testing.assert_allclose(twice.predict(X + 0.1).mean, both.predict(X + 0.1).mean, atol=1e-9)


def test_a_sparse_posterior_has_no_exact_one():
    with pytest.raises(ValueError, match="Sparse has no exact posterior"):
        sparse().condition(*data(), 0.1)


def test_a_prior_declares_no_prior():
    prior = mc.GP(mc.kernels.RBF())
    assert prior.prior is None
    assert not prior.knows_kl()
    with pytest.raises(ValueError, match="GP knows no KL"):
        prior.kl()
    assert sparse().knows_kl(prior)
    assert prior.q_parameters() == ()


def test_predictions_with_random_numbers_are_repeatable():
    process, (X, Y) = Shaken(sparse(q_mu=0.5)), data()
    model = mc.Model(process, mc.likelihoods.Gaussian(0.1))
    first, again, other = process.predict(X), process.predict(X), process.predict(X, key=jax.random.key(1))
    assert np.array_equal(first.means, again.means)
    assert not np.allclose(first.means, other.means)
    assert np.array_equal(model.predict(X).mean, model.predict(X).mean)
    assert not np.array_equal(model.log_density(X, Y), model.log_density(X, Y, key=jax.random.key(1)))
    inside = jax.jit(lambda X: process.predict(X, key=jax.random.key(1)).means)(X)
    np.testing.assert_allclose(inside, other.means, atol=1e-12)
    assert process.sample(X, 5, key=jax.random.key(0)).shape == (5, *X.shape)


def test_a_mixture_of_equal_posteriors_is_one_of_them():
    X, Y = data()
    one, both = sparse(q_mu=0.5), Either(sparse(q_mu=0.5), sparse(q_mu=0.5))
    likelihood = mc.likelihoods.StudentT()
    np.testing.assert_allclose(
        mc.elbo(mc.Model(both, likelihood), X, Y), mc.elbo(mc.Model(one, likelihood), X, Y), rtol=1e-12
    )
    for layout in ("diag", "outputs", "inputs", "full"):
        np.testing.assert_allclose(both.predict(X, layout).cov, one.predict(X, layout).cov, atol=1e-12)


def test_natural_gradients_of_every_q():
    """Each q(u) of the bound (e_1 + e_2 - kl_1 - kl_2) / 2 has the optimum it has alone; a step of size 2 is one of size 1."""
    (X, Y), likelihood = data(), mc.likelihoods.Gaussian(0.1)
    both = mc.Model(Either(sparse(0.7), sparse(0.5, 0.3)), likelihood)
    optimiser = NaturalGradient(2.0, where=lambda m: (m.posterior.first, m.posterior.second))
    fitted = mc.fit(both, mc.objectives.ELBO(), (X, Y), optimiser=optimiser, steps=1, every=1).model
    for name in ("first", "second"):
        alone = mc.Model(getattr(both.posterior, name), likelihood)
        best = mc.objectives.CollapsedELBO().posterior(alone, X, Y)
        np.testing.assert_allclose(getattr(fitted.posterior, name).q_mu, best.q_mu, atol=1e-7)
    default = mc.fit(both, mc.objectives.ELBO(), (X, Y), optimiser=NaturalGradient(2.0), steps=1, every=1).model
    assert eqx.tree_equal(default, fitted)


def test_natural_gradients_of_one_q_and_adam_for_the_rest():
    (X, Y), likelihood = data(), mc.likelihoods.Gaussian(0.1)
    both = mc.Model(Either(sparse(0.7), sparse(0.5, 0.3)), likelihood)
    optimiser = NaturalGradient(
        0.5, optax.adam(0.01), where=lambda m: (m.posterior.second.q_mu, m.posterior.second.q_sqrt)
    )
    fitted = mc.fit(both, mc.objectives.ELBO(), (X, Y), optimiser=optimiser, steps=2, every=2)
    assert np.isfinite(fitted.history).all()
    assert not np.array_equal(fitted.model.posterior.first.q_mu, both.posterior.first.q_mu)


@pytest.mark.parametrize("where", [lambda m: m.likelihood, lambda m: m.posterior.prior, lambda m: m.nowhere])
def test_where_must_lead_to_q(where):
    with pytest.raises(ValueError, match="NaturalGradient expects"):
        mc.fit(
            mc.Model(sparse(), mc.likelihoods.Gaussian()), mc.objectives.ELBO(), data(),
            optimiser=NaturalGradient(where=where), steps=1,
        )  # fmt: skip
