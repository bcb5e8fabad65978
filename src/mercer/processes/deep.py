"""Deep Gaussian processes: the outputs of one process are the inputs of the next.

Through all layers but the last goes one draw for each datum (paper 004, equation 69; Salimbeni and Deisenroth, 2017). Given it
the last layer is Gaussian, so that a prediction is a mixture over S passes.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from mercer.inducing.activations import Activation
from mercer.inputs import Normal
from mercer.kernels import RBF, Kernel, Map
from mercer.layouts import Layout
from mercer.linalg.products import for_each_entry
from mercer.parameters import all_concrete, constant
from mercer.processes.base import Function, Process, predict_for_each
from mercer.processes.deep_builder import layers_of
from mercer.processes.from_network import layers_of_network
from mercer.processes.gaussian import Gaussian, Mixture
from mercer.processes.uncertain import Uncertain
from mercer.validation import AnyArray


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
            if isinstance(layer, Uncertain):
                raise ValueError(
                    f"Deep: layer {number} is Uncertain, and latent inputs go in front of all layers, as in "
                    "Uncertain(Deep(layers), inputs)"
                )
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

    @classmethod
    def of(
        cls,
        X: Float[AnyArray, "N D"],
        num_layers: int = 2,
        num_outputs: int = 1,
        num_inducing: int = 100,
        width: int | None = None,
        *,
        kernel: Callable[[Array], Kernel] = RBF,
        num_samples: int = 100,
        training_samples: int = 1,
        key: PRNGKeyArray,
    ) -> "Deep":
        """Sparse layers for inputs like X, ready to be trained.

        Hidden layers have `width` outputs (by default D, at most 30) and the mean `mercer.means.Projection.pca`, and begin as
        that mean. The inducing points are centres of k-means, and their images under these means. `kernel` makes the kernel of
        a layer from lengthscales, one for each column: a class such as `mercer.kernels.Matern52`, or a function.
        """
        layers = layers_of(X, num_layers, num_outputs, num_inducing, width, kernel, key)
        return cls(layers, num_samples, training_samples)

    @classmethod
    def from_network(
        cls,
        module: Any,
        *,
        kernel: Kernel | Sequence[Kernel] | None = None,
        activation: Activation | None = None,
        levels: int = 20,
        input_shape: tuple[int, ...] | None = None,
        num_samples: int = 100,
        training_samples: int = 1,
    ) -> "Deep":
        """A trained network as a deep process (paper 001, section 4.2): the means of its layers, one after another, are the
        network, at any inputs and up to rounding.

        The module is an `equinox.nn.MLP`, or an `equinox.nn.Sequential` of `Linear` and `Lambda(activation)`, with activations
        of `jax.nn`: relu, softplus, silu or gelu. What stands before its first `Linear`, such as convolutions, stays a
        function, `mercer.processes.Deterministic`; `input_shape` is the shape in which it takes a row of X.

        Each activation makes a layer, with a variable of `mercer.inducing.Activated` for each unit and an output for each row
        of the next `Linear`. The functions of the variables are `activation` (by default `Softplus()`, whatever the network
        has) with degrees below `levels`. What they miss of the network's units is the mean of the prior,
        `mercer.processes.Remainder`, and is not trained. Of a network of `mercer.processes.ActivatedUnits` they miss nothing.
        `kernel`, one for all layers or one for each, is homogeneous of degree 1; by default `ArcCosine`, with the variance
        under which the network is what the prior expects.
        """
        layers = layers_of_network(module, kernel, activation, levels, input_shape)
        return cls(layers, num_samples, training_samples)

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
        if len(self.layers) == 1:
            return self.layers[0]._predict_with_key(X, covariance, key)
        return self._after(X[None], covariance, key, self.num_samples)

    def _predict_uncertain(self, x, covariance, key):
        if len(self.layers) == 1:
            return self.layers[0]._predict_uncertain(x, covariance, key)
        key_inputs, key = jax.random.split(key)
        draws = Normal(*x.arrays, num_samples=self.num_samples).draws(key=key_inputs)
        return self._after(draws, covariance, key)

    def _after(self, values: Float[Array, "S N D"], covariance: Layout, key: PRNGKeyArray, num: int = 1) -> Mixture:
        """The last layer after each pass, `num` of them from each of S sets of inputs."""
        key, key_last = jax.random.split(key)
        passed = self._passed(values, key, covariance not in ("diag", "outputs"), num)
        return predict_for_each(self.layers[-1], passed, covariance, key_last)

    def _passed(
        self, values: Float[Array, "S N D"], key: PRNGKeyArray, joint: bool, num: int = 1
    ) -> Float[Array, "S2 N D2"]:
        """Draws of the inputs of the last layer. The first layer is worked out once for all passes from the same inputs."""
        for number, layer in enumerate(self.layers[:-1]):
            key, key_layer = jax.random.split(key)
            values = (_drawn_jointly if joint else _drawn)(layer, values, key_layer, 1 if number else num)
        return values

    def given_draw(self, *, key):
        keys = jax.random.split(key, len(self.layers))
        layers = [layer.given_draw(key=key) for layer, key in zip(self.layers, keys, strict=True)]
        return Deep(layers, self.num_samples, self.training_samples)

    def along_paths(self, values, covariance, *, key):
        """As of any process. The draws of hidden layers at the S inputs of a row are those of one function."""
        for layer in self.layers[:-1]:
            key, key_learned, key_values = jax.random.split(key, 3)
            keys = (jax.random.split(each, values.shape[1]) for each in (key_learned, key_values))

            def of_row(rows, key_learned, key_values, layer=layer):
                return _drawn(layer.given_draw(key=key_learned), rows[:, None], key_values)[:, 0]

            values = jax.vmap(of_row, in_axes=(1, 0, 0), out_axes=1)(values, *keys)
        return self.layers[-1].along_paths(values, covariance, key=key)

    def _sampled(self, X, num, key):
        key, key_last = jax.random.split(key)
        if len(self.layers) == 1:
            return _drawn_jointly(self.layers[0], X[None], key_last, num)
        return _drawn_jointly(self.layers[-1], self._passed(X[None], key, True, num), key_last)

    def _sample_function(self, key, num_features):
        keys = jax.random.split(key, len(self.layers))
        draws = (layer._sample_function(key, num_features) for layer, key in zip(self.layers, keys, strict=True))
        return functools.reduce(DeepDraw, draws)


def _drawn(layer: Process, values: Float[Array, "S N D"], key: PRNGKeyArray, num: int = 1) -> Float[Array, "S2 N P"]:
    """`num` draws of the layer for each row of each pass, independent of all others; jointly over outputs that covary."""
    key_layer, key_noise, key_component = jax.random.split(key, 3)
    covariance: Layout = "diag" if layer.joint_layout == "inputs" else "outputs"
    found = predict_for_each(layer, values, covariance, key_layer)
    S, N = values.shape[:2]
    means, covs = (array.reshape(-1, S * N, *array.shape[2:]) for array in (found.means, found.covs))
    if len(means) == 1:
        drawn = Gaussian(means[0], covs[0], covariance).sample(num, key=key_noise)
    else:
        # Of a layer that is a mixture itself, each row takes a component of its own.
        which = jax.random.randint(key_component, (num * S * N,), 0, len(means))
        rows = jnp.arange(num * S * N) % (S * N)
        drawn = Gaussian(means[which, rows], covs[which, rows], covariance).sample(key=key_noise)
    return drawn.reshape(num * S, N, -1)


def _drawn_jointly(
    layer: Process, values: Float[Array, "S N D"], key: PRNGKeyArray, num: int = 1
) -> Float[Array, "S2 N P"]:
    """`num` draws of the layer for each pass, each as one function of all of its rows."""
    keys = jax.random.split(key, len(values))
    drawn = for_each_entry(lambda rows, key: layer._sampled(rows, num, key), values, keys)
    return drawn.reshape(-1, *drawn.shape[2:])


class DeepDraw(Map):
    """One function after another."""

    inner: Function = constant()
    outer: Function = constant()

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        return self.outer(self.inner(X))
