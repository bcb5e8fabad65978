"""The default model of a table, and how its hyperparameters are learned.

The kernel is a sum of three: a smooth and a rough one, with a lengthscale for each column, and one that is additive over
columns. Their variances decide which of them the data want. A place on the globe enters by distances in space. Priors of wide
spread keep the hyperparameters of small tables within reason. They are learned by exact marginal likelihood, on a random subset
where there are many rows.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

import mercer.kernels as kernels
from mercer.inducing import greedy_indices
from mercer.likelihoods import Gaussian
from mercer.linalg import FactorisationError, safe_cholesky
from mercer.means import Constant
from mercer.model import Model
from mercer.objectives import MarginalLikelihood
from mercer.objectives.base import Objective
from mercer.parameters import cast, declarations, not_finite, positive
from mercer.priors import LogNormal
from mercer.processes import GP
from mercer.training import EarlyStopping, Fit, TrainingError, fit
from mercer.training.checkpoint import CheckpointError

_BLOCK = 8192  # rows of new inputs at a time
_CANDIDATES = 10_000  # rows that inducing points are chosen from
_MANY = 100_000  # rows beyond which equal ones are not looked for

_LEAST_NOISE = 1e-6  # of the variance of the target: below, factorisations lose their accuracy
_LEAST_LENGTHSCALE = 1e-3  # of the spread of a column: below, small distances are rounding errors (16 columns, float64)
_LBFGS = optax.lbfgs()  # one for all calls, so that they share what is compiled

Watch = Callable[[str, int, int, float], None]
Trained = TypeVar("Trained")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a table is learned from.

    - `max_exact`: rows up to which regression is exact; beyond, it is sparse.
    - `subset`: rows that the hyperparameters are learned from where there are more than `max_exact`.
    - `num_inducing`: inducing points of a sparse model, at most.
    - `steps`: steps of the optimiser, at most.
    - `seed`: what all random choices follow from.
    - `checkpoint`: a path; files that begin with it keep the state of training, and a run that finds them goes on.
    - `places`: the numbers of the three columns that are the unit vector of a place, for each place on the globe.
    - `watch`: called with (stage, steps done, steps at most, objective) from time to time.
    """

    max_exact: int = 2000
    subset: int = 1500
    num_inducing: int = 2000
    steps: int = 100
    seed: int = 0
    checkpoint: Path | None = None
    watch: Watch | None = None
    kernel: kernels.Kernel | None = None
    places: tuple[tuple[int, ...], ...] = ()

    def generator(self, purpose: int) -> np.random.Generator:
        """Random numbers for one purpose."""
        return np.random.default_rng([self.seed, purpose])


DEFAULT = Settings()


def default_kernel(num_columns: int, places: Sequence[Sequence[int]] = ()) -> kernels.Sum:
    """A smooth and a rough kernel over all columns and one that is additive over them, where training begins.

    Each of the `places` is the numbers of three columns that are a point on the globe. The first two, in the plane of the
    equator, have a factor of their own with one lengthscale. So turning the globe around its axis changes nothing, and the
    third, towards the north, is a column like others: most fields change faster to the north than to the east.
    """
    planes = [tuple(place[:2]) for place in places]
    rest = sorted(set(range(num_columns)).difference(*planes))
    each = jnp.ones(len(rest))
    reach = float(np.sqrt(num_columns))

    def over_all(kind: type[kernels.Stationary], lengthscale: float, variance: float) -> kernels.Kernel:
        kernel = kind(lengthscale * each, variance)
        return (
            kernels.Product([*(kind(lengthscale).on(plane) for plane in planes), kernel.on(rest)]) if places else kernel
        )

    additive = kernels.Additive(1.5 * each, 0.5 / len(rest) * each)
    return kernels.Sum(
        [
            over_all(kernels.Matern52, reach, 0.7),
            over_all(kernels.Matern12, 3.0 * reach, 0.3),
            additive.on(rest) if places else additive,
        ]
    )


class _Regularised(Objective):
    """The marginal likelihood with wide log-normal priors around a model, on the parameters of its kernel and noise."""

    around: Model
    minibatched = False

    def checked(self, model, data):
        return MarginalLikelihood().checked(model, data)

    def _value(self, model, batch, key):
        def parameters(model):
            is_positive = [d is not None and d.constraint is positive for _, _, d in declarations(model)]
            return [leaf for leaf, taken in zip(jax.tree.leaves(model), is_positive, strict=True) if taken]

        pairs = zip(parameters(model), parameters(self.around), strict=True)
        log_prior = sum(jnp.sum(LogNormal(jnp.log(centre), 1.5).log_prob(value)) for value, centre in pairs)
        return MarginalLikelihood()(model, batch, key) - log_prior / batch.num_data


def learn(model: Any, objective: Objective, data: tuple, settings: Settings, stage: str, **options: Any) -> Fit:
    """`fit`, with the checkpoint, the progress and the second chance that a stage of training needs."""
    steps = options.setdefault("steps", settings.steps)
    path = None if settings.checkpoint is None else Path(f"{settings.checkpoint}.{stage}")
    callbacks = list(options.pop("callbacks", ()))
    if settings.watch is not None:
        watch = settings.watch
        callbacks.append(lambda seen: watch(stage, seen.step, steps, float(seen.history[-1])))
    options |= {"key": jax.random.key(settings.seed), "callbacks": callbacks, "checkpoint": path}
    try:
        return fit(model, objective, data, **options)
    except CheckpointError:  # of another run, or damaged: begin anew
        Path(str(path)).unlink()
        return fit(model, objective, data, **options)
    except TrainingError as error:
        if error.fit.model is None or not_finite(error.fit.model) is not None:
            raise
        return error.fit


