"""Models of tables: what is held out, what is predicted, and that a model is a file."""

import dataclasses
import os
import subprocess
import sys

import equinox as eqx
import jax
import numpy as np
import pytest

import mercer as mc
from mercer.io.tables import TableError, read_table
from mercer.tabular import table_model
from mercer.tabular.table_model import Problem, TableModel
from mercer.tabular.training import Settings

RNG = np.random.default_rng(0)
N = 60
QUICK = Settings(steps=3, num_inducing=10)
COLUMNS = {
    "a": RNG.normal(size=N),
    "b": RNG.normal(size=N) + np.where(np.arange(N) % 7 == 0, np.nan, 0.0),
    "kind": np.array(["x", "y", "z"], dtype=object)[np.arange(N) % 3],
}
NUMBER = 100.0 + 10.0 * np.sin(2.0 * COLUMNS["a"]) + RNG.normal(size=N)
TARGETS = {
    "regression": NUMBER,
    "binary": np.where(NUMBER > 100.0, "yes", "no"),
    "multiclass": np.array(["low", "middle", "high"])[np.digitize(NUMBER, [95.0, 105.0])],
    "counts": RNG.poisson(np.exp(0.5 + 0.5 * COLUMNS["a"])),
}


def table(task="regression", **changes):
    return read_table(COLUMNS | {"target": TARGETS[task]} | changes)


def fit(task, **options):
    return TableModel.fit(table(task), "target", task=task, settings=QUICK, **options)


@pytest.fixture(scope="module")
def model():
    return fit("regression")


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], name)


class TestProblem:
    """What is decided before training."""

    @pytest.mark.parametrize("num, share, held", [(29, 0.1, 0), (30, 0.1, 6), (99, 0.1, 19), (100, 0.1, 20)])
    def test_how_many_rows_are_held_out(self, num, share, held):
        a = np.arange(float(num))
        assert Problem.of({"a": a, "y": a + 0.5}, "y", holdout=share).num_held == held

    @pytest.mark.parametrize(
        "num, share, held", [(300, 0.1, 30), (300, 0.5, 150), (300, 0.0, 0), (150_000, 0.1, 10_000)]
    )
    def test_of_many(self, num, share, held):
        a = np.arange(float(num))
        problem = Problem.of({"a": a, "y": a + 0.5}, "y", holdout=share)
        assert problem.num_held == held
        assert sorted(problem.X[:, 0]) == a.tolist()
        np.testing.assert_array_equal(problem.y, problem.X[:, 0] + 0.5)

    def test_columns_are_described_by_the_rows_for_training(self):
        held = [Problem.of(table(), "target", settings=QUICK).y[-6:].tolist() for _ in range(2)]
        assert held[0] == held[1]  # the seed decides
        rare = COLUMNS["kind"].copy()
        rare[np.isin(NUMBER, held[0])] = "only in rows held out"
        problem = Problem.of(table(kind=rare), "target", settings=QUICK)
        assert not any("held out" in feature for feature in problem.columns.features)
        assert Problem.of(table(), "target", settings=dataclasses.replace(QUICK, seed=1)).y[-6:].tolist() != held[0]

    def test_every_class_is_among_the_rows_for_training(self):
        y = np.array(["often"] * 95 + ["a", "b", "c", "d", "e"])
        for seed in range(10):
            problem = Problem.of({"a": np.arange(100.0), "y": y}, "y", settings=Settings(seed=seed))
            assert set(problem.y[: -problem.num_held]) == set(range(6))

    def test_rows_without_a_target_are_left_out(self):
        y = np.where(np.arange(N) < 10, np.nan, NUMBER)
        problem = Problem.of(table(target=y), "target")
        assert len(problem.y) == 50 and "10 rows are left out, as 'target' is missing there" in problem.notes

    def test_exclude(self):
        problem = Problem.of(table(), "target", exclude=["b", "kind"])
        assert problem.columns.used == ("a",)

    @pytest.mark.parametrize(
        "target, options, message",
        [
            ("taget", {}, "no column 'taget'; did you mean 'target'"),
            ("target", {"exclude": ["kinds"]}, "no column 'kinds'; did you mean 'kind'"),
            ("target", {"exclude": ["target"]}, "'target' is among the columns that are excluded"),
            ("target", {"exclude": ["a", "b", "kind"]}, "no column to predict from"),
            ("target", {"task": "counts"}, "no count"),
        ],
    )
    def test_refusals(self, target, options, message):
        with pytest.raises(TableError, match=message):
            Problem.of(table(), target, **options)

    def test_a_target_with_two_columns(self, tmp_path):
        (tmp_path / "t.csv").write_text("a,y,y\n1,2,3\n4,5,6\n")
        with pytest.raises(TableError, match="more than one column 'y', the target; rename"):
            Problem.of(tmp_path / "t.csv", "y")

    def test_the_method(self):
        a = np.arange(2100.0)
        few, many = ({"a": a[:num], "y": a[:num] + 0.5} for num in (2000, 2100))
        large = {"a": np.arange(2500.0), "y": np.arange(2500.0) + 0.5}
        # What is exact on the rows for training is exact on all of them, so that scores are of what is saved.
        assert Problem.of(few, "y").settings.max_exact == 2000
        assert Problem.of(many, "y").settings.max_exact == 2100
        assert Problem.of(large, "y").settings.max_exact == 0 and "sparse" in Problem.of(large, "y").method
        assert "classes" in Problem.of(table("binary"), "target").method
        with pytest.raises(TableError, match="too many rows"):
            huge = np.arange(30_000.0)
            Problem.of({"a": huge, "y": huge + 0.5}, "y", settings=Settings(max_exact=10**9))


