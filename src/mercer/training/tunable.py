"""Optimisers whose numbers are data, so that runs with other learning rates share what is compiled.

An optimiser of optax is two functions with its numbers inside: another learning rate is another program. Here the numbers are
a part of the state, and the optimiser is made of numbers that JAX traces.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax


class Tuned(NamedTuple):
    """The state: the numbers, and the state of the optimiser that they make."""

    numbers: tuple[jax.Array, ...]
    inner: Any


@dataclasses.dataclass(frozen=True)
class Form:
    """What optimisers have in common that differ in numbers alone: the names of these, and all other settings."""

    make: Callable[..., optax.GradientTransformation]
    names: tuple[str, ...]
    others: tuple[tuple[str, Any], ...]

    def start(self, params: Any, numbers: tuple[Any, ...]) -> Tuned:
        """The state before the first step."""
        dtype = jnp.result_type(*jax.tree.leaves(params))
        arrays = tuple(jnp.asarray(number, dtype) for number in numbers)
        return Tuned(arrays, self._made(arrays).init(params))

    def update(self, updates: Any, state: Tuned, params: Any = None, **extra: Any) -> tuple[Any, Tuned]:
        """As that of optax."""
        updates, inner = self._made(state.numbers).update(updates, state.inner, params, **extra)
        return updates, Tuned(state.numbers, inner)

    def _made(self, numbers: tuple[Any, ...]) -> optax.GradientTransformationExtraArgs:
        named = dict(zip(self.names, numbers, strict=True))
        return optax.with_extra_args_support(self.make(**named, **dict(self.others)))


@dataclasses.dataclass(frozen=True)
class Start:
    """The `init` of a tunable optimiser."""

    form: Form
    numbers: tuple[float, ...]

    def __call__(self, params: Any) -> Tuned:
        """The state before the first step."""
        return self.form.start(params, self.numbers)


def tunable(
    make: Callable[..., optax.GradientTransformation], settings: Mapping[str, Any]
) -> optax.GradientTransformation:
    """`make(**settings)`, with those settings as data that are floats, if there are some and it can be made of traced ones."""
    names = tuple(sorted(name for name, value in settings.items() if type(value) is float))
    form = Form(make, names, tuple((name, settings[name]) for name in sorted(settings) if name not in names))
    numbers = tuple(settings[name] for name in names)
    if not names or not _can_be_shared(form, numbers):
        return make(**settings)
    return optax.GradientTransformationExtraArgs(Start(form, numbers), form.update)


def form_and_numbers(optimiser: Any) -> tuple[Any, tuple[float, ...]]:
    """What of an optimiser is compiled, and the numbers that are data: none, but of a tunable one."""
    start = getattr(optimiser, "init", None)
    return (start.form, start.numbers) if isinstance(start, Start) else (optimiser, ())


def _can_be_shared(form: Form, numbers: tuple[float, ...]) -> bool:
    """Whether a form can be looked up, and a step be traced with numbers that are not known.

    A step that searches along a line asks for the loss, and cannot.
    """

    def step(x, numbers):
        return form.update(x, form.start(x, numbers), x)

    try:
        hash(form)
        jax.eval_shape(step, np.zeros(1), numbers)
    except Exception:  # whatever the code of another library does with a number that it cannot look at
        return False
    return True
