"""One list of zonal kernels, which every law of them is checked on."""

import numpy as np

from mercer import kernels

ZONAL: dict[str, kernels.Kernel] = {
    "RBF": kernels.SphericalRBF(0.6, 1.3),
    "Matern12": kernels.SphericalMatern12(0.5, 1.2),
    "Matern32": kernels.SphericalMatern32(0.7, 0.9),
    "Matern52": kernels.SphericalMatern52(0.4, 1.1),
    "intrinsic Matern": kernels.IntrinsicMatern(0.5, 1.4, 2.5, truncation=20),
    "heat": kernels.HeatKernel(0.5, 0.8, truncation=20),
    "arc-cosine 0": kernels.SphericalArcCosine(0, 1, 1.2),
    "arc-cosine 1": kernels.SphericalArcCosine(1, 1, 0.8),
    "arc-cosine 2": kernels.SphericalArcCosine(2, 1, 1.1),
    "arc-cosine 1, three layers": kernels.SphericalArcCosine(1, 3, 0.7),
    "NTK": kernels.SphericalNTK(1, 1.2),
    "NTK, three layers": kernels.SphericalNTK(3, 0.9),
    "Poisson": kernels.PoissonKernel(0.4, 1.5),
    "polynomial decay": kernels.PolynomialDecay(4.0, 1.3, truncation=20),
    "sum": kernels.SphericalRBF(0.6, 1.3) + 0.7 * kernels.SphericalMatern32(0.7) + kernels.Constant(0.2),
    "product": kernels.SphericalRBF(0.6, 1.3) * kernels.SphericalMatern12(0.5),
}


def on_sphere(num: int, dimension: int, seed: int = 0) -> np.ndarray:
    """Random unit vectors."""
    X = np.random.default_rng(seed).normal(size=(num, dimension))
    return X / np.linalg.norm(X, axis=1, keepdims=True)
