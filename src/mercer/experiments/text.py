"""YAML as plain values with line numbers. Reading a file runs nothing and makes nothing but these values.

A value is None, a truth value, a number, a text, a list, or a mapping with texts as keys. Numbers and truth values are those of
YAML 1.2, so that `1e-3` is a number and `no` is a text. `<<: *name` gives a mapping what it has not got itself. A tag
(`!!python/...`), a key given twice, and aliases that would grow a small file beyond measure are refused.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

Path = tuple[str | int, ...]

_MAX_VALUES = 1_000_000
_MAX_DEPTH = 60
_STANDARD = "tag:yaml.org,2002:"
_NUMBERS = {
    "int": re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    "float": re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"),
}
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **{sign + word: float(sign + "inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")},
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}


class ConfigurationError(ValueError):
    """A configuration that cannot be read: one sentence, with the place and the line where they are known."""


@dataclasses.dataclass(frozen=True)
class Document:
    """What a file says, and the line on which each value begins (from 1), by its path; where `changes` of it come from."""

    value: Any
    lines: dict[Path, int]
    name: str
    changes: dict[Path, str] = dataclasses.field(default_factory=dict)

    def refuse(self, path: Path, reason: str) -> ConfigurationError:
        """The error for a value: where it is, and what is wrong."""
        return ConfigurationError(f"{self.origin(path)}: {shown(path)}{': ' if path else ''}{reason}")

    def origin(self, path: Path) -> str:
        """Where a value comes from: the change that gave it, or the file and the line, if need be of what is around it."""
        around = [path[:n] for n in range(len(path), -1, -1)]
        changed = next((self.changes[one] for one in around if one in self.changes), None)
        line = next((f", line {self.lines[one]}" for one in around if one in self.lines), "")
        return f"{self.name}{line}" if changed is None else changed


def shown(path: Path) -> str:
    """A path as one writes it: model.layers[0].kernel."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def parse(text: str, name: str = "the configuration") -> Document:
    """The document of a text; a `ConfigurationError` says what is wrong with it."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigurationError(f"{name}{line}: this is not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigurationError(f"{name}: this is not YAML: {first}") from None
    document = Document(None, {}, name)
    value = _Reader(document).value(node, ()) if node is not None else None
    return dataclasses.replace(document, value=value)


class _Reader:
    """Nodes of PyYAML as values."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.count = 0

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.document.lines[path] = node.start_mark.line + 1
        self.count += 1
        if self.count > _MAX_VALUES:
            raise self.document.refuse(path, f"more than {_MAX_VALUES:,} values, counting what aliases repeat")
        if len(path) > _MAX_DEPTH:
            raise self.document.refuse(path[:5], f"nested more than {_MAX_DEPTH} deep")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        kind = "map" if isinstance(node, yaml.MappingNode) else "seq"
        if node.tag != _STANDARD + kind:
            raise self.document.refuse(path, f"the tag {node.tag!r} is refused: files hold plain values")
        if isinstance(node, yaml.MappingNode):
            found = {key: self.value(child, (*path, key)) for key, child in self._items(node, path)}
            merged = found.pop("<<", {})
            if not isinstance(merged, dict):
                raise self.document.refuse((*path, "<<"), "a mapping is expected, such as *name")
            return {**merged, **found}
        return [self.value(child, (*path, i)) for i, child in enumerate(node.value)]

    def _items(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, yaml.Node]]:
        seen: set[str] = set()
        for key_node, child in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str) or not key_node.tag.startswith(_STANDARD):
                raise self.document.refuse(path, f"line {key_node.start_mark.line + 1} has a key that is not a text")
            if key in seen:
                raise self.document.refuse(
                    path, f"{key!r} is given twice, again on line {key_node.start_mark.line + 1}"
                )
            seen.add(key)
            yield key, child
            self.document.lines[*path, key] = (
                key_node.start_mark.line + 1
            )  # of the key, where the value begins below it

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        text = node.value
        if node.tag == "tag:yaml.org,2002:str" and node.style is not None:
            return text
        if not node.tag.startswith(_STANDARD) or node.tag.startswith(_STANDARD + "python"):
            raise self.document.refuse(path, f"the tag {node.tag!r} is refused: files hold plain values")
        if node.style is not None:  # quoted, with a tag such as !!int before it
            raise self.document.refuse(path, f"the tag {node.tag!r} is refused: files hold plain values")
        if text in _WORDS:
            return _WORDS[text]
        if _NUMBERS["int"].fullmatch(text):
            if len(text) > 30:
                raise self.document.refuse(path, "an integer of more than 30 digits")
            return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
        return float(text) if _NUMBERS["float"].fullmatch(text) else text


def written(value: Any) -> str:
    """The YAML of a value; `parse` gives the value again. Lists of numbers stay on one line where they fit."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True, default_flow_style=False)


class _Dumper(yaml.SafeDumper):
    """Without anchors, with numbers that read the same in YAML 1.2, and short lists on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _number(dumper: yaml.SafeDumper, value: float) -> yaml.Node:
    if math.isfinite(value):
        digits, power, exponent = repr(value).partition("e")
        text = digits + ("" if "." in digits else ".0") + power + exponent  # which YAML 1.1 reads as a number, too
    else:
        text = ".nan" if math.isnan(value) else (".inf" if value > 0.0 else "-.inf")
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    """In quotes where YAML 1.2 would read another value."""
    plain = not (value in _WORDS or any(pattern.fullmatch(value) for pattern in _NUMBERS.values()))
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, None if plain else "'")


def _list(dumper: yaml.SafeDumper, value: list) -> yaml.Node:
    flat = all(isinstance(item, int | float | str | None) for item in value)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=flat)


_Dumper.add_representer(float, _number)
_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)
