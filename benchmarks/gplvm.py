"""Latent variable models of the oil data, and of digits: `python benchmarks/gplvm.py bound | oil | missing | digits`.

- bound: the collapsed bound of the first 100 rows of GPflow's example and of all 1,000, at the same parameters as GPflow's.
- oil: both trained from the same start by L-BFGS; errors of the nearest neighbour in two latent dimensions, each row against all
  others; `--figure` draws the plane that mercer finds, with the three flows in colour.
- missing: a third of the entries removed from new rows; the RMSE of what `mercer.infer` says of them, beside the mean of each
  column and the linear model (the conditional mean of a Gaussian with the covariance of the training rows).
- digits: 10,000 digits of MNIST with an encoder, in minibatches. For a GPU. In float64, as all: float32 goes astray after some
  thousand steps, when noise has become small.

Data: `MERCER_DATA`, else ../shared/data beside the repository. GPflow lies in an environment of its own (`setup_peers.py`).
"""

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import mercer as mc
from mercer.objectives import ELBO, CollapsedELBO
from peers import data_folder, python_of

SETS = {"100 rows": 20, "1,000 rows": 30}  # name -> M


def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows and their classes."""
    data = np.load(data_folder() / "multioutput" / "oil_flow.npz")
    which = data["gpflow100_idx"] if name == "100 rows" else np.arange(1000)
    return data["Y_train"][which].astype(float), data["labels_train"][which]


def gpflow(model: mc.Model, Y: np.ndarray, steps: int) -> dict[str, np.ndarray] | None:
    """What GPflow makes of the same start; None where it is not installed."""
    python = python_of("gpflow")
    if python is None:
        return None
    q, kernel = model.posterior, model.posterior.process.prior.kernel
    with tempfile.TemporaryDirectory() as folder:
        np.savez(
            Path(folder) / "start.npz",
            Y=Y,
            centre=q.process.prior.mean.constant,
            mean=q.inputs.mean,
            variance=q.inputs.variance,
            Z=q.process.inducing.Z,
            kernel_variance=kernel.variance,
            lengthscale=kernel.lengthscale,
            noise=model.likelihood.variance,
        )
        paths = [str(Path(folder) / name) for name in ("start.npz", "out.npz")]
        command = [str(python), "-m", "workers.gpflow_gplvm", *paths, str(steps)]
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1"}
        subprocess.run(command, check=True, cwd=Path(__file__).parent, env=environment, capture_output=True)
        return dict(np.load(Path(folder) / "out.npz"))


def bound(arguments) -> None:
    """The bound at the start, and with other parameters."""
    print("| rows | latent dimensions | mercer | GPflow |")
    print("|---|---|---|---|")
    for name, M in SETS.items():
        Y, _ = rows_of(name)
        for dimension in (2, 5):
            model = mc.gplvm(Y, dimension, M)
            model = eqx.tree_at(
                lambda m: m.posterior.process.prior.kernel.lengthscale, model, 0.7 + jnp.arange(dimension)
            )
            ours, theirs = CollapsedELBO().bound(model, None, Y), gpflow(model, Y, 0)
            print(
                f"| {name} | {dimension} | {float(ours):.6f} | {'-' if theirs is None else round(float(theirs['first']), 6)} |"
            )


def nearest_errors(latent: np.ndarray, labels: np.ndarray) -> int:
    """How many rows have another class than the nearest of all others."""
    apart = np.sum((latent[:, None] - latent[None]) ** 2, axis=-1)
    np.fill_diagonal(apart, np.inf)
    return int(np.sum(labels[np.argmin(apart, axis=1)] != labels))


def two_of(mean: np.ndarray, lengthscale: np.ndarray) -> np.ndarray:
    """The two latent dimensions that the function depends on most, in units of their lengthscales."""
    chosen = np.argsort(lengthscale)[:2]
    return np.asarray(mean)[:, chosen] / np.asarray(lengthscale)[chosen]


def oil(arguments) -> None:
    """Both trained from the same start."""
    print("| rows | latent dimensions | library | bound | errors of the nearest neighbour | seconds |")
    print("|---|---|---|---|---|---|")
    for name, M in SETS.items():
        Y, labels = rows_of(name)
        for dimension in (2, 5):
            start = mc.gplvm(Y, dimension, M)
            began = time.perf_counter()
            fitted = mc.fit(start, CollapsedELBO(), (None, Y), steps=arguments.steps, optimiser=optax.lbfgs()).model
            seconds = time.perf_counter() - began
            q = fitted.posterior
            plane = two_of(q.inputs.mean, q.process.prior.kernel.lengthscale)
            value = float(CollapsedELBO().bound(fitted, None, Y))
            print(
                f"| {name} | {dimension} | mercer | {value:.1f} | {nearest_errors(plane, labels)} | {seconds:.0f} |",
                flush=True,
            )
            if arguments.figure and (name, dimension) == ("1,000 rows", 5):
                draw(plane, labels, np.asarray(q.process.prior.kernel.lengthscale), arguments.figure)
            theirs = gpflow(start, Y, arguments.steps)
            if theirs is not None:
                errors = nearest_errors(two_of(theirs["mean"], theirs["lengthscale"]), labels)
                print(
                    f"| {name} | {dimension} | GPflow | {float(theirs['last']):.1f} | {errors} | {theirs['seconds']:.0f} |",
                    flush=True,
                )


def draw(plane: np.ndarray, labels: np.ndarray, lengthscale: np.ndarray, path: Path) -> None:
    """The latent plane, and how relevant each dimension is."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), width_ratios=[2, 1])
    for label, name in enumerate(("homogeneous", "annular", "laminar")):
        left.scatter(*plane[labels == label].T, s=8, label=name)
    left.set(xlabel="first latent dimension, in lengthscales", ylabel="second")
    left.legend(frameon=False)
    right.bar(np.arange(1, len(lengthscale) + 1), np.sort(1.0 / lengthscale)[::-1], color="0.5")
    right.set(xlabel="latent dimension", ylabel="1 / lengthscale")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def missing(arguments) -> None:
    """Entries removed from new rows."""
    data = np.load(data_folder() / "multioutput" / "oil_flow.npz")
    Y, new = data["Y_train"].astype(float), data["Y_test"][: arguments.rows].astype(float)
    start = mc.gplvm(Y, 5, 50)
    fitted = mc.fit(start, CollapsedELBO(), (None, Y), steps=arguments.steps, optimiser=optax.lbfgs()).model
    centre, covariance = Y.mean(axis=0), np.cov(Y.T)
    print("| removed | mean of the column | linear model | mercer.infer | in 90 % intervals | seconds for all rows |")
    print("|---|---|---|---|---|---|")
    for share in (0.25, 0.5, 0.75):
        random = np.random.default_rng(0)
        gone = random.uniform(size=new.shape) < share
        gone[np.arange(len(new)), random.integers(0, 12, len(new))] = False
        began = time.perf_counter()
        found = mc.infer(fitted, np.where(gone, np.nan, new))
        seconds = time.perf_counter() - began
        linear = np.array(new)
        for row, hidden in zip(linear, gone, strict=True):
            seen = ~hidden
            gain = np.linalg.solve(covariance[np.ix_(seen, seen)], covariance[np.ix_(seen, hidden)])
            row[hidden] = centre[hidden] + (row[seen] - centre[seen]) @ gain
        errors = [
            np.sqrt(np.mean((each - new)[gone] ** 2))
            for each in (centre + 0.0 * new, linear, np.asarray(found.outputs.mean))
        ]
        inside = np.mean(np.abs(found.outputs.mean - new)[gone] < 1.645 * np.sqrt(found.outputs.variance[gone]))
        print(
            f"| {share:.0%} | " + " | ".join(f"{error:.3f}" for error in errors) + f" | {inside:.2f} | {seconds:.0f} |",
            flush=True,
        )


