"""The collapsed bound of sparse regression, in which the best q(u) is solved for (Titsias, 2009; paper 000, 3.14 to 3.16).

Whitened, with C = R^-1 Kuf, precisions lambda_n = 1 / noise_n (0 where y_n is missing) and r = y - m(x), the likelihood
is Gaussian in v, u = R v, and so is the best q(v) = N(B^-1 b, B^-1), B = I + C diag(lambda) C^T, b = C (lambda r). The bound is

    sum_n log N(r_n; 0, noise_n) + |B^-1/2 b|^2 / 2 - log det B / 2 - sum_n lambda_n (k_nn - |C_n|^2) / 2.

Independent outputs have such a bound each, in which those that share a kernel share C. Outputs that covary are one system
of N P observations and L M variables. Where q(v) is independent between its L groups the best mean is the same, the best
covariances are the inverses of the blocks B_ll, and log det B becomes the sum of log det B_ll.
"""

from typing import NamedTuple, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.covariances import Kuu
from mercer.covariances.functionals import all_concrete, cross_covariance, prior_variance
from mercer.inducing import Shared
from mercer.kernels import Independent, OutputIndexed
from mercer.likelihoods import Gaussian
from mercer.linalg import FactorisationError, inverse_factor, inverse_root, matmul, quiet_blas, weighted_gram
from mercer.linalg.cholesky import raise_if_failed, raise_if_not_finite
from mercer.linalg.products import for_each_entry
from mercer.means import Zero
from mercer.model import Model, align
from mercer.objectives.base import Batch, Objective
from mercer.objectives.exact import gaussian_noise, log_density_of_repeats
from mercer.objectives.fixed_features import SummedBatch, summed, summed_terms
from mercer.parameters import is_concrete
from mercer.processes import Sparse
from mercer.processes.latents import for_each


class Terms(NamedTuple):
    """What the bounds are made of, for S systems of n observations. A first axis of length 1 is shared by the systems."""

    C: Float[Array, "#S m n"]
    slack: Float[Array, "#S n"]  # k_nn - |C_n|^2
    residual: Float[Array, "S n"]
    observed: Array
    noise: Float[Array, "S n"]
    shared: bool  # whether the systems have the same C and the same precisions

    def precisions(self, noise: Float[Array, "S n"]) -> Float[Array, "G n"]:
        """1 / noise, 0 where nothing was observed; one for all systems where they share it."""
        precision = jnp.where(self.observed, 1.0 / noise, 0.0)
        return precision[:1] if self.shared else precision

    def B(self, precision: Float[Array, "G n"]) -> Float[Array, "G m m"]:
        identity = jnp.eye(self.C.shape[1], dtype=self.C.dtype)
        if len(self.C) == 1:
            return identity + for_each_entry(lambda weights: weighted_gram(self.C[0], weights), precision)
        return identity + for_each_entry(weighted_gram, self.C, precision)

    def b(self, precision: Float[Array, "G n"]) -> Float[Array, "S m"]:
        weighted = precision * self.residual
        return matmul(weighted, self.C[0].T) if len(self.C) == 1 else matmul(self.C, weighted[..., None])[..., 0]


def _terms(model: Model, batch: Batch) -> Terms:
    posterior = model.posterior
    observed = ~jnp.isnan(batch.Y)
    residual = jnp.where(observed, batch.Y - posterior.prior.mean_of(batch.X, batch.Y.shape[1]), 0.0)
    noise = gaussian_noise(model, batch)
    same_noise = jnp.ndim(noise) == 0 or jnp.shape(noise)[-1] == 1
    noise = jnp.broadcast_to(noise, batch.Y.shape)
    if _has_joint_system(posterior):

        def of_group(pair, cross):
            return Kuu(*pair).whiten(cross.reshape(len(cross), -1))

        C = posterior._for_each_group(of_group, posterior.Kuf(batch.X))
        C = C.reshape(1, -1, C.shape[-1])
        own = posterior.prior.covariance(batch.X, batch.Y.shape[1], "diag").reshape(1, -1)
        observed, residual, noise = (array.reshape(1, -1) for array in (observed, residual, noise))
        shared = True
    else:

        def of_pair(pair):
            return Kuu(*pair).whiten(cross_covariance(*pair, batch.X)), prior_variance(pair[1], batch.X)

        C, own = for_each(of_pair, posterior._pairs())
        observed, residual, noise = observed.T, residual.T, noise.T
        shared = batch.complete and same_noise and len(C) == 1
    slack = jnp.maximum(own - jnp.sum(C**2, axis=1), 0.0)
    return Terms(C, slack, residual, observed, noise, shared)


