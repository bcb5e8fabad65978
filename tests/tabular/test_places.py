"""Places on the globe: which columns are one, and that a model of them knows neither a date line nor poles."""

import dataclasses

import jax
import numpy as np
import pytest

import mercer as mc
from mercer.cli import main
from mercer.harmonics.sphere import from_latlon
from mercer.io.tables import TableError, read_table
from mercer.tabular import (
    Columns,
    Inputs,
    Settings,
    TableModel,
    default_kernel,
    describe,
    pairs_of_coordinates,
    regression,
)
from mercer.tabular.table_model import Problem

RNG = np.random.default_rng(0)
N = 120
LATITUDE, LONGITUDE = np.degrees(np.arcsin(RNG.uniform(-1.0, 1.0, N))), RNG.uniform(-180.0, 180.0, N)
QUICK = Settings(steps=3, num_inducing=10)


def field(latitude, longitude):
    """A smooth function on the sphere, of which much happens at the date line and the poles."""
    x, y, z = np.asarray(from_latlon(latitude, longitude)).T
    return 10.0 + np.sin(3.0 * x) + 2.0 * np.sin(4.0 * y) + z**2 + np.cos(3.0 * (y + z))


def table(**changes):
    return {"lat": LATITUDE, "lon": LONGITUDE, "y": field(LATITUDE, LONGITUDE)} | changes


@pytest.fixture(scope="module")
def model():
    return TableModel.fit(table(day=RNG.uniform(size=N)), "y", settings=Settings(steps=15))


