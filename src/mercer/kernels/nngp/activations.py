"""Activations with closed forms: E[phi(u) phi(v)] over two Gaussian numbers, u and v with variances k11, k22 and covariance k12.

By Price's theorem the derivative in k12 is E[phi'(u) phi'(v)], which is what an activation multiplies a tangent kernel by.
"""

import abc
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.kernels.arc_cosine import angular, cosines
from mercer.kernels.nngp.layers import Layer
from mercer.kernels.nngp.moments import Moments
from mercer.roots import safe_sqrt

# Rounding of cosines, in units of `cosines`: that of a layer or two, of which each takes covariances and variances apart.
_TERMS = 16


class Activation(Layer):
    """phi(f), a function of each unit: K -> E[phi(u) phi(v)], theta -> theta E[phi'(u) phi'(v)].

    A new one says `dual`; `dual_derivative` if there are to be tangent kernels; `mean` if a branch of a `Residual` is to end
    with it; and `square` if that is less work than `dual`. The three arguments have shapes that go together, and any number of
    axes. Formulas are best smooth also where k12^2 is k11 k22, and variances 0.
    """

    activates: ClassVar[bool] = True

    @abc.abstractmethod
    def dual(self, k11: Float[Array, "..."], k12: Float[Array, "..."], k22: Float[Array, "..."]) -> Float[Array, "..."]:
        """E[phi(u) phi(v)]."""

    def dual_derivative(
        self, k11: Float[Array, "..."], k12: Float[Array, "..."], k22: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        """E[phi'(u) phi'(v)]."""
        raise ValueError(f"{type(self).__name__} has no closed form of E[phi'(u) phi'(v)] (dual_derivative)")

    def square(self, k11: Float[Array, "..."]) -> Float[Array, "..."]:
        """E[phi(u)^2]."""
        return self.dual(k11, k11, k11)

    def mean(self, k11: Float[Array, "..."]) -> Float[Array, "..."]:
        """E[phi(u)]."""
        raise ValueError(
            f"{type(self).__name__} has no closed form of E[phi(u)] (mean), which Residual needs where a branch ends with it; "
            "end the branch with Dense or Conv"
        )

    def check_derivative(self) -> None:
        """A ValueError where there is no E[phi'(u) phi'(v)]."""
        if type(self).dual_derivative is Activation.dual_derivative:
            raise ValueError(
                f"{type(self).__name__} has no closed form of E[phi'(u) phi'(v)], which NTK needs: give it a method "
                "dual_derivative(k11, k12, k22), or use Elementwise"
            )

    def _apply(self, moments):
        rows, columns = moments.of_each(self._apply)
        k11, k22 = moments.variances()
        theta = None if moments.theta is None else moments.theta * self.dual_derivative(k11, moments.K, k22)
        mean = (lambda: self.mean(moments.variance())) if moments.alone else None
        K = self.square(k11) if moments.of_variances else self.dual(k11, moments.K, k22)
        return Moments(K, moments.alone, theta, mean, rows, columns)


def norm_and_cosine(k11: Array | float, k12: Array, k22: Array | float) -> tuple[Array, Array]:
    """sqrt(k11 k22) and k12 over it, 0 where it is 0."""
    norm = safe_sqrt(k11) * safe_sqrt(k22)
    return norm, jnp.where(norm > 0.0, k12 / jnp.where(norm > 0.0, norm, 1.0), 0.0)


class Relu(Activation):
    """max(0, u): sqrt(k11 k22) (sin t + (pi - t) cos t) / (2 pi), with cos t = k12 / sqrt(k11 k22) (Cho and Saul, 2009).

    E[phi'(u) phi'(v)] = (pi - t) / (2 pi). A variance of 0 has no angle; it counts as a right one, which is the mean over all.
    """

    def dual(self, k11, k12, k22):
        norm, c = norm_and_cosine(k11, k12, k22)
        # Where the norm is 0 so is k12, and a quarter of it has the mean of the slopes in all directions.
        return jnp.where(norm > 0.0, 0.5 * norm * angular(1, c), 0.25 * k12)

    def dual_derivative(self, k11, k12, k22):
        return 0.5 * angular(0, cosines(norm_and_cosine(k11, k12, k22)[1], _TERMS))

    def mean(self, k11):
        return safe_sqrt(k11) / math.sqrt(2.0 * math.pi)


def _determinant(k11: Array, k12: Array, k22: Array) -> Array:
    """k11 k22 - k12^2, no less than 0; its derivatives are as if no rounding were taken away."""
    value = k11 * k22 - k12**2
    return value + jax.lax.stop_gradient(jnp.maximum(value, 0.0) - value)


class Erf(Activation):
    """erf(u): 2 / pi arcsin(2 k12 / sqrt((1 + 2 k11)(1 + 2 k22))) (Williams, 1998).

    E[phi'(u) phi'(v)] = 4 / (pi sqrt((1 + 2 k11)(1 + 2 k22) - 4 k12^2)).
    """

    def _root(self, k11, k12, k22):
        # (1 + 2 k11)(1 + 2 k22) - 4 k12^2 without the difference of large numbers
        return jnp.sqrt(1.0 + 2.0 * (k11 + k22) + 4.0 * _determinant(k11, k12, k22))

    def dual(self, k11, k12, k22):
        return 2.0 / jnp.pi * jnp.arctan2(2.0 * k12, self._root(k11, k12, k22))

    def dual_derivative(self, k11, k12, k22):
        return 4.0 / jnp.pi / self._root(k11, k12, k22)

    def mean(self, k11):
        return jnp.zeros_like(k11)


class Gelu(Activation):
    """u Phi(u), Phi the normal distribution function: k12 P + (d + k12^2 (r1 + r2)) / (2 pi sqrt(D)).

    Here d = k11 k22 - k12^2, D = (1 + k11)(1 + k22) - k12^2, r1 = 1 / (1 + k11), r2 = 1 / (1 + k22) and
    P = E[Phi(u) Phi(v)] = 1/4 + arctan(k12 / sqrt(D)) / (2 pi). By Stein's lemma, with n = Phi' and q = E[n(u) n(v)] =
    1 / (2 pi sqrt(D)): E[u n(u) Phi(v)] = k12 q r1, and E[u v Phi(u) Phi(v)] = k11 E[v n(u) Phi(v)] + k12 (P + E[v Phi(u) n(v)]),
    in which E[v n(u) Phi(v)] = k22 q - k12 E[u n(u) Phi(v)]. As phi' = Phi(u) + u n(u) and E[u v n(u) n(v)] = k12 q / D,
    E[phi'(u) phi'(v)] = P + k12 q (r1 + r2 + 1 / D).
    """

    def _parts(self, k11, k12, k22):
        det = _determinant(k11, k12, k22)
        D = 1.0 + k11 + k22 + det
        P = 0.25 + jnp.arctan2(k12, jnp.sqrt(D)) / (2.0 * jnp.pi)
        return det, D, P, 1.0 / (2.0 * jnp.pi * jnp.sqrt(D)), 1.0 / (1.0 + k11) + 1.0 / (1.0 + k22)

    def dual(self, k11, k12, k22):
        det, _, P, q, r = self._parts(k11, k12, k22)
        return k12 * P + q * (det + k12**2 * r)

    def dual_derivative(self, k11, k12, k22):
        _, D, P, q, r = self._parts(k11, k12, k22)
        return P + k12 * q * (r + 1.0 / D)

    def mean(self, k11):
        # E[u Phi(u)] = k11 E[n(u)]
        return k11 / jnp.sqrt(2.0 * jnp.pi * (1.0 + k11))
