"""A process whose covariance is scaled, one factor for each output (paper 000, equations 5.9 and 5.10)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from mercer.kernels import Map
from mercer.parameters import constant, param, positive
from mercer.processes.base import Function, Process


class Tempered(Process):
    """f with the mean of `process` and `factor` times its covariance: a number, or a vector [P] with one for each output.

    A mixture is scaled around its mean. Between outputs p and p' the covariance is scaled by sqrt(factor_p factor_p'). Only the
    factor is learned.
    """

    process: Process = constant()
    factor: Array = param(positive, default=1.0)

    def __check_init__(self):
        if not isinstance(self.process, Process):
            raise ValueError(f"Tempered: process expects a mercer process, got {type(self.process).__name__}")
        shape, outputs = jnp.shape(self.factor), self.process.num_outputs
        if len(shape) > 1 or (shape and outputs is not None and shape != (outputs,)):
            raise ValueError(f"Tempered: factor expects a number or one for each output, got shape {shape}")

    @property
    def num_outputs(self):
        return self.process.num_outputs

    @property
    def joint_layout(self):
        return self.process.joint_layout

    def check_inputs(self, X):
        self.process.check_inputs(X)

    def _check_prediction(self, result):
        self.process._check_prediction(result)

    def as_inputs(self, X):
        return self.process.as_inputs(X)

    def _predict_with_key(self, X, covariance, key):
        prediction = self.process._predict_with_key(X, covariance, key)
        return prediction.scaled(jnp.broadcast_to(jnp.sqrt(self.factor), prediction.mean.shape[1:]))

    def in_training(self):
        return Tempered(self.process.in_training(), self.factor)

    def cached(self):
        return Tempered(self.process.cached(), self.factor)

    def _sample_function(self, key, num_features):
        return _TemperedDraw(self, self.process._sample_function(key, num_features))


class _TemperedDraw(Map):
    """A draw of the process, with its deviation from the mean scaled."""

    tempered: Tempered = constant()
    function: Function = constant()

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        mean = self.tempered.process.predict(X).mean
        return mean + jnp.sqrt(self.tempered.factor).astype(X.dtype) * (self.function(X) - mean)
