"""An inference network: w . phi(x) with Gaussian weights, a process whose power is not limited by inducing points.

With w ~ N(m, V), V = R R^T, f(x) = w . phi(x) has mean m . phi(x) and covariance phi(x)^T V phi(x') (paper 002, equation 13): a
Gaussian process of any features, also those of a network that is trained with it.
"""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer import modules
from mercer.features import Features
from mercer.features.base import FeatureError
from mercer.inducing.functionals import is_functional
from mercer.kernels import Map
from mercer.layouts import Layout, independent_outputs, product_in_layout
from mercer.linalg import matmul
from mercer.means import Mean, Zero
from mercer.means import Network as NetworkMean
from mercer.parameters import as_parameter, constant, dtype_of, is_concrete, param, positive, real
from mercer.processes.base import Process
from mercer.processes.gaussian import Gaussian
from mercer.processes.weights import DiagonalCovariance, FullCovariance, WeightCovariance, isotropic
from mercer.validation import AnyArray

_MOST = 2**26  # numbers of features that are formed at a time


class Network(Process):
    """f(x) = w . phi(x) + mean(x), w ~ N(q_mu, V), with the prior w ~ N(0, prior_variance).

    `features` are of `mercer.features`. Each output has weights of its own, unless the features are those of outputs that
    share them (`Tangent` of a module with several outputs). `num_outputs` is for features that serve any number of outputs.
    `mean` is one of `mercer.means`, or a module that takes a row [D] to [P].

    `covariance` is the structure of V: "full"; "diag"; "low-rank", diagonal plus `rank` factors; "kronecker", A x B for each
    array of weights, such as the layers of a tangent network; or a value of `mercer.processes.WeightCovariance`. V begins at
    the prior, q_mu at 0.
    """

    features: Features
    mean: Mean
    q_mu: Float[Array, "F L"] = param(real)
    covariance: WeightCovariance
    prior_variance: Array = param(positive)

    def __init__(
        self,
        features: Features,
        mean: Mean | modules.Module | None = None,
        covariance: Literal["full", "diag", "low-rank", "kronecker"] | WeightCovariance = "full",
        num_outputs: int | None = None,
        rank: int | None = None,
        q_mu: Float[AnyArray, "F L"] | None = None,
        prior_variance: Array | float = 1.0,
    ):
        if not isinstance(features, Features):
            raise ValueError(f"Network: features expects one of mercer.features, got {type(features).__name__}")
        own = features.num_outputs
        if own is not None and num_outputs not in (None, own):
            raise ValueError(f"Network: {type(features).__name__} has {own} outputs, got num_outputs={num_outputs}")
        if mean is not None and not isinstance(mean, Mean):
            mean = NetworkMean(mean)
        self.features, self.mean = features, Zero() if mean is None else mean
        self.prior_variance = as_parameter(prior_variance)
        if is_concrete(self.prior_variance) and not bool(self.prior_variance > 0.0):
            raise ValueError(f"Network: prior_variance expects a positive number, got {prior_variance}")
        L = 1 if features.joint else own or num_outputs or 1
        dtype = dtype_of(eqx.filter(features, eqx.is_array)) or jnp.result_type(float)
        if isinstance(covariance, str):
            scale = jnp.sqrt(self.prior_variance).astype(dtype)
            covariance = isotropic(covariance, scale, L, features.blocks, dtype, rank)
        self.q_mu = jnp.zeros((features.num, L), dtype) if q_mu is None else q_mu
        self.covariance = covariance

    def __check_init__(self):
        if not isinstance(self.covariance, WeightCovariance):
            raise ValueError(f"Network: covariance expects a WeightCovariance, got {type(self.covariance).__name__}")
        groups = 1 if self.features.joint else self.features.num_outputs or self.covariance.shape[0]
        expected = (groups, self.features.num)
        if self.q_mu.shape != expected[::-1] or self.covariance.shape != expected or self.prior_variance.shape != ():
            raise ValueError(
                f"Network: with {expected[1]} features and {expected[0]} groups of weights q_mu expects shape {expected[::-1]}, "
                f"the covariance {expected} and prior_variance a number, got {self.q_mu.shape}, {self.covariance.shape} and "
                f"{self.prior_variance.shape}"
            )

    @property
    def num_outputs(self):
        return self.features.num_outputs or self.q_mu.shape[1]

    @property
    def joint_layout(self):
        return "full" if self.features.joint else "inputs"

    @property
    def prior(self) -> "NetworkPrior":  # type: ignore[override]
        """The network before its weights have learned anything."""
        return NetworkPrior(self.features, self.mean, self.prior_variance, self.q_mu.shape[1])

    def is_own_prior(self, prior):
        # A network has no prior of its own to compare with: one is made where it is asked for.
        return isinstance(prior, NetworkPrior) and prior.features is self.features

    def kl(self, prior=None):
        """KL[q(w) || p(w)], in nats, over the weights of all outputs."""
        if prior is not None and not self.is_own_prior(prior):
            raise ValueError("Network knows the KL divergence from its own prior only: leave prior out")
        squares = (jnp.sum(self.covariance.diagonal()) + jnp.sum(self.q_mu**2)) / self.prior_variance
        size = self.q_mu.size
        return 0.5 * (squares - size + size * jnp.log(self.prior_variance) - self.covariance.log_determinant())

    def q_parameters(self):
        """Of weights with a full covariance."""
        return ((self.q_mu, self.covariance.root),) if isinstance(self.covariance, FullCovariance) else ()

    def given_draw(self, *, key):
        weights = self.q_mu + self.covariance.colour(key=key).T
        none = DiagonalCovariance(jnp.zeros(weights.T.shape, weights.dtype))
        return Network(
            self.features, self.mean, none, self.num_outputs, prior_variance=self.prior_variance, q_mu=weights
        )

    def check_inputs(self, X):
        if is_functional(X):
            raise ValueError(f"Network is asked at inputs [N, D], got {type(X).__name__}")
        self.features.check(X.shape[1], X.dtype)

    def _check_prediction(self, result):
        if bool(jnp.isnan(result.mean).any()):
            raise FeatureError(
                f"the prediction of Network holds NaN: look at its features ({type(self.features).__name__}), weights and mean"
            )

    def _deviation(self, phi: Float[Array, "Q N F"]) -> Float[Array, "N P"]:
        """q_mu . phi."""
        return network_values(phi, self.q_mu)

    def _predict(self, X, covariance):
        rows = max(1, _MOST // (self.features.num * self.num_outputs))
        if covariance in ("diag", "outputs"):
            deviation, values = _by_rows(lambda X: self._at(X, covariance), X, rows)
        else:
            (deviation,) = _by_rows(lambda X: (self._deviation(self.features.values(X)),), X, rows)
            values = self._at(X, covariance)[1] if len(X) <= rows else self._by_pairs(X, rows, covariance)
        return Gaussian(self._base(X) + deviation, values, covariance)

    def _base(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        return base_values(self.features, self.mean, X)

    def _root(self, X: Float[Array, "N D"]) -> Float[Array, "Q N R"]:
        """A with A A^T the covariance of each output; jointly, of output p with q that of A_p with A_q."""
        return self.covariance.times_root(self.features.values(X))

    def _at(self, X: Float[Array, "N D"], covariance: Layout) -> tuple[Array, Array]:
        """The mean's deviation and the covariance, at as many inputs as there is memory for their features."""
        phi = self.features.values(X)
        A = self.covariance.times_root(phi)
        return self._deviation(phi), self._of_roots(A, A, covariance)

    def _of_roots(self, A: Float[Array, "Q N R"], B: Float[Array, "Q M R"], covariance: Layout) -> Array:
        if self.features.joint:
            return product_in_layout(jnp.moveaxis(A, -1, 0).mT, jnp.moveaxis(B, -1, 0).mT, covariance)
        if covariance in ("diag", "outputs"):
            return independent_outputs(jnp.sum(A * B, axis=-1).T, covariance)
        return independent_outputs(matmul(A, B.mT), covariance)

    def _by_pairs(self, X: Float[Array, "N D"], rows: int, covariance: Layout) -> Array:
        """The covariance between inputs, block by block: no more than two blocks of features are there at a time."""
        blocks = _blocks(X, rows)

        def of_block(one):
            A = self._root(one)
            return jax.lax.map(jax.checkpoint(lambda other: self._of_roots(A, self._root(other), covariance)), blocks)

        found = jax.lax.map(jax.checkpoint(of_block), blocks)  # [I, J, ...] of blocks
        k, n, N = len(blocks), rows, len(X)
        if covariance == "inputs":  # [I, J, P, n, n]
            return jnp.einsum("ijpnm->pinjm", found).reshape(-1, k * n, k * n)[:, :N, :N]
        P = found.shape[3]
        return jnp.einsum("ijnpmq->inpjmq", found).reshape(k * n, P, k * n, P)[:N, :, :N]

    def _sample_function(self, key, num_features):
        """Exact: a draw of the weights."""
        return NetworkDraw(self.features, self.mean, self.q_mu + self.covariance.colour(key=key).T)


class NetworkPrior(Process):
    """w . phi(x) + mean(x) with the prior w ~ N(0, prior_variance): what a `Network` begins as."""

    features: Features
    mean: Mean
    prior_variance: Array = param(positive)
    groups: int = eqx.field(static=True, default=1)  # of weights

    @property
    def num_outputs(self):
        return self.features.num_outputs or self.groups

    @property
    def joint_layout(self):
        return "full" if self.features.joint else "inputs"

    def _network(self) -> Network:
        return Network(self.features, self.mean, "diag", self.num_outputs, prior_variance=self.prior_variance)

    def check_inputs(self, X):
        self._network().check_inputs(X)

    def _predict(self, X, covariance):
        return self._network()._predict(X, covariance)

    def _sample_function(self, key, num_features):
        return self._network()._sample_function(key, num_features)


class NetworkDraw(Map):
    """A network with given weights."""

    features: Features = constant()
    mean: Mean = constant()
    weights: Float[Array, "F L"] = constant()

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        values = network_values(self.features(X), self.weights.astype(X.dtype))
        return base_values(self.features, self.mean, X) + values


def network_values(phi: Float[Array, "Q N F"], weights: Float[Array, "F L"]) -> Float[Array, "N P"]:
    """w . phi of each output."""
    return matmul(phi[0], weights) if len(phi) == 1 else matmul(phi, weights.T[..., None])[..., 0].T


def base_values(features: Features, mean: Mean, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
    """What a network is at weights 0."""
    offset = features.offset(X)
    return mean(X) if offset is None else mean(X) + offset


def _blocks(X: Float[Array, "N D"], rows: int) -> Float[Array, "K n D"]:
    """Blocks of so many rows, of which the last is filled up with its last row."""
    missing = -len(X) % rows
    return jnp.concatenate([X, jnp.repeat(X[-1:], missing, axis=0)]).reshape(-1, rows, X.shape[1])


def _by_rows(function: Any, X: Float[Array, "N D"], rows: int) -> tuple[Array, ...]:
    """A function of rows, whose values have them along their first axis, block by block."""
    if len(X) <= rows:
        return function(X)
    found = jax.lax.map(jax.checkpoint(function), _blocks(X, rows))
    return tuple(array.reshape(-1, *array.shape[2:])[: len(X)] for array in found)
