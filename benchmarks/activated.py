"""Activated deep processes (paper 001, section 4.2): `python benchmarks/activated.py banana | uci | rotations`.

Each begins as a trained network, `Deep.from_network`, and is trained on by the ELBO. Networks have the form of the paper: their
units are the functions of the process, `mercer.processes.ActivatedUnits` (softplus units with `--plain`), and a linear map after
each layer of units has few outputs, the heads.

- banana: the picture of the paper, a network and the process that began as it, with one layer and with three; `--figure`.
- uci: three layers of 128 units, as many heads as inputs. Also with dropout (0.1, when trained and when used), and a
  deep process with inducing points and the same kernel. RMSE and negative log predictive density in standard units. All splits
  of a set are trained at once, in float32. For a GPU.
- rotations: MNIST and Fashion-MNIST, trained on images as they are, tested on images turned by 0 to 180 degrees: accuracy,
  log-likelihood, and calibration error of the network, the one with dropout, and the process. Two convolutions in front, two
  layers of 128 units. For a GPU.

A line of JSON is appended to `--out` for each set; `--table FILE` shows them. Variances of a network without dropout are its mean
squared error on the training data, as in the paper; those of dropout are the same for each pass.

Data: `MERCER_DATA`, else ../shared/data beside the repository.
"""

import argparse
import functools
import itertools
import json
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from equinox.nn import Conv2d, Dropout, Lambda, Linear, MaxPool2d, Sequential
from jax.scipy.special import logsumexp

import mercer as mc
from mercer.objectives import ELBO, Batch, Context
from mercer.parameters import cast, constrain, trainable, unconstrain
from mercer.processes import ActivatedUnits
from peers import data_folder
from uci import split, with_errors

# NLPD as published: of the activated process, the deep one, and dropout
PUBLISHED = {
    "yacht": (0.07, 1.94, 0.94),
    "energy": (0.03, 0.25, 0.52),
    "concrete": (0.59, 0.88, 0.91),
    "kin8nm": (0.39, 0.60, 0.56),
    "power-plant": (0.053, 0.058, 0.098),
    "wine-quality-red": (1.19, 1.26, 1.24),
    "naval-propulsion-plant": ("", "", ""),  # no published figure is known
}
METHODS = ("network", "dropout", "deep", "activated")
OF_PUBLISHED = {"activated": 0, "deep": 1, "dropout": 2}
IMAGES = ("mnist", "fashion_mnist")
SHAPE = (1, 28, 28)
ANGLES = range(0, 181, 15)
BLOCK = 1000  # test images at a time
PASSES = 100  # of dropout, and of the processes


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


def trained_at_once(starts, loss, X, Y, steps: int, rate: float, arguments, label: str):
    """Modules or models, each trained on its own data (X [S, N, D], Y [S, N, P]) by Adam, its rate along a cosine; stacked.

    `loss` takes one of them, a batch, the number of the step and a key.
    """
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *starts)
    free = eqx.filter_vmap(unconstrain)(stacked)
    params, fixed = eqx.partition(free, trainable(stacked))
    arrays, rest = eqx.partition(fixed, eqx.is_array)
    adam, size = optax.adam(optax.cosine_decay_schedule(rate, steps, 0.01)), min(arguments.batch, X.shape[1])

    def step(carry, number, arrays, X, Y, seed):
        params, state = carry
        key = jax.random.fold_in(jax.random.key(seed), number)
        batch = Batch(X, Y, complete=True).rows(jax.random.randint(key, (size,), 0, len(X)))

        def value_of(params):
            return loss(constrain(eqx.combine(params, arrays, rest)), batch, number, key)

        value, gradient = jax.value_and_grad(value_of)(params)
        updates, state = adam.update(gradient, state)
        return (optax.apply_updates(params, updates), state), value

    @functools.partial(jax.jit, donate_argnums=0, static_argnums=5)
    def chunk(carry, first, arrays, X, Y, length):
        def body(carry, number):
            return jax.vmap(step, in_axes=(0, None, 0, 0, 0, 0))(carry, number, arrays, X, Y, jnp.arange(len(X)))

        return jax.lax.scan(body, carry, first + jnp.arange(length))

    carry = params, jax.vmap(adam.init)(params)
    for first in range(0, steps, arguments.every):
        begin, length = time.perf_counter(), min(arguments.every, steps - first)
        carry, values = chunk(carry, jnp.asarray(first), arrays, X, Y, length)
        values, took = np.asarray(values), 1e3 * (time.perf_counter() - begin) / length
        print(f"  {label}, step {first + length}: {np.mean(values[-50:]):.4f}, {took:.1f} ms a step", flush=True)
        if not np.isfinite(values).all():
            raise FloatingPointError(f"{label}: a loss is not finite")
    return eqx.filter_vmap(constrain)(eqx.combine(carry[0], arrays, rest))


