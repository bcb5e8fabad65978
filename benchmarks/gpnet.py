"""Inference networks by mirror descent: `python benchmarks/gpnet.py snelson | step | memory`.

- snelson: the picture of paper 002, Figure 2: SVGP, GPNet and FBNN with M points beside exact regression; 100 of the data,
  batches of 20; how far each is from it over the range of the data.
- step: milliseconds of a step with 2,000 features, 500 measurement and 500 data points, in float32.
- memory: tangent features of a module of a million parameters at 1,000 points.

Data: `MERCER_DATA`, else ../shared/data beside the repository.
"""

import argparse
import functools
import statistics
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import mercer as mc
from mercer.objectives import FBNN, MirrorDescent, measurement
from mercer.parameters import cast
from peers import data_folder

ADAM = optax.adam(3e-3)


def snelson(arguments) -> None:
    """100 of the data, hyperparameters of the marginal likelihood held fixed."""
    data = np.load(data_folder() / "oned" / "snelson.npz")
    X, y = (data[name].reshape(-1, 1)[::2].astype(float) for name in ("X", "y"))
    start = mc.Model(mc.GP(mc.kernels.RBF(0.6, 0.6)), mc.likelihoods.Gaussian(0.1))
    fitted = mc.fit(start, mc.objectives.MarginalLikelihood(), (X, y), steps=100, optimiser=optax.adam(0.05)).model
    prior, likelihood = mc.GP(fitted.posterior.prior.kernel), fitted.likelihood
    exact = mc.Conditioned(prior, X, y, likelihood.variance)
    box = functools.partial(measurement.Box, X.min() - 1.0, X.max() + 1.0)
    features = mc.features.RandomFourier.of(prior.kernel, arguments.frequencies, 1, key=jax.random.key(0))
    optimiser = optax.adam(optax.cosine_decay_schedule(3e-3, arguments.steps))
    options = {"steps": arguments.steps, "batch_size": 20, "optimiser": optimiser, "key": jax.random.key(1)}
    inside = np.linspace(X.min(), X.max(), 200)[:, None]
    truth, found = exact.predict(inside), {}
    print("| method | M | mean off by at most | standard deviation over exact, least, median, most | seconds |")
    print("|---|---|---|---|---|")
    for M in (2, 5, 20):
        Z = np.linspace(X.min(), X.max(), M + 2)[1:-1, None]
        sparse, network = mc.Sparse(prior, mc.inducing.Points(Z)), mc.Network(features)
        frozen = {"frozen": lambda model: [model.posterior.prior, model.likelihood]}
        methods = {
            "SVGP": (sparse, mc.objectives.ELBO(), frozen),
            "GPNet": (network, MirrorDescent(prior, box(M), beta=1.0, decay=0.1), {}),
            "FBNN": (network, FBNN(prior, box(M)), {}),
        }
        for name, (posterior, objective, more) in methods.items():
            begin = time.perf_counter()
            model = mc.fit(mc.Model(posterior, likelihood), objective, (X, y), **options, **more).model
            found[name, M] = model.posterior
            q, seconds = model.posterior.predict(inside), time.perf_counter() - begin
            ratio = np.sqrt(np.asarray(q.cov / truth.cov))
            spread = f"{ratio.min():.3f}, {np.median(ratio):.3f}, {ratio.max():.3f}"
            print(f"| {name} | {M} | {np.abs(q.mean - truth.mean).max():.4f} | {spread} | {seconds:.0f} |", flush=True)
    if arguments.figure:
        draw_snelson(X, y, exact, found, arguments.figure)


def draw_snelson(X, y, exact, found, path) -> None:
    import matplotlib.pyplot as plt

    picture, axes = plt.subplots(3, 3, figsize=(11.0, 7.5), sharex=True, sharey=True, layout="constrained")
    grid = np.linspace(X.min() - 1.5, X.max() + 1.5, 300)[:, None]
    mean, sd = (np.asarray(a)[:, 0] for a in (exact.predict(grid).mean, jnp.sqrt(exact.predict(grid).cov)))
    for row, name in zip(axes, ("SVGP", "GPNet", "FBNN"), strict=True):
        for ax, M in zip(row, (2, 5, 20), strict=True):
            q = found[name, M].predict(grid)
            middle, width = np.asarray(q.mean)[:, 0], 3.0 * np.sqrt(np.asarray(q.cov))[:, 0]
            ax.fill_between(grid[:, 0], middle - width, middle + width, alpha=0.25, lw=0.0)
            ax.plot(grid, middle, lw=1.5)
            for line in (mean, mean - 3.0 * sd, mean + 3.0 * sd):
                ax.plot(grid, line, "k--", lw=0.8)
            ax.plot(X, y, "k.", ms=3)
            ax.set(title=f"{name}, M = {M}", ylim=(-4.0, 4.0))
    picture.savefig(path, dpi=110)


