"""Sweeps: one experiment with many settings. A cell is one of them, and its name is a hash of what it is.

    name: rates
    experiment: curve.yaml                      # or the experiment itself
    grid:                                       # all combinations
      data.number: [1, 2, 3]
      stages.prior.kernel: {rbf: RBF, matern: {type: Matern32, lengthscale: 0.5}}
    zip: {seed: [0, 1], stages.prior.rounds: [5, 10]}         # the first of each, the second of each, ...
    list: [{stages.posterior.steps: 100}, {stages.posterior.steps: 200}]
    random: {num: 5, seed: 0, of: {stages.posterior.optimiser.learning_rate: {low: 1e-4, high: 1e-1, log: true}}}
    exclude: [{data.number: 3, stages.prior.kernel: matern}]

The blocks are factors: each value of one meets each of the others. The values of a setting are a list, or a mapping from labels
to values. A combination that has all that an item of `exclude` names is left out.

Cells with the same stages, data, seed and scores have the same hash, in whichever sweep they are, and are run once.
"""

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Annotated, Any

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    FiniteFloat,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from mercer.experiments.clusters import Cluster
from mercer.experiments.experiment import Experiment, Problem, Unions, json_schema, placed
from mercer.experiments.messages import brief, explained, nearest
from mercer.experiments.running import identity
from mercer.experiments.text import ConfigurationError, Document, Path, parse


class _Range(BaseModel):
    """Numbers between two, evenly or in their logarithms."""

    model_config = ConfigDict(extra="forbid", strict=True)
    low: FiniteFloat
    high: FiniteFloat
    log: bool = False
    integer: bool = False

    @model_validator(mode="after")
    def _is_a_range(self) -> "_Range":
        if self.low > self.high:
            raise PydanticCustomError("range", "expected low to be at most high")
        if self.log and self.low <= 0.0:
            raise PydanticCustomError("range", "expected low to be above 0, as its logarithm is taken")
        return self

    def draw(self, rng: np.random.Generator) -> float | int:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        value = float(rng.uniform(low, high))
        value = math.exp(value) if self.log else value
        return round(value) if self.integer else float(f"{value:.6g}")


_Choice = Annotated[
    Annotated[_Range, Tag("range")] | Annotated[list[Any], Field(min_length=1), Tag("list")],
    Discriminator(lambda value: "list" if isinstance(value, list) else "range"),
]


class _Random(BaseModel):
    """Combinations at random: numbers of a range, or one of a list."""

    model_config = ConfigDict(extra="forbid", strict=True)
    num: Annotated[int, Field(ge=1)]
    seed: Annotated[int, Field(ge=0)] = 0
    of: dict[str, _Choice]


Axis = dict[str, Any]  # label -> value


def _axis(values: Any) -> Any:
    """A list of values with labels of their own."""
    if not isinstance(values, list | dict) or not values:
        raise PydanticCustomError("axis", "expected a list of values, or a mapping from labels to values")
    if isinstance(values, dict):
        return values
    return {label: value for label, value in zip(labels_of(values), values, strict=True)}


_Axis = Annotated[Axis, BeforeValidator(_axis, json_schema_input_type=list[Any] | dict[str, Any]), Field(min_length=1)]


