"""An inference network for images: `python benchmarks/gpnet_images.py [--steps 10000] [--checkpoint FILE]`.

Paper 002, section 5.3. The prior of each of ten classes is the Gaussian process of an infinitely wide residual convolutional
network (CNN-GP): six blocks, two on each of three sizes of feature maps, with strided convolutions between the sizes. The
posterior is a network of the same shape with 64, 64, 128, 128, 256, 256 filters and a dense layer of 512 units, all of them
deterministic, and on top of it for each class the tangent features of an MLP with 100 hidden units, whose weights are Gaussian.
The likelihood is a softmax. Each step of mirror descent has 64 images to learn from and 64 more as measurement points. Where the
paper is silent: pixels are between 0 and 1, gradients are clipped at norm 1, the learning rate falls along a cosine, the dense
layer is normalised (without it its units grow after some 3,000 steps until training fails; seen), and the network begins with
a variance well below that of the prior.

A run that was stopped goes on from `--checkpoint`. For a GPU.
Data: `MERCER_DATA`, else ../shared/data beside the repository.
"""

import argparse
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import mercer as mc
from mercer.kernels import nngp
from mercer.objectives import MirrorDescent, measurement
from peers import data_folder

SHAPE = (28, 28, 1)
BLOCK = 500  # test images at a time


class Block(eqx.Module):
    """x + two convolutions of relu(x)."""

    convolutions: list

    def __init__(self, width: int, key):
        first, second = jax.random.split(key)
        self.convolutions = [convolution(width, width, 1, first), convolution(width, width, 1, second)]

    def __call__(self, x):
        inner = x
        for layer in self.convolutions:
            inner = layer(jax.nn.relu(inner))
        return x + inner


class ConvNet(eqx.Module):
    """A flat image to `units` numbers: blocks of each width, with strided convolutions between the widths."""

    layers: list
    dense: eqx.nn.Linear
    norm: eqx.nn.LayerNorm

    def __init__(self, widths, units: int, key):
        key, dense = jax.random.split(key)
        self.layers, before, size = [], SHAPE[2], SHAPE[0]
        for number, width in enumerate(widths):
            key, first, *blocks = jax.random.split(key, 4)
            stride = 1 if number == 0 else 2
            size = -(-size // stride)
            self.layers += [convolution(before, width, stride, first), *(Block(width, each) for each in blocks)]
            before = width
        self.dense = eqx.nn.Linear(before * size**2, units, key=dense)
        self.norm = eqx.nn.LayerNorm(units)

    def __call__(self, x):
        x = x.reshape(SHAPE[2], *SHAPE[:2])
        for layer in self.layers:
            x = layer(x)
        return jax.nn.relu(self.norm(self.dense(jax.nn.relu(x).reshape(-1))))


def convolution(before: int, after: int, stride: int, key):
    return eqx.nn.Conv2d(before, after, 3, stride, 1, key=key)


def images(part: str):
    """X [N, 784] between 0 and 1, and labels [N, 1]."""
    data = np.load(data_folder() / "images" / "mnist.npz")
    x, y = data[f"x_{part}"], data[f"y_{part}"]
    return (x.reshape(len(x), -1) / 255.0).astype(np.float32), y.reshape(-1, 1).astype(np.float32)


def prior_of(X, variance: float):
    """The CNN-GP, with so much variance at the images, on average."""

    def conv(stride: int = 1):
        return nngp.Conv((3, 3), (stride, stride), weight_std=2.0**0.5, bias_std=0.1)

    layers = []
    for stride in (1, 2, 2):
        layers += [conv(stride), *(nngp.Residual([nngp.Relu(), conv(), nngp.Relu(), conv()]) for _ in range(2))]
    layers += [nngp.Relu(), nngp.Flatten()]
    raw = nngp.NNGP([*layers, nngp.Dense()], image_shape=SHAPE)
    scale = variance / jnp.mean(mc.GP(raw).predict(X[:500]).cov)
    return mc.GP(nngp.NNGP([*layers, nngp.Dense(jnp.sqrt(scale))], image_shape=SHAPE))


def network_of(X, arguments, key):
    """A deterministic body, a tangent head for each class, with so much variance at the start, on average."""
    body, *heads = jax.random.split(key, 11)
    body = ConvNet(arguments.widths, arguments.units, body)
    heads = mc.features.Separate(
        [mc.features.Tangent(eqx.nn.MLP(arguments.units, 1, arguments.hidden, 1, key=each)) for each in heads]
    )
    features = mc.features.Composed(body, heads)
    raw = mc.Network(features, covariance="diag").predict(X[:50]).cov
    return mc.Network(features, covariance="diag", prior_variance=arguments.start / float(jnp.mean(raw)))


def scores(model, X, Y):
    """Errors in percent, and the mean log-likelihood."""
    probabilities = np.concatenate([model.predict(X[at : at + BLOCK]).mean for at in range(0, len(X), BLOCK)])
    of_labels = probabilities[np.arange(len(Y)), Y[:, 0].astype(int)]
    return 100.0 * np.mean(probabilities.argmax(axis=1) != Y[:, 0]), np.mean(np.log(np.maximum(of_labels, 1e-12)))


def main() -> None:
    """Trains, and prints a line of scores every `--report` steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--report", type=int, default=2_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--M", type=int, default=64)
    parser.add_argument("--rate", type=float, default=3e-4, help="of Adam; falls along a cosine, to a hundredth")
    parser.add_argument("--variance", type=float, default=10.0, help="of the prior, on average")
    parser.add_argument(
        "--start", type=float, default=0.1, help="the variance of the network before training, on average"
    )
    parser.add_argument("--widths", type=int, nargs="*", default=[64, 128, 256])
    parser.add_argument("--units", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--samples", type=int, default=16, help="of the softmax, for its expectations in training")
    parser.add_argument("--test", type=int, default=10_000, help="how many test images to score")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path)
    arguments = parser.parse_args()

    (X, Y), (X_test, Y_test) = images("train"), images("test")
    X_test, Y_test = X_test[: arguments.test], Y_test[: arguments.test]
    print(f"{arguments}, {jax.devices()[0].device_kind}, jax {jax.__version__}\n", flush=True)
    begin, key = time.perf_counter(), jax.random.key(arguments.seed)
    model = mc.Model(network_of(X, arguments, key), mc.likelihoods.Softmax(10, num_samples=arguments.samples))
    objective = MirrorDescent(prior_of(X, arguments.variance), measurement.Data(arguments.M), 0.01, 0.1, jitter=1e-2)
    print("| steps | loss | error | test log-likelihood | variance | seconds since the start |", flush=True)
    print("|---|---|---|---|---|---|", flush=True)

    def report(seen):
        if seen.step % arguments.report and seen.step != arguments.steps:
            return
        trained = seen.model()
        error, density = scores(trained, X_test, Y_test)
        variance = np.mean(trained.posterior.predict(X_test[:BLOCK]).cov)
        loss, seconds = np.mean(seen.history[-500:]), time.perf_counter() - begin
        print(
            f"| {seen.step} | {loss:.4f} | {error:.2f} % | {density:.4f} | {variance:.3f} | {seconds:.0f} |", flush=True
        )

    schedule = optax.cosine_decay_schedule(arguments.rate, arguments.steps, 0.01)
    mc.fit(
        model,
        objective,
        (X, Y),
        optimiser=optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule)),
        steps=arguments.steps,
        batch_size=arguments.batch,
        key=key,
        callbacks=report,
        every=min(500, arguments.report, arguments.steps),
        checkpoint=arguments.checkpoint,
    )


if __name__ == "__main__":
    main()
