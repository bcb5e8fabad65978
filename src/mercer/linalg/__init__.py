"""Linear algebra: structured positive definite operators, one safe factorisation, the fused path of a sparse posterior."""

from mercer.linalg.cholesky import JITTER, Cholesky, FactorisationError, inverse_factor, inverse_root, safe_cholesky
from mercer.linalg.densities import zero_mean_log_density
from mercer.linalg.eigen import eigh
from mercer.linalg.fidelity import fidelity
from mercer.linalg.kronecker_density import KroneckerPlusIdentity, kronecker_log_density
from mercer.linalg.marginals import marginals, whitened_marginals
from mercer.linalg.operators import PSD, BlockDiagonal, Dense, Diagonal, DiagonalPlusLowRank, Kronecker
from mercer.linalg.products import matmul, triangular_matmul, weighted_gram
from mercer.linalg.threads import quiet_blas

__all__ = [
    "JITTER",
    "PSD",
    "BlockDiagonal",
    "Cholesky",
    "Dense",
    "Diagonal",
    "DiagonalPlusLowRank",
    "FactorisationError",
    "Kronecker",
    "KroneckerPlusIdentity",
    "eigh",
    "fidelity",
    "inverse_factor",
    "inverse_root",
    "kronecker_log_density",
    "marginals",
    "matmul",
    "quiet_blas",
    "safe_cholesky",
    "triangular_matmul",
    "weighted_gram",
    "whitened_marginals",
    "zero_mean_log_density",
]
