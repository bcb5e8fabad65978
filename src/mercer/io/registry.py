"""What a file may name: the classes and functions that models are made of, each under one name.

A file holds names, and a name that is not in a table here is refused: nothing but mercer itself is imported for its sake. Known
from the start are the classes of mercer, the layers of `equinox.nn`, and pure functions of JAX that serve as activations and
the like; `register` adds what users write. An object is rebuilt from its fields without its constructor, and then checked.
"""

import collections.abc
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeVar, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
from jaxtyping import jaxtyped

import mercer
from mercer.parameters import Declaration, Module

Target = TypeVar("Target", bound=Callable)

_RESERVED = ("mercer.", "equinox.", "jax.", "numpy.")
_classes: dict[str, type] = {}
_functions: dict[str, Callable] = {}

# These modules are public as `mercer.GP`, `mercer.Model`. The names are in files: do not change them.
_AT_THE_TOP = ("model", "processes")

# Functions of arrays without side effects: no `jax.numpy.load`, and none that calls what it is given.
_PURE = {
    jax.nn: "celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log1mexp log_sigmoid log_softmax "
    "logmeanexp logsumexp mish relu relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid squareplus "
    "standardize swish tanh",
    jnp: "abs absolute acos acosh add all amax amin any arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin "
    "around asin asinh atan atan2 atanh bfloat16 bool_ cbrt ceil clip complex128 complex64 conj conjugate copysign cos cosh "
    "cumprod cumsum deg2rad degrees divide exp exp2 expm1 fabs flip float16 float32 float64 float_power floor fmax fmin "
    "heaviside hypot imag int16 int32 int64 int8 log log10 log1p log2 logaddexp logaddexp2 max maximum mean median min minimum "
    "mod multiply nan_to_num nanmax nanmean nanmin nansum negative positive pow power prod rad2deg radians ravel real "
    "reciprocal remainder rint round sign sin sinc sinh sort sqrt square squeeze std subtract sum tan tanh transpose "
    "true_divide trunc uint16 uint32 uint64 uint8 var",
    jnp.linalg: "norm",
    jax.lax: "abs acos acosh add asin asinh atan atan2 atanh cbrt ceil cos cosh digamma div erf erf_inv erfc exp exp2 expm1 "
    "floor lgamma log log1p logistic max min mul neg pow real reciprocal round rsqrt sign sin sinh sqrt square stop_gradient "
    "sub tan tanh",
    jax.scipy.special: "digamma erf erfc erfinv expit gammaln i0e i1e log_ndtr logit ndtr ndtri xlog1py xlogy",
    np: "bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128",
}

# Fields that files from before they were added do not have, and what they are then, given the other fields.
_ADDED: dict[str, dict[str, Callable[[dict[str, Any]], Any]]] = {
    "mercer.objectives.Batch": {"index": lambda values: jnp.arange(len(values["Y"]), dtype=jnp.int32)},
    "mercer.objectives.CollapsedELBO": {"sums": lambda values: None},
    "mercer.objectives.SummedBatch": {
        "index": lambda values: jnp.arange(1, dtype=jnp.int32),
        "count": lambda values: jnp.asarray(values["num_data"], values["squares"].dtype),
        "variances": lambda values: jnp.full(
            len(values["gram"]), values.get("count", values["num_data"]), values["squares"].dtype
        ),
    },
    "mercer.CachedSparse": {"diagonal": lambda values: False},
    "mercer.Sparse": {"gradients": lambda values: "reduced", "joint": lambda values: False},
    "mercer.tabular.Settings": {"places": lambda values: ()},
    "mercer.training.Fit": {"objective": lambda values: None},
    "mercer.training.NaturalGradient": {"where": lambda values: None},
}

# Fields that had another name in files from before.
_RENAMED: dict[str, dict[str, str]] = {"mercer.likelihoods.CorrelatedGaussian": {"covariance": "noise_covariance"}}

_STATEFUL = "a layer with a state outside of the model (BatchNorm, SpectralNorm) cannot be saved; LayerNorm has none"


@overload
def register(target: Target, *, name: str | None = None) -> Target: ...


@overload
def register(target: None = None, *, name: str | None = None) -> Callable[[Target], Target]: ...


def register(target: Any = None, *, name: str | None = None) -> Any:
    """Makes a class or a function known to `save` and `load`: a decorator, `@register` or `@register(name="my.Kernel")`.

    A class is an `equinox.Module` (as all parts of models are), a dataclass or a NamedTuple. The name is what files hold, by
    default that of the module and of the class; a name given here outlasts a move to another module. A function that is
    registered can be put by a file wherever a model calls one: register only functions that are harmless with any arguments.
    """
    if target is None:
        return functools.partial(register, name=name)
    is_class = inspect.isclass(target)
    if not callable(target) or not hasattr(target, "__qualname__") or (is_class and not _has_fields(target)):
        raise ValueError(f"register expects a function, an equinox Module, a dataclass or a NamedTuple, got {target!r}")
    name = f"{target.__module__}.{target.__qualname__}" if name is None else name
    if not isinstance(name, str) or name.startswith(_RESERVED):
        raise ValueError(f"register expects a name that does not begin with {', '.join(_RESERVED)}, got {name!r}")
    if name.endswith("<lambda>"):
        raise ValueError("register expects a name for a lambda: register(function, name=...), or use def")
    table: dict[str, Any] = _classes if is_class else _functions
    other = (_functions if is_class else _classes).get(name) or table.get(name)
    if other is not None and _qualified(other) != _qualified(target):
        raise ValueError(f"register: the name {name!r} is taken by {describe(other)}; give another one, name=...")
    table[name] = target
    return target