def _has_joint_system(posterior: Sparse) -> bool:
    """Whether the outputs share their inducing variables."""
    return not (posterior._is_single or (posterior._is_mixture and isinstance(posterior.prior.kernel, Independent)))


def _evidence(B: Float[Array, "G m m"], b: Float[Array, "S m"], num_groups: int) -> Float[Array, ""]:
    """1/2 sum (b^T B^-1 b - log det B) over S systems; of B the blocks on its diagonal, where there are groups of variables."""
    W = inverse_factor(B, always=False)
    explained = 0.5 * jnp.sum(matmul(W, b[..., None]) ** 2)
    return explained - _half_log_determinant(_of_groups(W, B, num_groups)) * (len(b) / len(B))


def _half_log_determinant(W: Float[Array, "J m m"]) -> Float[Array, ""]:
    """1/2 sum log det of matrices with these inverse factors."""
    return -jnp.sum(jnp.log(jnp.diagonal(W, axis1=1, axis2=2)))


def _of_groups(W: Float[Array, "G m m"], B: Float[Array, "G m m"], num_groups: int) -> Float[Array, "J M M"]:
    """The inverse factors of the blocks of B, whose own inverse factor is W."""
    return W if num_groups == 1 else inverse_factor(_blocks(B, num_groups), always=False)


def _blocks(B: Float[Array, "G m m"], num_groups: int) -> Float[Array, "J M M"]:
    """The blocks on the diagonal of each matrix."""
    size, each = B.shape[1] // num_groups, jnp.arange(num_groups)
    blocks = B.reshape(len(B), num_groups, size, num_groups, size)[:, each, :, each, :]
    return jnp.moveaxis(blocks, 0, 1).reshape(-1, size, size)


class CollapsedELBO(Objective):
    """Minus Titsias' bound, per datum, for a Model of a `Sparse` and a Gaussian likelihood. q(u) plays no part in it.

    `fit` leaves the model with the best q(u); `posterior` gives that, too. Inducing variables whose Kuf has no parameters
    (`mercer.inducing.FourierFeatures`) are summed over the data once; a step then costs the same for any number of data.
    """

    minibatched = False

    def checked(self, model, data):
        if not (
            isinstance(model, Model) and isinstance(model.posterior, Sparse) and isinstance(model.likelihood, Gaussian)
        ):
            raise ValueError("CollapsedELBO expects a Model of a Sparse posterior and a Gaussian likelihood")
        return super().checked(model, data)

    def prepare(self, model, batch):
        return summed(model, batch) if _sums_suffice(model, batch) else batch

    def _value(self, model, batch, key):
        return -_bound(model, batch) / batch.num_data

    def bound(self, model: Model, X: Float[Array, "N D"], Y: Float[Array, "N P"]) -> Float[Array, ""]:
        """The lower bound on log p(Y), in nats over all the data."""
        return self._of(_bound, model, self.prepare(model, self.checked(model, (X, Y))))

    def upper_bound(self, model: Model, X: Float[Array, "N D"], Y: Float[Array, "N P"]) -> Float[Array, ""]:
        """An upper bound on log p(Y) (Titsias, 2014): the noise in the quadratic term is raised by tr(Kff - Qff)."""
        return self._of(_upper_bound, model, self.checked(model, (X, Y)))

    def posterior(self, model: Model, X: Float[Array, "N D"], Y: Float[Array, "N P"]) -> Sparse:
        """The sparse posterior with the best q(u)."""
        return self._of(_optimum, model, self.prepare(model, self.checked(model, (X, Y))))

    def complete(self, model, batch):
        return Model(self._of(_optimum, model, batch), model.likelihood)

    def _of(self, function, model, batch):
        """A function of model and batch. What fails on numbers that can be looked at raises, and names the matrix."""
        model = align(model, batch.dtype)
        with quiet_blas():
            result = jax.block_until_ready(function(model, batch))
            found = [leaf for leaf in jax.tree.leaves(result) if eqx.is_inexact_array(leaf)]
            if not all(bool(jnp.isfinite(leaf).all()) for leaf in found if is_concrete(leaf)):
                _raise(model, batch)
        return result


