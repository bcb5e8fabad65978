"""mercer: the loop that `fit` compiles, and a cached posterior."""

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402

import mercer as mc  # noqa: E402
from mercer.linalg import quiet_blas  # noqa: E402
from mercer.training.run import Run as Training  # noqa: E402
from workers.common import Run, deep_problem, multioutput_problem, problem, serve, vish_problem  # noqa: E402

EVERY = 100  # steps in a chunk, as `fit` takes them by default


def model_of(p: dict) -> mc.Model:
    """The model of a problem."""
    prior = mc.GP(mc.kernels.RBF(jnp.asarray(p["lengthscales"]), p["variance"]))
    posterior = mc.Sparse(prior, mc.inducing.Points(p["Z"]), q_mu=p["q_mu"], q_sqrt=p["q_sqrt"][None])
    return mc.Model(posterior, mc.likelihoods.Gaussian(p["noise"]))


def svgp_step(p: dict) -> Run:
    """Minibatch ELBO, gradients and Adam, on shuffled minibatches, as `fit` does them."""
    return steps_of(model_of(p), p)


def multioutput_step(p: dict) -> Run:
    """The same for several outputs."""
    kernels = [mc.kernels.RBF(p["lengthscale"]) for _ in range(p["L"])]
    points = mc.inducing.Points(p["Z"])
    kernel = {
        "coregionalised": lambda: mc.kernels.LinearCoregionalisation(kernels, p["W"]),
        "points": lambda: mc.kernels.LinearCoregionalisation(kernels, p["W"]),
        "separate": lambda: mc.kernels.SeparateIndependent(kernels),
        "shared": lambda: mc.kernels.SharedIndependent(kernels[0], p["P"]),
    }[p["kind"]]()
    inducing = points if p["kind"] == "points" else mc.inducing.Shared(points)
    return steps_of(mc.Model(mc.Sparse(mc.GP(kernel), inducing), mc.likelihoods.Gaussian(p["noise"])), p)


def steps_of(model: mc.Model, p: dict) -> Run:
    """Steps of `fit` on minibatches."""
    objective, data = mc.objectives.ELBO(), (p["X"], p["y"])
    B = p["X_batches"].shape[1]
    value = objective(model, mc.objectives.Batch(p["X_batches"][0], p["y_batches"][0], p["N"]))
    training = Training(model, objective, data, optax.adam(0.01), batch_size=B, every=EVERY)
    state = training.start()

    def run(k):
        nonlocal state
        with quiet_blas():
            for done in range(0, k, EVERY):
                state, _ = training.chunk(state, min(EVERY, k - done))

    return Run(run, -value * p["N"], "the compiled loop of fit")


def vish_model(p: dict) -> mc.Model:
    """Spherical harmonics and an arc-cosine kernel of two layers."""
    kernel = mc.kernels.ArcCosine(depth=2, weight_variance=jnp.ones(p["D"]))
    harmonics = mc.inducing.SphericalHarmonics(p["D"] + 1, p["levels"])
    return mc.Model(mc.Sparse(mc.GP(kernel), harmonics), mc.likelihoods.Gaussian(p["noise"]))


def vish_step(p: dict) -> Run:
    """The steps of `fit` with it."""
    return steps_of(vish_model(p), p)


def vish_pass(p: dict) -> Run:
    """All sums over the data that the collapsed bound and its hyperparameters need."""
    model, objective = vish_model(p), mc.objectives.CollapsedELBO()
    batch = objective.checked(model, (p["X"], p["y"]))

    def run(k):
        for _ in range(k):
            objective.prepare_for(model, batch, jax.tree.leaves(model))

    return Run(run, None, "sums of CollapsedELBO")


def deep_of(p: dict, num_samples: int) -> mc.Deep:
    """The layers of a deep problem."""
    lengthscales, Z, D, M = jnp.asarray(p["lengthscales"]), mc.inducing.Points(p["Z"]), p["D"], p["M"]
    root = 1e-5 * jnp.broadcast_to(jnp.eye(M, dtype=lengthscales.dtype), (D, M, M))
    prior = mc.GP(mc.kernels.RBF(lengthscales, 0.1), mc.means.Projection.identity(D))
    hidden = mc.Sparse(prior, Z, q_mu=p["hidden_mu"], q_sqrt=root)
    last = mc.Sparse(mc.GP(mc.kernels.RBF(lengthscales)), Z, q_mu=p["q_mu"], q_sqrt=p["q_sqrt"][None])
    return mc.Deep([hidden] * (p["layers"] - 1) + [last], num_samples)


def deep_step(p: dict) -> Run:
    """The steps of `fit` with one draw of each hidden layer."""
    return steps_of(mc.Model(deep_of(p, 1), mc.likelihoods.Gaussian(p["noise"])), p)


def deep_predict(p: dict) -> Run:
    """Mean and variance of f by S passes, from a cached posterior."""
    deep, X = deep_of(p, p["S"]).cached(), jnp.asarray(p["X_new"])

    def run(k):
        for _ in range(k):
            deep.predict(X)

    return Run(run, None, "deep.cached()")


def predict_cached(p: dict) -> Run:
    """Mean and variance of f from a cached posterior."""
    posterior = model_of(p).posterior.cached()
    X = jnp.asarray(p["X_new"])

    def run(k):
        for _ in range(k):
            posterior.predict(X)

    result = posterior.predict(X)
    return Run(run, float(result.mean.sum() + result.cov.sum()), "posterior.cached()")


def setup(case: dict) -> Run:
    if case["task"].startswith("vish"):
        return {"vish_step": vish_step, "vish_pass": vish_pass}[case["task"]](vish_problem(case))
    if case["task"].startswith("deep"):
        return {"deep_step": deep_step, "deep_predict": deep_predict}[case["task"]](deep_problem(case))
    tasks = {"svgp_step": svgp_step, "predict_cached": predict_cached, "multioutput_step": multioutput_step}
    return tasks[case["task"]](multioutput_problem(case) if "kind" in case else problem(case))


if __name__ == "__main__":
    serve(setup)
