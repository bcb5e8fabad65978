"""Activated variables: inner products with the units of a network (paper 001, section 4.1).

With H the function space of a zonal kernel or of its homogeneous extension, u_m = <f, g_m>_H for

    g_m(x) = r |w_m| sigma(cos(w_m, x)),

where r is what the kernel multiplies its functions by at x, |x| for an extension of degree 1 (equation 4.1). By the reproducing
property the covariance with f(x) is g_m(x) itself, and the mean of a sparse posterior is a network with one hidden layer. The
covariance of the variables is <g_m, g_m'>_H (equation 4.4).

Only degrees below `levels` of sigma are taken, in both: g_m need not be in H, and then its norm grows with them without end.
"""

import warnings
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer import validation
from mercer.harmonics.gegenbauer import check_levels, root_num_harmonics
from mercer.inducing.activations import Activation, Softplus
from mercer.inducing.base import InducingVariables
from mercer.parameters import all_concrete, is_concrete, param, real
from mercer.validation import AnyArray


class Activated(InducingVariables):
    """u_m = <f, g_m>_H, g_m(x) = r |w_m| sum_n sigma_n N_n R_n(cos(w_m, x)), n = 0 ... levels - 1.

    W [M, d] are the weights of the units. For a kernel `Homogeneous` or `ArcCosine` on D columns d is D + 1: the last weight
    is that of the bias. Degrees whose eigenvalue is 0 under the kernel that the variables are used with are left out.
    """

    W: Float[Array, "M d"] = param(real)
    activation: Activation = eqx.field(default_factory=Softplus)
    levels: int = eqx.field(static=True, default=20)

    def __check_init__(self):
        if not isinstance(self.activation, Activation):
            raise ValueError(
                f"Activated: activation expects one of mercer.inducing.activations, got {self.activation!r}; "
                "a function is one by Elementwise"
            )
        check_levels(self.levels)
        if jnp.ndim(self.W) != 2 or self.W.shape[1] < 2:
            raise ValueError(
                f"Activated: W expects shape [M, d] with d of at least 2 (the sphere in R^d), got {jnp.shape(self.W)}"
            )
        if is_concrete(self.W):
            zero = np.flatnonzero(~np.any(np.asarray(self.W), axis=1))
            if len(zero):
                raise ValueError(
                    f"Activated: W expects rows other than 0, got {len(zero)} of {self.num} rows that are 0 "
                    f"(first: row {zero[0]}); a zero vector has no direction"
                )

    @classmethod
    def of_layer(
        cls,
        kernel: Any,
        weight: Float[AnyArray, "M D"],
        bias: Float[AnyArray, " M"],
        activation: Activation | None = None,
        levels: int = 20,
    ) -> "Activated":
        """The units of a layer of a network: w_m . z = weight_m . x + bias_m, with z = [sqrt(weight_variance) x,
        sqrt(bias_variance)] where a homogeneous kernel of degree 1 sees x.

        For `Relu` g_m is max(0, weight_m . x + bias_m), up to the truncation. `Sparse.with_weights` takes the next layer.
        """
        weight, bias = validation.floating(weight, "weight"), validation.floating(bias, "bias")
        if weight.ndim != 2 or bias.shape != weight.shape[:1]:
            raise ValueError(f"of_layer expects weight [M, D] and bias [M], got shapes {weight.shape} and {bias.shape}")
        variances = kernel.sphere_parameters()
        if len(variances) != 2:
            raise ValueError(
                "of_layer expects a kernel with weight_variance and bias_variance, such as ArcCosine, "
                f"got {type(kernel).__name__}"
            )
        scales = [jnp.broadcast_to(jnp.sqrt(v), n) for v, n in zip(variances, (weight.shape[1], 1), strict=True)]
        W = jnp.concatenate([weight, bias[:, None]], axis=1) / jnp.concatenate(scales).astype(weight.dtype)
        _check_layer(kernel, W, weight, bias)
        return cls(W, Softplus() if activation is None else activation, levels)

    @property
    def num(self):
        return self.W.shape[0]

    @property
    def dimension(self) -> int:
        """d, the dimension of the space of the sphere."""
        return self.W.shape[1]

    def polar(self) -> tuple[Float[Array, " M"], Float[Array, "M d"]]:
        """|w_m|, and the directions w_m / |w_m|."""
        norms = jnp.sqrt(jnp.sum(self.W**2, axis=1))
        return norms, self.W / norms[:, None]

    def amplitudes(self, kernel: Any) -> np.ndarray:
        """sigma_n sqrt(N_n) of each degree, 0 where the eigenvalue of a kernel is 0 whatever its parameters, [levels].

        Their squares are the parts of E[sigma(t)^2] that are in each degree, of a size that does not change with d.
        """
        whole = self._amplitudes()
        kept = np.where(kernel.vanishing(self.dimension, len(whole)), 0.0, whole)
        if not kept.any():
            raise ValueError(
                f"nothing is left of {self.activation!r}: the eigenvalues of {type(kernel).__name__} are 0 at all levels below "
                f"{self.levels} that it has"
            )
        return kept

    def _amplitudes(self) -> np.ndarray:
        d, levels = self.dimension, int(self.levels)
        return self.activation.coefficients(d, levels) * root_num_harmonics(d, levels)

    def check_kernel(self, kernel: Any) -> None:
        """Says so where much of what is not linear in the activation is at levels that the kernel does not have."""
        whole, kept = self._amplitudes(), self.amplitudes(kernel)
        bent, lost = np.sum(whole[2:] ** 2), np.sum((whole - kept)[2:] ** 2)
        if lost > 0.1 * bent:
            skipped = [n for n in range(len(whole)) if whole[n] != kept[n]]
            warnings.warn(
                f"{self.activation!r} loses {lost / bent:.0%} of what is not linear in it: the eigenvalues of "
                f"{type(kernel).__name__} are 0 at the levels {skipped}",
                stacklevel=4,
            )


def _check_layer(kernel: Any, W: Array, weight: Array, bias: Array) -> None:
    """Refuses a kernel under which w_m . z is not weight_m . x + bias_m, where the numbers are known."""
    if not all_concrete((kernel, W)):
        return
    X = jnp.concatenate([jnp.zeros((1, weight.shape[1])), jnp.eye(weight.shape[1])]).astype(W.dtype)
    units, scale = kernel.on_sphere(X)
    found = (units if scale is None else units * scale[:, None]) @ W.T if units.shape[1] == W.shape[1] else jnp.nan
    expected = X @ weight.T + bias
    if not np.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(jnp.max(jnp.abs(expected)))):
        raise ValueError(
            f"of_layer expects a homogeneous kernel of degree 1 on {weight.shape[1]} columns, got {type(kernel).__name__} "
            "of another degree, or on other columns"
        )
