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
    needs_globe,
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


def region(**changes):
    """As `table`, but latitudes from 43 to 49 and longitudes from 4 to 16."""
    return table(lat=46.0 + LATITUDE / 30.0, lon=10.0 + LONGITUDE / 30.0) | changes


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


class TestWhereNumbersGoWrong:
    @pytest.mark.parametrize(
        ("lat", "lon", "globe"),
        [
            ([43.0, 49.0], [4.0, 16.0], False),
            ([-60.0, 60.0], [-90.0, 90.0], False),  # half of the globe, and no more
            ([-60.0, 60.0], [-90.0, 90.5], True),
            ([-20.0, -16.0], [179.0, -179.0], True),  # across the date line,
            ([-20.0, -16.0], [179.0, 181.0], False),  # which is no edge where it is written so
            ([49.0, 52.0], [359.0, 1.0], True),  # across the meridian of Greenwich, written from 0 to 360
            ([60.0, 75.0], [4.0, 16.0], False),
            ([60.0, 75.5], [4.0, 16.0], True),
            ([-76.0, -60.0], [4.0, 16.0], True),
        ],
    )
    def test_wide_or_near_a_pole(self, lat, lon, globe):
        columns = read_table({"lat": lat, "lon": lon})
        assert pairs_of_coordinates(columns, (), []) == [("lat", "lon")]
        assert needs_globe(columns, "lat", "lon") is globe
        # What is missing or infinite is nowhere.
        columns = read_table({"lat": [*lat, np.nan, np.inf], "lon": [*lon, -np.inf, np.nan]})
        assert needs_globe(columns, "lat", "lon") is globe

    def test_nothing_is_nowhere(self):
        assert not needs_globe(read_table({"lat": [np.nan, np.nan], "lon": [np.nan, np.nan]}), "lat", "lon")


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
        for places in ("auto", "flat"):
            fitted = TableModel.fit(data, "y", places=places, holdout=0.0, settings=Settings(steps=30))
            errors[places] = np.sqrt(np.mean((fitted.predict(new)["mean"] - truth) ** 2))
        assert errors["auto"] < 0.1 * np.std(table()["y"]) and errors["flat"] > 5.0 * errors["auto"], errors

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

    @pytest.mark.slow
    @pytest.mark.parametrize("task", ["sparse", "binary", "counts"])
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
        for options in ({"places": "flat"}, {"exclude": ["lat"]}, {"exclude": ["lon"]}):
            for data in (table(), region()):
                problem = Problem.of(data, "y", **options)
                assert problem.columns.pairs == () == problem.flat_pairs
        assert Problem.of(table(), "lat").columns.pairs == ()

    def test_what_places_can_be(self):
        with pytest.raises(ValueError, match=r"places expects one of .*'globe'.* got 'sphere'"):
            Problem.of(table(), "y", places="sphere")

    def test_plain_arrays_are_not_concerned(self):
        X = np.stack([LATITUDE, LONGITUDE], axis=1)
        made = regression(X, field(LATITUDE, LONGITUDE)[:, None], settings=QUICK)
        assert made.model.posterior.prior.kernel.kernels[0].lengthscale.shape == (2,)


