"""The layers of a deep process for given inputs, at values from which training goes well.

All layers but the last have a mean that passes the input on, and begin as that mean with next to no variance; the last has
mean 0 and begins at its prior (Salimbeni and Deisenroth, 2017). So a deep process begins as a shallow one.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from mercer import validation
from mercer.inducing import Points, kmeans
from mercer.kernels import Kernel
from mercer.means import Projection
from mercer.processes.prior import GP
from mercer.processes.sparse import Sparse
from mercer.validation import AnyArray

_WIDEST = 30  # hidden layers by default
_SCALE = 1.0
_VARIANCE = 1.0  # of the kernels of hidden layers
_ROOT = 1e-5  # of the covariance of q(u) in hidden layers, times the identity


def layers_of(
    X: Float[AnyArray, "N D"],
    num_layers: int,
    num_outputs: int,
    num_inducing: int,
    width: int | None,
    kernel: Callable[[Array, float], Kernel],
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
        layers.append(Sparse(GP(_kernel(kernel, X, _VARIANCE), mean), Points(Z), width, q_sqrt=q_sqrt))
        # The inputs and the inducing points of the next layer are what this one makes of them at the start.
        X, Z = mean(X), mean(Z)
    return [*layers, Sparse(GP(_kernel(kernel, X, 1.0)), Points(Z), num_outputs)]


def _kernel(kernel: Callable[[Array, float], Kernel], X: Float[Array, "N D"], variance: float) -> Kernel:
    """The kernel with a lengthscale for each column: the root of the number of columns."""
    D = X.shape[1]
    made = kernel(jnp.full(D, _SCALE * D**0.5, X.dtype), variance)
    if not isinstance(made, Kernel):
        raise ValueError(
            "Deep.of: kernel expects a function from lengthscales and a variance to a kernel of one output, "
            f"got {type(made).__name__}"
        )
    return made
