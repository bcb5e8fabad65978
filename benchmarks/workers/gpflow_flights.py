"""GPflow on flights: `python -m workers.gpflow_flights SET DATA STEPS EVERY OUT`, for `sphere.py race`.

Whitened SVGP, natural gradients for q(u) and Adam for the rest, in one compiled step, as in `gpflow_kin8nm.py`.
"""

import json
import sys
import time

import gpflow
import numpy as np
import tensorflow as tf
import tf_keras


def main(name: str, data: str, steps: int, every: int, out: str) -> None:
    arrays = dict(np.load(data))
    clock, start = 0.0, time.perf_counter()
    N, D = arrays["X"].shape
    kernel, likelihood = gpflow.kernels.RBF(lengthscales=np.ones(D)), gpflow.likelihoods.Gaussian(0.5)
    model = gpflow.models.SVGP(kernel, likelihood, arrays["Z"], whiten=True, num_data=N)
    gpflow.set_trainable(model.q_mu, False)
    gpflow.set_trainable(model.q_sqrt, False)
    natural, adam = gpflow.optimizers.NaturalGradient(0.1), tf_keras.optimizers.Adam(0.01)
    adam.build(model.trainable_variables)
    rows = tf.data.Dataset.from_tensor_slices((arrays["X"], arrays["y"])).repeat().shuffle(N, seed=0)
    batches = iter(rows.batch(1024).prefetch(2))

    @tf.function
    def step(batch):
        loss = model.training_loss_closure(batch, compile=False)
        natural.minimize(loss, [(model.q_mu, model.q_sqrt)])
        adam.minimize(loss, model.trainable_variables)

    @tf.function
    def score(X, y):
        return model.predict_log_density((X, y)), (model.predict_f(X)[0] - y) ** 2

    for done in range(every, steps + 1, every):
        for _ in range(every):
            step(next(batches))
        clock += time.perf_counter() - start
        parts = [
            score(arrays["X_test"][i : i + 20_000], arrays["y_test"][i : i + 20_000])
            for i in range(0, len(arrays["y_test"]), 20_000)
        ]
        density, error = (np.concatenate([np.ravel(part[k]) for part in parts]).mean() for k in (0, 1))
        entry = {"set": name, "method": "GPflow", "what": f"GPflow SVGP, M = 500, {done:,} steps", "seconds": clock}
        with open(out, "a") as file:
            file.write(json.dumps(entry | {"nlpd": -float(density), "mse": float(error)}) + "\n")
        start = time.perf_counter()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
