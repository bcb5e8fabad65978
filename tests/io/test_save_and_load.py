"""What is saved comes back exactly: every class of mercer, networks, Python data, arrays of all kinds."""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import os
import pkgutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import mercer as mc
from mercer import io, modules, objectives, tabular
from mercer.experiments import from_yaml, to_yaml
from mercer.experiments.building import Attributes, same
from mercer.io import archive, registry
from mercer.io.tables import read_table
from mercer.kernels import spaces
from mercer.objectives import measurement
from mercer.objectives.fixed_features import SummedBatch
from mercer.objectives.sums import Sums
from mercer.parameters import positive
from mercer.tabular.classification import Classification
from mercer.tabular.counts import Counts
from mercer.tabular.inputs import Inputs
from mercer.tabular.regression import Regression, Stream
from mercer.tabular.residuals import Residuals
from mercer.tabular.table_model import Evaluation, Report, TableModel
from mercer.tabular.training import _Regularised
from mercer.training import EarlyStopping, Fit, NaturalGradient, Progressed

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("kernels", "likelihoods")]

import likelihood_cases
from kernel_instances import KERNELS
from multioutput_instances import MULTIOUTPUT
from zonal_instances import ZONAL

from cases import mostly_slow

io.register(likelihood_cases.noise)

X = np.linspace(0.0, 3.0, 12)[:, None]
Y = np.concatenate([np.sin(2.0 * X), np.cos(X)], axis=1)
KEY = jax.random.key(3)


@io.register
def lengthscale_of(model):
    return model.posterior.prior.kernel.lengthscale


@io.register
def first_rows(X, key):
    return X[:2]


def network(**options):
    return eqx.nn.MLP(1, 2, 5, 2, key=KEY, **options)


def prior(mean=None):
    return mc.GP(mc.kernels.RBF(0.7) + mc.kernels.Linear(0.2), mean)


def sparse(**options):
    q = mc.Sparse(prior(mc.means.Network(network())), mc.inducing.Points(X[::3]), 2, **options)
    return eqx.tree_at(lambda q: (q.q_mu, q.q_sqrt), q, (q.q_mu + 0.3, 0.5 * q.q_sqrt))


EXACT = mc.Conditioned(prior(), X, np.where(Y > 0.9, np.nan, Y), noise=[0.1, 0.2])
COREGIONALISED = mc.Conditioned(mc.GP(mc.kernels.IntrinsicCoregionalisation(mc.kernels.RBF(), np.eye(2) + 0.3)), X, Y)
MODELS = {
    "prior": mc.Model(prior(mc.means.Network(network(activation=jnp.tanh))), mc.likelihoods.Gaussian([0.1, 0.2])),
    "exact": mc.Model(EXACT, mc.likelihoods.Gaussian(0.1)),
    "exact cached": mc.Model(EXACT.cached(), mc.likelihoods.StudentT(4.0)),
    "sparse": mc.Model(sparse(), mc.likelihoods.Bernoulli()),
    "sparse blocks": mc.Model(sparse(covariance="block", num_blocks=2, whiten=False), mc.likelihoods.Poisson()),
    "coregionalised": mc.Model(COREGIONALISED, mc.likelihoods.Gaussian(0.1)),
    "sparse coregionalised": mc.Model(
        mc.Sparse(
            mc.GP(mc.kernels.LinearCoregionalisation([mc.kernels.RBF(), mc.kernels.Matern32()], np.eye(2) + 0.3)),
            mc.inducing.Shared(mc.inducing.Points(X[::3])),
        ),
        mc.likelihoods.Gaussian(0.1),
    ),
    "sparse cached": mc.Model(sparse().cached(), mc.likelihoods.CorrelatedGaussian([[1.0, 0.3], [0.3, 0.5]])),
    "single precision": mc.parameters.cast(mc.Model(sparse(), mc.likelihoods.Gaussian(0.1)), jnp.float32),
}
DAYS = np.datetime64("2020-01-01") + 100 * np.arange(12)
TABLE = read_table({"number": X[:, 0], "text": ["a", "b", None] * 4, "date": DAYS, "y": [0, 1] * 6})
COLUMNS = tabular.Columns.describe(TABLE, exclude=["y"])
INPUTS, RESIDUALS = Inputs.of(X), Residuals.of(Y)
REGRESSION = Regression(INPUTS, [0.1, 0.2], [1.0, 2.0], MODELS["exact"], RESIDUALS, np.arange(3.0))
SUMS = Sums.of(sparse(), 2).add(X, Y)
EVALUATION = Evaluation(3, ("mercer",), ("RMSE",), [[0.5]], np.ones(3), np.ones((3, 2)), np.ones((2, 4)))
REPORT = Report("table.csv", 12, "exact", ("a note",), 1.5, "0.1.0", EVALUATION, np.zeros((0, 2)))
NUMBERS = tabular.Columns.describe(TABLE, exclude=["y", "text", "date"])
TABLE_MODEL = TableModel(NUMBERS, tabular.detect(TABLE.column("number")), REGRESSION, REPORT)
OPERATORS = [mc.linalg.Dense(jnp.eye(2)), mc.linalg.Diagonal(jnp.ones(3))]
INDUCING = [
    mc.inducing.Points(X),
    mc.inducing.Derivative(X, 0),
    mc.inducing.Integral([[0.0], [1.0]], [[0.5], [3.0]]),
    mc.inducing.Multiscale(X, 0.3),
    mc.inducing.FourierFeatures(-1.0, [4.0, 5.0], (3, 2)),
    mc.inducing.SphericalHarmonics(4, (0, 2, 1), 6),
    mc.inducing.Activated(np.eye(4), mc.inducing.activations.Swish(2.0), 7),
]
DIVERGENCES = [
    mc.divergences.KL(),
    mc.divergences.ReverseKL(),
    mc.divergences.Jeffreys(),
    mc.divergences.Renyi(0.3),
    mc.divergences.Bhattacharyya(),
    mc.divergences.Hellinger(),
    mc.divergences.Wasserstein(),
    mc.divergences.SquaredDifference(),
    mc.divergences.Projected(mc.divergences.Renyi(np.float32(1.5))),
    mc.divergences.GaussianWasserstein(trace=False),
]
RISKS = [
    mc.objectives.risks.ExpectedNegativeLogLikelihood(),
    mc.objectives.risks.NegativeLogPredictive(),
    mc.objectives.risks.CrossEntropy(),
    mc.objectives.risks.SquaredError(),
    mc.objectives.risks.BetaDivergence(1.2),
    mc.objectives.risks.GammaDivergence(1.3),
]
LAYERS = [
    mc.kernels.nngp.Conv((3, 2), (2, 1), "VALID", 1.3, np.float32(0.2)),
    mc.kernels.nngp.Relu(),
    mc.kernels.nngp.Residual([mc.kernels.nngp.Erf(), mc.kernels.nngp.Dense(0.7, 0.1), mc.kernels.nngp.Gelu()]),
    mc.kernels.nngp.Elementwise(jax.nn.softplus, 24),
]
ALTERNATION = mc.inducing.Alternation(
    mc.kernels.RBF(), jnp.ones(()), jnp.asarray(X), jnp.asarray(Y), np.arange(12), 2, True
)


