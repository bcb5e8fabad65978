"""Generalised variational inference: `python benchmarks/gvi.py cost | selection | uci [--splits 5]`.

- cost: a step of projected GVI and one of Gaussian Wasserstein inference (with its trace term), in milliseconds, for growing
  batches; medians of repeats, and the slope of log time in log batch.
- selection: Algorithm 1 with the kernel of an infinitely wide network, 10 of 5,000 images of each digit of MNIST.
- uci: the standard splits, beside SVGP with 500 inducing points and exact regression; RMSE and log-likelihood in original units,
  mean and standard error over splits.

The ten curves of paper 000, chapter 7, are a sweep: experiments/000/curves.yaml.

Data: `MERCER_DATA`, else ../shared/data beside the repository.
"""

import argparse
import statistics
import time

import equinox as eqx
import jax
import numpy as np
import optax

from peers import data_folder

jax.config.update("jax_enable_x64", True)

import mercer as mc  # noqa: E402
from mercer import divergences, gvi  # noqa: E402
from mercer.kernels import nngp  # noqa: E402
from mercer.objectives import GVI, risks  # noqa: E402

SETS = ("bostonHousing", "concrete", "energy", "yacht", "wine-quality-red", "kin8nm", "power-plant")


def network(inputs: int, seed: int, width: int = 50, depth: int = 2, activation=jax.nn.gelu) -> mc.means.Network:
    """A network as the mean of a posterior."""
    return mc.means.Network(eqx.nn.MLP(inputs, 1, width, depth, activation=activation, key=jax.random.key(seed)))


def log_density(y, mean, variance):
    """The mean log density of Gaussians."""
    return float(np.mean(-0.5 * np.log(2.0 * np.pi * variance) - 0.5 * (y - mean) ** 2 / variance))


def cost(arguments) -> None:
    """Times one step (value, gradient, update) for batches of several sizes."""
    random = np.random.default_rng(0)
    kernel, M = mc.kernels.RBF(2.0), 100
    rows = {"projected": (1000, 2000, 4000, 8000, 16000, 32000), "Wasserstein": (250, 500, 1000, 2000)}
    kinds = {
        "projected": divergences.Projected(divergences.Renyi(0.5)),
        "Wasserstein": divergences.GaussianWasserstein(trace=True),
    }
    print(f"RBF, 8 inputs, M = {M}, SparsePosterior, network 8-50-50-1, float64\n")
    print("| objective | batch | ms per step |\n|---|---|---|")
    for name, batches in rows.items():
        times = []
        for B in batches:
            X = random.normal(size=(B, 8))
            Y = np.sin(X[:, :1])
            posterior = mc.GP(mc.kernels.SparsePosterior(kernel, X[:M]), network(8, 0))
            model = mc.Model(posterior, mc.likelihoods.Gaussian(0.1))
            objective = GVI(mc.GP(kernel), risks.ExpectedNegativeLogLikelihood(), kinds[name], weight=float(B))
            steps = 20 if name == "projected" else 2
            options = {"steps": steps, "every": steps, "optimiser": optax.adam(1e-3)}
            mc.fit(model, objective, (X, Y), **options)
            taken = []
            for _ in range(arguments.repeats):
                begin = time.perf_counter()
                mc.fit(model, objective, (X, Y), **options)
                taken.append((time.perf_counter() - begin) / steps)
            times.append(statistics.median(taken))
            print(f"| {name} | {B:,} | {1e3 * times[-1]:.1f} |", flush=True)
        slope = np.polyfit(np.log(batches), np.log(times), 1)[0]
        last = np.diff(np.log(times))[-1] / np.log(2.0)
        print(f"| {name} | slope | {slope:.2f} (of the last doubling {last:.2f}) |", flush=True)