class _Blocks(BaseModel):
    """A sweep as it is written."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: str = "sweep"
    experiment: str | dict[str, Any]
    grid: dict[str, _Axis] = {}
    together: dict[str, _Axis] = Field({}, alias="zip")
    points: list[dict[str, Any]] = Field([], alias="list")
    random: _Random | None = None
    exclude: list[dict[str, Any]] = []
    cluster: Cluster | None = None


def _settings_of(block: str | None) -> list[str]:
    """The settings of a block, or those of a sweep."""
    models: dict[str | None, type[BaseModel]] = {"cluster": Cluster, "random": _Random, "range": _Range}
    return [field.alias or name for name, field in models.get(block, _Blocks).model_fields.items()]


def sweep_json_schema() -> dict[str, Any]:
    """The JSON schema of sweeps, with that of the experiment inside."""
    found = TypeAdapter(_Blocks).json_schema(mode="validation", schema_generator=Unions)
    inner = json_schema()
    definitions = found.pop("$defs") | inner.pop("$defs")
    found["properties"]["experiment"] = {"anyOf": [{"type": "string"}, {"type": "object"} | inner]}
    return {"$schema": inner.pop("$schema"), **found, "title": "a mercer sweep", "$defs": definitions}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One setting of a sweep: the label and the value of each of its choices, and the experiment."""

    labels: dict[str, str]
    values: dict[str, Any]
    experiment: Experiment

    @functools.cached_property
    def problem(self) -> Problem:
        """Its data."""
        return problem_of(self.experiment)

    @functools.cached_property
    def hashes(self) -> dict[str, str]:
        """Those of its stages."""
        return self.experiment.hashes(self.problem)

    @functools.cached_property
    def identity(self) -> str:
        """The hash of the whole."""
        return identity(self.experiment, self.hashes)[:32]


_problems: dict[str, Problem] = {}


