"""An orthonormal basis of the spherical harmonics in any dimension, by products of polynomials in one coordinate each.

Harmonics in k coordinates come from those in k - 1: with Y of degree m in x_1 ... x_{k-1} and rho^2 = x_1^2 + ... + x_k^2,

    Y(x_1 ... x_{k-1}) p_j(x_k, rho^2),      p_j(x, rho^2) = rho^j p_j(x / rho),

is homogeneous and harmonic of degree m + j, where p_j is the orthonormal Gegenbauer polynomial of order m + (k - 2) / 2
(Dai and Xu, 2013, theorem 1.5.1). The circle (k = 2) has the real and imaginary parts of (x_1 + i x_2)^m.

As they stand in the literature, with angles and norms that are divided by, these products are unstable. Here each p_j is a
polynomial in x_k and rho^2, by the three-term recurrence x p_j = b_{j+1} p_{j+1} + b_j rho^2 p_{j-1}: no division, no
constant that overflows, in 100 dimensions as in three. Most factors are p_0 = 1: a harmonic is a harmonic of lower degree
times one more factor, so that M of them at N points take M N multiplications. (A fundamental system of points, section
3.4.1, takes M^2 N, a search for points, and a table.)
"""

import functools
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer import validation
from mercer.harmonics.gegenbauer import check_dimension, check_levels, num_harmonics
from mercer.harmonics.sphere import check_unit
from mercer.parameters import Module
from mercer.validation import AnyArray


class SphericalHarmonics(Module):
    """Functions phi_m on the sphere in R^d, orthonormal under the uniform probability measure.

    `levels` counts them: degrees 0 to levels - 1. Or it is a sequence of degrees, whose functions come in its order. `num`
    leaves only the first so many of them, `degrees` is the degree of each.
    """

    dimension: int = eqx.field(static=True)
    levels: tuple[int, ...] = eqx.field(static=True)
    num: int = eqx.field(static=True)

    def __init__(self, dimension: int, levels: int | Sequence[int], num: int | None = None):
        check_dimension(dimension)
        counted = np.ndim(levels) == 0
        degrees = tuple(range(_checked(levels))) if counted else tuple(_checked(n + 1) - 1 for n in np.asarray(levels))
        if not degrees or len(set(degrees)) < len(degrees):
            raise ValueError(f"levels expects a number of levels or distinct degrees, got {levels!r}")
        found = sum(num_harmonics(dimension, n) for n in degrees)
        if num is not None and not 1 <= num <= found:
            raise ValueError(
                f"num must be between 1 and the number of harmonics of these levels, {found:,}, got {num!r}"
            )
        self.dimension, self.levels, self.num = int(dimension), degrees, int(num or found)
        needed = 64 * max(
            self.num, sum(num_harmonics(dimension - 1, n) for n in range(max(degrees))) if dimension > 2 else 0
        )
        check_memory(needed, f"{self.num:,} spherical harmonics in {dimension} dimensions")

    @property
    def degrees(self) -> np.ndarray:
        """The degree of each function, [M]."""
        counts = [num_harmonics(self.dimension, n) for n in self.levels]
        return np.repeat(self.levels, counts)[: self.num].astype(np.int32)

    def __call__(self, X: Float[AnyArray, "N d"]) -> Float[Array, "N M"]:
        """The functions at unit vectors."""
        X = validation.inputs(X)
        if X.shape[1] != self.dimension:
            raise ValueError(
                f"SphericalHarmonics in {self.dimension} dimensions expect as many columns, got {X.shape[1]}"
            )
        check_unit(X)
        return self.rows(X).T

    def rows(self, X: Float[Array, "N d"]) -> Float[Array, "M N"]:
        """The functions at unit vectors that have been checked, a row for each."""
        check_memory(4 * X.dtype.itemsize * self.num * len(X), f"{self.num:,} spherical harmonics at {len(X):,} points")
        return _rows(self, X)


