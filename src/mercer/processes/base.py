"""What a process is: a distribution of function values, Gaussian or a mixture of Gaussians, at any inputs."""

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mercer import validation
from mercer.deprecation import key_by_name
from mercer.inducing.base import InducingVariables
from mercer.inducing.functionals import as_inputs
from mercer.inputs import LatentRows, Normal
from mercer.kernels import Map
from mercer.layouts import Layout, check_layout
from mercer.linalg import quiet_blas
from mercer.linalg.products import for_each_entry
from mercer.parameters import Module, all_concrete, cast, constant, dtype_of, is_concrete
from mercer.processes.gaussian import Gaussian, Mixture
from mercer.validation import AnyArray, OneOrMany

Function = Callable[[Float[Array, "N D"]], Float[Array, "N P"]]


class _NoPrior:
    """None, as an attribute of a process. Its class has no such attribute, so that a subclass may have a field of the name."""

    def __get__(self, instance: Any, owner: type) -> None:
        if instance is None:
            raise AttributeError("prior")


class Process(Module):
    """A process over functions from [N, D] to [N, P]. A new process says `_predict` and `_sample_function`.

    One that draws random numbers to predict says `_predict_with_key` in the place of `_predict`. One that is a posterior also
    says what objectives may ask of it: its `prior`, its divergence `kl` from it and, where natural gradients can train it, the
    parameters of its Gaussians, `q_parameters`.

    One rule of dtypes holds for all: what a process gives (a prediction, a sample, a drawn function) has the dtype of the inputs
    that it is asked at. Parameters follow it; data and factors held in more precision are used in that (`working_dtype`).
    """

    prior = _NoPrior()  # the process that a posterior began as; None where there is none

    @property
    def joint_layout(self) -> Layout:
        """The cheapest layout that holds all the covariance there is between values at several inputs."""
        return "inputs"

    @property
    def num_outputs(self) -> int | None:
        """P; None where the data say how many outputs there are."""
        return None

    def _predict(self, X: Any, covariance: Layout) -> Gaussian | Mixture:
        """The prediction at X; its arguments are checked, its arrays in one dtype."""
        raise TypeError(f"{type(self).__name__} says neither _predict nor _predict_with_key")

    def _predict_with_key(self, X: Any, covariance: Layout, key: PRNGKeyArray) -> Gaussian | Mixture:
        """The prediction at X, of a process that draws random numbers for it."""
        return self._predict(X, covariance)

    def _predict_uncertain(self, x: Normal, covariance: Layout, key: PRNGKeyArray) -> Gaussian | Mixture:
        """The prediction at inputs with noise: a mixture over draws of them, unless a process knows better."""
        key_inputs, key = jax.random.split(key)
        return predict_for_each(self, x.draws(key=key_inputs), covariance, key)

    def latent_inputs(self, X: Any, Y: Float[Array, "N P"], index: Int[Array, " N"]) -> LatentRows | None:
        """The inputs of rows of data, and their prior, where they are latent, or some of their columns. None elsewhere."""
        return None

    def weighted_inputs(
        self, X: Any, Y: Float[Array, "N P"], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "S N D"], Float[Array, "S N"]] | None:
        """Draws of latent inputs that explain rows of data, and their log importance weights. None where there are none."""
        return None

    def check_data(self, X: Any, Y: Float[AnyArray, "N P"], num_data: int) -> None:
        """Refuses data that the process cannot be trained with. Called before anything is compiled."""
        X = self.as_inputs(X)
        self.check_inputs(X.mean if isinstance(X, Normal) else X)

    def given_draw(self, *, key: PRNGKeyArray) -> "Process":
        """The process given one draw of what it has learned: of its inducing variables or of its weights."""
        raise ValueError(
            f"{type(self).__name__} cannot be given a draw of what it has learned; a Sparse or a Network can"
        )

    def along_paths(
        self, values: Float[Array, "S N D"], covariance: Layout, *, key: PRNGKeyArray
    ) -> "Gaussian | Mixture":
        """The prediction at S inputs for each row, as an importance-weighted bound sees them: in "diag" or "outputs".

        What is learned is drawn once for each row wherever a draw passes on to further layers.
        """
        return predict_for_each(self, values, covariance, key)

    @abc.abstractmethod
    def _sample_function(self, key: PRNGKeyArray, num_features: int) -> Function:
        """A draw from the process as a deterministic function."""

    def predict(
        self,
        X: Float[AnyArray, "N D"] | InducingVariables | Normal | None,
        covariance: Layout = "diag",
        *,
        key: PRNGKeyArray | None = None,
    ) -> Gaussian | Mixture:
        """The mean [N, P] and the covariance, in the layout asked for, of the function at X.

        Derivatives, integrals or other inducing variables in the place of X ask for these: N of them. `mercer.inputs.Normal` is
        for inputs with noise: the prediction has the mean and the covariance of f(x) with both f and x unknown where these
        are known, and is a mixture over draws of x elsewhere. A process that needs random numbers takes them from `key`;
        without one it always takes the same, so that predictions are repeatable.
        """
        X = self.as_inputs(X)
        check_layout(covariance)
        self.check_inputs(X.mean if isinstance(X, Normal) else X)
        dtype = self.working_dtype(dtype_of(X))
        process, inputs = cast(self, dtype), cast(X, dtype)
        if not all_concrete(inputs):
            return cast(_predict(process, inputs, covariance, key), dtype_of(X))
        with quiet_blas():
            result = jax.block_until_ready(_compiled_predict(process, inputs, covariance, key))
        if is_concrete(result.mean):
            process._check_prediction(result)
        return cast(result, dtype_of(X))

    def working_dtype(self, dtype: Any) -> Any:
        """The dtype in which a prediction at inputs of `dtype` is worked out: the same, unless data or factors of more
        precision are held, here or by a process that this one is made of. None, where the inputs have none, is None."""
        fields = [getattr(self, field.name) for field in dataclasses.fields(self)]
        parts = [leaf for leaf in jax.tree.leaves(fields, is_leaf=_is_process) if _is_process(leaf)]
        return functools.reduce(wider, [part.working_dtype(dtype) for part in parts], dtype)

    def as_inputs(self, X: Any) -> Any:
        """X as the process takes it, or an error: inputs [N, D], or functionals or a distribution in their place."""
        return X if isinstance(X, Normal) else as_inputs(X)

    def check_inputs(self, X: Any) -> None:
        """Refuses inputs that the process says nothing about. Called before anything is compiled."""

    def _check_prediction(self, result: Gaussian | Mixture) -> None:
        """Called where a prediction was computed; a process that factorises a matrix says here why it failed."""

    def kl(self, prior: "Process | None" = None) -> Float[Array, ""]:
        """The divergence KL of a posterior from its prior, or from another one, in nats."""
        raise ValueError(f"{type(self).__name__} knows no KL divergence from a prior")

    def knows_kl(self, prior: "Process | None" = None) -> bool:
        """Whether `kl(prior)` is known. A posterior knows that from its own prior."""
        return self.prior is not None and (prior is None or self.is_own_prior(prior))

    def is_own_prior(self, prior: "Process") -> bool:
        """Whether a process is the prior of this one."""
        return prior is self.prior

    def q_parameters(self) -> "tuple[tuple[Float[Array, 'M L'], Float[Array, 'L M M']], ...]":
        """Mean and lower triangular root of the covariance of each Gaussian that natural gradients can train."""
        return ()

    @property
    def is_prior(self) -> bool:
        """Whether it is a prior, of which `condition` gives the exact posterior."""
        return False

    def condition(
        self,
        X: Float[AnyArray, "N D"],
        Y: Float[AnyArray, "N P"],
        noise: OneOrMany,
        complete: bool | None = None,
    ) -> Any:
        """The exact posterior given Y = f(X) + N(0, noise), where there is one. `complete` as in `mercer.Conditioned`."""
        raise ValueError(f"{type(self).__name__} has no exact posterior: condition a GP, or a Conditioned on more data")

    def in_training(self) -> "Process":
        """The process as bounds on the evidence see it: one that is a mixture of draws may take fewer of them there."""
        return self

    def cached(self) -> "Process":
        """The same process with what prediction needs worked out once; itself, where there is nothing to work out."""
        return self

    @key_by_name
    def sample(
        self, X: Float[AnyArray, "N D"] | Normal | None, num: int = 1, *, key: PRNGKeyArray
    ) -> Float[Array, "S N P"]:
        """`num` joint draws of the function's values at X; each at inputs of its own, where X is a distribution."""
        X = self.as_inputs(X)
        inputs = cast(X, self.working_dtype(dtype_of(X)))
        if isinstance(inputs, Normal):
            key_inputs, key = jax.random.split(key)
            pairs = Normal(*inputs.arrays, num_samples=num).draws(key=key_inputs), jax.random.split(key, num)
            found = for_each_entry(lambda X, key: self._sampled(X, 1, key)[0], *pairs)
        else:
            found = self._sampled(inputs, num, key)
        return cast(found, dtype_of(X))

    def _sampled(self, X: Any, num: int, key: PRNGKeyArray) -> Float[Array, "S N P"]:
        """Draws at X: of the prediction, unless a process has draws of its own."""
        return self.predict(X, self.joint_layout, key=jax.random.fold_in(key, 1)).sample(num, key=key)

    @key_by_name
    def sample_function(self, num_features: int = 1024, *, key: PRNGKeyArray) -> Function:
        """One draw of the whole function: a deterministic map from [N, D] to [N, P].

        The prior part is a sum of `num_features` random features; over keys, mean and covariance are the process's own.
        """
        return DrawnFunction(self._sample_function(key, num_features))


