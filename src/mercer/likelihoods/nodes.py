"""Where the nodes of quadrature are, for functions of f = mean + sd z under Gaussian marginals, and when they are enough.

The trapezoidal rule: for analytic functions its error falls exponentially with the number of nodes, at a rate that is given by
how close they are beside the width over which the function bends. Where all marginals are narrow beside it, a few nodes at equal
distances in z are enough, else more of them, piece after piece. Where a marginal is much wider than the place u at which the
function bends (the edge of a class, the observation of a likelihood with heavy tails), nodes are at equal steps of t, z = u + b
sinh(t): their distance is about b at the place, and grows in proportion to the distance from it, so that the error hardly depends
on how narrow it is. Several places have nodes each, and a node counts with the share of its own rule: near its place almost 1,
near the others almost 0.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Where a function of f bends: centres and widths, numbers or arrays like the mean. The width is about how far from the
# real axis, in the complex plane, the function is analytic. With no place it is taken to be 1 everywhere, as of the
# usual links.
Places = Sequence[tuple[Any, Any]]

REACH = 7.0  # standard deviations
_PER_WIDTH = 2.6  # nodes at equal distances for each width over which a function bends: an error of about exp(-5 pi)
_PIECE, _MOST_PIECES = 16, 16  # nodes at equal distances are taken this many at a time, so many times at most
_NARROW, _WIDE = 1.5, 20.0  # of places, in standard deviations
_STEP = 0.22  # in t, z = u + b sinh(t): an error of about exp(-pi^2 / (2 step)), for a density times a function with a place
_NODES = 112  # around each place
_UNIFORM_NODES, FAR = 161, 10.0  # where no place is known, and how far they reach


def latents(mean, sd, z):
    """f = mean + sd z, [K, ...]."""
    f = mean.reshape(1, -1) + sd.reshape(1, -1) * z.reshape(len(z), -1)
    return f.reshape(len(z), *mean.shape)


def total(values):
    """The sum over the nodes: by a product, as XLA on the CPU makes one slow loop of a sum and the functions in it."""
    rows = values.reshape(len(values), -1)
    total = jnp.matmul(jnp.ones(len(rows), rows.dtype), rows, precision=jax.lax.Precision.HIGHEST)
    return total.reshape(values.shape[1:])


def density(z):
    return jnp.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)


def column(values, like):
    """Numbers along a new first axis."""
    return jnp.asarray(values, like.dtype).reshape(-1, *[1] * like.ndim)


def _standardised(mean, sd, low, high, places):
    """Centres u and widths b of the places in z; one that is out of reach is as wide as it is far away."""
    for centre, width in places:
        distance = (centre - mean) / sd
        u = jnp.clip(distance, low, high)
        yield u, jnp.clip(width / sd + jnp.abs(distance - u), 1e-8, _WIDE)


def graded(mean, sd, low, high, places):
    """Nodes z from low to high, dense around J places, and their weights in an integral over z, [J K, ...]."""
    index = column(np.arange(_NODES), mean)
    rules = []
    for u, b in _standardised(mean, sd, low, high, places):
        first, last = jnp.arcsinh((low - u) / b), jnp.arcsinh((high - u) / b)
        rules.append((u, b, first, (last - first) / (_NODES - 1)))
    nodes, weights = [], []
    for u, b, first, step in rules:
        exp_t = jnp.exp(first + step * index)
        z = u + 0.5 * b * (exp_t - 1.0 / exp_t)
        spacing = 0.5 * b * step * (exp_t + 1.0 / exp_t)
        if len(rules) > 1:  # a rule counts where its nodes are closer than those of the others
            closer = [spacing**2 / (step**2 * ((z - u) ** 2 + b**2)) for u, b, _, step in rules]
            spacing = spacing / sum(ratio**3 for ratio in closer)
        nodes.append(z)
        weights.append(spacing)
    return jnp.concatenate(nodes), jnp.concatenate(weights)


def short_reach(num_points):
    return min(0.3 * num_points, REACH)


def uniform(mean, num_points, reach):
    """Nodes z at equal distances from -reach to reach and their weights in an integral over z, [K, 1, ..., 1]."""
    z = np.linspace(-reach, reach, num_points)
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    return column(z, mean), column(np.full(num_points, 1.0 / np.sum(density)), mean)  # E[1] is 1


def over_the_bulk(mean, sd, places):
    """Nodes for functions that are not much larger in the tails of the marginal than they are in its bulk."""
    if not places:
        return uniform(mean, _UNIFORM_NODES, FAR)
    # The further into a tail a place is, the less it matters how dense the nodes are there.
    places = [(c, w + 1e-7 * sd * jnp.exp(jnp.minimum(0.5 * ((c - mean) / sd) ** 2, 30.0))) for c, w in places]
    return graded(mean, sd, -REACH, REACH, places)


def closest(mean, sd, places):
    """How far apart nodes may be, in standard deviations: a part of the narrowest place within reach of a marginal."""
    widths = [b for _, b in _standardised(mean, sd, -REACH, REACH, places or [(mean, 1.0)])]
    return functools.reduce(jnp.minimum, [jnp.min(b) for b in widths]) / _PER_WIDTH


def few_are_enough(mean, sd, places, num_points):
    return closest(mean, sd, places) > 2.0 * short_reach(num_points) / (num_points - 1)


class Rule(NamedTuple):
    """Nodes of quadrature, in pieces, of which the first `needed` count.

    nodes(g, mean, sd, fixed) gives a function from the number of a piece to z and weights, [K, ...], and a height: where
    log E[exp(g)] is wanted, about the largest g - z^2 / 2. `fixed` is (places, needed, where, height).
    """

    enough: Any
    nodes: Callable[..., tuple[Callable, Any]]
    pieces: int = 1
    needed: Any = 1
    where: tuple = ()


def few(enough, num_points):
    def nodes(g, mean, sd, fixed):
        return lambda piece: uniform(mean, num_points, short_reach(num_points)), fixed[-1]

    return Rule(enough, nodes)


def at_equal_distances(also, low, high, distance, scale=()):
    """From low to high, at most this far apart: in z or, with a scale, in its t. Enough, if so many are offered, and `also`."""

    def nodes(g, mean, sd, fixed):
        _, needed, (low, high, *scale), height = fixed
        step = (high - low) / (_PIECE * needed.astype(mean.dtype) - 1.0)

        def of_piece(piece):
            t = low + step * (_PIECE * piece + column(np.arange(_PIECE), mean))
            return from_scale(t, step, *scale) if scale else (t, jnp.full_like(t, step))

        return of_piece, height

    number = jnp.max((high - low) / distance) + 1.0
    needed = jnp.ceil(jnp.minimum(number / _PIECE, _MOST_PIECES + 1.0)).astype(int)
    return Rule(also & (needed <= _MOST_PIECES), nodes, _MOST_PIECES, needed, (low, high, *scale))


def scale_of(mean, sd, places):
    """(u, b) of the scale t, z = u + b sinh(t), in which few nodes at equal distances are enough, and their distance.

    It is around the narrowest place, or almost that of z where no place is narrow, or where another place has to have
    nodes as close: their distance there is in proportion to that from u.
    """
    standardised = list(_standardised(mean, sd, -REACH, REACH, places or [(mean, 1.0 + 0.0 * mean)]))

    def closest(u, b):
        return _STEP * functools.reduce(jnp.minimum, [w / jnp.sqrt(b**2 + (c - u) ** 2) for c, w in standardised])

    def number(u, b):
        return (to_scale(REACH, u, b) - to_scale(-REACH, u, b)) / closest(u, b)

    u, b = standardised[0]
    for centre, width in standardised[1:]:
        u, b = jnp.where(width < b, centre, u), jnp.minimum(width, b)
    narrow = (b < _NARROW) & (number(u, b) < number(0.0, _WIDE))
    scale = jnp.where(narrow, u, 0.0), jnp.where(narrow, b, _WIDE)
    return scale, closest(*scale)


def to_scale(z, u, b):
    return jnp.arcsinh((z - u) / b)


def from_scale(t, step, u, b):
    """z, and how far apart nodes are there."""
    exp_t = jnp.exp(t)
    return u + 0.5 * b * (exp_t - 1.0 / exp_t), 0.5 * step * b * (exp_t + 1.0 / exp_t)


def between_steps(sd, centres, scales):
    """Gauss-Legendre nodes z between breaks at -7, -5, ..., 7, and across each step; their weights."""
    everywhere = jnp.broadcast_to(column(np.linspace(-REACH, REACH, 8), sd), (8, *sd.shape))
    across = column([-8.0, -3.0, 0.0, 3.0, 8.0], centres)
    near_steps = jnp.clip((centres + scales * across) / sd, -REACH, REACH).reshape(-1, *sd.shape)
    breaks = jnp.sort(jnp.concatenate([everywhere, near_steps]), axis=0)[:, None]
    middle, half = 0.5 * (breaks[1:] + breaks[:-1]), 0.5 * (breaks[1:] - breaks[:-1])
    x, weights = (column(values, sd) for values in np.polynomial.legendre.leggauss(12))
    return tuple(values.reshape(-1, *sd.shape) for values in (middle + half * x, half * weights))
