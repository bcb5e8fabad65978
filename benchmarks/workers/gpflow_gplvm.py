"""GPflow's Bayesian GPLVM from a start that mercer wrote: `python -m workers.gpflow_gplvm START.npz OUT.npz STEPS`."""

import sys
import time

import gpflow
import numpy as np


def main() -> None:
    """The bound at the start, and latent inputs, lengthscales and bound after as many steps of L-BFGS."""
    start, out, steps = np.load(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    if not steps:  # the default, 1e-6, shows in the bound
        gpflow.config.set_default_jitter(1e-11)
    model = gpflow.models.BayesianGPLVM(
        start["Y"] - start["centre"],
        X_data_mean=start["mean"],
        X_data_var=start["variance"],
        kernel=gpflow.kernels.RBF(variance=float(start["kernel_variance"]), lengthscales=start["lengthscale"]),
        inducing_variable=start["Z"],
    )
    model.likelihood.variance.assign(float(start["noise"]))
    first = float(model.elbo())
    seconds = 0.0
    if steps:
        began = time.perf_counter()
        gpflow.optimizers.Scipy().minimize(
            model.training_loss, model.trainable_variables, options={"maxiter": steps}, compile=True
        )
        seconds = time.perf_counter() - began
    np.savez(
        out,
        first=first,
        last=float(model.elbo()),
        seconds=seconds,
        mean=model.X_data_mean.numpy(),
        lengthscale=model.kernel.lengthscales.numpy(),
    )


if __name__ == "__main__":
    main()
