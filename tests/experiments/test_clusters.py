"""Clusters: what is handed to a queue, without one; and how many workers this machine gets."""

import os
import subprocess

import pytest
from test_sweep import EXACT

from mercer.experiments import ConfigurationError, Sweep
from mercer.experiments.clusters import Cluster, gpus, worker_environments


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "exact.yaml").write_text(EXACT)
    return tmp_path


def cluster_of(folder, text):
    return Sweep.of(f"experiment: exact.yaml\ngrid: {{seed: [0]}}\ncluster: {{{text}}}", folder=folder).blocks.cluster


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        (
            "slurm",
            ["#SBATCH -J mercer", "#SBATCH -p main", "#SBATCH -A me", "#SBATCH -t 02:00:00", "#SBATCH --gres=gpu:1"],
        ),
        ("pbs", ["#PBS -N mercer", "#PBS -q main", "#PBS -A me", "#PBS -l walltime=02:00:00", "#PBS --gres=gpu:1"]),
        ("lsf", ["#BSUB -J mercer", "#BSUB -q main", '#BSUB -P "me"', "#BSUB -W 02:00", "#BSUB --gres=gpu:1"]),
    ],
)
def test_job_scripts(folder, kind, lines):
    text = f"type: {kind}, jobs: 3, cores: 2, memory: 8GiB, queue: main, account: me, directives: ['--gres=gpu:1']"
    walltime = "02:00" if kind == "lsf" else "02:00:00"
    cluster = cluster_of(folder, f"{text}, walltime: '{walltime}', before: [module load python]")
    script = cluster.script()
    assert [line for line in lines if line not in script.splitlines()] == []
    before, _, worker = script.partition("distributed.cli.dask_worker")
    assert "module load python" in before and "export OPENBLAS_NUM_THREADS='1'" in before
    assert "export DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE='False'" in before
    # A worker ends before the queue would kill it.
    assert cluster.lifetime == 7200 - 360 and "--lifetime 6840s --lifetime-stagger 60s" in worker
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_kubernetes(folder):
    pytest.importorskip("dask_kubernetes")
    cluster = cluster_of(
        folder, "type: kubernetes, jobs: 5, memory: 8GiB, cores: 2, image: me/mercer, walltime: '01:00:00'"
    )
    worker = cluster.specification()["spec"]["worker"]
    assert worker["replicas"] == 5
    container = worker["spec"]["containers"][0]
    assert container["image"] == "me/mercer" and container["resources"]["limits"] == {"memory": "8Gi", "cpu": "2"}
    assert container["args"][:6] == ["dask", "worker", "--nthreads", "1", "--lifetime", "3420s"]
    assert "replicas: 5" in cluster.script()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("type: slrm", "cluster.type: expected 'slurm', 'pbs', 'lsf' or 'kubernetes', got 'slrm'"),
        ("type: slurm, jbs: 3", "cluster.jbs: unknown setting"),
        ("type: slurm, walltime: an hour", 'a time is written as "hours:minutes:seconds"'),
        ("type: slurm, jobs: 0", "cluster.jobs: expected greater than or equal to 1, got 0"),
    ],
)
def test_mistakes(folder, text, said):
    with pytest.raises(ConfigurationError) as caught:
        cluster_of(folder, text)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_short_jobs_end_in_time():
    for walltime in ("00:05:00", "00:30:00", "100:00:00"):
        cluster = Cluster(type="slurm", walltime=walltime)
        hours, minutes, seconds = map(int, walltime.split(":"))
        assert 60 <= cluster.lifetime <= 3600 * hours + 60 * minutes + seconds - 120


def test_workers_of_this_machine(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert gpus() == ["2", "5"]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in worker_environments(gpus())] == ["2", "5"]
    assert len(worker_environments(gpus(), workers=1)) == 1
    assert [each["CUDA_VISIBLE_DEVICES"] for each in worker_environments(gpus(), workers=3)] == ["2", "5", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus() == [] and len(worker_environments([])) == os.cpu_count()
    assert all(each["OPENBLAS_NUM_THREADS"] == "1" for each in worker_environments([], workers=3))
