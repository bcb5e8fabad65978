"""Inference networks by mirror descent: `python benchmarks/gpnet.py snelson | uci | flights | step | memory`.

- snelson: the picture of paper 002, Figure 2: SVGP, GPNet and FBNN with M points beside exact regression; 100 of the data,
  batches of 20; how far each is from it over the range of the data.
- uci: the paper's protocol: RBF prior, 1,000 frequencies, batches of 500, Adam (0.003), M measurement points. All splits of a set
  are trained at once, in float32. For a GPU. A line of JSON is appended to `--out` for each set and M; `--table FILE` shows them.
- flights: the paper's Table 1, on `flights_3m.npz`: SVGP and GPNet with M points; float32. For a GPU.
- step: milliseconds of a step with 2,000 features, 500 measurement and 500 data points, in float32.
- memory: tangent features of a module of a million parameters at 1,000 points.

Data: `MERCER_DATA`, else ../shared/data beside the repository.
"""

import argparse
import functools
import json
import statistics
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import mercer as mc
from mercer.objectives import FBNN, Batch, Context, MirrorDescent, measurement
from mercer.parameters import cast, constrain, trainable, unconstrain
from peers import data_folder
from uci import scores, split, with_errors

# name -> beta_0, xi, and when the prior is trained: "before", on 1,000 rows, "along" with the network, or "both"
SETS = {
    "bostonHousing": (1.0, 1.0, "before"),
    "concrete": (1.0, 1.0, "before"),
    "energy": (1.0, 1.0, "before"),
    "kin8nm": (1.0, 1.0, "before"),
    "power-plant": (0.01, 0.1, "along"),
    "wine-quality-red": (1.0, 1.0, "along"),
    "protein-tertiary-structure": (0.1, 0.1, "before"),
    "yacht": (1.0, 1.0, "before"),  # not in the paper
}
# RMSE and log-likelihood of the paper's Tables 3 and 4, with their standard errors, at M = 100 and 500
PAPER = {
    "bostonHousing": {100: (2.786, 0.142, -2.421, 0.049), 500: (2.754, 0.143, -2.429, 0.055)},
    "concrete": {100: (5.301, 0.127, -3.115, 0.024), 500: (5.050, 0.132, -3.066, 0.022)},
    "energy": {100: (0.493, 0.022, -1.060, 0.008), 500: (0.461, 0.014, -0.847, 0.013)},
    "kin8nm": {100: (0.080, 0.001, 1.095, 0.011), 500: (0.067, 0.000, 1.283, 0.005)},
    "power-plant": {100: (3.942, 0.032, -2.794, 0.007), 500: (3.898, 0.032, -2.783, 0.008)},
    "protein-tertiary-structure": {100: (4.540, 0.014, -3.057, 0.032), 500: (4.329, 0.013, -2.986, 0.029)},
    "wine-quality-red": {100: (0.614, 0.010, -0.917, 0.014), 500: (0.627, 0.009, -0.948, 0.014)},
}
# the log-likelihood of FBNN, as Sun et al. (2019) have it
FBNN_PUBLISHED = {"bostonHousing": -2.30, "concrete": -3.10, "energy": -0.68, "yacht": -1.03}
ADAM, PRETRAINING, LBFGS = optax.adam(3e-3), optax.adam(0.02), optax.lbfgs()


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


def pretrained(X, Y, seed, num):
    """A prior and a noise variance by the marginal likelihood of at most `num` rows, in float64."""
    rows = np.random.default_rng(seed).permutation(len(X))[:num]
    kernel = mc.kernels.RBF(np.full(X.shape[1], X.shape[1] ** 0.5))
    start = mc.Model(mc.GP(kernel), mc.likelihoods.Gaussian(0.1))
    data = X[rows], Y[rows]
    steps, optimiser = (1000, PRETRAINING) if num <= 1000 else (40, LBFGS)
    return mc.fit(start, mc.objectives.MarginalLikelihood(), data, steps=steps, optimiser=optimiser).model


def uci(arguments) -> None:
    """All splits of a set at once."""
    jax.config.update("jax_enable_x64", True)
    for name in arguments.sets:
        beta, decay, prior = SETS[name]
        prior = arguments.prior or prior
        splits = [split(name, number) for number in range(arguments.splits)]
        begin = time.perf_counter()
        learned = [
            pretrained(X, Y, seed, arguments.rows) if prior != "along" else None
            for seed, (X, Y, *_) in enumerate(splits)
        ]
        before = time.perf_counter() - begin
        for M in arguments.points:
            begin = time.perf_counter()
            mode = "fixed" if prior == "before" else arguments.hyperparameters
            rows = trained_at_once(splits, learned, M, beta, decay, mode, arguments)
            entry = {
                "set": name,
                "M": M,
                "prior": prior,
                "form": arguments.form,
                "falling": arguments.falling,
                "steps": arguments.steps,
                "scores": rows,
            }
            entry |= {"pretraining": before, "seconds": time.perf_counter() - begin}
            with arguments.out.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            show(entry)


