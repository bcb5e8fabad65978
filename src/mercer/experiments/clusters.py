"""Where the workers of a sweep are: this machine, a cluster that runs already, or one of a queue or of Kubernetes.

In a sweep's file:

    cluster: {type: slurm, jobs: 20, cores: 2, memory: 8GiB, walltime: "02:00:00", queue: main}
    cluster: {type: kubernetes, jobs: 20, memory: 8GiB, image: registry/mercer, walltime: "02:00:00"}

Each job is one worker. It ends a little before its wall time, and another takes its place, which goes on with what it was doing.
`directives` are lines for the queue (`--gres=gpu:1`), `before` are commands before the worker (`module load python`), `options`
all else that `dask_jobqueue` takes.
"""

import contextlib
import itertools
import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

INSTALL = "sweeps need Dask: pip install 'mercer[sweeps]'"
_QUEUES = {"slurm": "SLURMCluster", "pbs": "PBSCluster", "lsf": "LSFCluster"}
# Workers are many: each computes in one thread. Without the option xla_cpu_multi_thread_eigen=false, which saves no time
# (measured), XLA's products round as in a process with many threads, and a small model has the numbers that it has there.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NPROC": "1",  # the threads of XLA's own pool
    "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "False",  # the setting below, for workers of a queue
}
_SETTINGS = {
    "distributed.scheduler.allowed-failures": 1_000_000,  # lost workers: what counts is written beside each cell
    "distributed.worker.daemon": False,
    # A worker that is paused until it is smaller waits for ever: it becomes so by its end alone.
    "distributed.worker.memory.pause": False,
    "distributed.worker.profile.enabled": False,  # it looks at the threads of a worker a hundred times a second
    "distributed.comm.timeouts.connect": "60s",
}


