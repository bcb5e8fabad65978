"""Deep Gaussian processes: `python benchmarks/deep.py step | predict | memory | uci`.

- step: milliseconds of a training step of two and three layers, M = 256, batches of 1,024, eight inputs, float64, beside GPflux;
  with `--peer gpytorch` in float32 beside GPyTorch's deep GP, on the same device. For that, a GPU.
- predict: mean and variance at 10,000 inputs by ten passes, beside ten passes of GPflux.
- memory: what the process takes after each `--every` steps of `mercer.fit`, two layers, M = 128, batches of 512. For Linux.
- uci: one, two and three layers as `mercer.Deep.of` makes them, on the standard splits. All splits of a set are trained at once,
  in float32 or `--precision float64`. For a GPU. A line of JSON is appended to `--out` for each set and number of layers;
  `--table FILE` shows them, and three layers less two, by splits.

Data: `MERCER_DATA`, else ../shared/data beside the repository.
"""

import argparse
import functools
import json
import resource
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import harness
import mercer as mc
from mercer.objectives import ELBO, Batch
from mercer.parameters import cast, constrain, trainable, unconstrain
from mercer.training.natural import natural_step
from peers import data_folder

SETS = ("yacht", "energy", "concrete", "kin8nm", "power-plant")
# normalised NLPD of GPflux with M = 256 and one, two, three layers, over five splits (issue 15)
GPFLUX = {
    "kin8nm": (0.264, 0.040, 0.144),
    "power-plant": (-0.009, -0.129, -0.114),
    "concrete": (0.527, 0.388, 0.624),
    "energy": (-0.992, -1.090, -1.092),
    "yacht": (-0.909, -1.084, -1.086),
}
KERNELS = {
    "RBF": mc.kernels.RBF,
    "Matern52": mc.kernels.Matern52,
    "ArcCosine": mc.kernels.ArcCosine.with_lengthscales,
}
# log-likelihood and RMSE on kin8nm with M = 100, one split, as the authors of doubly stochastic inference had them
RECORD = {1: (0.974, 0.0868), 2: (1.292, 0.0664), 3: (1.315, 0.0650)}


def split(name: str, number: int, precision: str):
    """Training and test data in standard units, and the scale of y. Constant columns are dropped."""
    data = np.load(data_folder() / "uci_std" / f"{name}.npz")
    train, test = data["train_idx"][number], data["test_idx"][number]
    X, y = data["X"][:, np.ptp(data["X"][train], axis=0) > 0.0], data["y"].reshape(-1, 1)
    X, y = ((array - array[train].mean(axis=0)) / array[train].std(axis=0) for array in (X, y))
    scale = data["y"][train].std()
    return *(array[rows].astype(precision) for rows in (train, test) for array in (X, y)), scale


def uci(arguments) -> None:
    """All splits of a set at once, for each number of layers."""
    print(HEAD)
    for name in arguments.sets:
        numbers = range(arguments.first, arguments.first + arguments.splits)
        splits = [split(name, number, arguments.precision) for number in numbers]
        for layers in arguments.layers:
            begin = time.perf_counter()
            rows = trained_at_once(splits, layers, arguments)
            entry = {"set": name, "M": arguments.M, "layers": layers, "steps": arguments.steps, "scores": rows}
            entry |= {"samples": arguments.samples, "precision": arguments.precision, "kernel": arguments.kernel}
            entry["seconds"] = time.perf_counter() - begin
            with arguments.out.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            show(entry)


