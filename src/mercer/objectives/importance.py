"""The importance-weighted bound for models with latent inputs, or with layers that are drawn (Salimbeni et al., 2019).

With K draws x_nk of the inputs of a row from q(x_n), and what the layers before the last have learned drawn once for the row,

    L_K = sum_n E log 1/K sum_k exp(E_q[log p(y_n | f(x_nk))]) p(x_nk) / q(x_nk) - KL[q || p]

is a bound on log p(Y), the ELBO at K = 1, and no lower for a greater K (Burda, Grosse and Salakhutdinov, 2016).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from mercer.inputs import LatentRows, Normal
from mercer.model import Model
from mercer.objectives.base import Batch, Objective
from mercer.objectives.variational import check_model, latent_rows


class ImportanceWeighted(Objective):
    """Minus the importance-weighted bound, per datum, with `num_samples` = K draws of latent inputs for each row.

    The more draws, the less it matters that q(x_n) is a Gaussian of its own. The gradient of q(x_n) is the doubly reparameterised
    one (Tucker et al., 2019), which is unbiased and keeps its signal as K grows; `doubly=False` takes the plain one. A deep
    process is drawn K times, too, and a process that is neither deep nor at latent inputs has the ELBO for any K.
    """

    num_samples: int = eqx.field(static=True, default=10)
    doubly: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        if not isinstance(self.num_samples, int) or self.num_samples < 1:
            raise ValueError(
                f"ImportanceWeighted: num_samples expects a whole number, at least 1, got {self.num_samples!r}"
            )

    def checked(self, model, data):
        check_model(self, model)
        return super().checked(model, data)

    def _value(self, model, batch, key):
        key_inputs, key_values = jax.random.split(jax.random.key(0) if key is None else key)
        rows = _rows(model, batch)
        if rows is None:
            values = jnp.broadcast_to(batch.X, (self.num_samples, *batch.X.shape))
            terms = _log_terms(model, batch, values, key_values)
        else:
            draws = rows.proposals(self.num_samples, key=key_inputs)
            terms = self._of_draws(model, batch, rows, draws, key_values)
        bounds = logsumexp(terms, axis=0) - jnp.log(float(len(terms)))
        return -jnp.mean(batch.weighted(bounds)) + model.posterior.kl() / batch.num_data

    def _of_draws(self, model: Model, batch: Batch, rows: LatentRows, draws: Array, key) -> Float[Array, "K B"]:
        def log_terms(draws, rows):
            ratio = rows.log_weights(draws)
            return _log_terms(model, batch, rows.with_given(draws), key) + ratio

        if not self.doubly:
            return log_terms(draws, rows)
        # In the density of the proposals q is held still: its gradient comes through the draws alone, by the squares of weights.
        held = LatentRows(rows.given, jax.lax.stop_gradient(rows.q), rows.p)
        weights = jax.nn.softmax(jax.lax.stop_gradient(log_terms(draws, held)), axis=0)
        return log_terms(_with_derivative_times(draws, weights[..., None]), held)


def _rows(model: Model, batch: Batch) -> LatentRows | None:
    """The inputs of a batch, where they are latent; those with known noise are their own prior."""
    if isinstance(batch.X, Normal):
        return LatentRows(None, batch.X, batch.X)
    return latent_rows(model, batch)


def _log_terms(model: Model, batch: Batch, values: Float[Array, "K B D"], key) -> Float[Array, "K B"]:
    """E_q[log p(y_n | f(x_nk))] at each draw of the inputs."""
    likelihood = model.likelihood
    latent = model.posterior.in_training().along_paths(values, likelihood.layout, key=key).as_mixture()
    terms = latent.of_each(lambda q: likelihood.expected_log_prob(q.mean, q.cov, batch.Y, batch.inputs, key=key))
    return jnp.mean(
        terms.reshape(-1, *values.shape[:2]), axis=0
    )  # over the components of a last layer that is a mixture


@jax.custom_vjp
def _with_derivative_times(values: Array, factor: Array) -> Array:
    """The values; derivatives that come back through them are multiplied by the factor."""
    return values


def _forward(values, factor):
    return values, factor


def _backward(factor, cotangent):
    return factor * cotangent, jnp.zeros_like(factor)


_with_derivative_times.defvjp(_forward, _backward)