@functools.partial(jax.jit, static_argnums=0)
def _rows(basis: SphericalHarmonics, X: Float[Array, "N d"]) -> Float[Array, "M N"]:
    plan = _plan(basis.dimension, basis.levels, basis.num)
    factors = _factors(X, plan.top)
    stages = [_circle(X, plan.top)]
    for parent, factor in plan.stages:
        stages.append(stages[-1][parent] * factors[factor])
    made = stages[0] if len(stages) == 1 else jnp.concatenate(stages)
    return made[plan.parent] * factors[plan.factor] * jnp.asarray(plan.scale, X.dtype)[:, None]


def _checked(levels: Any) -> int:
    check_levels(levels)
    return int(levels)


def check_memory(needed: int, what: str) -> None:
    """Refuses what would not fit into the memory of this machine, before any of it is taken."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise ValueError(
            f"{what} would take about {needed / 2**30:,.1f} GiB of the {there / 2**30:,.1f} GiB that this machine has: "
            "take fewer levels, or fewer points at a time"
        )


class _Plan(NamedTuple):
    """How the functions of a basis are made: harmonics with one factor more in each stage, and those of the basis at the end."""

    top: int  # the highest degree
    stages: tuple[tuple[np.ndarray, np.ndarray], ...]  # places in the stage before, and numbers of factors
    parent: np.ndarray  # places among the functions of all stages
    factor: np.ndarray
    scale: np.ndarray


class _Harmonics(NamedTuple):
    """Harmonics as products, in the order of the number of coordinates that they depend on. Those of the circle have no
    parent."""

    parent: np.ndarray  # the number of another one; of the function, among those of the circle
    factor: np.ndarray  # 0 stands for 1
    length: np.ndarray  # how many factors there are in all
    scale: np.ndarray  # by which the product is multiplied


@functools.lru_cache(maxsize=32)
def _plan(dimension: int, levels: tuple[int, ...], num: int) -> _Plan:
    top = max(levels)
    by_degree = _all_harmonics(dimension, top)
    every = _Harmonics(*map(np.concatenate, zip(*by_degree, strict=True)))
    starts = np.cumsum([0, *(len(harmonics.parent) for harmonics in by_degree)])
    wanted = np.concatenate([np.arange(starts[n], starts[n + 1]) for n in levels])[:num]
    # What the wanted ones are made from, and so on. A function of the circle is made from itself.
    of_circle = every.length == 0
    needed = np.zeros(len(every.parent), bool)
    needed[every.parent[wanted[~of_circle[wanted]]]] = True
    for length in range(every.length.max(), 0, -1):
        needed[every.parent[needed & (every.length == length)]] = True
    place = np.where(of_circle, every.parent, -1)
    made, before, stages = 2 * top + 1, 0, []
    for length in range(1, every.length[needed].max(initial=0) + 1):
        numbers = np.flatnonzero(needed & (every.length == length))
        stages.append((_as_index(place[every.parent[numbers]] - before), _as_index(every.factor[numbers])))
        place[numbers] = made + np.arange(len(numbers))
        before, made = made, made + len(numbers)
    parents = np.where(of_circle[wanted], wanted, every.parent[wanted])
    return _Plan(top, tuple(stages), _as_index(place[parents]), _as_index(every.factor[wanted]), every.scale[wanted])


def _as_index(numbers: np.ndarray) -> np.ndarray:
    """Of 32 bits, which JAX takes for an index whether it has 64 or not."""
    return numbers.astype(np.int32)


def _all_harmonics(dimension: int, top: int) -> list[_Harmonics]:
    """The harmonics of degree 0 to `top`, with parents numbered in a row over all degrees."""
    counts = [[1 if n == 0 else 2 for n in range(top + 1)]]  # of each degree, in 2, 3, ... dimensions
    counts += [[num_harmonics(k, n) for n in range(top + 1)] for k in range(3, dimension + 1)]
    starts = np.cumsum([0, *counts[-1]])
    harmonics = []
    for n in range(top + 1):
        none = np.zeros(counts[0][n], int)
        scale = np.full(counts[0][n], 1.0 if n == 0 else math.sqrt(2.0))
        harmonics.append([_Harmonics(max(2 * n - 1, 0) + np.arange(counts[0][n]), none, none, scale)])
    norms = _norms(dimension, top)
    for k in range(3, dimension + 1):
        before = [np.concatenate([part.scale for part in parts]) for parts in harmonics]
        lengths = [np.concatenate([part.length for part in parts]) for parts in harmonics]
        for n in range(top + 1):
            kept = [_Harmonics(*part[:3], norms[k - 3, n] * part.scale) for part in harmonics[n]]
            for m in range(n):
                factor = np.full(counts[k - 3][m], _number_of_factor(dimension, top, k, m, n - m))
                parent = starts[m] + np.arange(counts[k - 3][m])
                kept.append(_Harmonics(parent, factor, lengths[m] + 1, norms[k - 3, m] * before[m]))
            harmonics[n] = kept
    return [_Harmonics(*map(np.concatenate, zip(*parts, strict=True))) for parts in harmonics]


def _norms(dimension: int, top: int) -> np.ndarray:
    """E[(1 - t^2)^m]^(-1/2), for a coordinate t of a point of the sphere in R^k, k = 3 ... d, [d - 2, top + 1]."""
    k, i = np.arange(3, dimension + 1)[:, None], np.arange(top)
    ratios = (k + 2.0 * i) / (k - 1.0 + 2.0 * i)
    return np.sqrt(np.concatenate([np.ones((len(k), 1)), np.cumprod(ratios, axis=1)], axis=1))


def _circle(X: Float[Array, "N d"], top: int) -> Float[Array, "F N"]:
    """1, and the real and the imaginary part of (x_1 + i x_2)^m, m = 1 ... top."""
    rows = [jnp.ones_like(X[:, 0])]
    real, imaginary = rows[0], jnp.zeros_like(rows[0])
    for _ in range(top):
        real, imaginary = real * X[:, 0] - imaginary * X[:, 1], real * X[:, 1] + imaginary * X[:, 0]
        rows += [real, imaginary]
    return jnp.stack(rows)


def _factors(X: Float[Array, "N d"], top: int) -> Float[Array, "F N"]:
    """1, and p_j(x_k, rho_k^2) for j = 1 ... top, k = 3 ... d and orders m + (k - 2) / 2, m = 0 ... top - j."""
    ones = jnp.ones((1, len(X)), X.dtype)
    dimension = X.shape[1]
    if dimension == 2 or top == 0:
        return ones
    x = X.T[2:, None]
    squares = jnp.cumsum(X.T**2, axis=0)[2:, None]
    order = np.arange(top + 1) + 0.5 * (np.arange(3, dimension + 1)[:, None] - 2.0)

    def b(j, count):
        # (j (j + 2 order - 1) / (4 (j + order) (j + order - 1)))^(1/2)
        entries = order[:, :count]
        square = (
            0.5 / (1.0 + entries) if j == 1 else j * (j + 2 * entries - 1) / (4 * (j + entries) * (j + entries - 1))
        )
        return jnp.asarray(np.sqrt(square), X.dtype)[..., None]

    before, last, rows = None, jnp.ones((dimension - 2, top + 1, len(X)), X.dtype), [ones]
    for j in range(1, top + 1):
        count = top + 1 - j
        following = x * last[:, :count]
        if before is not None:
            following = following - b(j - 1, count) * squares * before[:, :count]
        before, last = last, following / b(j, count)
        rows.append(last.reshape(-1, len(X)))
    return jnp.concatenate(rows)


def _number_of_factor(dimension: int, top: int, k: int, m: int, j: int) -> int:
    """The row of p_j(x_k, rho_k^2) of order m + (k - 2) / 2 in `_factors`."""
    return 1 + (dimension - 2) * sum(top + 1 - i for i in range(1, j)) + (k - 3) * (top + 1 - j) + m
