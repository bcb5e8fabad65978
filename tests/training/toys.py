"""Small problems whose training compiles in a moment, and one real sparse regression."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import mercer as mc
from mercer.objectives import Objective

KEY = jax.random.key(7)


class LeastSquares(Objective):
    """The mean squared residual of a mean function."""

    def _value(self, model, batch, key):
        return jnp.mean((batch.Y - model(batch.X)) ** 2)


class Falling(Objective):
    """c while it is above the floor, NaN below: gradient descent of rate 1 is at c - t before step t."""

    floor: float = eqx.field(static=True)

    def _value(self, model, batch, key):
        return jnp.where(model.constant > self.floor, model.constant, jnp.nan)


class RowsSeen(Objective):
    """The sum of X over the batch, whatever the model is: the history tells which rows each step saw."""

    def _value(self, model, batch, key):
        return jnp.sum(batch.X) + 0.0 * model.constant


class Valleys(Objective):
    """sin(3 c) + c^2 / 10: many local minima, one of them the best."""

    def _value(self, model, batch, key):
        return jnp.sin(3.0 * model.constant) + 0.1 * model.constant**2


def line_data(num_data=23):
    X = np.linspace(-1.0, 1.0, num_data)[:, None]
    return X, 0.5 + 2.0 * X + 0.1 * np.sin(40.0 * X)


def line():
    return mc.means.Linear([[0.0]], 0.0)


def wave_data(num_data=40, num_outputs=1, dtype=np.float64):
    random = np.random.default_rng(3)
    X = random.uniform(-2.0, 2.0, (num_data, 1))
    Y = 0.7 + np.sin(2.0 * X + np.arange(num_outputs)) + 0.1 * random.normal(size=(num_data, num_outputs))
    return X.astype(dtype), Y.astype(dtype)


def sparse(num_outputs=1, whiten=True, likelihood=None, mean=None, **options):
    prior = mc.GP(mc.kernels.RBF(lengthscale=0.7), mc.means.Constant(0.3) if mean is None else mean)
    Z = np.linspace(-2.0, 2.0, 6)[:, None]
    q = mc.Sparse(prior, mc.inducing.Points(Z), num_outputs, whiten, **options)
    return mc.Model(q, mc.likelihoods.Gaussian(0.1) if likelihood is None else likelihood)


def same(a, b):
    """Whether two trees hold the same numbers, bit for bit."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in pairs)


def all_finite(tree):
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))
