"""Expectations under Gaussian marginals: the one quadrature and the one Monte Carlo rule behind every likelihood.

Functions of one latent: the trapezoidal rule, with nodes as in `nodes.py`. For the log of E[exp(h)] there are nodes around the
mode of the integrand, too, which may be many standard deviations away from the mean. Nodes and weights are constants of
derivatives, which are those of the function.

Functions of several latents: randomised quasi-Monte Carlo, Sobol's points shifted at random modulo one (Cranley and
Patterson, 1976), so that each point is uniform, the average unbiased, and its error several times smaller than that of
independent draws.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.likelihoods import nodes
from mercer.likelihoods.nodes import Places
from mercer.likelihoods.special import hazard, ndtr

Elementwise = Callable[[Float[Array, "..."]], Float[Array, "..."]]
Moments = tuple[Float[Array, "..."], Float[Array, "..."]]
_PROBES, _REACH = 9, 6.0  # for log E[exp(h)]: points at which it is looked at first, up to so many standard deviations
_DEPTH = 18.0  # how far below its largest value the log of an integrand is of no interest
_MANY = 32  # numbers that a function depends on, beyond which its derivative is not taken for one after another


def standard_deviation(var: Float[Array, "..."]) -> Float[Array, "..."]:
    """sqrt(var), with derivative 0 where the variance is 0 (or negative by rounding)."""
    return jnp.sqrt(jnp.maximum(var, jnp.finfo(var.dtype).tiny))


def _average(function, mean, sd, places, rules, height=None):
    """E[g(f)]; with a height, log E[exp(g(f))]. By the first of the rules that is enough.

    Derivatives come from the same nodes, in one pass: that by the mean is the average of g', that by sd of z g', and so on for
    each number that g depends on; the average is under the marginal, or under its product with exp(g). So nothing as large as
    the nodes is kept for later.
    """
    converted, constants = jax.closure_convert(function, mean[None])
    which = jnp.argmax(jnp.stack([rule.enough for rule in rules]))
    places = [(jnp.asarray(c, mean.dtype), jnp.asarray(w, mean.dtype)) for c, w in places]
    fixed = jax.lax.stop_gradient([(places, jnp.asarray(rule.needed), rule.where, height) for rule in rules])

    def values(f, constants):
        return jax.vmap(lambda row: converted(row[None], *constants)[0])(f)

    def with_rule(number, moved, mean, sd, fixed, constants):
        """The average and, if `moved` is not None, its derivatives, by the constants that it names, too."""
        rule, still = rules[number], jax.lax.stop_gradient((mean, sd, constants))
        of_piece, height = rule.nodes(lambda f: values(f, still[2]), *still[:2], fixed[number])

        def sums(piece):
            z, weights = of_piece(piece)
            f = nodes.latents(mean, sd, z)
            if moved is None:
                at_nodes = values(f, constants)
            else:
                at_nodes, slope = jax.jvp(lambda f: values(f, constants), (f,), (jnp.ones_like(f),))
            if height is None:
                shares = weights * nodes.density(z)
                average = nodes.total(shares * at_nodes)
            else:
                shares = weights * jnp.exp(at_nodes - height - 0.5 * z**2)
                average = nodes.total(shares)
            if moved is None:
                return average, ()

            def along(i, direction):
                def of_constant(constant):
                    return values(f, [*constants[:i], constant, *constants[i + 1 :]])

                return nodes.total(shares * jax.jvp(of_constant, (constants[i],), (direction,))[1])

            by_constants = [[along(i, direction) for direction in _directions(constants[i], mean)] for i in moved]
            return average, (nodes.total(shares * slope), nodes.total(shares * slope * z), by_constants)

        average, derivatives = sums(0) if rule.pieces == 1 else _sum_of_pieces(sums, rule.pieces, fixed[number][1])
        if height is None:
            return average, derivatives
        derivatives = jax.tree.map(lambda total: total / average, derivatives)
        return height + jnp.log(average) - 0.5 * math.log(2.0 * math.pi), derivatives

    def switch(moved, which, *arguments):
        return jax.lax.switch(which, [functools.partial(with_rule, n, moved) for n in range(len(rules))], *arguments)

    def integral(*arguments):
        return switch(None, *arguments)[0]

    def derivative(primals, tangents):
        d_mean, d_sd, d_constants = tangents[1], tangents[2], tangents[4]
        moved = [i for i, d in enumerate(d_constants) if not _is_zero(d)]
        value, (by_mean, by_sd, by_constants) = switch(moved, *primals)
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
    return integral(which, mean, sd, fixed, constants)


def _sum_of_pieces(sums, pieces, needed):
    """The sum over the first pieces. A loop of known length, so that it has derivatives of all kinds."""

    def add(total, piece):
        def more(total):
            return jax.tree.map(jnp.add, total, sums(piece))

        return jax.lax.cond(piece < needed, more, lambda total: total, total), None

    none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(sums, 0))
    return jax.lax.scan(add, none, jnp.arange(pieces))[0]


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

    def over_the_bulk(g, mean, sd, fixed):
        around = jax.lax.optimization_barrier(
            nodes.over_the_bulk(mean, sd, fixed[0])
        )  # or XLA computes them for each use
        return lambda piece: around, None

    sd = standard_deviation(var)
    few = nodes.few(nodes.few_are_enough(mean, sd, places, num_points), num_points)
    reach = jnp.asarray(nodes.REACH - 0.5 if places else nodes.FAR, mean.dtype)
    more = nodes.at_equal_distances(True, -reach, reach, nodes.closest(mean, sd, places))
    return _average(function, mean, sd, places, [few, more, nodes.Rule(True, over_the_bulk)])


def probability_above(
    centres: Float[Array, "C ..."], scales: Float[Array, "C ..."], var: Float[Array, "..."], num_points: int
) -> Float[Array, "..."]:
    """The probability that f ~ N(0, var) is above all of C independent variables N(centre, scale^2).

    It is E[prod_j Phi((f - centre_j) / scale_j)]: steps, however narrow. A class at a time, as arrays of all nodes and
    classes would leave the processor's cache; so derivatives come from a second pass.
    """

    def with_nodes(number, derivatives, sd, centres, scales):
        if number is None:
            z, weights = jax.lax.optimization_barrier(
                nodes.between_steps(*jax.lax.stop_gradient((sd, centres, scales)))
            )
        else:
            z, weights = nodes.uniform(sd, number, nodes.short_reach(number))
        f = sd * z

        def below(product, variable):
            centre, scale = variable
            return product * ndtr((f - centre) / scale), None

        shares = weights * nodes.density(z) * jax.lax.scan(below, jnp.ones_like(f), (centres, scales))[0]
        if not derivatives:
            return nodes.total(shares)

        def slopes(variable):
            centre, scale = variable
            slope = shares * hazard((f - centre) / scale)
            return nodes.total(slope) / scale, nodes.total(slope * z) / scale

        return nodes.total(shares), *jax.lax.map(slopes, (centres, scales))

    numbers = (num_points, 2 * num_points, 4 * num_points, 7 * num_points, None)  # of nodes: the first that is enough

    def switch(derivatives, which, *arguments):
        return jax.lax.switch(which, [functools.partial(with_nodes, n, derivatives) for n in numbers], *arguments)

    integral = jax.custom_jvp(functools.partial(switch, False))

    @integral.defjvp
    def _(primals, tangents):
        _, sd, centres, scales = primals
        _, d_sd, d_centres, d_scales = tangents
        value, slope, slope_z = switch(True, *primals)
        by_scale = (sd * slope_z - centres * slope) / scales
        return value, jnp.sum(slope_z * d_sd - slope * d_centres - by_scale * d_scales, axis=0)

    sd = standard_deviation(var)
    steps = list(zip(centres, 1.7 * scales, strict=True))
    enough = [n is None or nodes.few_are_enough(jnp.zeros_like(sd), sd, steps, n) for n in numbers]
    return integral(jnp.argmax(jnp.stack(enough)), sd, centres, scales)


def log_expectation(
    log_function: Elementwise,
    mean: Float[Array, "..."],
    var: Float[Array, "..."],
    num_points: int,
    places: Places = (),
) -> Float[Array, "..."]:
    """log E[exp(h(f))], f ~ N(mean, var), element by element."""
    sd = standard_deviation(var)
    scale, closest = nodes.scale_of(mean, sd, places)
    first, last = (nodes.to_scale(z, *scale) for z in (-_REACH, _REACH))
    gap = (last - first) / (_PROBES - 1)
    t = first + gap * nodes.column(np.arange(_PROBES), mean)
    z, by_t = nodes.from_scale(t, 1.0, *scale)
    z = jnp.concatenate([z, *[((c - mean) / sd + 0.0 * mean)[None] for c, _ in places]])
    # One after another, here and below: XLA on the CPU takes ten times as long where it makes one loop of it all.
    heights, slopes = jax.lax.map(lambda z: _log_integrand(log_function, mean, sd, z[None]), z)
    heights, slopes = heights[:, 0], slopes[:, 0]
    height = functools.reduce(jnp.maximum, heights)
    depths, slope = height - heights[:_PROBES], slopes[:_PROBES]
    # How fast the slope falls between two probes says how narrow the integrand is, and places what is narrower than that.
    # The smaller the integrand, the less it matters.
    falls = -jnp.diff(slope * by_t, axis=0) / gap
    falls = falls * jnp.maximum(1.0 - jnp.minimum(depths[1:], depths[:-1]) / _DEPTH, 0.0)
    closest = jnp.minimum(closest, 0.75 / jnp.sqrt(functools.reduce(jnp.maximum, [*falls, 1e-3])))
    # Nodes from the last probe where the integrand is small, and rises, to the first where it is small, and falls.
    low = jnp.min(jnp.where((depths < _DEPTH) | (slope < 0.0), t, last), axis=0) - gap
    high = jnp.max(jnp.where((depths < _DEPTH) | (slope > 0.0), t, first), axis=0) + gap
    low = jnp.where(low < first, nodes.to_scale(-2.0 * _REACH, *scale), low)
    high = jnp.where(high > last, nodes.to_scale(2.0 * _REACH, *scale), high)
    # A mode is further out where the integrand rises outwards; there may be one at a place, too.
    at_places = jnp.where(heights > height - _DEPTH, jnp.abs(z), 0.0)[_PROBES:]
    near = jnp.all(slope[0] > 0.0) & jnp.all(slope[-1] < 0.0) & jnp.all(at_places < _REACH + 1.5)
    gentle = jnp.all((jnp.abs(slopes + z) < 0.5) | (jnp.abs(z) > 2.0))
    rules = [
        nodes.few(gentle & nodes.few_are_enough(mean, sd, places, num_points), num_points),
        nodes.at_equal_distances(near, low, high, closest, scale),
        nodes.Rule(True, _around_the_mode),
    ]
    return _average(log_function, mean, sd, places, rules, height)


def _slope_and_curvature(function, f):
    """First and second derivatives, element by element."""

    def slope(f):
        return jax.jvp(function, (f,), (jnp.ones_like(f),))[1]

    return jax.jvp(slope, (f,), (jnp.ones_like(f),))


def _log_integrand(log_function, mean, sd, z):
    """h(mean + sd z) - z^2 / 2 and its derivative by z."""
    value, slope = jax.jvp(lambda z: log_function(nodes.latents(mean, sd, z)), (z,), (jnp.ones_like(z),))
    value = value - 0.5 * z**2
    return jnp.where(jnp.isnan(value), -jnp.inf, value), slope - z


def _around_the_mode(log_function, mean, sd, fixed):
    """Nodes for exp(h), whose product with the density of the marginal may be largest far from the mean."""
    places = fixed[0]
    log_integrand = functools.partial(_log_integrand, log_function, mean, sd)
    # The mode is between 0 and sd h'(mean) where h is concave; near a place, perhaps, where it is not. Search on grids.
    slope = jax.jvp(log_function, (mean[None],), (jnp.ones_like(mean[None]),))[1]
    candidates = jnp.concatenate([0.0 * slope, sd * slope, *[((c - mean) / sd + 0.0 * mean)[None] for c, _ in places]])
    ends = jnp.arcsinh(candidates)
    low, high = jnp.min(ends, axis=0), jnp.max(ends, axis=0)
    fractions = nodes.column(np.linspace(-1.0, 1.0, 33), mean)

    def closer(_, found):
        t, reach = found
        grid = t + reach * fractions
        best = jnp.argmax(log_integrand(jnp.sinh(grid))[0], axis=0)
        return jnp.take_along_axis(grid, best[None], axis=0)[0], reach / 16.0

    t, _ = jax.lax.fori_loop(0, 6, closer, (0.5 * (low + high), 0.5 * (high - low)))
    candidates = jnp.concatenate([candidates, jnp.sinh(t)[None]])
    heights = log_integrand(candidates)[0]
    matters = heights > jnp.max(heights, axis=0) - 40.0
    mode = jnp.take_along_axis(candidates, jnp.argmax(heights, axis=0)[None], axis=0)[0]
    low, high = (fn(jnp.where(matters, candidates, mode), axis=0) for fn in (jnp.min, jnp.max))
    curvature = _slope_and_curvature(log_function, (mean + sd * mode)[None])[1][0]
    width = 2.0 * sd / jnp.sqrt(1.0 + sd**2 * jnp.maximum(-curvature, 0.0))
    everywhere = [(mean, 2.0 * sd), (mean + sd * mode, width), *places]
    low, high = jnp.minimum(low, 0.0) - nodes.REACH, jnp.maximum(high, 0.0) + nodes.REACH
    around = jax.lax.optimization_barrier(nodes.graded(mean, sd, low, high, everywhere))
    return lambda piece: around, jnp.max(heights, axis=0)


def moments(
    conditional: Callable[[Float[Array, "..."]], Moments],
    mean: Float[Array, "..."],
    var: Float[Array, "..."],
    num_points: int,
    places: Places = (),
) -> Moments:
    """E[y] and Var[y] = E[Var[y | f]] + Var[E[y | f]], from `conditional`: f -> (E[y | f], Var[y | f])."""

    def with_nodes(mean, sd, z, weights):
        weights, (y_mean, y_var) = weights * nodes.density(z), conditional(nodes.latents(mean, sd, z))
        average = nodes.total(weights * y_mean)
        return average, nodes.total(weights * (y_var + (y_mean - average) ** 2))

    def few(mean, sd):
        return with_nodes(mean, sd, *nodes.uniform(mean, num_points, nodes.short_reach(num_points)))

    def many(mean, sd):
        fixed = jax.lax.stop_gradient(nodes.over_the_bulk(*jax.lax.stop_gradient((mean, sd, places))))
        return with_nodes(mean, sd, *jax.lax.optimization_barrier(fixed))

    sd = standard_deviation(var)
    # Without the checkpoint, room for what the derivative with many nodes needs would be filled where few are enough.
    return jax.lax.cond(nodes.few_are_enough(mean, sd, places, num_points), few, jax.checkpoint(many), mean, sd)


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