def step_time(arguments) -> None:
    """One step of the conjugate form: value, gradient, Adam; and the same as one would write it down in JAX."""
    X = np.random.default_rng(0).normal(size=(5000, 8)).astype(np.float32)
    Y = np.sin(X[:, :1])
    kernel = mc.kernels.RBF(np.full(8, 2.0, np.float32))
    network = mc.Network(mc.features.RandomFourier.of(kernel, 1000, 8, key=jax.random.key(0)))
    objective = MirrorDescent(mc.GP(kernel), measurement.Data(500), 0.1)
    model = cast(mc.Model(network, mc.likelihoods.Gaussian(0.1)), np.float32)
    run = mc.training.run.Run(model, objective, (X, Y), ADAM, batch_size=500, every=50)
    ours, plain = run.start(), _plain_start(network, X, Y)
    times = {"mercer": [], "plain": []}
    for _ in range(8 if jax.default_backend() == "gpu" else 2):
        begin = time.perf_counter()
        ours, _ = run.chunk(ours, 50)
        middle = time.perf_counter()
        plain = jax.block_until_ready(_plain_steps(plain, X, Y))
        times["mercer"].append(1e3 * (middle - begin) / 50)
        times["plain"].append(1e3 * (time.perf_counter() - middle) / 50)
    for name, all_of_them in times.items():
        found = all_of_them[1:]  # the first compiles
        spread = f"{min(found):.2f} to {max(found):.2f}"
        print(
            f"{jax.devices()[0].device_kind}, {name}: {statistics.median(found):.2f} ms a step ({spread})", flush=True
        )


def _plain_start(network, X, Y):
    features = network.features
    params = {"frequencies": features.frequencies, "lengthscale": jnp.log(features.lengthscale)}
    params |= {"mean": network.q_mu[:, 0], "root": network.covariance.root[0]}
    params = jax.tree.map(lambda leaf: leaf.astype(np.float32), params)
    return params, ADAM.init(params), jax.random.key(0)


@jax.jit
def _plain_steps(state, X, Y):
    """50 steps of paper 002's equations (8) to (11), with explicit inverses and beta = 0.1."""
    beta, noise, M, B, N = 0.1, 0.1, 500, 500, len(X)

    def network_at(params, X):
        angles = (X / jnp.exp(params["lengthscale"])) @ params["frequencies"].T
        phi = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1) / len(params["frequencies"]) ** 0.5
        A = phi @ jnp.tril(params["root"])
        return phi @ params["mean"], A @ A.T + 1e-4 * jnp.eye(len(X))

    def loss(params, X, y):
        mean_q, Q = jax.lax.stop_gradient(network_at(params, X))
        squares = jnp.sum((X[:, None] - X) ** 2, axis=-1)
        P = jnp.exp(-squares / 8.0) + 1e-4 * jnp.eye(len(X))
        K = P @ jnp.linalg.inv(beta * Q + (1.0 - beta) * P) @ Q
        mean = (1.0 - beta) * K @ jnp.linalg.solve(Q, mean_q)
        gain = K[:M, M:] @ jnp.linalg.inv(K[M:, M:] + noise * B / (beta * N) * jnp.eye(B))
        target_mean, target = mean[:M] + gain @ (y - mean[M:]), K[:M, :M] - gain @ K[M:, :M]
        here, S = network_at(params, X[:M])
        off = target_mean - here
        ratio = jnp.linalg.slogdet(target)[1] - jnp.linalg.slogdet(S)[1]
        inverse = jnp.linalg.inv(target)
        return 0.5 * (jnp.sum(inverse * S) - M + off @ inverse @ off + ratio) / (beta * N)

    def step(state, _):
        params, moments, key = state
        key, rows, points = jax.random.split(key, 3)
        rows = jnp.concatenate([jax.random.choice(each, N, (500,), replace=False) for each in (points, rows)])
        gradient = jax.grad(loss)(params, X[rows], Y[rows[M:], 0])
        updates, moments = ADAM.update(gradient, moments)
        return (optax.apply_updates(params, updates), moments, key), None

    return jax.lax.scan(step, state, length=50)[0]


def memory(arguments) -> None:
    """Tangent features of a module: their covariance, its gradient, and variances alone; XLA's account of what they take."""
    module = eqx.nn.MLP(64, 1, 960, 2, key=jax.random.key(0))
    network = cast(mc.Network(mc.features.Tangent(module), covariance="diag"), np.float32)
    print(f"{network.features.num:,} parameters")

    def value(network, X, layout):
        return jnp.sum(network._predict(X, layout).cov)

    tasks = [("covariance", value, "inputs", 1000), ("its gradient", eqx.filter_grad(value), "inputs", 1000)]
    tasks += [("gradient of variances", eqx.filter_grad(value), "diag", number) for number in (1000, 2000, 4000, 8000)]
    for name, function, layout, number in tasks:
        X = jnp.asarray(np.random.default_rng(0).normal(size=(number, 64)), jnp.float32)
        taken = eqx.filter_jit(function).lower(network, X, layout).compile().compiled.memory_analysis()
        size = (taken.temp_size_in_bytes + taken.output_size_in_bytes) / 2**30
        print(f"{name}, {number:,} points: {size:.3f} GiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["snelson", "step", "memory"])
    parser.add_argument("--steps", type=int, default=10_000, help="of snelson")
    parser.add_argument("--frequencies", type=int, default=100, help="of snelson")
    parser.add_argument("--figure", type=Path, help="of snelson")
    arguments = parser.parse_args()
    if arguments.task == "snelson":
        jax.config.update("jax_enable_x64", True)
    {"snelson": snelson, "step": step_time, "memory": memory}[arguments.task](arguments)


if __name__ == "__main__":
    main()
