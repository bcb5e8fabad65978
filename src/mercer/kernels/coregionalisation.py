"""Outputs that are mixtures of latent functions: f(x) = W g(x) (paper 004, section 4.1.1, equation 37)."""

from collections.abc import Sequence
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.kernels.base import Kernel, Mixing
from mercer.kernels.maps import Draw, Map
from mercer.kernels.multioutput import LatentKernel, SeparateIndependent, SharedIndependent, check_kernels
from mercer.layouts import mixed_outputs
from mercer.linalg.products import matmul
from mercer.parameters import constant, param, real
from mercer.validation import AnyArray


class Coregionalisation(LatentKernel):
    """f(x) = W g(x), W [P, L]: k(x, x') = W diag(k_l(x, x')) W^T (paper 004, equation 37)."""

    W: eqx.AbstractVar[Float[Array, "P L"]]

    def __check_init__(self):
        self._check_W("(P, L)")

    def _check_W(self, expected: str) -> None:
        shape = jnp.shape(self.W)
        if len(shape) != 2 or shape[1] != self.num_latents or 0 in shape:
            raise ValueError(f"{type(self).__name__}: W expects the shape {expected}, got {shape}")

    @property
    def num_outputs(self):  # type: ignore[override]
        return self.W.shape[0]

    def mixing(self, X):
        return Mixing(self.W[None], X)

    def _full(self, X, X2):
        return jnp.einsum("pl,lnm,ql->npmq", self.W, self.latent._inputs(X, X2), self.W, precision="highest")

    def _inputs(self, X, X2):
        return jnp.einsum("pl,lnm->pnm", self.W**2, self.latent._inputs(X, X2), precision="highest")

    def _outputs(self, X):
        return mixed_outputs(self.W[None], self.latent._diagonal(X), "outputs")

    def _diagonal(self, X):
        return mixed_outputs(self.W[None], self.latent._diagonal(X), "diag")

    def _between(self, X, p, X2, p2):
        K = self.latent._inputs(X, X2)
        return jnp.einsum("nl,lnm,ml->nm", self.W[p], K, self.W[p2], precision="highest")

    def draw(self, num_features, *, key):
        return self.of_latents(self.latent.draw(num_features, key=key))

    def of_latents(self, latent: Draw) -> Draw:
        """The outputs, given the latent functions."""
        return Draw(_Mixture(self.W, latent), latent)


class LinearCoregionalisation(Coregionalisation):
    """f(x) = W g(x), each of the L independent g_l with a kernel of its own. W is [P, L]."""

    kernels: tuple[Kernel, ...]
    W: Float[Array, "P L"] = param(real)

    def __init__(self, kernels: Sequence[Kernel], W: Float[AnyArray, "P L"] | Sequence[Sequence[float]]):
        check_kernels("LinearCoregionalisation", kernels)
        self.kernels, self.W = tuple(kernels), W

    @classmethod
    def of(cls, kernel: Kernel, num_outputs: int, num_shared: int, own: bool = True, *, key: PRNGKeyArray) -> Self:
        """A start: latent functions that all outputs share, and with `own` one more for each output, all with this kernel.

        The entries of W are 0.5 times standard normal numbers for those that are shared, and 0.3 for an output's own. All of
        them are trained: an output's own function may come to serve others, which `SharedAndOwn` does not allow.
        """
        W = _random_weights("LinearCoregionalisation", num_outputs, num_shared, key=key)
        W = jnp.concatenate([W, 0.3 * jnp.eye(num_outputs, dtype=W.dtype)], axis=1) if own else W
        return cls([kernel] * W.shape[1], W)

    def __check_init__(self):
        self._check_W(f"(P, {self.num_latents}), one column for each kernel")

    @property
    def latent(self):
        return SeparateIndependent(self.kernels)


