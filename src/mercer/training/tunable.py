"""Optimisers whose numbers are data, so that runs with other learning rates share what is compiled.

An optimiser of optax is two functions with its numbers inside: another learning rate is another program. Here the numbers are
a part of the state, and the optimiser is made of numbers that JAX traces.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax


class Tuned(NamedTuple):
    """The state: the numbers, and the state of the optimiser that they make."""

    numbers: dict[str, jax.Array]
    inner: Any


class Form(NamedTuple):
    """What optimisers have in common that differ in numbers alone: `make(**numbers, **others)`."""

    make: Callable[..., optax.GradientTransformation]
    names: tuple[str, ...]  # of the numbers
    others: tuple[tuple[str, Any], ...]

    def start(self, params: Any, numbers: Mapping[str, Any]) -> Tuned:
        """The state before the first step."""
        dtype = jnp.result_type(*jax.tree.leaves(params))
        arrays = {name: jnp.asarray(numbers[name], dtype) for name in self.names}
        return Tuned(arrays, self.make(**arrays, **dict(self.others)).init(params))

    def update(self, updates: Any, state: Tuned, params: Any = None, **extra: Any) -> tuple[Any, Tuned]:
        """As that of optax."""
        made = optax.with_extra_args_support(self.make(**state.numbers, **dict(self.others)))
        updates, inner = made.update(updates, state.inner, params, **extra)
        return updates, Tuned(state.numbers, inner)


class Tunable(optax.GradientTransformationExtraArgs):
    """An optimiser of optax, of which it is known what it was made of."""

    form: Form
    numbers: dict[str, float]

    def __new__(cls, form: Form, numbers: Mapping[str, float]):
        def init(params):
            return form.start(params, numbers)

        self = super().__new__(cls, init, form.update)
        self.form, self.numbers = form, dict(numbers)
        return self


def tunable(
    make: Callable[..., optax.GradientTransformation], settings: Mapping[str, Any]
) -> optax.GradientTransformation:
    """`make(**settings)`; a `Tunable` in the settings that are floats, if there are some and it can be made of traced ones."""
    numbers = {name: value for name, value in sorted(settings.items()) if type(value) is float}
    others = tuple((name, value) for name, value in sorted(settings.items()) if name not in numbers)
    form = Form(make, tuple(numbers), others)
    return Tunable(form, numbers) if numbers and _can_be_shared(form, numbers) else make(**settings)


def form_and_numbers(optimiser: Any) -> tuple[Any, dict[str, float]]:
    """What of an optimiser is compiled, and the numbers that are data: none, but of a `Tunable`."""
    return (optimiser.form, optimiser.numbers) if isinstance(optimiser, Tunable) else (optimiser, {})


def _can_be_shared(form: Form, numbers: Mapping[str, float]) -> bool:
    """Whether a form can be looked up, and a step be traced with numbers that are not known.

    A step that searches along a line asks for the loss, and cannot.
    """

    def step(x, numbers):
        return form.update(x, form.start(x, numbers), x)

    try:
        hash(form)
        jax.eval_shape(step, np.zeros(1), dict(numbers))
    except Exception:  # whatever the code of another library does with a number that it cannot look at
        return False
    return True
