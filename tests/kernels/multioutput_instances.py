"""One list of kernels with several outputs on inputs of two columns, which every law is checked on."""

import jax.numpy as jnp
import numpy as np

from mercer import kernels

D = 2
W = np.array([[0.9, -0.4], [0.3, 1.1], [-0.7, 0.6]])
LATENTS = [kernels.RBF([0.7, 1.2], 1.3), kernels.Matern32(0.9, 0.8)]

MULTIOUTPUT: dict[str, kernels.MultioutputKernel] = {
    "SharedIndependent": kernels.SharedIndependent(kernels.Matern52(0.8, 1.2), 3),
    "SeparateIndependent": kernels.SeparateIndependent([*LATENTS, kernels.RBF(0.5)]),
    "LinearCoregionalisation": kernels.LinearCoregionalisation(LATENTS, W),
    "SharedAndOwn": kernels.SharedAndOwn(
        [*LATENTS, kernels.RBF(0.5), kernels.Matern12(0.6)], W[:, :1], [0.3, 0.5, -0.2]
    ),
    "IntrinsicCoregionalisation": kernels.IntrinsicCoregionalisation(LATENTS[0], W),
    "ConvolutionProcess": kernels.ConvolutionProcess(
        [LATENTS[0], kernels.RBF(0.5)],
        W,
        widths=[[0.3, 0.9], [0.5, 0.2], [0.4, 0.7]],
        delays=0.5 * np.random.default_rng(1).normal(size=(3, 2, D)),
    ),
}


def some_inputs(seed: int = 0, num: int = 5) -> jnp.ndarray:
    """Inputs in general position."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=(num, D)))
