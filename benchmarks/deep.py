"""Deep Gaussian processes: `python benchmarks/deep.py step | predict | memory`.

- step: milliseconds of a training step of two and three layers, M = 256, batches of 1,024, eight inputs, float64, beside GPflux;
  with `--peer gpytorch` in float32 beside GPyTorch's deep GP, on the same device. For that, a GPU.
- predict: mean and variance at 10,000 inputs by ten passes, beside ten passes of GPflux.
- memory: what the process takes after each `--every` steps of `mercer.fit`, two layers, M = 128, batches of 512. For Linux.

One, two and three layers on sets of UCI are a sweep, experiments/004/deep.yaml.
"""

import argparse
import resource
from pathlib import Path

import jax
import numpy as np
import optax

import harness
import mercer as mc


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
    mc.fit(model, mc.objectives.ELBO(), (X, np.sin(X[:, :1])), optimiser=optax.adam(0.01), callbacks=report, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["step", "predict", "memory"])
    parser.add_argument("--peer", choices=["gpflux", "gpytorch"], default="gpflux")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--patience", type=int, default=20, help="attempts at a repeat that others disturb")
    parser.add_argument("--steps", type=int, default=10_000, help="of memory")
    parser.add_argument("--every", type=int, default=1_000)
    arguments = parser.parse_args()
    {"step": beside_peers, "predict": beside_peers, "memory": memory}[arguments.task](arguments)


if __name__ == "__main__":
    main()
