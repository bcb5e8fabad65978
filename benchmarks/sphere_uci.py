"""Functions of the sphere on the UCI sets: `python benchmarks/sphere_uci.py --out FILE`, then `... --table FILE`.

RMSE and mean test log-likelihood on the standard splits, in the units of the target, mean and standard error over splits:

- VISH: a homogeneous `SphericalRBF` kernel with a weight variance for each column, the 500 harmonics with the largest
  eigenvalues; all parameters are trained, so that the features are worked out in each step.
- SVGP: RBF with a lengthscale for each column, 500 inducing points (or as many as there are rows) from k-means, trained.
- exact: the same kernel and all the data. Not for more than 11,000 rows: protein is left out.
- network: 500 units max(0, w . x + b), Adam on squared error without a tenth of the training data. The weights with the
  lowest error on that tenth are kept, and this error, a little too low for that, is the variance of the predictions.
- Activated: `ArcCosine` and `Softplus` units, started from the layer of that network (paper 001, chapter 4).
- Activated, exp: `PoissonKernel` and units exp(cos), both with all degrees, from the same layer.

All processes are trained by L-BFGS on all rows: the collapsed bound, or the marginal likelihood. A line of JSON is appended to
`--out` for each set, split and method, those that are there are not run again, and `--table` takes several such files.

Data: `MERCER_DATA`, else ../shared/data beside the repository.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from peers import data_folder

jax.config.update("jax_enable_x64", True)

import mercer as mc  # noqa: E402
from mercer.inducing.activations import Elementwise, Softplus  # noqa: E402

SETS = ("bostonHousing", "concrete", "energy", "yacht", "wine-quality-red", "kin8nm", "power-plant",
        "naval-propulsion-plant", "protein-tertiary-structure")  # fmt: skip
LBFGS = optax.lbfgs()  # one for all calls, so that splits share what is compiled
BATCH = 256  # of the network


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


def trained(posterior, X, Y, steps):
    """A model after training."""
    sparse = isinstance(posterior, mc.Sparse)
    objective = mc.objectives.CollapsedELBO() if sparse else mc.objectives.MarginalLikelihood()
    start = mc.Model(posterior, mc.likelihoods.Gaussian(0.1))
    return mc.fit(start, objective, (X, Y), optimiser=LBFGS, steps=steps).model


def extended(zonal, X):
    """A zonal kernel in flat space, at first with inputs about as far from 0 as the bias."""
    return mc.kernels.Homogeneous(zonal, np.full(X.shape[1], 1.0 / X.shape[1]))


def vish(X, Y, seed, arguments):
    kernel = extended(mc.kernels.SphericalRBF(1.0), X)
    harmonics = mc.inducing.SphericalHarmonics.largest(kernel, X.shape[1] + 1, 500)
    return trained(mc.Sparse(mc.GP(kernel), harmonics), X, Y, arguments.steps).predict


def svgp(X, Y, seed, arguments):
    Z = mc.inducing.kmeans(X, min(500, len(X)), key=jax.random.key(seed))
    return trained(mc.Sparse(mc.GP(prior_kernel(X)), mc.inducing.Points(Z)), X, Y, arguments.steps).predict


def exact(X, Y, seed, arguments):
    return trained(mc.GP(prior_kernel(X)), X, Y, arguments.steps).predict if len(X) <= 11_000 else None


def squared_error(network, X, Y):
    return jnp.mean((jax.vmap(network)(X) - Y) ** 2)


@eqx.filter_jit
def train_network(network, train, validation, key, steps):
    """The network that was best on the validation data, and its error there."""
    optimiser = optax.adam(optax.cosine_decay_schedule(1e-2, steps))
    params, rest = eqx.partition(network, eqx.is_array)

    def error(params, X, Y):
        return squared_error(eqx.combine(params, rest), X, Y)

    def step(carry, key):
        params, state, best, lowest = carry
        rows = jax.random.randint(key, (BATCH,), 0, len(train[0]))
        updates, state = optimiser.update(jax.grad(error)(params, train[0][rows], train[1][rows]), state)
        params = optax.apply_updates(params, updates)
        found = error(params, *validation)
        best = jax.tree.map(lambda new, old: jnp.where(found < lowest, new, old), params, best)
        return (params, state, best, jnp.minimum(found, lowest)), None

    start = (params, optimiser.init(params), params, jnp.inf)
    (_, _, best, lowest), _ = jax.lax.scan(step, start, jax.random.split(key, steps))
    return eqx.combine(best, rest), lowest


def layers(X, Y, seed, arguments):
    """A trained network and the variance of its errors."""
    key = jax.random.key(seed)
    network = eqx.nn.MLP(X.shape[1], 1, arguments.units, 1, use_final_bias=False, dtype=X.dtype, key=key)
    rows, held_out = np.random.default_rng(seed).permutation(len(X)), len(X) // 10
    validation, train = ((X[part], Y[part]) for part in (rows[:held_out], rows[held_out:]))
    return train_network(network, train, validation, key, arguments.network_steps)


def network(X, Y, seed, arguments):
    fitted, variance = layers(X, Y, seed, arguments)
    return lambda X: (jax.vmap(fitted)(X), variance)


def activated(kernel_of, activation, levels):
    """The process whose units start as those of the network."""

    def method(X, Y, seed, arguments):
        fitted, _ = layers(X, Y, seed, arguments)
        kernel, first = kernel_of(X), fitted.layers[0]
        units = mc.inducing.Activated.of_layer(kernel, first.weight, first.bias, activation, levels)
        # The collapsed bound needs no weights of the second layer: it has the best ones.
        return trained(mc.Sparse(mc.GP(kernel), units), X, Y, arguments.steps).predict

    return method


METHODS = {
    "VISH": vish,
    "SVGP": svgp,
    "exact": exact,
    "network": network,
    "Activated": activated(lambda X: extended(mc.kernels.SphericalArcCosine(), X), Softplus(), 10),
    "Activated, exp": activated(lambda X: extended(mc.kernels.PoissonKernel(), X), Elementwise(jnp.exp), 10),
}


def read(paths) -> dict[tuple, dict]:
    """What was found so far, by set, split and method."""
    lines = [line for path in paths if path.exists() for line in path.read_text().splitlines()]
    return {(row["set"], row["split"], row["method"]): row for row in map(json.loads, lines)}


def run(arguments) -> None:
    """Every set, split and method that is not there yet."""
    done = read([arguments.out])
    for name in arguments.sets:
        for number in range(arguments.splits):
            X, Y, X_test, y_test, units = split(name, number)
            for method in arguments.methods:
                if (name, number, method) in done:
                    continue
                begin = time.perf_counter()
                try:
                    predict = METHODS[method](X, Y, number, arguments)
                except (mc.training.TrainingError, mc.linalg.FactorisationError) as error:
                    print(f"{name} {number} {method}: {error}", flush=True)
                    continue
                if predict is None:
                    continue
                rmse, density = scores(*predict(X_test), y_test, units)
                seconds = round(time.perf_counter() - begin, 1)
                row = {"set": name, "split": number, "method": method}
                row |= {"rmse": rmse, "log_likelihood": density, "seconds": seconds}
                print(f"{name} {number} {method}: {rmse:.4f}, {density:.4f}, {seconds} s", flush=True)
                with arguments.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def table(rows) -> None:
    """One line for each set and method; seconds are the median of splits, so that compilation is not in them."""
    print("| set | method | splits | RMSE | log-likelihood | seconds |\n|---|---|---|---|---|---|")
    for name in SETS:
        for method in METHODS:
            found = [row for row in rows if (row["set"], row["method"]) == (name, method)]
            if found:
                cells = " | ".join(with_errors([(row["rmse"], row["log_likelihood"]) for row in found]))
                seconds = np.median([row["seconds"] for row in found])
                print(f"| {name} | {method} | {len(found)} | {cells} | {seconds:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=SETS, metavar="SET")
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100, help="of L-BFGS")
    parser.add_argument("--units", type=int, default=500, help="of the network")
    parser.add_argument("--network-steps", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=Path("sphere_uci.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only the table of these files")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    if not arguments.table:
        print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}", flush=True)
        run(arguments)
    table(read(arguments.table or [arguments.out]).values())


if __name__ == "__main__":
    main()