def _raise(model: Model, batch: Batch) -> NoReturn:
    """Says why the bound or the best q(u) is not finite."""
    for pair in model.posterior._pairs():
        matrix = Kuu(*pair).dense()
        raise_if_failed(matrix, inverse_factor(matrix), "Kuu")
    B, b = _system(model, batch)
    raise_if_failed(B, inverse_factor(B, always=False), "B = I + C diag(1 / noise) C^T, C = R^-1 Kuf")
    raise_if_not_finite(b, "C ((y - m) / noise), C = R^-1 Kuf")
    raise FactorisationError(
        "the collapsed bound is not finite although Kuu and B are: look at the noise, Y and the mean"
    )


def _sums_suffice(model: Model, batch: Batch) -> bool:
    """Whether the bound depends on the data through sums that no parameter changes."""
    posterior, kernel = model.posterior, model.posterior.prior.kernel
    structured = posterior._is_single or isinstance(kernel, Independent) or isinstance(posterior.inducing, Shared)
    plain = isinstance(posterior.prior.mean, Zero) and model.likelihood.variance is not None
    usual = batch.inputs is not None and batch.complete and batch.weights is None and all_concrete(batch)
    fixed = all(part.fixed for part, _ in posterior._pairs()) and not isinstance(kernel, OutputIndexed)
    return fixed and structured and plain and usual


@eqx.filter_jit
def _bound(model: Model, batch: Batch) -> Float[Array, ""]:
    groups = _num_groups(model.posterior)
    if isinstance(batch, SummedBatch):
        sums = summed_terms(model, batch)
        return sums.fit + _evidence(sums.B, sums.b, groups) - sums.lost
    t = _terms(model, batch)
    precision = t.precisions(t.noise)
    B = t.B(precision)
    fit = -0.5 * jnp.sum(jnp.where(t.observed, jnp.log(2.0 * jnp.pi * t.noise) + t.residual**2 / t.noise, 0.0))
    lost = 0.5 * jnp.sum(t.slack * precision) * (len(t.residual) / len(precision))
    repeats = log_density_of_repeats(gaussian_noise(model, batch), batch)
    return fit + _evidence(B, t.b(precision), groups) - lost + repeats


def _num_groups(posterior: Sparse) -> int:
    """Between how many groups of variables in one system of equations q(u) is independent."""
    return posterior.q_mu.shape[1] if _has_joint_system(posterior) else 1


@eqx.filter_jit
def _upper_bound(model: Model, batch: Batch) -> Float[Array, ""]:
    t = _terms(model, batch)
    B = t.B(t.precisions(t.noise))
    raised = t.noise + jnp.sum(jnp.where(t.observed, t.slack, 0.0), axis=1, keepdims=True)
    precision = t.precisions(raised)
    fit = -0.5 * jnp.sum(jnp.where(t.observed, jnp.log(2.0 * jnp.pi * t.noise) + t.residual**2 / raised, 0.0))
    repeats = log_density_of_repeats(gaussian_noise(model, batch), batch)
    W = inverse_factor(B, always=False)
    raised_W = inverse_factor(t.B(precision), always=False)
    explained = 0.5 * jnp.sum(matmul(raised_W, t.b(precision)[..., None]) ** 2)
    return fit + explained - _half_log_determinant(W) * (len(t.residual) / len(B)) + repeats


@eqx.filter_jit
def _system(model: Model, batch: Batch) -> tuple[Float[Array, "G m m"], Float[Array, "S m"]]:
    """B and b of the best q(v)."""
    if isinstance(batch, SummedBatch):
        sums = summed_terms(model, batch)
        return sums.B, sums.b
    t = _terms(model, batch)
    precision = t.precisions(t.noise)
    return t.B(precision), t.b(precision)


@eqx.filter_jit
def _optimum(model: Model, batch: Batch) -> Sparse:
    B, b = _system(model, batch)
    posterior = model.posterior
    M, L = posterior.q_mu.shape
    root = inverse_root(B)
    q_mu = matmul(root, matmul(root.mT, b[..., None]))[..., 0].reshape(L, M).T
    if _num_groups(posterior) > 1:
        root = inverse_root(_blocks(B, L))
    return posterior.with_whitened(q_mu, jnp.broadcast_to(root, (L, M, M)))
