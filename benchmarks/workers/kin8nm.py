"""kin8nm, split 0, and the clock of the race to a test log-likelihood: what every `<library>_kin8nm.py` shares."""

import argparse
import json
import time

import numpy as np

from peers import data_folder

M = 500


def load() -> dict:
    """Standardised training and test sets, and `scale`, the standard deviation that y was divided by."""
    d = np.load(data_folder() / "uci_std" / "kin8nm.npz")
    train, test = d["train_idx"][0], d["test_idx"][0]
    X, y = d["X"], d["y"][:, None]
    X = (X - X[train].mean(0)) / X[train].std(0)
    scale = y[train].std()
    y = (y - y[train].mean()) / scale
    return {"X": X[train], "y": y[train], "X_test": X[test], "y_test": y[test], "scale": scale}


def inducing_points(X: np.ndarray, seed: int) -> np.ndarray:
    """A random subset of M training inputs."""
    return np.asarray(X)[np.random.RandomState(seed).permutation(len(X))[:M]].copy()


def batches(N: int, size: int, seed: int):
    """Endless batches of row numbers, a new permutation every epoch; the remainder of an epoch is left out."""
    random = np.random.RandomState(seed)
    while True:
        rows = random.permutation(N)
        for i in range(0, N - size + 1, size):
            yield rows[i : i + size]


def options(**extra) -> argparse.Namespace:
    """The command line: --target, --seed, --limit (seconds), --every (steps), and those of the library."""
    parser = argparse.ArgumentParser()
    common = {"target": 1.18, "seed": 0, "limit": 600.0, "every": 50}
    for name, default in (common | extra).items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser.parse_args()


def race(build, arguments: argparse.Namespace) -> None:
    """Train until the target or the limit, and print one JSON line.

    `build(data)` returns `step()`, one training step, and `score()`, the mean test log density of the standardised y.
    The clock runs from the start of `build`, so that it holds compilation, and stands still during `score`. Scores are
    in the original units: less log(scale).
    """
    data = load()
    trace, clock, steps = [], 0.0, 0
    start = time.perf_counter()
    step, score = build(data)
    while clock < arguments.limit:
        for _ in range(arguments.every):
            step()
        clock += time.perf_counter() - start
        steps += arguments.every
        trace.append((round(clock, 3), steps, round(float(score()) - float(np.log(data["scale"])), 5)))
        if trace[-1][2] >= arguments.target:
            break
        start = time.perf_counter()
    reached = trace[-1][2] >= arguments.target
    answer = {"reached": reached, "seconds": trace[-1][0], "steps": steps, "log_likelihood": trace[-1][2]}
    print(json.dumps(answer | {"settings": vars(arguments), "trace": trace}), flush=True)
