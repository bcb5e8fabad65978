"""Variational Fourier features: sines and cosines on a box, for Matern kernels (Hensman, Durrande and Solin, 2017).

With H the function space of the kernel on [lower, upper], u_m = <phi_m, f>_H. By the reproducing property the covariance
with f(x) is phi_m(x) itself, whatever the kernel's parameters, and the covariance of the variables is <phi_m, phi_m'>_H, a
diagonal matrix plus one of low rank (paper 004, section 6.4). Near the ends of the box the functions, which are periodic,
serve badly however many there are: the box must lie well outside of the data.
"""

import math
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer.inducing.base import InducingVariables
from mercer.parameters import as_parameter, constant, is_concrete
from mercer.validation import OneOrMany


class FourierFeatures(InducingVariables):
    """u_m = <phi_m, f>_H, phi = 1, cos(w_j (x - lower)), sin(w_j (x - lower)), w_j = 2 pi j / (upper - lower), j = 1 ... F.

    In one dimension these are 2F + 1 variables. In several the kernel says which there are: it is a sum of terms, each a product
    of kernels of one column each, and each term has variables of its own, all products of the functions of its columns.
    `num_frequencies` is F, or one for each column.
    """

    lower: Float[Array, " D"] = constant()
    upper: Float[Array, " D"] = constant()
    num_frequencies: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, lower: OneOrMany, upper: OneOrMany, num_frequencies: int | Sequence[int]):
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

    def __check_init__(self):
        D = len(self.num_frequencies)
        if not all(isinstance(F, int) and F >= 0 for F in self.num_frequencies):
            raise ValueError(
                f"FourierFeatures: num_frequencies expects whole numbers of at least 0, got {self.num_frequencies}"
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

    @property
    def dimension(self) -> int:
        """D, the number of input columns."""
        return len(self.num_frequencies)

    @property
    def num(self) -> int:
        """How many variables there are for a kernel that is one product over all columns."""
        return math.prod(2 * F + 1 for F in self.num_frequencies)

    def frequencies(self, d: int) -> Float[Array, " F"]:
        """The angular frequencies w_j along column d."""
        j = jnp.arange(1, self.num_frequencies[d] + 1).astype(self.lower.dtype)
        return 2.0 * jnp.pi * j / (self.upper[d] - self.lower[d])

    def check_inputs(self, X):
        self.check_box(X, X, "X")

    def check_box(self, lowest: Float[Array, "N D"], highest: Float[Array, "N D"], name: str) -> None:
        """Refuses inputs, or boxes given by their corners, that do not lie in the box."""
        if lowest.shape[1] != self.dimension:
            raise ValueError(
                f"FourierFeatures on {self.dimension} columns expects {name} with as many, got {lowest.shape[1]}"
            )
        if not all(map(is_concrete, (lowest, highest, self.lower, self.upper))) or not len(lowest):
            return
        lowest, highest = np.asarray(lowest).min(axis=0), np.asarray(highest).max(axis=0)
        lower, upper = np.asarray(self.lower, lowest.dtype), np.asarray(self.upper, highest.dtype)
        for d, (found, box) in enumerate(
            zip(zip(lowest, highest, strict=True), zip(lower, upper, strict=True), strict=True)
        ):
            if found[0] < box[0] or found[1] > box[1]:
                raise ValueError(
                    f"FourierFeatures: {name} must lie in the box [{box[0]:.6g}, {box[1]:.6g}] of column {d}, and well inside it "
                    f"for a good approximation; got values from {found[0]:.6g} to {found[1]:.6g}"
                )