def selection(arguments) -> None:
    """Times Algorithm 1 on digits."""
    data = np.load(data_folder() / "images" / "mnist.npz")
    images, labels = data["x_train"].reshape(-1, 784).astype(np.float32) / 255.0, data["y_train"]
    convolution = [nngp.Conv((3, 3), weight_std=2.0**0.5, bias_std=0.1), nngp.Relu()]
    strided = [nngp.Conv((3, 3), (2, 2), weight_std=2.0**0.5, bias_std=0.1), nngp.Relu()]
    dense = [nngp.Dense(2.0**0.5, 0.1), nngp.Relu()]
    networks = {
        "NNGP, 3 convolutions": nngp.NNGP([*convolution, *strided, *convolution, nngp.Flatten(), *dense], (28, 28, 1)),
        "NNGP, 3 dense layers": nngp.NNGP([*dense, *dense, *dense]),
        "RBF": mc.kernels.RBF(10.0),
    }
    print("| kernel | seconds for each digit: the first, with compilation; median of the others |\n|---|---|")
    for name, kernel in networks.items():
        taken = []
        for digit in range(10):
            X = images[labels == digit][:5000]
            begin = time.perf_counter()
            mc.inducing.greedy_indices(X, kernel, 10)
            taken.append(time.perf_counter() - begin)
        print(f"| {name} | {taken[0]:.2f}; {statistics.median(taken[1:]):.2f} |", flush=True)


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
    return float(np.sqrt(np.mean((mean - y) ** 2))), log_density(y, mean, variance)


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


def by_gvi(divergence, share):
    """Algorithm 3. `share` is the weight of the divergence as a part of N."""

    def method(X, Y, seed, steps):
        schedule = optax.cosine_decay_schedule(3e-3, steps)
        options = {"steps": steps, "batch_size": min(100, len(X) // 2), "rounds": 2}
        learned = gvi.learn(
            X,
            Y,
            prior_kernel(X),
            network(X.shape[1], seed),
            M=min(100, len(X) // 2),
            variational="cholesky-svgp",
            divergence=divergence,
            weight=share * len(X),
            optimiser=optax.adamw(schedule, weight_decay=1e-2),
            key=jax.random.key(seed),
            **options,
        )
        return learned.model

    return method


def svgp(X, Y, seed, steps):
    """500 inducing points, the best q(u) of the collapsed bound."""
    Z = mc.inducing.kmeans(X, min(500, len(X)), key=jax.random.key(seed))
    start = mc.Model(mc.Sparse(mc.GP(prior_kernel(X)), mc.inducing.Points(Z)), mc.likelihoods.Gaussian(0.1))
    frozen = {"frozen": lambda model: model.posterior.inducing}
    return mc.fit(start, mc.objectives.CollapsedELBO(), (X, Y), optimiser=optax.lbfgs(), steps=60, **frozen).model


def exact(X, Y, seed, steps):
    """Exact regression, where there are few enough data."""
    if len(X) > 2000:
        return None
    start = mc.Model(mc.GP(prior_kernel(X)), mc.likelihoods.Gaussian(0.1))
    return mc.fit(start, mc.objectives.MarginalLikelihood(), (X, Y), optimiser=optax.lbfgs(), steps=60).model


def uci(arguments) -> None:
    """RMSE and log-likelihood on the standard splits."""
    methods = {
        "pGVI": by_gvi(divergences.Projected(divergences.Renyi(0.5)), arguments.share),
        "GWI": by_gvi(divergences.GaussianWasserstein(trace=True), arguments.share),
        "SVGP-500": svgp,
        "exact": exact,
    }
    print("| set | method | RMSE | log-likelihood | seconds |\n|---|---|---|---|---|")
    for name in arguments.sets or SETS:
        found = {method: [] for method in methods}
        for number in range(arguments.splits):
            X, Y, X_test, y_test, units = split(name, number)
            for method, train in methods.items():
                begin = time.perf_counter()
                model = train(X, Y, number, arguments.steps)
                if model is None:
                    continue
                found[method].append((*scores(*model.predict(X_test), y_test, units), time.perf_counter() - begin))
        for method, rows in found.items():
            if rows:
                seconds = np.mean([row[2] for row in rows])
                cells = " | ".join(with_errors([row[:2] for row in rows]))
                print(f"| {name} | {method} | {cells} | {seconds:.0f} |", flush=True)


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=["cost", "selection", "uci"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--share", type=float, default=0.1, help="weight of the divergence over the number of data")
    parser.add_argument("--sets", nargs="*")
    arguments = parser.parse_args()
    print(f"{arguments}, {jax.devices()[0].device_kind}, jax {jax.__version__}\n", flush=True)
    {"cost": cost, "selection": selection, "uci": uci}[arguments.table](arguments)


if __name__ == "__main__":
    main()
