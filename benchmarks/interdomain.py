"""What structure saves: `python benchmarks/interdomain.py`.

1. Regression in one dimension with N = 200,000 data by the collapsed bound: 100 steps of Adam with 201 Fourier features, the
   pass over the data included, beside steps with 201 inducing points on the same data, of which ten are timed.
2. A solve with Kuu of M = 10,001 Fourier features, and the same inside a coregionalised model.
3. The step of a coregionalised model (L = 2) as the number of outputs grows: in Table 1 of paper 004, second row, it costs
   M^3 L + N M^2 L + N P L.
"""

import argparse
import statistics
import time

import jax

jax.config.update("jax_enable_x64", True)

import equinox as eqx  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

import mercer as mc  # noqa: E402
from mercer.covariances import Kuu  # noqa: E402
from mercer.linalg import quiet_blas  # noqa: E402
from mercer.training.run import Run  # noqa: E402

ADAM = optax.adam(0.01)


def median(times: list[float]) -> float:
    """The median, in milliseconds."""
    return 1e3 * statistics.median(times)


def features_and_points(N: int, M: int, steps: int, slow_steps: int) -> None:
    """Training with features whose Kuf has no parameters, beside points."""
    random = np.random.default_rng(0)
    X = np.sort(random.uniform(0.0, 10.0, size=(N, 1)), axis=0)
    Y = np.sin(3.0 * X) + np.cos(7.3 * X) + 0.3 * random.normal(size=X.shape)
    kernel, noise = mc.kernels.Matern32(0.5), mc.likelihoods.Gaussian(0.1)
    inducing = {
        "Fourier features": (mc.inducing.FourierFeatures(-2.0, 12.0, (M - 1) // 2), steps),
        "points": (mc.inducing.Points(np.linspace(0.0, 10.0, M)[:, None]), slow_steps),
    }
    seconds = {}
    print(f"\n### Collapsed bound, N = {N}, M = {M}\n")
    print("| inducing variables | pass over the data, s | a step, ms | 100 steps and the pass, s | bound per datum |")
    print("|---|---|---|---|---|")
    for name, (variables, count) in inducing.items():
        model = mc.Model(mc.Sparse(mc.GP(kernel), variables), noise)
        objective = mc.objectives.CollapsedELBO()
        objective.checked(model, (X[:20_000], Y[:20_000]))  # compiles the pass
        start = time.perf_counter()
        run = Run(model, objective, (X, Y), ADAM, every=count)
        first = time.perf_counter() - start
        state = run.start()
        with quiet_blas():
            state, losses = run.chunk(state, 1)  # compiles
            times = []
            for _ in range(5):
                start = time.perf_counter()
                state, losses = run.chunk(state, count)
                times.append((time.perf_counter() - start) / count)
        seconds[name] = first + 100.0 * statistics.median(times)
        print(f"| {name} | {first:.2f} | {median(times):.2f} | {seconds[name]:.2f} | {-losses[-1]:.4f} |", flush=True)
    print(f"\npoints / Fourier features: {seconds['points'] / seconds['Fourier features']:.0f}")


def solves(F: int) -> None:
    """A solve with Kuu."""
    features = mc.inducing.FourierFeatures(-2.0, 12.0, F)
    W = np.random.default_rng(0).normal(size=(5, 2))
    cases = {
        "Matern12": (features, mc.kernels.Matern12(0.5)),
        "Matern32": (features, mc.kernels.Matern32(0.5)),
        "Matern52": (features, mc.kernels.Matern52(0.5)),
        "coregionalised, L = 2": (
            mc.inducing.Shared(features),
            mc.kernels.LinearCoregionalisation([mc.kernels.Matern32(0.5), mc.kernels.Matern52(0.9)], W),
        ),
    }
    solve = eqx.filter_jit(lambda inducing, kernel, x: Kuu(inducing, kernel).solve(x))
    print(f"\n### Kuu made and solved with, M = {2 * F + 1} for each function\n\n| kernel | ms |\n|---|---|")
    for name, (inducing, kernel) in cases.items():
        x = jnp.ones((Kuu(inducing, kernel).size, 1))
        jax.block_until_ready(solve(inducing, kernel, x))
        arrays, static = eqx.partition((inducing, kernel), eqx.is_array)
        compiled = jax.jit(lambda arrays, x, static=static: Kuu(*eqx.combine(arrays, static)).solve(x))
        jax.block_until_ready(compiled(arrays, x))
        times = []
        for _ in range(200):
            start = time.perf_counter()
            jax.block_until_ready(compiled(arrays, x))
            times.append(time.perf_counter() - start)
        print(f"| {name} | {median(times):.2f} |", flush=True)


def outputs(M: int, B: int, counts: list[int]) -> None:
    """Steps of a coregionalised model."""
    random = np.random.default_rng(0)
    N, L = 20_000, 2
    X = random.normal(size=(N, 4))
    runs = {}
    for P in counts:
        W = random.normal(size=(P, L))
        Y = np.sin(X @ random.normal(size=(4, L))) @ W.T + 0.1 * random.normal(size=(N, P))
        kernel = mc.kernels.LinearCoregionalisation([mc.kernels.RBF(2.0), mc.kernels.RBF(1.5)], W)
        q = mc.Sparse(mc.GP(kernel), mc.inducing.Shared(mc.inducing.Points(X[:M])))
        model = mc.Model(q, mc.likelihoods.Gaussian(0.1))
        runs[P] = Run(model, mc.objectives.ELBO(), (X, Y), ADAM, batch_size=B, every=50)
    states, times = {P: run.start() for P, run in runs.items()}, {P: [] for P in runs}
    with quiet_blas():
        for repeat in range(8):
            for P, run in runs.items():
                start = time.perf_counter()
                states[P], _ = run.chunk(states[P], 50)
                if repeat:  # the first compiles
                    times[P].append((time.perf_counter() - start) / 50)
    print(f"\n### SVGP step, linear coregionalisation with latent points, M = {M}, B = {B}, L = {L}\n")
    print("| P | ms | times the first | M^3 L + B M^2 L + B P L, times the first |\n|---|---|---|---|")
    base, model_base = statistics.median(times[counts[0]]), M**3 * L + B * M**2 * L + B * counts[0] * L
    for P in counts:
        predicted = (M**3 * L + B * M**2 * L + B * P * L) / model_base
        print(f"| {P} | {median(times[P]):.2f} | {statistics.median(times[P]) / base:.2f} | {predicted:.2f} |")


def main() -> None:
    """Prints the three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=int, default=200_000)
    arguments = parser.parse_args()
    features_and_points(arguments.data, 201, 100, 2)
    solves(5_000)
    outputs(100, 1000, [2, 4, 8, 16, 32, 64])


if __name__ == "__main__":
    main()