def digits(arguments) -> None:
    """Digits with an encoder: errors of the nearest neighbour among new digits, and halves of digits that are missing."""
    data = np.load(data_folder() / "images" / "mnist.npz")
    Y = (data["x_train"].reshape(-1, 784)[: arguments.rows].astype(float)) / 255.0
    labels = data["y_train"][: arguments.rows]
    new, of_new = data["x_test"].reshape(-1, 784)[:1000].astype(float) / 255.0, data["y_test"][:1000]
    dimension = arguments.dimension
    encoder = eqx.nn.MLP(784, 2 * dimension, 256, 2, key=jax.random.key(0))
    model = mc.gplvm(Y, dimension, arguments.points, encoder=encoder)
    began = time.perf_counter()
    schedule = optax.cosine_decay_schedule(arguments.rate, arguments.steps)
    fitted = mc.fit(
        model,
        ELBO(),
        (None, Y),
        steps=arguments.steps,
        batch_size=500,
        optimiser=optax.adam(schedule),
        key=jax.random.key(1),
        every=500,
        callbacks=lambda progressed: print(
            f"  step {progressed.step}: {np.mean(progressed.history[-100:]):.2f}", flush=True
        ),
    ).model
    seconds = time.perf_counter() - began
    inputs, kernel = fitted.posterior.inputs, fitted.posterior.process.prior.kernel
    ours, theirs = (
        np.asarray(inputs.of_rows(None, jnp.asarray(each), None).q.mean / kernel.lengthscale) for each in (Y, new)
    )
    apart = np.sum(theirs**2, axis=1)[:, None] - 2.0 * theirs @ ours.T + np.sum(ours**2, axis=1)
    errors = np.mean(labels[np.argmin(apart, axis=1)] != of_new)
    half = np.array(new[:200])
    half[:, 392:] = np.nan
    found = mc.infer(fitted, half, steps=100)
    rmse = np.sqrt(np.mean((found.outputs.mean - new[:200])[:, 392:] ** 2))
    of_mean = np.sqrt(np.mean((Y.mean(axis=0) - new[:200])[:, 392:] ** 2))
    print(
        "| rows | latent dimensions | M | seconds | errors of the nearest neighbour | RMSE of the lower half | of the mean |"
    )
    print("|---|---|---|---|---|---|---|")
    print(
        f"| {len(Y)} | {dimension} | {arguments.points} | {seconds:.0f} | {errors:.1%} | {rmse:.3f} | {of_mean:.3f} |"
    )


def main() -> None:
    """One of the tasks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["bound", "oil", "missing", "digits"])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rows", type=int, default=200, help="new rows of missing; digits, of which there are 60,000")
    parser.add_argument("--dimension", type=int, default=10)
    parser.add_argument("--points", type=int, default=100, help="M, of digits")
    parser.add_argument("--rate", type=float, default=2e-3, help="of Adam, for digits")
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    {"bound": bound, "oil": oil, "missing": missing, "digits": digits}[arguments.task](arguments)


if __name__ == "__main__":
    main()
