"""Training from parquet files that are larger than memory should be: `python benchmarks/large_data.py FOLDER`.

Writes files of eight inputs and an output (float32) into FOLDER, where they are not there yet, and trains an SVGP on them.
The table shows, for each size of a batch, the rows that training went through in a second, the share of its time in which
it waited for rows, and the resident memory of the process: before training, and the most that there was at any time.
Compilation is not in the times: a first run of as many steps as are taken at a time comes before them.
"""

import argparse
import time
from pathlib import Path

import jax
import numpy as np
import polars as pl

import mercer as mc
from mercer.training import Parquet, Rows, Source

INPUTS = [f"x{i}" for i in range(8)]
EVERY = 100  # steps at a time


def write(folder: Path, num_files: int, num_rows: int) -> None:
    """The files that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(num_files):
        path = folder / f"part-{number:04d}-{num_rows}.parquet"
        if path.exists():
            continue
        random = np.random.default_rng(number)
        X = random.uniform(-1.0, 1.0, (num_rows, len(INPUTS))).astype(np.float32)
        y = np.sin(3.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * random.normal(size=num_rows)
        columns = {**dict(zip(INPUTS, X.T, strict=True)), "y": y.astype(np.float32)}
        pl.DataFrame(columns).write_parquet(path.with_suffix(".part"), compression="lz4")
        path.with_suffix(".part").rename(path)


class Timed(Source):
    """A source that counts the seconds in which it was waited for."""

    def __init__(self, source: Source):
        self.source, self.num_data, self.seconds = source, source.num_data, 0.0

    def example(self) -> Rows:
        return self.source.example()

    def batches(self, *arguments) -> Rows:
        start = time.perf_counter()
        rows = self.source.batches(*arguments)
        self.seconds += time.perf_counter() - start
        return rows

    def identity(self) -> str:
        return self.source.identity()

    def close(self) -> None:
        self.source.close()


def memory(field: str) -> float:
    """Resident memory in MB: VmRSS now, VmHWM the most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def main() -> None:
    """Prints a line for each size of a batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each file")
    parser.add_argument("--inducing", type=int, default=500)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    write(arguments.folder, arguments.files, arguments.rows)

    pattern = arguments.folder / f"part-*-{arguments.rows}.parquet"
    with Timed(Parquet(pattern, INPUTS, ["y"], dtype="float32")) as source:
        Z = source.batches(0, 1, arguments.inducing, (0,)).X[0]
        q = mc.Sparse(mc.GP(mc.kernels.RBF(np.ones(len(INPUTS), np.float32))), mc.inducing.Points(Z))
        model, objective = mc.Model(q, mc.likelihoods.Gaussian(0.1)), mc.objectives.ELBO()
        print(f"{source.num_data} rows, M={arguments.inducing}, {jax.devices()[0].device_kind}\n")
        print("| batch size | rows/s | waiting | memory before, MB | most, MB | loss |\n|---|---|---|---|---|---|")
        for size in arguments.sizes:
            mc.fit(model, objective, source, batch_size=size, steps=EVERY, every=EVERY)
            before, source.seconds, start = memory("VmRSS"), 0.0, time.perf_counter()
            fitted = mc.fit(model, objective, source, batch_size=size, steps=arguments.steps, every=EVERY)
            seconds = time.perf_counter() - start
            speed, waiting = arguments.steps * size / seconds, source.seconds / seconds
            loss = fitted.history[-EVERY:].mean()
            print(f"| {size} | {speed:.3g} | {waiting:.1%} | {before:.0f} | {memory('VmHWM'):.0f} | {loss:.4f} |")


if __name__ == "__main__":
    main()
