"""What a sweep gave, in MLflow: a run for each cell, with its labels, scores, learning curves and configuration."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mercer.experiments.cells import Store
from mercer.experiments.results import Planned, flat_scores, learning_curves, read_plan

_NEEDED = "MLflow is not installed: pip install 'mercer[mlflow]'"
_TAG = "mercer.cell"
_STATUS = {"finished": "FINISHED", "failed": "FAILED"}
_MOST = 500  # metrics in one request; MLflow takes 1,000


def log_to_mlflow(folder: str | Path, sweep: str | None = None, *, uri: str | None = None) -> list[str]:
    """Logs the cells of a sweep that are finished or failed, each once; the hashes of those that were new.

    They are runs of an experiment with the name of the sweep. `uri` is that of the tracking server or folder, by default what
    MLflow takes itself (`MLFLOW_TRACKING_URI`). What was logged by halves, as the process ended, is deleted and logged again.
    """
    try:
        from mlflow import MlflowClient
    except ImportError as error:
        raise ImportError(_NEEDED) from error
    root = Path(folder)
    plan, store, client = read_plan(root, sweep), Store(root), MlflowClient(tracking_uri=uri)
    known = client.get_experiment_by_name(plan.name)
    experiment = client.create_experiment(plan.name) if known is None else known.experiment_id
    logged = set()
    for run in _runs(client, experiment):
        if run.info.status in _STATUS.values():
            logged.add((run.data.tags.get(_TAG), run.info.status))
        elif _TAG in run.data.tags:
            client.delete_run(run.info.run_id)
    left = [cell for cell in plan.cells if cell.state in _STATUS and (cell.identity, _STATUS[cell.state]) not in logged]
    for cell in left:
        _log(client, experiment, store, cell)
    return [cell.identity for cell in left]


def _runs(client: Any, experiment: str) -> Iterator[Any]:
    token = None
    while True:
        found = client.search_runs([experiment], page_token=token)
        yield from found
        token = found.token
        if not token:
            return


def _log(client: Any, experiment: str, store: Store, cell: Planned) -> None:
    from mlflow.entities import Metric, Param, RunTag

    now = 0  # the time of all metrics: MLflow wants one
    name = ", ".join(cell.labels.values())
    run = client.create_run(experiment, tags={_TAG: cell.identity, "mlflow.runName": name}).info.run_id
    client.log_batch(run, params=[Param(path, label) for path, label in cell.labels.items()])
    if cell.state == "failed":
        failure = store.failure(cell.identity)
        client.log_batch(run, tags=[RunTag("mercer.reason", failure["reason"])])
        client.log_text(run, failure["traceback"], "traceback.txt")
    else:
        folder = store.folder(cell.identity)
        metrics = [Metric(score, value, now, 0) for score, value in flat_scores(store, cell).items()]
        for stage, curve in learning_curves(folder).items():
            pairs = zip(curve["values"], curve["steps"], strict=True)
            metrics += [Metric(f"{stage} objective", float(value), now, int(step)) for value, step in pairs]
        for some in _parts(metrics, _MOST):
            client.log_batch(run, metrics=some)
        for file in ("configuration.yaml", "versions.json", "data.json"):
            client.log_artifact(run, str(folder / file))
    client.set_terminated(run, _STATUS[cell.state])


def _parts(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[i : i + size] for i in range(0, len(items), size)]
