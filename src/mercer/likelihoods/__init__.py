"""How data come from function values."""

from mercer.likelihoods.base import Likelihood, ScalarLikelihood
from mercer.likelihoods.binary import Bernoulli, Binomial
from mercer.likelihoods.continuous import Beta, Exponential, Gamma, Laplace, StudentT
from mercer.likelihoods.count import NegativeBinomial, Poisson
from mercer.likelihoods.gaussian import CorrelatedGaussian, Gaussian, HeteroskedasticGaussian
from mercer.likelihoods.multiclass import Ordinal, RobustMax, Softmax
from mercer.likelihoods.per_output import PerOutput

__all__ = [
    "Likelihood",
    "ScalarLikelihood",
    "Gaussian",
    "HeteroskedasticGaussian",
    "CorrelatedGaussian",
    "StudentT",
    "Laplace",
    "Bernoulli",
    "Binomial",
    "Poisson",
    "NegativeBinomial",
    "Gamma",
    "Exponential",
    "Beta",
    "Ordinal",
    "RobustMax",
    "Softmax",
    "PerOutput",
]
