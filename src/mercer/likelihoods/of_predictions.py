"""What a likelihood says of data under a prediction of the latent function: a Gaussian, or a mixture of Gaussians.

The expected log probability of a mixture is the mean of those of its components, its log predictive density the log of the mean
of theirs, and its moments are those of the mixture. Models, objectives, risks and calibration all go through here.
"""

from typing import Any

from jaxtyping import Array, Float, PRNGKeyArray

from mercer.likelihoods.base import Likelihood
from mercer.validation import AnyArray


def expected_log_prob(
    likelihood: Likelihood, latent: Any, Y: AnyArray, X: AnyArray | None = None, key: PRNGKeyArray | None = None
) -> Float[Array, " N"]:
    """E[log p(y | f)] of each row, f from the prediction."""
    return latent.average(lambda q: likelihood.expected_log_prob(q.mean, q.cov, Y, X, key=key))


def log_predictive(
    likelihood: Likelihood,
    latent: Any,
    Y: AnyArray,
    X: AnyArray | None = None,
    key: PRNGKeyArray | None = None,
    log_weights: Float[Array, "S N"] | None = None,
) -> Float[Array, " N"]:
    """log E[p(y | f)] of each row, f from the prediction, whose components may have importance weights."""
    return latent.log_average(lambda q: likelihood.log_predictive(q.mean, q.cov, Y, X, key=key), log_weights)


def observations(likelihood: Likelihood, latent: Any, X: Array | None = None, key: PRNGKeyArray | None = None) -> Any:
    """The mean and the variance of new observations, a Gaussian [N, P]."""
    return latent.moments(lambda q: likelihood.predict(q.mean, q.cov, X, key=key))
