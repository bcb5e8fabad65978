"""Where the peers and the data are: one virtual environment per library, one folder of data sets.

The environments are made by `setup_peers.py` under `<repository>/.peers`, or lie in the folder that MERCER_PEERS names.
The data sets lie in the folder that MERCER_DATA names, else in `../shared/data` beside the repository.
"""

import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

# name of the peer -> what pip installs into its environment
PEERS = {
    "gpflow": ["gpflow", "tensorflow", "tf-keras"],
    "gpytorch": ["gpytorch", "torch==2.13.0"],
    "gpjax": ["gpjax"],
    "gpfy": ["gpfy"],
    "gpflux": ["gpflux==0.4.5", "tensorflow", "tf-keras"],  # runs with TF_USE_LEGACY_KERAS=1
}


def peers_folder() -> Path:
    """The folder that holds one virtual environment per peer."""
    return Path(os.environ.get("MERCER_PEERS", REPOSITORY / ".peers"))


def python_of(library: str) -> Path | None:
    """The interpreter that runs a library, None where it is not installed; mercer runs in the present one."""
    if library == "mercer":
        return Path(sys.executable)
    python = peers_folder() / library / "bin" / "python"
    return python if python.exists() else None


def data_folder() -> Path:
    """The folder of data sets."""
    return Path(os.environ.get("MERCER_DATA", REPOSITORY.parent / "shared" / "data"))
