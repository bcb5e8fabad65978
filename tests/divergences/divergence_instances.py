"""The divergences that the laws are tested on."""

from mercer.divergences import (
    KL,
    Bhattacharyya,
    Hellinger,
    Jeffreys,
    Renyi,
    ReverseKL,
    SquaredDifference,
    Wasserstein,
)

SCALAR = {
    "KL": KL(),
    "ReverseKL": ReverseKL(),
    "Jeffreys": Jeffreys(),
    "Renyi(0.01)": Renyi(0.01),
    "Renyi(0.5)": Renyi(0.5),
    "Renyi(0.9)": Renyi(0.9),
    "Renyi(1)": Renyi(1.0),
    "Bhattacharyya": Bhattacharyya(),
    "Hellinger": Hellinger(),
    "Wasserstein": Wasserstein(),
    "SquaredDifference": SquaredDifference(),
}
SYMMETRIC = ["Jeffreys", "Bhattacharyya", "Hellinger", "Wasserstein", "SquaredDifference"]
IN_UNITS = ["Wasserstein", "SquaredDifference"]  # all others do not change under a common affine map
INVARIANT = [name for name in SCALAR if name not in IN_UNITS]
