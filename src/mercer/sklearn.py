"""Gaussian processes as scikit-learn estimators: the models of the `mercer` command, for pipelines and searches.

All work is in float64, whatever JAX's flag says. Columns are bent towards a normal distribution, centred and scaled inside
(`mercer.tabular.inputs`), targets too, so that a scaler in front is of no use; a `kernel` sees the columns after that. A
weight of w is w copies of its row.
"""

import functools
import numbers
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Shaped
from numpy.typing import ArrayLike

from mercer.inducing import Points
from mercer.kernels import Kernel
from mercer.objectives.sums import Sums
from mercer.parameters import Module, cast
from mercer.processes import Sparse
from mercer.tabular.classification import Classification, classification
from mercer.tabular.regression import Regression, Stream, regression
from mercer.tabular.training import Settings, double_precision, greedy_points

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_array, check_is_fitted, validate_data
except ImportError as error:
    raise ImportError("mercer.sklearn needs scikit-learn: pip install 'mercer[sklearn]'") from error

__all__ = ["GPRegressor", "GPClassifier"]

_LEAST = {"max_exact": 0, "num_inducing": 1, "max_iter": 1}
RandomState = int | np.random.RandomState | None


class _Prediction:
    """A model with what prediction needs worked out, once it is asked for."""

    def __init__(self, model: Regression | Classification):
        self._model = model

    @functools.cached_property
    def model(self) -> Any:
        return self._model.cached()


class _Estimator(BaseEstimator):
    """What the estimators share: the checks of their arguments, and pickles that keep double precision."""

    model_: Any

    def _settings(self) -> Settings:
        """The parameters, checked, as the settings of training."""
        if not isinstance(self.kernel, Kernel | None):
            raise ValueError(f"kernel expects a kernel of mercer.kernels or None, got {self.kernel!r}")
        sizes = {name: value for name, value in self.get_params(deep=False).items() if name in _LEAST}
        for name, value in sizes.items():
            if not isinstance(value, int | np.integer) or value < _LEAST[name]:
                raise ValueError(f"{name} expects an integer of at least {_LEAST[name]}, got {value!r}")
        with double_precision():
            kernel = cast(self.kernel, jnp.float64)
        return Settings(steps=sizes.pop("max_iter"), seed=_seed(self.random_state), kernel=kernel, **sizes)

    def _rows(self, X: Any, y: Any, sample_weight: ArrayLike | None, **checks: Any) -> tuple:
        """Data, checked, without the rows of no weight: X [N, D], y as it came, weights [N] or None."""
        X, y = validate_data(self, X, y, dtype=np.float64, **checks)
        if sample_weight is None:
            return X, y, None
        if isinstance(sample_weight, numbers.Number):
            sample_weight = np.full(len(X), sample_weight)
        weights = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
        if weights.shape != (len(X),):
            raise ValueError(f"sample_weight expects one number for each of {len(X)} rows, got shape {weights.shape}")
        if weights.min() < 0.0 or weights.max() == 0.0:
            raise ValueError("sample_weight must not be negative in any row, nor zero in all of them")
        kept = weights > 0.0
        return X[kept], y[kept], weights[kept]

    def _inputs(self, X: ArrayLike) -> Float[np.ndarray, "N D"]:
        """New inputs, checked."""
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False)

    def _keep(self, model: Regression | Classification) -> Self:
        self.model_, self.n_iter_, self._prediction = model, len(model.history), _Prediction(model)
        return self

    # JAX reads a pickle in single precision unless its flag is set; numpy does not.
    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in super().__getstate__().items() if name != "_prediction"}
        return _in_modules(np.asarray, state)

    def __setstate__(self, state: dict[str, Any]) -> None:
        with double_precision():
            super().__setstate__(_in_modules(jnp.asarray, state))
        if hasattr(self, "model_"):
            self._prediction = _Prediction(self.model_)