class Cluster(BaseModel):
    """The block `cluster` of a sweep."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    type: Literal["slurm", "pbs", "lsf", "kubernetes"]
    jobs: int = Field(1, ge=1)
    cores: int = Field(1, ge=1)
    memory: str = "4GiB"
    walltime: str = "01:00:00"
    queue: str | None = None
    account: str | None = None
    directives: list[str] = []
    before: list[str] = []
    image: str | None = None
    namespace: str | None = None
    options: dict[str, Any] = {}

    @field_validator("walltime")
    @classmethod
    def _is_a_time(cls, value: str) -> str:
        if not re.fullmatch(r"\d+:[0-5]\d(:[0-5]\d)?", value):
            raise ValueError('a time is written as "hours:minutes:seconds"')
        return value

    @property
    def lifetime(self) -> int:
        """Seconds after which a worker ends: a twentieth, and at least two minutes, before its wall time."""
        hours, minutes, *seconds = map(int, self.walltime.split(":"))
        wall = 3600 * hours + 60 * minutes + sum(seconds)
        return max(60, wall - max(120, wall // 20))

    def worker_arguments(self) -> list[str]:
        """Of the command of a worker. Workers that were started together do not end together."""
        return ["--lifetime", f"{self.lifetime}s", "--lifetime-stagger", f"{min(60, self.lifetime // 10)}s"]

    def open(self) -> Any:
        """The cluster of Dask."""
        if self.type == "kubernetes":
            return _kubernetes().KubeCluster(
                custom_cluster_spec=self.specification(), namespace=self.namespace, quiet=True
            )
        opened = self._queue()
        opened.adapt(minimum_jobs=self.jobs, maximum_jobs=self.jobs)  # a job for each that ended
        return opened

    def script(self) -> str:
        """What is handed to the queue for each job; for Kubernetes, the resource that is made."""
        if self.type == "kubernetes":
            import yaml

            return yaml.safe_dump(self.specification(), sort_keys=False)
        with self._queue() as opened:
            return opened.job_script()

    def specification(self) -> dict[str, Any]:
        """The resource of Kubernetes."""
        if self.image is None:
            raise ValueError("cluster: kubernetes needs an image")
        memory = self.memory.removesuffix("B")
        return _kubernetes().make_cluster_spec(
            name="mercer",
            image=self.image,
            n_workers=self.jobs,
            resources={
                "limits": {"memory": memory, "cpu": str(self.cores)},
                "requests": {"memory": memory, "cpu": str(self.cores)},
            },
            env=_ENVIRONMENT,
            worker_command=["dask", "worker", "--nthreads", "1", *self.worker_arguments()],
            **self.options,
        )

    def _queue(self) -> Any:
        try:
            import dask_jobqueue
        except ImportError as error:
            raise ImportError("cluster: pip install 'mercer[clusters]'") from error
        names = {"slurm": ("queue", "account"), "pbs": ("queue", "account"), "lsf": ("queue", "project")}[self.type]
        given = {
            name: value for name, value in zip(names, (self.queue, self.account), strict=True) if value is not None
        }
        exports = [f"export {name}='{value}'" for name, value in _ENVIRONMENT.items()]
        return getattr(dask_jobqueue, _QUEUES[self.type])(
            cores=self.cores,
            processes=1,
            memory=self.memory,
            walltime=self.walltime,
            job_extra_directives=list(self.directives),
            job_script_prologue=[*exports, *self.before],
            worker_extra_args=["--nthreads", "1", *self.worker_arguments()],
            job_name="mercer",
            scheduler_options={"dashboard_address": None},
            **given,
            **self.options,
        )


@contextlib.contextmanager
def client_of(cluster: Cluster | None, scheduler: str | None, workers: int | None, memory: str | None) -> Iterator[Any]:
    """A client of a scheduler that runs already, of a cluster, or of processes of this machine."""
    distributed = imported()
    import dask

    with dask.config.set(_SETTINGS), contextlib.ExitStack() as stack:
        if scheduler is not None:
            address = scheduler
        elif cluster is not None:
            address = stack.enter_context(cluster.open())
        else:
            address = stack.enter_context(_local(distributed, workers, memory))
        yield stack.enter_context(distributed.Client(address))


def _local(distributed: Any, workers: int | None, memory: str | None) -> Any:
    """Processes of this machine: by default one for each GPU where there are some, else one for each core."""
    environments = worker_environments(gpus(), workers)
    share = int(0.9 * distributed.system.MEMORY_LIMIT / len(environments))
    options = {"nthreads": 1, "memory_limit": memory or share, "silence_logs": 50}
    specification = {
        i: {"cls": distributed.Nanny, "options": {**options, "env": environment}}
        for i, environment in enumerate(environments)
    }
    scheduler = {
        "cls": distributed.Scheduler,
        "options": {"dashboard": False, "dashboard_address": ":0", "host": "127.0.0.1"},
    }
    return distributed.SpecCluster(workers=specification, scheduler=scheduler, silence_logs=50)


def worker_environments(devices: list[str], workers: int | None = None) -> list[dict[str, str]]:
    """The environment of each worker: a GPU for each, shared where there are more workers than GPUs, or one thread."""
    if devices:
        shared = itertools.islice(itertools.cycle(devices), workers or len(devices))
        return [{"CUDA_VISIBLE_DEVICES": device, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"} for device in shared]
    return [dict(_ENVIRONMENT) for _ in range(workers or os.cpu_count() or 1)]


def gpus() -> list[str]:
    """The numbers of the GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [device for device in visible.split(",") if device]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return re.findall(r"^GPU (\d+):", listed.stdout, re.MULTILINE)


def imported() -> Any:
    """The package distributed."""
    try:
        import distributed
        import distributed.system
    except ImportError as error:
        raise ImportError(INSTALL) from error
    return distributed


def _kubernetes() -> Any:
    try:
        from dask_kubernetes import operator
    except ImportError as error:
        raise ImportError("cluster: pip install 'mercer[clusters]'") from error
    return operator