def forget(settings: Settings, *stages: str) -> None:
    """Removes the checkpoints of finished stages."""
    for stage in stages if settings.checkpoint is not None else ():
        Path(f"{settings.checkpoint}.{stage}").unlink(missing_ok=True)


def learn_prior(
    X: Float[np.ndarray, "N D"],
    Y: Float[np.ndarray, "N P"],
    weights: Float[np.ndarray, " N"] | None,
    settings: Settings,
    max_rows: int,
) -> tuple[GP, Array, np.ndarray]:
    """A GP prior and a noise variance for standardised data, by marginal likelihood; and the course of training."""
    if len(X) > max_rows:
        rows = settings.generator(1).permutation(len(X))[:max_rows]
        X, Y, weights = X[rows], Y[rows], None if weights is None else weights[rows]
    kernel = default_kernel(X.shape[1], settings.places) if settings.kernel is None else settings.kernel
    start = cast(Model(GP(kernel, mean=Constant(0.0)), Gaussian(0.1)), X.dtype)
    learned = learn(
        start,
        _Regularised(start),
        (X, Y, weights),
        settings,
        "prior",
        optimiser=_LBFGS,
        every=5,
        callbacks=[EarlyStopping(patience=10, tolerance=2e-3, window=5)],
    )
    noise = jnp.maximum(learned.model.likelihood.variance, _LEAST_NOISE)
    return _bounded(learned.model.posterior), noise, learned.history


def _bounded(prior: GP) -> GP:
    """The prior without lengthscales that are too short for its matrices to be positive definite after rounding.

    A column of integers invites them: any that is much shorter than 1 says the same, that different values are unrelated.
    """
    leaves = [
        jnp.maximum(leaf, _LEAST_LENGTHSCALE) if path.endswith(".lengthscale") else leaf
        for path, leaf, _ in declarations(prior)
    ]
    return jax.tree.unflatten(jax.tree.structure(prior), leaves)


@contextlib.contextmanager
def double_precision():
    """Numbers in float64, whatever the process uses elsewhere."""
    with jax.enable_x64(True):
        yield


def merged(X, Y, weights):
    """The data with equal rows made one that counts as often, in the order of their values (as they came if there are many).

    So a weight is a number of copies, whatever is done with the data afterwards.
    """
    X, Y = np.asarray(X, dtype=float), np.asarray(Y, dtype=float)
    if weights is not None:
        kept = weights > 0.0
        X, Y, weights = X[kept], Y[kept], np.asarray(weights, dtype=float)[kept]
    if len(X) > _MANY:
        return X, Y, weights
    rows, positions, inverse = np.unique(np.concatenate([X, Y], axis=1), axis=0, return_index=True, return_inverse=True)
    counts = np.bincount(inverse.ravel(), weights, minlength=len(rows)).astype(float)
    return X[positions], Y[positions], None if (counts == 1.0).all() else counts


def greedy_points(
    X: Float[np.ndarray, "N D"], kernel: kernels.Kernel, num: int, settings: Settings
) -> Float[np.ndarray, "M D"]:
    """Inducing points, chosen greedily among some random rows.

    Where rounding leaves their covariance matrix without a factor, it is half of them, or a quarter, ...: the first that were
    chosen, which determine each other least.
    """
    candidates = X[settings.generator(2).permutation(len(X))[:_CANDIDATES]]
    points = candidates[greedy_indices(candidates, kernel, min(num, len(candidates)))]
    while not _bears(kernel, points):
        points = points[: len(points) // 2]
    return points


def _bears(kernel: kernels.Kernel, points: Float[np.ndarray, "M D"]) -> bool:
    """Whether the covariance matrix of some points can be factorised. For a single one, it raises if not."""
    try:
        safe_cholesky(kernel(jnp.asarray(points)), "Kuu")
    except FactorisationError:
        if len(points) == 1:
            raise
        return False
    return True


def checked(model: Trained) -> Trained:
    """The model, which must not hold NaN or inf."""
    if (place := not_finite(model)) is not None:
        raise FactorisationError(
            f"training gave NaN or infinite numbers in {place.removeprefix('.')}: the covariance matrix of the data is too "
            "nearly singular; use fewer inducing points, leave out columns that repeat others, or give a rougher kernel"
        )
    return model


def check_prediction(*arrays: np.ndarray) -> None:
    """Refuses predictions that hold NaN."""
    if any(np.isnan(array).any() for array in arrays):
        raise FactorisationError(
            "the predictions hold NaN: a factorisation has failed, or the model holds numbers that are not finite; "
            "train it again"
        )


def in_blocks(
    function: Callable[..., Any], *arrays: Float[np.ndarray, "N _"]
) -> tuple[Float[np.ndarray, "N ..."], ...]:
    """The results of a function of rows, some rows at a time. Blocks have a few sizes only, so that little is compiled."""
    parts = []
    for start in range(0, len(arrays[0]), _BLOCK):
        blocks = [array[start : start + _BLOCK] for array in arrays]
        num = len(blocks[0])
        size = min(_BLOCK, max(64, 1 << (num - 1).bit_length()))
        results = function(*(np.pad(block, [(0, size - num), (0, 0)]) for block in blocks))
        parts.append([np.asarray(result)[:num] for result in results])
    whole = tuple(np.concatenate(pieces) for pieces in zip(*parts, strict=True))
    check_prediction(*whole)
    return whole