GRAPH = mc.kernels.Geometric(spaces.Nodes(np.arange(3.0), np.eye(4)[:, :3], 0), nu=np.inf)


def modules_in(value):
    """A module and those that it is made of."""
    if isinstance(value, tuple | list):
        return [module for part in value for module in modules_in(part)]
    return [value, *modules_in(list(vars(value).values()))] if isinstance(value, eqx.Module) else []


@functools.cache
def functions():
    """Draws of all kinds of kernels and processes. Made when they are asked for, not by every worker that collects tests."""
    key, prior = jax.random.key(0), mc.GP(mc.kernels.RBF())
    drawn = [*MULTIOUTPUT.values(), mc.kernels.ImageToImage(mc.kernels.RBF(0.7), (2, 2), (2, 2))]
    draws = [
        kernel.draw(3, key=key) for kernel in [*drawn, mc.kernels.OutputIndexed(MULTIOUTPUT["LinearCoregionalisation"])]
    ]
    for name in ("CholeskySVGP", "SparsePosterior"):
        draws.append(KERNELS[name].features(3, key=key))
    fourier, points = mc.inducing.FourierFeatures(-3.0, 3.0, 2), mc.inducing.Points([[0.3]])
    terms = mc.inducing.PerTerm([points, fourier])
    draws.append(GRAPH.draw(3, key=key))
    sparse = mc.Sparse(mc.GP(mc.kernels.RBF() + mc.kernels.Matern32()), terms)
    draws += [process.sample_function(3, key=key) for process in (prior, sparse, mc.processes.Tempered(prior, 0.5))]
    zonal = mc.kernels.SphericalMatern32(0.7)
    for kernel in (zonal, mc.kernels.Homogeneous(zonal)):
        draws.append(kernel.draw(20, key=key))
    sphere = mc.Sparse(mc.GP(zonal), mc.inducing.SphericalHarmonics(3, 2))
    draws += [network.sample_function(key=key) for network in (*INFERENCE, BAYESIAN)]
    return modules_in([*draws, sphere.sample_function(20, key=key)])


def modules_of(parts):
    """All modules of mercer that these are made of, themselves included."""
    return [part for part in modules_in(parts) if type(part).__module__.startswith("mercer")]


