"""Inputs that are known up to Gaussian noise."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from mercer import validation
from mercer.parameters import Module, constant, is_concrete
from mercer.roots import safe_sqrt
from mercer.validation import AnyArray, OneOrMany


class Normal(Module):
    """N(mean, variance): inputs [N, D] with independent noise of known variance, a number, one for each column, or [N, D].

    Where a question has no closed form, or with `closed_form=False`, `num_samples` draws of the inputs make a mixture. A bound on
    the evidence takes `training_samples` of them.
    """

    num_samples: int = eqx.field(static=True)
    training_samples: int = eqx.field(static=True)
    closed_form: bool = eqx.field(static=True)
    mean: Float[Array, "N D"] = constant()
    variance: Float[Array, "N D"] = constant()

    def __init__(
        self,
        mean: Float[AnyArray, "N D"],
        variance: OneOrMany,
        num_samples: int = 100,
        training_samples: int = 1,
        closed_form: bool = True,
    ):
        self.mean = validation.inputs(mean, "mean")
        variance = jnp.asarray(variance, self.mean.dtype)
        if variance.shape not in ((), self.mean.shape[1:], self.mean.shape):
            raise ValueError(
                f"Normal: variance expects a number, one for each column, or shape {self.mean.shape} as the mean has, got shape "
                f"{variance.shape}"
            )
        if is_concrete(variance) and not bool((np.asarray(variance) >= 0.0).all()):
            raise ValueError("Normal: variance must not be negative, nor NaN")
        for name, number in (("num_samples", num_samples), ("training_samples", training_samples)):
            if not isinstance(number, int) or number < 1:
                raise ValueError(f"Normal: {name} expects a whole number, at least 1, got {number!r}")
        self.variance = jnp.broadcast_to(variance, self.mean.shape)
        self.num_samples, self.training_samples, self.closed_form = num_samples, training_samples, closed_form

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def dimension(self) -> int:
        """D."""
        return self.mean.shape[1]

    @property
    def arrays(self) -> tuple[Float[Array, "N D"], Float[Array, "N D"]]:
        """The means and the variances."""
        return self.mean, self.variance

    def at(self, mean: Float[Array, "N D"], variance: Float[Array, "N D"]) -> "Normal":
        """Inputs of other means and variances, treated in the same way."""
        return Normal(mean, variance, self.num_samples, self.training_samples, self.closed_form)

    def in_training(self, closed_form: bool) -> "Normal":
        """The inputs as bounds on the evidence see them; in closed form where that is exact, and asked for."""
        closed = closed_form and self.closed_form
        return Normal(*self.arrays, self.training_samples, self.training_samples, closed)

    def draws(self, *, key: PRNGKeyArray) -> Float[Array, "S N D"]:
        """`num_samples` draws of the inputs."""
        noise = jax.random.normal(key, (self.num_samples, *self.mean.shape), self.mean.dtype)
        return self.mean + safe_sqrt(self.variance) * noise
