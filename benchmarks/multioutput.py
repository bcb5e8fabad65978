"""Several outputs on real data, beside independent processes and GPflow: `python benchmarks/multioutput.py [fx eeg ...]`.

Entries of Y are held out and predicted from the others: fx and eeg, the published masks; sarcos, each training row shows a random
third of the torques, and whole rows are tested; exchange, 40 days of three currencies. "coregionalised" is R latent functions
that all outputs share and one more for each output (sarcos: R only); in fx and exchange a prior keeps the latter to their
outputs. mercer is exact on eeg and exchange, sparse with M points on fx and eeg_sparse (the collapsed bound) and on sarcos
(minibatches).
GPflow's LMC, sparse with M points, has the same kernels and as many latent functions, begins at the same parameters, and is given
a likelihood that leaves out what is missing, which GPflow asks its users to write. Scores are means over the outputs with
held-out entries: SMSE (squared error over the variance of the held-out values) and log-likelihood in original units.
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
    """name -> inputs [N, D], values [N, P], which are held out, kernel, R, M, method, whether W is kept diagonal."""
    folder = data_folder() / "multioutput"
    fx, eeg, sarcos, rates = (
        np.load(folder / f"{name}.npz") for name in ("fx2007", "eeg", "sarcos_4449", "exchange_rate_8")
    )
    random = np.random.default_rng(0)
    hidden = np.broadcast_to((sarcos["fold"] == 0)[:, None], sarcos["Y"].shape)
    unseen = random.uniform(size=hidden.shape) > 1.0 / 3.0
    recent, gaps = rates["Y"][-300:], np.zeros((300, 8), bool)
    for start, column in ((50, 0), (130, 2), (210, 6)):
        gaps[start : start + 40, column] = True
    days = np.arange(300.0)[:, None]
    return {
        "fx": (fx["t"][:, None], fx["Y"], fx["test_nguyen2014"], "Matern32", 3, 64, "collapsed", True),
        "eeg": (eeg["t"][:, None], eeg["Y"], eeg["test"], "Matern52", 3, 100, "exact", False),
        "eeg_sparse": (eeg["t"][:, None], eeg["Y"], eeg["test"], "Matern52", 3, 100, "collapsed", False),
        "sarcos": (
            sarcos["X"],
            np.where(unseen & ~hidden, np.nan, sarcos["Y"]),
            hidden,
            "RBF",
            7,
            200,
            "minibatches",
            False,
        ),
        "exchange": (days, recent, gaps, "Matern32", 3, 75, "exact", True),
    }


def problem(task: tuple, seed: int) -> dict:
    """The task in standard units, and where training starts."""
    X, Y, hidden, kernel, R, M, method, diagonal = task
    X, Y = X.astype(float), Y.astype(float)
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
        "lengthscales": lengthscales, "kernel": kernel, "steps": 2000 if method == "minibatches" else 3000, "R": R,
        "scale": scale, "middle": middle,
        "Y": Y, "hidden": hidden, "method": method, "diagonal": diagonal,
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


def mercer_model(p: dict, independent: bool, covariance: str):
    """The posterior before training, and the objective."""
    import mercer as mc

    P, R = p["W"].shape[0], p["R"]
    L = P if independent else p["W"].shape[1]
    ard = p["lengthscales"] if len(p["lengthscales"]) > 1 else p["lengthscales"][0]
    kernels = [getattr(mc.kernels, p["kernel"])(ard) for _ in range(L)]
    mixed = None if independent else mc.kernels.LinearCoregionalisation(kernels, p["W"])
    kernel = mixed or mc.kernels.SeparateIndependent(kernels)
    objective = {
        "exact": mc.objectives.MarginalLikelihood,
        "collapsed": mc.objectives.CollapsedELBO,
        "minibatches": mc.objectives.ELBO,
    }[p["method"]]()
    posterior = mc.GP(kernel)
    if p["method"] != "exact":
        posterior = mc.Sparse(posterior, mc.inducing.Shared(mc.inducing.Points(p["Z"])), covariance=covariance)
    if not independent and p["diagonal"]:
        others = np.nonzero(~np.eye(P, dtype=bool))

        def mixture(model):
            return (model.posterior.prior or model.posterior).kernel.W

        priors = [
            (lambda model: mixture(model)[:, R:][others], mc.priors.Normal(0.0, 0.01)),
            (lambda model: mixture(model)[:, :R], mc.priors.Normal(0.0, 1.0)),
        ]
        objective = mc.objectives.MAP(objective, priors)
    return mc.Model(posterior, mc.likelihoods.Gaussian(p["noise"])), objective


def mercer(p: dict, independent: bool, covariance: str = "full") -> tuple[np.ndarray, np.ndarray]:
    """Predictions of y at all inputs."""
    import optax

    import mercer as mc

    model, objective = mercer_model(p, independent, covariance)
    X, Y = p["X_train"], p["Y_train"]
    options = {
        "exact": {"optimiser": optax.lbfgs(), "steps": 100},
        "collapsed": {"optimiser": optax.lbfgs(), "steps": 80, "frozen": lambda m: m.posterior.inducing},
        "minibatches": {"optimiser": optax.adam(0.01), "steps": p["steps"], "batch_size": 500},
    }[p["method"]]
    model = mc.fit(model, objective, (X, Y), **options).model
    result = model.predict(p["X"])
    return np.asarray(result.mean), np.asarray(result.cov)


def gpflow(p: dict) -> tuple[np.ndarray, np.ndarray]:
    """The same by GPflow, in its own environment."""
    with tempfile.TemporaryDirectory() as folder:
        arrays = {key: value for key, value in p.items() if isinstance(value, np.ndarray)}
        np.savez(Path(folder) / "problem.npz", **arrays)
        options = {"kernel": p["kernel"], "steps": p["steps"], "by_minibatches": p["method"] == "minibatches"}
        (Path(folder) / "options.json").write_text(json.dumps(options))
        command = [str(python_of("gpflow")), "-m", "workers.gpflow_multioutput", folder]
        done = subprocess.run(command, cwd=HERE, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1][:120])
        found = np.load(Path(folder) / "result.npz")
        return found["mean"], found["variance"]


def main() -> None:
    """Prints a line for each data set and model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=["fx", "eeg", "sarcos", "exchange"])
    parser.add_argument("--starts", type=int, default=1, help="random starts of the mixture; the scores get a spread")
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
        sparse = {"mercer, coregionalised, joint q(u)": lambda p: mercer(p, False, "joint")}
        for model, run in (models | (sparse if tasks()[name][6] == "collapsed" else {})).items():
            results, start = [], time.perf_counter()
            for seed in range(1 if model == "mercer, independent" else arguments.starts):
                p = problem(tasks()[name], seed)
                try:
                    results.append(scores(p, *run(p)))
                except RuntimeError as error:
                    print(f"| {name} | {model} | failed: {error} | | |", flush=True)
            if not results:
                continue
            smse, density = zip(*results, strict=True)
            seconds = (time.perf_counter() - start) / len(results)
            print(f"| {name} | {model} | {_spread(smse)} | {_spread(density)} | {seconds:.0f} |", flush=True)


def _spread(values) -> str:
    return f"{np.mean(values):.3f}" + (f" ± {np.std(values):.3f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
