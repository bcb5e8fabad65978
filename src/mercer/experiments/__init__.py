"""Experiments: any model from YAML and back, runs and sweeps that go on after anything.

mc.experiments.from_yaml(text), to_yaml(model)      an object and its text
mc.experiments.Experiment.read(path)                data, stages and scores
mc.experiments.run(experiment, out)                 a folder with all that it gave
mc.experiments.Sweep.read(path)                     one experiment with many settings
mc.experiments.run_sweep(sweep, out)                its cells, on many workers
mc.experiments.results(out)                         their scores as a data frame
mc.experiments.leaderboard(out)                     the best settings, averaged over repeats; `draw_best` draws them
mc.experiments.report(out)                          one HTML file with everything
mc.experiments.log_to_mlflow(out)                   the same in MLflow
"""

from mercer.experiments.building import from_yaml, to_yaml
from mercer.experiments.cells import Store
from mercer.experiments.data import Data, Split
from mercer.experiments.engine import Options, run_sweep
from mercer.experiments.experiment import Experiment, json_schema
from mercer.experiments.groups import planned_groups
from mercer.experiments.leaderboard import draw_best, leaderboard
from mercer.experiments.report import report
from mercer.experiments.results import Choices, Plan, Planned, planned, read_plan, results
from mercer.experiments.running import Outcome, run
from mercer.experiments.stages import Root, lengthscales, noise_variances, stage
from mercer.experiments.sweep import Cell, Sweep, sweep_json_schema
from mercer.experiments.text import ConfigurationError
from mercer.experiments.tracking import log_to_mlflow

__all__ = [
    "from_yaml",
    "to_yaml",
    "Experiment",
    "run",
    "Outcome",
    "Data",
    "Split",
    "Root",
    "lengthscales",
    "noise_variances",
    "stage",
    "Sweep",
    "Cell",
    "run_sweep",
    "Options",
    "results",
    "leaderboard",
    "draw_best",
    "report",
    "log_to_mlflow",
    "planned",
    "planned_groups",
    "read_plan",
    "Plan",
    "Planned",
    "Choices",
    "Store",
    "json_schema",
    "sweep_json_schema",
    "ConfigurationError",
]
