"""Natural gradients: for conjugate models one step of size 1 is the optimum; for others it is a step in natural parameters."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from toys import sparse, wave_data

import mercer as mc
from mercer.training import NaturalGradient, natural_step


def covariance(model):
    return model.posterior.q_sqrt @ model.posterior.q_sqrt.mT


@pytest.mark.parametrize("whiten", [True, False])
def test_one_step_is_the_collapsed_optimum(whiten):
    X, Y = wave_data(num_outputs=2)
    model = sparse(num_outputs=2, whiten=whiten, mean=mc.means.Linear([[0.3, -0.2]], [0.5, 1.0]))
    fitted = mc.fit(model, mc.objectives.ELBO(), (X, Y), optimiser=NaturalGradient(1.0), steps=1, every=1).model
    best = mc.Model(mc.objectives.CollapsedELBO().posterior(model, X, Y), model.likelihood)
    np.testing.assert_allclose(fitted.posterior.q_mu, best.posterior.q_mu, atol=1e-7)
    np.testing.assert_allclose(covariance(fitted), covariance(best), atol=1e-7)
    np.testing.assert_allclose(mc.elbo(fitted, X, Y), mc.objectives.CollapsedELBO().bound(model, X, Y), rtol=1e-9)
    # With `rest` left out all else stays.
    assert np.array_equal(fitted.posterior.inducing.Z, model.posterior.inducing.Z)
    assert fitted.likelihood.variance == model.likelihood.variance


def test_a_step_is_one_in_natural_parameters():
    """theta_1 = S^-1 m and theta_2 = -S^-1 / 2 move by -gamma times the derivative in the expectations m and S + m m^T."""
    X, Y = wave_data()
    Y, gamma = (Y > 0.7).astype(float), 0.3
    random = np.random.default_rng(0)
    m = random.normal(size=(6, 1))
    L = np.tril(0.1 * random.normal(size=(6, 6))) + np.diag([-0.5, 0.6, 0.7, 0.8, 0.9, 1.0])  # signs do not matter
    model = sparse(likelihood=mc.likelihoods.Bernoulli(), q_mu=m, q_sqrt=L[None])
    fitted = mc.fit(model, mc.objectives.ELBO(), (X, Y), optimiser=NaturalGradient(gamma), steps=1, every=1).model

    @jax.jit
    def bound(first, second):
        """Minus the evidence lower bound as a function of the expectations."""
        S = second - first @ first.T
        q = (first, jnp.linalg.cholesky(0.5 * (S + S.T))[None])
        changed = eqx.tree_at(lambda model: (model.posterior.q_mu, model.posterior.q_sqrt), model, q)
        return -mc.elbo(changed, X, Y)

    S = L @ L.T
    d_first, d_second = jax.grad(bound, (0, 1))(m, S + m @ m.T)
    d_second = 0.5 * (d_second + d_second.T)
    theta_1 = np.linalg.solve(S, m) - gamma * d_first
    theta_2 = -0.5 * np.linalg.inv(S) - gamma * d_second
    S_new = np.linalg.inv(-2.0 * theta_2)
    np.testing.assert_allclose(covariance(fitted)[0], S_new, atol=1e-9)
    np.testing.assert_allclose(fitted.posterior.q_mu, S_new @ theta_1, atol=1e-9)


def test_a_step_leaves_a_lower_triangular_root():
    random = np.random.default_rng(1)
    L = np.tril(random.normal(size=(3, 5, 5)))
    d_sqrt = np.tril(0.1 * random.normal(size=(3, 5, 5)))
    q_mu, q_sqrt = natural_step(
        jnp.zeros((5, 3)), jnp.asarray(L), jnp.ones((5, 3)), jnp.asarray(d_sqrt), jnp.asarray(0.05)
    )
    assert q_mu.shape == (5, 3)
    assert (np.triu(q_sqrt, 1) == 0.0).all()
    assert np.isfinite(q_sqrt).all()


def test_no_step_is_no_change():
    random = np.random.default_rng(2)
    m, L = jnp.asarray(random.normal(size=(4, 1))), jnp.asarray(np.tril(random.normal(size=(1, 4, 4))))
    q_mu, q_sqrt = natural_step(m, L, jnp.ones_like(m), jnp.tril(jnp.ones_like(L)), jnp.asarray(0.0))
    np.testing.assert_allclose(q_mu, m, atol=1e-12)
    np.testing.assert_allclose(q_sqrt @ q_sqrt.mT, L @ L.mT, atol=1e-12)


def test_natural_gradients_for_q_and_adam_for_the_rest_beat_adam_alone():
    (X, Y), adam = wave_data(), optax.adam(0.02)
    options = dict(steps=25, every=25)
    alone = mc.fit(sparse(), mc.objectives.ELBO(), (X, Y), optimiser=adam, **options)
    # A schedule: half steps, then whole ones.
    gamma = optax.piecewise_constant_schedule(0.5, {5: 2.0})
    both = mc.fit(sparse(), mc.objectives.ELBO(), (X, Y), optimiser=NaturalGradient(gamma, adam), **options)
    assert both.history[-1] < alone.history[-1] - 0.1
    assert both.model.posterior.prior.kernel.lengthscale != 0.7
    assert both.model.likelihood.variance != 0.1


@pytest.mark.parametrize("case", ["diagonal", "frozen q", "lines"])
def test_what_natural_gradients_need_is_said(case):
    model = sparse(covariance="diag") if case == "diagonal" else sparse()
    frozen = (lambda m: m.posterior.q_mu) if case == "frozen q" else None
    optimiser = NaturalGradient(rest=optax.lbfgs() if case == "lines" else None)
    with pytest.raises(ValueError, match="NaturalGradient"):
        mc.fit(model, mc.objectives.ELBO(), wave_data(), optimiser=optimiser, frozen=frozen, steps=1)
