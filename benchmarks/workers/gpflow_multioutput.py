"""GPflow's linear model of coregionalisation on data with gaps: `python -m workers.gpflow_multioutput FOLDER`."""

import json
import sys
from pathlib import Path

import gpflow
import numpy as np
import tensorflow as tf
import tf_keras


class GaussianWithGaps(gpflow.likelihoods.Likelihood):
    """Noise of each output; NaN in Y is left out."""

    def __init__(self, variance: np.ndarray):
        super().__init__(input_dim=None, latent_dim=len(variance), observation_dim=len(variance))
        self.variance = gpflow.Parameter(variance, transform=gpflow.utilities.positive())

    def _terms(self, y, mean, total, extra):
        seen = ~tf.math.is_nan(y)
        y = tf.where(seen, y, mean)
        terms = -0.5 * (np.log(2.0 * np.pi) + tf.math.log(total) + ((y - mean) ** 2 + extra) / total)
        return tf.reduce_sum(tf.where(seen, terms, tf.zeros_like(terms)), axis=-1)

    def _log_prob(self, X, F, Y):
        return self._terms(Y, F, self.variance, 0.0)

    def _variational_expectations(self, X, Fmu, Fvar, Y):
        return self._terms(Y, Fmu, self.variance, Fvar)

    def _predict_log_density(self, X, Fmu, Fvar, Y):
        return self._terms(Y, Fmu, Fvar + self.variance, 0.0)

    def _predict_mean_and_var(self, X, Fmu, Fvar):
        return Fmu, Fvar + self.variance


def main() -> None:
    """Trains, and writes predictions at all inputs."""
    folder = Path(sys.argv[1])
    p, options = np.load(folder / "problem.npz"), json.loads((folder / "options.json").read_text())
    kind = {"RBF": "RBF", "Matern32": "Matern32", "Matern52": "Matern52"}[options["kernel"]]
    lengthscales = p["lengthscales"] if len(p["lengthscales"]) > 1 else p["lengthscales"][0]
    kernels = [getattr(gpflow.kernels, kind)(lengthscales=lengthscales) for _ in range(p["W"].shape[1])]
    kernel = gpflow.kernels.LinearCoregionalization(kernels, W=p["W"])
    points = gpflow.inducing_variables.InducingPoints(p["Z"])
    shared = gpflow.inducing_variables.SharedIndependentInducingVariables(points)
    X, Y, N = p["X_train"], p["Y_train"], len(p["X_train"])
    model = gpflow.models.SVGP(
        kernel, GaussianWithGaps(p["noise"]), shared, num_latent_gps=p["W"].shape[1], num_data=N, whiten=True
    )
    if not options["by_minibatches"]:
        gpflow.set_trainable(shared, False)
    adam = tf_keras.optimizers.Adam(0.01)
    variables = model.trainable_variables
    adam.build(variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss = model.training_loss((x, y))
        adam.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    random = np.random.default_rng(0)
    for _ in range(options["steps"]):
        rows = random.choice(N, 500, replace=False) if options["by_minibatches"] else slice(None)
        step(tf.constant(X[rows]), tf.constant(Y[rows]))
    mean, variance = model.predict_y(p["X"])
    np.savez(folder / "result.npz", mean=mean.numpy(), variance=variance.numpy())


if __name__ == "__main__":
    main()
