"""Fields on the globe: `python benchmarks/global_fields.py [SET ...]`.

For every set of the folder `sphere`, RMSE and mean log-likelihood (in the units of the target) on rows held out, of

- the library's kernels on the sphere, Matern 3/2, in a product with Matern 5/2 kernels of the other columns: exact, and for the
  large set 1024 spherical harmonics as inducing variables; and the same in a product with a kernel of how far north a place is,
  the third column of its unit vector;
- the same with latitude and longitude as numbers, each with its own lengthscale: RBF, and Matern 3/2; for the large set with
  1024 inducing points;
- `mercer fit` with no options, which finds the place, as every set goes around the globe, and with `--flat` (by
  `mercer.tabular.TableModel`).

The sets are subsampled: 800 rows for training (5000 of `etopo20`, all but a tenth of the earthquakes) and up to 1000 held out,
drawn uniformly by area where the set is a grid. Rows are held out twice: at random, and all within 10 degrees of the date line
or 15 degrees of a pole, where there are more than 50.
"""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402
import optax  # noqa: E402

import mercer as mc  # noqa: E402
from mercer.harmonics import from_latlon  # noqa: E402
from mercer.kernels import RBF, Matern32, Matern52, SphericalMatern32  # noqa: E402
from mercer.tabular import TableModel  # noqa: E402
from peers import data_folder  # noqa: E402

LBFGS = optax.lbfgs()


class Field(NamedTuple):
    """Places in degrees, other columns [N, D] with their names, and values."""

    name: str
    latitude: np.ndarray
    longitude: np.ndarray
    others: dict[str, np.ndarray]
    values: np.ndarray
    grid: bool = True
    num_train: int = 800

    def rows(self, some: np.ndarray) -> "Field":
        """The field at some rows."""
        others = {name: values[some] for name, values in self.others.items()}
        return self._replace(
            latitude=self.latitude[some], longitude=self.longitude[some], others=others, values=self.values[some]
        )

    def table(self) -> dict[str, np.ndarray]:
        """The columns of a table."""
        return {"latitude": self.latitude, "longitude": self.longitude, **self.others, "value": self.values}


def grid(name: str, data, values: np.ndarray, axes: dict[str, np.ndarray] | None = None, **options) -> Field:
    """The field of an array whose last axes are latitude and longitude, and whose first are those of `axes`."""
    axes = axes or {}
    *others, latitude, longitude = np.meshgrid(*axes.values(), data["lat"], data["lon"], indexing="ij")
    columns = {key: array.ravel().astype(float) for key, array in zip(axes, others, strict=True)}
    flat = (latitude.ravel().astype(float), longitude.ravel().astype(float), columns, values.ravel().astype(float))
    return Field(name, *flat, **options)


def fields() -> Iterator[Field]:
    """Every set, with one target."""

    def load(name):
        return np.load(data_folder() / "sphere" / f"{name}.npz")

    data = load("argo2016")
    latitude, longitude = data["latlon"].T.astype(float)
    day, temperature = data["day"].astype(float), data["Y"][:, 0].astype(float)
    yield Field("argo2016", latitude, longitude, {"day": day}, temperature, grid=False)
    data = load("era_interim_uvz")
    yield grid("era_interim_uvz", data, data["z"][0, 1])
    data = load("ncep_wind_climatology")
    speed = np.hypot(data["u"], data["v"])
    angle = 2.0 * np.pi * np.arange(12) / 12.0
    field = grid("ncep_wind_climatology", data, speed, {"season": angle})
    season = field.others["season"]
    yield field._replace(others={"season_sin": np.sin(season), "season_cos": np.cos(season)})
    data = load("earthquakes_usgs_week")
    latitude, longitude = data["latlon"].T.astype(float)
    others = {"depth": data["depth_km"].astype(float), "time": data["time_s"] - data["time_s"].min()}
    yield Field("earthquakes_usgs_week", latitude, longitude, others, data["magnitude"].astype(float), grid=False)
    data = load("etopo20")
    yield grid("etopo20", data, data["elevation_m"], num_train=5000)


def splits(field: Field) -> Iterator[tuple[str, Field, Field]]:
    """The rows for training and those held out, in two ways."""
    weights = np.cos(np.radians(field.latitude)) if field.grid else np.ones(len(field.values))
    weights = np.maximum(weights, 1e-6)
    most = len(field.values) if len(field.values) < 2000 else field.num_train + 1000
    count = min(len(field.values), most)
    some = np.random.default_rng(0).choice(len(field.values), count, replace=False, p=weights / weights.sum())
    held = count // 10 if count == len(field.values) else 1000
    yield "random", field.rows(some[held:]), field.rows(some[:held])
    edge = (np.abs((field.longitude % 360.0) - 180.0) < 10.0) | (np.abs(field.latitude) > 75.0)
    shuffled = np.random.default_rng(1).choice(len(edge), len(edge), replace=False, p=weights / weights.sum())
    inside, outside = shuffled[edge[shuffled]], shuffled[~edge[shuffled]]
    if len(inside) > 50:
        yield "edges", field.rows(outside[: field.num_train]), field.rows(inside[:1000])


