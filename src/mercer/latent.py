"""Latent variable models: one that is ready to be trained (`gplvm`), and the latent inputs of new rows (`infer`).

The inputs of new rows have a q(x) each, which makes the bound on the row's own evidence large, with all else held still: a
problem for each row, solved for all of them at once from several starts.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, Real

from mercer import modules, validation
from mercer.inducing import Points, kmeans
from mercer.inputs import Amortised, Latent, LatentInputs, Normal
from mercer.kernels import RBF
from mercer.kernels.base import Kernel
from mercer.likelihoods import Gaussian as GaussianNoise
from mercer.likelihoods import Likelihood
from mercer.linalg import quiet_blas
from mercer.means import Constant, Zero
from mercer.model import Model, align
from mercer.objectives import ELBO
from mercer.objectives.variational import bounds_of_rows
from mercer.processes import GP, Gaussian, Sparse, Uncertain
from mercer.processes.uncertain import check_observed
from mercer.training import fit
from mercer.validation import AnyArray

_CANDIDATES = 256  # places at which new rows are tried
_APART = 0.5  # how far apart the starts of a row are, in standard deviations of the prior
_DRAWS = 10  # of latent inputs in a step, where a likelihood has no closed form


def gplvm(
    Y: Real[AnyArray, "N P"],
    dimension: int = 2,
    num_inducing: int = 50,
    *,
    kernel: Kernel | None = None,
    likelihood: Likelihood | None = None,
    encoder: modules.Module | None = None,
    variance: float = 0.1,
    key: PRNGKeyArray | None = None,
) -> Model:
    """A model of the rows of Y as functions of `dimension` latent inputs (Titsias and Lawrence, 2010), ready to be trained.

    The data are (None, Y), with NaN where nothing was observed: `fit(model, CollapsedELBO(), (None, Y))` with Gaussian noise, the
    `ELBO` with any likelihood, in minibatches. Latent inputs begin at the principal components of Y, with `variance` each, and
    the inducing points at centres of these. The kernel is an `RBF` with a lengthscale for each latent input: one that the data
    do not need grows, and its q(x_n) returns to the prior. With an `encoder`, which takes a row of Y to 2 `dimension` numbers
    (`mercer.inputs.Amortised`), any row has its q(x_n) at once; it is first trained to give the principal components.
    """
    if not isinstance(likelihood, Likelihood | None):
        raise ValueError(f"gplvm: likelihood expects a likelihood, got {type(likelihood).__name__}")
    Y = validation.outputs(Y, len(Y), discrete=likelihood is not None and likelihood.discrete)
    num, P = Y.shape
    for name, value, most in (("dimension", dimension, min(num, P)), ("num_inducing", num_inducing, num)):
        if not isinstance(value, int) or not 1 <= value <= most:
            raise ValueError(f"gplvm: {name} expects a whole number from 1 to {most} (Y is {num} x {P}), got {value!r}")
    filled, centre = _filled(np.asarray(Y))
    scores = _principal_scores(filled - centre, dimension)
    spread = max(float(np.mean(np.var(filled, axis=0))), 1e-6)
    gaussian = likelihood is None or isinstance(likelihood, GaussianNoise)
    kernel = RBF(jnp.ones(dimension), jnp.asarray(spread if gaussian else 1.0)) if kernel is None else kernel
    points = Points(kmeans(scores, num_inducing, key=jax.random.key(0) if key is None else key))
    likelihood = GaussianNoise(0.1 * spread) if likelihood is None else likelihood
    prior = GP(kernel, Constant(jnp.asarray(centre)) if gaussian else Zero())
    process = Sparse(prior, points, num_outputs=likelihood.num_latents(P))
    inputs: LatentInputs = Latent(scores, variance) if encoder is None else Amortised(encoder)
    if inputs.dimension != dimension:
        raise ValueError(f"gplvm: the encoder gives {inputs.dimension} latent inputs, dimension is {dimension}")
    if isinstance(inputs, Amortised):
        inputs.check(None, Y, num)
        inputs = _towards(inputs, Y, jnp.asarray(scores), variance)
    return Model(Uncertain(process, inputs), likelihood)


def _filled(Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Y with the mean of its column where it is missing, and these means."""
    observed = ~np.isnan(Y)
    for axis, name in ((0, "column"), (1, "row")):
        empty = ~observed.any(axis=axis)
        if empty.any():
            raise ValueError(f"gplvm: nothing is observed in {name} {int(np.argmax(empty))} of Y; leave it out")
    centre = np.nanmean(Y, axis=0)
    return np.where(observed, Y, centre), centre


