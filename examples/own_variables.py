"""A kernel and inducing variables of your own, in a file of your own: `python examples/own_variables.py`.

The kernel is that of Brownian motion. The inducing variables are increments, u_m = f(t_m) - f(t_m-1), of any function; those
of Brownian motion are independent, so that `Kuu` is diagonal. Training, prediction, sampling, saving and models of several
outputs follow, and nothing of mercer is touched.
"""

import tempfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

import mercer as mc
from mercer.covariances import Kuf, Kuu
from mercer.linalg import Dense, Diagonal
from mercer.parameters import positive


@mc.io.register(name="examples.Brownian")
class Brownian(mc.kernels.Kernel):
    """variance * min(x, x'), for one column of inputs between 0 and `horizon`."""

    variance: Array = mc.param(positive, default=1.0)
    horizon: float = eqx.field(static=True, default=10.0)  # a constant that is not an array

    def _matrix(self, X, X2):
        return self.variance * jnp.minimum(X, (X if X2 is None else X2).T)

    def _diagonal(self, X):
        return self.variance * X[:, 0]

    def features(self, num, *, key):
        """Steps at random times: min(x, x') is the horizon times the chance that a time is before both. For sample paths."""
        times = jax.random.uniform(key, (num,), maxval=self.horizon)
        height = jnp.sqrt(self.variance * self.horizon / num)
        return lambda X: jnp.where(times.astype(X.dtype) < X, height.astype(X.dtype), 0.0)


@mc.io.register(name="examples.Increments")
class Increments(mc.inducing.InducingVariables):
    """u_m = f(t_m) - f(t_m-1), t_0 = 0. The widths t_m - t_m-1 are trained and stay positive, so that none overlap."""

    pointwise = (
        True  # they see the function at points only: they can be observed, asked for, and mixed with other kinds
    )

    widths: Array = mc.param(positive)

    @property
    def num(self):
        return self.widths.shape[0]

    def edges(self):
        """The beginnings and the ends, [M, 1] each."""
        ends = jnp.cumsum(self.widths)[:, None]
        return ends - self.widths[:, None], ends

    def of_function(self, f):
        """The variables of a given function, for sample paths. Of a kernel's rows, they are `Kuf`."""
        begin, end = self.edges()
        return f(end) - f(begin)


@Kuf.dispatch
def _(inducing: Increments, kernel: mc.kernels.Kernel, X):
    return inducing.of_function(lambda Z: kernel(Z, X))


@Kuu.dispatch
def _(inducing: Increments, kernel: mc.kernels.Kernel):
    return Dense(inducing.of_function(lambda X: Kuf(inducing, kernel, X).T))


@Kuu.dispatch
def _(inducing: Increments, kernel: Brownian):
    return Diagonal(kernel.variance * inducing.widths)


def walks(num: int, outputs: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Times between 0 and 10, and random walks seen with noise of standard deviation 0.1."""
    random = np.random.default_rng(seed)
    steps = random.normal(size=(num, outputs)) * np.sqrt(10.0 / num)
    return np.linspace(10.0 / num, 10.0, num)[:, None], np.cumsum(steps, axis=0) + 0.1 * random.normal(size=steps.shape)


def train(kernel, inducing, data, likelihood, steps: int = 300) -> mc.Model:
    """A sparse posterior, trained on minibatches: q(u) by natural gradients, all else by Adam."""
    model = mc.Model(mc.Sparse(mc.GP(kernel), inducing), likelihood)
    optimiser = mc.training.NaturalGradient(0.1, optax.adam(0.02))
    return mc.fit(model, mc.objectives.ELBO(), data, optimiser=optimiser, steps=steps, batch_size=100).model


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    X, Y = walks(400)
    model = train(Brownian(), Increments(np.full(100, 0.1)), (X, Y), mc.likelihoods.Gaussian(0.1))
    exact = mc.Conditioned(model.posterior.prior, X, Y, model.likelihood.variance)
    print(f"bound {mc.elbo(model, X, Y):.1f}, evidence {exact.log_marginal_likelihood():.1f}")
    print({name: model.posterior.predict(X[:5], name).cov.shape for name in ("diag", "outputs", "inputs", "full")})
    print("a path:", model.posterior.sample_function(key=jax.random.key(1))(X[::80]).ravel())
    with tempfile.TemporaryDirectory() as folder:
        mc.save(Path(folder) / "walk.mercer", model)
        loaded = mc.load(Path(folder) / "walk.mercer")
    print("the same after loading:", np.array_equal(loaded.predict(X).mean, model.predict(X).mean))
    # three series made of two walks, seen through the increments of these
    (X, Y), W = walks(400, outputs=2), np.array([[1.0, 0.0], [0.7, 0.7], [0.0, 1.0]])
    kernel = mc.kernels.IntrinsicCoregionalisation(Brownian(), W)
    shared = mc.inducing.Shared(Increments(np.full(100, 0.1)))
    several = train(kernel, shared, (X, Y @ W.T), mc.likelihoods.Gaussian([0.1, 0.1, 0.1]))
    print(f"bound of three outputs {mc.elbo(several, X, Y @ W.T):.1f}, means {several.predict(X).mean.shape}")


if __name__ == "__main__":
    main()