def class_name(cls: type) -> str | None:
    """The name of a known class, or None."""
    return _name_in(cls, _classes, _mercer(), _equinox())


def function_name(function: Any) -> str | None:
    """The name of a known function, or None."""
    return _name_in(function, _functions, _pure())


def registered() -> list[tuple[str, type]]:
    """The classes that users registered, with their names."""
    return list(_classes.items())


def function_names() -> list[str]:
    """The names of all functions that are known."""
    return [*_functions, *_pure()]


def find_class(name: Any) -> type:
    """The class of a name."""
    if isinstance(name, str) and name.startswith("mercer.") and name not in _mercer():
        package = name.split(".")[1]
        if package in (found.name for found in pkgutil.iter_modules(mercer.__path__) if found.ispkg):
            importlib.import_module(f"mercer.{package}")  # one of our own, which nobody has imported yet
    return _find("class", name, _classes, _mercer(), _equinox())


def find_function(name: Any) -> Callable:
    """The function of a name."""
    return _find("function", name, _functions, _pure())


def describe(value: Any) -> str:
    """A class or a function in words, for messages."""
    kind = "class" if inspect.isclass(value) else "function"
    module, name = (getattr(value, attribute, None) for attribute in ("__module__", "__qualname__"))
    return f"the {kind} {module}.{name}" if name else f"an object of the class {_full_name(type(value))}"


def refusal(value: Any) -> str:
    """Why a value whose class is not known cannot be saved, and what to do."""
    if isinstance(value, eqx.nn.StateIndex | eqx.nn.State):
        return f"{_full_name(type(value))} is not supported: {_STATEFUL}"
    if isinstance(value, jax.core.Tracer):
        return "it is being traced; save outside of compiled functions"
    if getattr(value, "__name__", None) == "<lambda>":
        return f"{describe(value)} has no name; write it with def and decorate it with @mercer.io.register"
    if _has_fields(type(value)) or inspect.isroutine(value) or inspect.isclass(value):
        known = value if inspect.isroutine(value) or inspect.isclass(value) else type(value)
        return f"{describe(known)} is not registered; decorate it with @mercer.io.register"
    return f"{describe(value)} is neither data nor registered; a function can be decorated with @mercer.io.register"


def field_names(cls: type) -> tuple[str, ...]:
    """The names of the fields of a class."""
    return cls._fields if issubclass(cls, tuple) else tuple(field.name for field in dataclasses.fields(cls))  # type: ignore


def fields(value: Any) -> dict[str, Any]:
    """The fields of an object, where they are all that there is to it."""
    names = field_names(type(value))
    missing = [name for name in names if not hasattr(value, name)]
    extra = [name for name in getattr(value, "__dict__", ()) if name not in names]
    if missing or extra:
        raise ValueError(
            f"{describe(type(value))} has fields without values {missing}, and values without fields {extra}"
        )
    return {name: getattr(value, name) for name in names}


def assemble(cls: type, values: dict[str, Any]) -> Any:
    """The object of a class that has these values, made without its constructor."""
    names = field_names(cls)
    renamed = _RENAMED.get(class_name(cls) or "", {})
    values = {renamed.get(name, name): value for name, value in values.items()}
    for name, value in _ADDED.get(class_name(cls) or "", {}).items():
        if name not in values:
            values = values | {name: value(values)}
    if set(values) != set(names):
        raise ValueError(f"the class {class_name(cls)} has the fields {list(names)}, the file has {list(values)}")
    if issubclass(cls, tuple):
        return tuple.__new__(cls, [values[name] for name in names])
    made = object.__new__(cls)
    for name in names:
        object.__setattr__(made, name, values[name])
    return made


def check(value: Any) -> None:
    """Refuses an object that its class would not have made: by the types of its fields, then by its own `__check_init__`."""
    cls = type(value)
    if isinstance(value, Module):
        for field in dataclasses.fields(cls):
            if any(isinstance(said, Declaration) and said.trainable for said in field.metadata.values()):
                _check_parameter(f"{cls.__name__}: {field.name}", getattr(value, field.name))
    if isinstance(value, eqx.Module):
        if cls.__module__.startswith("mercer."):
            _check_types(value)
        for parent in cls.__mro__:
            if "__check_init__" in vars(parent):
                vars(parent)["__check_init__"](value)