TANGENT = mc.features.Tangent(eqx.nn.Linear(1, 1, key=KEY))
FOURIER = mc.features.RandomFourier.of(mc.kernels.RBF(0.7), 3, 1, key=KEY)
INFERENCE = [
    mc.Network(FOURIER),
    mc.Network(mc.features.Basis(network()), covariance="diag"),
    mc.Network(mc.features.Separate([TANGENT, TANGENT]), covariance="low-rank"),
    mc.Network(mc.features.Composed(eqx.nn.Linear(1, 1, key=KEY), TANGENT), covariance="kronecker"),
]
DROPOUT = eqx.nn.Sequential([eqx.nn.Dropout(0.5), eqx.nn.Linear(1, 1, key=KEY)])
BAYESIAN = mc.processes.BayesianNetwork(network(activation=jnp.tanh), num_samples=3)
MEASUREMENTS = [
    measurement.Box(-1.0, 1.0, 2),
    measurement.Data(2),
    measurement.Convolved(0.3, 2),
    measurement.Points(X[:2]),
    measurement.Sampler(first_rows, 2),
]
VALUES = [
    *modules_of(INFERENCE),
    INFERENCE[0].prior,
    mc.processes.SharedCovariance(np.eye(3), np.full((2, 3), 0.4)),
    mc.processes.ReducedCovariance([1.5], np.eye(3)[None, :, :2], [[0.9, 0.2]]),
    BAYESIAN,
    mc.inputs.Normal(X, 0.1, num_samples=7),
    mc.inputs.Latent(X, 0.1),
    mc.inputs.Latent(X, 0.1).of_rows(None, None, None),
    mc.inputs.Amortised(eqx.nn.MLP(2, 2, 3, 1, key=KEY), flags=True),
    mc.Uncertain(mc.GP(mc.kernels.RBF(0.7)), mc.inputs.Latent(X, 0.1), num_samples=3),
    mc.Deep([INFERENCE[0], mc.GP(mc.kernels.RBF(0.7))], num_samples=3),
    mc.Deep([INFERENCE[0], mc.GP(mc.kernels.RBF(0.7))]).sample_function(4, key=KEY).function,
    mc.processes.Deterministic(eqx.nn.Conv2d(1, 1, 2, key=KEY), 1, (1, 2, 2)),
    mc.processes.Deterministic(eqx.nn.Linear(1, 1, key=KEY), 1).sample_function(key=KEY).function,
    mc.processes.Stochastic(DROPOUT, 1, num_samples=3),
    mc.processes.Stochastic(DROPOUT, 1).sample_function(key=KEY).function.process.module,
    mc.processes.ActivatedUnits(1, 2, levels=3, key=KEY),
    modules.Reshape((1, 2)),
    modules.ResidualBlock([eqx.nn.Linear(2, 2, key=KEY), eqx.nn.Lambda(jnp.tanh)]),
    mc.Deep.from_network(eqx.nn.MLP(1, 1, 2, 1, key=KEY), levels=3).layers[0].prior.mean,
    *mc.kernels.terms.gaussian_terms(mc.kernels.RBF(0.7) * mc.kernels.Linear(0.5), 1),
    *MEASUREMENTS,
    objectives.MirrorDescent(prior(), MEASUREMENTS[0], 0.5),
    objectives.FBNN(prior(), MEASUREMENTS[1]),
    *KERNELS.values(),
    *MULTIOUTPUT.values(),
    *ZONAL.values(),
    mc.harmonics.SphericalHarmonics(4, 3, 10),
    mc.kernels.OutputIndexed(MULTIOUTPUT["LinearCoregionalisation"]),
    mc.kernels.Convolutional(mc.kernels.RBF(0.7), (4, 3, 2), (2, 2), "mean", np.linspace(0.5, 1.0, 6)),
    mc.kernels.ImageToImage(mc.kernels.RBF(0.7), (4, 3), (2, 2)),
    GRAPH,
    mc.kernels.Geometric(spaces.CompactSpace("SpecialOrthogonal", 3, 5), 0.7),
    *(GRAPH.space, spaces.CompactSpace("Hypersphere", 2, 4), spaces.SymmetricSpace("Hyperbolic", 2, 10, KEY)),
    mc.kernels.Draw(jnp.tanh),
    mc.kernels.RBF().features(3, key=jax.random.key(0)),
    mc.kernels.nngp.NTK([*LAYERS, mc.kernels.nngp.GlobalAveragePool(), mc.kernels.nngp.Dense()], (4, 3, 2)),
    mc.kernels.nngp.NNGP([*LAYERS, mc.kernels.nngp.Flatten()]),
    *LAYERS,
    *(mc.kernels.nngp.Flatten(), mc.kernels.nngp.GlobalAveragePool(), mc.kernels.nngp.Dense(0.3)),
    *(mc.kernels.nngp.Erf(), mc.kernels.nngp.Gelu()),
    *(case.likelihood for case in likelihood_cases.CASES.values()),
    *MODELS.values(),
    tabular.ClassPredictive(np.full((3, 2), 0.5)),
    *(model.posterior for model in MODELS.values()),
    MODELS["exact"].posterior.predict(X, "inputs"),
    mc.inducing.Points(X),
    mc.inducing.OutputPoints(X, [0, 1] * 6),
    mc.inducing.Shared(mc.inducing.Points(X)),
    mc.inducing.Separate([mc.inducing.Points(X), mc.inducing.Points(2.0 * X)]),
    COREGIONALISED.cached(),
    mc.linalg.KroneckerPlusIdentity.of(jnp.eye(3), jnp.eye(2)),
    SummedBatch(jnp.ones((1, 1)), 12, jnp.eye(3)[None], jnp.ones((1, 3, 2)), jnp.ones(2)),
    mc.inducing.Patches(np.ones((3, 4))),
    mc.inducing.PerTerm([mc.inducing.Points(X), mc.inducing.Points(X[:2])]),
    *INDUCING,
    *(getattr(mc.inducing.activations, name)() for name in ("Relu", "Softplus", "Swish", "Erf")),
    mc.inducing.activations.Elementwise(jnp.tanh),
    mc.inducing.Mixed(INDUCING),
    mc.means.Zero(),
    mc.means.Constant([0.5, -0.1]),
    mc.means.Linear(np.ones((1, 2)), 0.3),
    mc.means.Polynomial(np.ones((3, 1, 2))),
    mc.means.Projection(np.ones((1, 2))),
    mc.means.Network(network()),
    mc.means.Sparse(mc.kernels.RBF(), X[:4], np.ones((4, 2))),
    mc.processes.Tempered(mc.GP(mc.kernels.RBF()), [0.5, 2.0]),
    mc.calibration.Conformal(0.9, MODELS["prior"], np.array([1.5, 2.0])),
    mc.calibration.ScaledVariance(likelihood_cases.noise, np.array([0.5])),
    ALTERNATION,
    mc.datasets.toy_curve(2, num=40, key=KEY),
    mc.gvi.Learned(MODELS["prior"], MODELS["prior"], prior(), ALTERNATION, np.arange(3.0)),
    *OPERATORS,
    mc.linalg.DiagonalPlusLowRank(jnp.ones(3), jnp.ones((3, 1))),
    mc.linalg.BlockDiagonal(OPERATORS),
    mc.linalg.Kronecker(OPERATORS),
    mc.linalg.safe_cholesky(jnp.eye(3)),
    mc.objectives.Batch(jnp.asarray(X), jnp.asarray(Y)),
    mc.Mixture(jnp.zeros((2, 3, 1)), jnp.ones((2, 3, 1))),
    mc.training.Rows(X, Y, None, np.arange(len(Y))),
    mc.objectives.Context(
        jnp.asarray(3), mc.objectives.Batch(jnp.asarray(X), jnp.asarray(Y)), {"average": jnp.ones(2)}
    ),
    mc.objectives.ELBO(),
    mc.objectives.PredictiveLogLikelihood(0.3),
    mc.objectives.CollapsedELBO(),
    mc.objectives.MarginalLikelihood(),
    mc.objectives.LeaveOneOut(),
    mc.objectives.ImportanceWeighted(3),
    mc.objectives.MAP(mc.objectives.ELBO(), [(lengthscale_of, mc.priors.LogNormal(0.1, 0.5))]),
    *DIVERGENCES,
    *RISKS,
    *(mc.objectives.GVI(prior(), risk, divergence, 0.5) for risk, divergence in zip(RISKS, DIVERGENCES, strict=False)),
    mc.objectives.GVI(None, RISKS[0], DIVERGENCES[0]),
    mc.priors.Normal(),
    mc.priors.LogNormal(0.3),
    mc.priors.HalfNormal(2.0),
    mc.priors.Gamma([2.0, 3.0], 0.5),
    mc.priors.InverseGamma(2.0),
    mc.priors.Beta(np.float32(1.5), 2.0),
    mc.parameters.Module(),
    Fit(prior(), np.array([3.0, 2.0])),
    Progressed(2, np.array([3.0, 2.0]), jnp.tanh),
    NaturalGradient(0.5),
    EarlyStopping(patience=7),
    Attributes(".posterior.prior"),
    COLUMNS,
    *COLUMNS.encoders,
    tabular.Place("lat", "lon", (0.1, 0.2, 0.3), True),
    tabular.detect(TABLE.column("y")),
    INPUTS,
    RESIDUALS,
    REGRESSION,
    SUMS,
    Classification(INPUTS, MODELS["sparse"], np.arange(3.0)),
    Counts(INPUTS, MODELS["sparse blocks"], np.arange(3.0)),
    Stream(REGRESSION, SUMS, X, Y, None, 0),
    TABLE_MODEL,
    TABLE_MODEL.report,
    TABLE_MODEL.report.held_out,
    _Regularised(MODELS["prior"]),
    tabular.Settings(),
]

