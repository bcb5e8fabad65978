"""Inducing variables of other domains in processes: inside those of latent functions, as observations, as questions."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from cases import mostly_slow
from mercer.covariances import Kuf, Kuu
from mercer.inducing import Derivative, FourierFeatures, Integral, Mixed, Multiscale, PerTerm, Points, Separate, Shared
from mercer.linalg import BlockDiagonal, DiagonalPlusLowRank
from mercer.objectives.fixed_features import SummedBatch

RBF, MATERN = mc.kernels.RBF(0.6, 1.2), mc.kernels.Matern52(0.8, 0.9)
X, Z = jnp.array([[-0.6], [0.1], [0.3], [0.9]]), jnp.array([[-0.8], [0.0], [0.5]])
N, P = 4, 3
W = np.array([[0.9, -0.4], [0.3, 1.1], [-0.7, 0.6]])
LAYOUTS = {"diag": "npnp->np", "outputs": "npnq->npq", "inputs": "npmp->pnm", "full": "npmq->npmq"}
VARIABLES = {
    "Multiscale": (Multiscale(Z, 0.3), RBF),
    "Derivative": (Derivative(Z, 0), MATERN),
    "Integral": (Integral(Z, Z + 0.4), MATERN),
    "FourierFeatures": (FourierFeatures(-2.0, 3.0, 2), MATERN),
    "Mixed": (Mixed([Points(Z[:1]), Derivative(Z[1:2], 0), Integral(Z[2:], Z[2:] + 0.4)]), RBF),
}
KERNELS = {
    "SharedIndependent": lambda k: mc.kernels.SharedIndependent(k, P),
    "SeparateIndependent": lambda k: mc.kernels.SeparateIndependent([k, 2.0 * k, k]),
    "LinearCoregionalisation": lambda k: mc.kernels.LinearCoregionalisation([k, 0.5 * k], W),
    "IntrinsicCoregionalisation": lambda k: mc.kernels.IntrinsicCoregionalisation(k, W),
}


def slices(covariance, layout):
    return np.einsum(LAYOUTS[layout], covariance.reshape(N, P, N, P))


@eqx.filter_jit
def predictions(process, X, layouts):
    return {layout: process.predict(X, layout) for layout in layouts}


@eqx.filter_jit
def matrices(inducing, kernel, X):
    """Kuu, a root of it, and Kuf."""
    operator = Kuu(inducing, kernel)
    return operator.dense(), operator.colour(jnp.eye(operator.size)), Kuf(inducing, kernel, X)


@pytest.mark.parametrize(
    ("kind", "name", "wrapped"),
    mostly_slow(
        list(itertools.product(VARIABLES, KERNELS, ["Shared", "Separate"])),
        ("Multiscale", "SharedIndependent", "Shared"),
        ("Integral", "LinearCoregionalisation", "Shared"),
        ("Derivative", "IntrinsicCoregionalisation", "Shared"),
        ("FourierFeatures", "LinearCoregionalisation", "Separate"),
    ),
)
def test_any_variables_of_one_function_serve_latent_functions(kind, name, wrapped):
    """Against one dense Gaussian, made from the covariances of one function: block diagonal, and mixed by W."""
    inner, base = VARIABLES[kind]
    kernel = KERNELS[name](base)
    L = kernel.num_latents
    inducing = Shared(inner) if wrapped == "Shared" else Separate([inner] * L)
    parts = kernel.latent.parts * (L // len(kernel.latent.parts))
    mixing = kernel.W if hasattr(kernel, "W") else np.eye(P)
    process = mc.Sparse(mc.GP(kernel), inducing)
    M = len(process.q_mu)
    rng = np.random.default_rng(0)
    q_mu, root = rng.normal(size=(M, L)), 0.3 * np.tril(rng.normal(size=(L, M, M))) + np.eye(M)
    process = process.with_whitened(jnp.asarray(q_mu), jnp.asarray(root))
    mean, covariance = np.zeros(N * P), np.array(kernel(X)).reshape(N * P, N * P)
    for index in range(L):
        own, R, cross = matrices(inner, parts[index], X)
        np.testing.assert_allclose(R @ R.T, own, atol=1e-7)
        # Kuf of latent function `index` with all outputs at all inputs
        C = np.linalg.solve(R, np.einsum("mn,p->mnp", cross, mixing[:, index]).reshape(M, N * P))
        mean += C.T @ q_mu[:, index]
        covariance += C.T @ (root[index] @ root[index].T - np.eye(M)) @ C
    for layout, result in predictions(process, X, tuple(LAYOUTS)).items():
        np.testing.assert_allclose(result.mean, mean.reshape(N, P), atol=1e-8)
        np.testing.assert_allclose(result.cov, slices(covariance, layout), atol=1e-8)


def test_structure_survives_to_the_solve():
    """Fourier features in a coregionalised model: nothing of size [M, M] is factorised, forward or backward."""
    features = FourierFeatures(-2.0, 3.0, 20)
    kernel = mc.kernels.LinearCoregionalisation([MATERN, mc.kernels.Matern32()], W)
    operator = Kuu(Shared(features), kernel)
    assert isinstance(operator, BlockDiagonal)
    assert all(isinstance(block, DiagonalPlusLowRank) for block in operator.blocks)

    @eqx.filter_grad
    def gradient(process):
        return jnp.sum(process._predict(X, "diag").cov) + process.kl()

    def largest(inducing):
        process = mc.Sparse(mc.GP(kernel), Shared(inducing))
        return max(_factorised(jax.make_jaxpr(lambda q: jax.tree.leaves(gradient(q)))(process).jaxpr), default=0)

    assert largest(features) <= 3  # the rank of a Matern 5/2 kernel; LAPACK is not called for matrices as small
    assert largest(Points(np.linspace(-2.0, 3.0, 41)[:, None])) == 41


@pytest.mark.parametrize("name", ["SharedIndependent", "IntrinsicCoregionalisation"])
def test_latent_functions_with_one_kernel_share_one_factorisation(name):
    """Paper 004, section 4.3.3: three outputs, two latent functions, one matrix."""
    process = mc.Sparse(mc.GP(KERNELS[name](RBF)), Shared(Points(np.linspace(-1.0, 1.0, 6)[:, None])))
    operations = _operations(jax.make_jaxpr(lambda q: q._predict(X, "diag").cov)(process).jaxpr)
    assert operations.count("cholesky") == 2  # the first attempt, and the one in the loop that grows the jitter


def _operations(jaxpr):
    """The names of all operations of a computation, those of its parts included."""
    found = []
    for equation in jaxpr.eqns:
        found.append(equation.primitive.name)
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                found += _operations(inner) if hasattr(inner, "eqns") else []
    return found


def _factorised(jaxpr):
    """The sizes of all matrices that a computation factorises or solves with."""
    found = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("cholesky", "triangular_solve", "eigh", "lu"):
            found.add(equation.invars[0].aval.shape[-1])
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner, "jaxpr"):
                    inner = inner.jaxpr
                if hasattr(inner, "eqns"):
                    found |= _factorised(inner)
    return found


def test_position_and_velocity_are_observed_together():
    """Against the posterior from a joint covariance of values and slopes, by central differences of high order."""
    times, slopes_at, Y = X, Z, np.array([[0.3], [0.1], [-0.2], [0.5], [1.0], [-0.4], [0.2]])
    observed = Mixed([Points(times), Derivative(slopes_at, 0)])
    posterior = mc.Conditioned(mc.GP(RBF), observed, Y, noise=0.01)
    at = jnp.linspace(-1.0, 1.0, 5)[:, None]
    h, weights = 0.01, np.array([-1.0, 9.0, -45.0, 45.0, -9.0, 1.0]) / 60.0
    steps = np.array([-3, -2, -1, 1, 2, 3]) * h
    points = np.concatenate([times[:, 0]] + [slopes_at[:, 0] + s for s in steps] + [at[:, 0]])[:, None]
    slopes = np.concatenate([w / h * np.eye(3) for w in weights], axis=1)
    functional = np.block(
        [
            [np.eye(4), np.zeros((4, 18)), np.zeros((4, 5))],
            [np.zeros((3, 4)), slopes, np.zeros((3, 5))],
            [np.zeros((5, 22)), np.eye(5)],
        ]
    )
    joint = functional @ np.asarray(RBF(points)) @ functional.T
    K, cross = joint[:7, :7] + 0.01 * np.eye(7), joint[:7, 7:]
    result = posterior.predict(at, "inputs")
    np.testing.assert_allclose(result.mean, cross.T @ np.linalg.solve(K, Y), atol=1e-6)
    np.testing.assert_allclose(result.cov[0], joint[7:, 7:] - cross.T @ np.linalg.solve(K, cross), atol=1e-6)
    # the slope of the posterior mean is the posterior mean of the slope
    moved = [posterior.predict(at + s).mean for s in steps]
    slope = sum(w / h * np.asarray(m) for w, m in zip(weights, moved, strict=True))
    np.testing.assert_allclose(posterior.predict(Derivative(at, 0)).mean, slope, atol=1e-6)


def test_bayesian_quadrature():
    """The posterior of an integral is the integral of the posterior, mean and covariance, here by Gauss-Legendre."""
    f = lambda x: np.sin(3.0 * x) + 0.5 * x  # noqa: E731
    points = np.linspace(0.0, 2.0, 9)[:, None]
    posterior = mc.Conditioned(mc.GP(RBF), points, f(points), noise=1e-6)
    answer = posterior.predict(Integral(0.0, 2.0))
    nodes, weights = np.polynomial.legendre.leggauss(40)
    dense = posterior.predict(nodes[:, None] + 1.0, "inputs")
    np.testing.assert_allclose(answer.mean[0, 0], weights @ np.asarray(dense.mean[:, 0]), atol=1e-7)
    np.testing.assert_allclose(answer.cov[0, 0], weights @ np.asarray(dense.cov[0]) @ weights, atol=1e-7)
    truth = (1.0 - np.cos(6.0)) / 3.0 + 1.0
    assert abs(answer.mean[0, 0] - truth) < 3.0 * np.sqrt(answer.cov[0, 0]) + 1e-3
    # under a Gaussian weight
    weighted = posterior.predict(Integral.gaussian(1.0, 0.2))
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    expected = (weights / weights.sum()) @ np.asarray(posterior.predict(1.0 + 0.2 * nodes[:, None]).mean[:, 0])
    np.testing.assert_allclose(weighted.mean[0, 0], expected, atol=1e-7)


def test_values_from_totals():
    """Observed integrals alone determine the function: as boxes shrink, total / length is the value."""
    f, width = np.sin, 1e-4
    at = np.linspace(-1.0, 1.0, 8)[:, None]
    totals = np.cos(at - width / 2) - np.cos(at + width / 2)
    posterior = mc.Conditioned(mc.GP(RBF), Integral(at - width / 2, at + width / 2), totals, noise=1e-14)
    values = mc.Conditioned(mc.GP(RBF), at, f(at), noise=1e-14 / width**2)
    asked = jnp.array([[-0.3], [0.55]])
    np.testing.assert_allclose(posterior.predict(asked).mean, values.predict(asked).mean, atol=1e-5)


OBSERVED = Mixed([Points(X), Derivative(Z, 0), Integral([[0.0]], [[1.0]])])
Y = jnp.asarray(np.random.default_rng(3).normal(size=(8, 2)))


QUESTIONS = [OBSERVED, X + 0.2, Derivative(X, 0), Integral(X, X + 1.0)]


LINEAR = mc.means.Linear(np.ones((1, 2)), 0.3)


@pytest.mark.slow  # by default tests/inducing/test_interdomain.py goes through a mixture
@pytest.mark.parametrize(
    ("mean", "observed", "questions"),
    [
        (LINEAR, OBSERVED, QUESTIONS[:1]),
        (None, OBSERVED, QUESTIONS),
    ],
    ids=["linear mean", "no mean, all questions"],
)
def test_sparse_through_what_was_observed_is_exact(mean, observed, questions):
    """With the observed functionals as inducing variables, the collapsed bound is the evidence, and so is the posterior."""
    with jax.disable_jit():  # one operation at a time, of which there are fewer than of their combinations
        check_exact(mean, observed, Y[: len(observed)], questions)


def check_exact(mean, observed, Y, questions):
    prior = mc.GP(RBF, mean)
    exact = mc.Conditioned(prior, observed, Y, noise=0.1)
    model = mc.Model(mc.Sparse(prior, observed, num_outputs=2), mc.likelihoods.Gaussian(0.1))
    bound = mc.objectives.CollapsedELBO()
    np.testing.assert_allclose(bound.bound(model, observed, Y), exact.log_marginal_likelihood(), atol=1e-6)
    best = bound.posterior(model, observed, Y)
    for at in questions:
        both = (predictions(process, at, ("diag", "inputs")).values() for process in (exact, best))
        for expected, found in zip(*both, strict=True):
            np.testing.assert_allclose(found.mean, expected.mean, atol=1e-5)
            np.testing.assert_allclose(found.cov, expected.cov, atol=1e-5)
    trained = mc.Model(best, model.likelihood)
    np.testing.assert_allclose(mc.elbo(trained, observed, Y), exact.log_marginal_likelihood(), atol=1e-6)
    assert trained.predict(observed).mean.shape == trained.posterior.cached().predict(observed).mean.shape == Y.shape
    assert trained.log_density(observed, Y).shape == Y.shape[:1]


SPARSE = mc.Model(mc.Sparse(mc.GP(RBF), Points(Z), num_outputs=2), mc.likelihoods.Gaussian(0.1))
TRAINED_ON = {
    "ELBO": (SPARSE, mc.objectives.ELBO()),
    "CollapsedELBO": (SPARSE, mc.objectives.CollapsedELBO()),
    "MarginalLikelihood": (mc.Conditioned(mc.GP(RBF), OBSERVED, Y), mc.objectives.MarginalLikelihood()),
}


@pytest.mark.parametrize("name", mostly_slow(TRAINED_ON, "ELBO"))
def test_functionals_are_trained_on(name):
    fitted = mc.fit(*TRAINED_ON[name], (OBSERVED, Y), steps=10, every=10)
    assert fitted.history[-1] < fitted.history[0]


def test_functionals_are_not_taken_in_minibatches():
    with pytest.raises(ValueError, match="Mixed are observed together, not in minibatches"):
        mc.fit(SPARSE, mc.objectives.ELBO(), (OBSERVED, Y), steps=2, batch_size=2)


@pytest.mark.parametrize("name", mostly_slow(KERNELS, "IntrinsicCoregionalisation"))
def test_derivatives_of_several_outputs(name):
    """Predictions of slopes are slopes of predictions, in prior, exact and sparse processes."""
    kernel = KERNELS[name](RBF)
    prior, values = mc.GP(kernel), np.random.default_rng(1).normal(size=(N, P))
    exact = mc.Conditioned(prior, X, values, 0.1)
    model = mc.Model(mc.Sparse(prior, Shared(Points(Z))), mc.likelihoods.Gaussian(0.1))
    sparse = mc.objectives.CollapsedELBO().posterior(model, X, values)
    at, h = jnp.array([[0.2], [0.7]]), 1e-4
    for process in (exact, sparse):
        slope = process.predict(Derivative(at, 0), "full")
        around = process.predict(jnp.concatenate([at + h, at - h]), "full")
        difference = np.concatenate([np.eye(2), -np.eye(2)], axis=1) / (2.0 * h)
        np.testing.assert_allclose(slope.mean, difference @ np.asarray(around.mean), atol=1e-5)
        expected = np.einsum("an,npmq,bm->apbq", difference, around.cov, difference)
        np.testing.assert_allclose(slope.cov, expected, atol=1e-4)
    np.testing.assert_allclose(prior.predict(Derivative(at, 0)).cov, kernel.diag(at) / 0.6**2, rtol=1e-9)


def test_sample_paths_see_derivatives_and_integrals():
    """Monte Carlo over 2,000 draws: a tolerance of five standard errors."""
    posterior = mc.Conditioned(mc.GP(RBF), OBSERVED, Y[:, :1], 0.1).cached()
    keys = jax.random.split(jax.random.key(0), 2000)
    draws = np.asarray(jax.jit(jax.vmap(lambda key: posterior.sample_function(200, key=key)(X)[:, 0]))(keys))
    expected = posterior.predict(X, "inputs")
    scale = np.sqrt(np.diag(expected.cov[0]).max())
    np.testing.assert_allclose(draws.mean(0), expected.mean[:, 0], atol=5 * scale / np.sqrt(2000))
    np.testing.assert_allclose(np.cov(draws.T), expected.cov[0], atol=10 * scale**2 / np.sqrt(2000))


# --- sums over the data for features without parameters ---

FEATURES = FourierFeatures(-3.0, 4.0, 6)
DATA = np.linspace(-0.9, 1.2, 20)[:, None]
TARGETS = np.concatenate([np.sin(3.0 * DATA), np.cos(2.0 * DATA), DATA**2], axis=1)
SUMMED = {
    "one output": (mc.GP(MATERN), FEATURES),
    **{name: (mc.GP(kernel(MATERN)), Shared(FEATURES)) for name, kernel in KERNELS.items()},
    "separate": (
        mc.GP(KERNELS["SeparateIndependent"](MATERN)),
        Separate([FourierFeatures(-3.0, 4.0 + i, 6) for i in range(3)]),
    ),
    "sum": (mc.GP(MATERN + 0.3 * mc.kernels.Matern12()), FEATURES),
}


@pytest.mark.parametrize("name", mostly_slow(SUMMED, "LinearCoregionalisation"))
def test_sums_over_the_data_give_the_same_bound(name):
    prior, inducing = SUMMED[name]
    q = mc.Sparse(prior, inducing, num_outputs=3)
    model = mc.Model(q, mc.likelihoods.Gaussian([0.1, 0.2, 0.3]))
    objective = mc.objectives.CollapsedELBO()
    batch = objective.prepare(model, objective.checked(model, (DATA, TARGETS)))
    assert isinstance(batch, SummedBatch) and batch.num_data == 20

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def value(model, batch):
        return objective._value(model, batch, None)

    @eqx.filter_jit
    def elbo_of_the_best(model):
        return mc.elbo(mc.Model(objective.posterior(model, DATA, TARGETS), model.likelihood), DATA, TARGETS)

    found, gradient = value(model, batch)
    expected, expected_gradient = value(model, mc.objectives.Batch(jnp.asarray(DATA), jnp.asarray(TARGETS)))
    np.testing.assert_allclose(elbo_of_the_best(model), -20.0 * expected, rtol=1e-7)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    gradients = (jax.tree.leaves(tree.posterior.prior) for tree in (gradient, expected_gradient))
    for got, want in zip(*gradients, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)


def test_data_are_summed_only_where_that_is_right():
    objective, likelihood = mc.objectives.CollapsedELBO(), mc.likelihoods.Gaussian(0.1)
    missing = np.where(TARGETS > 0.9, np.nan, TARGETS)
    with_mean = mc.GP(MATERN, mc.means.Constant(0.1))
    cases = [
        (mc.Sparse(mc.GP(MATERN), FEATURES, 3), likelihood, (DATA, missing)),
        (mc.Sparse(mc.GP(MATERN), FEATURES, 3), likelihood, (DATA, TARGETS, np.ones(20))),
        (mc.Sparse(with_mean, FEATURES, 3), likelihood, (DATA, TARGETS)),
        (mc.Sparse(mc.GP(MATERN), Points(Z), 3), likelihood, (DATA, TARGETS)),
        (mc.Sparse(mc.GP(MATERN), FEATURES, 3), mc.likelihoods.Gaussian(lambda X: 0.1 + X**2), (DATA, TARGETS)),
    ]
    for posterior, noise, data in cases:
        assert type(objective.checked(mc.Model(posterior, noise), data)) is mc.objectives.Batch


def test_training_on_sums_and_resuming(tmp_path):
    model = mc.Model(mc.Sparse(mc.GP(MATERN), FEATURES, num_outputs=3), mc.likelihoods.Gaussian(0.1))
    objective, options = mc.objectives.CollapsedELBO(), {"every": 5, "checkpoint": tmp_path / "run"}
    whole = mc.fit(model, objective, (DATA, TARGETS), steps=10, every=5)
    mc.fit(model, objective, (DATA, TARGETS), steps=5, **options)
    resumed = mc.fit(model, objective, (DATA, TARGETS), steps=10, **options)
    np.testing.assert_array_equal(whole.history, resumed.history)
    assert whole.history[-1] < whole.history[0]
    np.testing.assert_allclose(whole.model.predict(DATA).mean, TARGETS, atol=0.3)


# --- variables of the terms of a sum ---


def test_variables_of_terms_are_independent():
    kernel, inducing = RBF + MATERN, PerTerm([Points(Z), FourierFeatures(-2.0, 3.0, 2)])
    operator = Kuu(inducing, kernel)
    assert isinstance(operator, BlockDiagonal) and operator.size == 3 + 5
    expected = np.concatenate([Kuf(Points(Z), RBF, X), Kuf(FourierFeatures(-2.0, 3.0, 2), MATERN, X)])
    np.testing.assert_allclose(Kuf(inducing, kernel, X), expected, atol=1e-12)
    model = mc.Model(mc.Sparse(mc.GP(kernel), inducing), mc.likelihoods.Gaussian(0.1))
    target = np.asarray(X[:, :1])
    bound = mc.objectives.CollapsedELBO()
    best = mc.Model(bound.posterior(model, X, target), model.likelihood)
    np.testing.assert_allclose(mc.elbo(best, X, target), bound.bound(model, X, target), rtol=1e-7)
    assert bound.bound(model, X, target) < mc.Conditioned(mc.GP(kernel), X, target, 0.1).log_marginal_likelihood()
    with pytest.raises(ValueError, match="each of the 2 terms of the kernel, got 1"):
        Kuu(PerTerm([Points(Z)]), kernel)
    with pytest.raises(ValueError, match="at least one"):
        PerTerm([])


def test_questions_that_cannot_be_answered():
    several = mc.kernels.LinearCoregionalisation([RBF, MATERN], W)
    with pytest.raises(ValueError, match="Shared of latent functions"):
        mc.Conditioned(mc.GP(several), Shared(Points(Z)), np.ones((3, 3)))
    with pytest.raises(ValueError, match="predictions are of values at inputs, not of Derivative"):
        mc.Sparse(mc.GP(several), Points(Z)).predict(Derivative(X, 0))
    with pytest.raises(ValueError, match="is not known"):
        mc.GP(MATERN).predict(Mixed([FEATURES, FourierFeatures(0.0, 1.0, 1)]))
