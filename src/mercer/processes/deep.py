"""Deep Gaussian processes: the outputs of one process are the inputs of the next.

Through all layers but the last goes one draw for each datum (paper 004, equation 69; Salimbeni and Deisenroth, 2017). Given it
the last layer is Gaussian, so that a prediction is a mixture over S passes.
"""

import functools
import itertools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.kernels import Map
from mercer.layouts import Layout
from mercer.linalg.products import for_each_entry
from mercer.parameters import all_concrete, constant
from mercer.processes.base import Function, Process
from mercer.processes.gaussian import Gaussian, Mixture


class Deep(Process):
    """f_L(... f_2(f_1(x))), each f_l a process: any posterior, with as many outputs as the next one has inputs.

    A prediction is a mixture over `num_samples` passes through the layers, a bound on the evidence the mean over
    `training_samples` of them. Values at different inputs pass independently where only marginals are asked for (the layouts
    "diag" and "outputs"), and jointly elsewhere. With one layer nothing is drawn, and it is that layer.
    """

    layers: tuple[Process, ...]
    num_samples: int = eqx.field(static=True)
    training_samples: int = eqx.field(static=True)

    def __init__(self, layers: Sequence[Process], num_samples: int = 100, training_samples: int = 1):
        # A deep layer is as many layers.
        self.layers = tuple(
            part for layer in layers for part in (layer.layers if isinstance(layer, Deep) else (layer,))
        )
        self.num_samples, self.training_samples = num_samples, training_samples

    def __check_init__(self):
        if not self.layers:
            raise ValueError("Deep expects one layer or more, got none")
        for number, layer in enumerate(self.layers):
            if not isinstance(layer, Process):
                raise ValueError(f"Deep: layer {number} expects a process, got {type(layer).__name__}")
        for name in ("num_samples", "training_samples"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"Deep: {name} expects a whole number, at least 1, got {getattr(self, name)!r}")
        if not all_concrete(eqx.filter(self.layers, eqx.is_array)):  # inside compiled code they were looked at before
            return
        for number, (before, after) in enumerate(itertools.pairwise(self.layers)):
            width = before.num_outputs
            if width is None:  # a prior whose mean says how many
                continue
            try:
                eqx.filter_eval_shape(lambda after, X: after.predict(X), after, jnp.zeros((1, width)))
            except ValueError as error:
                raise ValueError(
                    f"Deep: layer {number} ({type(before).__name__}) has {width} outputs, which layer {number + 1} "
                    f"({type(after).__name__}) does not take: {error}"
                ) from error

    @property
    def num_outputs(self):
        return self.layers[-1].num_outputs

    @property
    def joint_layout(self):
        # What is drawn in between makes outputs covary.
        return self.layers[-1].joint_layout if len(self.layers) == 1 else "full"

    @property
    def prior(self) -> "Deep":  # type: ignore[override]
        """The layers before they have learned anything."""
        priors = [layer if layer.prior is None else layer.prior for layer in self.layers]
        return Deep(priors, self.num_samples, self.training_samples)

    def is_own_prior(self, prior):
        if not isinstance(prior, Deep) or len(prior.layers) != len(self.layers):
            return False
        return all(own.is_own_prior(other) for own, other in zip(self.layers, prior.layers, strict=True))

    def knows_kl(self, prior=None):
        return (prior is None or self.is_own_prior(prior)) and all(layer.knows_kl() for layer in self.layers)

    def kl(self, prior=None):
        """The sum of the divergences of all layers from their priors, in nats."""
        if not self.knows_kl(prior):
            raise ValueError("Deep knows the KL divergence from its own prior, of layers that know theirs")
        return sum(layer.kl() for layer in self.layers)

    def q_parameters(self):
        return tuple(pair for layer in self.layers for pair in layer.q_parameters())

    def in_training(self):
        return Deep([layer.in_training() for layer in self.layers], self.training_samples, self.training_samples)

    def check_inputs(self, X):
        self.layers[0].check_inputs(X)

    def cached(self):
        return Deep([layer.cached() for layer in self.layers], self.num_samples, self.training_samples)

    def _check_prediction(self, result):
        if bool(jnp.isnan(result.mean).any()):
            for before, after in itertools.pairwise(self.layers):
                after.predict(jnp.zeros((1, before.num_outputs or 1)))  # a layer whose own matrices failed says so
            self.layers[0]._check_prediction(result)

    def _predict_with_key(self, X, covariance, key):
        *before, last = self.layers
        if not before:
            return last._predict_with_key(X, covariance, key)
        key, key_last = jax.random.split(key)
        if covariance in ("diag", "outputs"):
            passed = self._passed(X, self.num_samples, key, joint=False)
            return _at_rows(last, passed, covariance, key_last)

        def of_pass(values):
            found = last._predict_with_key(values, covariance, key_last).as_mixture()
            return found.means, found.covs

        means, covs = for_each_entry(of_pass, self._passed(X, self.num_samples, key, joint=True))
        return Mixture(means.reshape(-1, *means.shape[2:]), covs.reshape(-1, *covs.shape[2:]), covariance)

    def _passed(self, X: Float[Array, "N D"], num: int, key: PRNGKeyArray, joint: bool) -> Float[Array, "S N D2"]:
        """Draws of the inputs of the last layer."""
        values = jnp.broadcast_to(X, (num, *X.shape))
        for layer in self.layers[:-1]:
            key, key_layer = jax.random.split(key)
            values = (_drawn_jointly if joint else _drawn)(layer, values, key_layer)
        return values

    def _sampled(self, X, num, key):
        key, key_last = jax.random.split(key)
        return _drawn_jointly(self.layers[-1], self._passed(X, num, key, joint=True), key_last)

    def _sample_function(self, key, num_features):
        keys = jax.random.split(key, len(self.layers))
        draws = (layer._sample_function(key, num_features) for layer, key in zip(self.layers, keys, strict=True))
        return functools.reduce(DeepDraw, draws)