def one_of(stacked, number: int):
    return jax.tree.map(lambda leaf: leaf[number] if eqx.is_array(leaf) else leaf, stacked)


def pass_through(network, X, key):
    """The network at each row; each has units of its own that are left out, where there is dropout."""
    return jax.vmap(lambda x, key: network(x, key=key))(X, jax.random.split(key, len(X)))


def squares(network, batch, number, key):
    return jnp.mean((pass_through(network, batch.X, key) - batch.Y) ** 2)


def negative_bound(model, batch, number, key):
    return ELBO().value_in_training(model, batch, Context(number, batch, None), key=key)[0]


def uci(arguments) -> None:
    """A line for each set."""
    for name in arguments.sets or PUBLISHED:
        splits = [split(name, number) for number in range(arguments.splits)]
        # targets of the test data in standard units, too
        parts = [(X, Y, X_test, (y - units[0]) / units[1]) for X, Y, X_test, y, units in splits]
        X, Y, X_test, Y_test = (jnp.asarray(np.stack(arrays), np.float32) for arrays in zip(*parts, strict=True))
        entry = {"task": "uci", "set": name, "steps": arguments.steps, "units": arguments.units}
        entry |= {"scores": {}, "seconds": {}}
        networks = None
        for method in METHODS:
            if method not in arguments.methods and not (method == "network" and "activated" in arguments.methods):
                continue
            begin, label = time.perf_counter(), f"{name}, {method}"
            if method in ("network", "dropout"):
                found = networks_of(X, Y, 0.1 if method == "dropout" else 0.0, arguments, label)
                networks = found if method == "network" else networks
                rows = [of_network(one_of(found, i), X[i], Y[i], X_test[i], Y_test[i]) for i in range(len(X))]
            else:
                rows = of_processes(method, networks, X, Y, X_test, Y_test, arguments, label)
            entry["scores"][method] = [[float(value) for value in row] for row in rows]
            entry["seconds"][method] = time.perf_counter() - begin
        write(entry, arguments)


def networks_of(X, Y, dropout: float, arguments, label: str):
    """A trained network for each split."""
    D = X.shape[-1]
    widths = [D] * arguments.layers + [1]
    keys = [jax.random.key(seed) for seed in range(len(X))]
    starts = [Sequential(narrow_network(widths, arguments.units, dropout, arguments, key)) for key in keys]
    return trained_at_once(starts, squares, X, Y, arguments.network_steps, arguments.network_rate, arguments, label)


@eqx.filter_jit
def of_network(network, X, Y, X_test, Y_test):
    """RMSE and NLPD of a network; with dropout, of the mixture over passes."""
    keys = jax.random.split(jax.random.key(0), PASSES)
    variance = jnp.mean(jax.vmap(lambda key: jnp.mean((pass_through(network, X, key) - Y) ** 2))(keys[:10]))
    means = jax.vmap(lambda key: pass_through(network, X_test, key))(keys)
    densities = -0.5 * jnp.log(2.0 * jnp.pi * variance) - 0.5 * (Y_test - means) ** 2 / variance
    error = jnp.sqrt(jnp.mean((jnp.mean(means, axis=0) - Y_test) ** 2))
    return error, -jnp.mean(logsumexp(densities, axis=0) - jnp.log(PASSES))


