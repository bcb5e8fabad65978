"""What a process is: a Gaussian at any inputs."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from mercer import validation
from mercer.covariances.functionals import all_concrete, as_inputs, dtype_of
from mercer.inducing.base import InducingVariables
from mercer.layouts import Layout, check_layout
from mercer.linalg import quiet_blas
from mercer.parameters import Module, cast, is_concrete
from mercer.processes.gaussian import Gaussian

Function = Callable[[Float[Array, "N D"]], Float[Array, "N P"]]


class Process(Module):
    """A Gaussian process over functions from [N, D] to [N, P]. A new process says `_predict` and `_sample_function`."""

    @property
    def joint_layout(self) -> Layout:
        """The cheapest layout that holds all the covariance there is between values at several inputs."""
        return "inputs"

    @property
    def num_outputs(self) -> int | None:
        """P; None where the data say how many outputs there are."""
        return None

    @abc.abstractmethod
    def _predict(self, X: Float[Array, "N D"], covariance: Layout) -> Gaussian:
        """The Gaussian at X; its arguments are checked, its arrays in one dtype."""

    @abc.abstractmethod
    def _sample_function(self, key: PRNGKeyArray, num_features: int) -> Function:
        """A draw from the process as a deterministic function."""

    def predict(self, X: Float[Array, "N D"] | InducingVariables, covariance: Layout = "diag") -> Gaussian:
        """The mean [N, P] and the covariance, in the layout asked for, of the function at X.

        Derivatives, integrals or other inducing variables in the place of X ask for these: N of them.
        """
        X = as_inputs(X)
        check_layout(covariance)
        self.check_inputs(X)
        process, X = self._aligned(X)
        if not all_concrete(X):
            return process._predict(X, covariance)
        with quiet_blas():
            result = jax.block_until_ready(_compiled_predict(process, X, covariance))
        if is_concrete(result.mean):
            process._check_prediction(result)
        return result

    def _aligned(self, X: Array) -> "tuple[Process, Array]":
        """The process and the inputs in one dtype: that of the inputs."""
        return cast(self, dtype_of(X)), X

    def check_inputs(self, X: Any) -> None:
        """Refuses inputs that the process says nothing about. Called before anything is compiled."""

    def _check_prediction(self, result: Gaussian) -> None:
        """Called where a prediction was computed; a process that factorises a matrix says here why it failed."""

    def cached(self) -> "Process":
        """The same process with what prediction needs worked out once; itself, where there is nothing to work out."""
        return self

    def sample(self, key: PRNGKeyArray, X: Float[Array, "N D"], num: int = 1) -> Float[Array, "S N P"]:
        """`num` joint draws of the function's values at X."""
        return self.predict(X, self.joint_layout).sample(key, num)

    def sample_function(self, key: PRNGKeyArray, num_features: int = 1024) -> Function:
        """One draw of the whole function: a deterministic map from [N, D] to [N, P].

        The prior part is a sum of `num_features` random features; over keys, mean and covariance are the process's own.
        """
        draw = self._sample_function(key, num_features)
        return lambda X: draw(validation.inputs(X))


@eqx.filter_jit
def _compiled_predict(process: Process, X: Array, covariance: Layout) -> Gaussian:
    return process._predict(X, covariance)
