"""Variational Fourier features: sines and cosines on a box, for Matern kernels (Hensman, Durrande and Solin, 2017).

With H the function space of the kernel on [lower, upper], u_m = <phi_m, f>_H. By the reproducing property the covariance
with f(x) is phi_m(x) itself, whatever the kernel's parameters, and the covariance of the variables is <phi_m, phi_m'>_H, a
diagonal matrix plus one of low rank (paper 004, section 6.4). Near the ends of the box the functions, which are periodic,
serve badly however many there are: the box must lie well outside of the data.
"""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from mercer.inducing.base import InducingVariables
from mercer.parameters import as_parameter, constant, is_concrete


class FourierFeatures(InducingVariables):
    """u_m = <phi_m, f>_H, phi = 1, cos(w_j (x - lower)), sin(w_j (x - lower)), w_j = 2 pi j / (upper - lower), j = 1 ... F.

    In one dimension these are 2F + 1 variables. In several, each term of the kernel is a product of kernels of one column
    each, and has all products of their functions. `terms` says which columns each term sees: by default there is one term
    that sees all of them; `additive` is one term for each column. `num_frequencies` is F, or one for each column.
    """

    fixed = True

    lower: Float[Array, " D"] = constant()
    upper: Float[Array, " D"] = constant()
    num_frequencies: tuple[int, ...] = eqx.field(static=True)
    terms: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def __init__(
        self,
        lower: ArrayLike,
        upper: ArrayLike,
        num_frequencies: int | Sequence[int],
        terms: Sequence[Sequence[int]] | None = None,
    ):
        corners = [jnp.atleast_1d(as_parameter(corner)) for corner in (lower, upper)]
        counts = tuple(F.item() if isinstance(F, np.generic) else F for F in np.atleast_1d(num_frequencies))
        shapes = [corners[0].shape, corners[1].shape, (len(counts),)]
        if not all(len(shape) == 1 for shape in shapes) or len({shape for shape in shapes if shape != (1,)}) > 1:
            raise ValueError(
                "FourierFeatures: lower, upper and num_frequencies expect a number or one for each column, "
                f"got shapes {shapes[0]}, {shapes[1]} and {shapes[2]}"
            )
        D = max(shape[0] for shape in shapes)
        self.lower, self.upper = (jnp.broadcast_to(corner, (D,)) for corner in corners)
        self.num_frequencies = counts * (D // len(counts))
        self.terms = (tuple(range(D)),) if terms is None else tuple(tuple(int(d) for d in term) for term in terms)

    def __check_init__(self):
        D = len(self.num_frequencies)
        if not all(isinstance(F, int) and F >= 0 for F in self.num_frequencies):
            raise ValueError(
                f"FourierFeatures: num_frequencies expects whole numbers of at least 0, got {self.num_frequencies}"
            )
        columns = set(range(D))
        if not self.terms or not all(
            term and len(set(term)) == len(term) and columns >= set(term) for term in self.terms
        ):
            raise ValueError(
                f"FourierFeatures: terms expects, for each term, different column numbers from 0 to {D - 1}, got {self.terms}"
            )
        if self.lower.shape != (D,) or self.upper.shape != (D,):
            raise ValueError(
                f"FourierFeatures: lower and upper expect shape ({D},), got {self.lower.shape} and {self.upper.shape}"
            )
        if is_concrete(self.lower) and is_concrete(self.upper):
            lower, upper = np.asarray(self.lower), np.asarray(self.upper)
            if not (np.isfinite(lower).all() and np.isfinite(upper).all() and (lower < upper).all()):
                raise ValueError(
                    f"FourierFeatures: lower and upper expect finite values with lower < upper, got {lower} and {upper}"
                )

    @classmethod
    def additive(cls, lower: ArrayLike, upper: ArrayLike, num_frequencies: int | Sequence[int]) -> "FourierFeatures":
        """For a sum of kernels of one column each, the columns in order."""
        D = len(cls(lower, upper, num_frequencies).num_frequencies)
        return cls(lower, upper, num_frequencies, terms=[(d,) for d in range(D)])

    @property
    def dimension(self) -> int:
        """D, the number of input columns."""
        return len(self.num_frequencies)

    @property
    def num(self):
        sizes = [2 * F + 1 for F in self.num_frequencies]
        return sum(int(np.prod([sizes[d] for d in term])) for term in self.terms)

    def frequencies(self, d: int) -> Float[Array, " F"]:
        """The angular frequencies w_j along column d."""
        j = jnp.arange(1, self.num_frequencies[d] + 1).astype(self.lower.dtype)
        return 2.0 * jnp.pi * j / (self.upper[d] - self.lower[d])
