"""Tabular data: from the columns of a table to calibrated predictions of one of them."""

from mercer.tabular.classification import Classification, classification
from mercer.tabular.columns import Columns
from mercer.tabular.counts import Counts, counts
from mercer.tabular.encoders import Category, Date, Encoder, Number
from mercer.tabular.evaluation import Evaluation
from mercer.tabular.inputs import Inputs
from mercer.tabular.places import Place, needs_globe, pairs_of_coordinates
from mercer.tabular.predictive import ClassPredictive, NumberPredictive, Predictive
from mercer.tabular.predictors import NumberPredictor, Predictor
from mercer.tabular.regression import Regression, Stream, regression
from mercer.tabular.residuals import Residuals
from mercer.tabular.table_model import Report, TableModel
from mercer.tabular.targets import Target, detect
from mercer.tabular.training import Settings, default_kernel
from mercer.tabular.variational import Variational

__all__ = [
    "TableModel",
    "Report",
    "Evaluation",
    "Settings",
    "regression",
    "Regression",
    "Stream",
    "classification",
    "Classification",
    "counts",
    "Counts",
    "Variational",
    "Predictor",
    "NumberPredictor",
    "Predictive",
    "NumberPredictive",
    "ClassPredictive",
    "default_kernel",
    "Inputs",
    "Residuals",
    "Columns",
    "Encoder",
    "Number",
    "Category",
    "Date",
    "Place",
    "pairs_of_coordinates",
    "needs_globe",
    "Target",
    "detect",
]
