"""The experiments of the repository: that their files are valid. They are run by hand, as their heads say."""

import copy
import functools
import itertools
from pathlib import Path

import jsonschema
import pytest
import yaml

from mercer.experiments import Experiment, Sweep, json_schema, sweep_json_schema

HERE = Path(__file__).parents[2]
FILES = [*HERE.glob("experiments/*/*.yaml"), *HERE.glob("examples/experiments/*.yaml")]


@pytest.mark.parametrize("path", sorted(FILES), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_files_are_valid(path):
    """Of sweeps, one combination in two hundred."""
    if "\ngrid:" not in path.read_text():
        assert Experiment.read(path).stages
        return
    sweep = Sweep.read(path)
    for _, values in itertools.islice(sweep.combinations(), 0, None, 200):
        assert sweep.with_values(values).stages


@functools.cache
def validator(of_sweeps):
    found = sweep_json_schema() if of_sweeps else json_schema()
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


@pytest.mark.parametrize("path", sorted(FILES), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_editors_agree(path):
    """The JSON schema takes what the library takes."""
    value = yaml.safe_load(path.read_text())
    validator("experiment" in value).validate(value)


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        ("seeed", 1),
        ("scores", ["nlpdd"]),
        ("stages.posterior.steps", "many"),
        ("stages.prior.kernel", {"type": "RBFF"}),
        ("stages.posterior.optimiser", {"type": "adabelief", "learning_rat": 1.0}),
    ],
)
def test_editors_see_mistakes(place, wrong):
    value = yaml.safe_load((HERE / "experiments/000/curve.yaml").read_text())
    for of_sweeps, whole in ((False, value), (True, {"experiment": copy.deepcopy(value)})):
        *names, last = place.split(".")
        functools.reduce(lambda part, name: part[name], names, whole.get("experiment", whole))[last] = wrong
        assert not validator(of_sweeps).is_valid(whole)