def trained_at_once(splits, learned, M, beta, decay, mode, arguments):
    """RMSE and log-likelihood of each split."""
    dtype, D = np.float32, splits[0][0].shape[1]
    starts = []
    for seed, model in enumerate(learned):
        kernel = mc.kernels.RBF(np.full(D, D**0.5)) if model is None else model.posterior.prior.kernel
        noise = 0.1 if model is None else model.likelihood.variance
        features = mc.features.RandomFourier.of(kernel, arguments.frequencies, D, key=jax.random.key(seed))
        points = measurement.Data(M) if model is None else measurement.Convolved(kernel.lengthscale, M)
        conjugate = arguments.form == "closed"
        objective = MirrorDescent(mc.GP(kernel), points, beta, decay, mode, conjugate, arguments.jitter)
        starts.append(cast((mc.Model(mc.Network(features), mc.likelihoods.Gaussian(noise)), objective), dtype))
    X, Y = (jnp.asarray(np.stack([part[i] for part in splits]), dtype) for i in (0, 1))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *starts)
    free = eqx.filter_vmap(unconstrain)(stacked)
    params, fixed = eqx.partition(free, trainable(stacked))
    arrays, rest = eqx.partition(fixed, eqx.is_array)
    batch_size = min(500, X.shape[1])
    adam = optax.adam(optax.cosine_decay_schedule(3e-3, arguments.steps, 0.01)) if arguments.falling else ADAM

    def step(carry, number, arrays, X, Y, seed):
        params, state = carry
        key = jax.random.fold_in(jax.random.key(seed), number)
        whole = Batch(X, Y, complete=True)
        batch = whole.rows(jax.random.choice(key, len(X), (batch_size,), replace=False))

        def loss(params):
            model, objective = constrain(eqx.combine(params, arrays, rest))
            return objective.value_in_training(model, batch, Context(number, whole, None), key=key)[0]

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = adam.update(gradient, state)
        return (optax.apply_updates(params, updates), state), value

    @functools.partial(jax.jit, donate_argnums=0)
    def chunk(carry, first, arrays, X, Y):
        def body(carry, number):
            return jax.vmap(step, in_axes=(0, None, 0, 0, 0, 0))(carry, number, arrays, X, Y, jnp.arange(len(X)))

        return jax.lax.scan(body, carry, first + jnp.arange(arguments.every))

    carry = params, jax.vmap(adam.init)(params)
    for first in range(0, arguments.steps, arguments.every):
        begin = time.perf_counter()
        carry, values = chunk(carry, jnp.asarray(first), arrays, X, Y)
        values = np.asarray(values)
        took = 1e3 * (time.perf_counter() - begin) / arguments.every
        print(
            f"  M = {M}, step {first + arguments.every}: {np.mean(values[-100:]):.4f}, {took:.1f} ms a step", flush=True
        )
        if not np.isfinite(values).all():
            raise FloatingPointError("a loss is not finite")
    models, objectives = eqx.filter_vmap(constrain)(eqx.combine(carry[0], arrays, rest))
    variances = objectives.prior.kernel.variance, models.likelihood.variance
    print("  variances of prior and noise:", *(np.round(np.median(v), 4) for v in variances), flush=True)
    found = []
    for number, (_, _, X_test, y_test, units) in enumerate(splits):
        model = jax.tree.map(lambda leaf, number=number: leaf[number] if eqx.is_array(leaf) else leaf, models)
        found.append(scores(*model.predict(X_test.astype(dtype)), y_test, units))
    return found


