"""Models and data that an objective cannot score are refused before anything is computed."""

import numpy as np
import pytest

import mercer as mc
from mercer.objectives import ELBO, MAP, CollapsedELBO, LeaveOneOut, MarginalLikelihood, PredictiveLogLikelihood

_rng = np.random.default_rng(0)
X, Y, Z = _rng.normal(size=(6, 2)), _rng.normal(size=(6, 2)), _rng.normal(size=(3, 2))
PRIOR, GAUSSIAN = mc.GP(mc.kernels.RBF()), mc.likelihoods.Gaussian(0.1)
SPARSE = mc.Sparse(PRIOR, mc.inducing.Points(Z), num_outputs=2)
EXACT, VARIATIONAL = mc.Model(PRIOR, GAUSSIAN), mc.Model(SPARSE, GAUSSIAN)
COUNTS = mc.Model(SPARSE, mc.likelihoods.Poisson())
CONDITIONED = mc.Conditioned(PRIOR, X, Y)

WRONG_MODELS = {
    "ELBO of a prior": (ELBO(), EXACT, r"ELBO expects a Model whose posterior has a kl\(\).* got Model with GP"),
    "ELBO of a process": (ELBO(), SPARSE, "ELBO expects a Model.* got Sparse"),
    "PLL of a prior": (PredictiveLogLikelihood(), EXACT, "PredictiveLogLikelihood expects a Model"),
    "MAP of a prior": (MAP(ELBO(), []), EXACT, "ELBO expects a Model"),
    "collapsed of a prior": (CollapsedELBO(), EXACT, "CollapsedELBO expects a Model of a Sparse"),
    "collapsed of counts": (CollapsedELBO(), COUNTS, "CollapsedELBO expects .* Gaussian likelihood"),
    "collapsed of a process": (CollapsedELBO(), SPARSE, "CollapsedELBO expects a Model"),
    "evidence of a sparse": (
        MarginalLikelihood(),
        VARIATIONAL,
        "MarginalLikelihood expects a Conditioned, or a Model of a GP",
    ),
    "evidence of a prior": (MarginalLikelihood(), PRIOR, "MarginalLikelihood expects .*, got GP"),
    "leave one out of counts": (LeaveOneOut(), mc.Model(PRIOR, mc.likelihoods.Poisson()), "LeaveOneOut expects"),
}


@pytest.mark.parametrize("name", WRONG_MODELS)
def test_wrong_models(name):
    objective, model, message = WRONG_MODELS[name]
    with pytest.raises(ValueError, match=message):
        objective(model, (X, Y))


@pytest.mark.parametrize(
    "objective", [ELBO(), CollapsedELBO(), PredictiveLogLikelihood()], ids=lambda o: type(o).__name__
)
def test_wrong_numbers_of_latents(objective):
    with pytest.raises(ValueError, match="Gaussian with 1 columns of Y needs 1 latent functions, the posterior has 2"):
        objective(VARIATIONAL, (X, Y[:, :1]))


def test_a_likelihood_with_more_latents_than_outputs():
    likelihood = mc.likelihoods.HeteroskedasticGaussian()
    with pytest.raises(ValueError, match="HeteroskedasticGaussian with 2 columns of Y needs 4 latent functions"):
        ELBO()(mc.Model(SPARSE, likelihood), (X, Y))
    assert np.isfinite(ELBO()(mc.Model(SPARSE, likelihood), (X, Y[:, :1])))


WRONG_DATA = {
    "no pair": (X, "data expects a pair"),
    "three": ((X, Y, Y), "weights must be a vector"),
    "four": ((X, Y, Y, Y), "data expects a pair"),
    "no rows": ((X[:0], Y[:0]), "X must have at least one row"),
    "1-D X": ((X[:, 0], Y), "X must be two-dimensional"),
    "1-D Y": ((X, Y[:, 0]), "Y must be two-dimensional"),
    "NaN in X": ((X * np.nan, Y), "X must be finite"),
    "integers": ((X, Y.astype(int)), "Y must be float32 or float64"),
    "lengths": ((X, Y[1:]), "same number of rows, got 6 and 5"),
}


@pytest.mark.parametrize("name", WRONG_DATA)
def test_wrong_data(name):
    data, message = WRONG_DATA[name]
    for objective, model in (
        (ELBO(), VARIATIONAL),
        (MarginalLikelihood(), CONDITIONED),
        (CollapsedELBO(), VARIATIONAL),
    ):
        with pytest.raises(ValueError, match=message):
            objective(model, data)


def test_observations_outside_of_the_support():
    with pytest.raises(ValueError, match="Poisson: Y expects counts"):
        ELBO()(COUNTS, (X, Y))
    with pytest.raises(ValueError, match="Poisson: Y expects counts"):
        mc.elbo(COUNTS, X, Y)


def test_what_is_no_model():
    with pytest.raises(ValueError, match="Model expects a process and a likelihood, got RBF and Gaussian"):
        mc.Model(mc.kernels.RBF(), GAUSSIAN)
    with pytest.raises(ValueError, match="Model expects a process and a likelihood, got GP and float"):
        mc.Model(PRIOR, 0.1)
