"""Generalised variational inference: `python benchmarks/gvi.py cost | selection`.

- cost: a step of projected GVI and one of Gaussian Wasserstein inference (with its trace term), in milliseconds, for growing
  batches; medians of repeats, and the slope of log time in log batch.
- selection: Algorithm 1 with the kernel of an infinitely wide network, 10 of 5,000 images of each digit of MNIST.

The curves of paper 000, sets of UCI and images are sweeps: experiments/000.

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
from mercer import divergences  # noqa: E402
from mercer.kernels import nngp  # noqa: E402
from mercer.objectives import GVI, risks  # noqa: E402


def network(inputs: int) -> mc.means.Network:
    """A network as the mean of a posterior."""
    return mc.means.Network(eqx.nn.MLP(inputs, 1, 50, 2, activation=jax.nn.gelu, key=jax.random.key(0)))


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
            posterior = mc.GP(mc.kernels.SparsePosterior(kernel, X[:M]), network(8))
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


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=["cost", "selection"])
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    print(f"{arguments}, {jax.devices()[0].device_kind}, jax {jax.__version__}\n", flush=True)
    {"cost": cost, "selection": selection}[arguments.table](arguments)


if __name__ == "__main__":
    main()
