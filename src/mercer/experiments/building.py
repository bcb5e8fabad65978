"""From what a configuration says to objects, and back: `from_yaml` and `to_yaml`.

An object is written as the call of its constructor where that gives the same object again, to the last bit, and otherwise by its
fields, as `mercer.save` has them, with arrays as lists of numbers. So what is read is what was written, and what can be written
well is.
"""

import dataclasses
import errno
import functools
import hashlib
import operator
import re
import warnings
from collections.abc import Mapping
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from pydantic import TypeAdapter, ValidationError

from mercer.experiments.catalogue import EMPTY, Catalogue, catalogue
from mercer.experiments.messages import explained, nearest
from mercer.experiments.schema import Named, Numbers, Place, Reference, Saved, Schemas, Spec, function_of, is_key
from mercer.experiments.text import ConfigurationError, Document, Path, parse, written
from mercer.io import registry
from mercer.io.decoding import Decoder
from mercer.io.encoding import Encoder
from mercer.training.tunable import tunable

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_ARITHMETIC = {"*": operator.mul, "+": operator.add, "-": operator.sub}


class Attributes(eqx.Module):
    """A path of attributes as a function: `Attributes(".posterior.prior")(model)` is `model.posterior.prior`."""

    path: str = eqx.field(static=True)

    def __call__(self, value: Any) -> Any:
        """The value at the path."""
        return attribute(value, self.path)


def attribute(value: Any, path: str) -> Any:
    """The value at a path of public attributes and indices, `layers[0].kernel`.

    `layers[*].kernel` is a tuple of those of all; several paths, with commas between them, are one flat tuple.
    """
    found = [part for one in path.split(",") for part in _at(value, one)]
    return tuple(found) if "[*]" in path or "," in path else found[0]


def _at(value: Any, path: str) -> list[Any]:
    def there_is_no(value: Any, end: int) -> ValueError:
        reached = path[:end].strip().rstrip("[.") or "the object"
        return ValueError(f"there is no {path.strip()}: {reached} is {type(value).__name__}")

    before, star, after = path.partition("[*]")
    for part in re.finditer(r"-?\w+", before):
        name = part.group()
        if name.startswith("_"):
            raise ValueError(f"{name!r} is private")
        try:
            value = value[int(name)] if name.lstrip("-").isdigit() else getattr(value, name)
        except (AttributeError, IndexError, TypeError):
            raise there_is_no(value, part.start()) from None
    if star and not isinstance(value, list | tuple):
        raise there_is_no(value, len(before))
    return [part for item in value for part in _at(item, after)] if star else [value]


class Known:
    """The catalogue as it is now, and what follows from it."""

    def __init__(self, of_now: Catalogue) -> None:
        self.catalogue = of_now
        self.schemas = Schemas(of_now)

    @functools.cached_property
    def anything(self) -> TypeAdapter:
        """Validates any object."""
        self.schemas.begun.clear()
        return TypeAdapter(Annotated[Any, Place(self.schemas, Any)])

    def settings(self, name: str | None) -> set[str]:
        """The settings of the entries of a name."""
        of_name = (
            e for e in self.catalogue.entries if name in (e.name, e.full_name, e.full_name.removeprefix("mercer."))
        )
        return {parameter.name for entry in of_name for parameter in entry.parameters}


@functools.lru_cache(maxsize=1)
def _known(of_now: Catalogue) -> Known:
    return Known(of_now)


def known() -> Known:
    """What can be named now."""
    return _known(catalogue())