KEYS = jax.random.split(KEY, 4)
NETWORKS = {
    "MLP": network(),
    "MLP tanh": network(activation=jnp.tanh, final_activation=jax.nn.softplus),
    "MLP learnt": network(activation=eqx.nn.PReLU(0.1)),
    "MLP scalar": eqx.nn.MLP("scalar", "scalar", 4, 1, activation=jax.nn.gelu, key=KEY),
    "Linear": eqx.nn.Linear(3, 2, use_bias=False, key=KEY),
    "Sequential": eqx.nn.Sequential(
        [
            eqx.nn.Linear(3, 4, key=KEYS[0]),
            eqx.nn.LayerNorm(4),
            eqx.nn.Lambda(jax.nn.silu),
            eqx.nn.Lambda(functools.partial(jax.nn.leaky_relu, negative_slope=0.3)),
            eqx.nn.Dropout(0.2, inference=True),
            eqx.nn.Identity(),
            eqx.nn.WeightNorm(eqx.nn.Linear(4, 2, key=KEYS[1])),
        ]
    ),
    "Conv": eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(1, 2, 3, padding=1, key=KEYS[2]),
            eqx.nn.AvgPool2d(2),
            eqx.nn.GroupNorm(1, 2),
            eqx.nn.MaxPool2d(2),
        ]
    ),
    "Embedding": eqx.nn.Embedding(5, 3, key=KEY),
    "GRUCell": eqx.nn.GRUCell(3, 2, key=KEY),
    "LSTMCell": eqx.nn.LSTMCell(3, 2, key=KEY),
    "Attention": eqx.nn.MultiheadAttention(2, 4, key=KEY),
    "Rotary": eqx.nn.RotaryPositionalEmbedding(4),
    "AdaptiveAvgPool1d": eqx.nn.AdaptiveAvgPool1d(2),
}
CALLS = {
    "MLP": (jnp.ones(1),),
    "MLP tanh": (jnp.ones(1),),
    "MLP learnt": (-jnp.ones(1),),
    "MLP scalar": (jnp.ones(()),),
    "Sequential": (jnp.arange(3.0),),
    "Conv": (jnp.arange(64.0).reshape(1, 8, 8),),
    "GRUCell": (jnp.arange(3.0), jnp.ones(2)),
    "AdaptiveAvgPool1d": (jnp.arange(8.0).reshape(2, 4),),
}