def of_processes(method: str, networks, X, Y, X_test, Y_test, arguments, label: str):
    """RMSE and NLPD of a deep process for each split."""
    starts = []
    for i in range(len(X)):
        if method == "activated":
            network = one_of(networks, i)
            noise = max(float(jnp.mean((jax.vmap(network)(X[i]) - Y[i]) ** 2)), 0.01)
            deep = mc.Deep.from_network(network, levels=arguments.levels, num_samples=PASSES)
        else:
            key, noise = jax.random.key(i), 0.1
            M = min(arguments.units, X.shape[1])
            options = {"kernel": mc.kernels.ArcCosine.with_lengthscales, "num_samples": PASSES, "key": key}
            deep = mc.Deep.of(X[i], arguments.layers, 1, M, **options)
        starts.append(cast(mc.Model(deep, mc.likelihoods.Gaussian(noise)), np.float32))
    models = trained_at_once(starts, negative_bound, X, Y, arguments.steps, arguments.rate, arguments, label)
    rows = []
    for i in range(len(X)):
        model = one_of(models, i)
        error = jnp.sqrt(jnp.mean((model.predict(X_test[i]).mean - Y_test[i]) ** 2))
        rows.append((error, -jnp.mean(model.log_density(X_test[i], Y_test[i]))))
    return rows


def convolutional_network(dropout: float, arguments, key):
    """Two convolutions with pooling, and two layers of units; ten heads after each."""
    one, two, dense = jax.random.split(key, 3)
    dtype = jnp.float32
    front = [
        Conv2d(1, 16, 5, dtype=dtype, key=one),
        Lambda(jax.nn.relu),
        MaxPool2d(2, 2),
        Conv2d(16, 32, 5, dtype=dtype, key=two),
        Lambda(jax.nn.relu),
        MaxPool2d(2, 2),
        Lambda(jnp.ravel),
    ]
    return Sequential([*front, *narrow_network([512, 10, 10], arguments.units, dropout, arguments, dense)])


def cross_entropy(network, batch, number, key):
    logits = pass_through(network, batch.X.reshape(-1, *SHAPE), key)
    labels = batch.Y[:, 0].astype(int)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


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
        entry = {"task": "rotations", "set": name, "steps": arguments.steps, "units": arguments.units}
        entry |= {"scores": {}, "seconds": {}}
        network = None
        for method in ("network", "dropout", "activated"):
            if method not in arguments.methods and not (method == "network" and "activated" in arguments.methods):
                continue
            begin, label = time.perf_counter(), f"{name}, {method}"
            if method == "activated":
                predict = process_of_images(network, X, Y, arguments, label)
            else:
                start = convolutional_network(0.1 * (method == "dropout"), arguments, jax.random.key(0))
                steps, rate = arguments.network_steps, arguments.network_rate
                stacked = trained_at_once([start], cross_entropy, X[None], Y[None], steps, rate, arguments, label)
                found = one_of(stacked, 0)
                network = found if method == "network" else network
                predict = functools.partial(probabilities_of, found)
            entry["scores"][method] = [
                [angle, *scores_of_labels(predict, turned(X_test, angle), Y_test[:, 0])] for angle in ANGLES
            ]
            entry["seconds"][method] = time.perf_counter() - begin
        write(entry, arguments)


@eqx.filter_jit
def probabilities_of(network, X):
    """Of the classes; with dropout, the mean over 20 passes."""
    keys = jax.random.split(jax.random.key(0), 20)
    return jnp.mean(
        jax.vmap(lambda key: jax.nn.softmax(pass_through(network, X.reshape(-1, *SHAPE), key)))(keys), axis=0
    )


def process_of_images(network, X, Y, arguments, label: str):
    deep = mc.Deep.from_network(network, levels=arguments.levels, input_shape=SHAPE, num_samples=20)
    start = cast(mc.Model(deep, mc.likelihoods.Softmax(10, num_samples=16)), np.float32)
    fit = mc.fit(
        start,
        ELBO(),
        (X, Y),
        steps=arguments.steps,
        batch_size=min(arguments.batch, len(X)),
        optimiser=optax.adam(optax.cosine_decay_schedule(arguments.rate, arguments.steps, 0.01)),
        key=jax.random.key(1),
        every=min(arguments.every, arguments.steps),
        callbacks=lambda seen: print(f"  {label}, step {seen.step}: {np.mean(seen.history[-50:]):.4f}", flush=True),
    )
    model = fit.model.cached()
    return lambda X: model.predict(X).mean


