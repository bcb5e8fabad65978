"""The experiments of the repository: that their files are valid. They are run by hand, as their heads say."""

import itertools
from pathlib import Path

import pytest

from mercer.experiments import Experiment, Sweep

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
