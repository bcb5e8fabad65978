"""Any function of each unit as an activation, by Gauss-Hermite quadrature.

With u = s1 z and v = s2 z', where z and z' are standard normal with correlation c, and h_j the normalised Hermite polynomials,
E[f(u) g(v)] = sum_j a_j(s1) b_j(s2) c^j, a_j(s) = E[f(s z) h_j(z)] (Mehler's formula). The expectations over one number are by
quadrature with n points, and n terms are taken. For c = 1 this is the quadrature of f(s1 z) g(s2 z), as the polynomials are
orthonormal also under the rule. The rule over two numbers would take n^2 values of the function for each pair of inputs; here
there are n for each input and n products for each pair, the matrix is positive semi-definite whatever n, and c = 1 is nothing
special. Of a function that is odd or even, such as tanh, every other term is zero, and left out.
"""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer import validation
from mercer.kernels.nngp.activations import Activation, norm_and_cosine
from mercer.roots import safe_sqrt

Function = Callable[[Array], Array]
DEFAULT_POINTS = 64


@functools.lru_cache(maxsize=16)
def _rule(num_points: int) -> tuple[np.ndarray, np.ndarray]:
    """The points z_i [n], and the table w_i h_j(z_i) [n, n] of weights times polynomials.

    They are the eigenvalues of the matrix that multiplies by z, and its eigenvectors sqrt(w_i) h_j(z_i), as h_0 = 1.
    """
    next_to = np.sqrt(np.arange(1.0, num_points))
    points, vectors = np.linalg.eigh(np.diag(next_to, 1) + np.diag(next_to, -1))
    return points, vectors * vectors[0]


def _coefficients(f: Function, num_points: int, k: Float[Array, "..."], terms: slice) -> Float[Array, "J ..."]:
    """a_j(sqrt(k)) = E[f(sqrt(k) z) h_j(z)], for some j."""
    points, table = _rule(num_points)
    values = f(safe_sqrt(k) * jnp.asarray(points, k.dtype).reshape(-1, *[1] * k.ndim))
    return jnp.tensordot(jnp.asarray(table[terms], k.dtype), values, axes=1, precision="highest")


def _parity(f: Function) -> int | None:
    """0 for an even function, 1 for an odd one, None for others; seen at numbers of all sizes, up to rounding."""
    with jax.ensure_compile_time_eval():
        u = jnp.logspace(-4.0, 3.0, 301)
        right, left = np.asarray(f(u)), np.asarray(f(-u))
    rounding = 4.0 * np.finfo(right.dtype).eps * np.maximum.accumulate(np.abs(right))
    if np.all(np.abs(right - left) <= rounding):
        return 0
    return 1 if np.all(np.abs(right + left) <= rounding) else None


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def expectation(f: Function, g: Function, num_points: int, k11: Array, k12: Array, k22: Array) -> Array:
    """E[f(u) g(v)]. Its derivatives are expectations too, of f'(u) g'(v) and such, and need no more than f' and g'."""
    shape = jnp.broadcast_shapes(k11.shape, k12.shape, k22.shape)
    c = norm_and_cosine(k11, k12, k22)[1]
    parities = {parity for parity in (_parity(f), _parity(g)) if parity is not None}
    if len(parities) == 2:
        return jnp.zeros(shape, c.dtype)
    first, step = (parities.pop(), 2) if parities else (0, 1)
    terms = slice(first, None, step)
    a, b = _coefficients(f, num_points, k11, terms), _coefficients(g, num_points, k22, terms)
    ratio = c**step

    def add(total, terms):
        return total * ratio + terms[0] * terms[1], None

    # Horner's rule, some terms in one pass over the arrays
    return c**first * jax.lax.scan(add, jnp.zeros(shape, c.dtype), (a, b), reverse=True, unroll=16)[0]


@expectation.defjvp
def _expectation_jvp(f, g, num_points, primals, tangents):
    (k11, k12, k22), (d11, d12, d22) = primals, tangents
    df, dg = derivative(f), derivative(g)
    slope12 = expectation(df, dg, num_points, k11, k12, k22)
    # By Stein's lemma E[f''(u) g(v)] = (E[u f'(u) g(v)] - k12 E[f'(u) g'(v)]) / k11, of which half is the slope in k11. Where
    # a variance is 0 it is at its least, and nothing moves it.
    slope11 = _over(expectation(lambda u: u * df(u), g, num_points, k11, k12, k22) - k12 * slope12, 2.0 * k11)
    slope22 = _over(expectation(f, lambda v: v * dg(v), num_points, k11, k12, k22) - k12 * slope12, 2.0 * k22)
    value = expectation(f, g, num_points, k11, k12, k22)
    return value, slope12 * d12 + slope11 * d11 + slope22 * d22


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _square(f: Function, num_points: int, k: Array) -> Array:
    """E[f(u)^2], which is `expectation` for c = 1."""
    return _coefficients(lambda u: f(u) ** 2, num_points, k, slice(1))[0]


@_square.defjvp
def _square_jvp(f, num_points, primals, tangents):
    (k,), (dk,) = primals, tangents
    df = derivative(f)
    # The three slopes of `expectation` taken together: E[u f'(u) f(u)] / k, and E[f'(u)^2] for a variance of 0.
    slope = _over(_coefficients(lambda u: u * df(u) * f(u), num_points, k, slice(1))[0], k)
    return _square(f, num_points, k), jnp.where(k > 0.0, slope, df(jnp.zeros_like(k)) ** 2) * dk


def _over(a: Array, b: Array) -> Array:
    return jnp.where(b > 0.0, a / jnp.where(b > 0.0, b, 1.0), 0.0)


def derivative(f: Function) -> Function:
    """f', for an f of each entry."""
    return jax.grad(lambda u: jnp.sum(f(u)))


class Elementwise(Activation):
    """fn(u), for any function of each entry of an array: E[fn(u) fn(v)] by quadrature with `num_points` points.

    For smooth functions the error falls with the number of points until it is that of rounding; where a function changes over
    a small part of the spread of u, more are needed. At a kink it falls slowly, and a closed form is better (`Relu`). A tangent
    kernel needs the derivative of fn, which is `jax.grad`'s. fn is not a parameter, and holds none.
    """

    fn: Callable[[Array], Array] = eqx.field(static=True)
    num_points: int = eqx.field(static=True, default=DEFAULT_POINTS)

    def __check_init__(self):
        validation.elementwise(self.fn, "Elementwise: fn")
        if not isinstance(self.num_points, int) or isinstance(self.num_points, bool) or self.num_points < 2:
            raise ValueError(f"Elementwise: num_points expects a whole number of at least 2, got {self.num_points!r}")
        if self.num_points > _MOST_POINTS:
            raise ValueError(f"Elementwise: num_points expects at most {_MOST_POINTS}, got {self.num_points}")

    def dual(self, k11, k12, k22):
        return expectation(self.fn, self.fn, self.num_points, k11, k12, k22)

    def square(self, k11):
        return _square(self.fn, self.num_points, k11)

    def dual_derivative(self, k11, k12, k22):
        slope = derivative(self.fn)
        return expectation(slope, slope, self.num_points, k11, k12, k22)

    def mean(self, k11):
        return _coefficients(self.fn, self.num_points, k11, slice(1))[0]

    def _num_values(self):
        return self.num_points

    def check_derivative(self):
        validation.elementwise(derivative(self.fn), "Elementwise: the derivative of fn, which NTK needs,")


_MOST_POINTS = 512  # of which there are tables of the square
