"""An experiment: data, stages one after another, and scores. It is read from YAML, and each stage has a name that is its content.

    seed: 0
    data: {type: curve, number: 1}
    stages:
      prior: {type: select, kernel: RBF, M: {type: Root, of: 2}}
      posterior: {type: fit, model: {...}, objective: {...}, steps: 2000}
      tempered: {type: temper, model: $posterior.model}
    scores: [nlpd, rmse]

The hash of a stage is made of its settings, those of the stages that it refers to, the data, the seed and the precision. Two
experiments whose stages have the same hash share its result.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

import jax
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from mercer.experiments.building import Builder, Known, known
from mercer.experiments.data import Data, Split
from mercer.experiments.messages import explained, nearest
from mercer.experiments.schema import SEEDS, Place, Spec
from mercer.experiments.scores import SCORES
from mercer.experiments.stages import Stage
from mercer.experiments.text import ConfigurationError, Document, Path, parse, written

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FORMAT = 1  # of hashes: raised where the same configuration would give other results
# What a reference may name beside stages.
_DATA = ("X", "Y", "N", "D", "P")


class _Settings(BaseModel):
    """What is the same for all experiments."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    name: str = "experiment"
    seed: int = Field(0, ge=SEEDS[0], le=SEEDS[1])
    precision: Literal["float64", "float32"] = "float64"
    standardise: list[Literal["X", "Y"]] = ["X", "Y"]


@functools.lru_cache(maxsize=1)
def _adapter(of_now: Known) -> TypeAdapter:
    """Validates experiments with what can be named now."""
    of_now.schemas.begun.clear()

    def place(hint: Any) -> Any:
        return Annotated[Any, Place(of_now.schemas, hint)]

    fields: dict[str, Any] = {
        "data": (place(Data), ...),
        "split": (place(Split | None), None),
        "stages": (dict[str, place(Stage)], ...),  # type: ignore[misc]
        "scores": (list[Literal[tuple(SCORES)]], ["nlpd", "rmse"]),  # type: ignore[misc]
    }
    model = create_model("Experiment", __base__=_Settings, __doc__="An experiment of mercer.", **fields)
    return TypeAdapter(model)


class Unions(GenerateJsonSchema):
    """A value may have several of the forms that a place takes: `$X` is a text, too, and 1 an integer and a number."""

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        """Any of the choices, in the place of exactly one."""
        found = super().tagged_union_schema(schema)
        return {"anyOf" if key == "oneOf" else key: value for key, value in found.items()}