class TestRegion:
    """Of a region, a latitude and a longitude are two numbers like others."""

    @pytest.mark.parametrize("missing", [0, 4])
    def test_as_columns_of_other_names(self, missing):
        lat = np.where(np.arange(N) < missing, np.nan, region()["lat"])
        problem = Problem.of(region(lat=lat), "y")
        other = Problem.of({"a": lat, "b": region()["lon"], "y": region()["y"]}, "y")
        assert problem.flat_pairs == (("lat", "lon"),) and problem.columns.pairs == () == other.flat_pairs
        assert problem.settings == other.settings and problem.num_held == other.num_held
        np.testing.assert_array_equal(problem.X, other.X)
        assert problem.columns.features == ("lat",) + ("lat is missing",) * bool(missing) + ("lon",)
        assert [note.replace("'lat'", "'a'") for note in problem.notes] == list(other.notes)

    def test_a_place_where_it_is_asked_for(self):
        problem = Problem.of(region(), "y", places="globe")
        assert problem.columns.pairs == (("lat", "lon"),) and problem.flat_pairs == ()

    def test_each_pair_by_itself(self):
        data = {"pickup_lat": region()["lat"], "pickup_lon": region()["lon"]} | table()
        problem = Problem.of(data, "y")
        assert problem.columns.pairs == (("lat", "lon"),) and problem.flat_pairs == (("pickup_lat", "pickup_lon"),)
        assert problem.columns.places == {"place (lat, lon)": (2, 3, 4)} and problem.settings.places == ((2, 3, 4),)

    def test_rows_held_out_or_without_a_target_count(self):
        """Whichever rows are drawn, the whole table decides."""
        for row in range(0, N, 30):
            lat = np.where(np.arange(N) == row, 80.0, region()["lat"])
            for y in (region()["y"], np.where(np.arange(N) == row, np.nan, region()["y"])):
                assert Problem.of(region(lat=lat, y=y), "y").columns.pairs == (("lat", "lon"),)

    def test_a_run_goes_on_with_what_it_began_with_only(self):
        """What the checkpoint of a run is known by: the same choice, whether by default or by name, and no other."""
        known = {places: Problem.of(region(), "y", places=places)._identity() for places in ("auto", "globe", "flat")}
        assert known["auto"] == known["flat"] == Problem.of(region(), "y")._identity() != known["globe"]


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
        both = table() | {"lat_2": region()["lat"], "lon_2": region()["lon"]}
        for file, columns in {"data.csv": table(), "region.csv": region(), "both.csv": both}.items():
            rows = np.stack([values[:40] for values in columns.values()], axis=1)
            np.savetxt(file, rows, delimiter=",", header=",".join(columns), comments="")

        def run(*arguments):
            with pytest.raises(SystemExit) as exit, jax.enable_x64(False):
                main(list(arguments))
            return exit.value.code, *capsys.readouterr()

        return run

    def test_a_place(self, run):
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

    def test_a_region(self, run):
        code, out, _ = run("fit", "region.csv", "-t", "y", "--steps", "2")
        why = "as they lie on one half of the globe and not near a pole"
        assert code == 0 and f"'lat' and 'lon': two numbers, {why} (--globe changes this)" in out
        assert "2 columns to predict from, as 2 features" in out
        code, out, _ = run("show", "region.mercer")
        assert code == 0 and "north" not in out and "place" not in out
        assert {"lat", "lon"} <= {line.split()[0] for line in out.splitlines() if line.split()}
        with open("new.csv", "w") as file:
            file.write("lat,lon\n46,10\n,10\n90.5,400\n")
        code, out, err = run("predict", "region.mercer", "new.csv")
        assert code == 0 and len(out.splitlines()) == 4
        assert err == (
            "  note: column 'lat': 1 of 3 values are missing, and none was in training; filled with its median there\n"
        )

    @pytest.fixture
    def said_before_training(self, run, monkeypatch):
        def interrupted(*args):
            raise KeyboardInterrupt

        monkeypatch.setattr("mercer.tabular.table_model._learn", interrupted)
        return lambda *options: run("fit", "both.csv", "-t", "y", *options)[1]

    @pytest.mark.parametrize(
        ("option", "places", "numbers", "features"),
        [([], 1, 1, 5), (["--globe"], 2, 0, 6), (["--flat"], 0, 0, 4)],
    )
    def test_two_pairs(self, option, places, numbers, features, said_before_training):
        out = said_before_training(*option)
        assert f"4 columns to predict from, as {features} features" in out and "changes nothing" not in out
        assert out.count("a place on the globe") == places and out.count("'lat_2' and 'lon_2': two numbers") == numbers

    def test_no_pair(self, said_before_training):
        out = said_before_training("--globe", "--exclude", "lon", "--exclude", "lon_2")
        assert "--globe changes nothing, as no two columns are a latitude and a longitude" in out

    def test_not_both_ways(self, run):
        code, out, err = run("fit", "nothing.csv", "-t", "y", "--globe", "--flat")
        assert code == 2 and out == "" and "--globe" in err and "--flat" in err and "nothing.csv" not in err