def standardised(train: Field, test: Field, sphere: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """Inputs for training and held out, the place first; and how many columns are the place."""

    def place(field):
        if sphere:
            return np.asarray(from_latlon(field.latitude, field.longitude))
        return np.stack([field.latitude / 90.0, field.longitude / 90.0], axis=1)

    def inputs(field):
        others = [(field.others[name] - values.mean()) / values.std() for name, values in train.others.items()]
        return np.concatenate([place(field), *(column[:, None] for column in others)], axis=1)

    return inputs(train), inputs(test), 3 if sphere else 2


def library(train: Field, test: Field, kind, north: bool = False) -> tuple[float, float]:
    """A model of the library, by marginal likelihood, or by the collapsed bound where there are many rows."""
    X, X_test, num = standardised(train, test, kind is SphericalMatern32)
    kernel = kind(0.3) if num == 3 else kind([0.3, 0.3])
    if north:
        kernel = kernel.on(range(num)) * Matern32(0.3).on(2)
    if X.shape[1] > num:
        rest = range(num, X.shape[1])
        kernel = kernel.on(range(num)) * Matern52([1.0] * len(rest)).on(rest)
    centre, scale = train.values.mean(), train.values.std()
    Y = (train.values[:, None] - centre) / scale
    prior, likelihood = mc.GP(kernel, mc.means.Constant(0.0)), mc.likelihoods.Gaussian(0.05)
    if len(X) <= 2000:
        start, objective = mc.Model(prior, likelihood), mc.objectives.MarginalLikelihood()
    else:
        if num == 3 and not north:
            inducing = mc.inducing.SphericalHarmonics(3, 32)
        else:
            inducing = mc.inducing.Points(mc.inducing.kmeans(X, 1024, key=jax.random.key(0)))
        prior = mc.GP(kernel)  # with a mean of zero, sums over the data are taken once
        start, objective = mc.Model(mc.Sparse(prior, inducing), likelihood), mc.objectives.CollapsedELBO()
    steps = 60 if len(X) <= 2000 else 25
    frozen = (lambda m: m.posterior.inducing) if len(X) > 2000 else None
    fitted = mc.fit(start, objective, (X, Y), optimiser=LBFGS, steps=steps, every=steps, frozen=frozen).model
    mean, variance = (np.asarray(part)[:, 0] for part in fitted.predict(X_test))
    mean, variance = centre + scale * mean, scale**2 * variance
    squares = (test.values - mean) ** 2
    log_density = -0.5 * (np.log(2.0 * np.pi * variance) + squares / variance)
    return float(np.sqrt(squares.mean())), float(log_density.mean())


def command(train: Field, test: Field, flat: bool) -> tuple[float, float]:
    """What `mercer fit` gives, on the same rows."""
    places = "flat" if flat else "auto"
    model = TableModel.fit(train.table(), "value", task="regression", places=places, holdout=0.0)
    assert bool(model.columns.pairs) is not flat
    scores = dict(zip((found := model.evaluate(test.table())).scores, np.asarray(found.values)[0], strict=True))
    return float(scores["RMSE"]), float(scores["log-likelihood"])


MODELS = {
    "sphere": lambda train, test: library(train, test, SphericalMatern32),
    "sphere and north": lambda train, test: library(train, test, SphericalMatern32, north=True),
    "flat RBF": lambda train, test: library(train, test, RBF),
    "flat Matern 3/2": lambda train, test: library(train, test, Matern32),
    "mercer fit": lambda train, test: command(train, test, False),
    "mercer fit --flat": lambda train, test: command(train, test, True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", help="the names of sets; all by default")
    chosen = parser.parse_args().sets
    print("| set | held out | rows | score | " + " | ".join(MODELS) + " |")
    print("|---" * (4 + len(MODELS)) + "|")
    for field in fields():
        if chosen and field.name not in chosen:
            continue
        for how, train, test in splits(field):
            scores = [model(train, test) for model in MODELS.values()]
            rows = f"{len(train.values)} + {len(test.values)}"
            for name, values in zip(("RMSE", "log-likelihood"), zip(*scores, strict=True), strict=True):
                best = (min if name == "RMSE" else max)(values)
                cells = [f"**{v:.4g}**" if v == best else f"{v:.4g}" for v in values]
                print(f"| {field.name} | {how} | {rows} | {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
