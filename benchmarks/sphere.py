"""Spherical harmonics beside inducing points: `python benchmarks/sphere.py race nyc`, or `race 3m`, `predict`, `build`.

`race`: flights (`nycflights13_airline.npz`, `flights_3m.npz`), split 0, inputs and delay standardised; the NLPD and MSE of all
test rows as the seconds of training go. Compilation and the pass over the data count, scoring and imports do not. Each point of
VISH is a process of its own, from the start: harmonics, the collapsed bound (sums over its rows once, in float32 up to 300,000 of
them, then 20 steps of Adam at 0.2 on these sums). Its kernels are homogeneous `SphericalRBF` with weights 1, of all columns ("one
sphere"), or a sum of such kernels of each column and of each pair of columns ("pairs"). SVGP has an RBF kernel with a
lengthscale for each column, M = 500 points from the data, natural gradients (0.1) for q(u) and Adam (0.01) for the rest,
minibatches of 1,024; GPflow the same (`workers/gpflow_flights.py`), and the same steps.

Every score is a line of JSON in the file `--out`, and the table (`--table FILE`) is made from these.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import mercer as mc
from mercer.linalg import quiet_blas
from mercer.training.run import Run
from peers import data_folder, python_of

jax.config.update("jax_enable_x64", True)
EVERY = 250  # steps between two scores
KEY = jax.random.key(0)


def flights_3m() -> tuple[np.ndarray, np.ndarray]:
    """X [N, 9] and the delay in minutes [N], as they are."""
    d = np.load(data_folder() / "flights" / "flights_3m.npz")
    routes, day, places = d["route_table"][d["route"]], d["day"].astype(np.int64), d["airport_latlon"]
    date = np.datetime64("2001-01-01") + day
    month = date.astype("M8[M]").astype(int) % 12 + 1
    day_of_month = (date - date.astype("M8[M]")).astype(int) + 1
    columns = [month, day_of_month, day % 7, d["minute"], routes[:, 2], places[routes[:, 0]], places[routes[:, 1]]]
    return np.column_stack(columns).astype(float), d["y"].astype(float)


def flights(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """X, y, and those of the test, standardised on the training part."""
    if name == "nyc":
        d = np.load(data_folder() / "flights" / "nycflights13_airline.npz")
        X, y, test = d["X"].astype(float), d["y"].astype(float), d["fold"] == 0
    else:
        X, y = flights_3m()
        test = np.arange(len(y)) % 10 == 0
    X = (X - X[~test].mean(0)) / X[~test].std(0)
    y = ((y - y[~test].mean()) / y[~test].std())[:, None]
    return X[~test], y[~test], X[test], y[test]


def scores(model: mc.Model, X: np.ndarray, y: np.ndarray) -> dict:
    """NLPD and MSE."""
    model = model.cached()
    return {
        "nlpd": -float(jnp.mean(model.log_density(X, y))),
        "mse": float(jnp.mean((model.predict(X).mean - y) ** 2)),
    }


def harmonic_model(X: np.ndarray, levels: int) -> mc.Model:
    D = X.shape[1]
    kernel = mc.kernels.Homogeneous(mc.kernels.SphericalRBF(0.8, 0.3), np.ones(D))
    return mc.Model(
        mc.Sparse(mc.GP(kernel), mc.inducing.SphericalHarmonics(D + 1, levels)), mc.likelihoods.Gaussian(0.7)
    )


def pairs_model(X: np.ndarray, of_columns: int, of_pairs: int) -> mc.Model:
    """A sum of functions of each column and of each pair of columns, with so many levels each."""
    kernel = mc.kernels.Sum.of_subsets(mc.kernels.Homogeneous(mc.kernels.SphericalRBF(0.8, 0.05)), X.shape[1])
    sizes = [len(term.dims) for term in kernel.kernels]
    harmonics = mc.inducing.PerTerm(
        [mc.inducing.SphericalHarmonics(size + 1, of_columns if size == 1 else of_pairs) for size in sizes]
    )
    return mc.Model(mc.Sparse(mc.GP(kernel), harmonics), mc.likelihoods.Gaussian(0.7))


def point_model(X: np.ndarray, M: int = 500) -> mc.Model:
    Z = X[np.random.RandomState(0).permutation(len(X))[:M]]
    prior = mc.GP(mc.kernels.RBF(np.ones(X.shape[1])))
    return mc.Model(mc.Sparse(prior, mc.inducing.Points(jnp.asarray(Z))), mc.likelihoods.Gaussian(0.5))


def still(model: mc.Model) -> list:
    """The parameters that features depend on, and q(u), which the collapsed bound solves for."""
    kernel = model.posterior.prior.kernel
    terms = [term.kernel for term in kernel.kernels] if isinstance(kernel, mc.kernels.Sum) else [kernel]
    weights = [parameter for term in terms for parameter in (term.weight_variance, term.bias_variance)]
    return [model.posterior.q_mu, model.posterior.q_sqrt, *weights]


# Of VISH: levels of one sphere, or of columns and of pairs; and how many rows are looked at.
POINTS = {
    "nyc": [
        ((4,), 100_000),
        ((5,), 100_000),
        ((12, 4), 50_000),
        ((12, 6), 100_000),
        ((12, 7), 100_000),
        ((12, 7), 250_000),
    ],
    "3m": [
        ((4,), 100_000),
        ((5,), 100_000),
        ((5,), 300_000),
        ((12, 4), 300_000),
        ((12, 7), 2_700_000),
    ],
}


def vish(name: str, levels: tuple[int, ...], rows: int, out: Path) -> None:
    X, y, X_test, y_test = flights(name)
    order = np.random.RandomState(0).permutation(len(X))[:rows]
    start = time.perf_counter()
    X, y = X[order], y[order]
    model = harmonic_model(X, *levels) if len(levels) == 1 else pairs_model(X, *levels)
    # Products in float32, as long as rounding does not show.
    objective = mc.objectives.CollapsedELBO(sums="float32" if len(X) <= 300_000 else None)
    adam = optax.adam(0.2)
    fitted = mc.fit(model, objective, (X, y), steps=20, optimiser=adam, frozen=still).model
    seconds = time.perf_counter() - start
    kind = "one sphere" if len(levels) == 1 else "pairs"
    what = f"VISH, {kind}, M = {fitted.posterior.q_mu.shape[0]:,}, {len(X):,} rows"
    write(out, {"set": name, "method": "VISH", "what": what, "seconds": seconds} | scores(fitted, X_test, y_test))


def svgp(name: str, steps: int, out: Path, label: str = "SVGP") -> None:
    X, y, X_test, y_test = flights(name)
    clock, start = 0.0, time.perf_counter()
    optimiser = mc.training.NaturalGradient(0.1, optax.adam(0.01))
    run = Run(point_model(X), mc.objectives.ELBO(), (X, y), optimiser, batch_size=1024, every=EVERY, key=KEY)
    state, done = run.start(), 0
    while done < steps:
        with quiet_blas():
            state, _ = run.chunk(state, EVERY)
            jax.block_until_ready(state)
        clock, done = clock + time.perf_counter() - start, done + EVERY
        what = {"set": name, "method": label, "what": f"SVGP, M = 500, {done:,} steps", "seconds": clock}
        write(out, what | scores(run.model(state), X_test, y_test))
        start = time.perf_counter()


def write(out: Path, entry: dict) -> None:
    with out.open("a") as file:
        file.write(json.dumps(entry) + "\n")
    print(entry, flush=True)


def race(name: str, steps: int, gpflow_steps: int, out: Path) -> None:
    for levels, rows in POINTS[name]:
        arguments = ["vish", name, "--levels", *map(str, levels), "--rows", str(rows), "--out", str(out)]
        subprocess.run([sys.executable, __file__, *arguments], check=True)
    svgp(name, steps, out)
    gpflow(name, gpflow_steps, out)


def gpflow(name: str, steps: int, out: Path) -> None:
    X, y, X_test, y_test = flights(name)
    Z = point_model(X).posterior.inducing.Z
    with tempfile.TemporaryDirectory() as folder:
        data = f"{folder}/data.npz"
        np.savez(data, X=X, y=y, X_test=X_test, y_test=y_test, Z=Z)
        command = [python_of("gpflow"), "-m", "workers.gpflow_flights", name, data, steps, EVERY, out]
        subprocess.run(list(map(str, command)), check=True, cwd=Path(__file__).parent)


def ends(entries: list[dict], name: str) -> float:
    """The NLPD at which SVGP ends: the mean of the last half of its scores, from a longer run where there is one."""
    long = [e["nlpd"] for e in entries if e["set"] == name and e["method"] == "end"]
    short = [e["nlpd"] for e in entries if e["set"] == name and e["method"] == "SVGP"]
    scored = long or short
    return float(np.mean(scored[len(scored) // 2 :]))


def table(out: Path, figure: Path | None) -> None:
    """All of VISH; of the others where they first come within 0.005 of the end of SVGP, and their last."""
    entries = [json.loads(line) for line in out.read_text().splitlines()]
    names = list(dict.fromkeys(entry["set"] for entry in entries))
    for name in names:
        last = ends(entries, name)
        print(f"\n{name}: SVGP ends at {last:.4f}\n\n| what | seconds | test NLPD | test MSE |\n|---|---|---|---|")
        for method in ("VISH", "SVGP", "GPflow"):
            points = [entry for entry in entries if entry["set"] == name and entry["method"] == method]
            near = [entry for entry in points if entry["nlpd"] <= last + 0.005][:1]
            for entry in points if method == "VISH" else near + points[-1:]:
                mark = ", near the end" if entry["nlpd"] <= last + 0.005 else ""
                print(f"| {entry['what']} | {entry['seconds']:.1f} | {entry['nlpd']:.4f}{mark} | {entry['mse']:.4f} |")
    if figure is not None:
        draw(entries, names, figure)


def draw(entries: list[dict], names: list[str], path: Path) -> None:
    import matplotlib.pyplot as plt

    picture, axes = plt.subplots(1, len(names), figsize=(5.0 * len(names), 3.6), layout="constrained", squeeze=False)
    for ax, name in zip(axes[0], names, strict=True):
        for method, style in (("VISH", "o"), ("SVGP", "-"), ("GPflow", "--")):
            points = [entry for entry in entries if entry["set"] == name and entry["method"] == method]
            ax.semilogx([e["seconds"] for e in points], [e["nlpd"] for e in points], style, label=method)
        last = ends(entries, name)
        ax.axhspan(last - 0.02, last + 0.005, color="grey", alpha=0.2, lw=0.0)
        ax.set(title=f"flights, {name}", xlabel="seconds of training", ylabel="test NLPD", ylim=(last - 0.02, None))
        ax.legend(frameon=False)
    picture.savefig(path, dpi=120)


def predict(num: int = 1_000_000) -> None:
    """Mean and variance at many points, by caches, in turns; q(u) of no interest."""
    X = np.random.default_rng(0).normal(size=(num, 8))
    cases = {
        "SVGP, M = 500": (point_model(X[:10_000]), X),
        "VISH, one sphere, M = 210": (harmonic_model(X, 4), X),
        "VISH, one sphere, M = 210, float32": (harmonic_model(X, 4), X.astype(np.float32)),
        "VISH, one sphere, M = 660, float32": (harmonic_model(X, 5), X.astype(np.float32)),
    }
    caches = {name: (model.posterior.cached(), points) for name, (model, points) in cases.items()}
    times = {name: [] for name in cases}
    for _ in range(5):
        for name, (cached, points) in caches.items():
            start = time.perf_counter()
            jax.block_until_ready(cached.predict(points).cov)
            times[name].append(time.perf_counter() - start)
    print("| posterior | seconds | SVGP takes |\n|---|---|---|")
    median = {name: np.median(found[1:]) for name, found in times.items()}
    for name, seconds in median.items():
        print(f"| {name} | {seconds:.2f} | {median['SVGP, M = 500'] / seconds:.1f} times as long |", flush=True)


def build() -> None:
    """Seconds from nothing to the functions at 100 points, in one process, compilation included."""
    print("| dimension | levels | functions | seconds |\n|---|---|---|---|")
    for dimension, levels in ((3, 35), (5, 11), (10, 6), (10, 8), (20, 4), (20, 5), (100, 3), (100, 4)):
        X = np.random.default_rng(0).normal(size=(100, dimension))
        start = time.perf_counter()
        basis = mc.harmonics.SphericalHarmonics(dimension, levels)
        jax.block_until_ready(basis(X / np.linalg.norm(X, axis=1, keepdims=True)))
        print(f"| {dimension} | {levels} | {basis.num:,} | {time.perf_counter() - start:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["race", "vish", "svgp", "gpflow", "table", "predict", "build"])
    parser.add_argument("set", nargs="?", choices=["nyc", "3m"], default="nyc")
    parser.add_argument("--steps", type=int, default=8000, help="of SVGP")
    parser.add_argument("--gpflow-steps", type=int, default=3000)
    parser.add_argument("--levels", type=int, nargs="+", default=[5], help="of one point of VISH")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--label", choices=["SVGP", "end"], default="SVGP", help="end: a long run, for where SVGP ends")
    parser.add_argument("--figure", type=Path, help="a picture beside the table")
    parser.add_argument("--out", type=Path, default=Path("race.jsonl"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    out = arguments.out.resolve()
    tasks = {
        "race": lambda: race(arguments.set, arguments.steps, arguments.gpflow_steps, out),
        "vish": lambda: vish(arguments.set, tuple(arguments.levels), arguments.rows, out),
        "svgp": lambda: svgp(arguments.set, arguments.steps, out, arguments.label),
        "gpflow": lambda: gpflow(arguments.set, arguments.gpflow_steps, out),
        "table": lambda: table(out, arguments.figure),
        "predict": predict,
        "build": build,
    }
    tasks[arguments.task]()


if __name__ == "__main__":
    main()