class Pair(NamedTuple):
    first: object
    second: object


@dataclasses.dataclass(frozen=True)
class Record:
    value: object


io.register(Pair, name="tests.Pair")
io.register(Record, name="tests.Record")

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES += ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
NAN = struct.unpack(">d", bytes.fromhex("fff8000000000abc"))[0]
DATA = {
    "constants": [
        None,
        True,
        False,
        0,
        1,
        -(2**63),
        2**64 - 1,
        "",
        'text "sha256":"' + "0" * 64,
        "\ud800 \x00 é",
        b"\x00\xff",
    ],
    "floats": [0.1, -0.0, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf"), float("nan"), NAN],
    "complex": [1 + 2j, complex(-0.0, NAN), complex(float("inf"), 1)],
    "containers": (
        (),
        [],
        {},
        (1,),
        [[()]],
        {"a": 1, 2: "b", (3, None): [4.0], np.int64(5): np.int64(6), np.int64(7): 8},
    ),
    "order": {"b": 1, "a": 2},
    "slices": [slice(None), slice(1, -1, 2)],
    "dtypes": [np.dtype("float32"), np.dtype(jnp.bfloat16), jnp.float64, np.int32, jnp.bfloat16],
    "records": Pair(Record((1, 2)), Record(jnp.ones(2))),
    "functions": [jax.nn.relu, jnp.tanh, jax.lax.max, jnp.add, jax.scipy.special.erf],
    "partials": [
        functools.partial(jax.nn.leaky_relu, negative_slope=0.2),
        jax.tree_util.Partial(jnp.clip, jnp.ones(2), max=3),
        functools.partial(jnp.add, np.arange(3)),
    ],
    "keys": [KEY, jax.random.split(KEY, (2, 3)), jax.random.key(1, impl="rbg"), jax.random.PRNGKey(4)],
    "numpy": [np.zeros(3, dtype) for dtype in DTYPES]
    + [np.float64(0.1), np.float32(0.1), np.bool_(True), np.complex64(1j)],
    "layouts": [np.arange(6.0).reshape(2, 3).T, np.arange(6)[::2], np.asarray(2.5)],
    "jax": [jnp.asarray([1, 0, 3]).astype(dtype) for dtype in DTYPES],
    "shapes": [jnp.ones(shape) for shape in [(), (1,), (0,), (0, 3), (2, 1, 3)]] + [jnp.ones((), complex)],
    "weak": [
        jnp.asarray(0.1),
        jnp.asarray(1),
        jnp.asarray(1j),
        jnp.broadcast_to(jnp.asarray(2.0), (3,)),
        jax.nn.softplus(jnp.asarray(2.0)),
    ],
    "not finite": [jnp.asarray([np.nan, np.inf, -np.inf, -0.0, NAN]), np.asarray([NAN], np.float64)],
    "deep": functools.reduce(lambda inner, _: {"a": inner}, range(100), 0),
    "alone": jnp.arange(3),
}


def assert_same(a, b, path="value"):
    """Equal types, static values, dtypes and bits, all the way down."""
    assert type(a) is type(b), path
    if isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        assert jax.random.key_impl(a) == jax.random.key_impl(b), path
        assert_same(jax.random.key_data(a), jax.random.key_data(b), path)
    elif isinstance(a, jax.Array | np.ndarray | np.generic):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), path
        assert getattr(a, "weak_type", None) == getattr(b, "weak_type", None), path
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), path
    elif dataclasses.is_dataclass(a) and not inspect.isclass(a):
        assert vars(a).keys() == vars(b).keys(), path
        for name, value in vars(a).items():
            assert_same(value, getattr(b, name), f"{path}.{name}")
    elif isinstance(a, tuple | list):
        assert len(a) == len(b), path
        for i, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_same(left, right, f"{path}[{i}]")
    elif isinstance(a, dict):
        assert_same(list(a.items()), list(b.items()), path)
    elif isinstance(a, functools.partial):
        assert_same((a.func, a.args, a.keywords), (b.func, b.args, b.keywords), path)
    elif isinstance(a, float):
        assert struct.pack("d", a) == struct.pack("d", b), path
    elif isinstance(a, complex):
        assert_same((a.real, a.imag), (b.real, b.imag), path)
    elif isinstance(a, bool | int | str | bytes | slice | np.dtype):
        assert a == b, path
    else:
        assert a is b, path


