"""Time mercer beside its peers: `python benchmarks/harness.py [svgp_step predict_cached]`.

One process per library (`workers/<library>.py`), each in its own environment, all alive at once and asked in turn, so
that only one computes at a time and a slow minute of the machine falls on all of them alike. A case is set up and
warmed in every worker; then each round asks every worker for one repeat of about half a second. The table shows the
median over the rounds, and mercer's ratio to the fastest peer of that median.

Other processes on the machine distort all of this, threaded libraries most: a repeat during which they took more than a
tenth of a core is done again (where /proc tells), up to a limit, and the notes say how many were kept nonetheless.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from peers import PEERS, python_of

HERE = Path(__file__).resolve().parent

# task -> its cases; M inducing points, batches of B, prediction at P points
TASKS = {
    "svgp_step": [{"M": 500, "B": 1024}, {"M": 500, "B": 8192}, {"M": 200, "B": 2048}, {"M": 100, "B": 256}],
    "predict_cached": [{"M": 500, "P": 10_000}],
    # L latent functions, P outputs; "points": all outputs at M points are inducing variables
    "multioutput_step": [
        *({"kind": "coregionalised", "M": 100, "B": 1000, "L": 2, "P": P} for P in (2, 8, 32, 64)),
        {"kind": "coregionalised", "M": 200, "B": 1000, "L": 5, "P": 7},
        {"kind": "separate", "M": 100, "B": 1000, "L": 7, "P": 7},
        {"kind": "shared", "M": 200, "B": 1000, "L": 7, "P": 7},
        {"kind": "points", "M": 50, "B": 200, "L": 2, "P": 3},
    ],
    # spherical harmonics of so many levels in nine dimensions, beside GPfY
    "vish_step": [{"levels": 4, "B": 2048}, {"levels": 4, "B": 16384}, {"levels": 5, "B": 2048}],
    "vish_pass": [{"levels": 4, "B": 2048}, {"levels": 5, "B": 2048}],
    # deep models beside GPflux: `python benchmarks/deep.py step`
    "deep_step": [{"layers": layers, "M": 256, "B": 1024} for layers in (2, 3)],
    "deep_predict": [{"layers": layers, "M": 256, "P": 10_000, "S": 10} for layers in (2, 3)],
}
# on an accelerator, with GPyTorch: `python benchmarks/harness.py --accelerator svgp_step`
ACCELERATOR_TASKS = {
    "svgp_step": [{"M": 500, "B": 1024, "dtype": "float64"}, {"M": 2000, "B": 8192, "dtype": "float32"}],
    "predict_cached": [{"M": 500, "P": 10_000, "dtype": "float64"}],
    "deep_step": [{"layers": layers, "M": 256, "B": 1024, "dtype": "float32"} for layers in (2, 3)],
}
OWN_PEER = {"vish": "gpfy", "deep": "gpflux"}  # of tasks whose names begin so, the peer that does these alone
SECONDS_PER_REPEAT = 0.5
DISTURBED = 0.1  # cores taken by others


class Worker:
    """A library in its own process, answering one JSON line for each that it is sent."""

    def __init__(self, library: str, python: Path, log):
        # Keep the folder of an editable or inherited installation out of the peers' environments.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH" or library == "mercer"}
        self.library = library
        self.process = subprocess.Popen(
            [str(python), "-m", f"workers.{library}"], cwd=HERE, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip

    def ask(self, **message) -> dict:
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        return json.loads(line) if line else {"error": "the worker died"}

    def repeat(self, k: int) -> float:
        """Seconds per step over k steps."""
        answer = self.ask(command="repeat", k=k)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["seconds"]

    def cpu_seconds(self) -> float:
        """Processor time that this process has used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.ask(command="close")
        self.process.stdin.close()
        self.process.wait(timeout=30)


def machine_seconds() -> float:
    """Processor time that all processes of this machine have used so far."""
    user_nice_system = Path("/proc/stat").read_text().split()[1:4]
    return sum(map(int, user_nice_system)) / os.sysconf("SC_CLK_TCK")


def others(worker: Worker, action):
    """The result of an action that only this worker should be busy with, and the cores that others took meanwhile."""
    if not Path("/proc/stat").exists():
        return action(), 0.0
    start, before = time.perf_counter(), machine_seconds() - worker.cpu_seconds()
    result = action()
    return result, (machine_seconds() - worker.cpu_seconds() - before) / (time.perf_counter() - start)


def timed(worker: Worker, k: int, patience: int) -> tuple[float, bool]:
    """Seconds per step, and whether others disturbed it, after at most `patience` attempts."""
    for _ in range(patience):
        time.sleep(0.02)  # lets the threads of the last worker go to sleep
        seconds, cores = others(worker, lambda: worker.repeat(k))
        if cores < DISTURBED:
            return seconds, False
        time.sleep(0.5)
    return seconds, True