class Builder:
    """Makes what a validated configuration says. `values` are what `$` names."""

    def __init__(self, document: Document, values: Mapping[str, Any], key: jax.Array) -> None:
        self.document, self.values, self.key = document, values, key

    def build(self, said: Any, path: Path, hint: Any = Any) -> Any:
        """The object at a place of the configuration."""
        if isinstance(said, Spec):
            return self._object(said, path)
        if isinstance(said, Reference):
            return self._reference(said, path)
        if isinstance(said, Named):
            return self._function(said)
        if isinstance(said, Numbers):
            whole = any(kind in str(hint) for kind in ("Int[", "Bool["))
            return np.asarray(said) if whole else np.asarray(said, float)
        if isinstance(said, Saved):
            return self._saved(said, path)
        if isinstance(said, list | tuple):
            return type(said)(self.build(item, (*path, i)) for i, item in enumerate(said))
        return said

    def _object(self, said: Spec, path: Path) -> Any:
        keywords = self.arguments(said, path)
        name = next((p.name for p in said.entry.parameters if p.variadic), "")
        variadic = keywords.pop(name, ())
        if not isinstance(variadic, list | tuple):  # a reference, or what was saved
            raise self.document.refuse((*path, name), f"expected a list, got {type(variadic).__name__}")
        return self.called(said.entry.target, tuple(variadic), keywords, path)

    def arguments(self, said: Spec, path: Path) -> dict[str, Any]:
        """The arguments of a constructor, by name, with a random key where one is needed and none is given."""
        given, made = said.arguments(), {}
        for parameter in said.entry.parameters:
            place = (*path, parameter.name)
            if parameter.name in given:
                value = self.build(given[parameter.name], place, parameter.hint)
                is_seed = is_key(parameter.hint) and isinstance(value, int)
                made[parameter.name] = jax.random.key(value) if is_seed else value
            elif is_key(parameter.hint) and parameter.default is EMPTY:
                made[parameter.name] = self.key_at(place)
        return made

    def key_at(self, path: Path) -> jax.Array:
        """A random key that follows from the place."""
        digest = hashlib.sha256("/".join(map(str, path)).encode()).digest()
        return jax.random.fold_in(self.key, int.from_bytes(digest[:4], "big"))

    def called(self, target: Any, positional: tuple[Any, ...], keywords: dict[str, Any], path: Path) -> Any:
        """What a constructor gives; an error says the place, if it is not the disk that is full."""
        make = _made
        if getattr(target, "__module__", "").split(".")[0] == "optax":
            positional, keywords = _frozen(positional), {name: _frozen(value) for name, value in keywords.items()}
            make = _made_once if _is_hashable((positional, *keywords.values())) else _made
        try:
            return make(target, *positional, **keywords)
        except ConfigurationError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
                raise
            sentence = " ".join(str(error).split()) or type(error).__name__
            raise self.document.refuse(path, sentence if len(sentence) < 500 else f"{sentence[:500]} ...") from error

    def _reference(self, said: Reference, path: Path) -> Any:
        parts = said.form.fullmatch(said).groupdict()  # type: ignore[union-attr]
        name, where, sign = parts["name"], parts["path"], parts["sign"]
        if name not in self.values:
            raise self.document.refuse(path, f"there is no ${name} here{nearest(name, self.values)}")
        try:
            found = attribute(self.values[name], where)
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise self.document.refuse(path, f"${name}{where} is not there: {error}") from None
        if sign is None:
            return found
        if not isinstance(found, int | float | np.generic | np.ndarray | jax.Array):
            raise self.document.refuse(path, f"${name}{where} is no number, but {type(found).__name__}")
        return _ARITHMETIC[sign](found, parse(parts["number"]).value)

    def _function(self, name: str) -> Any:
        if name.startswith((".", "[")):
            return Attributes(str(name))  # plain text, which can be saved
        found = function_of(name)
        return known().catalogue.of(None)[name].target if found is None else found

    def _saved(self, said: Saved, path: Path) -> Any:
        arrays: dict[str, np.ndarray] = {}
        try:
            node = _with_names(said["saved"], arrays)
            return Decoder(arrays).model(node)
        except Exception as error:
            raise self.document.refuse(
                path, f"what is saved here cannot be read: {' '.join(str(error).split())[:300]}"
            ) from None


def _made(target: Any, /, *positional: Any, **keywords: Any) -> Any:
    return target(*positional, **keywords)


@functools.lru_cache(maxsize=256, typed=True)
def _made_once(target: Any, /, *positional: Any, **keywords: Any) -> Any:
    """An optimiser or a schedule, the same object wherever it is said again: `fit` knows by it what it has compiled.

    Those that differ in numbers alone share what is compiled, too.
    """
    return tunable(target, keywords, *positional)


def _frozen(value: Any) -> Any:
    """Tuples in the place of lists."""
    return tuple(map(_frozen, value)) if type(value) in (list, tuple) else value


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def from_yaml(text: str, *, name: str = "the configuration", key: jax.Array | None = None, **values: Any) -> Any:
    """The object that a text in YAML describes: a kernel, a model, an objective, anything that mercer offers by name.

    `values` are what the text refers to by `$`: `from_yaml("{type: Points, Z: $X}", X=X)`. `key` is for what is random.
    """
    document = parse(text, name)
    try:
        said = known().anything.validate_python(document.value)
    except ValidationError as error:
        raise explained(error, document, known().settings) from None
    return Builder(document, values, jax.random.key(0) if key is None else key).build(said, ())


def to_yaml(value: Any) -> str:
    """An object of mercer in YAML; `from_yaml` gives it again, equal to the last bit."""
    return written(Writer().plain(value, Place(known().schemas, Any)))