class TestWhichColumns:
    @pytest.mark.parametrize(
        "names",
        [
            [("lat", "lon")],
            [("Latitude", "LONGITUDE")],
            [("LAT", "LNG")],
            [("lat_deg", "long_deg")],
            [("pickupLatitude", "pickupLongitude")],
            [("pickup_latitude", "pickup_longitude"), ("dropoff_latitude", "dropoff_longitude")],
            [("lat1", "lon1"), ("lat 2", "lon 2")],
            [("GPSLat", "GPSLon")],
        ],
    )
    def test_by_their_names(self, names):
        notes = []
        columns = {name: values for a, b in names for name, values in ((a, LATITUDE), (b, LONGITUDE))}
        assert pairs_of_coordinates(read_table(columns), (), notes) == names and not notes

    @pytest.mark.parametrize(
        "names", [("a", "b"), ("flat", "salon"), ("start_lat", "end_lon"), ("lat", "x"), ("lat lon", "lon lat")]
    )
    def test_other_names(self, names):
        columns = dict(zip(names, (LATITUDE, LONGITUDE), strict=True))
        assert pairs_of_coordinates(read_table(columns), (), []) == []

    def test_excluded(self):
        assert pairs_of_coordinates(read_table(table()), ("lon",), []) == []

    @pytest.mark.parametrize("other", [np.ones(N), ["here", "there"] * (N // 2), np.full(N, np.nan)])
    def test_other_values(self, other):
        notes = []
        assert pairs_of_coordinates(read_table(table(lon=other)), (), notes) == [] == notes

    @pytest.mark.parametrize(("name", "value"), [("lat", 90.5), ("lat", -91.0), ("lon", 361.0), ("lon", -180.5)])
    def test_beyond_the_globe(self, name, value):
        columns, notes = table(), []
        columns[name] = np.append(columns[name][:-1], value)
        assert pairs_of_coordinates(read_table(columns), (), notes) == []
        (note,) = notes
        assert "'lat' and 'lon' are taken as numbers" in note and f"{name!r} holds {value:g} in row {N}" in note

    def test_the_whole_turn_and_the_poles_are_on_it(self):
        columns = read_table({"lat": [-90.0, 90.0, 0.0], "lon": [-180.0, 360.0, np.nan]})
        assert pairs_of_coordinates(columns, (), []) == [("lat", "lon")]

    def test_what_is_not_clear(self):
        notes = []
        assert pairs_of_coordinates(read_table(table(latitude=LATITUDE)), (), notes) == []
        assert "'lat' and 'latitude' and 'lon' are taken as numbers" in notes[0]


class TestFeatures:
    def test_unit_vectors(self):
        columns = Columns.describe(read_table(table(b=np.arange(N))), ("y",), [("lat", "lon")])
        assert columns.used == ("lat", "lon", "b") and columns.pairs == (("lat", "lon"),)
        assert columns.features == (*(f"place (lat, lon): {axis}" for axis in "xyz"), "b")
        assert columns.groups == {"place (lat, lon)": (0, 1, 2), "b": (3,)}
        X = columns.encode(read_table(table(b=np.arange(N), lon=LONGITUDE + np.where(LONGITUDE < 0.0, 360.0, 0.0))))
        np.testing.assert_allclose(X[:, :3], from_latlon(LATITUDE, LONGITUDE), atol=1e-14)

    def test_one_of_two_missing(self):
        some = read_table(
            table(lat=np.where(np.arange(N) < 2, np.nan, LATITUDE), lon=np.where(np.arange(N) == 2, np.inf, LONGITUDE))
        )
        columns, notes = Columns.describe(some, ("y",), [("lat", "lon")]), []
        assert columns.notes == (
            "place (lat, lon): 3 of 120 values are missing; filled with the mean place, with an indicator column",
        )
        X = columns.encode(some, notes=notes)
        np.testing.assert_array_equal(X[:, 3], np.arange(N) < 3)
        np.testing.assert_allclose(X[:3, :3], np.tile(X[3:, :3].mean(axis=0), (3, 1)))
        assert notes == []
        whole = Columns.describe(read_table(table()), ("y",), [("lat", "lon")])
        assert np.isfinite(whole.encode(some, notes=notes)).all() and "none was in training" in notes[0]

    def test_places_have_one_scale(self):
        X = np.concatenate(
            [from_latlon(46.0 + 0.1 * LATITUDE / 90.0, 8.0 + LONGITUDE / 1800.0), RNG.normal(size=(N, 1))], 1
        )
        A = Inputs.of(X, [(0, 1, 2)])(X)
        np.testing.assert_allclose(A[:, :3].var(axis=0).sum(), 2.0)
        distances = [np.linalg.norm(B[1:, :3] - B[:1, :3], axis=1) for B in (X, A)]
        np.testing.assert_allclose(distances[1] / distances[0], distances[1][0] / distances[0][0], rtol=1e-6)


class TestKernel:
    def test_turning_the_globe_changes_nothing(self):
        kernel = default_kernel(4, [(0, 1, 2)])
        other = RNG.normal(size=(N, 1))
        K, turned = (
            kernel(np.concatenate([from_latlon(LATITUDE, LONGITUDE + by), other], axis=1)) for by in (0.0, 123.0)
        )
        np.testing.assert_allclose(K, turned, atol=1e-12)
        assert not np.allclose(K, kernel(np.concatenate([from_latlon(0.5 * LATITUDE, LONGITUDE), other], axis=1)))

    def test_without_places_it_is_as_before(self):
        matern52, matern12, additive = default_kernel(3).kernels
        assert (type(matern52), type(matern12), type(additive)) == (
            mc.kernels.Matern52,
            mc.kernels.Matern12,
            mc.kernels.Additive,
        )
        assert matern52.lengthscale.shape == (3,)


class TestModel:
    def test_beside_a_flat_one_at_the_date_line_and_the_poles(self):
        """Trained without a strip along the date line and the caps, where the flat model has to extrapolate."""
        kept = (np.abs(LONGITUDE) < 165.0) & (np.abs(LATITUDE) < 75.0)
        data = {name: values[kept] for name, values in table().items()}
        new = {
            "lat": np.array([-60.0, -20, 0, 30, 50, 88, -88]),
            "lon": np.array([180.0, -180, 179, -179, 180, 20, 200]),
        }
        truth = field(new["lat"], new["lon"])
        errors = {}
        for flat in (False, True):
            fitted = TableModel.fit(data, "y", flat=flat, holdout=0.0, settings=Settings(steps=30))
            errors[flat] = np.sqrt(np.mean((fitted.predict(new)["mean"] - truth) ** 2))
        assert errors[False] < 0.1 * np.std(table()["y"]) and errors[True] > 5.0 * errors[False], errors

    def test_it_goes_around(self, model):
        one = model.predict({"lat": [10.0, 90.0], "lon": [-180.0, 12.0], "day": [0.3, 0.3]})
        two = model.predict({"lat": [10.0, 90.0], "lon": [180.0, -77.0], "day": [0.3, 0.3]})
        np.testing.assert_allclose(one["mean"], two["mean"])
        np.testing.assert_allclose(one["std"], two["std"])

    def test_it_is_a_file(self, model, tmp_path):
        mc.save(tmp_path / "m.mercer", model)
        loaded, new = mc.load(tmp_path / "m.mercer"), {"lat": [1.0, 2.0], "lon": [3.0, 4.0], "day": [0.0, 1.0]}
        np.testing.assert_array_equal(model.predict(new)["mean"], loaded.predict(new)["mean"])
        assert loaded.columns.pairs == (("lat", "lon"),)

    @pytest.mark.parametrize("task", ["sparse", "binary", pytest.param("counts", marks=pytest.mark.slow)])
    def test_other_models(self, task):
        y = {"sparse": field(LATITUDE, LONGITUDE), "counts": RNG.poisson(3.0, N), "binary": np.arange(N) % 2}[task]
        settings = dataclasses.replace(QUICK, max_exact=0) if task == "sparse" else QUICK
        made = TableModel.fit(table(y=y), "y", task="regression" if task == "sparse" else task, settings=settings)
        assert made.columns.pairs and not made.predictor.exact
        assert all(np.isfinite(values).all() for values in made.predict(table()).values() if values.dtype == float)

    @pytest.mark.parametrize(
        ("name", "value", "range_"), [("lat", -90.25, "latitudes are from -90 to 90"), ("lon", 400.0, "-180 to 360")]
    )
    def test_new_rows_beyond_the_globe(self, model, name, value, range_, monkeypatch):
        monkeypatch.setattr(mc.tabular.table_model, "_SLICE", 4)
        new = table(day=np.zeros(N))
        new[name] = np.where(np.arange(N) == 6, value, new[name])
        for use in (model.predict, model.evaluate):
            with pytest.raises(TableError, match=f"column '{name}' holds {value:g} in row 7, and .*{range_} degrees"):
                use(new)

    def test_held_out_rows_beyond_the_globe_make_it_flat(self):
        """Whichever rows are drawn, the whole table decides."""
        for row in range(0, N, 30):
            problem = Problem.of(table(lat=np.where(np.arange(N) == row, 99.0, LATITUDE)), "y")
            assert problem.columns.pairs == () and "taken as numbers" in problem.notes[0]

    def test_what_turns_it_off(self):
        for options in ({"flat": True}, {"exclude": ["lat"]}, {"exclude": ["lon"]}):
            assert Problem.of(table(), "y", **options).columns.pairs == ()
        assert Problem.of(table(), "lat").columns.pairs == ()

    def test_plain_arrays_are_not_concerned(self):
        X = np.stack([LATITUDE, LONGITUDE], axis=1)
        made = regression(X, field(LATITUDE, LONGITUDE)[:, None], settings=QUICK)
        assert made.model.posterior.prior.kernel.kernels[0].lengthscale.shape == (2,)


class TestInWords:
    def test_kernel(self, model):
        lines = describe.in_words(describe.kernel_of(model), 4, describe.labels(model))
        assert "place (lat, lon) in the plane of the equator" in lines[2]
        assert "of the other columns and place (lat, lon) towards the north" in lines[3]

    def test_lengthscales_are_angles(self, model):
        found = describe.shortest_lengthscales(model)
        assert list(found) == ["Matérn 5/2", "Matérn 1/2", "additive"]
        assert found["Matérn 5/2"]["place (lat, lon)"].count("°") == 2 and "°" not in found["Matérn 5/2"]["day"]
        plane = describe.kernel_of(model).kernels[0].kernels[0].kernel.lengthscale
        chord = float(plane * model.predictor.inputs.scale[0])
        east = found["Matérn 5/2"]["place (lat, lon)"].split("°")[0]
        assert chord > 2.0 or 2.0 * np.sin(np.radians(float(east)) / 2.0) == pytest.approx(chord, rel=0.01)
        assert found["additive"]["place (lat, lon)"].startswith("- / ")

    def test_the_place_is_relevant(self, model):
        assert describe.relevances(model)["place (lat, lon)"] > 0.9


class TestCommand:
    @pytest.fixture
    def run(self, capsys, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        names = ("lat", "lon", "y")
        rows = np.stack([table()[name][:40] for name in names], axis=1)
        np.savetxt("data.csv", rows, delimiter=",", header=",".join(names), comments="")

        def run(*arguments):
            with pytest.raises(SystemExit) as exit, jax.enable_x64(False):
                main(list(arguments))
            return exit.value.code, *capsys.readouterr()

        return run

    def test_says_so_and_can_be_told_otherwise(self, run):
        said = "'lat' and 'lon': a place on the globe, by their names and values (--flat changes this)"
        code, out, _ = run("fit", "data.csv", "-t", "y", "--steps", "2")
        assert code == 0 and said in out and "2 columns to predict from, as 3 features" in out
        code, out, _ = run("show", "data.mercer")
        assert code == 0 and "towards the north" in out and "to the east / to the north" in out
        with open("new.csv", "w") as file:
            file.write("lat,lon\n0,0\n90.5,0\n")
        code, out, err = run("predict", "data.mercer", "new.csv")
        assert code == 1 and out == ""
        assert err == (
            "mercer: new.csv: column 'lat' holds 90.5 in row 2, and latitudes are from -90 to 90 degrees; correct it\n"
        )
        code, out, _ = run("fit", "data.csv", "-t", "y", "--steps", "2", "--flat")
        assert code == 0 and "globe" not in out and "as 2 features" in out
        code, out, _ = run("show", "data.mercer")
        assert code == 0 and "north" not in out
