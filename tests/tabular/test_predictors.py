"""Regression, classification and counts from raw inputs: what must hold whatever the default model is."""

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy import stats

import mercer as mc
from mercer.linalg import FactorisationError
from mercer.tabular.classification import classification
from mercer.tabular.counts import counts
from mercer.tabular.evaluation import Evaluation
from mercer.tabular.regression import Stream, regression
from mercer.tabular.training import Settings, checked, greedy_points

random = np.random.default_rng(0)
X = np.stack([random.uniform(-2.0, 2.0, 120), random.exponential(3.0, 120)], axis=1)
MEAN = np.sin(2.0 * X[:, :1]) + 0.3 * X[:, 1:]
Y = MEAN + 0.1 * random.normal(size=MEAN.shape)
NEW = X[100:]
TRAIN = X[:100], Y[:100]
KERNEL = mc.kernels.Matern52([1.0, 1.0])  # smaller than the default: it compiles faster
QUICK = Settings(steps=15, kernel=KERNEL)
SPARSE = Settings(steps=15, kernel=KERNEL, max_exact=50, subset=60, num_inducing=40)


@pytest.fixture(scope="module")
def exact():
    return regression(*TRAIN, settings=QUICK)


@pytest.fixture(scope="module")
def sparse():
    return regression(*TRAIN, settings=SPARSE)


@pytest.fixture(scope="module")
def counter():
    return counts(X, random.poisson(np.exp(0.7 * MEAN[:, 0])).astype(float), settings=QUICK)


@pytest.fixture(scope="module")
def classifier():
    return classification(X[:100], (Y[:100, 0] > 0.8).astype(float), 2, settings=QUICK)


class TestRegression:
    def test_method_follows_the_number_of_rows(self, exact, sparse):
        assert exact.exact and not sparse.exact

    @pytest.mark.parametrize("method", ["exact", "sparse"])
    def test_it_learns_the_function_and_its_noise(self, method, request):
        model = request.getfixturevalue(method)
        mean, deviation = model.predict(NEW)
        assert np.sqrt(np.mean((mean - MEAN[100:]) ** 2)) < 0.15
        assert 0.06 < np.median(deviation) < 0.25
        lower, upper = model.interval(NEW, 0.9)
        assert 0.7 <= np.mean((Y[100:] > lower) & (Y[100:] < upper)) <= 1.0

    @pytest.mark.parametrize("method", ["exact", "sparse"])
    def test_densities_integrate_to_1(self, method, request):
        model = request.getfixturevalue(method)
        mean, deviation = model.predict(NEW[:1])
        grid = mean[0, 0] + deviation[0, 0] * np.linspace(-40.0, 40.0, 8001)
        density = np.exp(model.log_density(np.repeat(NEW[:1], len(grid), axis=0), grid[:, None]))
        np.testing.assert_allclose(np.trapezoid(density, grid), 1.0, atol=2e-3)

    def test_units_of_the_target_do_not_matter(self, exact):
        other = regression(X[:100], 1e3 * Y[:100] - 7.0, settings=QUICK)
        mean, deviation = exact.predict(NEW)
        other_mean, other_deviation = other.predict(NEW)
        np.testing.assert_allclose(other_mean, 1e3 * mean - 7.0, rtol=1e-3, atol=1.0)
        np.testing.assert_allclose(other_deviation, 1e3 * deviation, rtol=1e-2)

    def test_predictions_do_not_depend_on_the_company(self, exact):
        mean, deviation = exact.predict(NEW)
        one_mean, one_deviation = exact.predict(NEW[3:4])
        np.testing.assert_allclose(one_mean, mean[3:4], rtol=1e-9)
        np.testing.assert_allclose(one_deviation, deviation[3:4], rtol=1e-9)

    def test_a_weight_is_a_number_of_copies(self):
        weights = random.integers(0, 3, 100).astype(float)
        copies = np.repeat(np.arange(100), weights.astype(int))
        weighted = regression(*TRAIN, weights, QUICK)
        copied = regression(X[copies], Y[copies], None, QUICK)
        np.testing.assert_array_equal(weighted.predict(NEW)[0], copied.predict(NEW)[0])

    def test_conditioning_on_the_same_data_changes_nothing(self, exact, sparse):
        for model, settings in ((exact, QUICK), (sparse, SPARSE)):
            again = model.condition(*TRAIN, None, settings)
            np.testing.assert_allclose(again.predict(NEW)[0], model.predict(NEW)[0], rtol=1e-2, atol=1e-2)

    def test_covariance_and_draws_agree_with_the_prediction(self, exact):
        mean, deviation = exact.predict(NEW)
        covariance = exact.joint(NEW)[1]
        np.testing.assert_allclose(np.sqrt(np.diagonal(covariance[0])), deviation[:, 0], rtol=1e-6)
        draws = exact.sample(NEW, 20_000, key=jax.random.key(0))[..., 0]
        np.testing.assert_allclose(draws.mean(axis=0), mean[:, 0], atol=5.0 * deviation.max() / np.sqrt(20_000))
        np.testing.assert_allclose(np.cov(draws.T), covariance[0], atol=0.05 * covariance[0].max())

    def test_several_outputs_keep_their_columns_apart(self):
        both = np.concatenate([Y, 50.0 - 3.0 * Y], axis=1)
        mean, deviation = regression(X[:100], both[:100], settings=QUICK).predict(NEW)
        np.testing.assert_allclose(mean[:, 1], 50.0 - 3.0 * mean[:, 0], rtol=1e-3)
        np.testing.assert_allclose(deviation[:, 1], 3.0 * deviation[:, 0], rtol=1e-3)

    @pytest.mark.parametrize("target", [1e300 * Y[:30], 1e-300 * Y[:30], np.full((30, 1), 4.0)])
    def test_odd_targets(self, target):
        mean, deviation = regression(X[:30], target, settings=Settings(steps=3, kernel=KERNEL)).predict(NEW)
        assert np.isfinite(mean).all() and np.isfinite(deviation).all()
        assert np.abs(mean - target.mean()).max() <= 10.0 * max(np.abs(target).max(), 1e-300)

    def test_the_global_precision_is_left_alone(self):
        with jax.enable_x64(False):
            model = regression(X[:40], Y[:40], settings=Settings(steps=2, kernel=KERNEL))
            assert model.predict(NEW)[0].dtype == np.float64
            assert jax.numpy.ones(1).dtype == np.float32

    def test_saved_and_loaded_it_predicts_the_same(self, exact, sparse, tmp_path):
        for model in (exact, sparse):
            mc.save(tmp_path / "model", model)
            back = mc.load(tmp_path / "model")
            for ours, theirs in zip(model.predict(NEW), back.predict(NEW), strict=True):
                np.testing.assert_array_equal(ours, theirs)

    def test_a_run_that_was_cut_off_goes_on(self, tmp_path):
        whole = regression(*TRAIN, settings=QUICK)
        seen = []

        def watch(stage, done, total, objective):
            seen.append(done)
            if len(seen) == 1:
                raise KeyboardInterrupt

        settings = Settings(steps=15, kernel=KERNEL, checkpoint=tmp_path / "run", watch=watch)
        with pytest.raises(KeyboardInterrupt):
            regression(*TRAIN, settings=settings)
        assert (tmp_path / "run.prior").exists()
        resumed = regression(*TRAIN, settings=settings)
        assert seen[1] >= seen[0]
        np.testing.assert_allclose(resumed.predict(NEW)[0], whole.predict(NEW)[0], rtol=1e-8)
        assert not (tmp_path / "run.prior").exists()

    def test_a_checkpoint_of_other_data_is_not_used(self, tmp_path):
        (tmp_path / "run.prior").write_bytes(b"nonsense")
        settings = Settings(steps=2, kernel=KERNEL, checkpoint=tmp_path / "run")
        assert np.isfinite(regression(*TRAIN, settings=settings).predict(NEW)[0]).all()


