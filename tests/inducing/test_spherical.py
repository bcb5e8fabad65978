"""Spherical harmonics as inducing variables: exact in the limit, the same by sums, by minibatches and inside several outputs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mercer as mc
from mercer.inducing import SphericalHarmonics

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
X /= np.linalg.norm(X, axis=1, keepdims=True)
Y = np.sin(3.0 * X[:, :1]) + X[:, 1:2] ** 2 + 0.1 * RNG.normal(size=(40, 1))
FLAT = RNG.normal(size=(40, 2))
NOISE = mc.likelihoods.Gaussian(0.02)
ZONAL = mc.kernels.SphericalMatern52(0.9, 1.2)
EXTENSION = mc.kernels.Homogeneous(mc.kernels.SphericalRBF(0.8, 1.1), [0.7, 1.2], 0.9)
COLLAPSED = mc.objectives.CollapsedELBO()


def model_of(kernel, inducing, likelihood=NOISE, **settings):
    return mc.Model(mc.Sparse(mc.GP(kernel), inducing, **settings), likelihood)


@pytest.mark.parametrize(("kernel", "inputs"), [(ZONAL, X), (EXTENSION, FLAT)])
def test_bounds_tend_to_the_marginal_likelihood(kernel, inputs):
    exact = mc.Conditioned(mc.GP(kernel), inputs, Y, 0.02)
    evidence = float(exact.log_marginal_likelihood())
    gaps = []
    for levels in (4, 8, 16):
        model = model_of(kernel, SphericalHarmonics(3, levels))
        gaps.append(evidence - float(COLLAPSED.bound(model, inputs, Y)))
    assert gaps[0] > gaps[1] > gaps[2] > -1e-8
    assert gaps[2] < 0.5
    best = COLLAPSED.posterior(model, inputs, Y)
    np.testing.assert_allclose(best.predict(inputs).mean, exact.predict(inputs).mean, atol=3e-3)
    np.testing.assert_allclose(best.predict(inputs).cov, exact.predict(inputs).cov, atol=3e-3)


@pytest.mark.parametrize(("kernel", "inputs"), [(ZONAL, X), (EXTENSION, FLAT)])
def test_collapsed_is_the_optimal_elbo_however_it_is_worked_out(kernel, inputs):
    weights = np.linspace(0.5, 2.0, 40)
    model = model_of(kernel, SphericalHarmonics(3, 5))
    bound = float(COLLAPSED.bound(model, inputs, Y, weights))
    best = mc.Model(COLLAPSED.posterior(model, inputs, Y, weights), NOISE)
    assert float(mc.elbo(best, inputs, Y, weights)) == pytest.approx(bound, rel=1e-10)
    # The sums in one pass, and the dense algebra of other inducing variables.
    batch = COLLAPSED.checked(model, (inputs, Y, weights))
    dense = -40.0 * COLLAPSED._value(model, batch, None)
    summed = -40.0 * COLLAPSED._value(model, COLLAPSED.prepare_for(model, batch, jax.tree.leaves(model)), None)
    assert float(dense) == pytest.approx(bound, rel=1e-10)
    assert float(summed) == pytest.approx(bound, rel=1e-10)


def test_whitened_and_not_are_the_same():
    posteriors = [COLLAPSED.posterior(model_of(ZONAL, SphericalHarmonics(3, 4), whiten=w), X, Y) for w in (True, False)]
    for layout in ("diag", "inputs", "full", "outputs"):
        a, b = (posterior.predict(X[:5], layout) for posterior in posteriors)
        np.testing.assert_allclose(a.cov, b.cov, atol=1e-10)
        np.testing.assert_allclose(a.mean, b.mean, atol=1e-10)
    assert float(posteriors[0].kl()) == pytest.approx(float(posteriors[1].kl()), rel=1e-9)


def held(model):
    return model.posterior.prior.kernel.weight_variance, model.posterior.prior.kernel.bias_variance


def test_data_are_summed_once_where_features_do_not_move():
    def kind(kernel, inputs, frozen):
        run = mc.training.run.Run(model_of(kernel, SphericalHarmonics(3, 3)), COLLAPSED, (inputs, Y), frozen=frozen)
        return type(run.feed.example).__name__

    assert kind(ZONAL, X, None) == "SummedBatch"
    assert kind(EXTENSION, FLAT, held) == "SummedBatch"
    assert kind(EXTENSION, FLAT, None) == "Batch"


def test_training_by_sums_is_training_by_rows():
    start = model_of(EXTENSION, SphericalHarmonics(3, 4))
    by_sums = mc.fit(start, COLLAPSED, (FLAT, Y), steps=15, frozen=held)
    by_rows = mc.fit(start, _ByRows(), (FLAT, Y), steps=15, frozen=held)
    np.testing.assert_allclose(by_sums.history, by_rows.history, rtol=1e-9)
    assert by_sums.history[-1] < by_sums.history[0]
    np.testing.assert_allclose(by_sums.model.predict(FLAT).mean, by_rows.model.predict(FLAT).mean, rtol=1e-7)


class _ByRows(mc.objectives.CollapsedELBO):
    def prepare_for(self, model, batch, held):
        return batch


def test_gradients_by_finite_differences():
    start = model_of(EXTENSION, SphericalHarmonics(3, 4))

    def loss(weight, bias, lengthscale):
        kernel = mc.kernels.Homogeneous(mc.kernels.SphericalRBF(lengthscale, 1.1), weight, bias)
        model = mc.Model(mc.Sparse(mc.GP(kernel), start.posterior.inducing), NOISE)
        return COLLAPSED._value(model, COLLAPSED.checked(start, (FLAT, Y)), None)

    at = jnp.asarray([0.7, 1.2]), jnp.asarray(0.9), jnp.asarray(0.8)
    directions = jnp.asarray([0.3, -0.5]), jnp.asarray(0.4), jnp.asarray(-0.2)
    gradient = jax.grad(loss, argnums=(0, 1, 2))(*at)
    along = sum(float(jnp.vdot(g, d)) for g, d in zip(gradient, directions, strict=True))
    ends = [loss(*(a + s * d for a, d in zip(at, directions, strict=True))) for s in (1e-5, -1e-5)]
    assert along == pytest.approx(float(ends[0] - ends[1]) / 2e-5, rel=1e-6)


def test_natural_gradients_reach_the_best_in_one_step():
    start = model_of(ZONAL, SphericalHarmonics(3, 4))
    natural = mc.training.NaturalGradient(1.0, None)
    fitted = mc.fit(start, mc.objectives.ELBO(), (X, Y), optimiser=natural, steps=1).model
    assert float(mc.elbo(fitted, X, Y)) == pytest.approx(float(COLLAPSED.bound(start, X, Y)), rel=1e-8)


def test_minibatches_and_likelihoods_without_closed_forms():
    labels = (np.median(Y) < Y).astype(float)
    start = model_of(EXTENSION, SphericalHarmonics(3, 4), mc.likelihoods.Bernoulli())
    fitted = mc.fit(start, mc.objectives.ELBO(), (FLAT, labels), steps=30, batch_size=20, optimiser=optax.adam(0.05))
    assert float(mc.elbo(fitted.model, FLAT, labels)) > float(mc.elbo(start, FLAT, labels))


@pytest.mark.parametrize("shared", [True, False])
def test_several_outputs(shared):
    """A coregionalised model with harmonics for its latent functions, against one dense Gaussian of all outputs."""
    parts = (ZONAL, mc.kernels.SphericalRBF(0.7))
    kernel = mc.kernels.LinearCoregionalisation(parts, np.array([[1.0, 0.3], [0.5, -0.8], [0.2, 0.4]]))
    harmonics = SphericalHarmonics(3, 12)
    inducing = mc.inducing.Shared(harmonics) if shared else mc.inducing.Separate([harmonics, SphericalHarmonics(3, 12)])
    outputs = np.concatenate([Y, -Y, Y**2], axis=1)
    exact = mc.Conditioned(mc.GP(kernel), X, outputs, 0.05)
    model = mc.Model(mc.Sparse(mc.GP(kernel), inducing, covariance="joint"), mc.likelihoods.Gaussian(0.05))
    best = mc.Model(COLLAPSED.posterior(model, X, outputs), model.likelihood)
    gap = float(exact.log_marginal_likelihood()) - float(mc.elbo(best, X, outputs))
    assert -1e-7 < gap < 2.0
    np.testing.assert_allclose(best.posterior.predict(X).mean, exact.predict(X).mean, atol=0.02)


def test_the_largest_eigenvalues_first():
    kernel = mc.kernels.ArcCosine(1, 1, 0.7, 0.9)
    chosen = SphericalHarmonics.largest(kernel, 4, 30)
    assert len(chosen) == 30
    eigenvalues = np.asarray(kernel.eigenvalues(4, 12))
    assert set(chosen.levels) == {0, 1, 2, 4}  # 3 vanishes
    taken = eigenvalues[chosen.basis.degrees]
    assert np.all(np.diff(taken) <= 0.0)
    others = [n for n in range(12) if n not in chosen.levels]
    assert eigenvalues[others].max() < taken.min()


def test_levels_that_vanish_are_skipped():
    kernel = mc.kernels.ArcCosine(1, 1, 0.7, 0.9)
    with pytest.warns(UserWarning, match=r"are 0 at the levels \[3, 5\], which are skipped"):
        process = mc.Sparse(mc.GP(kernel), SphericalHarmonics(3, 6))
    assert process.q_mu.shape == (36 - 7 - 11, 1)
    same = mc.Sparse(mc.GP(kernel), SphericalHarmonics(3, (0, 1, 2, 4)))
    likelihood = mc.likelihoods.Gaussian(0.1)
    bounds = [COLLAPSED.bound(mc.Model(q, likelihood), FLAT, Y) for q in (process, same)]
    np.testing.assert_allclose(*bounds, rtol=1e-12)


@pytest.mark.parametrize(("kernel", "inputs"), [pytest.param(ZONAL, X, marks=pytest.mark.slow), (EXTENSION, FLAT)])
@pytest.mark.slow
def test_draws_of_prior_and_posterior(kernel, inputs):
    """Mean and covariance within five standard errors of 600 draws."""
    start = model_of(kernel, SphericalHarmonics(3, 4, 12))
    at = jnp.asarray(inputs[:3])
    for process in (start.posterior, COLLAPSED.posterior(start, inputs, Y)):
        expected = process.predict(at, "inputs")

        @jax.jit
        def draw(key, process=process):
            return process.sample_function(300, key=key)(at)[:, 0]

        draws = np.asarray(jax.lax.map(draw, jax.random.split(jax.random.key(2), 600)))
        K = np.asarray(expected.cov[0])
        np.testing.assert_array_less(np.abs(draws.mean(0) - expected.mean[:, 0]), 5 * np.sqrt(np.diag(K) / 600))
        errors = np.sqrt((np.outer(np.diag(K), np.diag(K)) + K**2) / 600)
        np.testing.assert_array_less(np.abs(np.cov(draws.T) - K), 5 * errors)


def test_float32():
    data = X.astype(np.float32), Y.astype(np.float32)
    single, double = (COLLAPSED.bound(model_of(ZONAL, SphericalHarmonics(3, 6)), *d) for d in (data, (X, Y)))
    assert single.dtype == jnp.float32
    assert float(single) == pytest.approx(float(double), rel=1e-3)


def test_errors():
    with pytest.raises(ValueError, match="lives on the sphere in 4 dimensions"):
        COLLAPSED.bound(model_of(mc.kernels.ArcCosine(), SphericalHarmonics(3, 3)), X, Y)
    with pytest.raises(ValueError, match="unit sphere"):
        COLLAPSED.bound(model_of(ZONAL, SphericalHarmonics(3, 3)), 2.0 * X, Y)
    with pytest.raises(ValueError, match="unit sphere"):
        mc.Sparse(mc.GP(ZONAL), SphericalHarmonics(3, 3)).predict(np.ones((2, 3)))
    with pytest.raises(ValueError, match="unit sphere"):
        mc.GP(ZONAL).predict(np.ones((2, 3)))
    with pytest.raises(ValueError, match="unit sphere"):
        mc.Conditioned(mc.GP(ZONAL), np.ones((2, 3)), np.ones((2, 1)))
    with pytest.raises(ValueError, match="not a zonal kernel"):
        mc.Sparse(mc.GP(mc.kernels.RBF()), SphericalHarmonics(3, 3))
    with pytest.raises(ValueError, match="fewer than 100"):
        SphericalHarmonics.largest(mc.kernels.HeatKernel(truncation=4), 3, 100)


COLUMNS = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
TERMS = mc.kernels.Sum(
    [
        mc.kernels.Homogeneous(mc.kernels.SphericalRBF(0.7 + 0.1 * i, 0.2 + 0.1 * i), 0.5 + 0.1 * i).on(columns)
        for i, columns in enumerate(COLUMNS)
    ]
)
PER_TERM = mc.inducing.PerTerm([SphericalHarmonics(len(columns) + 1, 4) for columns in COLUMNS])


def test_terms_of_some_columns_each():
    """A loop over terms alike gives what each gives by itself."""
    pairs = list(zip(PER_TERM.parts, TERMS.kernels, strict=True))
    np.testing.assert_allclose(
        mc.covariances.Kuf(PER_TERM, TERMS, X), np.concatenate([mc.covariances.Kuf(*p, X) for p in pairs]), rtol=1e-12
    )
    operator = mc.covariances.Kuu(PER_TERM, TERMS)
    np.testing.assert_allclose(
        operator.diagonal(), np.concatenate([mc.covariances.Kuu(*pair).diagonal() for pair in pairs]), rtol=1e-12
    )
    assert isinstance(operator, mc.linalg.Diagonal)


def test_terms_are_summed_once_whatever_their_variances_are():
    """k(x, x) of each term changes from row to row in its own way, and the parameters of a term move without the others."""
    model = model_of(TERMS, PER_TERM)
    batch = COLLAPSED.checked(model, (X, Y))
    held = [p for term in TERMS.kernels for p in (term.kernel.weight_variance, term.kernel.bias_variance)]
    summed = COLLAPSED.prepare_for(model, batch, held)
    assert type(summed) is not type(batch)
    assert type(COLLAPSED.prepare_for(model, batch, held[:-1])) is type(batch)
    moved = eqx.tree_at(lambda m: m.posterior.prior.kernel.kernels[4].kernel.kernel.variance, model, jnp.asarray(1.7))
    rough = mc.objectives.CollapsedELBO(sums="float32").prepare_for(model, batch, held)
    for given in (model, moved):
        expected = float(COLLAPSED._value(given, batch, None))
        assert float(COLLAPSED._value(given, summed, None)) == pytest.approx(expected, rel=1e-10)
        assert float(COLLAPSED._value(given, rough, None)) == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ValueError, match="float16"):
        mc.objectives.CollapsedELBO(sums="float16")


def test_outputs_whose_kernels_have_different_numbers_of_terms():
    """One pass for all of them, as the harmonics have no parameters."""
    kernels = [ZONAL + mc.kernels.SphericalRBF(0.6, 0.4), ZONAL]
    model = model_of(mc.kernels.SeparateIndependent(kernels), mc.inducing.Shared(SphericalHarmonics(3, 4)))
    outputs = np.hstack([Y, Y**2])
    batch = COLLAPSED.checked(model, (X, outputs))
    summed = COLLAPSED.prepare_for(model, batch, jax.tree.leaves(model))
    assert type(summed) is not type(batch)
    expected = float(COLLAPSED._value(model, batch, None))
    assert float(COLLAPSED._value(model, summed, None)) == pytest.approx(expected, rel=1e-10)


def test_the_largest_eigenvalues_of_all_terms():
    chosen = mc.inducing.PerTerm.harmonics(TERMS, 3, 60, multiple=2)
    levels = [len(part.levels) for part in chosen.parts]
    assert len(chosen) <= 60 and min(levels) >= 2 and all(n % 2 == 0 for n in levels)
    # Nothing that was left out is larger than what was taken beyond the first levels.
    spectra = [np.asarray(term.eigenvalues(len(c) + 1, 12)) for term, c in zip(TERMS.kernels, COLUMNS, strict=True)]
    taken = min(spectrum[n - 2] for spectrum, n in zip(spectra, levels, strict=True) if n > 2)
    largest_left = max(spectrum[n] for spectrum, n in zip(spectra, levels, strict=True))
    assert taken >= largest_left
    with pytest.raises(ValueError, match="too small"):
        mc.inducing.PerTerm.harmonics(TERMS, 3, 5)
    with pytest.raises(ValueError, match="sum of kernels"):
        mc.inducing.PerTerm.harmonics(ZONAL, 3, 50)


@pytest.mark.parametrize("whiten", [True, False])
def test_cached_predictions(whiten):
    """Of a diagonal Kuu: the same in all layouts, and in float32 as good as float32 is."""
    posterior = COLLAPSED.posterior(model_of(ZONAL, SphericalHarmonics(3, 5), whiten=whiten), X, Y)
    cached = posterior.cached()
    assert cached.diagonal
    for layout in ("diag", "outputs", "inputs", "full"):
        expected, found = posterior.predict(X[:6], layout), cached.predict(X[:6], layout)
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-9)
        np.testing.assert_allclose(found.cov, expected.cov, atol=1e-10)
    rough = cached.predict(X[:6].astype(np.float32))
    assert rough.mean.dtype == np.float32
    np.testing.assert_allclose(rough.cov, posterior.predict(X[:6]).cov, atol=3e-6)
    np.testing.assert_allclose(rough.mean, posterior.predict(X[:6]).mean, atol=3e-5)
