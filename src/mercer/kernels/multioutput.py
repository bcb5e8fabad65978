"""Kernels of functions with several outputs: k(x, x') is a [P, P] matrix, the covariance of f(x) with f(x').

Most are made of L independent latent functions g, f(x) = W g(x) (paper 004, section 4.1.1): with W = I the outputs are
independent, with one kernel for all of g it is the intrinsic model of coregionalisation. Inducing variables that belong to g
(`mercer.inducing.Shared`, `Separate`) make inference in such a model as cheap as in L models of one output.
"""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mercer import validation
from mercer.deprecation import key_by_name
from mercer.kernels.base import Kernel, Mixing
from mercer.kernels.maps import Draw, Map, SideBySide
from mercer.layouts import Layout, check_layout, independent_outputs
from mercer.parameters import Module, cast, constant, is_concrete
from mercer.validation import AnyArray


class MultioutputKernel(Module):
    """The covariance of a process with P outputs. A new one says `num_outputs` and `_full`; the other layouts follow.

    They follow without waste only where a subclass says them, too.
    """

    num_outputs: eqx.AbstractVar[int]  # P
    independent: ClassVar[bool] = False  # whether the outputs are independent of each other

    def mixing(self, X: Any) -> Mixing:
        """How the outputs come from latent functions, where they are a mixture of these at each input."""
        raise ValueError(f"{type(self).__name__} is not a mixture of latent functions")

    def check_inputs(self, X: Float[Array, "N D"]) -> None:
        """Refuses inputs at which the kernel is not defined. Called before anything is compiled."""

    @abc.abstractmethod
    def _full(self, X: Float[Array, "N D"], X2: Float[Array, "N2 D"] | None) -> Float[Array, "N P N2 P"]:
        """The covariance of all outputs at X with all at X2; X2 = None stands for X itself."""

    def _inputs(self, X: Float[Array, "N D"], X2: Float[Array, "N2 D"] | None) -> Float[Array, "P N N2"]:
        return jnp.einsum("npmp->pnm", self._full(X, X2))

    def _outputs(self, X: Float[Array, "N D"]) -> Float[Array, "N P P"]:
        return jax.vmap(lambda x: self._full(x[None], None)[0, :, 0])(X)

    def _diagonal(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        return jnp.diagonal(self._outputs(X), axis1=1, axis2=2)

    def _between(
        self, X: Float[Array, "N D"], p: Int[Array, " N"], X2: Float[Array, "N2 D"], p2: Int[Array, " N2"]
    ) -> Float[Array, "N N2"]:
        rows, columns = jnp.arange(len(X))[:, None], jnp.arange(len(X2))
        return self._full(X, X2)[rows, p[:, None], columns, p2]

    def between(
        self, X: Float[Array, "N D"], p: Int[Array, " N"], X2: Float[Array, "N2 D"], p2: Int[Array, " N2"]
    ) -> Float[Array, "N N2"]:
        """The covariance of output p_n at x_n with output p2_m at x2_m."""
        return self._between(X, p, X2, p2)

    @key_by_name
    def draw(self, num_features: int, *, key: PRNGKeyArray) -> Draw:
        """A function with this kernel, drawn as a sum of random features."""
        raise ValueError(
            f"{type(self).__name__} has no random features, so its sample paths cannot be drawn as functions"
        )

    def __call__(
        self, X: Float[AnyArray, "N D"], X2: Float[AnyArray, "N2 D"] | None = None, covariance: Layout = "full"
    ) -> Array:
        """The covariance of f(X) with f(X2), or with itself, in a layout.

        "full" is [N, P, N2, P] and "inputs" [P, N, N2]; "outputs" [N, P, P] and "diag" [N, P] are of X alone.
        """
        check_layout(covariance)
        X = validation.inputs(X)
        kernel = cast(self, X.dtype)
        if X2 is not None:
            X2 = validation.inputs(X2, "X2")
            validation.same_columns(X, X2)
            if covariance in ("diag", "outputs"):
                raise ValueError(f'covariance={covariance!r} is of one set of inputs; leave out X2, or ask for "full"')
        if covariance == "diag":
            return kernel._diagonal(X)
        if covariance == "outputs":
            return kernel._outputs(X)
        return kernel._full(X, X2) if covariance == "full" else kernel._inputs(X, X2)

    def diag(self, X: Float[AnyArray, "N D"]) -> Float[Array, "N P"]:
        """The variances of the outputs at each input, [N, P]."""
        return self(X, covariance="diag")


class LatentKernel(MultioutputKernel):
    """A kernel of outputs that are linear in L independent latent functions."""

    @property
    @abc.abstractmethod
    def latent(self) -> "Independent":
        """The kernel of the latent functions, a process of L outputs of its own."""

    @property
    def num_latents(self) -> int:
        """L."""
        return self.latent.num_outputs

    def check_inputs(self, X):
        for kernel in self.latent.parts:
            kernel.check_inputs(X)


class Independent(LatentKernel):
    """A kernel of outputs that are independent: they are their own latent functions."""

    independent = True

    def mixing(self, X):
        return Mixing(None, X)

    @property
    def output_kernels(self) -> tuple[Kernel, ...]:
        """`parts`."""
        return self.parts

    @property
    @abc.abstractmethod
    def parts(self) -> tuple[Kernel, ...]:
        """The kernels of the outputs, one for each, or a single one that they share."""

    @property
    def latent(self):
        return self

    def _full(self, X, X2):
        return independent_outputs(self._inputs(X, X2), "full")

    def _inputs(self, X, X2):
        matrices = jnp.stack([kernel._matrix(X, X2) for kernel in self.parts])
        return jnp.broadcast_to(matrices, (self.num_outputs, *matrices.shape[1:]))

    def _outputs(self, X):
        return independent_outputs(self._diagonal(X), "outputs")

    def _diagonal(self, X):
        variances = jnp.stack([kernel._diagonal(X) for kernel in self.parts], axis=1)
        return jnp.broadcast_to(variances, (len(X), self.num_outputs))

    def _between(self, X, p, X2, p2):
        if len(self.parts) == 1:
            values = self.parts[0]._matrix(X, X2)
        else:
            values = self._inputs(X, X2)[p[:, None], jnp.arange(len(X))[:, None], jnp.arange(len(X2))]
        return jnp.where(p[:, None] == p2, values, 0.0)


class SharedIndependent(Independent):
    """Independent outputs that all have one kernel."""

    kernel: Kernel
    num_outputs: int = eqx.field(static=True)

    def __init__(self, kernel: Kernel, num_outputs: int):
        check_kernels("SharedIndependent", [kernel])
        if int(num_outputs) < 1:
            raise ValueError(f"num_outputs must be at least 1, got {num_outputs}")
        self.kernel, self.num_outputs = kernel, int(num_outputs)

    @property
    def parts(self):
        return (self.kernel,)

    def draw(self, num_features, *, key):
        function = self.kernel.draw(num_features, self.num_outputs, key=key)
        return Draw(function, function)


class SeparateIndependent(Independent):
    """Independent outputs, each with a kernel of its own."""

    kernels: tuple[Kernel, ...]

    def __init__(self, kernels: Sequence[Kernel]):
        check_kernels("SeparateIndependent", kernels)
        self.kernels = tuple(kernels)

    @classmethod
    def of(cls, kernel: Kernel, num_outputs: int) -> Self:
        """A start: each output with this kernel, to be trained apart."""
        return cls([kernel] * num_outputs)

    @property
    def num_outputs(self):  # type: ignore[override]
        return len(self.kernels)

    @property
    def parts(self):
        return self.kernels

    def draw(self, num_features, *, key):
        keys = jax.random.split(key, len(self.kernels))
        pairs = zip(self.kernels, keys, strict=True)
        function = SideBySide(tuple(kernel.draw(num_features, key=k) for kernel, k in pairs))
        return Draw(function, function)


class OutputIndexed(Kernel):
    """A kernel of one output whose input says which output of another kernel is meant, in its last column: 0, 1, ..., P - 1.

    It is for data in long format, one number to a row, where outputs are observed at different inputs (paper 004, equation 30).
    """

    kernel: MultioutputKernel

    def __init__(self, kernel: MultioutputKernel):
        if not isinstance(kernel, MultioutputKernel):
            raise ValueError(f"OutputIndexed expects a multioutput kernel, got {type(kernel).__name__}")
        self.kernel = kernel

    def split(self, X: Float[AnyArray, "N D"]) -> tuple[Float[Array, "N E"], Int[Array, " N"]]:
        """The inputs without their last column, and that column as the numbers of outputs."""
        P = self.kernel.num_outputs
        if X.shape[1] < 2:
            raise ValueError(
                f"OutputIndexed expects X with columns of inputs and one of outputs, got {X.shape[1]} columns"
            )
        if is_concrete(X):
            column = np.asarray(X)[:, -1]
            wrong = (column != np.round(column)) | (column < 0) | (column >= P)
            if wrong.any():
                raise ValueError(
                    f"OutputIndexed: the last column of X expects the number of an output, 0 to {P - 1}, got {column[wrong][0]:g}"
                )
        return X[:, :-1], jnp.clip(jnp.round(X[:, -1]), 0, P - 1).astype(int)

    def check_inputs(self, X):
        self.kernel.check_inputs(self.split(X)[0])

    def mixing(self, X: Any) -> Mixing:
        """The row of W that belongs to each input's output, and the inputs without it."""
        if not isinstance(X, jax.Array | np.ndarray):
            raise ValueError(f"OutputIndexed expects inputs that say which output is meant, got {type(X).__name__}")
        X, outputs = self.split(X)
        W, X = self.kernel.mixing(X)
        W = jnp.eye(self.kernel.num_outputs, dtype=X.dtype)[None] if W is None else W
        return Mixing(W[0][outputs][:, None, :], X)

    def _matrix(self, X, X2):
        return self.kernel.between(*self.split(X), *self.split(X if X2 is None else X2))

    def _diagonal(self, X):
        X, p = self.split(X)
        return self.kernel._diagonal(X)[jnp.arange(len(X)), p]

    def draw(self, num_features, num_outputs=1, *, key):
        keys = jax.random.split(key, num_outputs)
        return self.of_outputs(tuple(self.kernel.draw(num_features, key=k) for k in keys))

    def of_outputs(self, draws: tuple[Draw, ...]) -> Draw:
        """Functions of inputs that say which output is meant, given functions with all outputs."""
        return Draw(_ByOutput(self, draws), draws[0].latent if len(draws) == 1 else None)


class _ByOutput(Map):
    """Functions of several outputs, at inputs whose last column says which is meant."""

    kernel: OutputIndexed = constant()
    draws: tuple[Draw, ...]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        X, p = self.kernel.split(X)
        return jnp.stack([draw(X)[jnp.arange(len(X)), p] for draw in self.draws], axis=1)


def check_kernels(name: str, kernels: Sequence[Kernel]) -> None:
    """Refuses what are no kernels of one output."""
    if not kernels or not all(isinstance(kernel, Kernel) for kernel in kernels):
        kinds = ", ".join(type(kernel).__name__ for kernel in kernels) or "none"
        raise ValueError(f"{name} expects kernels of one output, at least one, got {kinds}")
