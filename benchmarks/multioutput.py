"""Several outputs on real data, beside independent processes and GPflow: `python benchmarks/multioutput.py [fx eeg ...]`.

Entries of Y are held out and predicted from the others: fx and eeg, the published masks; sarcos, each training row shows a random
third of the torques, and whole rows are tested; exchange, 60 days of three currencies. All models have the same kernels, the
same M inducing points, shared by the latent functions, and noise of each output. "coregionalised" is R shared latent functions
and one more for each output (sarcos: R only); GPflow's LMC has the same number of latent functions, begins at the same
parameters, and is given a likelihood that leaves out what is missing, which GPflow asks its users to write. Scores are means
over the outputs with held-out entries: SMSE (squared error over the variance of the held-out values) and log-likelihood in
original units; with several starts, the mean and standard deviation over them.
Data: `MERCER_DATA`, else ../shared/data beside the repository.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from peers import data_folder, python_of

HERE = Path(__file__).resolve().parent


def tasks() -> dict:
    """name -> (inputs [N, D], values [N, P], which are held out, kernel, shared latent functions, M, steps of Adam or None)."""
    folder = data_folder() / "multioutput"
    fx, eeg, sarcos, rates = (
        np.load(folder / f"{name}.npz") for name in ("fx2007", "eeg", "sarcos_4449", "exchange_rate_8")
    )
    random = np.random.default_rng(0)
    hidden = np.broadcast_to((sarcos["fold"] == 0)[:, None], sarcos["Y"].shape)
    unseen = random.uniform(size=hidden.shape) > 1.0 / 3.0
    recent, gaps = rates["Y"][-600:], np.zeros((600, 8), bool)
    for start, column in ((100, 0), (250, 2), (400, 6)):
        gaps[start : start + 60, column] = True
    days = np.arange(600.0)[:, None]
    return {
        "fx": (fx["t"][:, None], fx["Y"], fx["test_nguyen2014"], "Matern32", 3, 64, None),
        "eeg": (eeg["t"][:, None], eeg["Y"], eeg["test"], "Matern52", 3, 100, None),
        "sarcos": (sarcos["X"], np.where(unseen & ~hidden, np.nan, sarcos["Y"]), hidden, "RBF", 7, 200, 2000),
        "exchange": (days, recent, gaps, "Matern32", 3, 100, None),
    }


def problem(task: tuple, seed: int) -> dict:
    """The task in standard units, and where training starts."""
    X, Y, hidden, kernel, R, M, steps = task
    seen = np.where(hidden, np.nan, Y)
    middle, scale = np.nanmean(seen, axis=0), np.nanstd(seen, axis=0)
    X = (X - X.mean(axis=0)) / (X.std(axis=0) + 1e-12)
    random, P = np.random.default_rng(seed), Y.shape[1]
    if X.shape[1] == 1:
        W = np.concatenate([0.5 * random.normal(size=(P, R)), 0.3 * np.eye(P)], axis=1)
        Z, lengthscales = np.linspace(X.min(), X.max(), M)[:, None], np.full(1, 0.5 if kernel == "Matern32" else 0.1)
    else:
        W = np.eye(P) + 0.1 * random.normal(size=(P, R))
        Z, lengthscales = X[random.permutation(len(X))[:M]], np.full(X.shape[1], X.shape[1] ** 0.5)
    keep = ~hidden.all(axis=1)
    return {
        "X": X, "X_train": X[keep], "Y_train": ((seen - middle) / scale)[keep], "Z": Z, "W": W, "noise": np.full(P, 0.05),
        "lengthscales": lengthscales, "kernel": kernel, "steps": steps or 3000, "R": R, "scale": scale, "middle": middle,
        "Y": Y, "hidden": hidden, "by_minibatches": steps is not None,
    }  # fmt: skip


def scores(p: dict, mean: np.ndarray, variance: np.ndarray) -> tuple[float, float]:
    """SMSE and log-likelihood of the held-out entries."""
    mean, variance = mean * p["scale"] + p["middle"], variance * p["scale"] ** 2
    results = []
    for column in np.flatnonzero(p["hidden"].any(axis=0)):
        rows = p["hidden"][:, column] & ~np.isnan(p["Y"][:, column])
        y, m, v = (array[rows, column] for array in (p["Y"], mean, variance))
        density = -0.5 * (np.log(2.0 * np.pi * v) + (y - m) ** 2 / v)
        results.append((np.mean((y - m) ** 2) / np.var(y), np.mean(density)))
    return tuple(np.mean(results, axis=0))


def mercer_model(p: dict, independent: bool):
    """The posterior before training, and the objective."""
    import mercer as mc

    P, R = p["W"].shape[0], p["R"]
    L = P if independent else p["W"].shape[1]
    ard = p["lengthscales"] if len(p["lengthscales"]) > 1 else p["lengthscales"][0]
    kernels = [getattr(mc.kernels, p["kernel"])(ard) for _ in range(L)]
    mixed = None if independent else mc.kernels.LinearCoregionalisation(kernels, p["W"])
    kernel = mixed or mc.kernels.SeparateIndependent(kernels)
    q = mc.Sparse(mc.GP(kernel), mc.inducing.Shared(mc.inducing.Points(p["Z"])))
    model = mc.Model(q, mc.likelihoods.Gaussian(p["noise"]))
    objective = mc.objectives.ELBO() if p["by_minibatches"] else mc.objectives.CollapsedELBO()
    if not independent and L == R + P:
        # The latent functions of single outputs stay theirs.
        others = np.nonzero(~np.eye(P, dtype=bool))
        priors = [
            (lambda m: m.posterior.prior.kernel.W[:, R:][others], mc.priors.Normal(0.0, 0.01)),
            (lambda m: m.posterior.prior.kernel.W[:, :R], mc.priors.Normal(0.0, 1.0)),
        ]
        objective = mc.objectives.MAP(objective, priors)
    return model, objective


def mercer(p: dict, independent: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Predictions of y at all inputs, and the loss."""
    import optax

    import mercer as mc

    model, objective = mercer_model(p, independent)
    data = p["X_train"], p["Y_train"]
    if p["by_minibatches"]:
        options = {"optimiser": optax.adam(0.01), "steps": p["steps"], "batch_size": 500}
    else:
        options = {"optimiser": optax.lbfgs(), "steps": 80, "frozen": lambda m: m.posterior.inducing}
    fitted = mc.fit(model, objective, data, **options)
    result = fitted.model.predict(p["X"])
    return np.asarray(result.mean), np.asarray(result.cov), float(np.mean(fitted.history[-20:]))