def scores_of_labels(predict, X, labels):
    """Accuracy, mean log-likelihood and calibration error."""
    from mercer.tabular.scores import calibration_error

    found = np.concatenate([np.asarray(predict(X[i : i + BLOCK])) for i in range(0, len(X), BLOCK)])
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

    def loss(network, batch, number, key):
        return jnp.mean(optax.sigmoid_binary_cross_entropy(pass_through(network, batch.X, key), batch.Y))

    for layers in (1, 3):
        start = Sequential(narrow_network([2] * layers + [1], 100, 0.0, arguments, jax.random.key(0), jnp.float64))
        steps, rate = arguments.network_steps, arguments.network_rate
        stacked = trained_at_once([start], loss, X[None], Y[None], steps, rate, arguments, f"network, {layers} layers")
        network = one_of(stacked, 0)
        model = mc.Model(mc.Deep.from_network(network), mc.likelihoods.Bernoulli("logit"))
        optimiser = optax.adam(optax.cosine_decay_schedule(arguments.rate, arguments.steps, 0.01))
        options = {"steps": arguments.steps, "batch_size": arguments.batch, "key": jax.random.key(1)}
        before = mc.elbo(model, X, Y)
        model = mc.fit(model, ELBO(), (X, Y), optimiser=optimiser, **options).model
        print(f"{layers} layers: bound {before:.1f}, after training {mc.elbo(model, X, Y):.1f}", flush=True)
        for method, predict in (
            ("network", lambda X, network=network: jax.nn.sigmoid(jax.vmap(network)(X))),
            ("activated", lambda X, model=model: model.predict(X).mean),
        ):
            p = np.asarray(predict(X))
            right = np.mean((p > 0.5) == (Y > 0.5))
            of_ring = np.asarray(predict(ring))
            sure = np.mean(np.maximum(of_ring, 1.0 - of_ring) > 0.95)
            print(f"  {method}: {right:.3f} right, sure (95 %) at {sure:.0%} of places that are 6 away", flush=True)
            found[method, layers] = np.asarray(predict(grid)).reshape(len(sides), -1)
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
    """The tables of some lines."""
    regression = [entry for entry in entries if entry["task"] == "uci"]
    if regression:
        print("| set | method | splits | RMSE | NLPD | published NLPD | seconds |\n" + "|---" * 7 + "|")
    for entry in regression:
        for method, rows in entry["scores"].items():
            published = PUBLISHED[entry["set"]][OF_PUBLISHED[method]] if method in OF_PUBLISHED else ""
            cells = [entry["set"], method, len(rows), *with_errors(rows), published, round(entry["seconds"][method])]
            print("|", " | ".join(map(str, cells)), "|", flush=True)
    turned_images = [entry for entry in entries if entry["task"] == "rotations"]
    if turned_images:
        print("| set | method | degrees | accuracy | log-likelihood | calibration error |\n" + "|---" * 6 + "|")
    for entry in turned_images:
        for method, rows in entry["scores"].items():
            for angle, accuracy, density, error in rows:
                cells = f"{accuracy:.4f} | {density:.4f} | {error:.4f}"
                print(f"| {entry['set']} | {method} | {angle} | {cells} |", flush=True)


# by task: steps and rate of the networks, and of the processes
DEFAULTS = {
    "banana": (4000, 0.01, 1500, 0.02),
    "uci": (5000, 3e-3, 10_000, 0.01),
    "rotations": (5000, 1e-3, 10_000, 3e-3),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=list(DEFAULTS))
    parser.add_argument("--sets", nargs="*", choices=[*PUBLISHED, *IMAGES], metavar="SET", help="all by default")
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--layers", type=int, default=3, help="of uci")
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
    {"banana": banana, "uci": uci, "rotations": rotations}[arguments.task](arguments)


if __name__ == "__main__":
    main()
