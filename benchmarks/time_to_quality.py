"""Seconds to a test log-likelihood on kin8nm: `python benchmarks/time_to_quality.py [--target 1.18] [--seeds 0]`.

Runs `workers/<library>_kin8nm.py` of every library that has one, one after the other, and prints a table. Arguments
after `--` go to the workers, e.g. `-- --limit 60`.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from peers import PEERS, python_of

HERE = Path(__file__).resolve().parent


def race(library: str, target: float, seed: int, more: list[str]) -> dict:
    """What one worker printed."""
    command = [str(python_of(library)), "-m", f"workers.{library}_kin8nm", "--target", str(target), "--seed", str(seed)]
    done = subprocess.run([*command, *more], cwd=HERE, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"{library}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=float, default=1.18)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--libraries", nargs="+", default=["mercer", *PEERS])
    more = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    arguments = parser.parse_args(sys.argv[1 : len(sys.argv) - len(more) - bool("--" in sys.argv)])

    libraries = [lib for lib in arguments.libraries if (HERE / "workers" / f"{lib}_kin8nm.py").exists()]
    for library in [lib for lib in libraries if python_of(lib) is None]:
        print(f"{library}: not installed, skipped (benchmarks/setup_peers.py installs it)", file=sys.stderr)
        libraries.remove(library)
    results = {library: [] for library in libraries}
    for seed in arguments.seeds:
        for library in libraries:
            results[library].append(race(library, arguments.target, seed, more))

    print(f"### kin8nm, M = 500: seconds to a mean test log-likelihood of {arguments.target} (compilation included)\n")
    print("| library | seconds | steps | log-likelihood | settings |\n|---|---|---|---|---|")
    for library, runs in results.items():
        seconds = f"{statistics.median(r['seconds'] for r in runs):.1f}"
        if not all(r["reached"] for r in runs):
            seconds += " (not reached)"
        steps = statistics.median(r["steps"] for r in runs)
        level = statistics.median(r["log_likelihood"] for r in runs)
        hidden = ("target", "seed", "limit", "every")
        settings = ", ".join(f"{k} {v}" for k, v in runs[0]["settings"].items() if k not in hidden)
        print(f"| {library} | {seconds} | {steps:.0f} | {level:.3f} | {settings} |")
    print("\n" + json.dumps(results))


if __name__ == "__main__":
    main()
