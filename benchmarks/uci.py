"""The standard splits of UCI for the scripts beside this one: data in standard units, scores in those of the data.

Whoever imports it works in float64, where arrays do not say otherwise.
"""

import jax
import numpy as np

from peers import data_folder

jax.config.update("jax_enable_x64", True)

import mercer as mc  # noqa: E402

SETS = ("bostonHousing", "concrete", "energy", "yacht", "wine-quality-red", "kin8nm", "power-plant")


def split(name: str, number: int):
    """Training and test data in standard units, and the units of y. Constant columns are dropped."""
    data = np.load(data_folder() / "uci_std" / f"{name}.npz")
    train, test = data["train_idx"][number], data["test_idx"][number]
    X, y = data["X"][:, np.ptp(data["X"][train], axis=0) > 0.0], data["y"].reshape(-1, 1)
    middle, scale = X[train].mean(axis=0), X[train].std(axis=0) + 1e-12
    units = y[train].mean(), y[train].std()
    return (X[train] - middle) / scale, (y[train] - units[0]) / units[1], (X[test] - middle) / scale, y[test], units


def scores(mean, variance, y, units) -> tuple[float, float]:
    """RMSE and mean log-likelihood of predictions in standard units, in those of y."""
    middle, scale = units
    mean, variance = np.asarray(mean) * scale + middle, np.asarray(variance) * scale**2
    log_density = -0.5 * np.log(2.0 * np.pi * variance) - 0.5 * (y - mean) ** 2 / variance
    return float(np.sqrt(np.mean((mean - y) ** 2))), float(np.mean(log_density))


def with_errors(rows) -> list[str]:
    """Mean and standard error of each column."""
    n = len(rows)
    errors = np.std(rows, axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.full(len(rows[0]), np.nan)
    cells = []
    for mean, error in zip(np.mean(rows, axis=0), errors, strict=True):
        places = 3 if max(abs(mean), error) > 0.01 else 6
        cells.append(f"{mean:.{places}f} ± {error:.{places}f}")
    return cells


def prior_kernel(X):
    """Where all methods start."""
    return mc.kernels.RBF(np.full(X.shape[1], X.shape[1] ** 0.5))
