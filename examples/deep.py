"""The pictures of docs/how-to/deep.md and conditional-densities.md: `python examples/deep.py`, a few minutes.

A step, and a path with stops in two outputs, by a sparse process and by a deep one; a density with two branches.
"""

from pathlib import Path

import equinox as eqx
import jax
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import optax

import mercer as mc

jax.config.update("jax_enable_x64", True)

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
RANDOM = np.random.default_rng(0)


def shallow(X: np.ndarray, outputs: int) -> mc.Model:
    """A sparse process."""
    Z = np.linspace(X.min(), X.max(), 30)[:, None]
    return mc.Model(
        mc.Sparse(mc.GP(mc.kernels.Matern52(0.5)), mc.inducing.Points(Z), outputs), mc.likelihoods.Gaussian(0.05)
    )


def deep(X: np.ndarray, outputs: int) -> mc.Model:
    """Two hidden layers, and as many outputs."""
    Z = np.linspace(X.min(), X.max(), 30)[:, None]

    def hidden():
        q = mc.Sparse(mc.GP(mc.kernels.RBF(0.5), mc.means.Linear(np.eye(1))), mc.inducing.Points(Z))
        return eqx.tree_at(lambda q: q.q_sqrt, q, 1e-2 * q.q_sqrt)

    last = mc.Sparse(mc.GP(mc.kernels.RBF(0.5)), mc.inducing.Points(Z), outputs)
    return mc.Model(mc.Deep([hidden(), hidden(), last], training_samples=5), mc.likelihoods.Gaussian(0.05))


def trained(model: mc.Model, X: np.ndarray, Y: np.ndarray) -> mc.Model:
    """By Adam, with a rate that falls."""
    optimiser = optax.adam(optax.cosine_decay_schedule(0.02, 3000))
    return mc.fit(model, mc.objectives.ELBO(), (X, Y), steps=3000, optimiser=optimiser, key=jax.random.key(0)).model


def step() -> None:
    """A jump."""
    X = np.sort(RANDOM.uniform(-2.0, 2.0, (120, 1)), axis=0)
    Y = np.where(X > 0.0, 1.0, -1.0) + 0.05 * RANDOM.normal(size=X.shape)
    grid = np.linspace(-2.3, 2.3, 400)[:, None]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    for axis, name, model in zip(axes, ("sparse", "deep, three layers"), (shallow(X, 1), deep(X, 1)), strict=True):
        fitted = trained(model, X, Y)
        low, middle, high = fitted.observations(grid).quantiles([0.05, 0.5, 0.95])[:, :, 0]
        axis.fill_between(grid[:, 0], low, high, alpha=0.3)
        axis.plot(grid, middle)
        axis.plot(X, Y, "k.", markersize=3)
        axis.set(title=name, xlabel="x")
        print(name, float(fitted.log_density(X, Y).mean()), float(mc.elbo(fitted, X, Y)))
    figure.tight_layout()
    figure.savefig(IMAGES / "deep-step.png", dpi=110)


def path() -> None:
    """Places of one who stands at corners of a path, and goes from one to the next in a fifth of the time."""
    corners = np.array([[0.0, 0.0], [2.0, 0.0], [2.0, 1.5], [0.5, 1.5], [0.5, 3.0], [3.0, 3.0]])
    starts = np.linspace(-2.0, 2.0, 7)[:-1]
    times, places = np.stack([starts, starts + 0.8 * 4.0 / 6.0], axis=1).ravel(), np.repeat(corners, 2, axis=0)
    X = np.sort(RANDOM.uniform(-2.0, 2.0, (250, 1)), axis=0)
    truth = np.stack([np.interp(X[:, 0], times, column) for column in places.T], axis=1)
    centre = truth.mean(axis=0)
    Y = truth - centre + 0.05 * RANDOM.normal(size=truth.shape)
    grid = np.linspace(-2.0, 2.0, 600)[:, None]
    figure, axes = plt.subplots(2, 2, figsize=(9, 5.5), sharex=True, sharey=True)
    for column, name, model in zip(axes.T, ("sparse", "deep, three layers"), (shallow(X, 2), deep(X, 2)), strict=True):
        fitted = trained(model, X, Y)
        low, middle, high = (each + centre for each in fitted.observations(grid).quantiles([0.05, 0.5, 0.95]))
        for output, axis in enumerate(column):
            axis.fill_between(grid[:, 0], low[:, output], high[:, output], alpha=0.3)
            axis.plot(grid, middle[:, output])
            axis.plot(X, Y[:, output] + centre[output], "k.", markersize=2)
        column[0].set(title=name)
        column[1].set(xlabel="time")
        print(name, float(fitted.log_density(X, Y).mean()), float(mc.elbo(fitted, X, Y)))
    figure.tight_layout()
    figure.savefig(IMAGES / "deep-path.png", dpi=110)


def branches() -> None:
    """A density with two branches that meet."""
    X = RANDOM.uniform(-2.0, 2.0, (400, 1))
    side = np.where(RANDOM.uniform(size=X.shape) < 0.5, 1.0, -1.0)
    Y = side * np.maximum(X, 0.0) ** 1.5 * 0.7 + 0.5 * np.sin(2.0 * X) + 0.1 * RANDOM.normal(size=X.shape)
    grid = np.linspace(-2.0, 2.0, 120)[:, None]
    Z = np.concatenate([RANDOM.uniform(-2.0, 2.0, (50, 1)), RANDOM.normal(size=(50, 1))], axis=1)
    q = mc.Sparse(mc.GP(mc.kernels.RBF([0.8, 0.8])), mc.inducing.Points(Z))
    encoder = eqx.nn.MLP(2, 2, 32, 2, activation=jax.nn.tanh, key=jax.random.key(0))
    latent = mc.Model(mc.Uncertain(q, mc.inputs.Amortised(encoder), num_samples=500), mc.likelihoods.Gaussian(0.05))
    plain = mc.Model(mc.Sparse(mc.GP(mc.kernels.RBF(0.8)), mc.inducing.Points(Z[:, :1])), mc.likelihoods.Gaussian(0.05))
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    values = np.linspace(-3.0, 3.0, 161)
    cases = (
        ("sparse", plain, mc.objectives.ELBO()),
        ("with a latent column", latent, mc.objectives.ImportanceWeighted(20)),
    )
    for axis, (name, model, objective) in zip(axes, cases, strict=True):
        optimiser = optax.adam(optax.cosine_decay_schedule(0.02, 4000))
        fitted = mc.fit(
            model, objective, (X, Y), steps=4000, batch_size=200, optimiser=optimiser, key=jax.random.key(1)
        ).model
        y = fitted.observations(grid).as_mixture()
        apart = (values[:, None, None] - y.means[None, :, :, 0]) ** 2 / y.covs[None, :, :, 0]
        density = np.mean(np.exp(-0.5 * apart) / np.sqrt(2.0 * np.pi * y.covs[None, :, :, 0]), axis=1)
        axis.pcolormesh(grid[:, 0], values, np.minimum(density, 2.0), cmap="Blues", shading="auto")
        axis.plot(X, Y, "k.", markersize=2)
        axis.set(title=f"{name}: {float(fitted.log_density(X, Y).mean()):.2f} nats a row", xlabel="x", ylim=(-3.0, 3.0))
        print(name, float(fitted.log_density(X, Y).mean()))
    figure.tight_layout()
    figure.savefig(IMAGES / "two-branches.png", dpi=110)


if __name__ == "__main__":
    step()
    path()
    branches()
