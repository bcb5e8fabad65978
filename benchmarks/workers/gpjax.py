"""GPJax: whitened family, k steps in one compiled loop or one by one; prediction from the conditioned family."""

import equinox as eqx
import gpjax as gpx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from workers.common import Run, fastest, problem, serve

jax.config.update("jax_enable_x64", True)


def family(p: dict) -> gpx.variational_families.WhitenedVariationalGaussian:
    """The whitened SVGP of a problem."""
    kernel = gpx.kernels.RBF(lengthscale=jnp.asarray(p["lengthscales"]), variance=jnp.asarray(p["variance"]))
    prior = gpx.gps.Prior(mean_function=gpx.mean_functions.Zero(), kernel=kernel)
    likelihood = gpx.likelihoods.Gaussian(obs_stddev=jnp.asarray(p["noise"] ** 0.5))
    return gpx.variational_families.WhitenedVariationalGaussian(
        model=prior * likelihood,
        inducing_inputs=jnp.asarray(p["Z"]),
        variational_mean=jnp.asarray(p["q_mu"]),
        variational_root_covariance=jnp.asarray(p["q_sqrt"]),
    )


def svgp_step(p: dict) -> Run:
    """Minibatch ELBO, gradients and Adam, the step of gpjax.fit with slices for batches."""
    X, y = jnp.asarray(p["X_batches"]), jnp.asarray(p["y_batches"])
    adam = optax.adam(0.01)
    arrays, static = eqx.partition(family(p), eqx.is_array)

    def loss(arrays, i):
        batch = gpx.Dataset(X=X[i % len(X)], y=y[i % len(X)], n_total=p["N"])
        return -gpx.objectives.elbo(eqx.combine(arrays, static), batch)

    def step(i, carry):
        arrays, state = carry
        gradients = jax.grad(loss)(arrays, i)
        updates, state = adam.update(gradients, state, arrays)
        return eqx.apply_updates(arrays, updates), state

    loop = jax.jit(lambda k, carry: jax.lax.fori_loop(0, k, step, carry))
    one = jax.jit(step)
    arrays = jax.tree.map(lambda a: jnp.array(np.asarray(a)), arrays)  # no weak types, so that nothing compiles twice
    start = arrays, adam.init(arrays)

    def compiled_loop():
        carry = start

        def run(k):
            nonlocal carry
            carry = jax.block_until_ready(loop(k, carry))

        return run

    def one_by_one():
        carry = start

        def run(k):
            nonlocal carry
            for i in range(k):
                carry = one(i, carry)
            jax.block_until_ready(carry)

        return run

    value = -float(jax.jit(loss)(arrays, 0))
    return fastest({"compiled loop": compiled_loop(), "jitted step": one_by_one()}, value)


def predict_cached(p: dict) -> Run:
    """Marginals of f from the conditioned family, which holds the Cholesky factor."""
    posterior, X = family(p).condition(None), jnp.asarray(p["X_new"])

    @eqx.filter_jit
    def predict(posterior, X):
        f = posterior(X, covariance="diagonal")
        return f.mean, f.variance

    def run(k):
        for _ in range(k):
            answer = predict(posterior, X)
        jax.block_until_ready(answer)

    mean, variance = predict(posterior, X)
    return Run(run, float(jnp.sum(mean + variance)))


if __name__ == "__main__":
    serve(lambda case: {"svgp_step": svgp_step, "predict_cached": predict_cached}[case["task"]](problem(case)))
