"""Inputs that nobody observed: a Gaussian q(x_n) for each row of data, free or given by a network, and a prior (paper 004, 7.1).

A bound on the evidence averages over q(x_n), and loses its divergence from the prior p(x_n) (Titsias and Lawrence, 2010).
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mercer import modules, validation
from mercer.inputs.normal import Normal
from mercer.parameters import Module, is_concrete, param, positive, real
from mercer.roots import safe_sqrt
from mercer.validation import AnyArray, OneOrMany

_LOG_2PI = float(np.log(2.0 * np.pi))


class LatentRows(NamedTuple):
    """Of some rows of data: q(x_n) and the prior p(x_n) of the columns that are latent, and the columns that are given."""

    given: Float[Array, "N D"] | None
    q: Normal
    p: Normal

    def inputs(self) -> Normal:
        """All columns: those that are given, without noise, and then the latent ones."""
        return beside(self.given, self.q)

    def divergence(self) -> Float[Array, " N"]:
        """KL[q(x_n) || p(x_n)], in nats."""
        ratio = self.q.variance / self.p.variance
        moved = (self.q.mean - self.p.mean) ** 2 / self.p.variance
        return 0.5 * jnp.sum(ratio + moved - 1.0 - jnp.log(ratio), axis=1)

    def with_given(self, draws: Float[Array, "S N Q"]) -> Float[Array, "S N D2"]:
        """Draws of the latent columns, with the columns that are given before them."""
        if self.given is None:
            return draws
        given = jnp.broadcast_to(self.given.astype(draws.dtype), (len(draws), *self.given.shape))
        return jnp.concatenate([given, draws], axis=-1)

    def proposals(self, num: int, *, key: PRNGKeyArray) -> Float[Array, "S N Q"]:
        """Draws of the latent columns from q."""
        noise = jax.random.normal(key, (num, *self.q.mean.shape), self.q.mean.dtype)
        return self.q.mean + safe_sqrt(self.q.variance) * noise

    def log_weights(self, draws: Float[Array, "S N Q"]) -> Float[Array, "S N"]:
        """log p(x_n) - log q(x_n)."""
        return _log_density(self.p, draws) - _log_density(self.q, draws)


def _log_density(x: Normal, draws: Float[Array, "S N Q"]) -> Float[Array, "S N"]:
    return -0.5 * jnp.sum(_LOG_2PI + jnp.log(x.variance) + (draws - x.mean) ** 2 / x.variance, axis=-1)


def beside(given: Float[Array, "N D"] | None, x: Normal) -> Normal:
    """The inputs with columns that are known before them."""
    if given is None:
        return x
    mean = jnp.concatenate([given.astype(x.mean.dtype), x.mean], axis=1)
    variance = jnp.concatenate([jnp.zeros(given.shape, x.mean.dtype), x.variance], axis=1)
    return x.at(mean, variance)


class LatentInputs(Module):
    """Latent inputs, or latent columns of inputs: `dimension` of them. A new kind says `_of_rows` and `check`."""

    prior: eqx.AbstractVar[Normal]

    @property
    def dimension(self) -> int:
        """Q, how many columns are latent."""
        return self.prior.dimension

    @abc.abstractmethod
    def _of_rows(self, X: Array | None, Y: Array | None, index: Array | None) -> tuple[Array, Array]:
        """The mean and the variance of q(x_n) of the rows."""

    @abc.abstractmethod
    def check(self, X: Any, Y: Float[AnyArray, "N P"], num_data: int) -> None:
        """Refuses data that it has no q(x_n) for. Called before anything is compiled."""

    def of_rows(
        self,
        X: Float[Array, "N D"] | None,
        Y: Float[Array, "N P"] | None,
        index: Int[Array, " N"] | None,
        training_samples: int = 1,
    ) -> LatentRows:
        """q and p of rows of data, given the columns X that were observed, Y, and the numbers of the rows in the data set.

        A bound on the evidence takes `training_samples` draws of them.
        """
        mean, variance = self._of_rows(X, Y, index)
        q = Normal(mean, variance, training_samples=training_samples)
        return LatentRows(X, q, self._prior_of(len(q), index))

    def from_prior(self, X: Float[Array, "N D"], num_samples: int) -> Normal:
        """Inputs whose latent columns follow the prior, as those of new rows do."""
        if len(self.prior) > 1:
            raise ValueError(f"{type(self).__name__} has a prior for each of its own rows, and none for new ones")
        prior = self._prior_of(len(X), None)
        return beside(X, Normal(prior.mean, prior.variance, num_samples, closed_form=False))

    def _prior_of(self, num: int, index: Array | None) -> Normal:
        if len(self.prior) > 1:
            return self.prior if index is None else jax.tree.map(lambda leaf: leaf[index], self.prior)
        return self.prior.at(*(jnp.broadcast_to(leaf, (num, self.dimension)) for leaf in self.prior.arrays))


class Latent(LatentInputs):
    """q(x_n) = N(mean_n, variance_n), one for each row of the data, both trained.

    `mean` is [N, Q]; `variance` a number, one for each column, or [N, Q]. `prior`, a `Normal` of one row or of N, is N(0, I) by
    default. One of N rows is for inputs that were observed with noise and are to be corrected by what the outputs say.
    """

    mean: Float[Array, "N Q"] = param(real)
    variance: Float[Array, "N Q"] = param(positive)
    prior: Normal

    def __init__(self, mean: Float[AnyArray, "N Q"], variance: OneOrMany = 0.1, prior: Normal | None = None):
        self.mean = validation.inputs(mean, "mean")
        variance = jnp.asarray(variance, self.mean.dtype)
        if variance.shape not in ((), self.mean.shape[1:], self.mean.shape):
            raise ValueError(
                f"Latent: variance expects a number, one for each column, or shape {self.mean.shape} as the mean has, got shape "
                f"{variance.shape}"
            )
        if is_concrete(variance) and not bool((np.asarray(variance) > 0.0).all()):
            raise ValueError("Latent: variance must be positive")
        self.variance = jnp.broadcast_to(variance, self.mean.shape)
        self.prior = _checked_prior(prior, self.mean.shape[1], "Latent", self.mean.dtype)
        if len(self.prior) not in (1, len(self.mean)):
            raise ValueError(
                f"Latent: prior expects one row, or {len(self.mean)} as the mean has, got {len(self.prior)}"
            )

    def __len__(self) -> int:
        return len(self.mean)

    def _of_rows(self, X, Y, index):
        return (self.mean, self.variance) if index is None else (self.mean[index], self.variance[index])

    def check(self, X, Y, num_data):
        if num_data != len(self):
            raise ValueError(f"Latent has {len(self)} rows, one for each datum, and the data have {num_data}")


class Amortised(LatentInputs):
    """q(x_n) from a network: `encoder` takes y_n, or [x_n, y_n] where columns X are observed, to 2 Q numbers.

    The first Q are the mean, the softplus of the others is the variance. An entry of y_n that is missing is shown as 0; with
    `flags` the encoder also sees P more numbers, 1 where y_n was observed and 0 elsewhere. `prior` is N(0, I) by default.
    `width` is how many numbers the encoder takes, for modules that do not say so.
    """

    prior: Normal
    size: int = eqx.field(static=True)
    flags: bool = eqx.field(static=True)
    encoder: modules.Module = param(real)

    def __init__(
        self,
        encoder: modules.Module,
        flags: bool = False,
        prior: Normal | None = None,
        width: int | None = None,
    ):
        modules.check_module(encoder, "Amortised")
        self.encoder, self.flags = encoder, flags
        self.size = modules.input_size(encoder, width, "Amortised", "width")
        outputs = modules.output_size(encoder, self.size, "Amortised")
        if outputs % 2:
            raise ValueError(
                f"Amortised: encoder expects an even number of outputs, a mean and a variance of each column, got {outputs}"
            )
        self.prior = _checked_prior(prior, outputs // 2, "Amortised", jnp.result_type(float))
        if len(self.prior) != 1:
            raise ValueError(f"Amortised: prior expects one row, got {len(self.prior)}")

    def seen(self, X: Float[Array, "N D"] | None, Y: Float[Array, "N P"]) -> Float[Array, "N K"]:
        """What the encoder sees of rows of data."""
        observed = ~jnp.isnan(Y)
        parts = [] if X is None else [X.astype(Y.dtype)]
        parts += [jnp.where(observed, Y, 0.0)] + ([observed.astype(Y.dtype)] if self.flags else [])
        return jnp.concatenate(parts, axis=1)

    def _of_rows(self, X, Y, index):
        if Y is None:
            raise ValueError("Amortised finds inputs from outputs: `mercer.infer(model, Y)` gives those of rows of Y")
        mean, raw = jnp.split(modules.of_rows(self.encoder, self.seen(X, Y), "Amortised"), 2, axis=1)
        return mean, jax.nn.softplus(raw)

    def check(self, X, Y, num_data):
        columns, given = np.shape(Y)[1], 0 if X is None else X.shape[1]
        width = given + columns * (2 if self.flags else 1)
        if width != self.size:
            raise ValueError(
                f"Amortised: the encoder takes {self.size} numbers, and a row of the data has {width}: {given} of X, "
                f"{columns} of Y" + (f" and {columns} flags" if self.flags else "")
            )


def _checked_prior(prior: Normal | None, dimension: int, name: str, dtype: Any) -> Normal:
    if prior is None:
        return Normal(np.zeros((1, dimension), dtype), 1.0)
    if not isinstance(prior, Normal) or prior.dimension != dimension:
        got = f"{prior.dimension} columns" if isinstance(prior, Normal) else type(prior).__name__
        raise ValueError(f"{name}: prior expects a mercer.inputs.Normal of {dimension} columns, got {got}")
    if is_concrete(prior.variance) and not bool((np.asarray(prior.variance) > 0.0).all()):
        raise ValueError(f"{name}: the variance of the prior must be positive")
    return prior
