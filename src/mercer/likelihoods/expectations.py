"""Expectations under Gaussian marginals: the one quadrature and the one Monte Carlo rule behind every likelihood.

Functions of one latent, f = mean + sd z, by the trapezoidal rule: for analytic functions its error falls
exponentially with the number of nodes. Where all marginals are narrow beside the widths over which the function
bends, a few nodes at equal distances in z are enough. Where one is wide, there are more, at equal steps of t, z = u +
b sinh(t): their distance is about b at a place u where the function bends (the edge of a class, the observation of a
likelihood with heavy tails), and grows in proportion to the distance from it. So the rate of the error hardly depends
on how narrow the place is beside the marginal. Several places have nodes each, and a node counts with the share of
its own rule: near its place almost 1, near the others almost 0. For the log of E[exp(h)] there are nodes around the
mode of the integrand, too, which may be many standard deviations away from the mean. Nodes and weights are constants
of derivatives, which are those of the function.

Functions of several latents: randomised quasi-Monte Carlo, Sobol's points shifted at random modulo one (Cranley and
Patterson, 1976), so that each point is uniform, the average unbiased, and its error several times smaller than that of
independent draws.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, PRNGKeyArray

Elementwise = Callable[[Float[Array, "..."]], Float[Array, "..."]]
Moments = tuple[Float[Array, "..."], Float[Array, "..."]]
# Where a function of f bends: centres and widths, numbers or arrays like the mean. The width is about how far from the
# real axis, in the complex plane, the function is analytic. With no place it is taken to be 1 everywhere, as of the
# usual links.
Places = Sequence[tuple[Any, Any]]

_REACH = 7.0  # standard deviations
_MANY = 32  # numbers that a function depends on, beyond which its derivative is not taken for one after another
_NODES, _NODES_OF_SEVERAL = (44, 72), (80, 112)  # around one place, or each of several; the fewer where it is wide
_MODE_NODES = 112  # around each place, for log E[exp(h)]
_UNIFORM_NODES = 161  # where no place is known


def standard_deviation(var: Float[Array, "..."]) -> Float[Array, "..."]:
    """sqrt(var), with derivative 0 where the variance is 0 (or negative by rounding)."""
    return jnp.sqrt(jnp.maximum(var, jnp.finfo(var.dtype).tiny))


# XLA adds over the first of three axes many times more slowly if the last one is 1: both of these, and so the
# derivative of the first, are sums over the first axis of a matrix.
def _latents(mean, sd, z):
    """f = mean + sd z, [K, ...]."""
    f = mean.reshape(1, -1) + sd.reshape(1, -1) * z.reshape(len(z), -1)
    return f.reshape(len(z), *mean.shape)


def _sum(values):
    """The sum over the nodes."""
    return jnp.sum(values.reshape(len(values), -1), axis=0).reshape(values.shape[1:])


def _density(z):
    return jnp.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)


def _column(values, like):
    """Numbers along a new first axis."""
    return jnp.asarray(values, like.dtype).reshape(-1, *[1] * like.ndim)


def _standardised(mean, sd, low, high, places):
    """Centres u and widths b of the places in z; one that is out of reach is as wide as it is far away."""
    for centre, width in places:
        distance = (centre - mean) / sd
        u = jnp.clip(distance, low, high)
        yield u, jnp.clip(width / sd + jnp.abs(distance - u), 1e-8, 20.0)


def _graded(mean, sd, low, high, places, num_points):
    """Nodes z from low to high, dense around J places, and their weights in an integral over z, [J K, ...]."""
    index = _column(np.arange(num_points), mean)
    rules = []
    for u, b in _standardised(mean, sd, low, high, places):
        first, last = jnp.arcsinh((low - u) / b), jnp.arcsinh((high - u) / b)
        rules.append((u, b, first, (last - first) / (num_points - 1)))
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


def _short_reach(num_points):
    return min(0.3 * num_points, _REACH)


def _uniform(mean, num_points, reach):
    """Nodes z at equal distances from -reach to reach and their weights in an integral over z, [K, 1, ..., 1]."""
    z = np.linspace(-reach, reach, num_points)
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    return _column(z, mean), _column(np.full(num_points, 1.0 / np.sum(density)), mean)  # E[1] is 1


def _over_the_bulk(mean, sd, places, num_points):
    """Nodes for functions that are not much larger in the tails of the marginal than they are in its bulk."""
    if not places:
        return _uniform(mean, _UNIFORM_NODES, 10.0)
    # The further into a tail a place is, the less it matters how dense the nodes are there.
    places = [(c, w + 1e-7 * sd * jnp.exp(jnp.minimum(0.5 * ((c - mean) / sd) ** 2, 30.0))) for c, w in places]
    return _graded(mean, sd, -_REACH, _REACH, places, num_points)


def _narrowest(mean, sd, places):
    """The width of the narrowest place within reach of a marginal, in standard deviations."""
    widths = [b for _, b in _standardised(mean, sd, -_REACH, _REACH, places or [(mean, 1.0)])]
    return functools.reduce(jnp.minimum, [jnp.min(b) for b in widths])


def _few_are_enough(mean, sd, places, num_points):
    """Whether nodes at equal distances, at most a third of the narrowest width, are enough for all marginals."""
    return _narrowest(mean, sd, places) > 6.0 * _short_reach(num_points) / (num_points - 1)


def _integrate(rule, mean, sd, num_points, enough, *more):
    """rule(mean, sd, z, weights) with few nodes at equal distances, or else with the first of `more` that are enough.

    Each of these is a pair: whether they are enough, and the function of mean and sd that gives nodes z and weights.
    """

    def with_few(mean, sd):
        return rule(mean, sd, *_uniform(mean, num_points, _short_reach(num_points)))

    def with_nodes(nodes):
        def integral(mean, sd):
            fixed = jax.lax.stop_gradient(nodes(*jax.lax.stop_gradient((mean, sd))))
            return rule(mean, sd, *jax.lax.optimization_barrier(fixed))  # or XLA computes them once for each use

        # Else room for what the derivative with many nodes needs would be filled where few are enough, too.
        return jax.checkpoint(integral)

    which = jnp.argmax(jnp.stack([enough, *[is_enough for is_enough, _ in more]]))
    return jax.lax.switch(which, [with_few, *[with_nodes(nodes) for _, nodes in more]], mean, sd)


def _rules_over_the_bulk(mean, sd, places):
    """For `_integrate`: more nodes if the narrowest place is not much narrower than a marginal, and many if it is."""
    middle, many = _NODES if len(places) == 1 else _NODES_OF_SEVERAL
    rules = [(True, lambda _, mean, sd, places: _over_the_bulk(mean, sd, places, many))]
    if places:
        mild = _narrowest(mean, sd, places) > 0.5
        rules.insert(0, (mild, lambda _, mean, sd, places: _over_the_bulk(mean, sd, places, middle)))
    return rules


def _average(reduce, function, mean, sd, num_points, places, enough, *more):
    """What reduce(values, z, weights) makes of the values of a function of f at nodes, with derivatives in one pass.

    `reduce` also returns the share that each node has in the derivative. That by the mean is the sum of shares times g', that by
    sd the sum of shares times z g', and so on for each number that g depends on: all are sums that XLA fuses with the values, so
    that nothing as large as the nodes is kept for later. Arguments as in `_integrate`.
    """
    converted, constants = jax.closure_convert(function, mean[None])
    which = jnp.argmax(jnp.stack([enough, *[is_enough for is_enough, _ in more]]))
    places = jax.lax.stop_gradient([(jnp.asarray(c, mean.dtype), jnp.asarray(w, mean.dtype)) for c, w in places])

    def values(f, constants):
        return jax.vmap(lambda row: converted(row[None], *constants)[0])(f)

    def nodes(number, mean, sd, places, constants):
        if number == 0:
            return _uniform(mean, num_points, _short_reach(num_points))
        mean, sd, constants = jax.lax.stop_gradient((mean, sd, constants))
        return more[number - 1][1](lambda f: values(f, constants), mean, sd, places)

    def switch(of_nodes, which, *arguments):
        branches = [functools.partial(of_nodes, number) for number in range(1 + len(more))]
        return jax.lax.switch(which, branches, *arguments)

    def integral(which, mean, sd, places, constants):
        def value(number, mean, sd, places, constants):
            z, weights = nodes(number, mean, sd, places, constants)
            return reduce(values(_latents(mean, sd, z), constants), z, weights)[0]

        return switch(value, which, mean, sd, places, constants)

    def derivative(primals, tangents):
        d_mean, d_sd, d_constants = tangents[1], tangents[2], tangents[4]
        moved = [i for i, d in enumerate(d_constants) if not _is_zero(d)]

        def slopes(number, mean, sd, places, constants):
            z, weights = nodes(number, mean, sd, places, constants)
            f = _latents(mean, sd, z)
            at_nodes, slope = jax.jvp(lambda f: values(f, constants), (f,), (jnp.ones_like(f),))
            value, shares = reduce(at_nodes, z, weights)

            def along(i, direction):
                def of_constant(constant):
                    return values(f, [*constants[:i], constant, *constants[i + 1 :]])

                return _sum(shares * jax.jvp(of_constant, (constants[i],), (direction,))[1])

            by_constants = [[along(i, direction) for direction in _directions(constants[i], mean)] for i in moved]
            return value, _sum(shares * slope), _sum(shares * slope * z), by_constants

        value, by_mean, by_sd, by_constants = switch(slopes, *primals)
        tangent = jnp.zeros_like(value)
        for by, d in ((by_mean, d_mean), (by_sd, d_sd)):
            tangent = tangent if _is_zero(d) else tangent + by * d
        for i, by in zip(moved, by_constants, strict=True):
            parts = [d_constants[i]] if len(by) == 1 else list(d_constants[i].ravel())
            tangent = tangent + sum(slope * part for slope, part in zip(by, parts, strict=True))
        return value, tangent

    # A function with many numbers, such as a network of the input, has its derivative in the usual way.
    if all(len(_directions(constant, mean)) <= _MANY for constant in constants):
        integral = jax.custom_jvp(integral)
        integral.defjvp(derivative, symbolic_zeros=True)
    return integral(which, mean, sd, places, constants)


def _is_zero(tangent) -> bool:
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero)


def _directions(constant, mean):
    """Unit changes of a constant: one, where it is a number or has an entry for each marginal; else one for each entry."""
    if constant.ndim == 0 or constant.shape == mean.shape:
        return [jnp.ones_like(constant)]
    return [
        jnp.zeros(constant.size, constant.dtype).at[j].set(1.0).reshape(constant.shape) for j in range(constant.size)
    ]


def expectation(
    function: Elementwise,
    mean: Float[Array, "..."],
    var: Float[Array, "..."],
    num_points: int,
    places: Places = (),
) -> Float[Array, "..."]:
    """E[g(f)], f ~ N(mean, var), element by element. `function` sees one more axis, in front.

    `num_points` is the number of nodes where few are enough.
    """

    def reduce(values, z, weights):
        shares = weights * _density(z)
        return _sum(shares * values), shares

    sd = standard_deviation(var)
    enough = _few_are_enough(mean, sd, places, num_points)
    rules = _rules_over_the_bulk(mean, sd, places)
    return _average(reduce, function, mean, sd, num_points, places, enough, *rules)


def expectation_of_steps(
    function: Elementwise, var: Float[Array, "..."], num_points: int, steps: Places
) -> Float[Array, "..."]:
    """E[g(f)], f ~ N(0, var), where g is flat but for steps like Phi((f - centre) / width), many and however narrow."""

    def rule(mean, sd, z, weights):
        return _sum(weights * _density(z) * function(sd * z))

    mean, sd = jnp.zeros_like(var), standard_deviation(var)
    enough = _few_are_enough(mean, sd, [(centre, 1.7 * width) for centre, width in steps], num_points)
    return _integrate(rule, mean, sd, num_points, enough, (True, lambda m, s: _between_steps(s, steps)))


def _between_steps(sd, steps):
    """Gauss-Legendre nodes z between breaks at -7, -5, ..., 7, and across each step; their weights."""
    breaks = [jnp.broadcast_to(_column(np.linspace(-_REACH, _REACH, 8), sd), (8, *sd.shape))]
    across = _column([-8.0, -3.0, 0.0, 3.0, 8.0], sd)
    breaks += [jnp.clip((centre + width * across) / sd, -_REACH, _REACH) for centre, width in steps]
    breaks = jnp.sort(jnp.concatenate(breaks), axis=0)[:, None]
    middle, half = 0.5 * (breaks[1:] + breaks[:-1]), 0.5 * (breaks[1:] - breaks[:-1])
    x, weights = (_column(values, sd) for values in np.polynomial.legendre.leggauss(12))
    return tuple(values.reshape(-1, *sd.shape) for values in (middle + half * x, half * weights))


def log_expectation(
    log_function: Elementwise,
    mean: Float[Array, "..."],
    var: Float[Array, "..."],
    num_points: int,
    places: Places = (),
) -> Float[Array, "..."]:
    """log E[exp(h(f))], f ~ N(mean, var), element by element."""

    def reduce(values, z, weights):
        log_integrand = values - 0.5 * z**2 - 0.5 * math.log(2.0 * math.pi)
        largest = jnp.max(log_integrand, axis=0)
        terms = weights * jnp.exp(log_integrand - largest)
        total = _sum(terms)
        return largest + jnp.log(total), terms / total

    sd = standard_deviation(var)
    slope, curvature = _slope_and_curvature(log_function, mean)
    gentle = jnp.all((sd * jnp.abs(slope) < 0.5) & (sd**2 * jnp.abs(curvature) < 0.1))
    enough = _few_are_enough(mean, sd, places, num_points) & gentle
    return _average(reduce, log_function, mean, sd, num_points, places, enough, (True, _around_the_mode))


def _slope_and_curvature(function, f):
    """First and second derivatives, element by element."""

    def slope(f):
        return jax.jvp(function, (f,), (jnp.ones_like(f),))[1]

    derivatives = jax.jvp(slope, (f[None],), (jnp.ones_like(f[None]),))
    return tuple(d[0] for d in derivatives)


def _around_the_mode(log_function, mean, sd, places):
    """Nodes for exp(h), whose product with the density of the marginal may be largest far from the mean."""

    def log_integrand(z):
        value = log_function(mean + sd * z) - 0.5 * z**2
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    # The mode is between 0 and sd h'(mean) where h is concave; near a place, perhaps, where it is not. Search on grids.
    slope = jax.jvp(log_function, (mean[None],), (jnp.ones_like(mean[None]),))[1]
    candidates = jnp.concatenate([0.0 * slope, sd * slope, *[((c - mean) / sd + 0.0 * mean)[None] for c, _ in places]])
    ends = jnp.arcsinh(candidates)
    low, high = jnp.min(ends, axis=0), jnp.max(ends, axis=0)
    fractions = _column(np.linspace(-1.0, 1.0, 33), mean)

    def closer(_, found):
        t, reach = found
        grid = t + reach * fractions
        best = jnp.argmax(log_integrand(jnp.sinh(grid)), axis=0)
        return jnp.take_along_axis(grid, best[None], axis=0)[0], reach / 16.0

    t, _ = jax.lax.fori_loop(0, 6, closer, (0.5 * (low + high), 0.5 * (high - low)))
    candidates = jnp.concatenate([candidates, jnp.sinh(t)[None]])
    heights = log_integrand(candidates)
    matters = heights > jnp.max(heights, axis=0) - 40.0
    mode = jnp.take_along_axis(candidates, jnp.argmax(heights, axis=0)[None], axis=0)[0]
    low, high = (fn(jnp.where(matters, candidates, mode), axis=0) for fn in (jnp.min, jnp.max))
    curvature = _slope_and_curvature(log_function, mean + sd * mode)[1]
    width = 2.0 * sd / jnp.sqrt(1.0 + sd**2 * jnp.maximum(-curvature, 0.0))
    everywhere = [(mean, 2.0 * sd), (mean + sd * mode, width), *places]
    return _graded(mean, sd, jnp.minimum(low, 0.0) - _REACH, jnp.maximum(high, 0.0) + _REACH, everywhere, _MODE_NODES)


def moments(
    conditional: Callable[[Float[Array, "..."]], Moments],
    mean: Float[Array, "..."],
    var: Float[Array, "..."],
    num_points: int,
    places: Places = (),
) -> Moments:
    """E[y] and Var[y] = E[Var[y | f]] + Var[E[y | f]], from `conditional`: f -> (E[y | f], Var[y | f])."""

    def rule(mean, sd, z, weights):
        weights, (y_mean, y_var) = weights * _density(z), conditional(_latents(mean, sd, z))
        average = _sum(weights * y_mean)
        return average, _sum(weights * (y_var + (y_mean - average) ** 2))

    sd = standard_deviation(var)
    enough = _few_are_enough(mean, sd, places, num_points)
    rules = _rules_over_the_bulk(mean, sd, places)
    more = [(is_enough, lambda m, s, nodes=nodes: nodes(None, m, s, places)) for is_enough, nodes in rules]
    return _integrate(rule, mean, sd, num_points, enough, *more)


@functools.cache
def _sobol(num_samples: int, dimension: int) -> np.ndarray:
    """The first points of Sobol's sequence, in [0, 1), [S, L]."""
    from scipy.stats import qmc  # half a second to import, and only a few likelihoods sample

    return qmc.Sobol(dimension, scramble=False).random_base2((num_samples - 1).bit_length())[:num_samples]


def samples(
    mean: Float[Array, "N L"], var: Float[Array, "N L"], num_samples: int, key: PRNGKeyArray | None
) -> Float[Array, "S N L"]:
    """Draws of f ~ N(mean, var).

    With a key every row has its own random shift: averages are unbiased, and independent between rows. With none, all
    rows share one fixed shift: the same numbers in every call, whichever rows come together.
    """
    num_rows, dimension = mean.shape
    points = jnp.asarray(_sobol(num_samples, dimension), mean.dtype)[:, None, :]
    if key is None:
        shift = jnp.full((1, dimension), 0.5 / num_samples, mean.dtype)
    else:
        shift = jax.random.uniform(key, (num_rows, dimension), mean.dtype)
    edge = jnp.finfo(mean.dtype).eps
    z = ndtri(jnp.clip((points + shift) % 1.0, edge, 1.0 - edge))
    return mean + standard_deviation(var) * z