def flights(arguments) -> None:
    """Table 1: 700,000 rows of three million to train on and 100,000 to test, taken at random; scores in minutes of delay.

    Adam's rate is 0.01 for all: with the paper's 0.003 neither method is near its end after 10,000 steps.
    """
    from sphere import flights_3m

    X, y = flights_3m()
    rows = np.random.default_rng(0).permutation(len(y))[:800_000]
    (X, X_test), (y, y_test) = (np.split(array[rows], [700_000]) for array in (X, y[:, None]))
    middle, scale, units = X.mean(axis=0), X.std(axis=0), (y.mean(), y.std())
    X, X_test, y = (X - middle) / scale, (X_test - middle) / scale, (y - units[0]) / units[1]
    # A prior of 1,000 rows, which hardly say anything, has noise 0.5 where 0.9 is right: all begin here, and are trained.
    kernel, noise, adam = mc.kernels.RBF(np.full(X.shape[1], 1.5), 0.2), 0.9, optax.adam(1e-2)
    X, y, X_test = (array.astype(np.float32) for array in (X, y, X_test))
    print(f"delay: standard deviation {units[1]:.2f} minutes; rows {len(X):,}, {len(X_test):,}")
    print("| method | M | RMSE | log-likelihood | seconds |\n|---|---|---|---|---|", flush=True)
    features = mc.features.RandomFourier.of(kernel, arguments.frequencies, X.shape[1], key=jax.random.key(0))
    for M in arguments.points:
        Z = mc.inducing.random_subset(X, M, key=jax.random.key(0))
        sparse = mc.Sparse(mc.GP(kernel), mc.inducing.Points(Z))
        mode, conjugate, jitter = arguments.hyperparameters, arguments.form == "closed", arguments.jitter or 1e-3
        descent = MirrorDescent(mc.GP(kernel), measurement.Data(M), 0.1, 0.1, mode, conjugate, jitter)
        methods = {
            "SVGP": (sparse, mc.objectives.ELBO(), adam),
            "GPNet": (mc.Network(features), descent, adam),
        }
        for name in arguments.methods or methods:
            posterior, objective, optimiser = methods[name]
            start = cast(mc.Model(posterior, mc.likelihoods.Gaussian(noise)), np.float32)
            begin = time.perf_counter()
            options = {"optimiser": optimiser, "steps": arguments.steps, "batch_size": 500, "every": 500}
            model = mc.fit(start, objective, (X, y), key=jax.random.key(1), **options).model.cached()
            seconds = time.perf_counter() - begin
            parts = [tuple(model.predict(part)) for part in np.split(X_test, 10)]
            mean, variance = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            error, density = scores(mean, variance, y_test, units)
            print(f"| {name} | {M} | {error:.3f} | {density:.3f} | {seconds:.0f} |", flush=True)


def show(entry) -> None:
    name, M, rows = entry["set"], entry["M"], entry["scores"]
    paper = PAPER.get(name, {}).get(M)
    published = " | " if paper is None else "{:.3f} ± {:.3f} | {:.3f} ± {:.3f}".format(*paper)
    cells = [name, M, entry.get("form", "closed"), len(rows), *with_errors(rows), published]
    cells += [FBNN_PUBLISHED.get(name, ""), round(entry["seconds"])]
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def table(paths) -> None:
    print(
        "| set | M | form | splits | RMSE | log-likelihood | paper, RMSE | paper, log-likelihood | FBNN, published | seconds |\n"
        + "|---" * 10
        + "|"
    )
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    for entry in sorted(lines, key=lambda entry: (entry["set"], entry["M"])):
        show(entry)


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
    parser.add_argument("task", choices=["snelson", "uci", "flights", "step", "memory"])
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS), metavar="SET")
    parser.add_argument("--points", type=int, nargs="*", default=[100, 500], help="M")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=500)
    parser.add_argument("--frequencies", type=int, default=None, help="1,000; of snelson 100")
    parser.add_argument("--methods", nargs="*", metavar="NAME", help="of flights; all by default")
    parser.add_argument(
        "--form", choices=["closed", "bound"], default="closed", help="at M points, or at the batch too"
    )
    parser.add_argument("--hyperparameters", choices=["online", "marginal"], default="marginal")
    parser.add_argument("--prior", choices=["before", "along", "both"], help="when it is trained; as in the paper")
    parser.add_argument("--rows", type=int, default=1000, help="of uci, that a prior is trained on before")
    parser.add_argument("--falling", action="store_true", help="uci: the rate of Adam falls along a cosine")
    parser.add_argument("--jitter", type=float, default=None)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--out", type=Path, default=Path("gpnet.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only the table of these files")
    arguments = parser.parse_args()
    if arguments.table:
        table(arguments.table)
        return
    if arguments.frequencies is None:
        arguments.frequencies = 100 if arguments.task == "snelson" else 1000
    if arguments.task == "snelson":
        jax.config.update("jax_enable_x64", True)
    {"snelson": snelson, "uci": uci, "flights": flights, "step": step_time, "memory": memory}[arguments.task](arguments)


if __name__ == "__main__":
    main()