class TestRegression:
    def test_predictions(self, model):
        predicted = model.predict(table())
        assert list(predicted) == ["mean", "std", "lower", "upper"]
        assert all(len(values) == N and np.isfinite(values).all() for values in predicted.values())
        assert (predicted["lower"] < predicted["mean"]).all() and (predicted["mean"] < predicted["upper"]).all()
        narrow = model.predict(table(), level=0.5)
        assert (narrow["upper"] - narrow["lower"] < predicted["upper"] - predicted["lower"]).all()
        assert 80.0 < predicted["mean"].mean() < 120.0
        with pytest.raises(ValueError, match="level"):
            model.predict(table(), level=1.0)

    def test_the_target_is_not_looked_at(self, model):
        without = read_table({name: COLUMNS[name] for name in ("kind", "b", "a")})
        assert_same(model.predict(without), model.predict(table(target=-NUMBER)))

    def test_slices(self, model, monkeypatch):
        strange = table(kind=np.array(["x"] * 59 + ["new"], dtype=object))
        notes, sliced = [], []
        whole = model.predict(strange, notes=notes)
        monkeypatch.setattr(table_model, "_SLICE", 7)
        parts = model.predict(strange, notes=sliced)
        for name, values in whole.items():
            np.testing.assert_allclose(parts[name], values, rtol=1e-6)
        assert len(notes) == len(sliced) == 1
        assert "'new'" in notes[0] and sliced[0].startswith("from row 57 on, column 'kind'")

    def test_the_report(self, model):
        report = model.report
        assert report.num_rows == N and report.held_out.num_rows == 12 and report.version == mc.__version__
        assert report.held_out.methods == ("mercer", "linear", "mean")
        assert set(np.asarray(report.held_out.truth)) < set(NUMBER)
        assert any("'b'" in note and "missing" in note for note in report.notes)
        assert report.points.shape == (0, 2)

    def test_evaluation_on_other_rows(self, model):
        y = np.where(np.arange(N) < 40, np.nan, NUMBER)
        found = model.evaluate(table(target=y))
        assert found.num_rows == 20 and found.methods == ("mercer",)
        with pytest.raises(TableError, match="nothing can be scored"):
            model.evaluate(table(target=np.full(N, np.nan)))

    def test_it_is_a_file(self, model, tmp_path):
        mc.save(tmp_path / "m.mercer", model)
        loaded = mc.load(tmp_path / "m.mercer")
        assert_same(loaded.predict(table()), model.predict(table()))
        assert jax.tree.structure(loaded) == jax.tree.structure(model)

    def test_an_exact_model_is_saved_with_its_factor(self, model, tmp_path, monkeypatch):
        without = eqx.tree_at(
            lambda m: m.predictor.model.posterior, model, model.predictor.posterior
        )  # as files once were
        mc.save(tmp_path / "with", model)
        mc.save(tmp_path / "without", without)
        expected = mc.load(tmp_path / "without").predict(table())

        def refuse(*_):
            raise AssertionError("factorised again")

        monkeypatch.setattr(mc.Conditioned, "cached", refuse)
        monkeypatch.setattr(mc.Conditioned, "_factorised", refuse)
        loaded = mc.load(tmp_path / "with")
        assert_same(loaded.predict(table()), expected)
        loaded.evaluate(table())
        assert loaded.predictor.exact and loaded.predictor.posterior.num_outputs == 1

    def test_precision_does_not_depend_on_the_process(self, model):
        with jax.enable_x64(False):
            again = fit("regression")
            assert again.report.held_out.values.dtype == "float64"
            for name, values in again.predict(table()).items():
                np.testing.assert_allclose(values, model.predict(table())[name], rtol=1e-6)

    def test_a_model_that_does_not_fit_together_is_refused(self, model):
        fewer = eqx.tree_at(lambda m: m.columns.encoders, model, model.columns.encoders[:1])
        with pytest.raises(ValueError, match="expects a Regression of them"):
            TableModel(fewer.columns, model.target, model.predictor, model.report)
        for changes in ({"task": "counts"}, {"classes": ("a", "b")}):
            with pytest.raises(ValueError, match="expects"):
                dataclasses.replace(model, target=dataclasses.replace(model.target, **changes))
        for changes in ({"methods": ("mercer",)}, {"scores": ("RMSE",)}):
            with pytest.raises(ValueError, match="values expects one for each of"):
                dataclasses.replace(model.report.held_out, **changes)

    def test_a_fresh_process_loads_it(self, model, tmp_path):
        mc.save(tmp_path / "m.mercer", model)
        source = "import sys, mercer; print(type(mercer.load(sys.argv[1])).__name__)"
        command = [sys.executable, "-c", source, str(tmp_path / "m.mercer")]
        assert subprocess.run(command, capture_output=True, text=True, timeout=120).stdout == "TableModel\n"


