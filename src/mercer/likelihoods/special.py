"""The normal distribution's tail, logs of sigmoids and of the gamma function, as quadrature needs them: at very many nodes.

XLA makes one loop of vector instructions of these. JAX's own are several times slower, most of all with a derivative,
and its log_ndtr in single precision has few digits in parts of the right tail.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

_SQRT_2PI = math.sqrt(2.0 * math.pi)
_SPLIT = 4.0


@functools.cache
def _tail_coefficients() -> tuple[float, ...]:
    """Of the polynomial in `_scaled_tail`, whose relative error is about 1e-14."""
    from scipy.special import erfcx

    def smooth(t):
        x = _SPLIT * (1.0 + t) / (1.0 - t)
        return 0.5 * erfcx(x / math.sqrt(2.0)) * (x + _SPLIT)

    return tuple(np.polynomial.chebyshev.cheb2poly(np.polynomial.chebyshev.chebinterpolate(smooth, 20)).tolist())


def _polynomial(coefficients, x):
    """By Horner's scheme, the constant first."""
    value = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value


def _scaled_tail(x):
    """Phi(-|x|) exp(x^2 / 2), which is a smooth function of (|x| - 4) / (|x| + 4) divided by |x| + 4."""
    distance = jnp.minimum(jnp.abs(x), 1e18)  # finite
    inverse = 1.0 / (distance + _SPLIT)
    return inverse * _polynomial(_tail_coefficients(), (distance - _SPLIT) * inverse)


@jax.custom_jvp
def ndtr(x):
    """Phi(x), the probability that a standard normal variable is below x."""
    tail = _scaled_tail(x) * jnp.exp(-0.5 * x**2)
    return jnp.where(x < 0, tail, 1.0 - tail)


@ndtr.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    return ndtr(x), dx * jnp.exp(-0.5 * x**2) / _SQRT_2PI


@jax.custom_jvp
def log_ndtr(x):
    """log Phi(x)."""
    tail, exponent = _scaled_tail(x), -0.5 * x**2
    return jnp.where(x < 0, jnp.log(tail) + exponent, jnp.log1p(-tail * jnp.exp(exponent)))


@log_ndtr.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    return log_ndtr(x), dx * hazard(x)


@jax.custom_jvp
def hazard(x):
    """The derivative of log Phi(x): the density over Phi(x)."""
    tail, decay = _scaled_tail(x), jnp.exp(-0.5 * x**2)
    return jnp.where(x < 0, 1.0, decay) / (_SQRT_2PI * jnp.where(x < 0, tail, 1.0 - tail * decay))


@hazard.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    ratio = hazard(x)
    return ratio, -dx * ratio * (x + ratio)


_LOG1P = tuple(2.0 / (2 * k + 1) for k in range(15))


@jax.custom_jvp
def softplus(x):
    """log(1 + exp(x))."""
    # log(1 + e) = 2 artanh(w), w = e / (2 + e) <= 1/3, by its series: a third of the time of log1p.
    e = jnp.exp(-jnp.abs(x))
    w = e / (2.0 + e)
    return jnp.maximum(x, 0.0) + w * _polynomial(_LOG1P, w**2)


@softplus.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    return softplus(x), dx * jax.nn.sigmoid(x)


def log_sigmoid(x):
    """log(1 / (1 + exp(-x)))."""
    return -softplus(-x)


def _between(lower, upper):
    """Phi(upper) - Phi(lower), lower < upper, lower < -upper: its log, and its derivatives divided by it."""
    inside = upper > 0  # the tails on both sides are missing; else one tail is, of another
    exponent = jnp.where(inside, 0.0, -0.5 * upper**2)
    at_upper, at_lower = (jnp.exp(-0.5 * x**2 - exponent) for x in (upper, lower))
    tails = [_scaled_tail(x) * factor for x, factor in ((upper, at_upper), (lower, at_lower))]
    probability = jnp.where(inside, 1.0 - tails[0] - tails[1], tails[0] - tails[1])  # over exp(exponent)
    inverse = 1.0 / (_SQRT_2PI * probability)
    return jnp.log(probability) + exponent, -at_lower * inverse, at_upper * inverse


@jax.custom_jvp
def log_ndtr_between(lower, upper):
    """log(Phi(upper) - Phi(lower)), lower < upper."""
    mirrored = lower > -upper  # there is as much between -upper and -lower
    return _between(jnp.where(mirrored, -upper, lower), jnp.where(mirrored, -lower, upper))[0]


@log_ndtr_between.defjvp
def _(primals, tangents):
    (lower, upper), (d_lower, d_upper) = primals, tangents
    mirrored = lower > -upper
    value, by_lower, by_upper = _between(jnp.where(mirrored, -upper, lower), jnp.where(mirrored, -lower, upper))
    first, second = jnp.where(mirrored, -by_upper, by_lower), jnp.where(mirrored, -by_lower, by_upper)
    return value, first * d_lower + second * d_upper


# Stirling's series of log Gamma(x) and of its derivative, in 1 / x^2.
_LOG_GAMMA = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def _shifted(x):
    """x, or x + 8 where it is small; whether it is; and the four factors whose product is x (x + 1) ... (x + 7)."""
    small = x < 8.0
    pair = jnp.where(small, x * (x + 7.0), 1.0)
    return jnp.where(small, x + 8.0, x), small, (pair, pair + 6.0, pair + 10.0, pair + 12.0)


@jax.custom_jvp
def log_gamma(x):
    """log Gamma(x), x > 0."""
    shifted, small, factors = _shifted(x)
    inverse = 1.0 / shifted
    series = (shifted - 0.5) * jnp.log(shifted) - shifted + 0.5 * math.log(2.0 * math.pi)
    series = series + inverse * _polynomial(_LOG_GAMMA, inverse**2)
    return series - jnp.where(small, jnp.log(math.prod(factors)), 0.0)


@log_gamma.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    return log_gamma(x), dx * digamma(x)


@jax.custom_jvp
def digamma(x):
    """The derivative of log Gamma(x), x > 0."""
    shifted, small, factors = _shifted(x)
    inverse = 1.0 / shifted
    series = jnp.log(shifted) - 0.5 * inverse - inverse**2 * _polynomial(_DIGAMMA, inverse**2)
    return series - jnp.where(small, (2.0 * x + 7.0) * sum(1.0 / factor for factor in factors), 0.0)


@digamma.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    return digamma(x), dx * jax.scipy.special.polygamma(1, x)