@pytest.fixture
def there_and_back(tmp_path):
    def there_and_back(value):
        io.save(tmp_path / "file", value)
        return io.load(tmp_path / "file")

    return there_and_back


def public_classes():
    """The classes of mercer that have values: all concrete modules, and the records that a package lists."""
    for module in pkgutil.walk_packages(mc.__path__, "mercer."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)
    # The records of mercer.io and mercer.experiments are of files, and none that files hold.
    of_files = ("mercer.io", "mercer.experiments")
    names = [name for name in sys.modules if name.startswith("mercer.") and not name.startswith(of_files)]
    for module in (sys.modules[name] for name in names):
        for name, cls in vars(module).items():
            if inspect.isclass(cls) and cls.__module__.startswith("mercer.") and not inspect.isabstract(cls):
                is_record = dataclasses.is_dataclass(cls) or issubclass(cls, tuple)
                if issubclass(cls, eqx.Module) or (is_record and name in getattr(module, "__all__", ())):
                    yield cls


def test_every_class_has_an_instance_here():
    missing = set(public_classes()) - {type(value) for value in [*VALUES, *functions()]}
    missing -= {spaces.OtherLevels, spaces.OtherKernel}  # which hold objects of another package, and cannot be saved
    assert sorted(cls.__qualname__ for cls in missing) == []


def test_every_class_comes_back_exactly(there_and_back):
    values = [*VALUES, *functions()]
    loaded = there_and_back(values)
    for value, back in zip(values, loaded, strict=True):
        assert_same(value, back, type(value).__name__)
        assert jax.tree.structure(value) == jax.tree.structure(back)


def test_every_class_has_a_table():
    for value in VALUES:
        found = mc.summary(value)
        sizes = [leaf.size for leaf in jax.tree.leaves(value) if isinstance(leaf, jax.Array | np.ndarray)]
        assert len(found.rows) == len(sizes)
        assert found.trained + found.held + found.constant == sum(sizes)


@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_the_same(name, there_and_back):
    model = MODELS[name]
    inputs = X.astype(np.float32) if name == "single precision" else X
    back = there_and_back(model)
    assert_same(model.predict(inputs), back.predict(inputs))
    assert_same(model.posterior.predict(inputs, "full"), back.posterior.predict(inputs, "full"))


@pytest.mark.slow
def test_every_class_comes_back_from_yaml(there_and_back):
    values = [*VALUES, *functions()]
    made = [from_yaml(to_yaml(value)) for value in values]
    for value, back, saved in zip(values, made, there_and_back(made), strict=True):
        assert same(back, value) and same(saved, value), type(value).__name__


@pytest.mark.parametrize("name", mostly_slow(MODELS, "single precision", "sparse"))
def test_predictions_are_the_same_after_yaml(name):
    model, inputs = MODELS[name], X.astype(np.float32) if name == "single precision" else X
    assert_same(model.predict(inputs), from_yaml(to_yaml(model)).predict(inputs))


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, there_and_back):
    layer = NETWORKS[name]
    back = there_and_back(layer)
    assert_same(layer, back)
    assert jax.tree.structure(layer) == jax.tree.structure(back)
    if name in CALLS:
        assert_same(layer(*CALLS[name]), back(*CALLS[name]))


@pytest.mark.parametrize("name", DATA)
def test_data(name, there_and_back, unchecked_signatures):  # whose checks go deeper than Python lets them
    back = there_and_back(DATA[name])
    assert_same(DATA[name], back)


def test_arrays_of_numpy_can_be_written_to(there_and_back):
    assert there_and_back(np.ones(3)).flags.writeable


def test_a_loaded_model_trains(there_and_back):
    model = there_and_back(mc.Model(mc.Sparse(prior(), mc.inducing.Points(X[::3])), mc.likelihoods.Gaussian(0.1)))
    history = mc.fit(model, mc.objectives.CollapsedELBO(), (X, Y[:, :1]), steps=3).history
    assert history[-1] < history[0]


def test_the_same_value_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        io.save(tmp_path / name, MODELS["sparse"])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("double", [False, True])
def test_precision_does_not_depend_on_the_mode(double, tmp_path):
    """Arrays of double precision come back so where JAX is in single precision, and the other way round."""
    value = [MODELS["sparse"], MODELS["single precision"], DATA["jax"], DATA["weak"], DATA["shapes"]]
    with jax.enable_x64(not double):
        io.save(tmp_path / "file", value)
    with jax.enable_x64(double):
        back = io.load(tmp_path / "file")
        assert jax.config.jax_enable_x64 == double
    assert_same(value, back)


def test_a_fresh_process_needs_no_imports(tmp_path):
    """And runs in single precision, which changes nothing. A package that `import mercer` leaves out is found, too."""
    io.save(tmp_path / "file", (MODELS["sparse"], COLUMNS))
    source = """
import sys, jax, mercer.io
model, columns = mercer.io.load(sys.argv[1])
assert not jax.config.jax_enable_x64 and model.posterior.q_mu.dtype == "float64"
mercer.io.save(sys.argv[1] + ".again", (model, columns))
"""
    subprocess.run([sys.executable, "-c", source, str(tmp_path / "file")], check=True, timeout=120)
    assert (tmp_path / "file").read_bytes() == (tmp_path / "file.again").read_bytes()