class GPRegressor(MultiOutputMixin, RegressorMixin, _Estimator):
    """Gaussian process regression: exact up to `max_exact` rows, sparse beyond; of one or several outputs.

    Args:
        kernel: a kernel on the columns after they were scaled, where training begins; a sum of three if None.
        max_exact: rows up to which the posterior is exact.
        num_inducing: inducing points of a sparse posterior, at most.
        max_iter: steps of the optimiser, at most.
        random_state: what the random choices of training follow from.

    After `fit`, `model_` is the trained `Regression` and `n_iter_` the number of steps that were taken.
    """

    _stream: Stream | None  # of `partial_fit`

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        max_exact: int = 2000,
        num_inducing: int = 2000,
        max_iter: int = 100,
        random_state: RandomState = None,
    ):
        self.kernel = kernel
        self.max_exact = max_exact
        self.num_inducing = num_inducing
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learns from X [N, D] and y [N] or [N, P]."""
        inputs, outputs, weights = self._data(X, y, sample_weight, reset=True)
        self._stream = None
        return self._keep(regression(inputs, outputs, weights, self._settings()))

    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Adds rows to what was learned before, exactly.

        Scales, kernel and inducing points come from the first call, or from `fit` where it was exact; it should see a fair
        sample of what will come.
        """
        begins = not hasattr(self, "model_")
        inputs, outputs, weights = self._data(X, y, sample_weight, reset=begins)
        if begins:
            stream = Stream.begin(inputs, outputs, weights, self._settings())
        else:
            so_far = self._stream or _stream_after(self.model_, self._settings())
            stream = so_far.add(inputs, outputs, weights)
        self._stream = stream
        return self._keep(stream.regression())

    def predict(self, X: ArrayLike, return_std: bool = False, return_cov: bool = False) -> np.ndarray | tuple:
        """The mean of new observations, [N] or [N, P]; if asked for, with their standard deviation or covariance.

        The covariance between inputs is [N, N], or [N, N, P] for several outputs. Both include the noise.
        """
        if return_std and return_cov:
            raise RuntimeError("at most one of return_std and return_cov can be True")
        X = self._inputs(X)
        if return_cov:
            mean, covariance = self._prediction.model.joint(X)
            return self._shaped(mean), self._shaped(np.moveaxis(covariance, 0, -1))
        predicted = self._prediction.model.predictive(X)
        mean = self._shaped(predicted.mean)
        return (mean, self._shaped(predicted.sd)) if return_std else mean

    def predict_interval(self, X: ArrayLike, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The lower and the upper ends, [N] or [N, P], of intervals that hold a share `level` of new observations."""
        if not 0.0 < level < 1.0:
            raise ValueError(f"level expects a share between 0 and 1, got {level!r}")
        X = self._inputs(X)
        lower, upper = self._prediction.model.predictive(X).interval(level)
        return self._shaped(lower), self._shaped(upper)

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: RandomState = 0) -> np.ndarray:
        """Joint draws of new observations, [N, S] or [N, P, S]."""
        X = self._inputs(X)
        draws = self._prediction.model.sample(X, n_samples, key=jax.random.key(_seed(random_state)))
        return self._shaped(np.moveaxis(draws, 0, -1), axis=1)

    def log_density(self, X: ArrayLike, y: ArrayLike) -> Float[np.ndarray, " N"]:
        """The log density of observations, in nats."""
        check_is_fitted(self)
        inputs, outputs, _ = self._data(X, y, None, reset=False)
        return self._prediction.model.predictive(inputs).log_density(outputs)

    def _data(self, X, y, sample_weight, reset) -> tuple:
        """Data, checked: X [N, D], Y [N, P], weights."""
        X, y, weights = self._rows(X, y, sample_weight, reset=reset, multi_output=True, y_numeric=True)
        if reset:
            self._shape = y.shape[1:]
        elif y.shape[1:] != self._shape:
            raise ValueError(f"y expects shape {('N', *self._shape)}, as in training, got {y.shape}")
        return X, y.reshape(len(X), -1).astype(np.float64), weights

    def _shaped(self, values: np.ndarray, axis: int = -1) -> np.ndarray:
        """Values without the axis of outputs where y had none."""
        return values if self._shape else np.squeeze(values, axis)


class GPClassifier(ClassifierMixin, _Estimator):
    """Gaussian process classification of two or more classes, with a sparse posterior.

    Args:
        kernel: a kernel on the columns after they were scaled, where training begins; a sum of three if None.
        num_inducing: inducing points, at most.
        max_iter: steps of the optimiser, at most, in each stage of training.
        random_state: what the random choices of training follow from.

    After `fit`, `classes_` are the classes, `model_` is the trained `Classification` and `n_iter_` the number of steps.
    """

    _num_data: int  # rows so far

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        num_inducing: int = 500,
        max_iter: int = 100,
        random_state: RandomState = None,
    ):
        self.kernel = kernel
        self.num_inducing = num_inducing
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learns from X [N, D] and the classes y [N]."""
        inputs, labels, weights = self._data(X, y, sample_weight, reset=True)
        return self._begin(inputs, labels, weights, labels)

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Goes on learning from more rows, by a few steps of natural gradients for the posterior.

        The first call learns all the rest, as `fit`; it wants all `classes` that will come.
        """
        begins = not hasattr(self, "model_")
        if begins and classes is None:
            raise ValueError("classes must be given to the first call of partial_fit")
        inputs, labels, weights = self._data(X, y, sample_weight, reset=begins)
        if begins:
            return self._begin(inputs, labels, weights, classes)
        codes, self._num_data = self._codes(labels), self._num_data + len(inputs)
        return self._keep(self.model_.update(inputs, codes, weights, self._num_data))

    def predict(self, X: ArrayLike) -> Shaped[np.ndarray, " N"]:
        """The most probable classes."""
        most_probable = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[most_probable]

    def predict_proba(self, X: ArrayLike) -> Float[np.ndarray, "N C"]:
        """The probability of each of `classes_`."""
        X = self._inputs(X)
        return self._prediction.model.predictive(X).probabilities

    def predict_log_proba(self, X: ArrayLike) -> Float[np.ndarray, "N C"]:
        """The log probability of each of `classes_`."""
        return np.log(self.predict_proba(X))

    def log_density(self, X: ArrayLike, y: ArrayLike) -> Float[np.ndarray, " N"]:
        """The log probability of the class of each row."""
        check_is_fitted(self)
        inputs, labels, _ = self._data(X, y, None, reset=False)
        return self._prediction.model.predictive(inputs).log_density(self._codes(labels))

    def _data(self, X, y, sample_weight, reset) -> tuple:
        """Data, checked: X [N, D], y [N], weights."""
        X, y, weights = self._rows(X, y, sample_weight, reset=reset)
        check_classification_targets(y)
        return X, y, weights

    def _begin(self, X, y, weights, classes):
        self.classes_ = np.unique(classes)
        num_classes, self._num_data = len(self.classes_), len(X)
        if num_classes < 2:
            raise ValueError(f"y must hold at least two classes, got one class: {self.classes_.tolist()[0]!r}")
        return self._keep(classification(X, self._codes(y), num_classes, weights, self._settings()))

    def _codes(self, y: np.ndarray) -> Float[np.ndarray, " N"]:
        """The position in `classes_` of each y."""
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"y holds {unknown.tolist()[0]!r}, which is none of the classes {self.classes_.tolist()}")
        return np.searchsorted(self.classes_, y).astype(np.float64)


def _seed(random_state: RandomState) -> int:
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def _stream_after(model: Any, settings: Settings) -> Stream:
    """A stream that has had the data of an exact regression, which holds them."""
    if not model.exact:
        raise ValueError("partial_fit cannot go on from a sparse fit, which forgets its data; begin with partial_fit")
    posterior, noise = model.posterior, model.noise
    with double_precision():
        X, Y, prior = posterior.X, posterior.Y, posterior.prior
        weights = jnp.broadcast_to(noise / posterior.noise, (len(X), 1))[:, 0]
        points = greedy_points(np.asarray(X), prior.kernel, settings.num_inducing, settings)
        sums = Sums.of(Sparse(prior, Points(points)), Y.shape[1]).add(X, Y, weights)
        return Stream(model, sums, X, Y, weights, settings.seed)


def _in_modules(function: Callable, state: dict[str, Any]) -> dict[str, Any]:
    """The state of an estimator with `function` of every array of its modules."""

    def of(leaf):
        return function(leaf) if isinstance(leaf, jax.Array | np.ndarray) else leaf

    return {name: jax.tree.map(of, value) if isinstance(value, Module) else value for name, value in state.items()}