def _principal_scores(Y: np.ndarray, dimension: int) -> np.ndarray:
    """The first principal components of each row of centred data, of variance 1."""
    _, vectors = np.linalg.eigh(Y.T @ Y)
    scores = Y @ vectors[:, ::-1][:, :dimension]
    spread = scores.std(axis=0)
    return scores / np.where(spread > 0.0, spread, 1.0)


def _towards(inputs: Amortised, Y: Array, scores: Array, variance: float) -> Amortised:
    """The inputs with an encoder that gives about these means and this variance."""
    parameters, rest = eqx.partition(inputs.encoder, eqx.is_inexact_array)
    optimiser = optax.adam(1e-2)
    raw = jnp.log(jnp.expm1(jnp.asarray(variance, scores.dtype)))
    wanted, seen = jnp.concatenate([scores, jnp.full_like(scores, raw)], axis=1), inputs.seen(None, Y)

    def loss(parameters):
        given = modules.of_rows(eqx.combine(parameters, rest), seen, "Amortised")
        return jnp.mean((given - wanted) ** 2)

    def step(state, _):
        parameters, moments = state
        updates, moments = optimiser.update(jax.grad(loss)(parameters), moments)
        return (optax.apply_updates(parameters, updates), moments), None

    @jax.jit
    def trained(parameters):
        return jax.lax.scan(step, (parameters, optimiser.init(parameters)), None, length=300)[0][0]

    return eqx.tree_at(lambda inputs: inputs.encoder, inputs, eqx.combine(trained(parameters), rest))


class Inferred(NamedTuple):
    """What `infer` finds for rows of Y: q(x) of their latent inputs, the bounds on log p(y), and the outputs y themselves."""

    inputs: Normal  # at the best maximum
    bounds: Float[Array, " N"]
    outputs: Gaussian  # mean and variance of each entry of Y, those that are missing included, over all maxima


def infer(
    model: Model,
    Y: Real[AnyArray, "N P"],
    X: Float[AnyArray, "N D"] | None = None,
    *,
    steps: int = 300,
    starts: int = 4,
    key: PRNGKeyArray | None = None,
) -> Inferred:
    """The latent inputs of new rows Y, with any entries missing (NaN), and what they say of the entries that are missing.

    `model` is one of an `Uncertain`, and stays as it is. X are the observed columns of the inputs, where there are any. Each
    row is tried at the latent inputs that the model was trained with (at draws from their prior, where these are not kept),
    and optimised for `steps` of Adam from the `starts` best of them that are apart from each other. Several maxima count by their
    bounds in what is said of the outputs.
    """
    posterior = model.posterior
    if not isinstance(posterior, Uncertain):
        raise ValueError(f"infer expects a model of an Uncertain process, got {type(posterior).__name__}")
    for name, number in (("steps", steps), ("starts", starts)):
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"infer: {name} expects a whole number, at least 1, got {number!r}")
    Y = validation.outputs(Y, len(Y), discrete=model.likelihood.discrete)
    model.likelihood.validate(Y)
    check_observed(Y)
    X = None if X is None else validation.inputs(X)
    if X is not None and len(X) != len(Y):
        raise ValueError(f"infer: X and Y must have the same number of rows, got {len(X)} and {len(Y)}")
    key = jax.random.key(0) if key is None else key
    prior = posterior.inputs.prior
    if len(prior) > 1:
        raise ValueError(
            "infer: the latent inputs have a prior for each row of the training data, and none for new ones"
        )
    with quiet_blas():
        means, variances = jax.block_until_ready(_starts(align(model, Y.dtype), X, Y, starts, key))
    repeated = jax.tree.map(lambda leaf: jnp.tile(leaf, (starts, 1)), (X, Y))
    latent = Latent(means.reshape(-1, means.shape[-1]), variances.reshape(-1, means.shape[-1]), prior)
    start = Model(Uncertain(posterior.process, latent, posterior.num_samples, _DRAWS), model.likelihood)
    fitted: Any = fit(
        start,
        ELBO(),
        repeated,
        steps=steps,
        optimiser=optax.adam(optax.cosine_decay_schedule(0.1, steps)),
        frozen=lambda model: [model.posterior.process, model.likelihood],
        key=key,
    ).model
    with quiet_blas():
        bounds = bounds_of_rows(fitted, repeated[0], repeated[1]).reshape(starts, -1)
    found = fitted.posterior.inputs
    outputs = model.predict(found.of_rows(repeated[0], None, None).inputs())
    means, variances, y, y_variance = (
        leaf.reshape(starts, len(Y), -1) for leaf in (found.mean, found.variance, *outputs)
    )
    weights = _weights(means, variances, bounds)[..., None]
    centre = jnp.sum(weights * y, axis=0)
    spread = jnp.sum(weights * (y_variance + (y - centre) ** 2), axis=0)
    best, rows = jnp.argmax(bounds, axis=0), jnp.arange(len(Y))
    return Inferred(Normal(means[best, rows], variances[best, rows]), bounds[best, rows], Gaussian(centre, spread))


