"""Random models: any kernel, likelihood and objective of the library, trained for five steps, cut off and resumed.

Each of them either trains to finite numbers, the same whether it was cut off or not, or raises a `TrainingError`; a checkpoint of
one of them is refused by all others.
"""

import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("kernels", "likelihoods")]
from kernel_instances import KERNELS  # noqa: E402
from likelihood_cases import CASES as LIKELIHOODS  # noqa: E402

import mercer as mc  # noqa: E402
from mercer.training import CheckpointError, NaturalGradient, TrainingError  # noqa: E402

NUM, N, D, STEPS = 200, 12, 3, 5
DIVERGENCES = [
    *(
        getattr(mc.divergences, name)()
        for name in ("KL", "ReverseKL", "Jeffreys", "Renyi", "Bhattacharyya", "Hellinger")
    ),
    *(getattr(mc.divergences, name)() for name in ("Wasserstein", "SquaredDifference", "GaussianWasserstein")),
    *(mc.divergences.Projected(getattr(mc.divergences, name)()) for name in ("KL", "Renyi", "Wasserstein")),
    mc.divergences.GaussianWasserstein(trace=False),
]


def chosen(random, options):
    return options[int(random.integers(len(options)))]


def random_objective(random, likelihood, is_prior):
    """An objective for a process that is a prior, or for a sparse posterior."""
    is_gaussian = type(likelihood) is mc.likelihoods.Gaussian
    risks = [mc.objectives.risks.ExpectedNegativeLogLikelihood(), mc.objectives.risks.NegativeLogPredictive()]
    risks += [mc.objectives.risks.BetaDivergence(), mc.objectives.risks.GammaDivergence()] if is_gaussian else []
    gvi = mc.objectives.GVI(mc.GP(mc.kernels.RBF(0.8)), chosen(random, risks), chosen(random, DIVERGENCES), 0.5)
    if is_prior:
        return chosen(random, [mc.objectives.MarginalLikelihood(), mc.objectives.LeaveOneOut()]) if is_gaussian else gvi
    options = [mc.objectives.ELBO(), mc.objectives.PredictiveLogLikelihood(), gvi]
    options += [mc.objectives.CollapsedELBO()] if is_gaussian else []
    objective = chosen(random, options)
    priors = [(lambda m: m.posterior.inducing.Z, mc.priors.Normal(0.0, 2.0))]
    return mc.objectives.MAP(objective, priors) if random.random() < 0.2 else objective


def random_run(seed):
    """The arguments of `fit` for one random model."""
    random = np.random.default_rng(seed)
    case = LIKELIHOODS[chosen(random, sorted(LIKELIHOODS))]
    X, Y, likelihood = random.normal(size=(N, D)), np.array(case.draw(random, N)), case.likelihood
    if random.random() < 0.3 and Y.shape[1] > 1:
        Y[0, 0] = np.nan
    L, kernel = likelihood.num_latents(Y.shape[1]), KERNELS[chosen(random, sorted(KERNELS))]
    mean = chosen(
        random, [mc.means.Zero(), mc.means.Constant(np.zeros(L)), mc.means.Linear(np.zeros((D, L)), np.zeros(L))]
    )
    is_prior = random.random() < 0.2 and not isinstance(mean, mc.means.Zero)
    prior = mc.GP(kernel, mean)
    covariance, whiten = chosen(random, ["full", "full", "diag"]), bool(random.random() < 0.7)
    Z = mc.inducing.Points(random.normal(size=(4, D)))
    process = prior if is_prior else mc.Sparse(prior, Z, L, whiten, covariance)
    objective = random_objective(random, likelihood, is_prior)
    optimisers = [optax.adam(0.01), optax.sgd(1e-3), optax.adamw(optax.cosine_decay_schedule(0.01, 5))]
    natural = not is_prior and covariance == "full" and type(objective) is mc.objectives.ELBO
    optimisers += [NaturalGradient(0.05, optax.adam(0.01)), NaturalGradient(0.05)] if natural else []
    optimiser, restarts = chosen(random, optimisers), chosen(random, [1, 1, 1, 2])
    restarts = 1 if isinstance(optimiser, NaturalGradient) else restarts
    options = dict(steps=STEPS, every=2, key=jax.random.key(seed), restarts=restarts, optimiser=optimiser)
    if objective.minibatched and random.random() < 0.6:
        options["batch_size"] = 5
    dtype = chosen(random, [np.float64, np.float64, np.float32])
    return (mc.Model(process, likelihood), objective, (X.astype(dtype), Y.astype(dtype))), options


class CutOff(Exception):
    pass


def cut_off(progressed):
    if progressed.step >= 2:
        raise CutOff


def same(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y), equal_nan=isinstance(x, jax.Array)) for x, y in pairs)


def check(seed, folder):
    arguments, options = random_run(seed)
    path = Path(folder) / f"{seed}.ckpt"
    try:
        whole = mc.fit(*arguments, **options)
    except TrainingError as error:
        assert "not finite" in str(error) or "NaN" in str(error)
        return
    assert np.isfinite(whole.history).all()
    Y = arguments[2][1]  # a model that holds its data has NaN where an output is missing
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(whole.model) if isinstance(leaf, jax.Array)]
    assert all(np.isfinite(leaf).all() or np.array_equal(leaf, Y, equal_nan=True) for leaf in leaves)
    with pytest.raises(CutOff):
        mc.fit(*arguments, **options, checkpoint=path, callbacks=[cut_off])
    resumed = mc.fit(*arguments, **options, checkpoint=path)
    assert same(whole.model, resumed.model)
    assert np.array_equal(whole.history, resumed.history)
    others, other_options = random_run(seed + 1)
    with pytest.raises(CheckpointError, match="differs in"):
        mc.fit(*others, **other_options, checkpoint=path)


@pytest.mark.parametrize(
    "seed", [seed if seed < 1 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(NUM)]
)
@pytest.mark.slow
def test_a_random_model_trains_and_resumes(seed, tmp_path):
    check(seed, tmp_path)


KILLED = """
import sys, time
import jax; jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # as in conftest: the same numbers need the same code
sys.path[:0] = sys.argv[3:]
import mercer as mc, test_random_models
arguments, options = test_random_models.random_run(int(sys.argv[2]))
mc.fit(*arguments, **options, checkpoint=sys.argv[1], callbacks=[lambda progressed: time.sleep(2.0)])
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1008))
def test_a_random_model_that_was_killed_resumes(seed, tmp_path):
    arguments, options = random_run(seed)
    path, folder = tmp_path / "run.ckpt", Path(__file__).parent
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(path), str(seed), str(folder), str(folder.parent)])
    try:
        for _ in range(1200):
            if path.exists() or child.poll() is not None:
                break
            time.sleep(0.1)
    finally:
        child.kill()
        child.wait()
    try:
        whole = mc.fit(*arguments, **options)
    except TrainingError:
        return
    resumed = mc.fit(*arguments, **options, checkpoint=path)
    assert same(whole.model, resumed.model)
    assert np.array_equal(whole.history, resumed.history)