def _at_rows(layer: Process, values: Float[Array, "S N D"], covariance: Layout, key: PRNGKeyArray) -> Mixture:
    """Marginals of a layer after each pass: all of them are worked out as one prediction."""
    S, N, _ = values.shape
    found = layer._predict_with_key(values.reshape(S * N, -1), covariance, key).without_rounding().as_mixture()
    means, covs = (array.reshape(-1, N, *array.shape[2:]) for array in (found.means, found.covs))
    return Mixture(means, covs, covariance)


def _drawn(layer: Process, values: Float[Array, "S N D"], key: PRNGKeyArray) -> Float[Array, "S N P"]:
    """A draw of the layer for each row of each pass, independent of all others; jointly over outputs that covary."""
    key_layer, key_noise, key_component = jax.random.split(key, 3)
    covariance: Layout = "diag" if layer.joint_layout == "inputs" else "outputs"
    found = _at_rows(layer, values, covariance, key_layer)
    S, N = values.shape[:2]
    means, covs = (array.reshape(-1, S * N, *array.shape[2:]) for array in (found.means, found.covs))
    # Of a layer that is a mixture itself, each row takes a component of its own.
    which, rows = jax.random.randint(key_component, (S * N,), 0, len(means)), jnp.arange(S * N)
    mean, cov = (array[0] if len(array) == 1 else array[which, rows] for array in (means, covs))
    return Gaussian(mean, cov, covariance).sample(key=key_noise).reshape(S, N, -1)


def _drawn_jointly(layer: Process, values: Float[Array, "S N D"], key: PRNGKeyArray) -> Float[Array, "S N P"]:
    """A draw of the layer for each pass, as one function of all of its rows."""
    keys = jax.random.split(key, len(values))
    return for_each_entry(lambda rows, key: layer._sampled(rows, 1, key)[0], values, keys)


class DeepDraw(Map):
    """One function after another."""

    inner: Function = constant()
    outer: Function = constant()

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        return self.outer(self.inner(X))
