"""The collapsed bound of sparse regression, in which the best q(u) is solved for (Titsias, 2009; paper 000, 3.14 to 3.16).

Whitened, with C = R^-1 Kuf, precisions lambda_n = 1 / noise_n (0 where y_n is missing) and r = y - m(x), the likelihood
is Gaussian in v, u = R v, and so is the best q(v) = N(B^-1 b, B^-1): linear regression on C (`mercer.linalg.regression`). The
bound is

    sum_n log N(r_n; 0, noise_n) + |B^-1/2 b|^2 / 2 - log det B / 2 - sum_n lambda_n (k_nn - |C_n|^2) / 2.

Independent outputs have such a bound each, in which those that share a kernel share C. Outputs that covary are one system
of N P observations and L M variables, between whose L groups q(v) is independent.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer import validation
from mercer.covariances import Kuu, feature_parameters
from mercer.covariances.functionals import cross_covariance, prior_variance
from mercer.inducing import InducingVariables, Shared
from mercer.inputs import Normal
from mercer.likelihoods import Gaussian
from mercer.linalg import FactorisationError, inverse_factor, matmul, quiet_blas, weighted_gram
from mercer.linalg.cholesky import raise_if_failed
from mercer.linalg.loops import for_each
from mercer.linalg.products import for_each_entry
from mercer.linalg.regression import Regression, half_log_determinant
from mercer.means import Zero
from mercer.model import Model, align
from mercer.objectives.averaged import AveragedTerms, check_expectations, inputs_of, sparse_of
from mercer.objectives.base import Batch, Objective
from mercer.objectives.exact import gaussian_noise, log_density_of_repeats
from mercer.objectives.fixed_features import SummedBatch, summed, summed_bound, summed_regression
from mercer.objectives.variational import divergence_of_inputs
from mercer.parameters import all_concrete, is_concrete
from mercer.processes import Process, Sparse, Uncertain
from mercer.validation import AnyArray

_MOST_IN_FLOAT32 = 300_000  # rows


class Terms(NamedTuple):
    """What the bounds are made of, for S systems of n observations. A first axis of length 1 is shared by the systems."""

    C: Float[Array, "#S m n"]
    slack: Float[Array, "#S n"]  # k_nn - |C_n|^2
    residual: Float[Array, "S n"]
    observed: Array
    noise: Float[Array, "S n"]  # divided by `counts`
    counts: Float[Array, "S n"]  # how often a row counts
    shared: bool  # whether the systems have the same C and the same precisions
    num_groups: int  # of variables in a system, between which q(u) is independent

    def lost(self) -> Float[Array, ""]:
        """sum_n lambda_n (k_nn - |C_n|^2) / 2, over all systems."""
        precision = self.precisions(self.noise)
        return 0.5 * jnp.sum(self.slack * precision) * (len(self.residual) / len(precision))

    def precisions(self, noise: Float[Array, "S n"]) -> Float[Array, "G n"]:
        """1 / noise, 0 where nothing was observed; one for all systems where they share it."""
        precision = jnp.where(self.observed, 1.0 / noise, 0.0)
        return precision[:1] if self.shared else precision

    def regression(self, noise: Float[Array, "S n"]) -> Regression:
        """B and b of the best q(v)."""
        precision = self.precisions(noise)
        weighted = precision * self.residual
        if len(self.C) == 1:
            gram = for_each_entry(lambda weights: weighted_gram(self.C[0], weights), precision)
            return Regression.of(gram, matmul(weighted, self.C[0].T), self.num_groups)
        gram = for_each_entry(weighted_gram, self.C, precision)
        return Regression.of(gram, matmul(self.C, weighted[..., None])[..., 0], self.num_groups)


def _terms(model: Model, batch: Batch) -> Any:
    posterior, X = sparse_of(model.posterior), inputs_of(model, batch)
    at = X.mean if isinstance(X, Normal) else X
    observed = ~jnp.isnan(batch.Y)
    residual = jnp.where(observed, batch.Y - posterior.prior.mean_of(at, batch.Y.shape[1]), 0.0)
    noise = gaussian_noise(model, batch)
    same_noise = jnp.ndim(noise) == 0 or jnp.shape(noise)[-1] == 1
    noise = jnp.broadcast_to(noise, batch.Y.shape)
    if isinstance(X, Normal):
        shared = batch.complete and same_noise
        return AveragedTerms.of(posterior, X, residual.T, observed.T, noise.T, shared)
    counts = jnp.ones_like(noise) if batch.weights is None else jnp.broadcast_to(batch.weights[:, None], noise.shape)
    if not posterior.structure.independent:

        def of_group(pair, cross):
            return Kuu(*pair).whiten(cross.reshape(len(cross), -1))

        C = posterior.structure.for_each_group(of_group, posterior.structure.columns(batch.X))
        C = C.reshape(1, -1, C.shape[-1])
        own = posterior.prior.covariance_of(batch.X, batch.Y.shape[1], "diag").reshape(1, -1)
        observed, residual, noise, counts = (array.reshape(1, -1) for array in (observed, residual, noise, counts))
        shared, num_groups = True, posterior.q_mu.shape[1]
    else:

        def of_pair(pair: tuple[Any, Any]):
            return Kuu(*pair).whiten(cross_covariance(*pair, batch.X)), prior_variance(pair[1], batch.X)

        C, own = for_each(of_pair, posterior.structure.pairs)
        observed, residual, noise, counts = observed.T, residual.T, noise.T, counts.T
        shared, num_groups = batch.complete and same_noise and len(C) == 1, 1
    slack = jnp.maximum(own - jnp.sum(C**2, axis=1), 0.0)
    return Terms(C, slack, residual, observed, noise, counts, shared, num_groups)


class CollapsedELBO(Objective):
    """Minus Titsias' bound, per datum, for a Model of a `Sparse` and a Gaussian likelihood. q(u) plays no part in it.

    At uncertain inputs, latent (`mercer.Uncertain`) or with known noise, it is the bound of Titsias and Lawrence (2010), for
    kernels of one output whose expectations are known.

    `fit` leaves the model with the best q(u); `posterior` gives that, too. Inducing variables whose Kuf has no parameters
    that move (`mercer.inducing.FourierFeatures`, `SphericalHarmonics`) are summed over the data once; a step then costs the
    same for any number of data. The features of a homogeneous kernel depend on its weight and bias variances: hold these
    still. With `sums="float32"` the products of rows in these sums are taken in float32, in less time, and added up in
    the precision of the data. Their error, 3e-7 of the largest eigenvalue of C C^T / noise, has to be small beside the
    identity that is added to it, so that this is for up to 300,000 rows (at 500,000 training failed; seen).
    """

    minibatched = False
    sums: Literal["float32", "float64"] | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if self.sums not in (None, "float32", "float64"):
            raise ValueError(f'CollapsedELBO: sums expects "float32", "float64" or None, got {self.sums!r}')

    def checked(self, model, data):
        if not (
            isinstance(model, Model)
            and isinstance(sparse_of(model.posterior), Sparse)
            and isinstance(model.likelihood, Gaussian)
        ):
            raise ValueError(
                "CollapsedELBO expects a Model of a Sparse posterior (or an Uncertain one of it) and a Gaussian likelihood"
            )
        batch = super().checked(model, data)
        X = inputs_of(model, batch)
        if isinstance(X, Normal):
            check_expectations(sparse_of(model.posterior), X)
        return batch

    def prepare(self, model, batch):
        return self.prepare_for(model, batch, ())

    def prepare_for(self, model, batch, held):
        if not _sums_suffice(model, batch, held):
            return batch
        if self.sums == "float32" and len(batch.Y) > _MOST_IN_FLOAT32:
            raise ValueError(
                f'CollapsedELBO: sums="float32" is for up to {_MOST_IN_FLOAT32:,} rows, beyond which rounding shows, got '
                f"{len(batch.Y):,}; leave it out"
            )
        return summed(model, batch, self.sums)

    def _value(self, model, batch, key):
        return -_bound(model, batch) / batch.num_data

    def bound(
        self,
        model: Model,
        X: Float[AnyArray, "N D"] | InducingVariables | Normal | None,
        Y: Float[AnyArray, "N P"],
        weights: Float[AnyArray, " N"] | None = None,
    ) -> Float[Array, ""]:
        """The lower bound on log p(Y), in nats over all the data. A row counts as often as its weight says, here and below."""
        return self._of(_bound, model, self._once(model, self.checked(model, (X, Y, weights))))

    def upper_bound(
        self,
        model: Model,
        X: Float[AnyArray, "N D"] | InducingVariables | Normal | None,
        Y: Float[AnyArray, "N P"],
        weights: Float[AnyArray, " N"] | None = None,
    ) -> Float[Array, ""]:
        """An upper bound on log p(Y) (Titsias, 2014): the noise in the quadratic term is raised by tr(Kff - Qff)."""
        batch = self.checked(model, (X, Y, weights))
        if isinstance(inputs_of(model, batch), Normal):
            raise ValueError("CollapsedELBO: upper_bound is known for inputs without noise")
        return self._of(_upper_bound, model, batch)

    def posterior(
        self,
        model: Model,
        X: Float[AnyArray, "N D"] | InducingVariables | Normal | None,
        Y: Float[AnyArray, "N P"],
        weights: Float[AnyArray, " N"] | None = None,
    ) -> Process:
        """The posterior with the best q(u)."""
        return self._of(_optimum, model, self._once(model, self.checked(model, (X, Y, weights))))

    def _once(self, model: Model, batch: Batch) -> Batch:
        """The data prepared for a model that does not change."""
        return self.prepare_for(model, batch, jax.tree.leaves(model))

    def finish(self, model, batch):
        return Model(self._of(_optimum, model, batch), model.likelihood)

    def _of(self, function, model, batch):
        """A function of model and batch. What fails on numbers that can be looked at raises, and names the matrix."""
        model = align(model, batch.dtype)
        with quiet_blas():
            result = jax.block_until_ready(function(model, batch))
            found = [leaf for leaf in jax.tree.leaves(result) if eqx.is_inexact_array(leaf)]
            if not all(validation.is_finite(leaf) for leaf in found if is_concrete(leaf)):
                _raise(model, batch)
        return result


def _raise(model: Model, batch: Batch) -> NoReturn:
    """Says why the bound or the best q(u) is not finite."""
    for pair in sparse_of(model.posterior).structure.pairs:
        matrix = Kuu(*pair).dense()
        raise_if_failed(matrix, inverse_factor(matrix), "Kuu")
    _system(model, batch).raise_if_failed()
    raise FactorisationError(
        "the collapsed bound is not finite although Kuu and B are: look at the noise, Y and the mean"
    )


def _sums_suffice(model: Model, batch: Batch, held: Sequence[Any]) -> bool:
    """Whether the bound depends on the data through sums that no parameter changes, but for those that are held still."""
    if not isinstance(model.posterior, Sparse):
        return False
    posterior, structure = model.posterior, model.posterior.structure
    parameters = [feature_parameters(*pair) for pair in structure.pairs]
    still = {id(leaf) for leaf in held}
    fixed = all(of is not None and all(id(leaf) in still for leaf in jax.tree.leaves(of)) for of in parameters)
    shared = isinstance(posterior.inducing, Shared) and not jax.tree.leaves(parameters)
    structured = not structure.indexed and (structure.independent or shared)
    plain = isinstance(posterior.prior.mean, Zero) and model.likelihood.variance is not None
    usual = batch.inputs is not None and batch.complete and all_concrete(batch)
    return structured and plain and usual and fixed


@eqx.filter_jit
def _bound(model: Model, batch: Batch) -> Float[Array, ""]:
    if isinstance(batch, SummedBatch):
        return summed_bound(model, batch)
    t = _terms(model, batch)
    fit = -0.5 * jnp.sum(jnp.where(t.observed, jnp.log(2.0 * jnp.pi * t.noise) + t.residual**2 / t.noise, 0.0))
    repeats = log_density_of_repeats(gaussian_noise(model, batch), batch)
    of_inputs = divergence_of_inputs(model, batch) * batch.num_data
    return fit + t.regression(t.noise).evidence() - t.lost() + repeats - of_inputs


@eqx.filter_jit
def _upper_bound(model: Model, batch: Batch) -> Float[Array, ""]:
    t = _terms(model, batch)
    B = t.regression(t.noise).B
    raised = t.noise + jnp.sum(jnp.where(t.observed, t.counts * t.slack, 0.0), axis=1, keepdims=True) / t.counts
    fit = -0.5 * jnp.sum(jnp.where(t.observed, jnp.log(2.0 * jnp.pi * t.noise) + t.residual**2 / raised, 0.0))
    repeats = log_density_of_repeats(gaussian_noise(model, batch), batch)
    W = inverse_factor(B, always=False)
    regression = t.regression(raised)
    raised_W = inverse_factor(regression.B, always=False)
    explained = 0.5 * jnp.sum(matmul(raised_W, regression.b[..., None]) ** 2)
    return fit + explained - half_log_determinant(W) * (len(t.residual) / len(B)) + repeats


@eqx.filter_jit
def _system(model: Model, batch: Batch) -> Regression:
    """B and b of the best q(v)."""
    if isinstance(batch, SummedBatch):
        return summed_regression(model, batch)
    t = _terms(model, batch)
    return t.regression(t.noise)


@eqx.filter_jit
def _optimum(model: Model, batch: Batch) -> Process:
    posterior = sparse_of(model.posterior)
    M, L = posterior.q_mu.shape
    mean, root = _system(model, batch).best()
    best = posterior.with_whitened(mean.reshape(L, M).T, jnp.broadcast_to(root, (L, M, M)))
    return model.posterior.with_process(best) if isinstance(model.posterior, Uncertain) else best
