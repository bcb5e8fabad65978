"""Spherical harmonics beside inducing points: `python benchmarks/sphere.py race nyc`, or `race 3m`, `predict`, `build`.

`race`: flights (`nycflights13_airline.npz`, `flights_3m.npz`), split 0, inputs and delay standardised; the test NLPD and
MSE as the seconds of training go, compilation and the pass over the data included, scoring not. VISH is a homogeneous
Matern 3/2 kernel with harmonics of whole levels and the collapsed bound: sums over the data once, its hyperparameters
trained on these. SVGP has an RBF kernel with a lengthscale for each column, M = 500 points from the data, natural gradients
(0.1) for q(u) and Adam (0.01) for the rest, minibatches of 1,024.
"""

import argparse
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax

import mercer as mc
from peers import data_folder

jax.config.update("jax_enable_x64", True)
TEST_ROWS = 20_000  # that are scored


def flights(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """X, y, and those of the test, standardised on the training part."""
    folder = data_folder() / "flights"
    if name == "nyc":
        d = np.load(folder / "nycflights13_airline.npz")
        X, y, test = d["X"].astype(float), d["y"].astype(float), d["fold"] == 0
    else:
        d = np.load(folder / "flights_3m.npz")
        routes, day, places = d["route_table"][d["route"]], d["day"].astype(np.int64), d["airport_latlon"]
        date = np.datetime64("2001-01-01") + day
        month = date.astype("M8[M]").astype(int) % 12 + 1
        day_of_month = (date - date.astype("M8[M]")).astype(int) + 1
        columns = [month, day_of_month, day % 7, d["minute"], routes[:, 2], places[routes[:, 0]], places[routes[:, 1]]]
        X, y = np.column_stack(columns).astype(float), d["y"].astype(float)
        test = np.arange(len(y)) % 10 == 0
    X = (X - X[~test].mean(0)) / X[~test].std(0)
    y = ((y - y[~test].mean()) / y[~test].std())[:, None]
    return X[~test], y[~test], X[test], y[test]


def scores(model: mc.Model, X: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """NLPD and MSE."""
    X, y = X[:TEST_ROWS], y[:TEST_ROWS]
    return -float(jnp.mean(model.log_density(X, y))), float(jnp.mean((model.predict(X).mean - y) ** 2))


def harmonic_model(X: np.ndarray, levels: int) -> mc.Model:
    D = X.shape[1]
    kernel = mc.kernels.Homogeneous(mc.kernels.SphericalMatern32(1.0), np.ones(D))
    return mc.Model(
        mc.Sparse(mc.GP(kernel), mc.inducing.SphericalHarmonics(D + 1, levels)), mc.likelihoods.Gaussian(0.5)
    )


def point_model(X: np.ndarray, M: int = 500) -> mc.Model:
    Z = X[np.random.RandomState(0).permutation(len(X))[:M]]
    prior = mc.GP(mc.kernels.RBF(np.ones(X.shape[1])))
    return mc.Model(mc.Sparse(prior, mc.inducing.Points(jnp.asarray(Z))), mc.likelihoods.Gaussian(0.5))


def still(model: mc.Model) -> tuple:
    kernel = model.posterior.prior.kernel
    return kernel.weight_variance, kernel.bias_variance


def race(name: str, limit: float) -> None:
    X, y, X_test, y_test = flights(name)
    print(f"| method | seconds | test NLPD | test MSE |\n|---|---|---|---|   ({len(X):,} rows)")
    for levels in (3, 4, 5):
        start = time.perf_counter()
        model = harmonic_model(X, levels)
        fitted = mc.fit(
            model, mc.objectives.CollapsedELBO(), (X, y), steps=60, optimiser=optax.adam(0.1), frozen=still
        ).model
        seconds = time.perf_counter() - start
        nlpd, mse = scores(fitted, X_test, y_test)
        print(f"| VISH, M = {len(fitted.posterior.inducing)} | {seconds:.1f} | {nlpd:.4f} | {mse:.4f} |", flush=True)
    model, clock, step = point_model(X), 0.0, 0
    natural = mc.training.NaturalGradient(0.1, optax.adam(0.01))
    while clock < limit:
        start = time.perf_counter()
        key = jax.random.key(step)
        model = mc.fit(
            model, mc.objectives.ELBO(), (X, y), steps=200, batch_size=1024, optimiser=natural, key=key
        ).model
        clock, step = clock + time.perf_counter() - start, step + 200
        nlpd, mse = scores(model, X_test, y_test)
        print(f"| SVGP, M = 500, {step} steps | {clock:.1f} | {nlpd:.4f} | {mse:.4f} |", flush=True)


def predict(num: int = 1_000_000) -> None:
    """Mean and variance at many points, by caches; q(u) of no interest."""
    X = np.random.default_rng(0).normal(size=(num, 8))
    print("| posterior | seconds |\n|---|---|")
    for name, model in (("VISH, M = 210", harmonic_model(X, 4)), ("SVGP, M = 500", point_model(X[:10_000]))):
        cached = model.posterior.cached()
        times = []
        for _ in range(4):
            start = time.perf_counter()
            jax.block_until_ready(cached.predict(X).cov)
            times.append(time.perf_counter() - start)
        print(f"| {name} | {np.median(times[1:]):.2f} |", flush=True)


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
    parser.add_argument("task", choices=["race", "predict", "build"])
    parser.add_argument("set", nargs="?", choices=["nyc", "3m"], default="nyc")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of training of SVGP")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    if arguments.task == "race":
        race(arguments.set, arguments.limit)
    else:
        {"predict": predict, "build": build}[arguments.task]()


if __name__ == "__main__":
    main()