def test_names_in_files_do_not_change():
    """A file of today is to be loaded tomorrow."""
    names = {
        mc.kernels.RBF: "mercer.kernels.RBF",
        mc.kernels.Sum: "mercer.kernels.Sum",
        mc.likelihoods.Gaussian: "mercer.likelihoods.Gaussian",
        mc.inducing.Points: "mercer.inducing.Points",
        mc.priors.Gamma: "mercer.priors.Gamma",
        mc.GP: "mercer.GP",
        mc.Sparse: "mercer.Sparse",
        mc.Gaussian: "mercer.Gaussian",
        mc.Model: "mercer.Model",
        Fit: "mercer.training.Fit",
        eqx.nn.MLP: "equinox.nn.MLP",
    }
    assert {cls: registry.class_name(cls) for cls in names} == names
    assert registry.function_name(jax.nn.relu) == "jax.nn.relu"
    assert registry.function_name(jnp.sin) == "jax.numpy.sin"


def test_no_function_that_a_file_may_name_reads_or_writes_files():
    for name in ("load", "save", "savez", "fromfile", "frompyfunc", "vectorize", "apply_along_axis"):
        with pytest.raises(ValueError, match="not among those that this version of mercer loads"):
            registry.find_function(f"jax.numpy.{name}")


FITS = [(1, int), (np.int64(1), int), (True, bool), (1, float), ("a", str), (None, int | None), (1, Any), (1, "int")]
FITS += [("a", Literal["a", "b"]), ((1, 2), tuple[int, ...]), ((), tuple[int, ...]), ((1, "a"), tuple[int, str])]
FITS += [(jnp.ones(2), Array), (np.ones(2), Float[Array, "N"]), (np.ones(2), Float[np.ndarray, "N"]), (len, Callable)]
DOES_NOT_FIT = [
    ("1", int),
    (1.0, int),
    (None, int),
    (1, str),
    ("c", Literal["a", "b"]),
    ([1], tuple[int, ...]),
    (1, Array),
]
DOES_NOT_FIT += [
    ((1,), tuple[int, str]),
    ((1, "a"), tuple[int, ...]),
    (jnp.ones(2), Float[Array, "N D"]),
    (1, Callable),
]


def test_types_of_fields():
    assert all(registry._fits(value, hint) for value, hint in FITS)
    assert not any(registry._fits(value, hint) for value, hint in DOES_NOT_FIT)


class TestRegister:
    def test_a_kernel_and_a_function_of_the_user(self, there_and_back):
        @io.register
        class Cauchy(mc.kernels.Stationary):
            def of_squared_distance(self, r2):
                return self.variance / (1.0 + r2)

        @io.register(name="tests.noise")
        def noise(X):
            return 0.1 + X**2

        model = mc.Model(mc.Conditioned(mc.GP(Cauchy(0.5)), X, Y), mc.likelihoods.Gaussian(noise))
        back = there_and_back(model)
        assert_same(model, back)
        assert_same(model.predict(X), back.predict(X))
        assert registry.class_name(Cauchy).endswith("test_save_and_load.TestRegister" + Cauchy.__qualname__[12:])

    def test_what_is_not_known_when_loading(self, tmp_path, monkeypatch):
        io.save(tmp_path / "file", Record(1))
        monkeypatch.delitem(registry._classes, "tests.Record")
        with pytest.raises(io.FormatError, match=r"'tests.Record' is not known here.*import the file that defines it"):
            io.load(tmp_path / "file")

    def test_a_class_defined_again_replaces_the_first(self, there_and_back):
        def define():
            @io.register
            @dataclasses.dataclass
            class Again:
                value: int

            return Again

        first, second = define(), define()
        assert_same(there_and_back(second(1)), second(1))
        with pytest.raises(ValueError, match="not registered"):
            there_and_back(first(1))

    def test_refusals(self):
        with pytest.raises(ValueError, match=r"'tests.Pair' is taken by the class .*Pair"):
            io.register(Record, name="tests.Pair")
        with pytest.raises(ValueError, match=r"'tests.Pair' is taken by the class .*Pair"):
            io.register(lengthscale_of, name="tests.Pair")
        for name in ("mercer.kernels.Mine", "jax.mine", "equinox.Mine", 3):
            with pytest.raises(ValueError, match="a name that does not begin with"):
                io.register(Record, name=name)
        for target in (dict, 3, functools.partial(jnp.add, 1)):
            with pytest.raises(ValueError, match="expects a function, an equinox Module"):
                io.register(target)
        with pytest.raises(ValueError, match="a name for a lambda"):
            io.register(lambda x: x)


class Unregistered(mc.kernels.Stationary):
    def of_squared_distance(self, r2):
        return self.variance / (1.0 + r2)


class Foreign:
    pass


def deleted_array():
    array = jnp.ones(3)
    array.delete()
    return array


