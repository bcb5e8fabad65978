"""What a divergence is: how far one Gaussian, q, is from another, p.

A divergence is asked for in three ways: element by element between numbers, `d(mean_q, var_q, mean_p, var_p)`; between Gaussians
over many values, `d.joint(q, p)`; and between processes seen at inputs, `d.between(q, p, X)`.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer.inducing import InducingVariables
from mercer.inducing.functionals import as_inputs, is_functional
from mercer.layouts import Layout
from mercer.linalg import quiet_blas, safe_cholesky
from mercer.parameters import Module, as_parameter, is_concrete
from mercer.processes import Gaussian, Mixture, Process
from mercer.processes.gaussian import average_of_pairs
from mercer.validation import AnyArray

Number = Float[Array, "..."] | float


class Divergence(Module):
    """D[Q, P] >= 0. A new divergence says `_joint`, and what calling it means; one between numbers is a `ScalarDivergence`."""

    @abc.abstractmethod
    def __call__(self, mean_q: Number, var_q: Number, mean_p: Number, var_p: Number) -> Float[Array, "..."]:
        """The divergence of N(mean_q, var_q) from N(mean_p, var_p)."""

    @abc.abstractmethod
    def _joint(self, q: Gaussian, p: Gaussian) -> Float[Array, ""]:
        """The divergence of two Gaussians of one layout; p may have one output where q has more."""

    def joint(self, q: Gaussian | Mixture, p: Gaussian | Mixture) -> Float[Array, ""]:
        """The divergence of q from p, two Gaussians of the same layout. A p of one output stands for each output of q.

        Of a mixture it is the mean over its components, and of two mixtures that over pairs of them: an upper bound on the
        divergence of the mixtures where D is convex, as all of the library's are but `SquaredDifference` and `Renyi` with
        alpha > 1.
        """
        _check_comparable(q, p)
        _check_variances(q, p)
        if not all(is_concrete(array) for array in (*q, *p)):
            return self._of_components(q, p)
        with quiet_blas():
            result = jax.block_until_ready(_compiled_joint(self, q, p))
        if is_concrete(result) and not bool(jnp.isfinite(result)):
            self._explain(q, p)
        return result

    def _of_components(self, q: Gaussian | Mixture, p: Gaussian | Mixture) -> Float[Array, ""]:
        return average_of_pairs(lambda q, p: self._joint(q, p.for_outputs(q.mean.shape[1])), q, p)

    def layout(self, q: Process, p: Process) -> Layout | None:
        """The layout in which `between` compares predictions; None where it needs no predictions."""
        return "inputs" if q.joint_layout == p.joint_layout == "inputs" else "full"

    def between(self, q: Process, p: Process, X: Float[AnyArray, "N D"] | InducingVariables) -> Float[Array, ""]:
        """The divergence of two processes as they are seen at X: that of their predictions there."""
        if not isinstance(q, Process) or not isinstance(p, Process):
            raise ValueError(f"between expects two processes, got {type(q).__name__} and {type(p).__name__}")
        X = as_inputs(X)
        self.check_inputs(X)
        return self._between(q, p, X)

    def _between(self, q: Process, p: Process, X: Any) -> Float[Array, ""]:
        layout: Any = self.layout(q, p)
        return self.joint(q.predict(X, layout), p.predict(X, layout))

    def check_inputs(self, X: Any) -> None:
        """Refuses what the divergence cannot be seen at."""

    def _explain(self, q: Gaussian | Mixture, p: Gaussian | Mixture) -> None:
        """Called where `joint` is not finite: says why."""
        for prediction, name in ((q, "q"), (p, "p")):
            for gaussian in prediction.components() if prediction.layout != "diag" else ():
                safe_cholesky(gaussian.groups()[1], f"the covariance of {name}")


@eqx.filter_jit
def _compiled_joint(divergence: Divergence, q: Gaussian | Mixture, p: Gaussian | Mixture) -> Float[Array, ""]:
    return divergence._of_components(q, p)


class ScalarDivergence(Divergence):
    """A divergence between Gaussians over numbers, that adds up over independent ones. A new one says its two formulas."""

    @abc.abstractmethod
    def _pointwise(self, mean_q: Array, var_q: Array, mean_p: Array, var_p: Array) -> Array:
        """The divergence, element by element, of arrays of one shape."""

    @abc.abstractmethod
    def _of_groups(
        self,
        mean_q: Float[Array, "G J"],
        cov_q: Float[Array, "#G J J"],
        mean_p: Float[Array, "G J"],
        cov_p: Float[Array, "#G J J"],
    ) -> Float[Array, ""]:
        """The divergence of G independent groups of J values; a covariance may be one for all groups."""

    def __call__(self, mean_q, var_q, mean_p, var_p):
        """The divergence of N(mean_q, var_q) from N(mean_p, var_p), element by element, with broadcasting."""
        arguments = self.checked(mean_q=mean_q, var_q=var_q, mean_p=mean_p, var_p=var_p)
        self._check_defined(arguments[1], arguments[3])
        return self._pointwise(*arguments)

    def checked(self, **arguments: Any) -> list[Array]:
        """The arguments as arrays of one shape and dtype."""
        arrays = {name: as_parameter(value) for name, value in arguments.items()}
        for name in ("var_q", "var_p"):
            self._check_variance(arrays[name], name)
        dtype = jnp.result_type(*arrays.values())
        try:
            return list(jnp.broadcast_arrays(*(array.astype(dtype) for array in arrays.values())))
        except ValueError as error:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise ValueError(f"the arguments must broadcast to one shape, got {shapes}") from error

    def _check_variance(self, values: Array, name: str) -> None:
        if is_concrete(values):
            numbers = np.asarray(values)
            if not (np.isfinite(numbers) & (numbers > 0.0)).all():
                raise ValueError(f"{type(self).__name__}: {name} must be positive and finite, got {_smallest(numbers)}")

    def _check_defined(self, var_q: Array, var_p: Array) -> None:
        """Refuses variances between which there is no finite divergence, where they are known."""

    def _joint(self, q, p):
        if q.layout == "diag":
            return jnp.sum(self.at_marginals(q, p))
        return self._of_groups(*q.groups(), *p.groups())

    def at_marginals(self, q: Gaussian, p: Gaussian) -> Float[Array, "N P"]:
        """The divergence at each input and output."""
        var_q, var_p = q.variance, jnp.broadcast_to(p.variance, q.mean.shape)
        # What rounding has left without a variance has one of the size of rounding.
        floor = jnp.finfo(var_q.dtype).eps * jnp.maximum(jnp.maximum(var_q, var_p), jnp.finfo(var_q.dtype).eps)
        var_q, var_p = (jnp.where(var > 0.0, var, jax.lax.stop_gradient(floor)) for var in (var_q, var_p))
        return self._pointwise(q.mean, var_q, p.mean, var_p)


def _smallest(numbers: np.ndarray) -> str:
    wrong = numbers[~(np.isfinite(numbers) & (numbers > 0.0))]
    return f"{wrong.ravel()[0]:.6g}" + (f" among {numbers.size} numbers" if numbers.size > 1 else "")


def _check_comparable(q: Any, p: Any) -> None:
    """Refuses what are not two predictions of the same values."""
    if not isinstance(q, Gaussian | Mixture) or not isinstance(p, Gaussian | Mixture):
        raise ValueError(f"joint expects two mercer.Gaussian, got {type(q).__name__} and {type(p).__name__}")
    if q.layout != p.layout:
        raise ValueError(f"q and p must have the same layout, got {q.layout!r} and {p.layout!r}")
    (N, P), of_p = q.mean.shape, p.mean.shape
    if of_p not in ((N, P), (N, 1)):
        raise ValueError(
            f"q and p must be over as many inputs and outputs (or p over one output), got means {(N, P)} and {of_p}"
        )


def _check_variances(q: Gaussian | Mixture, p: Gaussian | Mixture) -> None:
    """Refuses marginal variances that are negative by more than rounding, where the numbers are known."""
    if not all(is_concrete(leaf) for leaf in jax.tree.leaves((q, p))):
        return
    with jax.ensure_compile_time_eval():  # numbers that are known may meet us inside somebody's jit
        variances = {"q": np.asarray(q.variance), "p": np.asarray(p.variance)}
    scale = max(np.abs(variance).max(initial=0.0) for variance in variances.values())
    for name, variance in variances.items():
        if not (np.isfinite(variance) & (variance >= -np.sqrt(np.finfo(variance.dtype).eps) * scale)).all():
            raise ValueError(f"{name} must have variances that are positive and finite, got {np.min(variance):.6g}")


def refuse_functionals(divergence: Divergence, X: Any) -> None:
    """Refuses functionals where a divergence is a mean over inputs."""
    if is_functional(X):
        raise ValueError(f"{type(divergence).__name__} is a mean over inputs, got {type(X).__name__}")
