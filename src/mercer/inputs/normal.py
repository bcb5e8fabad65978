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

    `num_samples` is for questions that have no closed form: as many draws of the inputs make a mixture.
    """

    num_samples: int = eqx.field(static=True)
    mean: Float[Array, "N D"] = constant()
    variance: Float[Array, "N D"] = constant()

    def __init__(self, mean: Float[AnyArray, "N D"], variance: OneOrMany, num_samples: int = 100):
        self.mean = validation.inputs(mean, "mean")
        variance = jnp.asarray(variance, self.mean.dtype)
        if variance.shape not in ((), self.mean.shape[1:], self.mean.shape):
            raise ValueError(
                f"Normal: variance expects a number, one for each column, or shape {self.mean.shape} as the mean has, got shape "
                f"{variance.shape}"
            )
        if is_concrete(variance) and not bool((np.asarray(variance) >= 0.0).all()):
            raise ValueError("Normal: variance must not be negative, nor NaN")
        if not isinstance(num_samples, int) or num_samples < 1:
            raise ValueError(f"Normal: num_samples expects a whole number, at least 1, got {num_samples!r}")
        self.variance, self.num_samples = jnp.broadcast_to(variance, self.mean.shape), num_samples

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def dimension(self) -> int:
        """D."""
        return self.mean.shape[1]

    def draws(self, *, key: PRNGKeyArray) -> Float[Array, "S N D"]:
        """`num_samples` draws of the inputs."""
        noise = jax.random.normal(key, (self.num_samples, *self.mean.shape), self.mean.dtype)
        return self.mean + safe_sqrt(self.variance) * noise
