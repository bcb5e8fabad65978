"""Training: `fit`, and what it is made of."""

from mercer.training.checkpoint import CheckpointError
from mercer.training.fit import fit
from mercer.training.natural import NaturalGradient, natural_step
from mercer.training.results import Callback, Fit, Progressed, TrainingError
from mercer.training.sources import InMemory, Parquet, Rows, Source
from mercer.training.stopping import EarlyStopping

__all__ = [
    "Callback",
    "CheckpointError",
    "EarlyStopping",
    "Fit",
    "InMemory",
    "NaturalGradient",
    "Parquet",
    "Progressed",
    "Rows",
    "Source",
    "TrainingError",
    "fit",
    "natural_step",
]
