"""The estimators keep the promises of scikit-learn, and their own."""

import pickle
import subprocess
import sys

import jax
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

import mercer as mc
from cases import mostly_slow
from mercer.sklearn import GPClassifier, GPRegressor
from mercer.tabular.regression import Stream

ESTIMATORS = [GPRegressor(), GPClassifier()]
# Of scikit-learn's checks, those that train nothing and some that see most of what can go wrong.
REPRESENTATIVE = [
    "check_complex_data",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_sparse_array",
    "check_estimator_tags_renamed",
    "check_estimators_empty_data_messages",
    "check_estimators_unfitted",
    "check_methods_subset_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_supervised_y_no_nan",
    "check_valid_tag_types",
]


def quick(estimator=GPRegressor, **options):
    """An estimator that is compiled fast and trained little."""
    return estimator(**{"kernel": mc.kernels.RBF(), "max_iter": 3, "random_state": 0} | options)


def sine(num, seed=0):
    random = np.random.default_rng(seed)
    X = random.uniform(-3.0, 3.0, (num, 1))
    return X, 5.0 + 2.0 * np.sin(2.0 * X[:, 0]) + 0.3 * random.normal(size=num)


def flowers(num, seed=0):
    """Two columns and three classes, as a data frame and texts."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(num, 2))
    names = np.array(["iris", "lily", "rose"], dtype=object)
    return pd.DataFrame(X, columns=["width", "length"]), names[np.digitize(X[:, 0] + 0.3 * X[:, 1], [-0.5, 0.5])]


@pytest.fixture(scope="module")
def regressor():
    return GPRegressor().fit(*sine(100))


@pytest.fixture(scope="module")
def two_outputs():
    X, y = sine(50)
    return quick().fit(X, np.stack([y, -3.0 * y], axis=1))


@pytest.fixture(scope="module")
def classifier():
    return quick(GPClassifier, max_iter=30).fit(*flowers(150))


@pytest.mark.slow
@parametrize_with_checks(ESTIMATORS)
def test_all_checks_of_scikit_learn(estimator, check, unchecked_signatures):
    check(estimator)


@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        pytest.param(checked, check, id=f"{type(estimator).__name__}-{check.func.__name__}")
        for estimator in ESTIMATORS
        for checked, check in estimator_checks_generator(estimator)
        if check.func.__name__ in REPRESENTATIVE
    ],
)
def test_some_checks_of_scikit_learn(estimator, check, unchecked_signatures):  # they hand in wrong arguments, too
    check(estimator)


def test_regression_is_calibrated(regressor):
    X, y = sine(1000, seed=1)
    mean, deviation = regressor.predict(X, return_std=True)
    # 95 % of 1000, give or take what 100 rows to learn from leave open
    assert 0.91 < np.mean(np.abs(y - mean) < 2.0 * deviation) < 0.98
    lower, upper = regressor.predict_interval(X, level=0.9)
    assert 0.85 < np.mean((lower < y) & (y < upper)) < 0.95
    assert regressor.score(X, y) > 0.9
    # the entropy of the noise is 0.5 log(2 pi e 0.3^2) = 0.215
    assert -0.4 < np.mean(regressor.log_density(X, y)) < -0.15
    assert 1 <= regressor.n_iter_ <= regressor.max_iter


def test_covariance_and_samples_agree_with_the_marginals(regressor):
    X = np.linspace(-3.5, 3.5, 20)[:, None]
    mean, deviation = regressor.predict(X, return_std=True)
    covariance = regressor.predict(X, return_cov=True)[1]
    assert np.allclose(np.diag(covariance), deviation**2, rtol=1e-6)
    draws = regressor.sample_y(X, 20_000, random_state=1)
    assert draws.shape == (20, 20_000)
    # five standard errors of the mean, and of the covariance, of that many draws
    error = 5.0 / np.sqrt(20_000)
    assert np.all(np.abs(draws.mean(axis=1) - mean) < error * deviation)
    assert np.all(np.abs(np.cov(draws) - covariance) < np.sqrt(2.0) * error * np.outer(deviation, deviation))
    assert np.array_equal(regressor.sample_y(X, 3), regressor.sample_y(X, 3, random_state=0))
    with pytest.raises(RuntimeError, match="return_std and return_cov"):
        regressor.predict(X, return_std=True, return_cov=True)


def test_several_outputs_keep_their_shapes(two_outputs):
    X, y = sine(7)
    mean, deviation = two_outputs.predict(X, return_std=True)
    assert mean.shape == deviation.shape == (7, 2)
    assert np.allclose(mean[:, 1], -3.0 * mean[:, 0])
    assert two_outputs.predict(X, return_cov=True)[1].shape == (7, 7, 2)
    assert two_outputs.sample_y(X, 4).shape == (7, 2, 4)
    assert two_outputs.predict_interval(X)[0].shape == (7, 2)
    assert two_outputs.log_density(X, np.stack([y, y], axis=1)).shape == (7,)
    with pytest.raises(ValueError, match="y expects shape"):
        two_outputs.log_density(X, y)


def test_classes_have_probabilities(classifier):
    X, y = flowers(500, seed=1)
    p = classifier.predict_proba(X)
    assert p.shape == (500, 3)
    assert np.allclose(p.sum(axis=1), 1.0)
    assert classifier.score(X, y) > 0.9
    assert list(classifier.classes_) == ["iris", "lily", "rose"]
    assert np.array_equal(classifier.predict(X), classifier.classes_[p.argmax(axis=1)])
    assert np.allclose(classifier.predict_log_proba(X), np.log(p))
    of_its_class = p[np.arange(500), np.searchsorted(classifier.classes_, y)]
    assert np.allclose(classifier.log_density(X, y), np.log(of_its_class))
    with pytest.raises(ValueError, match="'tulip', which is none of the classes"):
        classifier.log_density(X[:1], np.array(["tulip"], dtype=object))


def test_data_frames_have_names(classifier):
    X, _ = flowers(20, seed=2)
    assert list(classifier.feature_names_in_) == ["width", "length"]
    expected = classifier.predict_proba(X)
    assert np.array_equal(classifier.predict_proba(pl.DataFrame(X.to_dict("list"))), expected)
    with pytest.raises(ValueError, match="feature names"):
        classifier.predict(X.rename(columns={"width": "height"}))


def test_a_polars_frame_teaches_names():
    X, y = sine(30)
    model = quick().fit(pl.DataFrame({"x": X[:, 0]}), pl.Series(y))
    assert list(model.feature_names_in_) == ["x"]
    assert np.array_equal(model.predict(pl.DataFrame({"x": X[:, 0]})), quick().fit(X, y).predict(X))


@pytest.mark.parametrize("estimator", mostly_slow([GPRegressor, GPClassifier], GPClassifier))
def test_a_weight_is_a_number_of_copies(estimator):
    X, y = sine(40)
    y = y if estimator is GPRegressor else y > 5.0
    weights = np.random.default_rng(1).integers(0, 4, 40)
    weighted = quick(estimator).fit(X, y, sample_weight=weights)
    copied = quick(estimator).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    predict = "predict" if estimator is GPRegressor else "predict_proba"
    assert np.allclose(getattr(weighted, predict)(X), getattr(copied, predict)(X), rtol=1e-10)


@pytest.mark.parametrize("max_exact", mostly_slow([0, 2000], 0))
def test_a_stream_adds_rows(max_exact):
    X, y = sine(120)
    options = {"max_exact": max_exact, "num_inducing": 30}
    streamed = quick(**options).partial_fit(X[:60], y[:60]).partial_fit(X[60:], y[60:], np.full(60, 2.0))
    stream = Stream.begin(X[:60], y[:60, None], None, quick(**options)._settings())
    expected = stream.add(X[60:], y[60:, None], np.full(60, 2.0)).regression().predict(X)
    for values, those in zip(streamed.predict(X, return_std=True), expected, strict=True):
        assert np.allclose(values, those[:, 0], rtol=1e-8)


@pytest.mark.slow
def test_a_stream_goes_on_from_a_fit():
    X, y = sine(120)
    first, second = (X[:60], y[:60], np.full(60, 2.0)), (X[60:], y[60:])
    streamed = quick().partial_fit(*first).partial_fit(*second).predict(X, return_std=True)
    continued = quick().fit(*first).partial_fit(*second).predict(X, return_std=True)
    assert np.allclose(continued, streamed, rtol=1e-6)
    with pytest.raises(ValueError, match="cannot go on from a sparse fit"):
        quick(max_exact=50).fit(*first).partial_fit(*second)


@pytest.mark.slow  # by default tests/tabular/test_predictors.py has a stream of classes
def test_a_stream_of_classes():
    X, y = flowers(200)
    model = quick(GPClassifier, max_iter=30)
    with pytest.raises(ValueError, match="classes must be given"):
        model.partial_fit(X, y)
    seen = np.flatnonzero(y != "rose")[:60]  # the first batch does not know all classes
    model.partial_fit(X.iloc[seen], y[seen], classes=["rose", "lily", "iris"])
    before = np.mean(model.log_density(X[150:], y[150:]))
    model.partial_fit(X[:150], y[:150])
    assert np.mean(model.log_density(X[150:], y[150:])) > before
    assert list(model.classes_) == ["iris", "lily", "rose"]


def test_a_pickle_keeps_every_bit(regressor):
    X, _ = sine(20, seed=3)
    expected = regressor.predict(X, return_std=True)
    content = pickle.dumps(regressor)
    for double in (True, False):  # JAX's flag where the pickle is read
        with jax.enable_x64(double):
            read = pickle.loads(content)
            assert read.model_.model.posterior.X.dtype == np.float64
            assert np.array_equal(read.predict(X, return_std=True), expected)
    assert len(content) < 20_000  # without what prediction works out


def test_numbers_do_not_depend_on_the_flag_of_jax():
    X, y = sine(40)

    def results():
        model = quick().partial_fit(X[:30], y[:30]).partial_fit(X[30:], y[30:])
        return np.concatenate([*model.predict(X, return_std=True), model.sample_y(X)[:, 0], *model.predict_interval(X)])

    expected = results()
    with jax.enable_x64(False):
        assert results().dtype == np.float64
        assert np.allclose(results(), expected, rtol=1e-9)


def test_parameters_are_kept_as_they_were_given():
    kernel = mc.kernels.Matern32(0.5)
    model = GPRegressor(kernel, max_exact=10)
    assert model.get_params() == {
        "kernel": kernel,
        "max_exact": 10,
        "num_inducing": 2000,
        "max_iter": 100,
        "random_state": None,
    }
    assert float(clone(model).kernel.lengthscale) == 0.5
    assert model.set_params(max_iter=7).max_iter == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "rbf"}, "kernel expects a kernel of mercer.kernels or None, got 'rbf'"),
        ({"max_iter": 0}, "max_iter expects an integer of at least 1, got 0"),
        ({"max_exact": 2.5}, "max_exact expects an integer of at least 0, got 2.5"),
    ],
)
def test_wrong_parameters_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        GPRegressor(**options).fit(*sine(10))


def test_wrong_data_are_named():
    X, y = sine(10)
    with pytest.raises(ValueError, match="one class: 'a'"):
        GPClassifier().fit(X, ["a"] * 10)
    for weights in (np.zeros(10), -np.ones(10)):
        with pytest.raises(ValueError, match=r"[Ww]eight"):
            GPRegressor().fit(X, y, weights)
    with pytest.raises(NotFittedError):
        GPRegressor().log_density(X, y)


@pytest.mark.slow
def test_pipeline_and_grid_search():
    X, y = sine(40)
    kernels = [mc.kernels.RBF(), mc.kernels.Linear()]
    search = GridSearchCV(make_pipeline(StandardScaler(), quick()), {"gpregressor__kernel": kernels}, cv=2)
    search.fit(X, y)
    assert isinstance(search.best_params_["gpregressor__kernel"], mc.kernels.RBF)
    assert search.predict(X).shape == (40,)


@pytest.mark.slow
def test_cross_validation_in_processes(monkeypatch):
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # as here, see conftest.py
    X, y = sine(40)
    scores = cross_val_score(quick(), X, y, cv=2, n_jobs=2)
    assert np.allclose(scores, cross_val_score(quick(), X, y, cv=2), rtol=1e-6)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_scikit_learn_is_imported_only_when_it_is_used():
    assert run("import sys, mercer; assert 'sklearn' not in sys.modules").returncode == 0


def test_a_missing_scikit_learn_is_a_sentence():
    result = run("import sys; sys.modules['sklearn'] = None; import mercer.sklearn")
    assert result.stderr.strip().endswith(
        "ImportError: mercer.sklearn needs scikit-learn: pip install 'mercer[sklearn]'"
    )
