"""Tabular data: how the columns of a table become the inputs and the outputs of a model."""

from mercer.tabular.columns import Category, Columns, Date, Encoder, Number
from mercer.tabular.targets import Target, detect

__all__ = [
    "Columns",
    "Encoder",
    "Number",
    "Category",
    "Date",
    "Target",
    "detect",
]