def repeats(worker: Worker) -> int:
    """The number of steps that take about SECONDS_PER_REPEAT, after a warm-up."""
    worker.repeat(2)
    k = max(1, round(SECONDS_PER_REPEAT / worker.repeat(3)))
    return max(1, round(SECONDS_PER_REPEAT / worker.repeat(k)))


def measure(workers: list[Worker], case: dict, rounds: int, patience: int) -> tuple[dict, dict]:
    """Seconds per step of every round, and what the set-up said, by library."""
    told, steps, times = {}, {}, {}
    for worker in workers:
        told[worker.library] = {"disturbed": 0} | worker.ask(command="setup", case=case)
        if "error" not in told[worker.library]:
            steps[worker], times[worker.library] = repeats(worker), []
    for _ in range(rounds):
        for worker, k in steps.items():
            seconds, disturbed = timed(worker, k, patience)
            times[worker.library].append(seconds)
            told[worker.library]["disturbed"] += disturbed
    return times, told


def row(case: dict, times: dict, libraries: list[str]) -> str:
    """A line of the table: median milliseconds, with the quartiles in brackets."""
    medians = {library: statistics.median(t) for library, t in times.items()}
    cells = []
    for library in libraries:
        if library in times:
            low, _, high = (1e3 * t for t in statistics.quantiles(times[library], n=4))
            cells.append(f"{1e3 * medians[library]:.2f} ({low:.2f}-{high:.2f})")
        else:
            cells.append("-")
    peers = [t for library, t in medians.items() if library != "mercer"]
    ratio = f"{medians['mercer'] / min(peers):.2f}" if peers and "mercer" in medians else "-"
    name = ", ".join(f"{key}={value}" for key, value in case.items() if key != "task")
    return f"| {name} | {' | '.join(cells)} | {ratio} |"


def notes(case: dict, told: dict) -> list[str]:
    """What the workers said of a case, and whether their values agree."""
    name = ", ".join(f"{key}={value}" for key, value in case.items() if key != "task")
    lines = [
        f"- {name}, {lib}: {t.get('error') or t['note']}" for lib, t in told.items() if t.get("error") or t["note"]
    ]
    lines += [f"- {name}, {lib}: {t['disturbed']} repeats disturbed" for lib, t in told.items() if t["disturbed"]]
    values = {library: t["value"] for library, t in told.items() if t.get("value") is not None}
    if values and max(values.values()) - min(values.values()) > 1e-4 * max(map(abs, values.values())):
        lines.append(f"- {name}: THE VALUES DIFFER: {values}")
    return lines


def peers_of(tasks: list[str]) -> list[str]:
    """The libraries that do some tasks, beside mercer."""
    for prefix, own in OWN_PEER.items():
        if all(task.startswith(prefix) for task in tasks):
            return [own]
    return [library for library in PEERS if library not in OWN_PEER.values()]


def main(words: list[str] | None = None) -> None:
    """Runs the tasks that the words of a command name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = [task for task in TASKS if not task.startswith(tuple(OWN_PEER))]
    parser.add_argument("tasks", nargs="*", default=usual, help=f"of {list(TASKS)}")
    parser.add_argument("--accelerator", action="store_true", help="the cases for a GPU, with GPyTorch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--patience", type=int, default=20, help="attempts at a repeat that others disturb")
    parser.add_argument("--libraries", nargs="+", help="mercer, and the peers of the tasks")
    parser.add_argument("--cases", nargs="+", type=int, help="numbers of the cases of a task, from 0")
    parser.add_argument("--log", type=Path, default=None, help="a file for what the libraries print")
    arguments = parser.parse_args(words)

    tasks = ACCELERATOR_TASKS if arguments.accelerator else TASKS
    log = arguments.log.open("w") if arguments.log else subprocess.DEVNULL
    workers = []
    for library in arguments.libraries or ["mercer", *peers_of(arguments.tasks)]:
        python = python_of(library)
        if python is None:
            print(f"{library}: not installed, skipped (benchmarks/setup_peers.py installs it)", file=sys.stderr)
        else:
            workers.append(Worker(library, python, log))
    libraries = [worker.library for worker in workers]

    for task in arguments.tasks:
        print(f"\n### {task}, ms per step: median of {arguments.rounds} interleaved repeats (quartiles)\n")
        print(f"| case | {' | '.join(libraries)} | mercer / fastest peer |")
        print("|---" * (len(libraries) + 2) + "|")
        remarks = []
        for i in arguments.cases or range(len(tasks[task])):
            case = {"task": task} | tasks[task][i]
            times, told = measure(workers, case, arguments.rounds, arguments.patience)
            print(row(case, times, libraries), flush=True)
            remarks += notes(case, told)
        print("\n" + "\n".join(remarks))
    for worker in workers:
        worker.close()


if __name__ == "__main__":
    main()
