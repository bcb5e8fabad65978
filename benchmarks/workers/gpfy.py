"""GPfY: the ELBO with spherical harmonics from its tables, whose gradient is compiled into one step with Adam."""

import jax

jax.config.update("jax_enable_x64", True)

import gpfy.likelihoods  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from gpfy.model import GP  # noqa: E402
from gpfy.optimization import elbo  # noqa: E402
from gpfy.spherical import ArcCosine  # noqa: E402
from gpfy.spherical_harmonics import SphericalHarmonics  # noqa: E402
from gpfy.variational import VariationalDistributionTriL  # noqa: E402

from workers.common import Run, serve, vish_problem  # noqa: E402


def model_of(p: dict):
    """Its parameters, and the bound as a function of these and of a batch."""
    prior, harmonics = GP(ArcCosine(depth=2)), SphericalHarmonics(p["levels"])
    q, likelihood = VariationalDistributionTriL(), gpfy.likelihoods.Gaussian()
    key = jax.random.PRNGKey(0)
    parameters = prior.init(key, p["D"], likelihood=likelihood, sh_features=harmonics, variational_dist=q)
    parameters = parameters.replace_param("likelihood", variance=jnp.array(p["noise"]))
    model = prior.conditional(harmonics, q)
    bound = elbo.__wrapped__  # its own `jit` fails for the second model of a process
    return parameters, lambda parameters, batch: jnp.squeeze(bound(parameters, model, q, likelihood, batch, p["N"]))


def vish_step(p: dict) -> Run:
    """Minibatch ELBO, all gradients, and Adam."""
    parameters, bound = model_of(p)
    batches = jnp.asarray(p["X_batches"]), jnp.asarray(p["y_batches"])
    free = parameters.unconstrained()
    frozen = jax.tree.map(lambda trainable: not trainable, free._trainables)
    adam = optax.chain(optax.adam(0.01), optax.masked(optax.set_to_zero(), frozen))

    @jax.jit
    def step(params, state, i):
        batch = tuple(array[i % len(array)] for array in batches)
        gradient = jax.grad(lambda params: -bound(free.replace(params=params).constrained(), batch))(params)
        updates, state = adam.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    params, state, i = free.params, adam.init(free.params), 0
    value = float(bound(parameters, (batches[0][0], batches[1][0])))

    def run(k):
        nonlocal params, state, i
        for _ in range(k):
            params, state = step(params, state, i)
            i += 1
        jax.block_until_ready(params)

    return Run(run, value, "jit")


def vish_pass(p: dict) -> Run:
    """The ELBO over all rows, batch by batch, without gradients."""
    parameters, bound = model_of(p)
    batches = jnp.asarray(p["X_batches"]), jnp.asarray(p["y_batches"])
    free = parameters.unconstrained()

    @jax.jit
    def value(params, i):
        return bound(free.replace(params=params).constrained(), (batches[0][i], batches[1][i]))

    def run(k):
        for _ in range(k):
            jax.block_until_ready([value(free.params, jnp.asarray(i)) for i in range(len(batches[0]))])

    return Run(run, None, "ELBO by batches")


if __name__ == "__main__":
    tasks = {"vish_step": vish_step, "vish_pass": vish_pass}
    serve(lambda case: tasks[case["task"]](vish_problem(case)))
