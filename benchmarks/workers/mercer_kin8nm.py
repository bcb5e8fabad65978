"""mercer on kin8nm: whitened SVGP, natural gradients for q(u) and Adam for the rest, by the loop that `fit` compiles."""

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402

import mercer as mc  # noqa: E402
from mercer.linalg import quiet_blas  # noqa: E402
from mercer.training.run import Run  # noqa: E402
from workers.kin8nm import inducing_points, options, race  # noqa: E402

ARGUMENTS = options(gamma=1.0, batch=8192, rate=0.1, every=5, lengthscale=2.0, noise=0.1, dtype="float64")


def build(data: dict):
    """The model, its training step and its score."""
    data = {name: jnp.asarray(value, ARGUMENTS.dtype) for name, value in data.items()}
    N, D = data["X"].shape
    prior = mc.GP(mc.kernels.RBF(jnp.full(D, ARGUMENTS.lengthscale)))
    posterior = mc.Sparse(prior, mc.inducing.Points(inducing_points(data["X"], ARGUMENTS.seed)))
    model = mc.Model(posterior, mc.likelihoods.Gaussian(ARGUMENTS.noise))
    optimiser = mc.training.NaturalGradient(ARGUMENTS.gamma, optax.adam(ARGUMENTS.rate))
    batch_size, key = min(ARGUMENTS.batch, N), jax.random.key(ARGUMENTS.seed)
    run = Run(model, mc.objectives.ELBO(), (data["X"], data["y"]), optimiser, batch_size=batch_size, key=key)
    state, asked = run.start(), 0

    def step():
        # mercer takes steps by the chunk: those between two scores are taken when the last of them is asked for
        nonlocal state, asked
        asked += 1
        if asked % ARGUMENTS.every == 0:
            with quiet_blas():
                state, _ = run.chunk(state, ARGUMENTS.every)

    return step, lambda: run.model(state).log_density(data["X_test"], data["y_test"]).mean()


if __name__ == "__main__":
    race(build, ARGUMENTS)
