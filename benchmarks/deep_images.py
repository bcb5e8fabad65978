"""A deep convolutional Gaussian process on MNIST: `python benchmarks/deep_images.py [--steps 18000] [--checkpoint FILE]`.

Hidden layers take an image to an image: the value at a place is that of a function of the patch around it, whose mean is the
pixel in the middle (Blomqvist et al., 2018). The values of all places are drawn jointly. The last layer has ten functions,
each the mean of the responses to patches with a weight for each place, plus a function of the whole image, and the likelihood is
a softmax. With no hidden layer it is the model of `mnist.py`. Pixels are between 0 and 1, training is by Adam with a learning
rate that falls along a cosine, in float32.

A run that was stopped, or that `--seconds` ended, goes on from `--checkpoint` if it is started again with the same options. For a
GPU. Data: `MERCER_DATA`, else ../shared/data beside the repository.
"""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import mercer as mc
from peers import data_folder


def images(part: str, num: int | None):
    """X [N, 784] between 0 and 1, and labels [N, 1]."""
    data = np.load(data_folder() / "images" / "mnist.npz")
    x, y = data[f"x_{part}"][:num], data[f"y_{part}"][:num]
    return (x.reshape(len(x), -1) / 255.0).astype(np.float32), y.reshape(-1, 1).astype(np.float32)


def patches_of(X, kernel, num: int, key):
    """Inducing patches from images, with a little noise, as patches with few pixels inside a stroke differ by little."""
    first, second = jax.random.split(key)
    Z = mc.inducing.random_patches(X, kernel, num, key=first)
    return mc.inducing.Patches(Z + 0.02 * jax.random.normal(second, Z.shape, Z.dtype))


def model_of(X, arguments):
    """The model before training. Hidden layers begin as their means, with next to no variance at the inducing patches."""
    shape, patch, layers = (28, 28), (arguments.patch, arguments.patch), []
    keys = jax.random.split(jax.random.key(arguments.seed), arguments.hidden + 1)
    for key in keys[:-1]:
        base = mc.kernels.RBF(arguments.lengthscale, arguments.hidden_variance)
        kernel = mc.kernels.ImageToImage(base, shape, patch)
        mean, inducing = mc.means.Projection.centres(kernel), patches_of(X, kernel, arguments.hidden_M, key)
        root = 1e-5 * jnp.eye(arguments.hidden_M)[None]
        layers.append(mc.Sparse(mc.GP(kernel, mean), inducing, q_sqrt=root))
        X, shape = mean(X), (shape[0] - patch[0] + 1, shape[1] - patch[1] + 1)
    places = (shape[0] - patch[0] + 1) * (shape[1] - patch[1] + 1)
    base = mc.kernels.RBF(arguments.lengthscale, arguments.variance)
    kernel = mc.kernels.Convolutional(base, shape, patch, "mean", np.ones(places))
    inducing = patches_of(X, kernel, arguments.M, keys[-1])
    if arguments.points:
        whole = mc.inducing.random_subset(X, arguments.points, key=jax.random.key(arguments.seed + 1))
        kernel = kernel + mc.kernels.RBF(10.0, 5.0)
        inducing = mc.inducing.PerTerm([inducing, mc.inducing.Points(whole)])
    last = mc.Sparse(mc.GP(kernel), inducing, num_outputs=10)
    likelihood = mc.likelihoods.Softmax(10, num_samples=arguments.samples)
    return mc.Model(mc.Deep([*layers, last], num_samples=arguments.passes), likelihood)


def scores(model, X, Y, block: int):
    """Errors in percent, and the mean log-likelihood."""
    probabilities = np.concatenate([model.predict(X[at : at + block]).mean for at in range(0, len(X), block)])
    of_labels = probabilities[np.arange(len(Y)), Y[:, 0].astype(int)]
    return 100.0 * np.mean(probabilities.argmax(axis=1) != Y[:, 0]), np.mean(np.log(np.maximum(of_labels, 1e-12)))


def main() -> None:
    """Trains, and prints a line of scores every `--report` steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=1, help="the number of hidden layers")
    parser.add_argument("--steps", type=int, default=18_000)
    parser.add_argument("--seconds", type=float, default=np.inf, help="after these, training ends")
    parser.add_argument("--report", type=int, default=2_000)
    parser.add_argument("--every", type=int, default=500, help="steps between checkpoints")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--M", type=int, default=750, help="inducing patches of the last layer")
    parser.add_argument("--points", type=int, default=500, help="inducing images of the last layer; 0: patches only")
    parser.add_argument("--hidden-M", type=int, default=256, help="those of hidden layers")
    parser.add_argument("--patch", type=int, default=5, help="height and width")
    parser.add_argument("--rate", type=float, default=0.01, help="of Adam; falls along a cosine, to a hundredth")
    parser.add_argument("--lengthscale", type=float, default=1.5)
    parser.add_argument("--variance", type=float, default=800.0, help="of the patch function of the last layer")
    parser.add_argument("--hidden-variance", type=float, default=0.1, help="those of hidden layers")
    parser.add_argument("--samples", type=int, default=16, help="of the softmax, for its expectations in training")
    parser.add_argument("--passes", type=int, default=10, help="in a prediction")
    parser.add_argument("--train", type=int, default=60_000, help="how many images to train on")
    parser.add_argument("--test", type=int, default=10_000, help="how many test images to score")
    parser.add_argument("--block", type=int, default=50, help="test images at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path)
    arguments = parser.parse_args()

    (X, Y), (X_test, Y_test) = images("train", arguments.train), images("test", arguments.test)
    print(f"{arguments}, {jax.devices()[0].device_kind}, jax {jax.__version__}\n", flush=True)
    begin, model = time.perf_counter(), model_of(X[:10_000], arguments)
    print("| steps | loss | error | test log-likelihood | seconds since the start |", flush=True)
    print("|---|---|---|---|---|", flush=True)

    def report(seen):
        late = time.perf_counter() - begin > arguments.seconds
        if late or seen.step % arguments.report == 0 or seen.step == arguments.steps:
            error, density = scores(seen.model(), X_test, Y_test, arguments.block)
            loss, seconds = np.mean(seen.history[-500:]), time.perf_counter() - begin
            print(f"| {seen.step} | {loss:.4f} | {error:.2f} % | {density:.4f} | {seconds:.0f} |", flush=True)
        return late

    mc.fit(
        model,
        mc.objectives.ELBO(),
        (X, Y),
        optimiser=optax.adam(optax.cosine_decay_schedule(arguments.rate, arguments.steps, 0.01)),
        steps=arguments.steps,
        batch_size=arguments.batch,
        key=jax.random.key(arguments.seed),
        callbacks=report,
        every=arguments.every,
        checkpoint=arguments.checkpoint,
    )


if __name__ == "__main__":
    main()
