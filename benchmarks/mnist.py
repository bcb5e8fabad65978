"""A convolutional Gaussian process on MNIST, ten classes: `python benchmarks/mnist.py [--kernel wconv] [--steps 20]`.

The function of an image is the mean of the responses of a Gaussian process on its patches of 5 x 5 pixels ("conv"), a mean
with a weight for each place ("wconv"), or the sum of that and of a process on whole images ("sum"), with which van der Wilk et
al. (2017) had 1.22 % of errors. Inducing variables are values of the patch function, and of the function of whole images.
Training is by minibatches and Adam, with a learning rate that falls along a cosine, in float32 unless told otherwise.
Data: `MERCER_DATA`, else ../shared/data beside the repository.
"""

import argparse
import os
import time
from pathlib import Path

import jax
import numpy as np
import optax

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("MERCER_DATA", ROOT.parent / "shared" / "data"))
SHAPE, PATCH = (28, 28), (5, 5)
PATCHES = (SHAPE[0] - PATCH[0] + 1) * (SHAPE[1] - PATCH[1] + 1)
BLOCK = 500  # test images at a time


def images(dtype: str):
    """X [N, 784] between 0 and 1 and the labels [N, 1], to train on and held out."""
    data = np.load(DATA / "images" / "mnist.npz")
    for part in ("train", "test"):
        x, y = data[f"x_{part}"], data[f"y_{part}"]
        yield (x.reshape(len(x), -1) / 255.0).astype(dtype), y.reshape(-1, 1).astype(dtype)


def model_of(arguments, X):
    """The model before training.

    Images share most of what their patches look like, so that the means of responses differ by little: with a patch function of
    variance 1, by 0.17 between two digits (one standard deviation; for lengthscales from 0.5 to 1.5). A variance of 800
    makes it 5, a good start for the latent functions of classes.
    """
    import mercer as mc

    base = mc.kernels.RBF(arguments.lengthscale, arguments.variance)
    weights = None if arguments.kernel == "conv" else np.ones(PATCHES)
    kernel = mc.kernels.Convolutional(base, SHAPE, PATCH, reduce="mean", weights=weights)
    Z = mc.inducing.random_patches(X[:10_000], kernel, arguments.M, key=jax.random.key(arguments.seed))
    # a little noise, as patches with few pixels inside a stroke differ by little
    Z = Z + 0.02 * jax.random.normal(jax.random.key(arguments.seed + 1), Z.shape, Z.dtype)
    inducing = mc.inducing.Patches(Z)
    if arguments.kernel == "sum":
        whole = mc.inducing.random_subset(X, arguments.points, key=jax.random.key(arguments.seed + 2))
        kernel = kernel + mc.kernels.RBF(10.0, 5.0)
        inducing = mc.inducing.PerTerm([inducing, mc.inducing.Points(whole)])
    likelihood = {
        "softmax": lambda: mc.likelihoods.Softmax(10, num_samples=arguments.samples),
        "robustmax": lambda: mc.likelihoods.RobustMax(10),
    }[arguments.likelihood]()
    return mc.Model(mc.Sparse(mc.GP(kernel), inducing, num_outputs=10), likelihood)


def scores(model, X, Y):
    """The share of wrong labels, in percent, and the mean log-likelihood."""
    cached = model.cached()
    wrong, density = [], []
    for begin in range(0, len(X), BLOCK):
        x, y = X[begin : begin + BLOCK], Y[begin : begin + BLOCK]
        wrong.append(np.argmax(cached.predict(x).mean, axis=1) != y[:, 0])
        density.append(cached.log_density(x, y))
    return 100.0 * np.mean(np.concatenate(wrong)), np.mean(np.concatenate(density))


def main() -> None:
    """Trains, and prints a line of scores every `--report` steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernel", choices=["conv", "wconv", "sum"], default="wconv")
    parser.add_argument("--likelihood", choices=["softmax", "robustmax"], default="softmax")
    parser.add_argument("--samples", type=int, default=32, help="of the softmax, for its expectations")
    parser.add_argument("--M", type=int, default=750, help="inducing patches")
    parser.add_argument("--points", type=int, default=500, help="inducing images, of the sum")
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--report", type=int, default=5_000, help="steps between lines of the table")
    parser.add_argument(
        "--rate", type=float, default=0.01, help="the learning rate at the start; a hundredth of it at the end"
    )
    parser.add_argument("--lengthscale", type=float, default=1.5)
    parser.add_argument("--variance", type=float, default=800.0, help="of the patch function")
    parser.add_argument("--test", type=int, default=10_000, help="how many test images to score")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", arguments.dtype == "float64")

    import mercer as mc

    (X, Y), (X_test, Y_test) = images(arguments.dtype)
    X_test, Y_test = X_test[: arguments.test], Y_test[: arguments.test]
    print(f"{arguments}, {jax.devices()[0].device_kind}, jax {jax.__version__}\n")
    print("| steps | ELBO per image | error | test log-likelihood | lengthscale | variance | ms per step |")
    print("|---|---|---|---|---|---|---|", flush=True)
    schedule = optax.cosine_decay_schedule(arguments.rate, arguments.steps, alpha=0.01)
    begin = [time.perf_counter(), 0]

    def report(progressed):
        if progressed.step % arguments.report and progressed.step != arguments.steps:
            return
        each = (
            1e3 * (time.perf_counter() - begin[0]) / (progressed.step - begin[1])
        )  # on the first line, with compilation
        model = progressed.model()
        kernel = model.posterior.prior.kernel
        base = (kernel.kernels[0] if arguments.kernel == "sum" else kernel).base
        error, density = scores(model, X_test, Y_test)
        elbo = -np.mean(progressed.history[-1000:])
        print(
            f"| {progressed.step} | {elbo:.4f} | {error:.2f} % | {density:.4f} | {float(base.lengthscale):.3f} | "
            f"{float(base.variance):.1f} | {each:.1f} |",
            flush=True,
        )
        begin[:] = [time.perf_counter(), progressed.step]

    mc.fit(
        model_of(arguments, X),
        mc.objectives.ELBO(),
        (X, Y),
        optimiser=optax.adam(schedule),
        steps=arguments.steps,
        batch_size=arguments.batch,
        key=jax.random.key(arguments.seed),
        callbacks=report,
        every=min(arguments.steps, arguments.report, 500),
    )


if __name__ == "__main__":
    main()
