"""What a process predicts: a Gaussian over function values at N inputs and P outputs, or a mixture of such Gaussians.

The covariance is in one of the four `mercer.layouts`. Whoever takes a prediction apart does so through `average`, `log_average`,
`moments` and `scaled`, which are said for both kinds here and nowhere else.
"""

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.deprecation import key_by_name
from mercer.layouts import Layout, independent_outputs, product_in_layout
from mercer.linalg import matmul, safe_cholesky
from mercer.linalg.products import for_each_entry
from mercer.parameters import Module, constant
from mercer.roots import safe_sqrt
from mercer.validation import AnyArray

_HALVINGS = 60  # of an interval that holds a quantile


class Prediction(Module):
    """A distribution of function values, with `mean`, `cov`, `variance` and `layout`. Unpacks as `mean, cov = prediction`."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Array]:
        """The mean and the covariance."""

    @abc.abstractmethod
    def as_mixture(self) -> "Mixture":
        """The prediction as a mixture; of a Gaussian, that of itself alone."""

    def components(self) -> "list[Gaussian]":
        """The Gaussians that the prediction is a mixture of."""
        mixture = self.as_mixture()
        return [Gaussian(mean, cov, mixture.layout) for mean, cov in zip(mixture.means, mixture.covs, strict=True)]

    @abc.abstractmethod
    def average(self, term: "Callable[[Gaussian], Array]") -> Array:
        """What is an expectation under the prediction, from its value under a Gaussian."""

    @abc.abstractmethod
    def log_average(self, log_term: "Callable[[Gaussian], Array]", log_weights: Array | None = None) -> Array:
        """The log of what is an expectation under the prediction, from its log under a Gaussian.

        The components of a mixture may have importance weights, as logs [S, N].
        """

    @abc.abstractmethod
    def moments(self, given: "Callable[[Gaussian], tuple[Array, Array]]") -> "Gaussian":
        """The mean and the variance of a quantity, from those that it has under a Gaussian."""

    @abc.abstractmethod
    def of_components(self, given: "Callable[[Gaussian], tuple[Array, Array]]") -> "Gaussian | Mixture":
        """The distribution of a quantity that is Gaussian under each Gaussian, from its means and variances there."""

    @abc.abstractmethod
    def quantiles(self, levels: Float[AnyArray, " K"] | Sequence[float]) -> Float[Array, "K N P"]:
        """The values that each output stays below with these probabilities, at each input."""

    @abc.abstractmethod
    def scaled(self, root: Float[Array, " P"]) -> Self:
        """The same mean, with deviations from it multiplied by `root`, one number for each output."""

    @abc.abstractmethod
    def in_layout(self, layout: Layout) -> Self:
        """What the prediction says in a layout that holds less than its own."""

    @abc.abstractmethod
    def without_rounding(self) -> Self:
        """The same with 0 for marginal variances that rounding made negative. Wider layouts are left as they are."""

    @abc.abstractmethod
    @key_by_name
    def sample(self, num: int = 1, *, key: PRNGKeyArray) -> Float[Array, "S N P"]:
        """`num` draws. Values between which the layout holds no covariance are drawn independently."""


class Gaussian(Prediction):
    """N(mean, cov): mean [N, P], and cov in the layout it was asked for."""

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

    def as_mixture(self):
        return Mixture(self.mean[None], self.cov[None], self.layout)

    def average(self, term):
        return term(self)

    def log_average(self, log_term, log_weights=None):
        return log_term(self) if log_weights is None else log_term(self) + log_weights[0]

    def moments(self, given):
        return Gaussian(*given(self))

    def of_components(self, given):
        return Gaussian(*given(self))

    def quantiles(self, levels):
        return self.as_mixture().quantiles(levels)

    def scaled(self, root):
        scales = {"diag": root**2, "outputs": jnp.outer(root, root), "inputs": (root**2)[:, None, None]}
        scale = scales[self.layout] if self.layout in scales else root[:, None, None] * root
        return Gaussian(self.mean, scale * self.cov, self.layout)

    def in_layout(self, layout):
        if self.layout == layout:
            return self
        if layout == "outputs" and self.layout == "full":
            return Gaussian(self.mean, jnp.einsum("npnq->npq", self.cov), layout)
        return Gaussian(self.mean, independent_outputs(self.variance, layout), layout)

    def without_rounding(self):
        return Gaussian(self.mean, _not_negative(self.cov), "diag") if self.layout == "diag" else self

    def for_outputs(self, num: int) -> "Gaussian":
        """One of a single output as that of `num` independent ones like it; in the layout "inputs" they share the matrix."""
        if self.mean.shape[1] == num:
            return self
        mean, cov = jnp.broadcast_to(self.mean, (len(self.mean), num)), self.cov
        if self.layout in ("diag", "outputs"):
            cov = independent_outputs(jnp.broadcast_to(self.variance, mean.shape), self.layout)
        elif self.layout == "full":
            cov = independent_outputs(jnp.broadcast_to(self.cov[:, 0, :, 0], (num, len(mean), len(mean))), "full")
        return Gaussian(mean, cov, self.layout)

    def groups(self) -> tuple[Float[Array, "G J"], Float[Array, "#G J J"]]:
        """The mean and covariance as G independent groups of J jointly Gaussian values."""
        N, P = self.mean.shape
        if self.layout == "diag":
            return self.mean.reshape(-1, 1), self.cov.reshape(-1, 1, 1)
        if self.layout == "outputs":
            return self.mean, self.cov
        if self.layout == "inputs":
            return self.mean.T, self.cov
        return self.mean.reshape(1, -1), self.cov.reshape(1, N * P, N * P)

    def _root(self) -> Float[Array, "G J J"]:
        """A root of the covariance of each group."""
        cov = self.groups()[1]
        if self.layout == "diag":
            return safe_sqrt(cov)
        return safe_cholesky(cov, "the covariance of the sample").factor

    def _coloured(self, root: Float[Array, "G J J"], noise: Float[Array, "S G J"]) -> Float[Array, "S N P"]:
        """Draws that standard normal noise gives."""
        draws = self.groups()[0] + matmul(root, noise[..., None])[..., 0]
        return draws.mT if self.layout == "inputs" else draws.reshape(len(noise), *self.mean.shape)

    def sample(self, num=1, *, key):
        noise = jax.random.normal(key, (num, *self.groups()[0].shape), self.mean.dtype)
        return self._coloured(self._root(), noise)


class Mixture(Prediction):
    """S equally weighted Gaussians: `means` [S, N, P], and `covs` with a leading axis of length S before their layout.

    `mean`, `cov` and `variance` are those of the mixture: cov is the mean of the covariances, and the covariance of the means.
    """

    means: Float[Array, "S N P"] = constant()
    covs: Array = constant()
    layout: Layout = eqx.field(static=True, default="diag")

    def __check_init__(self):
        shape, covs = jnp.shape(self.means), jnp.shape(self.covs)
        if len(shape) != 3 or not covs or covs[0] != shape[0] or shape[0] == 0:
            raise ValueError(
                f"Mixture expects means [S, N, P] and as many covariances, along a leading axis, got shapes {shape} and {covs}"
            )

    @classmethod
    def of(cls, gaussians: Sequence[Gaussian]) -> "Mixture":
        """The mixture of some Gaussians over the same values, in the same layout."""
        layouts = {gaussian.layout for gaussian in gaussians}
        if len(layouts) != 1:
            raise ValueError(f"Mixture.of expects one or more Gaussians of one layout, got {sorted(layouts)}")
        means, covs = (jnp.stack(arrays) for arrays in zip(*gaussians, strict=True))
        return cls(means, covs, layouts.pop())

    def __iter__(self):
        return iter((self.mean, self.cov))

    @property
    def mean(self) -> Float[Array, "N P"]:
        """The mean of the mixture."""
        return jnp.mean(self.means, axis=0)

    @property
    def cov(self) -> Array:
        """The covariance of the mixture, in its layout."""
        deviations = self.means - self.mean
        return jnp.mean(self.covs, axis=0) + product_in_layout(deviations, deviations, self.layout) / len(self.means)

    @property
    def variance(self) -> Float[Array, "N P"]:
        """The marginal variances of the mixture, whatever the layout."""
        return Gaussian(self.mean, self.cov, self.layout).variance

    def as_mixture(self):
        return self

    def _component(self, mean: Array, cov: Array) -> Gaussian:
        return Gaussian(mean, cov, self.layout)

    def of_each(self, function: Callable[[Gaussian], Any]) -> Any:
        """A function of each component, along a new first axis."""
        return for_each_entry(lambda mean, cov: function(self._component(mean, cov)), self.means, self.covs)

    def average(self, term):
        return jnp.mean(self.of_each(term), axis=0)

    def log_average(self, log_term, log_weights=None):
        terms = self.of_each(log_term)
        terms = terms if log_weights is None else terms + log_weights
        return logsumexp(terms, axis=0) - jnp.log(float(len(self.means)))

    def moments(self, given):
        means, variances = self.of_each(given)
        mean = jnp.mean(means, axis=0)
        return Gaussian(mean, jnp.mean(variances + (means - mean) ** 2, axis=0))

    def of_components(self, given):
        return Mixture(*self.of_each(given))

    def quantiles(self, levels):
        levels = _checked_levels(levels, self.means.dtype)
        sd = safe_sqrt(self.in_layout("diag").covs)
        far = (
            norm.ppf(levels)[:, None, None, None] * sd + self.means
        )  # those of the components enclose that of the mixture
        low, high = jnp.min(far, axis=1), jnp.max(far, axis=1)

        def halved(bounds, _):
            low, high = bounds
            middle = 0.5 * (low + high)
            below = jnp.where(sd > 0.0, norm.cdf(middle[:, None], self.means, jnp.where(sd > 0.0, sd, 1.0)), 0.0)
            below = jnp.where(sd > 0.0, below, (self.means <= middle[:, None]).astype(below.dtype))
            less = jnp.mean(below, axis=1) < levels[:, None, None]
            return (jnp.where(less, middle, low), jnp.where(less, high, middle)), None

        (low, high), _ = jax.lax.scan(halved, (low, high), None, length=_HALVINGS)
        return 0.5 * (low + high)

    def scaled(self, root):
        means = self.mean + root * (self.means - self.mean)
        return Mixture(means, self.of_each(lambda component: component.scaled(root).cov), self.layout)

    def in_layout(self, layout):
        return Mixture(self.means, self.of_each(lambda component: component.in_layout(layout).cov), layout)

    def without_rounding(self):
        return Mixture(self.means, _not_negative(self.covs), "diag") if self.layout == "diag" else self

    def sample(self, num=1, *, key):
        """`num` draws, each from a component of its own that all values of the draw share."""
        key_component, key_noise = jax.random.split(key)
        which = jax.random.randint(key_component, (num,), 0, len(self.means))
        roots = for_each_entry(lambda mean, cov: self._component(mean, cov)._root(), self.means, self.covs)
        noise = jax.random.normal(key_noise, (num, *roots.shape[1:-1]), self.means.dtype)

        def draw(entry):
            s, noise = entry
            return self._component(self.means[s], self.covs[s])._coloured(roots[s], noise[None])[0]

        return jax.lax.map(draw, (which, noise))


def _checked_levels(levels: Any, dtype: Any) -> Float[Array, " K"]:
    found = np.asarray(levels, float)
    if found.ndim != 1 or not ((found > 0.0) & (found < 1.0)).all():
        raise ValueError(f"quantiles: levels expects a list of probabilities between 0 and 1, got {levels!r}")
    return jnp.asarray(found, dtype)


def _not_negative(variances: Array) -> Array:
    # Not a maximum, whose derivative at 0 is a half.
    return jnp.where(variances < 0.0, 0.0, variances)


def average_of_pairs(
    function: Callable[[Gaussian, Gaussian], Array], q: Gaussian | Mixture, p: Gaussian | Mixture
) -> Array:
    """The mean of function(q_s, p_s) over the components of two predictions; a Gaussian stands for every component."""
    mixtures = q.as_mixture(), p.as_mixture()
    sizes = [len(mixture.means) for mixture in mixtures]
    num = max(sizes)
    if any(size not in (1, num) for size in sizes):
        raise ValueError(
            f"two mixtures are compared by pairs of components, of which there are {sizes[0]} and {sizes[1]}"
        )
    if num == 1:
        return function(q.components()[0], p.components()[0])
    arrays = [jnp.broadcast_to(array, (num, *array.shape[1:])) for m in mixtures for array in (m.means, m.covs)]

    def of_pair(mean_q, cov_q, mean_p, cov_p):
        return function(Gaussian(mean_q, cov_q, q.layout), Gaussian(mean_p, cov_p, p.layout))

    return jnp.mean(for_each_entry(of_pair, *arrays), axis=0)
