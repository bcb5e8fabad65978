"""Projected GVI on images: `python benchmarks/gvi_images.py [--train fashion_mnist] [--steps 6000]`.

One Gaussian process for each of ten classes. The prior is that of an infinitely wide convolutional network (NNGP), the
posterior has a small convolutional network as its mean, and a variational kernel on images chosen by Algorithm 1; all of it by
`mercer.gvi.learn` (paper 000, Algorithm 3), tempered on a tenth of the training images. Scores are of the test images: the
share of wrong labels, the mean log predictive, and how well images of the other set (MNIST or Fashion-MNIST, out of
distribution) are told from them: the area under the ROC curve (AUC) of the entropy of the predicted classes, of the largest
predicted probability, and of the variance of the latent functions. Each image has mean 0 and standard deviation 1, so that
brightness says nothing.
Data: `MERCER_DATA`, else ../shared/data beside the repository.
"""

import argparse
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from peers import data_folder

SETS = ("mnist", "fashion_mnist")
SHAPE = (28, 28, 1)
BLOCK = 1000  # test images at a time


class ConvolutionalNetwork(eqx.Module):
    """Two convolutions of stride 2 and two dense layers: a flat image [784] to ten numbers."""

    convolutions: list
    dense: list

    def __init__(self, key, width: int = 32):
        keys = jax.random.split(key, 4)
        self.convolutions = [
            eqx.nn.Conv2d(1, width, 3, 1, 1, key=keys[0]),
            eqx.nn.Conv2d(width, 2 * width, 3, 2, 1, key=keys[1]),
            eqx.nn.Conv2d(2 * width, 2 * width, 3, 2, 1, key=keys[2]),
        ]
        hidden, last = jax.random.split(keys[3])
        self.dense = [eqx.nn.Linear(2 * width * 49, 128, key=hidden), eqx.nn.Linear(128, 10, key=last)]

    def __call__(self, x):
        x = x.reshape(1, *SHAPE[:2])
        for layer in self.convolutions:
            x = jax.nn.relu(layer(x))
        return self.dense[1](jax.nn.relu(self.dense[0](x.reshape(-1))))


def images(name: str, part: str):
    """X [N, 784], each row standardised, and labels [N, 1]."""
    data = np.load(data_folder() / "images" / f"{name}.npz")
    x = data[f"x_{part}"].reshape(-1, 784).astype(np.float32)
    x = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    return x, data[f"y_{part}"].reshape(-1, 1).astype(np.float32)


def auc(inside: np.ndarray, outside: np.ndarray) -> float:
    """The probability that a score from outside is above one from inside."""
    from scipy.stats import mannwhitneyu

    return mannwhitneyu(outside, inside).statistic / (len(inside) * len(outside))


def predicted(model, X):
    """The probabilities of the classes [N, 10], and the variance of the latent functions, summed, [N]."""
    parts = [
        (model.predict(x).mean, jnp.sum(model.posterior.predict(x).cov, axis=1))
        for x in (X[begin : begin + BLOCK] for begin in range(0, len(X), BLOCK))
    ]
    probabilities, variances = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    probabilities = np.maximum(probabilities, 1e-12)
    return probabilities / probabilities.sum(axis=1, keepdims=True), variances


def row(name: str, model, X, Y, others) -> str:
    """A line of the table."""
    (inside, variance), (outside, other_variance) = predicted(model, X), predicted(model, others)
    error = 100.0 * np.mean(np.argmax(inside, axis=1) != Y[:, 0])
    density = np.mean(np.log(inside[np.arange(len(Y)), Y[:, 0].astype(int)]))
    entropies = [-np.sum(p * np.log(p), axis=1) for p in (inside, outside)]
    areas = auc(*entropies), auc(-inside.max(axis=1), -outside.max(axis=1)), auc(variance, other_variance)
    return f"| {name} | {error:.2f} % | {density:.4f} | " + " | ".join(f"{area:.4f}" for area in areas) + " |"


def main() -> None:
    """Trains on one set, and prints a table of scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", choices=SETS, default="mnist")
    parser.add_argument("--likelihood", choices=["softmax", "robustmax"], default="softmax")
    parser.add_argument("--variational", default="fixed-sparse-posterior")
    parser.add_argument("--divergence", choices=["renyi", "kl", "wasserstein", "bhattacharyya"], default="renyi")
    parser.add_argument("--weight", type=float, default=1000.0)
    parser.add_argument("--scale", type=float, default=10.0, help="the variance of the prior, about")
    parser.add_argument("--M", type=int, default=600)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--images", type=int, default=60_000, help="how many to train on")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    import mercer as mc
    from mercer import divergences, gvi
    from mercer.kernels import nngp

    (X, Y), (X_test, Y_test) = images(arguments.train, "train"), images(arguments.train, "test")
    X, Y = X[: arguments.images], Y[: arguments.images]
    others, _ = images(SETS[1 - SETS.index(arguments.train)], "test")
    print(f"{arguments}, {jax.devices()[0].device_kind}, jax {jax.__version__}\n", flush=True)

    convolution = [nngp.Conv((3, 3), (2, 2), weight_std=2.0**0.5, bias_std=0.1), nngp.Relu()]
    layers = [*convolution, *convolution, nngp.Flatten(), nngp.Dense(2.0**0.5, 0.1), nngp.Relu()]
    kernel = nngp.NNGP([*layers, nngp.Dense((2.0 * arguments.scale) ** 0.5)], image_shape=SHAPE)
    key = jax.random.key(arguments.seed)
    begin = time.perf_counter()
    learned = gvi.learn(
        X,
        Y,
        kernel,
        mc.means.Network(ConvolutionalNetwork(key)),
        M=arguments.M,
        variational=arguments.variational,
        likelihood={"softmax": mc.likelihoods.Softmax, "robustmax": mc.likelihoods.RobustMax}[arguments.likelihood](10),
        divergence=divergences.Projected(
            {
                "renyi": divergences.Renyi(0.5),
                "kl": divergences.KL(),
                "wasserstein": divergences.Wasserstein(),
                "bhattacharyya": divergences.Bhattacharyya(),
            }[arguments.divergence]
        ),
        weight=arguments.weight,
        rounds=arguments.rounds,
        steps=arguments.steps,
        batch_size=arguments.batch,
        optimiser=optax.adam(optax.cosine_decay_schedule(arguments.rate, arguments.steps, 0.01)),
        key=key,
        callbacks=lambda seen: (
            print(f"{seen.step} {seen.history[-1]:.4f} {time.perf_counter() - begin:.0f} s", flush=True)
            if seen.step % 1000 == 0
            else None
        ),
    )
    print(f"\ntrained in {time.perf_counter() - begin:.0f} s; objective {learned.history[-100:].mean():.4f}\n")
    print("| | error | log predictive | AUC, entropy | AUC, largest probability | AUC, latent variance |")
    print("|---|---|---|---|---|---|")
    for name, model in (("untempered", learned.untempered), ("tempered", learned.model)):
        print(row(name, model, X_test, Y_test, others), flush=True)


if __name__ == "__main__":
    main()