def trained_at_once(splits, num_layers: int, arguments) -> list[tuple[float, float, float]]:
    """Normalised NLPD, RMSE and log-likelihood in the units of y, of a model for each split."""
    starts = []
    for number, (X, *_) in enumerate(splits):
        key = jax.random.key(arguments.seed + number)
        options = {"kernel": KERNELS[arguments.kernel], "training_samples": arguments.samples, "key": key}
        deep = mc.Deep.of(X, num_layers, num_inducing=arguments.M, num_samples=100, **options)
        starts.append(cast(mc.Model(deep, mc.likelihoods.Gaussian(arguments.noise)), X.dtype))
    X, Y = (jnp.stack([part[i] for part in splits]) for i in (0, 1))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *starts)
    params, fixed = eqx.partition(eqx.filter_vmap(unconstrain)(stacked), trainable(stacked))
    arrays, rest = eqx.partition(fixed, eqx.is_array)
    N, batch_size = X.shape[1], min(arguments.batch, X.shape[1])
    adam = optax.adam(rate_of(arguments))

    def of_last(params):
        last = params.posterior.layers[-1]
        return last.q_mu, last.q_sqrt

    def step(carry, number, arrays, X, Y, seed):
        params, state = carry
        key, key_rows = jax.random.split(jax.random.fold_in(jax.random.key(seed), number))
        rows = jax.random.choice(key_rows, N, (batch_size,), replace=False)
        batch = Batch(X[rows], Y[rows], N, complete=True)

        def loss(params):
            return ELBO()(constrain(eqx.combine(params, arrays, rest)), batch, key)

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = adam.update(gradient, state)
        moved = optax.apply_updates(params, updates)
        if arguments.gamma:
            # Natural gradients for q(u) of the last layer, whose size grows to `--gamma` in the first 1,000 steps.
            gamma = arguments.gamma * jnp.minimum(1.0, 10.0 ** (number / 250.0 - 4.0))
            stepped = natural_step(*of_last(params), *(N * part for part in of_last(gradient)), gamma)
            moved = eqx.tree_at(of_last, moved, stepped)
        return (moved, state), value

    @functools.partial(jax.jit, donate_argnums=0)
    def chunk(carry, first, arrays, X, Y):
        def body(carry, number):
            seeds = arguments.seed + jnp.arange(len(X))
            return jax.vmap(step, in_axes=(0, None, 0, 0, 0, 0))(carry, number, arrays, X, Y, seeds)

        return jax.lax.scan(body, carry, first + jnp.arange(arguments.every))

    carry = params, jax.vmap(adam.init)(params)
    for first in range(0, arguments.steps, arguments.every):
        begin = time.perf_counter()
        carry, values = chunk(carry, jnp.asarray(first), arrays, X, Y)
        values = np.asarray(values)
        took = 1e3 * (time.perf_counter() - begin) / arguments.every
        loss = np.mean(values[-100:])
        print(f"  {num_layers} layers, step {first + arguments.every}: {loss:.4f}, {took:.1f} ms a step", flush=True)
        if not np.isfinite(values).all():
            raise FloatingPointError("a loss is not finite")
        if arguments.watch:
            print("   ", np.round(np.mean(scored(carry[0], arrays, rest, splits), axis=0), 4).tolist(), flush=True)
    return scored(carry[0], arrays, rest, splits)


def rate_of(arguments) -> optax.Schedule:
    """The learning rate, which falls along a cosine in the last half, to a hundredth."""
    half = arguments.steps // 2
    falling = optax.cosine_decay_schedule(arguments.rate, max(arguments.steps - half, 1), 0.01)
    return optax.join_schedules([optax.constant_schedule(arguments.rate), falling], [half])


def scored(params, arrays, rest, splits) -> list[tuple[float, float, float]]:
    """The scores of each split."""
    models, found = eqx.filter_vmap(constrain)(eqx.combine(params, arrays, rest)), []
    for number, (_, _, X, y, scale) in enumerate(splits):
        model = jax.tree.map(lambda leaf, number=number: leaf[number] if eqx.is_array(leaf) else leaf, models)
        density = float(np.mean(model.log_density(X, y)))
        error = float(np.sqrt(np.mean((np.asarray(model.predict(X).mean) - y) ** 2)))
        found.append((-density, error * scale, density - np.log(scale)))
    return found


HEAD = (
    "| set | M | layers | splits | normalised NLPD | GPflux, M = 256 | RMSE | log-likelihood | record, M = 100 | seconds |\n"
    + "|---" * 10
    + "|"
)


