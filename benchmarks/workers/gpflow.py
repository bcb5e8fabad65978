"""GPflow: tf.function training step, with and without XLA; prediction from a precomputed posterior."""

import gpflow
import numpy as np
import tensorflow as tf
import tf_keras

from workers.common import Run, fastest, multioutput_problem, problem, serve


def svgp(p: dict) -> gpflow.models.SVGP:
    """The whitened SVGP of a problem."""
    kernel = gpflow.kernels.RBF(variance=p["variance"], lengthscales=p["lengthscales"])
    return gpflow.models.SVGP(
        kernel, gpflow.likelihoods.Gaussian(p["noise"]), p["Z"], whiten=True, num_data=p["N"],
        q_mu=p["q_mu"], q_sqrt=p["q_sqrt"][None],
    )  # fmt: skip


def svgp_step(p: dict) -> Run:
    """Minibatch ELBO, gradients and Adam."""
    return steps_of(lambda: svgp(p), p)


def multioutput_step(p: dict) -> Run:
    """The same for several outputs."""

    def model():
        kernels = [gpflow.kernels.RBF(lengthscales=p["lengthscale"]) for _ in range(p["L"])]
        points = gpflow.inducing_variables.InducingPoints(p["Z"])
        if p["kind"] in ("coregionalised", "points"):
            kernel = gpflow.kernels.LinearCoregionalization(kernels, p["W"])
        elif p["kind"] == "separate":
            kernel = gpflow.kernels.SeparateIndependent(kernels)
        else:
            kernel = gpflow.kernels.SharedIndependent(kernels[0], p["P"])
        shared = gpflow.inducing_variables.SharedIndependentInducingVariables(points)
        options = {"num_latent_gps": p["L"]}
        if p["kind"] == "points":  # all outputs at all points, in one vector
            size = len(p["Z"]) * p["P"]
            options |= {"q_mu": np.zeros((size, 1)), "q_sqrt": np.eye(size)[None], "num_latent_gps": 1}
        return gpflow.models.SVGP(
            kernel, gpflow.likelihoods.Gaussian(p["noise"]), points if p["kind"] == "points" else shared,
            whiten=True, num_data=p["N"], **options,
        )  # fmt: skip

    return steps_of(model, p)


def steps_of(svgp, p: dict) -> Run:
    """Steps on minibatches of the model that a function makes."""
    batches = [(tf.constant(X), tf.constant(y)) for X, y in zip(p["X_batches"], p["y_batches"], strict=True)]
    value = svgp().elbo(batches[0]).numpy()

    def steps(jit_compile):
        model, adam = svgp(), tf_keras.optimizers.Adam(0.01)
        adam.build(model.trainable_variables)

        @tf.function(jit_compile=jit_compile)
        def step(X, y):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(model.trainable_variables)
                loss = model.training_loss((X, y))
            gradients = tape.gradient(loss, model.trainable_variables)
            adam.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        def run(k):
            for i in range(k):
                loss = step(*batches[i % len(batches)])
            loss.numpy()

        return run

    return fastest({"tf.function": steps(False), "jit_compile": steps(True)}, value)


def predict_cached(p: dict) -> Run:
    """Mean and variance of f from the posterior object, whose M x M algebra is done once."""
    posterior, X = svgp(p).posterior(), tf.constant(p["X_new"])

    def calls(jit_compile):
        predict = tf.function(posterior.predict_f, jit_compile=jit_compile)

        def run(k):
            for _ in range(k):
                mean, variance = predict(X)
            mean.numpy(), variance.numpy()

        return run

    mean, variance = posterior.predict_f(X)
    value = tf.reduce_sum(mean + variance).numpy()
    return fastest({"tf.function": calls(False), "jit_compile": calls(True)}, value)


if __name__ == "__main__":
    tasks = {"svgp_step": svgp_step, "predict_cached": predict_cached, "multioutput_step": multioutput_step}
    serve(lambda case: tasks[case["task"]](multioutput_problem(case) if "kind" in case else problem(case)))
