"""Inducing variables of the terms of a sum of kernels, each term seen by itself."""

from collections.abc import Sequence

import equinox as eqx
import jax
import numpy as np

from mercer.harmonics.gegenbauer import num_harmonics
from mercer.inducing.base import InducingVariables
from mercer.inducing.spherical import MOST_LEVELS, SphericalHarmonics
from mercer.kernels.base import Kernel, OnDimensions, Sum
from mercer.linalg.loops import for_each, form


class PerTerm(InducingVariables):
    """For f = f_1 + f_2 + ..., with the kernel k_1 + k_2 + ..., variables of each f_i: as many sets as there are terms.

    Terms of a different nature (a function of patches and one of the whole image) get the variables that suit them. As the
    terms are independent, so are their variables a priori, and `Kuu` is block diagonal.
    """

    parts: tuple[InducingVariables, ...]

    def __init__(self, parts: Sequence[InducingVariables]):
        self.parts = tuple(parts)

    @classmethod
    def harmonics(cls, kernel: Sum, columns: int, num: int, multiple: int = 1) -> "PerTerm":
        """At most `num` spherical harmonics for a sum of zonal kernels, or homogeneous ones, of inputs with so many columns.

        Every term has its first levels, then those with the largest eigenvalues come first. The levels of a term are a multiple
        of `multiple`: what is alike in form is compiled once.
        """
        if not isinstance(kernel, Sum):
            raise ValueError(f"PerTerm.harmonics expects a sum of kernels, got {type(kernel).__name__}")
        dimensions = [_sphere_of(term, columns) for term in kernel.kernels]
        steps = []  # not the first, minus the largest eigenvalue to come, the term, its levels then, how many these are
        for i, eigenvalues in enumerate(_spectra(kernel, dimensions, num)):
            counts = [num_harmonics(dimensions[i], n) for n in range(len(eigenvalues))]
            for start in range(0, len(eigenvalues) - multiple + 1, multiple):
                after = start + multiple
                steps.append((start > 0, -eigenvalues[start:].max(), i, after, sum(counts[start:after])))
        levels, used = [0] * len(dimensions), 0
        for _, _, i, after, count in sorted(steps):
            if used + count > num:
                break
            levels[i], used = after, used + count
        if 0 in levels:
            raise ValueError(f"num is too small for {multiple} levels of each of the {len(levels)} terms, got {num}")
        return cls([SphericalHarmonics(d, n) for d, n in zip(dimensions, levels, strict=True)])

    def __check_init__(self):
        if not self.parts or not all(isinstance(part, InducingVariables) for part in self.parts):
            kinds = [type(part).__name__ for part in self.parts]
            raise ValueError(f"PerTerm expects inducing variables for each term, at least one, got {kinds}")

    @property
    def num(self):
        return sum(part.num for part in self.parts)


def _sphere_of(kernel: Kernel, columns: int) -> int:
    """The dimension of the space whose sphere a kernel of so many columns is on."""
    units, _ = eqx.filter_eval_shape(kernel.on_sphere, jax.ShapeDtypeStruct((1, columns), float))
    return units.shape[1]


def _spectra(kernel: Sum, dimensions: list[int], num: int) -> list[np.ndarray]:
    """The eigenvalues of each term, of all levels that `num` harmonics could reach."""
    terms = [term.kernel if isinstance(term, OnDimensions) else term for term in kernel.kernels]
    spectra: dict[int, np.ndarray] = {}
    for i, dimension in enumerate(dimensions):
        if i not in spectra:
            alike = [j for j in range(i, len(terms)) if dimensions[j] == dimension and form(terms[j]) == form(terms[i])]
            spectra |= zip(alike, _spectra_of([terms[j] for j in alike], dimension, num), strict=True)
    return [spectra[i] for i in range(len(terms))]


def _spectra_of(kernels: list[Kernel], dimension: int, num: int) -> np.ndarray:
    """Those of kernels of one form."""
    levels, count = 1, 1
    while levels < MOST_LEVELS and (count := count + num_harmonics(dimension, levels)) <= num:
        levels += 1
    return np.asarray(for_each(lambda kernel: kernel.eigenvalues(dimension, levels), kernels))
