"""Spherical harmonics as inducing variables (VISH; Dutordoir, Durrande and Hensman, 2020; paper 001, section 3.2).

With H the function space of a zonal kernel, u_m = <f, phi_m>_H for harmonics phi_m. By the reproducing property the
covariance with f(x) is phi_m(x) itself, whatever the kernel's parameters, and that of the variables is diag(1 / lambda_m).
A homogeneous kernel has the features r^degree phi_m(u), which depend on its weight and bias variances alone.
"""

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from mercer.harmonics import SphericalHarmonics as Basis
from mercer.harmonics.gegenbauer import check_dimension, num_harmonics
from mercer.inducing.base import InducingVariables
from mercer.parameters import is_concrete

MOST_LEVELS = 256  # among which the largest eigenvalues are looked for


class SphericalHarmonics(InducingVariables):
    """u_m = <f, phi_m>_H, phi_m the spherical harmonics in R^d of degrees 0 to levels - 1, or of a sequence of degrees in
    its order.

    For a kernel `Homogeneous` on D columns d is D + 1: the bias is one more coordinate. `num` leaves only the first so
    many; `largest` chooses those with the largest eigenvalues. Levels whose eigenvalue is 0 under the kernel that they are
    used with are skipped.
    """

    free_of_inputs = True

    dimension: int = eqx.field(static=True)
    levels: tuple[int, ...] = eqx.field(static=True)
    num_functions: int = eqx.field(static=True)

    def __init__(self, dimension: int, levels: int | Sequence[int], num: int | None = None):
        basis = Basis(dimension, levels, num)
        self.dimension, self.levels, self.num_functions = basis.dimension, basis.levels, basis.num

    @classmethod
    def largest(cls, kernel: Any, dimension: int, num: int) -> "SphericalHarmonics":
        """The `num` harmonics with the largest eigenvalues under a kernel, level by level; of the last, as many as are left."""
        check_dimension(dimension)
        levels = 4
        while levels <= MOST_LEVELS:
            eigenvalues = np.where(kernel.vanishing(dimension, levels), 0.0, kernel.eigenvalues(dimension, levels))
            order = [int(n) for n in np.argsort(-eigenvalues, kind="stable") if eigenvalues[n] > 0.0]
            found = list(itertools.accumulate(num_harmonics(dimension, n) for n in order))
            taken = order[: sum(count < num for count in found) + 1]
            # Enough, and two levels above those taken have been looked at.
            if found and found[-1] >= num and max(taken) < levels - 2:
                return cls(dimension, taken, num)
            levels += 4
        raise ValueError(
            f"{type(kernel).__name__} has fewer than {num} harmonics with an eigenvalue above 0 in {dimension} dimensions"
        )

    @property
    def num(self):
        return self.num_functions

    @property
    def basis(self) -> Basis:
        """The harmonics."""
        return Basis(self.dimension, self.levels, self.num_functions)

    def basis_under(self, kernel: Any) -> Basis:
        """The harmonics whose eigenvalue under a kernel is not 0 whatever its parameters."""
        basis = self.basis
        vanishing = kernel.vanishing(self.dimension, max(self.levels) + 1)
        kept = tuple(n for n in self.levels if not vanishing[n])
        if not kept:
            raise ValueError(f"all eigenvalues of {type(kernel).__name__} are 0 at the levels {list(self.levels)}")
        return basis if kept == self.levels else Basis(self.dimension, kept, int(np.sum(~vanishing[basis.degrees])))

    def check_kernel(self, kernel: Any) -> None:
        """Says which levels are skipped, where the kernel's numbers are known."""
        if not all(is_concrete(leaf) for leaf in jax.tree.leaves(kernel)):
            return
        skipped = sorted(set(self.levels) - set(self.basis_under(kernel).levels))
        if skipped:
            warnings.warn(
                f"the eigenvalues of {type(kernel).__name__} are 0 at the levels {skipped}, which are skipped",
                stacklevel=4,
            )
