"""Experiments: any model from YAML and back, and runs that go on after anything.

mc.experiments.from_yaml(text), to_yaml(model)      an object and its text
mc.experiments.Experiment.read(path)                data, stages and scores
mc.experiments.run(experiment, out)                 a folder with all that it gave
"""

from mercer.experiments.building import from_yaml, to_yaml
from mercer.experiments.data import Data, Split
from mercer.experiments.experiment import Experiment, json_schema
from mercer.experiments.running import Outcome, run
from mercer.experiments.stages import Root, stage
from mercer.experiments.text import ConfigurationError

__all__ = [
    "from_yaml",
    "to_yaml",
    "Experiment",
    "run",
    "Outcome",
    "Data",
    "Split",
    "Root",
    "stage",
    "json_schema",
    "ConfigurationError",
]
