"""The pictures of docs/how-to/activated.md: `python examples/activated.py`, a minute or two."""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import optax

import mercer as mc
from mercer.covariances import Kuu
from mercer.inducing import Activated
from mercer.inducing.activations import Relu, Softplus
from mercer.kernels import ArcCosine, Homogeneous, SphericalArcCosine, SphericalMatern52

jax.config.update("jax_enable_x64", True)

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
LEVELS = (5, 10, 20, 40, 80)
GRID = np.linspace(-2.0, 2.0, 200)[:, None]

random = np.random.default_rng(1)
X = np.sort(random.uniform(-1.5, 1.5, (100, 1)), axis=0)
Y = np.sin(4.0 * X) + 0.1 * random.normal(size=X.shape)
angles = 2.0 * np.pi * (np.arange(20) + 0.5) / 20.0
W = np.stack([np.cos(angles), np.sin(angles)], axis=1)
collapsed = mc.objectives.CollapsedELBO()


def model(kernel, activation, levels):
    """A model with 20 units, their directions at equal distances."""
    variables = Activated(W, activation, levels)
    return mc.Model(mc.Sparse(mc.GP(kernel), variables), mc.likelihoods.Gaussian(0.01))


def draw(axes, posterior, title):
    """The data, the mean, and two standard deviations of the function to each side."""
    mean, variance = (np.asarray(values)[:, 0] for values in posterior.predict(GRID))
    axes.plot(X, Y, ".", color="0.6", markersize=3)
    axes.fill_between(
        GRID[:, 0], mean - 2.0 * np.sqrt(variance), mean + 2.0 * np.sqrt(variance), alpha=0.25, linewidth=0
    )
    axes.plot(GRID, mean)
    axes.set(title=title, xlabel="x", ylim=(-4.0, 4.0))


def save(figure, name):
    figure.savefig(IMAGES / f"{name}.png", dpi=90)
    print(name, (IMAGES / f"{name}.png").stat().st_size)


def truncation() -> None:
    """Norms of units in the space of the arc-cosine kernel, and the best posteriors with them."""
    kernel = ArcCosine(variance=10.0)
    figure, (left, *others) = plt.subplots(1, 4, figsize=(12, 3), layout="constrained")
    for activation in (Relu(), Softplus()):
        name = type(activation).__name__
        norms = [float(jnp.sqrt(Kuu(Activated(W[:1], activation, L), kernel).dense()[0, 0])) for L in LEVELS]
        left.plot(LEVELS, norms, "o-", label=name)
        print(name, np.round(norms, 3), [float(collapsed.bound(model(kernel, activation, L), X, Y)) for L in LEVELS])
    left.set(title="norm of a unit", xlabel="levels", ylim=(0.0, None))
    left.legend()
    for axes, activation, L in zip(others, (Relu(), Relu(), Softplus()), (10, 40, 40), strict=True):
        draw(axes, collapsed.posterior(model(kernel, activation, L), X, Y), f"{type(activation).__name__}, {L} levels")
    save(figure, "activated-truncation")


def spectra() -> None:
    """Softplus with a kernel that has its spectrum, and with one that has not; kernel, units and noise are trained."""
    kernels = {"ArcCosine": ArcCosine(variance=10.0), "Matern-5/2": Homogeneous(SphericalMatern52(1.0, 10.0))}
    figure, (left, *others) = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
    n = np.arange(14)
    for (name, kernel), axes in zip(kernels.items(), others, strict=True):
        eigenvalues = np.asarray(kernel.eigenvalues(2, len(n)))
        left.semilogy(n, np.where(eigenvalues > 0.0, eigenvalues, np.nan) / eigenvalues[0], "o", label=name)
        fitted = mc.fit(model(kernel, Softplus(), 20), collapsed, (X, Y), optimiser=optax.adam(0.02), steps=300).model
        bound = float(collapsed.bound(fitted, X, Y))
        draw(axes, collapsed.posterior(fitted, X, Y), f"{name}: bound {bound:.0f} nats")
    squares = Softplus().coefficients(2, len(n)) ** 2
    left.semilogy(
        n, np.where(squares > 0.0, squares, np.nan) / squares[0], "x", color="black", label="Softplus, squared"
    )
    left.set(title="spectra, in units of degree 0", xlabel="degree")
    left.legend()
    save(figure, "activated-spectra")


def heaviside() -> None:
    """Samples of the process of order 0 on the circle, and the covariance of L f with f, over many samples."""
    kernel = SphericalArcCosine(0)
    theta = 2.0 * np.pi * (np.arange(400) + 0.5) / 400 - np.pi
    circle = jnp.stack([jnp.cos(theta), jnp.sin(theta)], axis=1)
    # An exact draw at 400 angles: L f is a difference quotient plus a mean.
    root = np.linalg.cholesky(np.asarray(kernel(circle)) + 1e-10 * np.eye(400))
    h, places, normal = theta[1] - theta[0], np.array([100, 200, 300]), np.random.default_rng(0).normal
    covariance = 0.0
    for _ in range(10):
        f = root @ normal(size=(400, 20_000))
        u = 0.5 * np.pi * (f[places] - f[places - 1]) / h + f.mean(axis=0)
        covariance = covariance + f @ u.T / 200_000
    figure, panels = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
    panels[0].plot(theta, f[:, :4])
    panels[0].set(title="draws of f", xlabel="angle")
    panels[1].plot(theta, covariance, label=[f"{angle:.2f}" for angle in 0.5 * (theta[places] + theta[places - 1])])
    panels[1].set(title="Cov(L f, f)", xlabel="angle")
    panels[1].legend(title="at")
    save(figure, "activated-heaviside")


if __name__ == "__main__":
    truncation()
    spectra()
    heaviside()
