"""mercer: scalable Gaussian processes in JAX.

Three nouns and one verb: a *process* gives a Gaussian (or a mixture of them) at any inputs, a *likelihood* says how data come
from function values, an *objective* is a number to make small, and *fit* makes it small for any model.
"""

import importlib
from typing import Any

from mercer import (
    calibration,
    covariances,
    datasets,
    divergences,
    features,
    gvi,
    harmonics,
    inducing,
    inputs,
    io,
    kernels,
    laplace,
    likelihoods,
    linalg,
    means,
    objectives,
    parameters,
    priors,
    training,
)
from mercer.errors import MercerError
from mercer.io import load, save
from mercer.latent import Inferred, gplvm, infer
from mercer.model import Model
from mercer.objectives import elbo
from mercer.overview import Summary, summary
from mercer.parameters import constant, param
from mercer.processes import GP, Conditioned, Deep, Gaussian, Mixture, Network, Process, Sparse, Uncertain
from mercer.training import fit

__version__ = "0.1.0"

_WHEN_USED = ("experiments", "sklearn", "tabular")  # packages that need an extra, or take long to import


def __getattr__(name: str) -> Any:
    if name in _WHEN_USED:
        return importlib.import_module(f"mercer.{name}")
    raise AttributeError(f"module 'mercer' has no attribute {name!r}")


__all__ = [
    "GP",
    "Inferred",
    "Conditioned",
    "Deep",
    "Gaussian",
    "MercerError",
    "Mixture",
    "Model",
    "Network",
    "Process",
    "Sparse",
    "Summary",
    "Uncertain",
    "calibration",
    "constant",
    "covariances",
    "datasets",
    "divergences",
    "elbo",
    "features",
    "fit",
    "gplvm",
    "gvi",
    "harmonics",
    "inducing",
    "infer",
    "inputs",
    "io",
    "kernels",
    "laplace",
    "likelihoods",
    "linalg",
    "load",
    "means",
    "objectives",
    "param",
    "parameters",
    "priors",
    "save",
    "summary",
    "training",
]
