"""Runs of experiments: the same numbers as by hand, stages that are shared, and runs that go on after they were cut off."""

import json
import random
import re
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import optax
import polars
import pytest
from test_yaml import mutated

import mercer as mc
from cases import mostly_slow
from mercer.experiments import ConfigurationError, Experiment, json_schema, run, stage
from mercer.experiments.running import means_of_spans
from mercer.experiments.stages import rows_for

EXAMPLES = Path(__file__).parents[2] / "examples" / "experiments"
CURVE = """
name: a curve
data: {type: curve, number: 2, num: 100, noise: 0.3}
stages:
  prior: {type: select, kernel: {type: RBF, lengthscale: 0.3}, M: {type: Root, of: 2}, rounds: 2, steps: 20}
  posterior:
    type: fit
    model:
      type: Model
      posterior:
        type: GP
        kernel: {type: SparsePosterior, base: $prior.kernel, Z: $prior.Z}
        mean: {type: Network, module: {type: MLP, in_size: 1, out_size: 1, width_size: 5, depth: 1, activation: tanh, key: 7}}
      likelihood: {type: Gaussian, variance: $prior.noise}
    objective:
      type: GVI
      prior: {type: GP, kernel: $prior.kernel}
      risk: ExpectedNegativeLogLikelihood
      divergence: {type: Projected, divergence: {type: Renyi, alpha: 0.5}}
    optimiser: {type: adam, learning_rate: 0.01}
    steps: 30
    every: 10
    frozen: .posterior.kernel.Z
  tempered: {type: temper, model: $posterior.model}
scores: [nlpd, rmse, mae, coverage]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def outcome(folder):
    return run(Experiment.of(CURVE), folder)


def test_means_of_spans():
    values = np.arange(10.0)
    ends, means = means_of_spans(values, 20)
    assert ends.tolist() == list(range(1, 11)) and means.tolist() == values.tolist()
    ends, means = means_of_spans(values, 4)
    assert ends.tolist() == [2, 5, 7, 10] and means.tolist() == [0.5, 3.0, 5.5, 8.0]


def test_a_folder_with_everything(outcome):
    names = {path.name for path in outcome.folder.iterdir()}
    kept = {"model.mercer", "scores.json", "history.csv", "log.txt", "fit.png"}
    assert names == kept | {"configuration.yaml", "versions.json", "data.json"}
    assert outcome.done == ("prior", "posterior", "tempered")
    assert len((outcome.folder / "history.csv").read_text().splitlines()) == 31
    assert json.loads((outcome.folder / "versions.json").read_text())["mercer"] == mc.__version__
    assert json.loads((outcome.folder / "data.json").read_text())["rows"] == {"train": 64, "validation": 16, "test": 20}
    again = Experiment.read(outcome.folder / "configuration.yaml")
    assert again.hashes(again.load()) == json.loads((outcome.folder / "scores.json").read_text())["stages"]


def test_it_is_algorithm_3(outcome):
    curve = mc.experiments.from_yaml("{type: curve, number: 2, num: 100, noise: 0.3}")
    X, Y = curve.part("train")
    centre, scale = Y.mean(), Y.std()
    standard = {part: ((x - X.mean()) / X.std(), (y - centre) / scale) for part in ("train", "validation", "test")
                for x, y in [curve.part(part)]}  # fmt: skip
    module = eqx.nn.MLP(1, 1, 5, 1, jax.nn.tanh, key=jax.random.key(7))
    learned = mc.gvi.learn(
        *standard["train"],
        mc.kernels.RBF(0.3),
        mc.means.Network(module),
        M=8,
        rounds=2,
        steps=30,
        optimiser=optax.adam(0.01),
        validation=standard["validation"],
    )
    # which has 100 steps of L-BFGS in each round
    assert outcome.model.posterior.kernel.factor == pytest.approx(float(learned.model.posterior.kernel.factor), rel=0.2)
    X_test, Y_test = standard["test"]
    error = (Y_test - np.asarray(outcome.model.predict(X_test).mean)) * scale
    assert outcome.scores["test"]["rmse"] == pytest.approx(float(np.sqrt(np.mean(error**2))))
    density = float(np.mean(outcome.model.log_density(X_test, Y_test))) - np.log(scale)
    assert outcome.scores["test"]["nlpd"] == pytest.approx(-density)


def test_a_run_that_is_there_is_not_done_again(outcome, folder):
    again = run(Experiment.of(CURVE), folder)
    assert again.done == () and again.scores == outcome.scores and again.folder == outcome.folder


def test_stages_are_shared_by_their_content(outcome, folder):
    other = run(Experiment.of(CURVE, ["stages.posterior.optimiser.learning_rate=0.02", "name=other"]), folder)
    assert other.done == ("posterior", "tempered")
    renamed = run(Experiment.of(CURVE, ["name=third", "scores=[nlpd]"]), folder)
    assert renamed.done == () and renamed.folder != outcome.folder


def test_what_a_hash_depends_on():
    def hashes(*changes):
        experiment = Experiment.of(CURVE, changes)
        return experiment.hashes(experiment.load())

    first = hashes()
    assert first == hashes("name=other") == hashes("scores=[rmse]")
    assert set(first.values()).isdisjoint(hashes("seed=1").values())
    assert set(first.values()).isdisjoint(hashes("data.noise=0.31").values())
    assert set(first.values()).isdisjoint(hashes("precision=float32").values())
    later = hashes("stages.tempered.model=$posterior.model", "stages.posterior.steps=31")
    assert later["prior"] == first["prior"] and later["tempered"] != first["tempered"]


def test_a_run_that_was_cut_off_goes_on(outcome, tmp_path):
    def stop(line):
        if "step 20" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Experiment.of(CURVE), tmp_path, stop)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("a-curve") and path.suffix != ".partial"]
    lines = []
    resumed = run(Experiment.of(CURVE), tmp_path, lines.append)
    assert any(line.startswith("prior: read") for line in lines) and not any("step 10," in line for line in lines)
    assert resumed.scores == outcome.scores
    assert eqx.tree_equal(resumed.model, outcome.model)
    assert not list(tmp_path.glob("**/*.partial")) and not list(tmp_path.glob("**/*.checkpoint"))


def test_rows_at_random():
    X, Y = np.arange(20.0).reshape(10, 2), np.arange(10.0)[:, None]
    x, y = rows_for(4, X, Y, key=jax.random.key(0))
    assert x.shape == (4, 2) and np.array_equal(x[:, 0], 2.0 * y[:, 0]) and (np.diff(y[:, 0]) > 0.0).all()
    assert not np.array_equal(y, rows_for(4, X, Y, key=jax.random.key(1))[1])
    for all_of_them in (None, 10, 11):
        assert np.array_equal(rows_for(all_of_them, X, Y, key=jax.random.key(0))[0], X)
    with pytest.raises(ValueError, match="rows must be at least 1, got 0"):
        rows_for(0, X, Y, key=jax.random.key(0))


def test_a_stage_of_the_user(tmp_path):
    @stage
    def doubled(context, number: float = 1.0) -> float:
        return 2.0 * number

    text = CURVE.replace("  prior:", "  twice: {type: doubled, number: 0.15}\n  prior:", 1)
    text = text.replace("lengthscale: 0.3}", "lengthscale: $twice}")
    experiment = Experiment.of(text, ["stages.posterior.steps=2"])
    assert experiment.needs("prior") == ["twice"]
    assert run(experiment, tmp_path).done[0] == "twice"


class TestData:
    @pytest.fixture
    def table(self, tmp_path):
        rng = np.random.default_rng(0)
        frame = polars.DataFrame({"a": rng.normal(size=40), "b": rng.normal(size=40), "y": rng.normal(size=40)})
        frame.write_csv(tmp_path / "t.csv")
        frame.write_parquet(tmp_path / "t.parquet")
        rows = np.arange(40)
        np.savez(tmp_path / "t.npz", X=frame[["a", "b"]].to_numpy(), y=frame["y"].to_numpy(),
                 train=np.stack([rows[:30], rows[10:]]), test=np.stack([rows[30:], rows[:10]]))  # fmt: skip
        return tmp_path

    def load(self, *changes):
        return Experiment.of(CURVE, changes).load()

    def test_files_of_each_kind_hold_the_same(self, table):
        csv, parquet, npz = (
            self.load(f"data={{type: {kind}, path: {table}/t.{kind}{more}}}", "split={type: Split, seed: 3}")
            for kind, more in (("csv", ", target: y"), ("parquet", ", target: y"), ("npz", ""))
        )
        assert csv.fingerprint == parquet.fingerprint == npz.fingerprint
        assert [len(csv.data.part(part)[0]) for part in ("train", "validation", "test")] == [32, 4, 4]
        X, Y = csv.data.part("train")
        assert np.allclose(X.mean(axis=0), 0.0) and np.allclose(X.std(axis=0), 1.0) and np.allclose(Y.std(), 1.0)

    def test_parts_that_come_with_the_data(self, table):
        of_file = f"data={{type: npz, path: {table}/t.npz, train: train, test: test, number: 1}}"
        problem = self.load(of_file)
        assert list(problem.data.test) == list(range(10)) and len(problem.data.validation) == 0
        parted = self.load(of_file, "split={type: Split, validation: 0.2}").data
        assert list(parted.test) == list(range(10)) and len(parted.validation) == 6
        assert sorted([*parted.train, *parted.validation]) == list(range(10, 40))

    def test_a_folder_of_data(self, table, monkeypatch):
        monkeypatch.setenv("MERCER_DATA", str(table))
        assert self.load("data={type: csv, path: t.csv, target: y}").data.X.shape == (40, 2)
        with pytest.raises(ConfigurationError, match=f"there is no file u.csv or {table}/u.csv"):
            self.load("data={type: csv, path: u.csv, target: y}")

    def test_inputs_can_be_chosen(self, table):
        problem = self.load(f"data={{type: csv, path: {table}/t.csv, target: y, inputs: [b]}}", "standardise=[]")
        assert problem.data.X.shape == (40, 1) and np.array_equal(problem.data.Y, problem.original.Y)

    def test_single_precision(self):
        assert self.load("precision=float32").data.X.dtype == np.float32

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (
                "data={type: csv, path: nowhere.csv, target: y}",
                "there is no file nowhere.csv; the variable MERCER_DATA",
            ),
            ("data={type: csv, path: FOLDER/t.csv, target: z}", "has no column 'z'"),
            ("data={type: npz, path: FOLDER/t.npz, inputs: Z}", "has no array 'Z'; it has X, y, train, test"),
            ("data={type: npz, path: FOLDER/t.npz, train: train, number: 2}", "has splits 0 to 1, got number 2"),
            ("data.number=11", "number expects one of 1 to 10, got 11"),
            ("split={type: Split, test: 0.6, validation: 0.5}", "leave nothing to train on"),
            ("split={type: Split}", "split: the data come with rows for validation and for the test"),
        ],
    )
    def test_mistakes(self, table, change, said, monkeypatch):
        monkeypatch.delenv("MERCER_DATA", raising=False)
        with pytest.raises(ConfigurationError, match=re.escape(said)):
            self.load(change.replace("FOLDER", str(table)))


class TestMistakes:
    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (
                "stages.posterior.stps=3",
                "'stages.posterior.stps=3': stages.posterior.stps: unknown setting; did you mean 'steps'",
            ),
            ("stages.posteror.steps=3", "has no stages.posteror; did you mean 'posterior'?"),
            ("sed=3", "sed: unknown setting; did you mean 'seed'?"),
            ("seed=a", "seed: expected a valid integer, got 'a'"),
            ("seed=10000000000000000000", "seed: expected less than or equal to 9223372036854775807"),
            ("stages.posterior.model.posterior.mean.module.key=10000000000000000000", "key: expected less than or"),
            ("scores=[nlp]", "scores[0]: expected 'nlpd', 'rmse'"),
            ("precision=float16", "precision: expected 'float64' or 'float32', got 'float16'"),
            ("split=3", "split: expected a Split or null, got 3"),
            ("stages.tempered.model=$tempered.model", "stages.tempered.model: there is no $tempered here"),
            ("stages.prior.kernel=$posterior.model", "stages.prior.kernel: there is no $posterior here"),
            ("stages.X={type: make, value: 1}", "the name of a stage is a word, and none of X, Y, N, D, P"),
            ("stages={}", "at least one stage"),
            ("stages.prior.type=selct", "stages.prior.type: there is no 'selct' here; did you mean 'select'?"),
            ("nothing", "a change is written as key.path=value"),
        ],
    )
    def test_one_sentence(self, change, said):
        with pytest.raises(ConfigurationError) as caught:
            Experiment.of(CURVE, [change])
        assert said in str(caught.value) and "\n" not in str(caught.value)

    def test_the_last_stage_gives_a_model(self, tmp_path):
        text = CURVE[: CURVE.index("  posterior:")]
        with pytest.raises(ConfigurationError, match="the last stage gives no model, but Alternation"):
            run(Experiment.of(text), tmp_path)

    def test_what_a_stage_refuses_is_said_with_its_place(self, tmp_path):
        with pytest.raises(ConfigurationError, match=r"line 5: stages.prior: .*rounds must be at least 1"):
            run(Experiment.of(CURVE, ["stages.prior.rounds=0"]), tmp_path)

    def test_validation_needs_rows(self, tmp_path):
        changes = ["stages.posterior.validate=rmse", "stages.prior.rounds=1", "stages.prior.steps=1"]
        np.savez(tmp_path / "t.npz", X=np.linspace(0.0, 1.0, 30), y=np.arange(30.0))
        nothing = [f"data={{type: npz, path: {tmp_path / 't.npz'}}}", "split={type: Split, validation: 0.0}"]
        with pytest.raises(ConfigurationError, match="validate needs rows for validation, of which there are none"):
            run(Experiment.of(CURVE, [*changes, *nothing]), tmp_path)
        with pytest.raises(ConfigurationError, match=r"posterior.validate: expected .*'nlpd'.*, got 'nldp'"):
            Experiment.of(CURVE, ["stages.posterior.validate=nldp"])

    def test_what_standardisation_does_to_classes_is_said(self, tmp_path):
        changes = ["stages.posterior.model.likelihood=Bernoulli", "stages.prior.rounds=1", "stages.prior.steps=1"]
        with pytest.raises(ConfigurationError, match=r"Bernoulli: Y expects 0 or 1.*`standardise: \[X\]`"):
            run(Experiment.of(CURVE, changes), tmp_path)

    def test_mutated_files(self):
        source = random.Random(1)
        for _ in range(300):
            text = mutated(CURVE, source)
            try:
                Experiment.of(text)
            except ConfigurationError as error:
                assert "\n" not in str(error), text


def test_the_schema_has_what_can_be_named():
    found = json_schema()
    assert set(found["properties"]) >= {"name", "seed", "data", "split", "stages", "scores"}
    kernel = next(entry for name, entry in found["$defs"].items() if name.endswith("RBF") and "Spherical" not in name)
    assert set(kernel["properties"]) == {"type", "lengthscale", "variance"}
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("name", mostly_slow(["regulariser", "approximate"], "approximate"))
def test_the_examples_of_the_paper_run(name, tmp_path):
    changes = ["data.num=100", "stages.prior.rounds=1", "stages.prior.steps=5"]
    changes += ["stages.posterior.steps=20", "stages.posterior.every=10"] if name == "approximate" else []
    assert set(run(Experiment.read(EXAMPLES / f"{name}.yaml", changes), tmp_path).scores) == {
        "train",
        "validation",
        "test",
    }