class SharedAndOwn(Coregionalisation):
    """f_p(x) = sum_r shared_pr g_r(x) + own_p h_p(x): R functions that all outputs share, and one that is each output's alone.

    It is `LinearCoregionalisation` with the part of W that belongs to h held diagonal (Teh, Seeger and Jordan, 2005; Nguyen and
    Bonilla, 2014): what an output does on its own says nothing of the others. `kernels` are those of g, then those of h.
    """

    kernels: tuple[Kernel, ...]
    shared: Float[Array, "P R"] = param(real)
    own: Float[Array, " P"] = param(real)

    def __init__(
        self,
        kernels: Sequence[Kernel],
        shared: Float[AnyArray, "P R"] | Sequence[Sequence[float]],
        own: Float[AnyArray, " P"] | Sequence[float],
    ):
        check_kernels("SharedAndOwn", kernels)
        self.kernels, self.shared, self.own = tuple(kernels), shared, own

    @classmethod
    def of(cls, kernel: Kernel, num_outputs: int, num_shared: int, *, key: PRNGKeyArray) -> Self:
        """A start, all functions with this kernel: `shared` is 0.5 times standard normal numbers, `own` is 0.3."""
        shared = _random_weights("SharedAndOwn", num_outputs, num_shared, key=key)
        return cls([kernel] * (num_shared + num_outputs), shared, jnp.full((num_outputs,), 0.3, shared.dtype))

    def __check_init__(self):
        P = jnp.size(self.own)
        if jnp.ndim(self.own) != 1 or jnp.ndim(self.shared) != 2 or jnp.shape(self.shared)[0] != P:
            shapes = f"{jnp.shape(self.shared)} and {jnp.shape(self.own)}"
            raise ValueError(f"SharedAndOwn: shared and own expect the shapes (P, R) and (P,), got {shapes}")
        self._check_W(f"(P, R + P) with P = {P} and {len(self.kernels)} kernels")

    @property
    def W(self) -> Float[Array, "P L"]:  # type: ignore[override]
        """[shared, diag(own)]."""
        return jnp.concatenate([self.shared, jnp.diag(self.own)], axis=1)

    @property
    def latent(self):
        return SeparateIndependent(self.kernels)


class IntrinsicCoregionalisation(Coregionalisation):
    """f(x) = W g(x), all g_l with one kernel: k(x, x') = k(x, x') B with B = W W^T. W is [P, L]."""

    kernel: Kernel
    W: Float[Array, "P L"] = param(real)

    def __init__(self, kernel: Kernel, W: Float[AnyArray, "P L"] | Sequence[Sequence[float]]):
        check_kernels("IntrinsicCoregionalisation", [kernel])
        self.kernel, self.W = kernel, W

    @property
    def latent(self):
        return SharedIndependent(self.kernel, jnp.shape(self.W)[1] if jnp.ndim(self.W) == 2 else 1)

    @property
    def B(self) -> Float[Array, "P P"]:
        """W W^T, the covariance of the outputs at an input of variance 1."""
        return matmul(self.W, self.W.T)

    def _full(self, X, X2):
        return jnp.einsum("nm,pq->npmq", self.latent._inputs(X, X2)[0], self.B)

    def _inputs(self, X, X2):
        return jnp.sum(self.W**2, axis=1)[:, None, None] * self.latent._inputs(X, X2)[0]

    def _between(self, X, p, X2, p2):
        return self.latent._inputs(X, X2)[0] * self.B[p[:, None], p2]


class _Mixture(Map):
    """W g(x)."""

    W: Float[Array, "P L"] = constant()
    latent: Draw = constant()

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        return matmul(self.latent(X), self.W.astype(X.dtype).T)


def _random_weights(name: str, num_outputs: int, num_shared: int, *, key: PRNGKeyArray) -> Float[Array, "P R"]:
    if num_outputs < 1 or num_shared < 1:
        raise ValueError(f"{name}.of expects at least 1 of each, got {num_outputs} and {num_shared}")
    return 0.5 * jax.random.normal(key, (num_outputs, num_shared))
