"""Means that are polynomials of the input: zero, a constant, a line, and sums of powers."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.linalg.products import matmul
from mercer.means.base import Mean
from mercer.parameters import param, real


class Zero(Mean):
    """0."""

    def _values(self, X):
        return jnp.zeros((len(X), 1), X.dtype)


class Constant(Mean):
    """constant: a number, or a vector [P]."""

    constant: Array = param(real, default=0.0)

    def __check_init__(self):
        if jnp.ndim(self.constant) > 1:
            raise ValueError(
                f"Constant: constant expects a number or a vector [P], got shape {jnp.shape(self.constant)}"
            )

    def _values(self, X):
        return jnp.broadcast_to(self.constant, (len(X), self.constant.size))


class _Weighted(Mean):
    """A product with weights, plus a bias: the last two axes of the weights are [D, P], the bias is a number or [P]."""

    weights: Array = param(real)
    bias: Array = param(real, default=0.0)

    _weight_axes: ClassVar[tuple[str, ...]]

    def __check_init__(self):
        name, shape, bias_shape = type(self).__name__, jnp.shape(self.weights), jnp.shape(self.bias)
        if len(shape) != len(self._weight_axes) or 0 in shape:
            raise ValueError(f"{name}: weights expects shape [{', '.join(self._weight_axes)}], got {shape}")
        if bias_shape not in ((), shape[-1:]):
            raise ValueError(f"{name}: bias expects a number or shape {shape[-1:]}, got shape {bias_shape}")

    def _check_columns(self, X: Float[Array, "N D"]) -> None:
        if X.shape[1] != self.weights.shape[-2]:
            raise ValueError(
                f"{type(self).__name__}: weights of shape {self.weights.shape} expects X with "
                f"{self.weights.shape[-2]} columns, got {X.shape[1]}"
            )


class Linear(_Weighted):
    """sum_d x_d weights_d + bias, for weights [D, P] and a bias that is a number or a vector [P]."""

    _weight_axes = ("D", "P")

    def _values(self, X):
        self._check_columns(X)
        return matmul(X, self.weights) + self.bias


class Polynomial(_Weighted):
    """sum_j sum_d x_d^j weights_jd + bias for j = 1, ..., degree: powers of each column, without products of columns.

    The weights are [degree, D, P], the first of them those of the line; the bias is a number or a vector [P].
    """

    _weight_axes = ("degree", "D", "P")

    @property
    def degree(self) -> int:
        """The highest power."""
        return self.weights.shape[0]

    def _values(self, X):
        self._check_columns(X)
        powers = jnp.concatenate([X**j for j in range(1, self.degree + 1)], axis=1)
        return matmul(powers, self.weights.reshape(powers.shape[1], -1)) + self.bias
