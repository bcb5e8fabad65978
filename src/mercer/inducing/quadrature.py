"""Quadrature rules in one to three dimensions, for variables that are integrals of a function."""

from collections.abc import Callable

import numpy as np

# Nodes for each dimension, by the number of dimensions: the whole grid holds some thousands at most.
_HERMITE = {1: 48, 2: 24, 3: 14}
_LEGENDRE = {1: 64, 2: 32, 3: 20}


def has_gaussian_rule(D: int) -> bool:
    """Whether `gaussian_rule` is offered for so many dimensions."""
    return D in _HERMITE


def gaussian_rule(D: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Nodes [Q, D] and weights [Q] of means under N(0, I): Gauss-Hermite in each dimension."""
    return _tensor_rule(np.polynomial.hermite_e.hermegauss, _HERMITE, D, name)


def uniform_rule(D: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Nodes [Q, D] and weights [Q] of means over the box [-1, 1]^D: Gauss-Legendre in each dimension."""
    return _tensor_rule(np.polynomial.legendre.leggauss, _LEGENDRE, D, name)


def _tensor_rule(rule: Callable, sizes: dict[int, int], D: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    if D not in sizes:
        raise ValueError(
            f"{name} of a given function are integrals over a grid, which is offered for up to {max(sizes)} columns, got {D}"
        )
    nodes, weights = rule(sizes[D])
    weights = weights / weights.sum()
    grid = np.stack(np.meshgrid(*[nodes] * D, indexing="ij"), axis=-1).reshape(-1, D)
    products = np.stack(np.meshgrid(*[weights] * D, indexing="ij"), axis=-1).reshape(-1, D).prod(axis=1)
    return grid, products
