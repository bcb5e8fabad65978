"""What a likelihood is: how data come from function values; and the two rules behind those without closed forms.

Every method takes rows of data: latent function values f [N, L] (or their Gaussian marginals, mean [N, L] and
var [N, L]), observations y [N, P], and returns one number for each row. A NaN in y is an output that was not observed:
it contributes nothing. Likelihoods that depend on the input take it as `X`.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Real

from mercer import validation
from mercer.layouts import Layout
from mercer.likelihoods import expectations
from mercer.parameters import Module, cast
from mercer.validation import AnyArray

DEFAULT_POINTS = 20


class Likelihood(Module):
    """p(y | f). A new likelihood says the four private functions, for data without NaN; the public ones check and mask.

    The private functions return one term for each output, [N, P]; `_predict` returns two such arrays.
    """

    discrete: ClassVar[bool] = False  # over the integers
    layout: ClassVar[Layout] = "diag"  # the covariance of the latents that `var` holds
    per_output: ClassVar[tuple[str, ...]] = ()  # fields that are one number, or a vector with one for each output
    quadratic: ClassVar[bool] = False  # whether log p(y | f) is, so that its expectation needs two moments of f alone
    stand_in: ClassVar[float] = 1.0  # a value of the support, computed with (and masked) where y is NaN

    def __check_init__(self):
        for name in self.per_output:
            shape = np.shape(getattr(self, name))
            if len(shape) > 1:
                raise ValueError(f"{type(self).__name__}: {name} expects a number or a vector, got shape {shape}")

    @abc.abstractmethod
    def _log_prob(self, f, y, X):
        """log p(y | f)."""

    @abc.abstractmethod
    def _expected_log_prob(self, mean, var, y, X, key):
        """E[log p(y | f)], f ~ N(mean, var)."""

    @abc.abstractmethod
    def _log_predictive(self, mean, var, y, X, key):
        """log E[p(y | f)], f ~ N(mean, var)."""

    @abc.abstractmethod
    def _predict(self, mean, var, X, key):
        """E[y] and Var[y], f ~ N(mean, var)."""

    def _support(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        """Which entries the likelihood gives a density to, and the set in words."""
        return np.isfinite(y), "finite numbers"

    @property
    def num_classes(self) -> int | None:
        """How many classes there are, where y is the label 0, 1, ... of one."""
        return None

    def num_latents(self, num_outputs: int) -> int:
        """How many latent functions L this many outputs need."""
        return num_outputs

    def _num_outputs(self, num_latents: int) -> int:
        """The inverse of `num_latents`."""
        return num_latents

    def log_prob(
        self, f: Float[AnyArray, "N L"], y: Real[AnyArray, "N P"], X: Float[AnyArray, "N D"] | None = None
    ) -> Float[Array, " N"]:
        """log p(y | f), summed over the outputs."""
        f = self._latents(f, "f")
        y, X = self._data(f, y, X)
        self = cast(self, f.dtype)
        return self._sum_observed(lambda y: self._log_prob(f, y, X), y)

    def expected_log_prob(
        self,
        mean: Float[AnyArray, "N L"],
        var: Float[AnyArray, "N L"] | Float[AnyArray, "N P P"],
        y: Real[AnyArray, "N P"],
        X: Float[AnyArray, "N D"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, " N"]:
        """E[log p(y | f)] for f ~ N(mean, var), summed over the outputs.

        Monte Carlo, where it is used, takes fresh draws with a key (unbiased) and the same ones without.
        """
        mean, var = self._marginals(mean, var)
        y, X = self._data(mean, y, X)
        self = cast(self, mean.dtype)
        return self._sum_observed(lambda y: self._expected_log_prob(mean, var, y, X, key), y)

    def log_predictive(
        self,
        mean: Float[AnyArray, "N L"],
        var: Float[AnyArray, "N L"] | Float[AnyArray, "N P P"],
        y: Real[AnyArray, "N P"],
        X: Float[AnyArray, "N D"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, " N"]:
        """log E[p(y | f)] for f ~ N(mean, var), summed over the outputs."""
        mean, var = self._marginals(mean, var)
        y, X = self._data(mean, y, X)
        self = cast(self, mean.dtype)
        return self._sum_observed(lambda y: self._log_predictive(mean, var, y, X, key), y)

    def predict(
        self,
        mean: Float[AnyArray, "N L"],
        var: Float[AnyArray, "N L"] | Float[AnyArray, "N P P"],
        X: Float[AnyArray, "N D"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "N P"], Float[Array, "N P"]]:
        """The mean and the variance of y for f ~ N(mean, var)."""
        mean, var = self._marginals(mean, var)
        X = None if X is None else jnp.asarray(X, mean.dtype)
        return cast(self, mean.dtype)._predict(mean, var, X, key)

    def validate(self, Y: Any, name: str = "Y") -> None:
        """Refuses observations [N, P] outside the support, where the numbers are known. NaN means not observed."""
        if np.ndim(Y) != 2:
            raise ValueError(f"{name} must be two-dimensional [N, P], got shape {np.shape(Y)}")
        self.num_latents(np.shape(Y)[1])
        if isinstance(Y, jax.core.Tracer):
            return
        Y = np.asarray(Y)
        valid, expected = self._support(Y)
        wrong = ~(valid | np.isnan(Y))
        if wrong.any():
            where = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise ValueError(f"{type(self).__name__}: {name} expects {expected}, got {Y[where]} at {list(where)}")

    def _sum_observed(self, terms: Callable[[Array], Array], y: Float[Array, "N P"]) -> Float[Array, " N"]:
        """The sum of the terms of the observed outputs; a NaN reaches neither the value nor the derivative."""
        missing = jnp.isnan(y)
        return jnp.sum(jnp.where(missing, 0.0, terms(jnp.where(missing, self.stand_in, y))), axis=1)

    def _latents(self, f: Any, name: str) -> Array:
        f = validation.floating(f, name)
        if f.ndim != 2:
            raise ValueError(f"{name} must be two-dimensional [N, L], got shape {f.shape}")
        num_outputs = self._num_outputs(f.shape[1])
        expected = self.num_latents(num_outputs)
        if expected != f.shape[1]:
            raise ValueError(f"{type(self).__name__}: {name} expects {expected} columns (latents), got {f.shape[1]}")
        for field in self.per_output:
            shape = np.shape(getattr(self, field))
            if shape not in ((), (num_outputs,)):
                raise ValueError(
                    f"{type(self).__name__}: {field} expects one number, or one for each of {num_outputs} outputs, "
                    f"got {shape[0]}"
                )
        return f

    def _marginals(self, mean: Any, var: Any) -> tuple[Array, Array]:
        mean = self._latents(mean, "mean")
        var = jnp.asarray(var, mean.dtype)
        shapes = [mean.shape, (*mean.shape, mean.shape[1])] if self.layout == "outputs" else [mean.shape]
        if var.shape not in shapes:
            expected = " or ".join(str(shape) for shape in shapes)
            raise ValueError(f"{type(self).__name__}: var expects shape {expected}, like mean, got {var.shape}")
        return mean, var

    def _data(self, f: Array, y: Any, X: Any) -> tuple[Array, Array | None]:
        y = validation.outputs(y, len(f), "y", discrete=self.discrete)
        if y.shape[1] != self._num_outputs(f.shape[1]):
            raise ValueError(
                f"{type(self).__name__}: y expects {self._num_outputs(f.shape[1])} columns (outputs) "
                f"for {f.shape[1]} latents, got {y.shape[1]}"
            )
        self.validate(y, "y")
        return y.astype(f.dtype), None if X is None else jnp.asarray(X, f.dtype)


class ScalarLikelihood(Likelihood):
    """Each output depends on one latent: expectations by quadrature, where a subclass has no closed form.

    Quadrature calls `_log_prob` with nodes on a new first axis of f, [K, N, P].
    """

    num_points: int = eqx.field(static=True, default=DEFAULT_POINTS, kw_only=True)

    def _places(self, y) -> expectations.Places:
        """Where log p(y | f) bends, as a function of f: pairs of centre and width. None, if nowhere in less than 1."""
        return ()

    def _expected_log_prob(self, mean, var, y, X, key):
        return expectations.expectation(lambda f: self._log_prob(f, y, X), mean, var, self.num_points, self._places(y))

    def _log_predictive(self, mean, var, y, X, key):
        return expectations.log_expectation(
            lambda f: self._log_prob(f, y, X), mean, var, self.num_points, self._places(y)
        )


def as_integer(value: Any) -> Any:
    """NumPy's integers as Python's, which can be static; all else as it is."""
    return int(value) if isinstance(value, np.integer) else value


def is_count(y: np.ndarray) -> np.ndarray:
    """Which entries are 0, 1, 2, ..."""
    return (y >= 0) & (y == np.floor(y)) & np.isfinite(y)
