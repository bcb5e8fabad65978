"""Gaussians over function values at N inputs and P outputs, with their covariance in one of the four `mercer.layouts`."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.layouts import Layout
from mercer.linalg import matmul, safe_cholesky
from mercer.parameters import Module, constant


class Gaussian(Module):
    """N(mean, cov): mean [N, P], and cov in the layout it was asked for. Unpacks as `mean, cov = gaussian`."""

    mean: Float[Array, "N P"] = constant()
    cov: Array = constant()
    layout: Layout = eqx.field(static=True, default="diag")

    def __iter__(self):
        return iter((self.mean, self.cov))

    @property
    def variance(self) -> Float[Array, "N P"]:
        """The marginal variances, whatever the layout."""
        if self.layout == "outputs":
            return jnp.diagonal(self.cov, axis1=1, axis2=2)
        if self.layout == "inputs":
            return jnp.diagonal(self.cov, axis1=1, axis2=2).T
        if self.layout == "full":
            return jnp.einsum("npnp->np", self.cov)
        return self.cov

    def _groups(self) -> tuple[Float[Array, "G J"], Float[Array, "G J J"]]:
        """The mean and covariance as G independent groups of J jointly Gaussian values."""
        N, P = self.mean.shape
        if self.layout == "diag":
            return self.mean.reshape(-1, 1), self.cov.reshape(-1, 1, 1)
        if self.layout == "outputs":
            return self.mean, self.cov
        if self.layout == "inputs":
            return self.mean.T, self.cov
        return self.mean.reshape(1, -1), self.cov.reshape(1, N * P, N * P)

    def sample(self, key: PRNGKeyArray, num: int = 1) -> Float[Array, "S N P"]:
        """`num` draws. Values between which the layout holds no covariance are drawn independently."""
        mean, cov = self._groups()
        if self.layout == "diag":
            root = jnp.sqrt(jnp.maximum(cov, 0.0))
        else:
            root = safe_cholesky(cov, "the covariance of the sample").factor
        noise = jax.random.normal(key, (num, *mean.shape), mean.dtype)
        draws = mean + matmul(root, noise[..., None])[..., 0]
        if self.layout == "inputs":
            return draws.mT
        return draws.reshape(num, *self.mean.shape)
