"""GPflux: deep models, by a tf.function training step with and without XLA; prediction pass by pass."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import gpflow
import gpflux
import numpy as np
import tensorflow as tf
import tf_keras

from workers.common import Run, deep_problem, fastest, serve


def deep_of(p: dict) -> gpflux.models.DeepGP:
    """The layers of a deep problem."""
    layers = []
    for number in range(p["layers"]):
        hidden = number < p["layers"] - 1
        kernel = gpflow.kernels.RBF(variance=0.1 if hidden else 1.0, lengthscales=p["lengthscales"])
        outputs = p["D"] if hidden else 1
        mean = gpflow.mean_functions.Identity() if hidden else gpflow.mean_functions.Zero()
        layer = gpflux.layers.GPLayer(
            gpflux.helpers.construct_basic_kernel(kernel, outputs, share_hyperparams=True),
            gpflux.helpers.construct_basic_inducing_variables(
                p["M"], p["D"], share_variables=True, z_init=p["Z"].copy()
            ),
            p["N"],
            mean_function=mean,
            name=f"layer_{number}",
        )
        layer.q_mu.assign(p["hidden_mu"] if hidden else p["q_mu"])
        layer.q_sqrt.assign(1e-5 * np.tile(np.eye(p["M"]), (outputs, 1, 1)) if hidden else p["q_sqrt"][None])
        layers.append(layer)
    return gpflux.models.DeepGP(layers, gpflow.likelihoods.Gaussian(p["noise"]))


def deep_step(p: dict) -> Run:
    """Minibatch ELBO with one draw of each hidden layer, gradients and Adam."""
    batches = [(tf.constant(X), tf.constant(y)) for X, y in zip(p["X_batches"], p["y_batches"], strict=True)]

    def steps(jit_compile):
        model, adam = deep_of(p), tf_keras.optimizers.Adam(0.01)
        model.elbo(batches[0])  # makes the layers
        parts = [*model.f_layers, model.likelihood_layer]
        variables = [variable for part in parts for variable in part.trainable_variables]
        adam.build(variables)

        @tf.function(jit_compile=jit_compile)
        def step(X, y):
            with tf.GradientTape() as tape:
                loss = -model.elbo((X, y)) / p["N"]
            adam.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        def run(k):
            for i in range(k):
                loss = step(*batches[i % len(batches)])
            loss.numpy()

        return run

    return fastest({"tf.function": steps(False), "with jit_compile": steps(True)})


def deep_predict(p: dict) -> Run:
    """Mean and variance of f by S passes, one after another."""
    model, X = deep_of(p), tf.constant(p["X_new"])
    pass_through = tf.function(model.predict_f)

    def run(k):
        for _ in range(k):
            means, variances = zip(*(pass_through(X) for _ in range(p["S"])), strict=True)
            mean = tf.reduce_mean(means, axis=0)
            (tf.reduce_mean(variances, axis=0) + tf.reduce_mean((means - mean) ** 2, axis=0)).numpy()

    run(1)
    return Run(run, None, "passes of predict_f")


def setup(case: dict) -> Run:
    return {"deep_step": deep_step, "deep_predict": deep_predict}[case["task"]](deep_problem(case))


if __name__ == "__main__":
    serve(setup)