class TestStream:
    def test_batches_are_the_same_as_their_union(self):
        first = Stream.begin(X[:60], Y[:60], None, SPARSE)
        by_two = first.add(X[60:80], Y[60:80]).add(X[80:100], Y[80:100]).sums
        at_once = first.add(X[60:100], Y[60:100]).sums
        np.testing.assert_allclose(by_two.G, at_once.G, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(by_two.g, at_once.g, rtol=1e-9, atol=1e-12)

    def test_more_data_help(self):
        first = Stream.begin(X[:30], Y[:30], None, QUICK)
        more = first.add(X[30:100], Y[30:100])
        errors = [np.mean((s.regression().predict(NEW)[0] - MEAN[100:]) ** 2) for s in (first, more)]
        assert errors[1] < errors[0]


class TestClassification:
    def test_probabilities(self, classifier):
        p = classifier.probabilities(NEW)
        np.testing.assert_allclose(p.sum(axis=1), 1.0)
        labels = (Y[100:, 0] > 0.8).astype(float)
        assert np.mean(p.argmax(axis=1) == labels) > 0.85
        np.testing.assert_allclose(classifier.log_density(NEW, labels), np.log(p[np.arange(20), labels.astype(int)]))

    @pytest.mark.slow
    def test_three_classes(self):
        y = np.digitize(Y[:, 0], [0.3, 1.2]).astype(float)
        model = classification(X[:100], y[:100], 3, settings=QUICK)
        p = model.probabilities(NEW)
        assert p.shape == (20, 3)
        assert np.mean(p.argmax(axis=1) == y[100:]) > 0.7

    def test_conditioning_and_streams(self, classifier):
        y = (Y[:, 0] > 0.8).astype(float)
        again = classifier.condition(X, y, None, QUICK)
        assert again.log_density(NEW, y[100:]).mean() > classifier.log_density(NEW, y[100:]).mean() - 0.05
        streamed = classifier.update(NEW, y[100:], None, 120)
        assert np.isfinite(streamed.log_density(NEW, y[100:])).all()

    def test_a_weight_in_a_stream_is_a_number_of_copies(self, classifier):
        y = (Y[100:, 0] > 0.8).astype(float)
        weighted = classifier.update(NEW, y, np.full(20, 3.0), 160)
        copied = classifier.update(np.tile(NEW, (3, 1)), np.tile(y, 3), None, 160)
        np.testing.assert_allclose(weighted.probabilities(NEW), copied.probabilities(NEW), rtol=1e-9)

    def test_saved_and_loaded_it_predicts_the_same(self, classifier, tmp_path):
        mc.save(tmp_path / "model", classifier)
        back = mc.load(tmp_path / "model")
        np.testing.assert_array_equal(back.probabilities(NEW), classifier.probabilities(NEW))


class TestCounts:
    def test_quantiles_against_draws(self, counter):
        mean, deviation = counter.predict(NEW[:3])
        lower, upper = counter.interval(NEW[:3], 0.8)
        latent, r = counter.model.posterior.predict(counter.inputs(NEW[:3])), 1.0 / counter.model.likelihood.dispersion
        for n in range(3):
            means = np.exp(random.normal(latent.mean[n], np.sqrt(latent.cov[n]), 50_000))
            draws = stats.nbinom.rvs(r, r / (r + means), random_state=n)
            np.testing.assert_allclose(draws.mean(), mean[n, 0], rtol=0.05)
            np.testing.assert_allclose(draws.std(), deviation[n, 0], rtol=0.08)
            assert np.mean((draws >= lower[n, 0]) & (draws <= upper[n, 0])) >= 0.78

    def test_probabilities_sum_to_1(self, counter):
        k = np.arange(0.0, 400.0)
        total = np.exp(counter.log_density(np.repeat(NEW[:1], len(k), axis=0), k[:, None])).sum()
        np.testing.assert_allclose(total, 1.0, atol=1e-6)


@pytest.mark.parametrize("name", ["exact", "sparse", "counter", "classifier"])
def test_one_prediction_answers_all_questions(name, request):
    """As many and the same answers as from the methods that each predict anew; of some rows, those of the rows."""
    model = request.getfixturevalue(name)
    predicted = model.predictive(NEW)
    y = np.ones(len(NEW)) if name == "classifier" else np.ones((len(NEW), 1))
    np.testing.assert_array_equal(predicted.log_density(y), model.log_density(NEW, y))
    some = predicted.rows(slice(3, 7))
    np.testing.assert_allclose(some.log_density(y[3:7]), predicted.log_density(y)[3:7], rtol=1e-8)
    if name == "classifier":
        np.testing.assert_array_equal(predicted.probabilities, model.probabilities(NEW))
        np.testing.assert_array_equal(predicted.numbers(), predicted.probabilities)
        return
    mean, sd = model.predict(NEW)
    np.testing.assert_array_equal(predicted.numbers(), np.concatenate([mean, sd], axis=1))
    for level in (0.5, 0.9):
        for ours, theirs in zip(predicted.interval(level), model.interval(NEW, level), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(some.interval(), predicted.interval(), strict=True):
        np.testing.assert_array_equal(ours, theirs[3:7])


def test_an_evaluation_predicts_once(exact):
    class Counted:
        times = 0

        def predictive(self, X):
            self.times += 1
            return exact.predictive(X)

    model, baseline = Counted(), Counted()
    Evaluation.of(model, {"other": baseline}, NEW, Y[100:, 0])
    assert model.times == baseline.times == 1


@pytest.mark.slow
def test_nearly_singular_points_are_left_out():
    """One column of integers has a lengthscale at which distances between rows that agree in it are rounding errors."""
    X = np.random.default_rng(0).integers(0, 4, (150, 6)).astype(float) - 1.7
    kernel = mc.kernels.Matern52([1e-7, 10.0, 10.0, 10.0, 10.0, 10.0])
    points = greedy_points(X, kernel, 100, Settings())
    assert 4 <= len(points) < 100
    mc.linalg.safe_cholesky(kernel(points))
    assert len(greedy_points(X, mc.kernels.Matern52(np.full(6, 10.0)), 100, Settings())) == 100


def test_lengthscales_of_integers_are_not_too_short_for_their_matrices():
    """A longer one, at which different integers are unrelated, too, gives the same predictions."""
    random = np.random.default_rng(0)
    X = random.integers(0, 4, (150, 3)).astype(float)
    Y = (X[:, :1] == 2.0) + 0.1 * X[:, 1:2]
    kernel = mc.kernels.Matern52([2e-6, 3.0, 3.0])
    model = regression(X[:140], Y[:140], settings=Settings(steps=1, kernel=kernel))
    assert float(np.min(model.model.posterior.prior.kernel.lengthscale)) >= 1e-3
    assert np.sqrt(np.mean((model.predict(X[140:])[0] - Y[140:]) ** 2)) < 0.1


def test_nan_is_not_handed_on(sparse):
    broken = eqx.tree_at(lambda own: own.model.posterior.q_mu, sparse, replace_fn=lambda q_mu: np.nan * q_mu)
    for predict in (broken.predict, broken.interval, broken.cached().predict, broken.cached().interval):
        with pytest.raises(FactorisationError, match=r"not finite|NaN"):
            predict(NEW)
    with pytest.raises(FactorisationError, match=r"NaN or infinite numbers in model\.posterior\.q_mu"):
        checked(broken)