def problem_of(experiment: Experiment) -> Problem:
    """The data of an experiment, read once for all that have the same."""
    value = experiment.document.value
    told = json.dumps([value.get(name) for name in ("data", "split", "standardise", "precision")], sort_keys=True)
    if told not in _problems:
        if len(_problems) >= 64:
            _problems.pop(next(iter(_problems)))
        with experiment.precision():
            _problems[told] = experiment.load()
    return _problems[told]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep that was read and found valid."""

    name: str
    base: Document
    blocks: Any
    document: Document

    @classmethod
    def read(cls, path: str | FilePath) -> "Sweep":
        """The sweep of a file; the path of its experiment is relative to it."""
        try:
            text = FilePath(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        return cls.of(text, name=str(path), folder=FilePath(path).parent)

    @classmethod
    def of(cls, text: str, *, name: str = "the sweep", folder: FilePath = FilePath()) -> "Sweep":
        """The sweep of a text in YAML."""
        document = parse(text, name)
        if not isinstance(document.value, dict):
            raise ConfigurationError(f"{name}: a sweep is a mapping with an experiment and a grid")
        try:
            blocks = TypeAdapter(_Blocks).validate_python(document.value)
        except ValidationError as error:
            raise explained(error, document, _settings_of) from None
        if isinstance(blocks.experiment, str):
            path = folder / blocks.experiment
            if not path.is_file():
                raise document.refuse(("experiment",), f"there is no file {path}")
            base = Experiment.read(path).document
        else:
            lines = {path[1:]: line for path, line in document.lines.items() if path[:1] == ("experiment",)}
            base = Experiment.valid(Document(blocks.experiment, lines, name)).document
        sweep = cls(blocks.name, base, blocks, document)
        sweep._check()
        return sweep

    def _check(self) -> None:
        lengths = {len(axis) for axis in self.blocks.together.values()}
        if len(lengths) > 1:
            raise self.document.refuse(("zip",), f"lists of the same length are expected, got {sorted(lengths)}")
        names = [*self.blocks.grid, *self.blocks.together, *(self.blocks.random.of if self.blocks.random else ())]
        names += sorted({name for point in self.blocks.points for name in point})
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise self.document.refuse((), f"{twice!r} is in two blocks")
        axes = {**self.blocks.grid, **self.blocks.together}
        for i, item in enumerate(self.blocks.exclude):
            for name, said in item.items():
                if name not in names:
                    raise self.document.refuse(("exclude", i, name), f"no block has this setting{nearest(name, names)}")
                for one in said if isinstance(said, list) else [said]:
                    if name in axes and label_of(one) not in axes[name] and one not in axes[name].values():
                        hint = nearest(one, axes[name])
                        raise self.document.refuse(("exclude", i, name), f"{brief(one)} is none of its values{hint}")

    def combinations(self) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
        """Labels and values of each combination that is not excluded."""
        blocks = self.blocks
        factors = [[{name: item} for item in axis.items()] for name, axis in blocks.grid.items()]
        if blocks.together:
            rows = zip(*(axis.items() for axis in blocks.together.values()), strict=True)
            factors.append([dict(zip(blocks.together, row, strict=True)) for row in rows])
        if blocks.points:
            factors.append(
                [{name: (label_of(value), value) for name, value in point.items()} for point in blocks.points]
            )
        if blocks.random is not None:
            factors.append([*self._drawn()])
        for parts in itertools.product(*factors):
            chosen = {name: item for part in parts for name, item in part.items()}
            labels = {name: label for name, (label, _) in chosen.items()}
            if not any(self._matches(labels, chosen, item) for item in blocks.exclude):
                yield labels, {name: value for name, (_, value) in chosen.items()}

    def _drawn(self) -> Iterator[dict[str, tuple[str, Any]]]:
        rng = np.random.default_rng(self.blocks.random.seed)
        for _ in range(self.blocks.random.num):
            drawn = {}
            for name, of in self.blocks.random.of.items():
                value = of.draw(rng) if isinstance(of, _Range) else of[int(rng.integers(len(of)))]
                drawn[name] = label_of(value), value
            yield drawn

    @staticmethod
    def _matches(labels: Mapping[str, str], chosen: Mapping[str, Any], item: Mapping[str, Any]) -> bool:
        def fits(name: str, said: Any) -> bool:
            some = said if isinstance(said, list) else [said]
            return name in labels and any(
                one in (labels[name], chosen[name][1]) or label_of(one) == labels[name] for one in some
            )

        return all(fits(name, said) for name, said in item.items())

    def with_values(self, values: Mapping[str, Any]) -> Experiment:
        """The experiment with some values at their paths."""
        document = self.base
        for where, value in values.items():
            document = placed(document, where, value, self._origin(where, value))
        return Experiment.valid(document)

    def _origin(self, setting: str, value: Any) -> str:
        """The file and the line where a setting has a value."""
        places = self._places.get(setting, [((), None)])
        return self.document.origin(next((path for path, said in places if said == value), places[0][0]))

    @functools.cached_property
    def _places(self) -> dict[str, list[tuple[Path, Any]]]:
        """Of each setting: the paths of its values in this file, with the values."""
        written: dict[str, Any] = self.document.value
        found: dict[str, list[tuple[Path, Any]]] = {}
        for block in ("grid", "zip"):
            for setting, axis in written.get(block, {}).items():
                items = axis.items() if isinstance(axis, dict) else enumerate(axis)
                found[setting] = [((block, setting, key), value) for key, value in items]
        for i, point in enumerate(written.get("list", [])):
            for setting, value in point.items():
                found.setdefault(setting, []).append((("list", i, setting), value))
        for setting in self.blocks.random.of if self.blocks.random else ():
            found[setting] = [(("random", "of", setting), None)]
        return found

    @functools.cached_property
    def cells(self) -> list[Cell]:
        """All cells, each once; an error names the combination that is not valid."""
        found: dict[str, Cell] = {}
        for labels, values in self.combinations():
            try:
                cell = Cell(labels, values, self.with_values(values))
                found.setdefault(cell.identity, cell)
            except ConfigurationError as error:
                said = ", ".join(f"{name}={label}" for name, label in labels.items())
                raise ConfigurationError(f"{error} (with {said})") from None
        if not found:
            raise ConfigurationError(f"{self.document.name}: every combination is excluded")
        return list(found.values())


def label_of(value: Any) -> str:
    """A value in a word."""
    if isinstance(value, dict):
        inner = value.get("divergence") or value.get("kernel") or value.get("base")
        return (
            f"{value['type']} of {label_of(inner)}"
            if "type" in value and isinstance(inner, dict)
            else str(value.get("type", "?"))
        )
    return str(value) if isinstance(value, str) else brief(value)


def labels_of(values: Sequence[Any]) -> list[str]:
    """Labels of several values, told apart by numbers where they would be the same."""
    labels = [label_of(value) for value in values]
    return [label if labels.count(label) == 1 else f"{label} {i + 1}" for i, label in enumerate(labels)]
