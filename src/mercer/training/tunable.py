"""What optax makes of numbers, with the numbers as data, so that runs with other learning rates share what is compiled.

An optimiser of optax is two functions with its numbers inside: another learning rate is another program. Here the numbers are
a part of the state, and the optimiser is made of numbers that JAX traces. So are schedules, and what is made of others, such as
a chain.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax


class Number:
    """The place of a number in a form."""


class Tuned(NamedTuple):
    """The state: the numbers, and the state of the optimiser that they make."""

    numbers: tuple[jax.Array, ...]
    inner: Any


@dataclasses.dataclass(frozen=True)
class Form:
    """What optimisers or schedules have in common that differ in numbers alone: who makes them, and of what.

    An argument is `Number`, the form of what is tunable itself, a tuple of these, or what it is for all of them.
    """

    make: Callable[..., Any]
    positional: tuple[Any, ...]
    named: tuple[tuple[str, Any], ...]

    def made(self, numbers: Iterator[Any]) -> Any:
        """What optax makes of numbers, which come in the order of the arguments."""
        positional = _filled(self.positional, numbers)
        return self.make(*positional, **{name: _filled(part, numbers) for name, part in self.named})

    def start(self, params: Any, numbers: tuple[Any, ...]) -> Tuned:
        """The state of an optimiser before the first step."""
        dtype = jnp.result_type(*jax.tree.leaves(params))
        arrays = tuple(jnp.asarray(number, dtype) for number in numbers)
        return Tuned(arrays, self.made(iter(arrays)).init(params))

    def update(self, updates: Any, state: Tuned, params: Any = None, **extra: Any) -> tuple[Any, Tuned]:
        """As that of optax."""
        optimiser = optax.with_extra_args_support(self.made(iter(state.numbers)))
        updates, inner = optimiser.update(updates, state.inner, params, **extra)
        return updates, Tuned(state.numbers, inner)


@dataclasses.dataclass(frozen=True)
class _Tunable(abc.ABC):
    """A form with its numbers."""

    form: Form
    numbers: tuple[float, ...]

    @abc.abstractmethod
    def __call__(self, value: Any) -> Any:
        """What the function of optax gives that this stands for."""


class Start(_Tunable):
    """The `init` of a tunable optimiser."""

    def __call__(self, params: Any) -> Tuned:
        """The state before the first step."""
        return self.form.start(params, self.numbers)


class Schedule(_Tunable):
    """A tunable schedule."""

    def __call__(self, count: Any) -> Any:
        """The value at a step."""
        return self.form.made(iter(self.numbers))(count)


def tunable(make: Callable[..., Any], settings: Mapping[str, Any], *positional: Any) -> Any:
    """The optimiser or schedule `make(*positional, **settings)`, with its numbers as data.

    The numbers are the floats among its arguments, and those of arguments that are tunable themselves. Without any, or where it
    cannot be made of traced ones, it is what optax makes.
    """
    parts, numbers = _apart((positional, *(settings[name] for name in sorted(settings))))
    form = Form(make, parts[0], tuple(zip(sorted(settings), parts[1:], strict=True)))
    made = make(*positional, **settings)
    is_optimiser = isinstance(made, optax.GradientTransformation)
    if not numbers or not _can_be_shared(form, numbers, is_optimiser):
        return made
    if is_optimiser:
        return optax.GradientTransformationExtraArgs(Start(form, numbers), form.update)
    return Schedule(form, numbers)


def form_and_numbers(made: Any) -> tuple[Any, tuple[float, ...]]:
    """What of an optimiser or a schedule is compiled, and the numbers that are data: none, but of a tunable one."""
    held = made if isinstance(made, Schedule) else getattr(made, "init", None)
    return (held.form, held.numbers) if isinstance(held, _Tunable) else (made, ())


def _apart(part: Any) -> tuple[Any, tuple[float, ...]]:
    """An argument without its numbers, and these."""
    if type(part) is float:
        return Number, (part,)
    if type(part) is tuple:
        pairs = [_apart(inner) for inner in part]
        return tuple(form for form, _ in pairs), tuple(number for _, numbers in pairs for number in numbers)
    return form_and_numbers(part)


def _filled(part: Any, numbers: Iterator[Any]) -> Any:
    """An argument with numbers in their places."""
    if part is Number:
        return next(numbers)
    if type(part) is tuple:
        return tuple(_filled(inner, numbers) for inner in part)
    return part.made(numbers) if isinstance(part, Form) else part


def _can_be_shared(form: Form, numbers: tuple[float, ...], is_optimiser: bool) -> bool:
    """Whether a form can be looked up, and a step be traced with numbers that are not known.

    A step that searches along a line asks for the loss, and cannot.
    """

    def step(x, numbers):
        return form.update(x, form.start(x, numbers), x) if is_optimiser else form.made(iter(numbers))(0)

    try:
        hash(form)
        jax.eval_shape(step, np.zeros(1), numbers)
    except Exception:  # whatever the code of another library does with a number that it cannot look at
        return False
    return True
