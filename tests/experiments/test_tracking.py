"""What a sweep gave, in MLflow."""

import pytest

from mercer.experiments import Store, Sweep, log_to_mlflow, planned, results
from mercer.experiments.engine import run_cell

MODEL = """
data: {type: curve, number: 1, num: 40}
stages:
  model:
    type: fit
    model:
      type: Model
      posterior: {type: Sparse, prior: {type: GP, kernel: RBF}, inducing: {type: Points, Z: {type: kmeans, X: $X, M: 5}}}
      likelihood: Gaussian
    objective: ELBO
    steps: 300
"""


@pytest.fixture
def root(tmp_path):
    """Three cells: two finished, one failed."""
    (tmp_path / "model.yaml").write_text(MODEL)
    sweep = Sweep.of("name: seeds\nexperiment: model.yaml\ngrid: {seed: [0, 1, 2]}\n", folder=tmp_path)
    for cell in sweep.cells[:2]:
        run_cell(cell.experiment.document.value, "model", cell.identity, str(tmp_path / "runs"))
    Store(tmp_path / "runs").fail(sweep.cells[2].identity, "ValueError: no", "Traceback")
    planned(sweep, tmp_path / "runs", write=True)
    return tmp_path / "runs"


def test_each_cell_is_logged_once(root, tmp_path, monkeypatch, command):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    client = mlflow.MlflowClient(tracking_uri=uri)
    table = results(root)
    assert log_to_mlflow(root, uri=uri) == table["cell"].to_list()
    experiment = client.get_experiment_by_name("seeds").experiment_id
    runs = client.search_runs([experiment])
    assert sorted(run.info.status for run in runs) == ["FAILED", "FINISHED", "FINISHED"]
    for run in runs:
        row = next(row for row in table.iter_rows(named=True) if row["cell"] == run.data.tags["mercer.cell"])
        assert run.data.params == {"seed": row["seed"]}
        if run.info.status == "FINISHED":
            assert run.data.metrics["validation nlpd"] == row["validation nlpd"]
            curve = client.get_metric_history(run.info.run_id, "model objective")
            assert len(curve) == 200 and curve[-1].step == 300
            assert "configuration.yaml" in [file.path for file in client.list_artifacts(run.info.run_id)]
        else:
            assert run.data.tags["mercer.reason"] == "ValueError: no"
    # one that was cut off, and nothing else, is logged again
    client.create_run(experiment, tags={"mercer.cell": "half"})
    assert command("sweep", "mlflow", "--out", root, "--uri", uri)[:2] == (0, "0 cells logged\n")
    assert len(client.search_runs([experiment])) == 3
