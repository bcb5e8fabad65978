"""What a configuration may name: the public classes of mercer and the layers of equinox, by their constructors.

Nothing is listed a second time: classes come from the registry of `mercer.io`, parameters from signatures, types from the
annotations of fields and constructors. A class takes part under its own name (`RBF`), and so does a constructor of another
name (`Deep.of`), a way to select inducing inputs (`kmeans`), an optimiser or a schedule of optax (`adam`). Where two have
the same name, the longer one tells them apart (`kernels.Linear`, `means.Linear`). What users register is under the last part of
its name, and under the whole.
"""

import dataclasses
import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import optax

from mercer import inducing
from mercer.experiments import data, stages
from mercer.io import registry

EMPTY = inspect.Parameter.empty
# Packages with classes that models and objectives are made of.
_PACKAGES = (
    "kernels",
    "kernels.nngp",
    "means",
    "likelihoods",
    "inducing",
    "inducing.activations",
    "processes",
    "inputs",
    "divergences",
    "objectives",
    "objectives.measurement",
    "objectives.risks",
    "features",
    "priors",
    "harmonics",
    "training",
    "model",
    "modules",
    "calibration",
    "parameters",
)
_SELECTIONS = (inducing.greedy_variance, inducing.kmeans, inducing.random_subset, inducing.random_patches)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a constructor: its annotation, and its default or `EMPTY`."""

    name: str
    hint: Any
    default: Any
    variadic: bool = False


class Entry(NamedTuple):
    """Something that a configuration can name: what is called, the class of what it gives, and what it takes."""

    name: str
    full_name: str
    target: Callable[..., Any]
    gives: Any
    parameters: tuple[Parameter, ...]


class Selected:
    """What selections and starts such as `lengthscales` give: an array."""


class Catalogue:
    """Entries by name. `of(kind)` are those that give a kind of object; `of(None)` are all."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self.entries = tuple(entries)
        self._of: dict[Any, dict[str, Entry]] = {}

    def of(self, kind: Any) -> dict[str, Entry]:
        """The entries that give an object of a class, by the shortest name that is theirs alone, and by longer ones."""
        if kind not in self._of:
            self._of[kind] = self._named(kind)
        return self._of[kind]

    def _named(self, kind: Any) -> dict[str, Entry]:
        fitting = [entry for entry in self.entries if kind is None or _gives(entry, kind)]
        named: dict[str, list[Entry]] = {}
        for entry in fitting:
            for name in {entry.name, entry.full_name, entry.full_name.removeprefix("mercer.")}:
                named.setdefault(name, []).append(entry)
        return {name: entries[0] for name, entries in named.items() if len(entries) == 1}


def _gives(entry: Entry, kind: Any) -> bool:
    return inspect.isclass(entry.gives) and inspect.isclass(kind) and issubclass(entry.gives, kind)


def catalogue() -> Catalogue:
    """All that is known now."""
    for package in _PACKAGES:
        importlib.import_module(f"mercer.{package}")
    return _catalogue(tuple(registry.registered()), tuple(stages.STAGES.items()))


@functools.lru_cache(maxsize=1)
def _catalogue(registered: tuple[tuple[str, type], ...], of_stages: tuple[tuple[str, Callable], ...]) -> Catalogue:
    return Catalogue(_entries(registered, of_stages))


def _entries(registered: tuple[tuple[str, type], ...], of_stages: tuple[tuple[str, Callable], ...]) -> Iterator[Entry]:
    public = [*_public(), *registered]
    for full_name, cls in public:
        yield Entry(full_name.rpartition(".")[2], full_name, cls, cls, _parameters(cls))
        for name, method in inspect.getmembers(cls, inspect.ismethod):
            if not name.startswith("_") and _returns(method, cls):
                yield Entry(f"{cls.__name__}.{name}", f"{full_name}.{name}", method, cls, _signature(method))
    for function in _SELECTIONS:
        name = function.__name__
        yield Entry(name, f"mercer.inducing.{name}", function, Selected, _signature(function))
    for start in stages.STARTS:
        yield Entry(start.__name__, f"mercer.experiments.{start.__name__}", start, Selected, _signature(start))
    for name, function in vars(data).items():
        if inspect.isfunction(function) and not name.startswith("_") and _said(function) is data.Data:
            yield Entry(name, f"mercer.experiments.{name}", function, data.Data, _signature(function))
    for cls in (data.Split, stages.Root):
        yield Entry(cls.__name__, f"mercer.experiments.{cls.__name__}", cls, cls, _signature(cls))
    for name, function in of_stages:
        yield Entry(name, f"mercer.experiments.{name}", function, stages.Stage, _signature(function, skip=1))
    for name, function in vars(optax).items():
        gives = _made_by_optax(function)
        if gives is not None and not name.startswith("_"):
            yield Entry(name, f"optax.{name}", function, gives, _signature(function))


def _public() -> Iterator[tuple[str, type]]:
    """The concrete classes that mercer and equinox offer by name."""
    seen: set[type] = set()
    for package in _PACKAGES:
        module = importlib.import_module(f"mercer.{package}")
        for name in getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]:
            cls = getattr(module, name)
            known = registry.class_name(cls) if inspect.isclass(cls) and not inspect.isabstract(cls) else None
            if known is not None and known.startswith("mercer.") and cls not in seen:
                seen.add(cls)
                yield known, cls
    for name, cls in vars(eqx.nn).items():
        if inspect.isclass(cls) and issubclass(cls, eqx.Module) and registry.class_name(cls) is not None:
            yield f"equinox.nn.{name}", cls


def _said(function: Callable[..., Any]) -> Any:
    return inspect.signature(function).return_annotation


def _returns(method: Any, cls: type) -> bool:
    """Whether a class method is another constructor."""
    said = _said(method)
    return inspect.isclass(method.__self__) and (
        said is typing.Self or said in (cls, cls.__name__, f'"{cls.__name__}"')
    )


class Optimiser:
    """What optimisers of optax are, for the sake of a name."""


class Schedule:
    """What schedules of optax are."""


def _made_by_optax(function: Any) -> Any:
    if not inspect.isfunction(function):
        return None
    if vars(optax.schedules).get(function.__name__) is function:
        return Schedule
    return Optimiser if "GradientTransformation" in str(inspect.signature(function).return_annotation) else None


def _parameters(cls: type) -> tuple[Parameter, ...]:
    if issubclass(cls, tuple):
        return _signature(cls.__new__, skip=1)
    hints, found = _class_hints(cls), _signature(cls.__init__, skip=1)
    vague = (Any, EMPTY)
    return tuple(dataclasses.replace(p, hint=hints.get(p.name, p.hint)) if p.hint in vague else p for p in found)


def _class_hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except Exception:  # an annotation that names what only its own module knows
        return {name: field.type for name, field in getattr(cls, "__dataclass_fields__", {}).items()}


def _signature(function: Callable[..., Any], skip: int = 0) -> tuple[Parameter, ...]:
    plain = inspect.unwrap(function)
    try:
        hints = typing.get_type_hints(plain)
    except Exception:
        hints = {}
    found = []
    for parameter in list(inspect.signature(function).parameters.values())[skip:]:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        hint = hints.get(parameter.name, parameter.annotation)
        variadic = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        found.append(Parameter(parameter.name, hint, () if variadic else parameter.default, variadic))
    return tuple(found)