def json_schema() -> dict[str, Any]:
    """The JSON schema of experiments, for completion in editors."""
    found = _adapter(known()).json_schema(mode="validation", schema_generator=Unions)
    return {"$schema": DIALECT, "title": "a mercer experiment", **found}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A configuration that is valid, with the data not yet read."""

    document: Document
    said: Any

    @classmethod
    def read(cls, path: str | FilePath, changes: Sequence[str] = ()) -> "Experiment":
        """The experiment of a file, with changes such as `stages.posterior.steps=100`."""
        try:
            text = FilePath(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        return cls.of(text, changes, name=str(path))

    @classmethod
    def of(
        cls, text: str | Mapping[str, Any], changes: Sequence[str] = (), *, name: str = "the experiment"
    ) -> "Experiment":
        """The experiment of a text in YAML, or of its values."""
        document = parse(text if isinstance(text, str) else written(dict(text)), name)
        for change in changes:
            document = _changed(document, change)
        return cls.valid(document)

    @classmethod
    def valid(cls, document: Document) -> "Experiment":
        """The experiment of a document, or an error that says what is wrong with it."""
        if not isinstance(document.value, dict):
            raise ConfigurationError(f"{document.name}: an experiment is a mapping with data and stages")
        try:
            said = _adapter(known()).validate_python(document.value)
        except ValidationError as error:
            raise explained(error, document, _settings_of) from None
        experiment = cls(document, said)
        experiment._check_references()
        return experiment

    def yaml(self) -> str:
        """The configuration with the changes made."""
        return written(self.document.value)

    @property
    def stages(self) -> dict[str, Spec]:
        """The stages in their order."""
        return self.said.stages

    def needs(self, name: str) -> list[str]:
        """The earlier stages that a stage refers to, directly."""
        named = {reference for _, reference in self._references[name]}
        return [other for other in self.stages if other in named]

    @functools.cached_property
    def _references(self) -> dict[str, list[tuple[Path, str]]]:
        """Of each stage: the places with references, and the first name in each."""
        return {name: _places(value, ("stages", name)) for name, value in self.document.value["stages"].items()}

    def _check_references(self) -> None:
        allowed: list[str] = list(_DATA)
        if not self.stages:
            raise self.document.refuse(("stages",), "an experiment has at least one stage")
        for name, references in self._references.items():
            if name in _DATA or not re.fullmatch(r"[A-Za-z_]\w*", name):
                raise self.document.refuse(("stages", name), "the name of a stage is a word, and none of X, Y, N, D, P")
            for path, reference in references:
                if reference not in allowed:
                    raise self.document.refuse(path, f"there is no ${reference} here{nearest(reference, allowed)}")
            allowed.append(name)

    def precision(self) -> Any:
        """A context in which numbers have the precision of the experiment."""
        return jax.enable_x64(self.said.precision == "float64")

    def load(self) -> "Problem":
        """The data, read and divided."""
        builder = Builder(self.document, {}, jax.random.key(self.said.seed))
        data = builder.build(self.said.data, ("data",))
        split = builder.build(self.said.split, ("split",))
        if data.train is None or split is not None:
            try:
                data = (split or Split())(data)
            except ValueError as error:
                raise self.document.refuse(("split",), str(error)) from None
        return Problem.of(data, self.said.standardise, self.said.precision)

    def hashes(self, problem: "Problem") -> dict[str, str]:
        """The hash of each stage."""
        shared = {"format": FORMAT, "seed": self.said.seed, "data": problem.fingerprint}
        found: dict[str, str] = {}
        for name in self.stages:
            needed = {other: found[other] for other in self.needs(name)}
            content = {**shared, "name": name, "stage": self.document.value["stages"][name], "needs": needed}
            found[name] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return found


@dataclasses.dataclass(frozen=True)
class Problem:
    """Data of an experiment in standard units. y = centre + scale * (its standard value)."""

    data: Data
    centre: np.ndarray
    scale: np.ndarray
    original: Data
    fingerprint: str

    @classmethod
    def of(cls, data: Data, standardise: Sequence[str], precision: str) -> "Problem":
        """Centred and scaled by the rows to train on."""
        moments = {}
        for name, rows in zip(("X", "Y"), data.part("train"), strict=True):
            if len(rows) == 0:
                raise ConfigurationError("there are no rows to train on")
            mean, spread = _moments(rows)
            centre, scale = (mean, np.where(spread > 0.0, spread, 1.0)) if name in standardise else (0.0, 1.0)
            moments[name] = centre + 0.0 * spread, scale + 0.0 * spread
        standard = {name: ((getattr(data, name) - c) / s).astype(precision) for name, (c, s) in moments.items()}
        told = json.dumps([sorted(standardise), precision])
        fingerprint = hashlib.sha256((data.fingerprint() + told).encode()).hexdigest()
        return cls(dataclasses.replace(data, **standard), *moments["Y"], data, fingerprint)

    def values(self) -> dict[str, Any]:
        """What references to the data mean."""
        X, Y = self.data.part("train")
        return {"X": X, "Y": Y, "N": len(X), "D": X.shape[1], "P": Y.shape[1]}


def _moments(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the columns, of what is observed."""
    if not np.isnan(rows).any():
        return rows.mean(axis=0), rows.std(axis=0)
    if np.isnan(rows).all(axis=0).any():
        raise ConfigurationError("there is an output of which nothing is observed")
    return np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)


def _settings_of(name: str | None) -> set[str]:
    """The settings of an entry, or those of an experiment."""
    found = known().settings(name)
    return found or {*_Settings.model_fields, "data", "split", "stages", "scores"}


def _places(value: Any, path: Path) -> list[tuple[Path, str]]:
    """References in a value, each with its place and the first name in it."""
    if isinstance(value, str):
        found = re.match(r"\$([A-Za-z_]\w*)", value) if value.startswith("$") else None
        return [(path, found[1])] if found else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inside = ((key, item) for key, item in items if isinstance(item, str | dict | list))
    return [place for key, item in inside for place in _places(item, (*path, key))]


def _changed(document: Document, change: str) -> Document:
    """A document with another value: `stages.posterior.steps=100`."""
    where, equals, text = change.partition("=")
    if not equals or not where:
        raise ConfigurationError(f"{change!r}: a change is written as key.path=value")
    return placed(document, where, parse(text, f"{change!r}").value, repr(change))


def placed(document: Document, where: str, new: Any, said: str) -> Document:
    """A document with another value at a path, such as `stages.posterior.steps`; `said` is where it comes from, for messages.

    The rest is shared with the document, which stays as it is.
    """
    path = tuple(int(part) if part.isdigit() else part for part in re.split(r"[.\[\]]+", where.strip("]")))

    def inside(value: Any, i: int) -> Any:
        part, last = path[i], i == len(path) - 1
        in_list = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if last and isinstance(value, dict):
            return {**value, str(part): new}
        if not in_list and not (isinstance(value, dict) and part in value):
            names = nearest(part, value) if isinstance(value, dict) else ""
            missing = f"place {where}" if last else f"{'.'.join(map(str, path[: i + 1]))}{names}"
            raise ConfigurationError(f"{said}: {document.name} has no {missing}")
        changed: Any = list(value) if in_list else dict(value)
        changed[part] = new if last else inside(value[part], i + 1)
        return changed

    return dataclasses.replace(document, value=inside(document.value, 0), changes=document.changes | {path: said})
