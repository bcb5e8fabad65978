"""What is wrong with a configuration, in one sentence: the place, the line, what was expected, and the nearest name."""

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import ValidationError

from mercer.experiments.text import ConfigurationError, Document, Path

_MANY = 12  # names are listed up to this number


def explained(
    error: ValidationError, document: Document, settings: Callable[[str | None], Iterable[str]]
) -> ConfigurationError:
    """The first thing that is wrong, by the order of lines. `settings` are those of an entry, or of the whole for None."""
    found = [(_path(problem, document.value), problem) for problem in error.errors()]
    path, problem = min(
        found, key=lambda pair: (document.lines.get(pair[0], _line_above(pair[0], document)), len(pair[0]))
    )
    return document.refuse(*_said(path, problem, document.value, settings))


def nearest(name: Any, names: Iterable[str]) -> str:
    """A hint: which of some names was meant, or which there are."""
    names = list(names)
    longer = [other for other in names if other.endswith(f".{name}") and not other.startswith("mercer.")]
    if longer:
        return f"; did you mean {' or '.join(map(repr, longer))}?"
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    if not close:
        lowered = {other.lower(): other for other in names}
        close = [lowered[near] for near in difflib.get_close_matches(str(name).lower(), list(lowered), n=1, cutoff=0.6)]
    if close:
        return f"; did you mean {close[0]!r}?"
    short = sorted(name for name in names if "." not in name)
    listed = ", ".join(short[:_MANY]) + (", ..." if len(short) > _MANY else "")
    return f"; there are {listed}" if listed else ""


def brief(value: Any) -> str:
    """A value as it is shown in a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _path(problem: Any, value: Any) -> Path:
    """A location of pydantic without the names of alternatives, which are not in the file."""
    path: list[str | int] = []
    for part in problem["loc"]:
        is_item = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if is_item or (isinstance(value, dict) and part in value):
            path.append(part)
            value = value[part]
    return (*path, problem["loc"][-1]) if problem["type"] == "missing" else tuple(path)


def _line_above(path: Path, document: Document) -> int:
    return next((document.lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in document.lines), 0)


def _at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def _said(path: Path, problem: Any, document: Any, settings: Any) -> tuple[Path, str]:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "missing" and isinstance(path[-1], int):
        return path[:-1], f"expected a list of at least {path[-1] + 1}, got {len(_at(document, path[:-1]))}"
    if kind == "missing":
        return path[:-1], f"{path[-1]!r} is missing"
    if kind == "extra_forbidden":
        above = [part for part in problem["loc"][:-1] if isinstance(part, str)]
        return path, f"unknown setting{nearest(path[-1], settings(above[-1] if above else None))}"
    if kind == "union_tag_invalid":
        given = problem["input"]
        place = (*path, "type") if isinstance(given, dict) and isinstance(_at(document, path), dict) else path
        return place, f"there is no {context['tag']!r} here{nearest(context['tag'], _names(context['expected_tags']))}"
    if kind == "union_tag_not_found":
        return path, "'type' is missing, the name of what this is"
    message = f"expected {context['expected']}" if kind == "literal_error" else problem["msg"]
    message = re.sub("^Input should be", "expected", message)
    message = message[:1].lower() + message[1:]
    return path, f"{message}, got {brief(_at(document, path) if _is_in(document, path) else problem['input'])}"


def _is_in(value: Any, path: Path) -> bool:
    try:
        _at(value, path)
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _names(listed: str) -> list[str]:
    return [name.strip("'\"") for name in listed.split(", ")]
