"""The product of processes, objectives and likelihoods: what claims to work together does, the rest is refused with a sentence.

Whatever works is trained for three steps, goes on from a checkpoint to the same numbers, is saved and loaded, and predicts the
same afterwards, in four layouts, in float32 and in float64. The default run takes a part of the product, in which each of them
has its turn; the slow tests take all of it.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from cases import mostly_slow
from mercer import divergences, io, likelihoods, objectives
from mercer.objectives import measurement, risks
from outside import Averaged, Either, Shaken

for outside in (Averaged, Either, Shaken):
    io.register(outside)

N = 8
RANDOM = np.random.default_rng(0)
X = np.sort(RANDOM.uniform(-1.0, 1.0, (N, 1)), axis=0)
WAVES = np.sin(3.0 * X + np.arange(3.0)) + 0.1 * RANDOM.normal(size=(N, 3))
Z = np.linspace(-1.0, 1.0, 3)[:, None]

# name -> the likelihood, Y, and the number of latent functions
LIKELIHOODS = {
    "Gaussian": (likelihoods.Gaussian(0.1), WAVES[:, :1], 1),
    "StudentT": (likelihoods.StudentT(4.0, 0.3), WAVES[:, :1], 1),
    "Bernoulli": (likelihoods.Bernoulli(), (WAVES[:, :1] > 0.0).astype(float), 1),
    "Poisson": (likelihoods.Poisson(), np.floor(1.5 + WAVES[:, :1]), 1),
    "Heteroskedastic": (likelihoods.HeteroskedasticGaussian(), WAVES[:, :1], 2),
    "Softmax": (likelihoods.Softmax(3, num_samples=8), np.argmax(WAVES, axis=1)[:, None].astype(float), 3),
    "Correlated": (likelihoods.CorrelatedGaussian([[0.2, 0.1], [0.1, 0.3]]), WAVES[:, :2], 2),
}


def prior(L):
    return mc.GP(mc.kernels.RBF(0.5), mc.means.Constant(np.linspace(0.0, 0.2, L)))


def sparse(L, **options):
    return mc.Sparse(prior(L), mc.inducing.Points(Z), L, **options)


def coregionalised(L):
    W = np.eye(L, 2) + 0.3
    kernel = mc.kernels.LinearCoregionalisation([mc.kernels.Matern52(0.5), mc.kernels.RBF(0.7)], W)
    return mc.Sparse(mc.GP(kernel), mc.inducing.Shared(mc.inducing.Points(Z)))


def fourier(L):
    return mc.Sparse(mc.GP(mc.kernels.Matern32(0.6)), mc.inducing.FourierFeatures(-2.0, 2.0, 2), L)


EXTENSION = mc.kernels.Homogeneous(mc.kernels.SphericalMatern52(0.7), 0.8, 1.1)


def harmonics(L):
    return mc.Sparse(mc.GP(EXTENSION), mc.inducing.SphericalHarmonics(2, 3), L)


def activated(L):
    W = np.stack([np.cos(np.arange(4.0)), np.sin(np.arange(4.0))], axis=1)
    return mc.Sparse(mc.GP(mc.kernels.ArcCosine()), mc.inducing.Activated(W, levels=6), L)


def free_form(L):
    mean = mc.means.Network(eqx.nn.MLP(1, L, 4, 1, activation=jnp.tanh, key=jax.random.key(0)))
    return mc.GP(mc.kernels.CholeskySVGP(mc.kernels.RBF(0.5), Z), mean)


def fourier_network(L):
    return mc.Network(mc.features.RandomFourier.of(mc.kernels.RBF(0.5), 4, 1, key=jax.random.key(0)), num_outputs=L)


def module(L):
    return eqx.nn.MLP(1, L, 3, 1, activation=jnp.tanh, key=jax.random.key(0))


def stochastic(L):
    layers = [module(3), eqx.nn.Dropout(0.2), eqx.nn.Linear(3, L, key=jax.random.key(1))]
    return mc.processes.Stochastic(eqx.nn.Sequential(layers), L, num_samples=4)


def deep(L):
    passing = mc.GP(mc.kernels.RBF(0.5), mc.means.Linear(np.eye(1)))
    return mc.Deep([mc.Sparse(passing, mc.inducing.Points(Z), 1), sparse(L)], num_samples=4)


def uncertain(L):
    """A column that is observed, and a latent one."""
    points = mc.inducing.Points(np.concatenate([Z, Z[::-1] ** 2], axis=1))
    return mc.Uncertain(mc.Sparse(prior(L), points, L), mc.inputs.Latent(WAVES[:, :1], 0.1), num_samples=4)


PROCESSES = {
    "GP": prior,
    "free form": free_form,
    "Conditioned": lambda L: mc.Conditioned(prior(L), X, WAVES[:, :L], 0.1),
    "Sparse": sparse,
    "Sparse, diagonal": lambda L: sparse(L, covariance="diag", whiten=False),
    "Sparse, coregionalised": coregionalised,
    "Sparse, Fourier": fourier,
    "Sparse, harmonics": harmonics,
    "Sparse, activated": activated,
    "Network": fourier_network,
    "Network, tangent": lambda L: mc.Network(mc.features.Tangent(module(L)), covariance="kronecker"),
    "BayesianNetwork": lambda L: mc.processes.BayesianNetwork(module(L), 0.1, num_samples=20),
    "Stochastic": stochastic,
    "Tempered": lambda L: mc.processes.Tempered(sparse(L), np.linspace(0.5, 1.0, L)),
    "mixture": lambda L: Either(sparse(L), mc.Sparse(prior(L), mc.inducing.Points(Z + 0.1), L)),
    "random": lambda L: Shaken(sparse(L)),
    "cached": lambda L: sparse(L).cached(),
    "Deep": deep,
    "Uncertain": uncertain,
}
EXACT, SPARSE = ("GP", "free form", "Conditioned"), tuple(name for name in PROCESSES if name.startswith("Sparse"))
NETWORKS = ("Network", "Network, tangent", "BayesianNetwork")
ROW_BY_ROW = ("Deep", "Stochastic")  # which draw jointly only where covariances between rows are asked for
POSTERIORS = ("Conditioned", *SPARSE, *NETWORKS, "Stochastic", "mixture", "random", "Deep", "Uncertain")


def gvi(divergence, of_prior):
    return objectives.GVI(of_prior, risks.ExpectedNegativeLogLikelihood(), divergence, 0.5)


OTHER = mc.GP(mc.kernels.RBF(0.6))
# name -> the objective, the processes it works with, and the likelihoods
OBJECTIVES = {
    "MarginalLikelihood": (objectives.MarginalLikelihood(), EXACT, ("Gaussian",)),
    "LeaveOneOut": (objectives.LeaveOneOut(), EXACT, ("Gaussian",)),
    "CollapsedELBO": (objectives.CollapsedELBO(), (*SPARSE, "Uncertain"), ("Gaussian",)),
    "ELBO": (objectives.ELBO(), POSTERIORS, tuple(LIKELIHOODS)),
    "PredictiveLogLikelihood": (objectives.PredictiveLogLikelihood(), POSTERIORS, tuple(LIKELIHOODS)),
    "ImportanceWeighted": (objectives.ImportanceWeighted(3), POSTERIORS, tuple(LIKELIHOODS)),
    "MAP": (objectives.MAP(objectives.ELBO(), []), POSTERIORS, tuple(LIKELIHOODS)),
    "with a state": (Averaged(objectives.ELBO()), POSTERIORS, tuple(LIKELIHOODS)),
    "GVI, KL": (
        gvi(divergences.KL(), None),
        tuple(name for name in POSTERIORS if name != "BayesianNetwork"),  # which has no prior over functions
        tuple(LIKELIHOODS),
    ),
    "GVI, Renyi": (
        gvi(divergences.Renyi(0.5), OTHER),
        tuple(name for name in PROCESSES if name != "Stochastic"),  # a few functions: it is infinitely far from a GP
        tuple(LIKELIHOODS),
    ),
    "GVI, Projected": (gvi(divergences.Projected(divergences.KL()), OTHER), tuple(PROCESSES), tuple(LIKELIHOODS)),
    "GVI, Wasserstein": (gvi(divergences.GaussianWasserstein(), OTHER), tuple(PROCESSES), tuple(LIKELIHOODS)),
    "MirrorDescent": (
        objectives.MirrorDescent(OTHER, measurement.Box(-1.0, 1.0, 4), 0.5, hyperparameters="online", jitter=1e-3),
        tuple(PROCESSES),
        tuple(LIKELIHOODS),
    ),
    "FBNN": (objectives.FBNN(OTHER, measurement.Data(4), 10), tuple(PROCESSES), tuple(LIKELIHOODS)),
    "GVI, robust": (
        objectives.GVI(OTHER, risks.BetaDivergence(), divergences.Projected(divergences.Wasserstein())),
        tuple(PROCESSES),
        ("Gaussian",),
    ),
}


def works(process, objective, likelihood):
    _, processes, kinds = OBJECTIVES[objective]
    # Of a process that is cached, nothing is trained: the likelihood must have a parameter.
    trained = process != "cached" or any(jax.tree.leaves(mc.parameters.trainable(LIKELIHOODS[likelihood][0])))
    return process in processes and likelihood in kinds and trained


def model_of(process, likelihood):
    noise, Y, L = LIKELIHOODS[likelihood]
    return mc.Model(PROCESSES[process](L), noise), Y


WORKING = [
    (*triple, dtype)
    for triple in itertools.product(PROCESSES, OBJECTIVES, LIKELIHOODS)
    for dtype in ("float64", "float32")
    if works(*triple)
]


# The part of the default run: every process, every objective, every likelihood and both dtypes.
SOME = [
    ("GP", "LeaveOneOut", "Gaussian", "float64"),
    ("GP", "GVI, robust", "Gaussian", "float64"),
    ("free form", "MarginalLikelihood", "Gaussian", "float32"),
    ("free form", "GVI, Projected", "Poisson", "float32"),
    ("Conditioned", "ELBO", "Heteroskedastic", "float64"),
    ("Sparse", "CollapsedELBO", "Gaussian", "float32"),
    ("Sparse", "MAP", "StudentT", "float64"),
    ("Sparse, diagonal", "PredictiveLogLikelihood", "Bernoulli", "float32"),
    ("Sparse, coregionalised", "with a state", "Correlated", "float64"),
    ("Sparse, Fourier", "GVI, Renyi", "Softmax", "float32"),
    ("Sparse, harmonics", "CollapsedELBO", "Gaussian", "float32"),
    ("Sparse, harmonics", "GVI, Wasserstein", "Bernoulli", "float64"),
    ("Sparse, activated", "PredictiveLogLikelihood", "StudentT", "float32"),
    ("Network", "MirrorDescent", "Poisson", "float32"),
    ("Network", "GVI, KL", "Softmax", "float64"),
    ("Network, tangent", "ELBO", "Gaussian", "float64"),
    ("Network, tangent", "MirrorDescent", "Correlated", "float64"),
    ("BayesianNetwork", "FBNN", "Gaussian", "float32"),
    ("Stochastic", "ELBO", "Softmax", "float32"),
    ("Tempered", "GVI, Wasserstein", "Gaussian", "float32"),
    ("mixture", "GVI, KL", "Poisson", "float32"),
    ("random", "ELBO", "Gaussian", "float64"),
    ("cached", "GVI, Projected", "StudentT", "float64"),
    ("Deep", "ImportanceWeighted", "Bernoulli", "float32"),
    ("Uncertain", "GVI, KL", "Poisson", "float64"),
]
CASES = [pytest.param(*case, marks=[] if case in SOME else pytest.mark.slow, id=", ".join(case)) for case in WORKING]


def test_everything_has_its_turn_by_default():
    assert set(SOME) <= set(WORKING)
    for values, taken in zip((PROCESSES, OBJECTIVES, LIKELIHOODS), zip(*SOME, strict=True), strict=False):
        assert set(values) == set(taken)


def same(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in pairs)


def finite(tree):
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(("process", "objective", "likelihood", "dtype"), CASES)
def test_what_claims_to_work_together_does(process, objective, likelihood, dtype, tmp_path):
    model, Y = model_of(process, likelihood)
    if dtype == "float32" and process == "Conditioned":
        model = mc.parameters.cast(model, dtype)
    data = X.astype(dtype), Y.astype(dtype)
    options = dict(every=2, restarts=1, key=jax.random.key(3))
    number = OBJECTIVES[objective][0]
    if number.minibatched:
        options["batch_size"] = 5

    # Trained, and from a checkpoint to the same numbers.
    whole = mc.fit(model, number, data, steps=3, **options)
    mc.fit(model, number, data, steps=2, checkpoint=tmp_path / "run", **options)
    resumed = mc.fit(model, number, data, steps=3, checkpoint=tmp_path / "run", **options)
    assert same(whole.model, resumed.model)
    assert np.array_equal(whole.history, resumed.history)
    assert np.isfinite(whole.history).all() and whole.history.dtype == dtype
    assert finite(eqx.filter(whole.model, mc.parameters.trainable(whole.model)))

    # Saved and loaded; what it predicts is the same, finite, and of the dtype of the data.
    mc.save(tmp_path / "model", whole.model)
    loaded = mc.load(tmp_path / "model")
    new = np.linspace(-0.9, 0.9, 4)[:, None].astype(dtype)
    predicted = whole.model.predict(new)
    assert same(predicted, loaded.predict(new))
    assert finite(predicted) and predicted.mean.dtype == dtype
    assert (predicted.variance > 0.0).all()
    assert finite(whole.model.log_density(*(array[:4] for array in data)))


DTYPES = ("float64", "float32")


@pytest.mark.parametrize(
    ("process", "dtype"),
    # By default those that no test in tests/processes has in all layouts.
    mostly_slow(
        itertools.product((name for name in PROCESSES if name not in ROW_BY_ROW), DTYPES),
        *((name, "float64") for name in ("free form", "Sparse, Fourier")),
        *((name, "float32") for name in ("mixture", "random")),
    ),
)
def test_layouts_are_slices_of_one(process, dtype):
    posterior = mc.parameters.cast(PROCESSES[process](2), dtype)
    new = np.linspace(-0.9, 0.9, 4)[:, None].astype(dtype)
    predictions = {layout: posterior.predict(new, layout) for layout in ("diag", "outputs", "inputs", "full")}
    full = predictions["full"].cov
    assert full.shape == (4, 2, 4, 2) and full.dtype == dtype
    sums = {"diag": "npnp->np", "outputs": "npnq->npq", "inputs": "npmp->pnm"}
    tolerance = 1e-9 if dtype == "float64" else 2e-3
    for layout, sum_ in sums.items():
        np.testing.assert_allclose(predictions[layout].cov, np.einsum(sum_, full), atol=tolerance)
        np.testing.assert_allclose(predictions[layout].mean, predictions["full"].mean, atol=tolerance)
    assert posterior.sample(new, 3, key=jax.random.key(0)).shape == (3, 4, 2)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_rest_is_refused_with_a_sentence(objective):
    for process, likelihood in itertools.product(PROCESSES, LIKELIHOODS):
        if not works(process, objective, likelihood):
            model, Y = model_of(process, likelihood)
            with pytest.raises(ValueError, match=r"^\w.{30,}"):
                mc.fit(model, OBJECTIVES[objective][0], (X, Y), steps=1)


@pytest.mark.parametrize(
    ("process", "likelihood"),
    mostly_slow(
        itertools.product(["Sparse", "mixture", "random", "GP"], ["Gaussian", "Poisson"]),
        ("Sparse", "Gaussian"),
        ("mixture", "Gaussian"),
        ("random", "Gaussian"),
        ("GP", "Poisson"),
    ),
)
def test_every_process_can_be_calibrated(process, likelihood):
    """Tempered and conformal: on the mean of squared, scaled residuals, or on the log density, which does not fall."""
    model, Y = model_of(process, likelihood)
    tempered = mc.calibration.temper(model, X, Y)
    if likelihood == "Gaussian":
        mean, variance = tempered.predict(X)
        np.testing.assert_allclose(np.mean((Y - mean) ** 2 / variance), 1.0, rtol=1e-9)
        held = mc.calibration.conformal(tempered, X, Y, level=0.5)
        lower, upper = held.intervals(X)
        assert np.mean((lower <= Y) & (upper >= Y)) >= 0.5
    else:
        assert tempered.log_density(X, Y).mean() >= model.log_density(X, Y).mean() - 1e-9