class Writer:
    """Objects as plain values."""

    def plain(self, value: Any, place: Place) -> Any:
        """What a configuration says to have this value at a place."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return [self.plain(item, place.items()) for item in value]
        if isinstance(value, jax.Array | np.ndarray | np.generic) and not _is_random_key(value):
            return np.asarray(
                value
            ).tolist()  # where this makes another array, the object around it is written by its fields
        if isinstance(value, Attributes) and place.takes_paths:
            return value.path
        if (name := registry.function_name(value)) is not None:
            return _short_function(name, value)
        return self._by_constructor(value, place) or self._by_fields(value)

    def _by_constructor(self, value: Any, place: Place) -> Any:
        entry = next((e for e in known().catalogue.entries if e.target is type(value)), None)
        if entry is None or (name := place.name_of(entry)) is None:
            return None
        said: dict[str, Any] = {"type": name}
        for parameter in entry.parameters:
            given = EMPTY if is_key(parameter.hint) else _given(value, parameter.name)
            if given is not EMPTY:
                said[parameter.name] = self.plain(given, known().schemas.place(parameter))
            elif parameter.default is EMPTY:
                return None
        if not _makes(said | {"type": entry.full_name}, value):
            return None
        for parameter in entry.parameters:  # what need not be said is not
            without = {key: item for key, item in said.items() if key != parameter.name}
            if parameter.default is not EMPTY and _makes(without | {"type": entry.full_name}, value):
                said = without
        return said

    def _by_fields(self, value: Any) -> Any:
        encoder = Encoder()
        node = encoder.encode(value, "value", 0)
        return {"saved": _without_names(node, encoder.arrays)}


def _given(value: Any, name: str) -> Any:
    """What an object has under the name of an argument; nothing under a deprecated one."""
    try:
        with warnings.catch_warnings(action="error", category=DeprecationWarning):
            return getattr(value, name, EMPTY)
    except DeprecationWarning:
        return EMPTY


def _makes(said: dict[str, Any], value: Any) -> bool:
    """Whether a configuration gives this very object."""
    try:
        document = parse(written(said))
        with warnings.catch_warnings(action="ignore"):  # of what is only tried
            made = Builder(document, {}, jax.random.key(0)).build(known().anything.validate_python(document.value), ())
    except (ConfigurationError, ValidationError):
        return False
    return type(made) is type(value) and same(made, value)


def same(one: Any, other: Any) -> bool:
    """Whether two objects are equal in all that is fixed and in every bit of their arrays."""
    (leaves, structure), (others, its_structure) = jax.tree.flatten(one), jax.tree.flatten(other)
    return structure == its_structure and all(map(_same_leaf, leaves, others))  # type: ignore[operator]


def _same_leaf(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, jax.Array | np.ndarray | np.generic) and not _is_random_key(one):
        left, right = np.asarray(one), np.asarray(other)
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if dataclasses.is_dataclass(one):  # that is no pytree
        return all(same(value, getattr(other, name)) for name, value in vars(one).items())
    return bool(np.all(one == other))


def _is_random_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _short_function(name: str, function: Any) -> str:
    short = name.rpartition(".")[2]
    return short if function_of(short) is function else name


def _without_names(node: Any, arrays: dict[str, np.ndarray]) -> Any:
    """What the encoder gives, with arrays in their places."""
    if isinstance(node, list):
        return [_without_names(item, arrays) for item in node]
    if not isinstance(node, dict):
        return node
    name = next((key for key in ("array", "key") if isinstance(node.get(key), str) and node[key] in arrays), None)
    if name is None:
        return {key: _without_names(item, arrays) for key, item in node.items()}
    array = arrays[node[name]]
    said: dict[str, Any] = {**node, name: array.astype(float).tolist() if array.dtype.kind == "V" else array.tolist()}
    return said | {"shape": list(array.shape), "stored": array.dtype.name}


def _with_names(node: Any, arrays: dict[str, np.ndarray]) -> Any:
    """What the decoder takes, with arrays apart."""
    if isinstance(node, list):
        return [_with_names(item, arrays) for item in node]
    if not isinstance(node, dict):
        return node
    if "stored" not in node or "shape" not in node:
        return {key: _with_names(item, arrays) for key, item in node.items()}
    rest = {key: item for key, item in node.items() if key not in ("stored", "shape")}
    name = next(iter(rest))
    label = f"array {len(arrays)}"
    arrays[label] = np.asarray(rest[name], jnp.dtype(node["stored"])).reshape(node["shape"])
    return rest | {name: label}