def _check_parameter(name: str, value: Any) -> None:
    """A parameter is what `mercer.parameters.as_parameter` makes."""
    is_array = isinstance(value, jax.Array | np.ndarray) and jnp.issubdtype(value.dtype, jnp.inexact)
    if value is not None and not callable(value) and not is_array:
        raise ValueError(f"{name} expects an array of floating-point numbers, got {_brief(value)}")


def _check_types(value: eqx.Module) -> None:
    with jaxtyped("context"):  # in which an N of one field is the N of another
        for field in dataclasses.fields(value):
            content = getattr(value, field.name)
            if not _fits(content, field.type):
                expected = field.type.__name__ if inspect.isclass(field.type) else str(field.type)
                expected = expected.replace("jaxlib._jax.", "")
                raise ValueError(f"{type(value).__name__}: {field.name} expects {expected}, got {_brief(content)}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type, as far as that can be seen; NumPy's numbers and arrays count as Python's."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in arguments)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in arguments)
    if origin is tuple:
        hints = [arguments[0]] * len(value) if arguments[1:] == (...,) and isinstance(value, tuple) else arguments
        return isinstance(value, tuple) and len(value) == len(hints) and all(map(_fits, value, hints))
    if collections.abc.Callable in (hint, origin):
        return callable(value)
    if hint in (bool, int):
        return isinstance(value, int | np.integer | np.bool_)
    if hint is float:
        return isinstance(value, int | float | np.number)
    if isinstance(hint, type) and origin is None and hint is not Any:
        is_numpy = isinstance(value, np.ndarray | np.generic)
        return isinstance(value, hint) or (is_numpy and isinstance(jnp.asarray(value), hint))
    return True


def _brief(value: Any) -> str:
    shape = f" of shape {value.shape} and dtype {value.dtype}" if isinstance(value, jax.Array | np.ndarray) else ""
    return type(value).__name__ + shape


def _has_fields(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))


def _qualified(target: Any) -> tuple[Any, Any, Any]:
    return inspect.isclass(target), target.__module__, target.__qualname__


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _name_in(value: Any, *tables: dict[str, Any]) -> str | None:
    """By identity: a function may be unhashable, and equal is not the same."""
    return next((name for table in tables for name, known in table.items() if known is value), None)


def _find(kind: str, name: Any, *tables: dict[str, Any]) -> Any:
    for table in tables:
        if isinstance(name, str) and name in table:
            return table[name]
    if isinstance(name, str) and name.startswith(_RESERVED):
        raise ValueError(f"the {kind} {name!r} is not among those that this version of mercer loads; a newer one may")
    raise ValueError(
        f"the {kind} {name!r} is not known here; if it is yours, decorate it with @mercer.io.register and "
        "import the file that defines it before loading"
    )


def _mercer() -> dict[str, type]:
    return _mercer_classes(len(sys.modules))


@functools.lru_cache(maxsize=1)
def _mercer_classes(num_imported: int) -> dict[str, type]:
    """The classes of mercer that have values, of the modules imported so far: "mercer.kernels.RBF", say."""
    found: dict[str, type] = {}
    for cls in _defined_in(name for name in sorted(sys.modules) if name.startswith("mercer.")):
        top = cls.__module__.split(".")[1]
        name = f"mercer.{cls.__name__}" if top in _AT_THE_TOP else f"mercer.{top}.{cls.__name__}"
        if found.setdefault(name, cls) is not cls:
            raise RuntimeError(f"{_full_name(cls)} and {_full_name(found[name])} cannot both be saved as {name}")
    return found


def _defined_in(modules: Iterable[str]) -> Iterator[type]:
    """The concrete modules (in the sense of equinox), and the public records beside them."""
    for module in modules:
        for cls in list(vars(sys.modules[module]).values()):
            if inspect.isclass(cls) and cls.__module__ == module and not inspect.isabstract(cls):
                is_public_record = _has_fields(cls) and not cls.__name__.startswith("_")
                is_public_record &= not module.startswith(("mercer.io.", "mercer.experiments."))  # which are of files
                if issubclass(cls, eqx.Module) or is_public_record:
                    yield cls


@functools.cache
def _equinox() -> dict[str, type]:
    layers = {f"equinox.nn.{name}": cls for name, cls in vars(eqx.nn).items() if inspect.isclass(cls)}
    return {n: cls for n, cls in layers.items() if issubclass(cls, eqx.Module) and cls is not eqx.nn.StateIndex}


@functools.cache
def _pure() -> dict[str, Callable]:
    found = {
        f"{module.__name__}.{name}": getattr(module, name)
        for module, names in _PURE.items()
        for name in names.split()
        if hasattr(module, name)
    }
    # What layers of equinox hold without giving it a public name.
    identity = inspect.signature(eqx.nn.MLP.__init__).parameters["final_activation"].default
    norm = getattr(sys.modules[eqx.nn.WeightNorm.__module__], "_norm_except_axis", None)
    hidden = {"equinox.nn.identity": identity, "equinox.nn.norm_except_axis": norm}
    return found | {name: function for name, function in hidden.items() if callable(function)}
