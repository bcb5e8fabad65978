"""GPflow on kin8nm: whitened SVGP, natural gradients for q(u) and Adam for the rest, in one tf.function."""

import gpflow
import numpy as np
import tensorflow as tf
import tf_keras

from workers.kin8nm import batches, inducing_points, options, race

# The fastest to 1.18 of batches from 512 to all data, gamma from 0.1 to 1 and rates from 0.01 to 0.1.
ARGUMENTS = options(gamma=1.0, batch=8192, rate=0.1, every=5, lengthscale=2.0, noise=0.1)


def build(data: dict):
    """The model, its training step and its score."""
    X, y = tf.constant(data["X"]), tf.constant(data["y"])
    N, D = data["X"].shape
    kernel = gpflow.kernels.RBF(lengthscales=np.full(D, ARGUMENTS.lengthscale))
    Z = inducing_points(data["X"], ARGUMENTS.seed)
    model = gpflow.models.SVGP(kernel, gpflow.likelihoods.Gaussian(ARGUMENTS.noise), Z, whiten=True, num_data=N)
    gpflow.set_trainable(model.q_mu, False)
    gpflow.set_trainable(model.q_sqrt, False)
    natural, adam = gpflow.optimizers.NaturalGradient(ARGUMENTS.gamma), tf_keras.optimizers.Adam(ARGUMENTS.rate)
    adam.build(model.trainable_variables)
    rows = batches(N, min(ARGUMENTS.batch, N), ARGUMENTS.seed)

    @tf.function
    def compiled(rows):
        batch = tf.gather(X, rows), tf.gather(y, rows)
        loss = model.training_loss_closure(batch, compile=False)
        natural.minimize(loss, [(model.q_mu, model.q_sqrt)])
        adam.minimize(loss, model.trainable_variables)

    @tf.function
    def score():
        return tf.reduce_mean(model.predict_log_density((data["X_test"], data["y_test"])))

    return lambda: compiled(tf.constant(next(rows))), score


if __name__ == "__main__":
    race(build, ARGUMENTS)
