"""Make the peers' virtual environments from PyPI: `python benchmarks/setup_peers.py [gpflow gpytorch gpjax gpfy gpflux]`."""

import subprocess
import sys
import venv

from peers import PEERS, peers_folder


def main(names: list[str]) -> None:
    for name in names or list(PEERS):
        folder = peers_folder() / name
        if not (folder / "bin" / "python").exists():
            venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", *PEERS[name]], check=True)
        print(f"{name}: {folder}")


if __name__ == "__main__":
    main(sys.argv[1:])
