"""One list of kernels on inputs of three columns, which every law is checked on."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer import kernels
from mercer.kernels import nngp

D = 3
ARD = [0.7, 1.9, 1.1]
MIXTURE = kernels.SpectralMixture(
    weights=[1.5, 0.1], means=[[0.3, -0.1, 0.0], [0.05, 0.2, 0.4]], scales=[[0.1, 0.2, 0.3], [0.25, 0.15, 0.1]]
)

PRIOR = kernels.RBF(ARD, 1.4)
Z = np.random.default_rng(5).normal(size=(4, D))
ROOT = np.tril(np.random.default_rng(6).normal(size=(4, 4))) * 0.4
FEATURES = eqx.nn.MLP(D, 2, 4, 1, activation=jnp.tanh, key=jax.random.key(4))
WIDE = [
    *(nngp.Dense(1.3, 0.4), nngp.Relu(), nngp.Residual([nngp.Dense(0.8, 0.3), nngp.Erf(), nngp.Dense(1.1)])),
    *(nngp.Gelu(), nngp.Dense(0.9, 0.2)),
]

KERNELS: dict[str, kernels.Kernel] = {
    "RBF": kernels.RBF(0.7, 1.3),
    "RBF ARD": kernels.RBF(ARD, 0.4),
    "Matern12": kernels.Matern12(0.9, 1.3),
    "Matern32": kernels.Matern32(ARD, 1.3),
    "Matern52": kernels.Matern52(1.4, 0.8),
    "RationalQuadratic": kernels.RationalQuadratic(ARD, 1.2, 0.6),
    "Additive": kernels.Additive(ARD, [0.3, 1.2, 0.6], kernels.Matern32(1.3, 0.9)),
    "Periodic": kernels.Periodic(1.2, 0.9, 1.7),
    "Periodic ARD": kernels.Periodic(ARD, [1.1, 2.0, 0.8], 0.5),
    "Cosine": kernels.Cosine(ARD, 1.4),
    "SpectralMixture": MIXTURE,
    "Linear": kernels.Linear(0.6),
    "Linear ARD": kernels.Linear(ARD),
    "Polynomial": kernels.Polynomial(3, 0.3, 0.8),
    "Polynomial ARD": kernels.Polynomial(2, ARD, 1.5),
    "ArcCosine": kernels.ArcCosine(),
    **{
        f"ArcCosine order {order} depth {depth}": kernels.ArcCosine(order, depth, ARD, 0.7, 1.3)
        for order in (0, 1, 2)
        for depth in (1, 2, 3)
    },
    "Homogeneous": kernels.Homogeneous(kernels.SphericalMatern52(0.8, 1.2), ARD, 0.6),
    "Homogeneous heat": kernels.Homogeneous(kernels.HeatKernel(0.6, 1.1, truncation=12), 0.4, 0.9, degree=0),
    "Constant": kernels.Constant(0.3),
    "White": kernels.White(0.2),
    "ChangePoints": kernels.ChangePoints(
        [kernels.RBF(0.7), kernels.Linear(0.5), kernels.Matern32(1.2)], [-0.5, 0.8], [3.0, 1.5], dim=1
    ),
    "Convolutional": kernels.Convolutional(kernels.RBF(0.7), (1, 3), (1, 2), "mean", np.array([0.5, 1.2])),
    "FeatureMap": kernels.FeatureMap(kernels.Polynomial(2, 0.7, 0.4), FEATURES),
    "CholeskySVGP": kernels.CholeskySVGP(PRIOR, Z, ROOT),
    "DiagonalSVGP": kernels.DiagonalSVGP(PRIOR, Z, [0.3, 0.1, 0.7, 0.2]),
    "KernelisedSVGP": kernels.KernelisedSVGP(PRIOR, Z, kernels.Matern52(0.6, 0.3)),
    "SparsePosterior": kernels.SparsePosterior(PRIOR, Z),
    "FixedSparsePosterior": kernels.FixedSparsePosterior(kernels.RBF(ARD, 1.1), PRIOR, Z),
    "Tempered": kernels.Tempered(kernels.SparsePosterior(kernels.Matern32(1.2), Z), 0.6),
    "NNGP": nngp.NNGP(WIDE),
    "NNGP relu": nngp.NNGP([nngp.Dense(1.3), nngp.Relu()]),
    "NNGP tanh": nngp.NNGP([nngp.Dense(0.4, 0.3), nngp.Elementwise(jnp.tanh, 80)]),
    "NTK": nngp.NTK(WIDE),
    "Sum": kernels.RBF(1.5) + kernels.Linear(0.3) + kernels.Constant(0.2),
    "Sum with White": kernels.Matern52(ARD) + kernels.White(0.1),
    "Product": kernels.RBF(2.0) * kernels.Periodic(1.0, 1.5) * kernels.Linear(0.4),
    "Scaled": 2.5 * kernels.Matern32(0.8),
    "OnDimensions": kernels.RBF([0.5, 1.5]).on([2, 0]),
    "Nested": 0.7 * (kernels.RBF(1.3).on(1) * (kernels.Constant(0.5) + kernels.Cosine(2.0).on([0, 2]))),
}
WITHOUT_FEATURES = {
    name
    for name in KERNELS
    if any(part in name for part in ("White", "depth 2", "depth 3", "FixedSparse", "NNGP", "NTK"))
}
# Kernels that another one of the list stands for, where time is short: of the same class, or made of the same parts.
ALIKE = {
    *("RBF", "Periodic", "Linear", "Polynomial", "ArcCosine", "NNGP", "NNGP relu", "Sum", "Homogeneous heat"),
    *(f"ArcCosine order {order} depth {depth}" for order, depth in ((0, 1), (0, 3), (1, 2), (1, 3), (2, 1), (2, 2))),
}
DISTINCT = [name for name in KERNELS if name not in ALIKE]

# A kernel with a kink at coincident points turns a rounding error e of a squared distance (or of a cosine) into
# sqrt(e), and so does each layer of the arc-cosine kernel of order 0.
TOLERANCES = {"Matern12": 2e-5} | {f"ArcCosine order 0 depth {d}": 20 * 2e-16 ** (0.5**d) for d in (1, 2, 3)}


def tolerance(name: str) -> float:
    return TOLERANCES.get(name, 1e-9)


def some_inputs(seed: int = 0, repeat: bool = True) -> jnp.ndarray:
    """Seven inputs in general position, of which the last may be the first again."""
    X = np.random.default_rng(seed).normal(size=(7, D))
    if repeat:
        X[-1] = X[0]
    return jnp.asarray(X)
