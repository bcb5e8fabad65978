"""The mean of a sparse posterior, a sum of kernels at inducing points (paper 000, equation 3.8)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer import validation
from mercer.kernels import Kernel
from mercer.kernels.variational import checked, optimal_root, points, whitener
from mercer.linalg.products import matmul
from mercer.means.base import Mean
from mercer.means.polynomial import Zero
from mercer.parameters import constant, param, real
from mercer.validation import AnyArray


class Sparse(Mean):
    """base(x) + C(x)^T weights, C(x) = W k(Z, x), W = chol(k(Z, Z))^-1: the mean of a sparse posterior with whitened q(u).

    The weights [M, P] are learned, and the base (zero unless given); kernel and Z are settled before. With
    `mercer.kernels.CholeskySVGP` of the same kernel and Z a `GP` has the form of `mercer.Sparse`.
    """

    base: Mean
    kernel: Kernel = constant()
    Z: Float[Array, "M D"] = constant()
    W: Float[Array, "M M"] = constant()
    weights: Float[Array, "M P"] = param(real)

    def __init__(
        self, kernel: Kernel, Z: Float[AnyArray, "M D"], weights: Float[AnyArray, "M P"], base: Mean | None = None
    ):
        self.kernel, self.Z, self.weights = kernel, points(Z, kernel), jnp.asarray(weights)
        self.W = whitener(kernel, self.Z)
        self.base = Zero() if base is None else base

    def __check_init__(self):
        shape = jnp.shape(self.weights)
        if len(shape) != 2 or shape[0] != len(self.Z):
            raise ValueError(f"Sparse: weights expects shape ({len(self.Z)}, P), got {shape}")

    @classmethod
    def optimal(
        cls,
        kernel: Kernel,
        Z: Float[AnyArray, "M D"],
        X: Float[AnyArray, "N D"],
        Y: Float[AnyArray, "N P"],
        noise: float | AnyArray,
        base: Mean | None = None,
    ) -> "Sparse":
        """Titsias' optimum for data with Gaussian noise of this variance (3.14, as an offset from the base)."""
        kernel, Z, X = checked(kernel, Z, X, noise)
        Y = validation.outputs(Y, len(X)).astype(X.dtype)
        base = Zero() if base is None else base
        # S C (Y - base) / noise, S = (I + C C^T / noise)^-1
        root = optimal_root(kernel, Z, X, noise)
        projected = matmul(whitener(kernel, Z), matmul(kernel(Z, X), Y - base(X)))
        return cls(kernel, Z, matmul(root, matmul(root.T, projected)) / noise, base)

    def _values(self, X):
        C = matmul(self.W, self.kernel(self.Z, X))
        return self.base._values(X) + matmul(C.T, self.weights)
