"""On the CPU LAPACK is given one matrix at a time, so that no number of factorisations in a program can wait for each other.

Given more, jaxlib waits inside one of XLA's threads for others of them; two such calls at a time stop a process on two cores.
"""

import itertools
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from cases import mostly_slow
from mercer.linalg import (
    DiagonalPlusLowRank,
    eigh,
    fidelity,
    inverse_factor,
    inverse_root,
    kronecker_log_density,
    safe_cholesky,
    whitened_marginals,
    zero_mean_log_density,
)

CASES = {
    "cholesky": lambda A: safe_cholesky(A).factor,
    "inverse factor": inverse_factor,
    "inverse root": inverse_root,
    "eigenvalues": eigh,
    "fidelity": lambda A: fidelity(A, 2.0 * A),
    "density": lambda A: zero_mean_log_density(A, A[:, :2]),
    "kronecker density": lambda A: kronecker_log_density(A, A[:3, :3], A[:, :3]),
    "marginals": lambda A: whitened_marginals(A, A, A[0], jnp.tril(A)),
    "low rank, whitened": lambda A: DiagonalPlusLowRank(A[0] ** 2 + 1.0, A).whiten(A),
    "low rank, coloured": lambda A: DiagonalPlusLowRank(A[0] ** 2 + 1.0, A).colour(A),
    "low rank, solved": lambda A: DiagonalPlusLowRank(A[0] ** 2 + 1.0, A).solve(A),
    "low rank, determinant": lambda A: DiagonalPlusLowRank(A[0] ** 2 + 1.0, A).log_determinant(),
}


def most_matrices_in_a_call(function, A) -> int:
    """How many matrices the compiled program gives to LAPACK in a call at most."""
    calls = [
        line
        for line in jax.jit(function).lower(A).as_text().splitlines()
        if "lapack_" in line and "custom_call" in line
    ]
    batches = [shape.split("x")[:-3] for line in calls for shape in re.findall(r"tensor<([\dx]+xf\d+)>", line)]
    return max([1, *(int(size) for sizes in batches for size in sizes)])


def test_the_count_sees_a_batch():
    assert most_matrices_in_a_call(jnp.linalg.cholesky, jnp.zeros((7, 20, 20))) == 7


@pytest.mark.parametrize(
    ("case", "M"),
    mostly_slow(
        itertools.product(CASES, [3, 20, 70]), *((case, 20) for case in CASES), ("cholesky", 3), ("cholesky", 70)
    ),
)
def test_also_under_vmap_and_differentiated(case, M):
    def total(A):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(CASES[case](A)))

    A = jnp.zeros((5, M, M))
    assert most_matrices_in_a_call(jax.vmap(CASES[case]), A) == 1
    assert most_matrices_in_a_call(jax.vmap(jax.value_and_grad(total)), A) == 1
    assert most_matrices_in_a_call(jax.vmap(jax.vmap(jax.grad(total))), A[None]) == 1


OBJECTIVE = """
import faulthandler, jax; jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
from mercer.linalg import inverse_factor, inverse_root, quiet_blas, safe_cholesky

def spread(X, scale):
    return jnp.exp(-0.5 * (X[:, :, None] - X[:, None]) ** 2 / scale**2) + 0.1 * jnp.eye(X.shape[1])

def objective(scales, X):
    first, second = spread(X, scales[0]), spread(X, scales[1])
    return jnp.sum(safe_cholesky(first).factor) + jnp.sum(inverse_factor(second) ** 2) + jnp.sum(inverse_root(first + second))

X = jax.random.normal(jax.random.key(0), (3, 6, {size}))
step = jax.jit(jax.vmap(jax.value_and_grad(objective), (None, 0))).lower(jnp.array([1.0, 2.0]), X).compile()
faulthandler.dump_traceback_later(30, exit=True)
with quiet_blas():
    for number in range(50):
        jax.block_until_ready(step(jnp.array([1.0, 2.0]) + 0.1 * number, X))
"""


@pytest.mark.parametrize(("size", "attempt"), mostly_slow(itertools.product([5, 60, 130], range(2)), (60, 0)))
def test_an_objective_of_ones_own_ends(size, attempt):
    """Independent factorisations of batches, twice in a step, under vmap, with their derivatives, in a process like a user's."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    program = OBJECTIVE.replace("{size}", str(size))
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, env=environment)