@pytest.mark.slow
def test_one_input_keeps_points_for_a_picture():
    model = TableModel.fit({"x": COLUMNS["a"][:20], "y": NUMBER[:20]}, "y", settings=QUICK)
    assert model.report.held_out is None
    assert sorted(map(tuple, np.asarray(model.report.points))) == sorted(
        zip(COLUMNS["a"][:20], NUMBER[:20], strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_classes(task):
    model = fit(task)
    labels = sorted(set(TARGETS[task]))
    assert model.target.classes == tuple(labels)
    predicted = model.predict(table())
    p = np.stack([predicted[f"p({label})"] for label in labels], axis=1)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    assert (predicted["prediction"] == np.array(labels)[p.argmax(axis=1)]).all()
    assert model.report.held_out.predicted.shape == (12, len(labels))
    assert "accuracy" in model.report.held_out.scores


@pytest.mark.slow
def test_counts():
    predicted = fit("counts").predict(table())
    assert (predicted["lower"] >= 0.0).all() and (predicted["upper"] == np.round(predicted["upper"])).all()
    assert (predicted["std"] > 0.0).all()


def test_a_run_that_is_cut_off_after_training_does_not_train_again(model, tmp_path, monkeypatch):
    """Training is over, the model is being conditioned on all rows: what was learned is in a file."""
    settings = dataclasses.replace(QUICK, checkpoint=tmp_path / "training")
    learn, said = table_model._learn, []

    class Cut(Exception):
        pass

    def cut(*args):
        raise Cut

    monkeypatch.setattr(table_model.Evaluation, "of", cut)
    with pytest.raises(Cut):
        Problem.of(table(), "target", settings=settings).solve()
    monkeypatch.undo()
    monkeypatch.setattr(table_model, "_learn", cut)
    made = Problem.of(table(), "target", settings=settings).solve(said.append)
    assert any(line.startswith("going on after training") for line in said)
    assert_same(made.predict(table()), model.predict(table()))
    assert os.listdir(tmp_path) == ["training.learned"]
    # Of other data, or damaged, it is of no use.
    for damage in (lambda: None, lambda: (tmp_path / "training.learned").write_bytes(b"damaged")):
        damage()
        with pytest.raises(Cut):
            Problem.of(table(target=NUMBER + 1.0), "target", settings=settings).solve()
    assert learn is not table_model._learn
