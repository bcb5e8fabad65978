"""Objectives: functions of (model, batch, key) that `fit` makes small."""

from mercer.objectives import measurement, risks
from mercer.objectives.base import Batch, Context, Objective, TrainingObjective
from mercer.objectives.collapsed import CollapsedELBO
from mercer.objectives.exact import LeaveOneOut, MarginalLikelihood
from mercer.objectives.fbnn import FBNN
from mercer.objectives.gvi import GVI
from mercer.objectives.importance import ImportanceWeighted
from mercer.objectives.map import MAP
from mercer.objectives.mirror_descent import MirrorDescent
from mercer.objectives.variational import ELBO, PredictiveLogLikelihood, elbo

__all__ = [
    "Objective",
    "TrainingObjective",
    "Batch",
    "Context",
    "MarginalLikelihood",
    "LeaveOneOut",
    "CollapsedELBO",
    "ELBO",
    "ImportanceWeighted",
    "PredictiveLogLikelihood",
    "GVI",
    "MAP",
    "MirrorDescent",
    "FBNN",
    "measurement",
    "risks",
    "elbo",
]
