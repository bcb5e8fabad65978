"""Activated deep processes (paper 001, section 4.2): `python benchmarks/activated.py banana | rotations`.

Each begins as a trained network, `Deep.from_network`, and is trained on by the ELBO. Networks have the form of the paper: their
units are the functions of the process, `mercer.processes.ActivatedUnits` (softplus units with `--plain`), and a linear map after
each layer of units has few outputs, the heads.

- banana: the picture of the paper, a network and the process that began as it, with one layer and with three; `--figure`.
- rotations: MNIST and Fashion-MNIST, trained on images as they are, tested on images turned by 0 to 180 degrees: accuracy,
  log-likelihood, and calibration error of the network, the one with dropout, and the process. Two convolutions in front, two
  layers of 128 units. For a GPU.

A line of JSON is appended to `--out` for each set; `--table FILE` shows them. Tables of UCI are a sweep,
experiments/001/activated.yaml.

Data: `MERCER_DATA`, else ../shared/data beside the repository.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from equinox.nn import Conv2d, Dropout, Lambda, Linear, MaxPool2d, Sequential

import mercer as mc
from mercer.modules import Reshape
from mercer.parameters import cast
from mercer.processes import ActivatedUnits, Deterministic, Stochastic
from peers import data_folder

METHODS = ("network", "dropout", "activated")
IMAGES = ("mnist", "fashion_mnist")
SHAPE = (1, 28, 28)
ANGLES = range(0, 181, 15)
BLOCK = 1000  # test images at a time
PASSES = 20  # of dropout, and of the processes


def narrow_network(widths, units: int, dropout: float, arguments, key, dtype=jnp.float32) -> list:
    """The layers of a network: `units` of them between each of `widths` and the next."""
    layers = []
    for before, after in itertools.pairwise(widths):
        key, first, second = jax.random.split(key, 3)
        if arguments.plain:
            layers += [Linear(before, units, dtype=dtype, key=first), Lambda(jax.nn.softplus)]
        else:
            layers += [ActivatedUnits(before, units, levels=arguments.levels, dtype=dtype, key=first)]
        layers += [Dropout(dropout)] * (dropout > 0.0) + [Linear(units, after, dtype=dtype, key=second)]
    return layers


def fitted(process, likelihood, X, Y, steps: int, rate: float, arguments, label: str):
    """A model after training by Adam, its rate along a cosine."""
    return mc.fit(
        cast(mc.Model(process, likelihood), X.dtype),
        mc.objectives.ELBO(),
        (X, Y),
        steps=steps,
        batch_size=min(arguments.batch, len(X)),
        optimiser=optax.adam(optax.cosine_decay_schedule(rate, steps, 0.01)),
        key=jax.random.key(1),
        every=min(arguments.every, steps),
        callbacks=lambda seen: print(f"  {label}, step {seen.step}: {np.mean(seen.history[-50:]):.4f}", flush=True),
    ).model


def convolutional_network(dropout: float, arguments, key):
    """Two convolutions with pooling, and two layers of units; ten heads after each."""
    one, two, dense = jax.random.split(key, 3)
    dtype = jnp.float32
    front = [
        Reshape(SHAPE),
        Conv2d(1, 16, 5, dtype=dtype, key=one),
        Lambda(jax.nn.relu),
        MaxPool2d(2, 2),
        Conv2d(16, 32, 5, dtype=dtype, key=two),
        Lambda(jax.nn.relu),
        MaxPool2d(2, 2),
        Lambda(jnp.ravel),
    ]
    return Sequential([*front, *narrow_network([512, 10, 10], arguments.units, dropout, arguments, dense)])


def images(name: str, part: str, number: int):
    """X [N, 784] between 0 and 1, and labels [N, 1]."""
    data = np.load(data_folder() / "images" / f"{name}.npz")
    x, y = data[f"x_{part}"][:number], data[f"y_{part}"][:number]
    return (x.reshape(len(x), -1) / 255.0).astype(np.float32), y.reshape(-1, 1).astype(np.float32)


def turned(X, angle: float):
    """Images turned about their middle."""
    from scipy.ndimage import rotate

    whole = X.reshape(-1, *SHAPE[1:])
    return np.clip(rotate(whole, angle, axes=(2, 1), reshape=False, order=1), 0.0, 1.0).reshape(X.shape)


def rotations(arguments) -> None:
    """A line for each set."""
    for name in arguments.sets or IMAGES:
        X, Y = images(name, "train", arguments.images)
        X_test, Y_test = images(name, "test", arguments.test)
        entry = {"set": name, "steps": arguments.steps, "units": arguments.units}
        entry |= {"scores": {}, "seconds": {}}
        likelihood = mc.likelihoods.Softmax(10, num_samples=16)
        network = None
        for method in METHODS:
            begin, label = time.perf_counter(), f"{name}, {method}"
            if method == "activated":  # it begins as the network before
                deep = mc.Deep.from_network(network, levels=arguments.levels, num_samples=PASSES)
                model = fitted(deep, likelihood, X, Y, arguments.steps, arguments.rate, arguments, label)
            else:
                start = convolutional_network(0.1 * (method == "dropout"), arguments, jax.random.key(0))
                process = Stochastic(start, 10, PASSES) if method == "dropout" else Deterministic(start, 10)
                steps, rate = arguments.network_steps, arguments.network_rate
                model = fitted(process, likelihood, X, Y, steps, rate, arguments, label)
                network = model.posterior.module if method == "network" else network
            cached = model.cached()
            entry["scores"][method] = [
                [angle, *scores_of_labels(cached, turned(X_test, angle), Y_test[:, 0])] for angle in ANGLES
            ]
            entry["seconds"][method] = time.perf_counter() - begin
        write(entry, arguments)


def scores_of_labels(model, X, labels):
    """Accuracy, mean log-likelihood and calibration error."""
    from mercer.tabular.scores import calibration_error

    found = np.concatenate([np.asarray(model.predict(X[i : i + BLOCK]).mean) for i in range(0, len(X), BLOCK)])
    of_labels = np.maximum(found[np.arange(len(labels)), labels.astype(int)], 1e-12)
    accuracy = float(np.mean(found.argmax(axis=1) == labels))
    return accuracy, float(np.mean(np.log(of_labels))), calibration_error(labels, found)


def banana(arguments) -> None:
    """The probability of a class by a network, and by the process that began as it; one layer, and three."""
    data = np.load(data_folder() / "classification" / "banana.npz")
    X, Y = data["X"].astype(float), data["y"].reshape(-1, 1).astype(float)
    sides = np.linspace(-6.0, 6.0, 81)
    grid = np.stack(np.meshgrid(sides, sides), axis=-1).reshape(-1, 2)
    angles = np.linspace(0.0, 2.0 * np.pi, 200)
    ring = 6.0 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = {}

    likelihood = mc.likelihoods.Bernoulli("logit")
    for layers in (1, 3):
        start = Sequential(narrow_network([2] * layers + [1], 100, 0.0, arguments, jax.random.key(0), jnp.float64))
        label, steps, rate = f"{layers} layers", arguments.network_steps, arguments.network_rate
        network = fitted(Deterministic(start, 1), likelihood, X, Y, steps, rate, arguments, f"{label}, network")
        deep = mc.Deep.from_network(network.posterior.module)
        before = mc.elbo(mc.Model(deep, likelihood), X, Y)
        process = fitted(deep, likelihood, X, Y, arguments.steps, arguments.rate, arguments, label)
        print(f"{label}: bound {before:.1f}, after training {mc.elbo(process, X, Y):.1f}", flush=True)
        for method, model in (("network", network), ("activated", process)):
            p = np.asarray(model.predict(X).mean)
            right = np.mean((p > 0.5) == (Y > 0.5))
            of_ring = np.asarray(model.predict(ring).mean)
            sure = np.mean(np.maximum(of_ring, 1.0 - of_ring) > 0.95)
            print(f"  {method}: {right:.3f} right, sure (95 %) at {sure:.0%} of places that are 6 away", flush=True)
            found[method, layers] = np.asarray(model.predict(grid).mean).reshape(len(sides), -1)
    if arguments.figure:
        draw_banana(X, Y[:, 0], sides, found, arguments.figure)


def draw_banana(X, y, sides, found, path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    picture, axes = plt.subplots(2, 2, figsize=(8.0, 7.0), sharex=True, sharey=True, layout="constrained")
    for ax, ((method, layers), p) in zip(axes.flat, found.items(), strict=True):
        shades = ax.contourf(sides, sides, p, np.linspace(0.0, 1.0, 11), cmap="RdBu")
        ax.contour(sides, sides, p, [0.5], colors="black", linewidths=1.0)
        for value, colour in ((0, "darkred"), (1, "darkblue")):
            ax.plot(*X[y == value].T, ".", color=colour, ms=2)
        kind = "network" if method == "network" else "activated deep GP"
        ax.set(title=f"{kind}, {layers} layer{'s' * (layers > 1)}", aspect="equal")
    picture.colorbar(shades, ax=axes, shrink=0.6, label="p(y = 1 | x)")
    picture.savefig(path, dpi=80)


def write(entry, arguments) -> None:
    with arguments.out.open("a") as file:
        file.write(json.dumps(entry) + "\n")
    show([entry])


def show(entries) -> None:
    """The table of some lines."""
    print("| set | method | degrees | accuracy | log-likelihood | calibration error |\n" + "|---" * 6 + "|")
    for entry in entries:
        for method, rows in entry["scores"].items():
            for angle, accuracy, density, error in rows:
                cells = f"{accuracy:.4f} | {density:.4f} | {error:.4f}"
                print(f"| {entry['set']} | {method} | {angle} | {cells} |", flush=True)


# by task: steps and rate of the networks, and of the processes
DEFAULTS = {
    "banana": (4000, 0.01, 1500, 0.02),
    "rotations": (5000, 1e-3, 10_000, 3e-3),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=list(DEFAULTS))
    parser.add_argument("--sets", nargs="*", choices=IMAGES, metavar="SET", help="all by default")
    parser.add_argument("--units", type=int, default=128)
    parser.add_argument("--levels", type=int, default=20)
    parser.add_argument("--plain", action="store_true", help="networks of Linear and softplus, not of ActivatedUnits")
    parser.add_argument("--steps", type=int, help="of the processes")
    parser.add_argument("--rate", type=float, help="of Adam, for the processes")
    parser.add_argument("--network-steps", type=int)
    parser.add_argument("--network-rate", type=float)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--every", type=int, default=500)
    parser.add_argument("--images", type=int, default=60_000, help="how many to train on")
    parser.add_argument("--test", type=int, default=10_000, help="how many test images to score")
    parser.add_argument("--figure", type=Path, help="of banana")
    parser.add_argument("--out", type=Path, default=Path("activated.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only the tables of these files")
    arguments = parser.parse_args()
    if arguments.table:
        show([json.loads(line) for path in arguments.table for line in path.read_text().splitlines()])
        return
    names = ("network_steps", "network_rate", "steps", "rate")
    for name, default in zip(names, DEFAULTS[arguments.task], strict=True):
        setattr(arguments, name, getattr(arguments, name) or default)
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}", flush=True)
    jax.config.update("jax_enable_x64", True)
    {"banana": banana, "rotations": rotations}[arguments.task](arguments)


if __name__ == "__main__":
    main()
