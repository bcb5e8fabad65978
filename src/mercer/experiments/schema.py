"""Pydantic models of everything that a configuration may name, made from the catalogue.

For each entry of `mercer.experiments.catalogue` there is one model: `type`, the name, and a field for each parameter. What a
field takes follows from its annotation:

    a class of mercer            one of the entries that give it: a mapping with `type`, or the name alone
    numbers, arrays              a number, lists of numbers, or a selection of inducing inputs (kmeans, ...)
    a function                   the name of one that `mercer.io` knows (tanh), a module, or paths of attributes (.posterior)
    an optimiser, a schedule     those of optax
    a random key                 a seed; left out, one that follows from the experiment's seed and the place in the file

and everywhere a text that begins with `$`: a value made elsewhere, such as `$X`, the training inputs, or `$prior.kernel`, of a
stage that is called prior; and a mapping with the one key `saved`, as `to_yaml` writes what no constructor makes.
"""

import collections.abc
import difflib
import inspect
import re
import types
import typing
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import numpy as np
import optax
from jaxtyping import AbstractArray
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, create_model
from pydantic_core import PydanticCustomError, core_schema

from mercer.experiments.catalogue import EMPTY, Catalogue, Entry, Optimiser, Parameter, Schedule, Selected
from mercer.io import registry

_ANYTHING = "mercer:anything"
_NUMBER = (
    "a number",
    core_schema.union_schema([core_schema.int_schema(strict=True), core_schema.float_schema(strict=True)]),
)


SEEDS = -(2**63), 2**63 - 1  # the least and the greatest that a random key is made of


class Spec(BaseModel):
    """What a configuration says of one object: which, and with which arguments."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    entry: ClassVar[Entry]

    def arguments(self) -> dict[str, Any]:
        """The arguments that were given, by name."""
        fields = type(self).model_fields
        return {
            str(fields[name].alias): getattr(self, name) for name in fields if name in self.model_fields_set - {"type"}
        }


class Reference(str):
    """A value made elsewhere, or what arithmetic with one number makes of it: the text after `$`."""

    form = re.compile(
        r"(?P<name>[A-Za-z_]\w*)(?P<path>(\.\w+|\[-?\d+\])*)"
        r"( *(?P<sign>[-+*]) *(?P<number>[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?))?"
    )


class Named(str):
    """The name of a function, of a class in the place of one, or a path of attributes."""


class Numbers(list):
    """Lists of numbers that are one array."""


class Saved(dict):
    """An object by its fields, as `mercer.save` has them."""


class Schemas:
    """The models of a catalogue, made when they are first needed."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.begun: set[str] = set()  # references of unions that the build under way has met
        self._models: dict[str, type[Spec]] = {}

    def model(self, entry: Entry) -> type[Spec]:
        """The model of an entry."""
        if entry.full_name not in self._models:
            names = {entry.name, entry.full_name, entry.full_name.removeprefix("mercer.")}
            fields: dict[str, Any] = {"type": (Literal[tuple(sorted(names))], ...)}
            for i, parameter in enumerate(entry.parameters):
                default = ... if parameter.default is EMPTY and not is_key(parameter.hint) else None
                fields[f"p{i}"] = (Annotated[Any, self.place(parameter)], Field(default, alias=parameter.name))
            summary = (inspect.getdoc(entry.target) or "").partition("\n\n")[0]
            made = create_model(entry.full_name, __base__=Spec, __doc__=summary, **fields)
            made.entry = entry
            self._models[entry.full_name] = made
        return self._models[entry.full_name]

    def place(self, parameter: Parameter) -> "Place":
        """What a parameter takes."""
        return Place(self, list[parameter.hint] if parameter.variadic else parameter.hint)  # type: ignore[name-defined]


