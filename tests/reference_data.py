"""Numbers of GPflow and GPyTorch on Snelson and Ghahramani's data; reference/snelson.json says how they were made."""

import json
import pathlib

import numpy as np

REFERENCE = json.loads((pathlib.Path(__file__).parent / "reference" / "snelson.json").read_text())
GPFLOW = REFERENCE["gpflow"]
VARIANCE, LENGTHSCALE, NOISE = (REFERENCE["settings"][name] for name in ("variance", "lengthscale", "noise"))


def column(*path):
    """A list of the data as a column [N, 1]."""
    values = REFERENCE["data"]
    for key in path:
        values = values[key]
    return np.asarray(values)[:, None]


X, X_NEW = column("X"), column("X_new")
