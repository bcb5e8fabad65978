"""Every old spelling works as it did, with a DeprecationWarning at the line that has it."""

import base64
import contextlib
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mercer as mc
from mercer.objectives import MAP, CollapsedELBO, LeaveOneOut, MarginalLikelihood, Objective
from mercer.tabular.regression import regression
from mercer.tabular.table_model import Problem, TableModel
from mercer.tabular.training import Settings

KEY = jax.random.key(0)
X = np.linspace(0.0, 4.0, 14)[:, None]
Y = np.sin(X)
PRIOR = mc.GP(mc.kernels.RBF(0.8))
NOISY = mc.likelihoods.Gaussian(0.1)
IMAGES, PATCHES = np.arange(32.0).reshape(2, 16), mc.kernels.Convolutional(mc.kernels.RBF(), (4, 4), (2, 2))
GAUSSIAN = mc.Gaussian(Y, 0.1 + X, "diag")


def same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@contextlib.contextmanager
def warned(match):
    """Expects warnings, all of them at lines of this file."""
    with pytest.warns(DeprecationWarning, match=match) as caught:
        yield caught
    assert {warning.filename for warning in caught} == {__file__}


KEYS = {
    "sample": (lambda: PRIOR.sample(KEY, X, 2), lambda: PRIOR.sample(X, 2, key=KEY)),
    "sample, X by name": (lambda: PRIOR.sample(KEY, X=X), lambda: PRIOR.sample(X, key=KEY)),
    "sample, raw key": (
        lambda: PRIOR.sample(jax.random.PRNGKey(1), X),
        lambda: PRIOR.sample(X, key=jax.random.PRNGKey(1)),
    ),
    "sample_function": (lambda: PRIOR.sample_function(KEY, 8)(X), lambda: PRIOR.sample_function(8, key=KEY)(X)),
    "sample_function of keys": (
        lambda: jax.vmap(lambda key: PRIOR.sample_function(key)(X))(jax.random.split(KEY, 2)),
        lambda: jax.vmap(lambda key: PRIOR.sample_function(key=key)(X))(jax.random.split(KEY, 2)),
    ),
    "sample_deviation": (
        lambda: PRIOR.sample_deviation(KEY, 8, 1)(X),
        lambda: PRIOR.sample_deviation(8, 1, key=KEY)(X),
    ),
    "Gaussian": (lambda: GAUSSIAN.sample(KEY, 3), lambda: GAUSSIAN.sample(3, key=KEY)),
    "Mixture": (lambda: GAUSSIAN.as_mixture().sample(KEY), lambda: GAUSSIAN.as_mixture().sample(key=KEY)),
    "features": (lambda: PRIOR.kernel.features(KEY, 5)(X), lambda: PRIOR.kernel.features(5, key=KEY)(X)),
    "features of a kernel that overrides them": (
        lambda: mc.kernels.SparsePosterior(PRIOR.kernel, X[::5]).features(KEY, 5)(X),
        lambda: mc.kernels.SparsePosterior(PRIOR.kernel, X[::5]).features(5, key=KEY)(X),
    ),
    "draw": (lambda: PRIOR.kernel.draw(KEY, 5, 2)(X), lambda: PRIOR.kernel.draw(5, 2, key=KEY)(X)),
    "draw of several outputs": (
        lambda: mc.kernels.SharedIndependent(PRIOR.kernel, 2).draw(KEY, 5)(X),
        lambda: mc.kernels.SharedIndependent(PRIOR.kernel, 2).draw(5, key=KEY)(X),
    ),
    "frequencies": (lambda: PRIOR.kernel.frequencies(KEY, (3, 1)), lambda: PRIOR.kernel.frequencies((3, 1), key=KEY)),
    "random_subset": (lambda: mc.inducing.random_subset(KEY, X, 3), lambda: mc.inducing.random_subset(X, 3, key=KEY)),
    "random_patches": (
        lambda: mc.inducing.random_patches(KEY, IMAGES, PATCHES, 3),
        lambda: mc.inducing.random_patches(IMAGES, PATCHES, 3, key=KEY),
    ),
    "kmeans": (lambda: mc.inducing.kmeans(KEY, X, 3), lambda: mc.inducing.kmeans(X, 3, key=KEY)),
    "greedy_variance": (
        lambda: mc.inducing.greedy_variance(KEY, X, PRIOR.kernel, 3, candidates=9),
        lambda: mc.inducing.greedy_variance(X, PRIOR.kernel, 3, candidates=9, key=KEY),
    ),
    "toy_curve": (lambda: mc.datasets.toy_curve(2, KEY, num=40), lambda: mc.datasets.toy_curve(2, num=40, key=KEY)),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_in_its_old_place(name):
    old, new = KEYS[name]
    with warned("the key comes last and by name"):
        found = old()
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        expected = new()
    same(found, expected)


def test_a_missing_key_is_an_error_that_names_it():
    for call in (lambda: PRIOR.sample(X), lambda: PRIOR.sample_function(), lambda: mc.inducing.kmeans(X, 3)):
        with pytest.raises(TypeError, match="'key'"):
            call()
    with pytest.raises(ValueError, match="candidates are chosen at random: pass a key"):
        mc.inducing.greedy_variance(X, PRIOR.kernel, 3, candidates=9)
    mc.inducing.greedy_variance(X, PRIOR.kernel, 3)


def test_kernels_that_users_wrote_with_the_key_first():
    with warned("write it with the key last and by name") as caught:

        class Mine(mc.kernels.RBF):
            def features(self, key, num):
                return super().features(num, key=jax.random.fold_in(key, 1))

            def draw(self, key, num_features, num_outputs=1):
                return super().draw(num_features, num_outputs, key=jax.random.fold_in(key, 2))

        class Wave(mc.kernels.Stationary):
            def of_squared_distance(self, r2):
                return self.variance * jnp.cos(jnp.sqrt(r2))

            @eqx.filter_jit
            def frequencies(self, k, shape):  # by any name
                return jnp.ones(shape)

    assert len(caught) == 3
    mine, plain = Mine(0.8), PRIOR.kernel
    first, second = (jax.random.fold_in(KEY, i) for i in (1, 2))
    # As the library calls them, and as users do, the old way and the new one.
    same((2.0 * mine).features(4, key=KEY)(X), (2.0 * plain).features(4, key=first)(X))
    same(mine.features(4, key=KEY)(X), plain.features(4, key=first)(X))
    assert mc.GP(mine).sample_function(4, key=KEY)(X).shape == (14, 1)
    assert (mine * Wave()).draw(4, key=KEY)(X).shape == (14, 1)
    with warned("the key comes last"):
        same(mine.features(KEY, 4)(X), plain.features(4, key=first)(X))
    assert mine.draw(4, 2, key=KEY)(X).shape == plain.draw(4, 2, key=second)(X).shape


def test_names_of_covariances():
    with warned('"diagonal" is called "diag"'):
        old = mc.Sparse(PRIOR, mc.inducing.Points(X[::3]), covariance="diagonal")
    same(old, mc.Sparse(PRIOR, mc.inducing.Points(X[::3]), covariance="diag"))
    with warned("GP.covariance is called GP.covariance_of"):
        same(PRIOR.covariance(X, 1, "full"), PRIOR.covariance_of(X, 1, "full"))
    matrix = np.array([[1.0, 0.3], [0.3, 0.5]])
    with warned("covariance is called noise_covariance"):
        likelihood = mc.likelihoods.CorrelatedGaussian(covariance=matrix)
    same(likelihood, mc.likelihoods.CorrelatedGaussian(matrix))
    with warned("covariance is called noise_covariance"):
        same(likelihood.covariance, likelihood.noise_covariance)
    with warned("covariance is called noise_covariance"):
        moved = eqx.tree_at(lambda each: each.covariance, likelihood, 2.0 * matrix)
    same(moved.noise_covariance, 2.0 * matrix)
    with pytest.raises(TypeError, match="expects a noise_covariance"):
        mc.likelihoods.CorrelatedGaussian()


# CorrelatedGaussian([[1.0, 0.25], [0.25, 0.5]]), as it was saved when its field was called `covariance`
SAVED = """
iAEAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJtZXJjZXIiOiJ7XCJmb3JtYXRcIjoxLFwidmVyc2lvblwiOlwiMC4xLjBcIixcInNoYTI1NlwiOl
wiMmFkY2EwNzMxZTBiYTBiZGE5ZjBlNGFlOTAzYzc0OGIwYzhkYjA1Y2ZmOTI5ZDk4ODE5YzJmMmNkNzc3ZjJlOFwiLFwic3RydWN0dXJlXCI6
e1wiY2xhc3NcIjpcIm1lcmNlci5saWtlbGlob29kcy5Db3JyZWxhdGVkR2F1c3NpYW5cIixcImZpZWxkc1wiOntcImNvdmFyaWFuY2VcIjp7XC
JhcnJheVwiOlwibW9kZWwuY292YXJpYW5jZVwiLFwidHlwZVwiOlwiamF4XCIsXCJkdHlwZVwiOlwiZmxvYXQ2NFwifX19fSJ9LCJtb2RlbC5j
b3ZhcmlhbmNlIjp7ImR0eXBlIjoiRjY0Iiwic2hhcGUiOlsyLDJdLCJkYXRhX29mZnNldHMiOlswLDMyXX19ICAgICAgIAAAAAAAAPA/AAAAAA
AA0D8AAAAAAADQPwAAAAAAAOA/
"""


def test_a_file_from_before_the_renaming(tmp_path):
    (tmp_path / "old.mercer").write_bytes(base64.b64decode(SAVED))
    same(mc.load(tmp_path / "old.mercer"), mc.likelihoods.CorrelatedGaussian(np.array([[1.0, 0.25], [0.25, 0.5]])))


def test_the_model_of_a_table():
    with jax.enable_x64(True):
        model = regression(X, Y, None, Settings(steps=2))
        with warned(r"joint\(X\)\[1\]"):
            same(model.covariance(X), model.joint(X)[1])
        with warned("the key comes last"):
            same(model.sample(KEY, X, 2), model.sample(X, 2, key=KEY))


@pytest.mark.parametrize(("flat", "places"), [(True, "flat"), (False, "globe")])
def test_places_of_a_table(flat, places, monkeypatch):
    monkeypatch.setattr(Problem, "solve", lambda self: self.columns)
    table = {"lat": X[:, 0], "lon": -X[:, 0], "y": Y[:, 0]}
    with warned(f'flat={flat} is called places="{places}" now'):
        old = TableModel.fit(table, "y", flat=flat)
    same(old, TableModel.fit(table, "y", places=places))
    with pytest.warns(DeprecationWarning), pytest.raises(ValueError, match="say different things; leave out flat"):
        TableModel.fit(table, "y", flat=flat, places="globe" if flat else "flat")


class Finished(Objective):
    """Makes an objective's model twice as noisy at the end."""

    objective: Objective

    def checked(self, model, data):
        return self.objective.checked(model, data)

    def _value(self, model, batch, key):
        return self.objective._value(model, batch, key)


def twice_as_noisy(model):
    return eqx.tree_at(lambda m: m.likelihood.variance, model, 2.0 * model.likelihood.variance)


def test_objectives_that_users_wrote_with_complete():
    with warned("call it finish") as caught:

        class Old(Finished):
            def complete(self, model, batch):
                return twice_as_noisy(super().complete(self.objective.complete(model, batch), batch))

        class OldCollapsed(CollapsedELBO):
            def complete(self, model, batch):
                return twice_as_noisy(super().complete(model, batch))

    assert len(caught) == 2

    class New(Finished):
        def finish(self, model, batch):
            return twice_as_noisy(self.objective.finish(model, batch))

    start = mc.Model(mc.Sparse(PRIOR, mc.inducing.Points(X[::3])), NOISY)
    with warned("is called .*finish now"):
        old = mc.fit(start, Old(CollapsedELBO()), (X, Y), steps=1).model
    with warned("is called .*finish now"):
        derived = mc.fit(start, OldCollapsed(), (X, Y), steps=1).model
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        new = mc.fit(start, New(CollapsedELBO()), (X, Y), steps=1).model
    same(old, new)
    same(derived, new)
    batch = CollapsedELBO().checked(start, (X, Y))
    with warned("CollapsedELBO.complete is called CollapsedELBO.finish now"):
        same(CollapsedELBO().complete(start, batch), CollapsedELBO().finish(start, batch))
    with warned("Objective.complete"):
        same(mc.objectives.ELBO().complete(start, batch), start)


START = mc.Model(PRIOR, NOISY)
OPTIONS = {"optimiser": optax.adam(0.05), "steps": 3}


def test_habits_from_when_fit_gave_the_trained_prior():
    model = mc.fit(START, MarginalLikelihood(), (X, Y), **OPTIONS).model
    posterior, noise = model.posterior, model.likelihood.variance
    with warned("posterior.prior.kernel"):
        assert posterior.kernel is posterior.prior.kernel
    with warned("posterior.prior.mean"):
        assert posterior.mean is posterior.prior.mean
    with warned("Conditioned: the prior of what fit gives is model.posterior.prior"):
        same(mc.Conditioned(posterior, X, Y, noise), posterior)
    with warned("Sparse: the prior of what fit gives"):
        sparse = mc.Sparse(posterior, mc.inducing.Points(X[::3]))
    same(sparse.prior, posterior.prior)
    for extra in (0, 3):  # the same data, or more of them
        Xs, Ys = np.concatenate([X, X[:extra] + 9.0]), np.concatenate([Y, Y[:extra]])
        with warned("condition adds data"):
            same(posterior.condition(Xs, Ys, noise), posterior.prior.condition(Xs, Ys, noise))
    slopes = mc.inducing.Derivative(X, 0)
    observed = mc.fit(START, MarginalLikelihood(), (slopes, Y), **OPTIONS).model.posterior
    with warned("condition adds data"):
        same(observed.condition(slopes, Y, noise), observed.prior.condition(slopes, Y, noise))
    with warned("posterior.prior.kernel"):
        priors = [(lambda m: m.posterior.kernel.lengthscale, mc.priors.LogNormal(0.0, 1.0))]
        again = mc.fit(
            model, MAP(MarginalLikelihood(), priors), (X, Y), frozen=lambda m: m.posterior.kernel.variance, **OPTIONS
        ).model
    assert again.posterior.prior.kernel.variance == posterior.prior.kernel.variance
    assert again.posterior.prior.kernel.lengthscale != posterior.prior.kernel.lengthscale


def test_new_spellings_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        model = mc.fit(START, LeaveOneOut(), (X, Y), **OPTIONS).model
        model.posterior.condition(X + 9.0, Y, 0.1).predict(X)
        mc.fit(model, MarginalLikelihood(), (X, Y), frozen=lambda m: m.posterior.prior.kernel.variance, **OPTIONS)