NOT_SAVED = {
    "lambda": (
        mc.GP(mc.kernels.RBF(), mc.means.Network(network(activation=lambda x: x))),
        r"model.mean.module.activation cannot be saved: .*<lambda>.*register",
    ),
    "function": (
        {"f": likelihood_cases.mixed},
        r"model\['f'\] .*likelihood_cases.mixed is not registered.*@mercer.io.register",
    ),
    "class": (mc.GP(Unregistered()), r"model.kernel cannot .*Unregistered is not registered; .*@mercer.io.register"),
    "foreign": ([1, Foreign()], r"model\[1\] .*Foreign"),
    "class as a value": ((mc.kernels.RBF,), r"model\[0\] .*RBF"),
    "bound method": ([mc.kernels.RBF().diag], r"model\[0\]"),
    "subclass": ([type("Text", (str,), {})("a")], r"model\[0\] .*Text"),
    "state": (
        eqx.nn.BatchNorm(2, "batch", mode="batch"),
        r"model\..* cannot be saved: .*StateIndex.*BatchNorm.*LayerNorm",
    ),
    "integer": ([2**64], r"model\[0\] .*64 bits"),
    "objects": ([np.array([None])], r"model\[0\] .*dtype object"),
    "texts": ([np.array(["a"])], r"model\[0\] .*dtype"),
    "big endian": ([np.ones(2, ">f8")], r"model\[0\] .*dtype >f8"),
    "masked": ([np.ma.masked_array([1.0])], r"model\[0\] .*MaskedArray"),
    "deleted": ([deleted_array()], r"model\[0\] .*deleted"),
    "empty but large": ([np.zeros((0, 2**40))], r"model\[0\] .*no entries"),
    "too deep": (functools.reduce(lambda inner, _: [inner], range(101), 0), "nested more than 100 deep"),
    "NaN": (
        eqx.tree_at(lambda k: k.variance, mc.kernels.RBF(), jnp.nan * jnp.ones(())),
        "model cannot be saved: RBF: variance expects",
    ),
    "NaN in a constant": (
        (1, mc.linalg.Diagonal(jnp.asarray([1.0, np.nan]))),
        r"model\[1\]\.entries cannot be saved: it holds NaN or infinite numbers",
    ),
    "NaN in a network": (
        [jax.tree.map(lambda a: a * np.nan if eqx.is_array(a) else a, network())],
        r"model\[0\]\.\S*weight cannot be saved: it holds NaN or infinite numbers",
    ),
    "number": (eqx.tree_at(lambda k: k.variance, mc.kernels.RBF(), 2.0), "RBF: variance expects an array"),
    "half": ([mc.parameters.cast(mc.inducing.Points(X), jnp.float16)], r"model\[0\] .*float32 or float64"),
    "shapes": (mc.linalg.DiagonalPlusLowRank(jnp.ones(3), jnp.ones((4, 1))), r"DiagonalPlusLowRank: V expects .*'M r'"),
}


@pytest.mark.parametrize("name", NOT_SAVED)
def test_what_cannot_be_loaded_is_not_saved(name, tmp_path):
    value, message = NOT_SAVED[name]
    (tmp_path / "file").write_text("old")
    with pytest.raises(ValueError, match=message):
        io.save(tmp_path / "file", value)
    assert (tmp_path / "file").read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_a_cycle_and_a_traced_value_are_refused(tmp_path):
    cycle: list = []
    cycle.append(cycle)
    with pytest.raises(ValueError, match="deep"):
        io.save(tmp_path / "file", cycle)
    with pytest.raises(ValueError, match="traced"):
        jax.jit(lambda x: io.save(tmp_path / "file", [x]))(1.0)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_while_writing_leaves_the_old_file(step, tmp_path, monkeypatch):
    io.save(tmp_path / "file", 1)

    def fail(*args):
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr(archive.os, step, fail)
        io.save(tmp_path / "file", 2)
    assert os.listdir(tmp_path) == ["file"] and io.load(tmp_path / "file") == 1
    io.save(str(tmp_path / "file"), 2)
    assert os.listdir(tmp_path) == ["file"] and io.load(str(tmp_path / "file")) == 2


def test_the_file_has_the_usual_permissions(tmp_path):
    (tmp_path / "other").touch()
    io.save(tmp_path / "file", 1)
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_where_a_file_cannot_be(tmp_path):
    for path in (tmp_path, tmp_path / "missing" / "file"):
        with pytest.raises(ValueError, match="a file in a folder that exists"):
            io.save(path, 1)


def test_parameters_are_checked_when_loading(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(registry, "check", lambda value: None)
        io.save(tmp_path / "file", eqx.tree_at(lambda k: k.variance, mc.kernels.RBF(), -jnp.ones(())))
    with pytest.raises(io.FormatError, match="RBF: variance expects positive, finite values"):
        io.load(tmp_path / "file")


def test_user_classes_are_checked_by_their_own_rule(tmp_path):
    @io.register
    class Bounded(mc.parameters.Module):
        low: jax.Array = mc.param(positive, default=1.0)
        name: str = eqx.field(static=True, default="a")

        def __check_init__(self):
            if self.name == "bad":
                raise RuntimeError("a bad name")

    value = Bounded()
    object.__setattr__(value, "name", "bad")
    with pytest.raises(ValueError, match="a bad name"):
        io.save(tmp_path / "file", value)
