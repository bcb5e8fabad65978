"""How the outputs of a process come from its inducing variables, which is a matter of the pair (inducing, kernel).

Variables come in groups that are independent of each other a priori. There are three structures. With a kernel of one output,
the groups are the outputs, which share Kuu and Kuf. With variables of latent functions g, f = W g, a group belongs to each of
them, and q(f) is W applied to q(g) (paper 004, equation 53). In both, a group is a function (`OfFunctions`). With any other
variables of a multioutput kernel Kuf has a column for each input and output, and groups add up (`OfColumns`).

`structure_of` is an open function, as `Kuu` is: a kernel of one's own can say which of them it has.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from plum import Dispatcher

from mercer.covariances import Kuf, size
from mercer.covariances.functionals import cross_covariance
from mercer.covariances.multioutput import latent_pairs
from mercer.inducing import InducingVariables, LatentVariables
from mercer.inducing.functionals import is_functional
from mercer.kernels import Coregionalisation, Independent, Kernel, LatentKernel, MultioutputKernel, OutputIndexed
from mercer.kernels.base import Mixing
from mercer.layouts import Layout, independent_outputs, mixed_outputs
from mercer.linalg.loops import for_each
from mercer.linalg.products import matmul
from mercer.processes.gaussian import Gaussian

_dispatch: Any = Dispatcher()


@dataclasses.dataclass(frozen=True)
class Structure(abc.ABC):
    """L groups of variables, and how P outputs come from them."""

    inducing: InducingVariables
    kernel: Any
    pairs: tuple[tuple[InducingVariables, Any], ...]  # of each group; a single pair where the groups share it
    num_groups: int | None  # None: as many as there are outputs
    num_outputs: int | None  # None: as many as there are groups
    independent: bool  # whether the outputs are independent of each other
    latent: Independent | None = None  # the kernel of the latent functions, where the variables are of these
    indexed: bool = False  # whether the last column of X is the number of an output

    @property
    def num_variables(self) -> int:
        """M, in each group."""
        return size(*self.pairs[0])

    @property
    def expected(self) -> str:
        """What a kernel must have for the same variables to make the same groups."""
        if self.num_groups is None:
            return "one output"
        return f"{self.num_outputs} outputs" if self.latent is None else f"{self.latent.num_outputs} latent functions"

    def joined(self) -> "Structure":
        """The same variables as one group, for a q(u) in which all of them covary."""
        if self.num_groups is None:
            kind = type(self.kernel).__name__
            raise ValueError(
                f'covariance="joint" is for the latent functions of several outputs; {kind} has one output'
            )
        pairs = ((self.inducing, self.kernel),)
        return OfColumns(self.inducing, self.kernel, pairs, 1, self.num_outputs, False, self.latent, self.indexed)

    def columns(self, X: Float[Array, "N D"]) -> Float[Array, "L M N P"]:
        """Kuf with all outputs."""
        if is_functional(X):
            kinds = f"{type(self.inducing).__name__} and {type(self.kernel).__name__}"
            raise ValueError(f"with {kinds} predictions are of values at inputs, not of {type(X).__name__}")
        cross = Kuf(self.inducing, self.kernel, X)
        return cross.reshape(self.num_groups, -1, *cross.shape[2:])

    def of_function(self, f: Callable[[Array], Array], num_groups: int) -> Float[Array, "M L"]:
        """The variables of a given function."""
        values = self.inducing.of_function(f)
        return self.in_groups(values, num_groups)

    def in_groups(self, values: Array, num_groups: int) -> Float[Array, "M L"]:
        """Variables as they come from functions, in groups: of latent functions one group after another."""
        return values.reshape(-1, num_groups) if self.latent is None else values.T.reshape(num_groups, -1).T

    def check_inputs(self, X: Any) -> None:
        """Refuses inputs at which the variables say nothing."""
        if not is_functional(X):
            self.kernel.check_inputs(X)
            self.inducing.check_inputs(X[:, :-1] if self.indexed else X)

    def for_each_pair(self, function: Callable[..., Any], *arrays: Array) -> Any:
        """function(pair, *entries) for each pair and the entries of its G groups in arrays with a first axis of length L.

        Of what it returns for each of its groups, along a first axis, the axis of all L groups is made.
        """
        L, num = len(arrays[0]), len(self.pairs)
        results = for_each(function, self.pairs, *(array.reshape(num, L // num, *array.shape[1:]) for array in arrays))
        return jax.tree.map(lambda array: array.reshape(L, *array.shape[2:]), results)

    def for_each_group(self, function: Callable[..., Any], *arrays: Array) -> Any:
        """function(pair, *entries) for each group and its entries in arrays with a first axis of length L, stacked."""
        return for_each(function, self.pairs * (len(arrays[0]) // len(self.pairs)), *arrays)

    @abc.abstractmethod
    def predict(
        self,
        prior: Any,
        X: Any,
        num_outputs: int,
        covariance: Layout,
        of_functions: Callable[[Any, bool], tuple[Float[Array, "N L"], Array]],
        of_columns: Callable[[Float[Array, "L M N P"], Layout], tuple[Float[Array, "N P"], Array]],
    ) -> Gaussian:
        """The posterior at X, in a layout, from what is known of the groups.

        of_functions(X, joint) is the mean of the functions, and their variances [N, L], or (jointly) covariances [L, N, N];
        of_columns(Kuf, layout) the deviation from the prior mean, and the reduction of the prior covariance.
        """

    @abc.abstractmethod
    def linear(self, X: Any, weights: Float[Array, "M L"]) -> Float[Array, "N P"]:
        """Kuf^T weights."""


class OfFunctions(Structure):
    """Each group is of a function of its own, and outputs are these functions or mixtures of them."""

    def predict(self, prior, X, num_outputs, covariance, of_functions, of_columns):
        W, Z = self._mixing(X)
        latent, values = of_functions(Z, covariance in ("inputs", "full"))
        mean = prior.mean_of(X, num_outputs)
        if W is None:
            return Gaussian(mean + latent, independent_outputs(values, covariance), covariance)
        return Gaussian(mean + _mixed(W, latent), mixed_outputs(W, values, covariance), covariance)

    def _mixing(self, X: Any) -> Mixing:
        return Mixing(None, X) if self.latent is None else self.kernel.mixing(X)

    def linear(self, X, weights):
        W, Z = self._mixing(X)
        latent = weighted(self.crosses(Z), weights)
        return latent if W is None else _mixed(W, latent)

    def crosses(self, X: Any) -> Float[Array, "G M N"]:
        """Kuf of each function, or the one that they share."""
        return for_each(lambda pair: cross_covariance(pair[0], pair[1], X), self.pairs)


class OfColumns(Structure):
    """Variables covary with all outputs."""

    def predict(self, prior, X, num_outputs, covariance, of_functions, of_columns):
        deviation, reduction = of_columns(self.columns(X), covariance)
        own = prior.covariance_of(X, num_outputs, covariance)
        return Gaussian(prior.mean_of(X, num_outputs) + deviation, own - reduction, covariance)

    def linear(self, X, weights):
        return jnp.einsum("lmnp,ml->np", self.columns(X), weights, precision="highest")


def weighted(crosses: Float[Array, "G M N"], weights: Float[Array, "M L"]) -> Float[Array, "N L"]:
    """Kuf^T weights of each group."""
    # From the left: a transposed Kuf would be copied.
    return matmul(weights.T, crosses[0]).T if len(crosses) == 1 else matmul(weights.T[:, None], crosses)[:, 0].T


def _mixed(W: Float[Array, "#N P L"], latent: Float[Array, "N L"]) -> Float[Array, "N P"]:
    """W g at each input."""
    return matmul(latent, W[0].T) if len(W) == 1 else jnp.sum(W * latent[:, None], axis=-1)


@_dispatch
def structure_of(inducing: InducingVariables, kernel: Kernel) -> Structure:
    """How the outputs come from the inducing variables."""
    return OfFunctions(inducing, kernel, ((inducing, kernel),), None, None, True)


@structure_of.dispatch
def _(inducing: InducingVariables, kernel: MultioutputKernel) -> Structure:
    return OfColumns(inducing, kernel, ((inducing, kernel),), 1, kernel.num_outputs, False)


@structure_of.dispatch
def _(inducing: LatentVariables, kernel: LatentKernel) -> Structure:
    return _of_latents(OfColumns, inducing, kernel)


@structure_of.dispatch
def _(inducing: LatentVariables, kernel: Independent | Coregionalisation) -> Structure:
    return _of_latents(OfFunctions, inducing, kernel)


@structure_of.dispatch
def _(inducing: LatentVariables, kernel: OutputIndexed) -> Structure:
    inner = structure_of(inducing, kernel.kernel)
    return dataclasses.replace(inner, kernel=kernel, num_outputs=1, independent=False, indexed=True)


def _of_latents(kind: Any, inducing: LatentVariables, kernel: LatentKernel) -> Structure:
    pairs = latent_pairs(inducing, kernel)
    return kind(inducing, kernel, pairs, kernel.num_latents, kernel.num_outputs, kernel.independent, kernel.latent)
