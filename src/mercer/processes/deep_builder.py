"""The layers of a deep process for given inputs, at values from which training goes well.

All layers but the last have a mean that passes the input on, and begin with a q(u) of next to no variance; the last has mean 0
and begins at its prior (Salimbeni and Deisenroth, 2017).

Two of these values matter for what more layers gain (docs/how-to/deep.md has the figures). From a small variance of their
kernels, as in GPflux, hidden layers have hardly begun to bend when training ends. And from a q(u) with next to no variance the
bound is worse for long (Adam lets it grow slowly, probably as it remembers how steep the divergence was), but predictions
are better.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from mercer import validation
from mercer.inducing import Points, kmeans
from mercer.kernels import Kernel
from mercer.means import Projection
from mercer.processes.prior import GP
from mercer.processes.sparse import Sparse
from mercer.validation import AnyArray

_WIDEST = 30  # hidden layers by default
_ROOT = 1e-5  # of the covariance of q(u) in hidden layers, times the identity


def layers_of(
    X: Float[AnyArray, "N D"],
    num_layers: int,
    num_outputs: int,
    num_inducing: int,
    width: int | None,
    kernel: Callable[[Array], Kernel],
    key: PRNGKeyArray,
) -> list[Sparse]:
    """Sparse posteriors, one for each layer, as `Deep.of` says."""
    X = validation.inputs(X)
    counts = {"num_layers": num_layers, "num_outputs": num_outputs, "num_inducing": num_inducing}
    for name, count in (counts if width is None else counts | {"width": width}).items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"Deep.of: {name} expects a whole number, at least 1, got {count!r}")
    D = X.shape[1]
    width = min(D, _WIDEST) if width is None else width
    Z: Any = kmeans(X, min(num_inducing, len(X)), key=key)
    layers = []
    for _ in range(num_layers - 1):
        mean = Projection.pca(X, width)
        q_sqrt = jnp.broadcast_to(_ROOT * jnp.eye(len(Z), dtype=Z.dtype), (width, len(Z), len(Z)))
        layers.append(Sparse(GP(_kernel(kernel, X), mean), Points(Z), width, q_sqrt=q_sqrt))
        # The inputs and the inducing points of the next layer are what this one makes of them at the start.
        X, Z = mean(X), mean(Z)
    return [*layers, Sparse(GP(_kernel(kernel, X)), Points(Z), num_outputs)]


def _kernel(kernel: Callable[[Array], Kernel], X: Float[Array, "N D"]) -> Kernel:
    """A kernel of variance 1 with a lengthscale for each column, at first the root of the number of columns."""
    D = X.shape[1]
    made = kernel(jnp.full(D, D**0.5, X.dtype))
    if not isinstance(made, Kernel):
        raise ValueError(
            "Deep.of: kernel expects a function from lengthscales to a kernel of one output, "
            f"it gave {type(made).__name__}"
        )
    return made
