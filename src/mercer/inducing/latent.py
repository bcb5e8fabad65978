"""Inducing variables of functions with several outputs.

A process made of L independent latent functions is best seen through variables of these (paper 004, sections 4.3.2 and
4.3.3): L groups of M that are independent a priori, so that no matrix is larger than [M, M]. What the groups are made of
is any kind of inducing variables for one function, whose structure stays as it is.
"""

import abc
from collections.abc import Callable, Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mercer import validation
from mercer.inducing.base import InducingVariables
from mercer.parameters import is_concrete, param, real
from mercer.validation import AnyArray


class LatentVariables(InducingVariables):
    """Variables of each of the L latent functions of a process, M for each."""

    @abc.abstractmethod
    def parts(self, num_latents: int) -> tuple[InducingVariables, ...]:
        """The variables of each latent function, or a single set that stands for all of them."""

    def of_function(self, f):
        latent = getattr(f, "latent", None)
        if latent is None:
            raise ValueError(
                f"{type(self).__name__} are variables of latent functions, which this function does not have"
            )
        return self.of_latents(latent)

    @abc.abstractmethod
    def of_latents(self, latent: Callable[[Array], Array]) -> Float[Array, "M L"]:
        """The variables of given latent functions."""


class Shared(LatentVariables):
    """The same inducing variables for each latent function: the same points, the same frequencies."""

    inducing: InducingVariables

    def __check_init__(self):
        if not isinstance(self.inducing, InducingVariables) or isinstance(self.inducing, LatentVariables):
            raise ValueError(f"Shared expects inducing variables of one function, got {type(self.inducing).__name__}")

    @property
    def num(self):
        return self.inducing.num

    def parts(self, num_latents):
        return (self.inducing,)

    def of_latents(self, latent):
        return self.inducing.of_function(latent)


class Separate(LatentVariables):
    """Inducing variables of its own for each latent function, as many for each."""

    inducing: tuple[InducingVariables, ...]

    def __init__(self, inducing: Sequence[InducingVariables]):
        self.inducing = tuple(inducing)

    def __check_init__(self):
        kinds = [type(part).__name__ for part in self.inducing]
        if not kinds or not all(
            isinstance(part, InducingVariables) and not isinstance(part, LatentVariables) for part in self.inducing
        ):
            raise ValueError(f"Separate expects inducing variables of one function each, at least one, got {kinds}")
        numbers = [part.num for part in self.inducing]
        if len(set(numbers)) > 1:
            raise ValueError(f"Separate expects as many variables for each latent function, got {numbers}")

    @property
    def num(self):
        return self.inducing[0].num

    def parts(self, num_latents):
        if len(self.inducing) != num_latents:
            raise ValueError(
                f"Separate expects inducing variables for each of {num_latents} latent functions, got {len(self.inducing)}"
            )
        return self.inducing

    def of_latents(self, latent):
        def column(i):
            return lambda X: latent(X)[:, i : i + 1]

        return jnp.concatenate([part.of_function(column(i)) for i, part in enumerate(self.inducing)], axis=1)


class OutputPoints(InducingVariables):
    """u_m = f_{p_m}(z_m): one chosen output at each point (paper 004, equation 47)."""

    Z: Float[Array, "M D"] = param(real)
    outputs: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, Z: Float[AnyArray, "M D"], outputs: Sequence[int] | Int[AnyArray, " M"]):
        self.Z, self.outputs = Z, tuple(int(p) for p in np.asarray(outputs))

    def __check_init__(self):
        if is_concrete(self.Z):
            validation.inputs(self.Z, "Z")
        if len(self.outputs) != self.Z.shape[0] or min(self.outputs, default=0) < 0:
            raise ValueError(
                f"outputs expects the number of an output for each of {self.Z.shape[0]} points, got {len(self.outputs)}"
            )

    @property
    def num(self):
        return self.Z.shape[0]

    def of_function(self, f):
        return f(self.Z)[jnp.arange(self.num), jnp.asarray(self.outputs)][:, None]
