"""The wind over the whole globe, on the sphere and on a flat map: `python examples/global_field.py`.

500 places of a climatology of the wind in January, some 12 km above the ground, are in `data/wind.csv`; 100 of them are held out.
One model sees unit vectors, the other an RBF kernel of latitude and longitude as numbers. The maps have the date line in the
middle, where the strongest wind of the winter ends: the flat model breaks there, and at the poles, where all longitudes are
one place.
"""

import argparse
from pathlib import Path

import jax
import numpy as np
import optax

import mercer as mc
from mercer.harmonics import from_latlon
from mercer.kernels import RBF, Matern32, SphericalMatern32

HERE = Path(__file__).resolve().parent


def unit_vectors(places: np.ndarray) -> np.ndarray:
    """Places [N, 2] in degrees as points of the sphere, [N, 3]."""
    return np.asarray(from_latlon(places[:, 0], places[:, 1]))


def numbers(places: np.ndarray) -> np.ndarray:
    """Places [N, 2] in degrees as two numbers, in units of 45 degrees."""
    return places / 45.0


def wind_speeds(seed: int = 0):
    """Places [N, 2] and speeds [N, 1] in m/s: those to train on, and those held out."""
    table = np.loadtxt(HERE / "data" / "wind.csv", delimiter=",", skiprows=1)
    order = np.random.default_rng(seed).permutation(len(table))
    held_out, train = table[order[:100]], table[order[100:]]
    return (train[:, :2], train[:, 2:]), (held_out[:, :2], held_out[:, 2:])


def fitted(kernel: mc.kernels.Kernel, X: np.ndarray, Y: np.ndarray) -> mc.Model:
    """Exact regression, by marginal likelihood."""
    start = mc.Model(mc.GP(kernel, mc.means.Constant(float(Y.mean()))), mc.likelihoods.Gaussian(1.0))
    return mc.fit(start, mc.objectives.MarginalLikelihood(), (X, Y), optimiser=optax.lbfgs(), steps=60, every=60).model


def scores(model: mc.Model, X: np.ndarray, Y: np.ndarray) -> tuple[float, float]:
    """Root mean squared error and mean log density."""
    mean, variance = (np.asarray(part) for part in model.predict(X))
    log_density = -0.5 * (np.log(2.0 * np.pi * variance) + (Y - mean) ** 2 / variance)
    return float(np.sqrt(np.mean((Y - mean) ** 2))), float(np.mean(log_density))


def draw(path: Path, models: dict, places: np.ndarray) -> None:
    """Maps of the mean and of the standard deviation of the function, the date line in the middle."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    latitude, east = np.linspace(-90.0, 90.0, 91), np.linspace(0.0, 360.0, 181)
    grid = np.stack(np.meshgrid(latitude, east, indexing="ij"), axis=-1).reshape(-1, 2)
    turned = np.stack([grid[:, 0], (grid[:, 1] + 180.0) % 360.0 - 180.0], axis=1)  # as the data are written
    figure, axes = plt.subplots(len(models), 2, figsize=(10.0, 2.7 * len(models)), layout="constrained")
    for row, (name, (model, encode)) in zip(axes, models.items(), strict=True):
        mean, variance = (np.asarray(part)[:, 0] for part in model.posterior.predict(encode(turned)))
        panels = (("mean", mean, (0.0, 70.0)), ("standard deviation", np.sqrt(np.maximum(variance, 0.0)), (0.0, 8.0)))
        for axis, (title, values, (low, high)) in zip(row, panels, strict=True):
            picture = axis.pcolormesh(
                east, latitude, values.reshape(91, 181), vmin=low, vmax=high, cmap="viridis", shading="auto"
            )
            axis.plot(places[:, 1] % 360.0, places[:, 0], "w.", markersize=1)
            axis.set(title=f"{name}: {title}, m/s", xticks=range(0, 361, 60), yticks=range(-90, 91, 45))
            axis.set_xticklabels(["0", "60 E", "120 E", "180", "120 W", "60 W", "0"])
            figure.colorbar(picture, ax=axis)
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, default=Path("globe.png"), help="where the picture goes")
    arguments = parser.parse_args()

    jax.config.update("jax_enable_x64", True)
    (places, Y), (new_places, new_Y) = wind_speeds()
    on_sphere = SphericalMatern32(0.5, 200.0).on([0, 1, 2]) * Matern32(0.5).on(2)
    models = {
        "sphere": (fitted(on_sphere, unit_vectors(places), Y), unit_vectors),
        "flat RBF": (fitted(RBF([0.5, 0.5], 200.0), numbers(places), Y), numbers),
    }
    print(
        f"{'model':<10} {'RMSE':>7} {'log density':>12} {'jump at the date line':>23} {'spread at the north pole':>25}"
    )
    line = np.stack([np.linspace(-80.0, 80.0, 33), np.full(33, 180.0)], axis=1)
    pole = np.stack([np.full(36, 90.0), np.arange(-180.0, 180.0, 10.0)], axis=1)
    for name, (model, encode) in models.items():
        error, log_density = scores(model, encode(new_places), new_Y)
        west, east, around = (
            np.asarray(model.posterior.predict(encode(where)).mean) for where in (line * [1.0, -1.0], line, pole)
        )
        jump = np.sqrt(np.mean((west - east) ** 2))
        print(f"{name:<10} {error:7.3f} {log_density:12.3f} {jump:23.3f} {np.std(around):25.3f}")
    try:
        draw(arguments.plot, models, places)
        print(f"\npicture: {arguments.plot}")
    except ImportError:
        print("\nno picture: matplotlib is not installed (pip install 'mercer[plot]')")


if __name__ == "__main__":
    main()