def _weights(means: Float[Array, "S N Q"], variances: Float[Array, "S N Q"], bounds: Float[Array, "S N"]) -> Array:
    """How much each end of a row counts: by its bound, and of several at one maximum the best alone."""
    apart = (means[:, None] - means[None]) ** 2 < 4.0 * (variances[:, None] + variances[None])
    number = jnp.arange(len(bounds))[:, None, None]
    better = (bounds[None] > bounds[:, None]) | ((bounds[None] == bounds[:, None]) & (number.swapaxes(0, 1) < number))
    again = jnp.any(jnp.all(apart, axis=-1) & better, axis=1)
    return jax.nn.softmax(jnp.where(again, -jnp.inf, bounds), axis=0)


def _starts(model: Any, X: Array | None, Y: Array, num: int, key: PRNGKeyArray) -> tuple[Array, Array]:
    """The means and variances, [num, N, Q] each, that q(x) begins with."""
    inputs = model.posterior.inputs
    places, variance = _candidates(inputs, max(_CANDIDATES, num), key)
    scores = _scores(model, places, X, Y)
    scale = inputs.prior.variance[0]

    def choose(scores, _):
        """The best place, and the scores without those near to it."""
        best = jnp.argmax(scores, axis=1)
        near = jnp.sum((places - places[best][:, None]) ** 2 / scale, axis=-1) < _APART**2
        return jnp.where(near, -jnp.inf, scores), places[best]

    _, means = jax.lax.scan(choose, scores, None, length=num)
    if isinstance(inputs, Amortised):
        means = jnp.concatenate([inputs.of_rows(X, Y, None).q.mean[None], means[:-1]])
    return means, jnp.broadcast_to(variance, means.shape)


def _candidates(inputs: LatentInputs, num: int, key: PRNGKeyArray) -> tuple[Float[Array, "C Q"], Array]:
    """Latent inputs to try, and a variance to begin with."""
    if isinstance(inputs, Latent) and len(inputs) >= num:
        chosen = jax.random.choice(key, len(inputs), (num,), replace=False)
        return inputs.mean[chosen], jnp.median(inputs.variance, axis=0)
    mean, variance = inputs.prior.arrays
    drawn = mean + jnp.sqrt(variance) * jax.random.normal(key, (num, inputs.dimension), mean.dtype)
    if isinstance(inputs, Latent):
        return jnp.concatenate([inputs.mean, drawn])[:num], jnp.median(inputs.variance, axis=0)
    return drawn, 0.1 * variance[0]


@eqx.filter_jit
def _scores(model: Any, places: Float[Array, "C Q"], X: Array | None, Y: Array) -> Float[Array, "N C"]:
    """E[log p(y_n | f(x))] + log p(x) of each row at each place, up to a constant."""
    process, likelihood = model.posterior.process.in_training(), model.likelihood
    mean, variance = model.posterior.inputs.prior.arrays

    def at(place):
        if X is None:
            found = process.predict(place[None], likelihood.layout).as_mixture()
            rows = [
                jnp.broadcast_to(array, (len(array), len(Y), *array.shape[2:])) for array in (found.means, found.covs)
            ]
            found = type(found)(*rows, found.layout)
        else:
            beside = jnp.concatenate([X, jnp.broadcast_to(place, (len(X), len(place)))], axis=1)
            found = process.predict(beside, likelihood.layout)
        terms = found.average(lambda q: likelihood.expected_log_prob(q.mean, q.cov, Y, X))
        return terms - 0.5 * jnp.sum((place - mean[0]) ** 2 / variance[0])

    return jax.lax.map(at, places).T