def show(entry) -> None:
    name, rows, layers = entry["set"], np.asarray(entry["scores"]), entry["layers"]
    nlpd, error, density = rows.mean(axis=0)
    spread = rows[:, 0].std(ddof=1) / len(rows) ** 0.5 if len(rows) > 1 else np.nan
    record = RECORD.get(layers) if name == "kin8nm" else None
    cells = [name, entry["M"], layers, len(rows), f"{nlpd:.3f} ± {spread:.3f}"]
    cells += [GPFLUX[name][layers - 1] if name in GPFLUX and layers <= 3 else "", f"{error:.4g}", f"{density:.3f}"]
    cells += ["" if record is None else f"{record[0]}, {record[1]}", round(entry["seconds"])]
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def table(paths) -> None:
    print(HEAD)
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    for entry in sorted(lines, key=lambda entry: (entry["set"], entry["M"], entry["layers"])):
        show(entry)
    by_setting: dict = {}
    for entry in lines:
        setting = tuple(entry.get(name) for name in ("set", "M", "steps", "samples", "precision", "kernel"))
        by_setting.setdefault(setting, {})[entry["layers"]] = np.asarray(entry["scores"])[:, 0]
    for setting, found in by_setting.items():
        if {2, 3} <= set(found) and len(found[2]) == len(found[3]) > 1:
            less = found[3] - found[2]
            spread = less.std(ddof=1) / len(less) ** 0.5
            print(
                f"{setting}: NLPD of three layers less that of two {less.mean():.3f} ± {spread:.3f}, {len(less)} splits"
            )


def beside_peers(arguments) -> None:
    """A task of the harness."""
    words = [f"deep_{arguments.task}", "--rounds", str(arguments.rounds), "--patience", str(arguments.patience)]
    words += ["--libraries", "mercer", arguments.peer]
    harness.main([*words, "--accelerator"] if arguments.peer == "gpytorch" else words)


def memory(arguments) -> None:
    """Of the process, by number of steps."""
    X = np.random.default_rng(0).normal(size=(10_000, 8))
    model = mc.Model(mc.Deep.of(X, 2, 1, 128, key=jax.random.key(0)), mc.likelihoods.Gaussian(0.1))
    print("| steps | MiB |\n|---|---|")

    def report(seen) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        print(f"| {seen.step} | {pages * resource.getpagesize() / 2**20:.1f} |", flush=True)

    options = {"steps": arguments.steps, "every": arguments.every, "batch_size": 512, "key": jax.random.key(1)}
    mc.fit(model, ELBO(), (X, np.sin(X[:, :1])), optimiser=optax.adam(0.01), callbacks=report, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["step", "predict", "memory", "uci"])
    parser.add_argument("--peer", choices=["gpflux", "gpytorch"], default="gpflux")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--patience", type=int, default=20, help="attempts at a repeat that others disturb")
    parser.add_argument("--sets", nargs="*", default=list(SETS), metavar="SET")
    parser.add_argument("--layers", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--M", type=int, default=256)
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=1_000)
    parser.add_argument("--batch", type=int, default=1_024)
    parser.add_argument("--rate", type=float, default=0.01, help="of Adam; falls in the last half")
    parser.add_argument("--gamma", type=float, default=0.0, help="of natural gradients in the last layer; 0: Adam")
    parser.add_argument("--noise", type=float, default=0.1, help="the variance of the noise at the start")
    parser.add_argument("--samples", type=int, default=1, help="passes in a step")
    parser.add_argument("--precision", choices=["float32", "float64"], default="float32")
    parser.add_argument("--kernel", choices=KERNELS, default="RBF")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--watch", action="store_true", help="scores after each `--every` steps")
    parser.add_argument("--out", type=Path, default=Path("deep.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only the table of these files")
    arguments = parser.parse_args()
    if arguments.table:
        table(arguments.table)
        return
    jax.config.update("jax_enable_x64", arguments.precision == "float64")
    {"step": beside_peers, "predict": beside_peers, "memory": memory, "uci": uci}[arguments.task](arguments)


if __name__ == "__main__":
    main()