class Place:
    """A place in a configuration for values of an annotated type."""

    def __init__(self, schemas: Schemas, hint: Any) -> None:
        self.schemas, self.hint = schemas, hint
        self.kinds: set[Any] = set()  # classes of objects; None: any
        self.literals: set[Any] = set()
        self.forms: dict[str, tuple[str, Any]] = {}  # a name -> in words, and a schema; of a list, what its items are
        self.anything = False
        self.makes = False  # whether functions here make modules, so that the name of a class is that function
        self._take(hint)
        self.kinds = {kind for kind in self.kinds if schemas.catalogue.of(kind)}
        if not (self.kinds or self.forms or self.literals):  # a class that nothing named gives
            self._take_anything()

    @property
    def takes_paths(self) -> bool:
        """Whether `.posterior.prior` is a function here, and not a text."""
        return "function" in self.forms and "text" not in self.forms

    def _take(self, hint: Any) -> None:
        """Adds the forms of an annotation."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            if is_key(hint):
                self.forms["int"] = ("a seed", core_schema.int_schema(strict=True, ge=SEEDS[0], le=SEEDS[1]))
            else:
                for option in arguments:
                    self._take(option)
        elif hint in (None, type(None)):
            self.forms["none"] = ("null", core_schema.none_schema())
        elif hint in (bool, np.bool_):
            self.forms["bool"] = ("true or false", core_schema.bool_schema(strict=True))
        elif hint is int:
            self.forms["int"] = ("an integer", core_schema.int_schema(strict=True))
        elif hint in (float, complex, np.number, np.generic):
            self.forms["number"] = _NUMBER
        elif hint is str:
            self.forms["text"] = ("a text", core_schema.str_schema(strict=True))
        elif origin is Literal:
            self.literals |= set(arguments)
        elif _is_array(hint):
            self.forms["number"] = _NUMBER
            self.forms["array"] = ("lists of numbers", _ARRAY)
            self.kinds.add(Selected)
        elif origin is Annotated:
            self._take(arguments[0])
        elif collections.abc.Callable in (hint, origin) or getattr(hint, "_is_protocol", False):
            names = core_schema.union_schema([core_schema.literal_schema(function_names()), core_schema.str_schema()])
            of_name = core_schema.no_info_plain_validator_function(self._named, json_schema_input_schema=names)
            self.forms["function"] = ("a function", of_name)
            self.kinds |= {eqx.Module, Schedule}
            self.makes = bool(arguments) and inspect.isclass(arguments[-1]) and issubclass(arguments[-1], eqx.Module)
        elif hint is optax.GradientTransformation or hint is optax.GradientTransformationExtraArgs:
            self.kinds.add(Optimiser)
        elif hint in (tuple, list) or origin in (tuple, list, collections.abc.Sequence):
            self.forms["list"] = ("a list", (origin, arguments))
        elif hint in (Any, EMPTY, object) or isinstance(hint, typing.TypeVar):
            self._take_anything()
        elif inspect.isclass(hint) and hint.__module__.partition(".")[0] not in ("builtins", "numpy", "jax", "pathlib"):
            self.kinds.add(hint)
        else:
            self._take_anything()

    def _take_anything(self) -> None:
        for hint in (None, bool, int, float, str, jax.Array, list[Any]):
            self._take(hint)
        self.kinds = {None}
        self.anything = True

    def name_of(self, entry: Entry) -> str | None:
        """The shortest name of an entry at this place; None where it does not belong."""
        names = [n for kind in self.kinds for n, other in self.schemas.catalogue.of(kind).items() if other is entry]
        return min(names, key=len) if names else None

    def items(self) -> "Place":
        """What the items of a list at this place are."""
        _, arguments = self.forms["list"][1] if "list" in self.forms else (list, ())
        return Place(self.schemas, arguments[0] if arguments else Any)

    @property
    def expected(self) -> str:
        """What fits, in words."""
        objects = sorted(f"a {kind_name(kind)}" for kind in self.kinds - {Selected, Schedule})
        words = [
            *objects,
            *(words for words, _ in self.forms.values()),
            *(repr(value) for value in sorted(self.literals, key=str)),
        ]
        words = list(dict.fromkeys(words))
        return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"

    def _form_of(self, value: Any) -> str | None:
        """Which of the forms a value has."""
        if isinstance(value, str) and value.startswith("$"):
            return "reference"
        if isinstance(value, dict):
            return "saved" if set(value) == {"saved"} else "object" if self.kinds else None
        if isinstance(value, list):
            return "array" if "array" in self.forms and _is_numeric(value) else "list" if "list" in self.forms else None
        if any(value == literal and type(value) is type(literal) for literal in self.literals):
            return "literal"
        if value is None or isinstance(value, bool):
            name = "none" if value is None else "bool"
            return name if name in self.forms else None
        if isinstance(value, int) and "int" in self.forms:
            return "int"
        if isinstance(value, int | float):
            return "number" if "number" in self.forms else None
        return self._form_of_text(value)

    def _form_of_text(self, value: str) -> str | None:
        known = any(value in self.schemas.catalogue.of(kind) for kind in self.kinds)
        if "function" in self.forms and (self.makes or not known or function_of(value) is not None):
            return "function"
        if known or (self.kinds - {Selected, Schedule} and "text" not in self.forms and not self.literals):
            return "object"
        return "text" if "text" in self.forms else None

    def _named(self, value: str) -> Named:
        path = r"(\.[A-Za-z]\w*|\[(-?\d+|\*)\])+"
        is_path = re.fullmatch(rf"{path}(, *{path})*", value)
        if not is_path and function_of(value) is None and value not in self.schemas.catalogue.of(None):
            meant = difflib.get_close_matches(value, function_names(), n=1)
            hint = f"; did you mean '{meant[0]}'?" if meant else ", a path of attributes begins with a dot"
            raise PydanticCustomError("function", f"there is no function of this name{hint}")
        return Named(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        if self.anything and _ANYTHING in self.schemas.begun:
            return core_schema.definition_reference_schema(_ANYTHING)
        if self.anything:
            self.schemas.begun.add(_ANYTHING)
        choices: dict[Any, Any] = {"reference": _REFERENCE, "saved": _SAVED}
        for name, (_, schema) in self.forms.items():
            choices[name] = self._list(schema, handler) if name == "list" else schema
        if self.literals:
            choices["literal"] = core_schema.literal_schema(sorted(self.literals, key=str))
        if self.kinds:
            choices["object"] = handler.generate_schema(Annotated[Any, _Objects(self.schemas, frozenset(self.kinds))])
        return core_schema.tagged_union_schema(
            choices,
            self._form_of,
            ref=_ANYTHING if self.anything else None,
            custom_error_type="expected",
            custom_error_message=f"expected {_escaped(self.expected)}",
        )

    def _list(self, of: tuple[Any, tuple[Any, ...]], handler: GetCoreSchemaHandler) -> Any:
        origin, arguments = of
        if not arguments or (origin is tuple and arguments[1:] == (...,)) or origin is not tuple:
            item = arguments[0] if arguments else Any
            items = core_schema.list_schema(
                handler.generate_schema(Annotated[Any, Place(self.schemas, item)]), strict=True
            )
            return core_schema.no_info_after_validator_function(tuple, items) if origin is tuple else items
        each = [handler.generate_schema(Annotated[Any, Place(self.schemas, item)]) for item in arguments]
        return core_schema.tuple_positional_schema(each)


class _Objects:
    """A mapping with `type`, or a name: the entries that give an object of one of some classes."""

    def __init__(self, schemas: Schemas, kinds: frozenset[Any]) -> None:
        self.schemas, self.kinds = schemas, kinds

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        names = sorted(kind_name(kind) for kind in self.kinds)
        ref = "mercer:" + "-or-".join(names) + f":{hash(self.kinds)}"
        if ref in self.schemas.begun:
            return core_schema.definition_reference_schema(ref)
        self.schemas.begun.add(ref)
        entries = {name: entry for kind in self.kinds for name, entry in self.schemas.catalogue.of(kind).items()}
        choices: dict[Any, Any] = {
            n: handler.generate_schema(self.schemas.model(entry)) for n, entry in entries.items()
        }
        union = core_schema.tagged_union_schema(choices, "type")
        alone = [name for name, entry in entries.items() if name == entry.name and _needs_nothing(entry)]
        shown = core_schema.union_schema([core_schema.literal_schema(alone), union]) if alone else union
        return core_schema.no_info_before_validator_function(_with_type, union, ref=ref, json_schema_input_schema=shown)


def kind_name(kind: Any) -> str:
    """A class in a word, for messages and schemas."""
    return "object" if kind is None else kind.__name__


def function_names() -> list[str]:
    """Functions that can be named, by their last parts."""
    return sorted({name.rpartition(".")[2] for name in registry.function_names()})


def function_of(name: str) -> Any:
    """The function of a name as one writes it, `tanh` or `jax.nn.tanh`; None where there is none."""
    for prefix in ("", "jax.nn.", "jax.numpy.", "jax.lax.", "jax.scipy.special.", "equinox.nn."):
        try:
            return registry.find_function(prefix + name)
        except ValueError:
            continue
    return None


def _needs_nothing(entry: Entry) -> bool:
    return all(p.default is not EMPTY or is_key(p.hint) for p in entry.parameters)


def _with_type(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


def _reference(value: str) -> Reference:
    if not Reference.form.fullmatch(value[1:]):
        raise PydanticCustomError("reference", "expected a name after $, such as $X, $prior.kernel, $N * 0.1 or $D + 1")
    return Reference(value[1:])


def _array(value: list) -> Numbers:
    try:
        shape = np.shape(np.asarray(value, float))
    except ValueError:
        raise PydanticCustomError("array", "expected lists of numbers of the same length") from None
    if len(shape) > 6:
        raise PydanticCustomError("array", "expected lists of numbers, nested at most 6 deep")
    return Numbers(value)


_REFERENCE = core_schema.no_info_plain_validator_function(
    _reference, json_schema_input_schema=core_schema.str_schema(pattern=r"^\$")
)
_SAVED = core_schema.no_info_plain_validator_function(
    Saved, json_schema_input_schema=core_schema.dict_schema(core_schema.literal_schema(["saved"]))
)
_ARRAY = core_schema.no_info_plain_validator_function(_array, json_schema_input_schema=core_schema.list_schema())


def _is_numeric(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_numeric(item) for item in value)
    return isinstance(value, int | float)


def _is_array(hint: Any) -> bool:
    return inspect.isclass(hint) and issubclass(hint, jax.Array | np.ndarray | AbstractArray)


def is_key(hint: Any) -> bool:
    """Whether a parameter is a random key."""
    return typing.get_origin(hint) in (typing.Union, types.UnionType) and any(
        "Key" in str(o) for o in typing.get_args(hint)
    )


def _escaped(text: str) -> str:
    return text.replace("{", "(").replace("}", ")")
