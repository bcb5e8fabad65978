"""Regression on Snelson's data, exact and sparse, beside two baselines: `python examples/regression.py`.

A quarter of the 200 points is held out. Every model predicts a Gaussian for each of them, and the table shows its error, the
log density that it gives to what was measured, and how often that lay inside the central 90 % interval.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax

import mercer as mc

HERE = Path(__file__).resolve().parent
Z90 = 1.6448536269514722  # 90 % of a standard normal lies within +-Z90


class Prediction(NamedTuple):
    """Means and variances of the held-out observations, [N, 1] each."""

    mean: np.ndarray
    variance: np.ndarray


def load(seed: int = 0):
    """(X, Y) to train on and (X, Y) held out."""
    table = np.loadtxt(HERE / "data" / "snelson.csv", delimiter=",", skiprows=1)
    order = np.random.default_rng(seed).permutation(len(table))
    test, train = table[order[:50]], table[order[50:]]
    return (train[:, :1], train[:, 1:]), (test[:, :1], test[:, 1:])


def polynomial(train, X, degree: int) -> Prediction:
    """Least squares on 1, x, ..., x^degree, with the spread of the residuals as its uncertainty."""
    X_train, Y_train = train
    weights = np.polyfit(X_train[:, 0], Y_train[:, 0], degree)
    residual = Y_train[:, 0] - np.polyval(weights, X_train[:, 0])
    variance = np.sum(residual**2) / (len(residual) - degree - 1)
    return Prediction(np.polyval(weights, X[:, 0])[:, None], np.full_like(X, variance))


def exact(train) -> mc.Model:
    """Exact regression: the parameters that make the marginal likelihood largest, by L-BFGS."""
    prior = mc.GP(mc.kernels.RBF(), mc.means.Constant(0.0))
    start = mc.Model(prior, mc.likelihoods.Gaussian(0.1))
    return mc.fit(start, mc.objectives.MarginalLikelihood(), train, optimiser=optax.lbfgs(), steps=40, every=40).model


def sparse(train) -> mc.Model:
    """Sparse variational regression with 15 inducing points, on minibatches of 50."""
    key = jax.random.key(0)
    kernel = mc.kernels.RBF()
    Z = mc.inducing.greedy_variance(train[0], kernel, 15)
    q = mc.Sparse(mc.GP(kernel, mc.means.Constant(0.0)), mc.inducing.Points(Z))
    start = mc.Model(q, mc.likelihoods.Gaussian(0.1))
    optimiser = mc.training.NaturalGradient(0.1, optax.adam(0.02))
    return mc.fit(start, mc.objectives.ELBO(), train, optimiser=optimiser, steps=600, batch_size=50, key=key).model


def scores(prediction: Prediction, Y) -> tuple[float, float, float]:
    """Root mean squared error, mean log density, and the share of Y inside the 90 % intervals."""
    mean, variance = np.asarray(prediction.mean), np.asarray(prediction.variance)
    squared = (Y - mean) ** 2
    log_density = -0.5 * (np.log(2.0 * np.pi * variance) + squared / variance)
    inside = squared <= Z90**2 * variance
    return float(np.sqrt(squared.mean())), float(log_density.mean()), float(inside.mean())


def plot(path: Path, train, test, models: dict[str, mc.Model]) -> None:
    """The data, and the mean and 90 % interval of each model."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    grid = np.linspace(-1.5, 7.5, 300)[:, None]
    figure, axes = plt.subplots(1, len(models), figsize=(5 * len(models), 3.5), sharey=True, squeeze=False)
    for axis, (name, model) in zip(axes[0], models.items(), strict=True):
        mean, variance = (np.asarray(part)[:, 0] for part in model.predict(grid))
        deviation = Z90 * np.sqrt(variance)
        axis.fill_between(grid[:, 0], mean - deviation, mean + deviation, alpha=0.2, label="90 % interval")
        axis.plot(grid[:, 0], mean)
        axis.plot(*train, "k.", markersize=3, label="training data")
        axis.plot(*test, "rx", markersize=4, label="held out")
        if isinstance(model.posterior, mc.Sparse):
            Z = np.asarray(model.posterior.inducing.Z)[:, 0]
            axis.plot(Z, np.full_like(Z, 1.9), "kv", markersize=4, label="inducing inputs")
        axis.set_title(name)
        axis.legend(fontsize=7, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, default=Path("demo.png"), help="where the picture goes")
    arguments = parser.parse_args()

    jax.config.update("jax_enable_x64", True)
    train, test = load()
    models = {"exact GP": exact(train), "sparse GP, M = 15": sparse(train)}
    predictions = {
        "baseline: constant": polynomial(train, test[0], 0),
        "baseline: cubic": polynomial(train, test[0], 3),
    }
    for name, model in models.items():
        predictions[name] = Prediction(*model.predict(test[0]))

    print(f"Snelson's data: {len(train[0])} points to train on, {len(test[0])} held out\n")
    print(f"{'model':<20} {'RMSE':>7} {'log density':>12} {'in 90 % interval':>17}")
    for name, prediction in predictions.items():
        error, log_density, coverage = scores(prediction, test[1])
        print(f"{name:<20} {error:7.3f} {log_density:12.3f} {coverage:16.0%}")

    try:
        plot(arguments.plot, train, test, models)
        print(f"\npicture: {arguments.plot}")
    except ImportError:
        print("\nno picture: matplotlib is not installed (pip install 'mercer[plot]')")


if __name__ == "__main__":
    main()