class DrawnFunction(Map):
    """A draw of a process: a map from [N, D] to [N, P] that passes through `jit` and can be saved."""

    function: Function = constant()

    def __call__(self, X: Float[AnyArray, "N D"]) -> Float[Array, "N P"]:
        X = validation.inputs(X)
        return self.function(X).astype(X.dtype)


def predict_for_each(process: Process, draws: Float[Array, "S N D"], covariance: Layout, key: PRNGKeyArray) -> Mixture:
    """The mixture of the predictions at S draws of N inputs. Marginals are worked out as one prediction of S N rows."""
    S, N, _ = draws.shape
    if covariance in ("diag", "outputs"):
        found = process._predict_with_key(draws.reshape(S * N, -1), covariance, key).without_rounding().as_mixture()
        means, covs = (array.reshape(-1, N, *array.shape[2:]) for array in (found.means, found.covs))
        return Mixture(means, covs, covariance)

    def at_draw(X):
        found = process._predict_with_key(X, covariance, key).as_mixture()
        return found.means, found.covs

    means, covs = for_each_entry(at_draw, draws)
    return Mixture(means.reshape(-1, *means.shape[2:]), covs.reshape(-1, *covs.shape[2:]), covariance)


def wider(dtype: Any, other: Any) -> Any:
    """The dtype of more precision; None where one of them is None."""
    return None if dtype is None or other is None else jnp.promote_types(dtype, other)


def _is_process(value: Any) -> bool:
    return isinstance(value, Process)


def _predict(process: Process, X: Any, covariance: Layout, key: PRNGKeyArray | None) -> Gaussian | Mixture:
    predict = process._predict_uncertain if isinstance(X, Normal) else process._predict_with_key
    return predict(X, covariance, jax.random.key(0) if key is None else key).without_rounding()


_compiled_predict = eqx.filter_jit(_predict)