def gpflow(p: dict) -> tuple[np.ndarray, np.ndarray, float]:
    """The same by GPflow, in its own environment."""
    with tempfile.TemporaryDirectory() as folder:
        arrays = {key: value for key, value in p.items() if isinstance(value, np.ndarray)}
        np.savez(Path(folder) / "problem.npz", **arrays)
        options = {"kernel": p["kernel"], "steps": p["steps"], "by_minibatches": p["by_minibatches"]}
        (Path(folder) / "options.json").write_text(json.dumps(options))
        command = [str(python_of("gpflow")), "-m", "workers.gpflow_multioutput", folder]
        subprocess.run(command, check=True, cwd=HERE, stderr=subprocess.DEVNULL)
        found = np.load(Path(folder) / "result.npz")
        return found["mean"], found["variance"], float(found["loss"])


def main() -> None:
    """Prints a line for each data set and model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=["fx", "eeg", "sarcos", "exchange"])
    parser.add_argument("--starts", type=int, default=1)
    arguments = parser.parse_args()
    import jax

    jax.config.update("jax_enable_x64", True)
    models = {
        "mercer, independent": lambda p: mercer(p, independent=True),
        "mercer, coregionalised": lambda p: mercer(p, independent=False),
    }
    if python_of("gpflow") is None:
        print("gpflow: not installed, skipped (benchmarks/setup_peers.py installs it)", file=sys.stderr)
    else:
        models["GPflow LMC"] = gpflow
    print("| data | model | SMSE | log-likelihood | seconds |\n|---|---|---|---|---|", flush=True)
    for name in arguments.tasks:
        for model, run in models.items():
            results, start = [], time.perf_counter()
            for seed in range(1 if model == "mercer, independent" else arguments.starts):
                p = problem(tasks()[name], seed)
                mean, variance, _ = run(p)
                results.append(scores(p, mean, variance))
            smse, density = zip(*results, strict=True)
            seconds = (time.perf_counter() - start) / len(results)
            print(f"| {name} | {model} | {_spread(smse)} | {_spread(density)} | {seconds:.0f} |", flush=True)


def _spread(values) -> str:
    return f"{np.mean(values):.3f}" + (f" ± {np.std(values):.3f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
