"""Parts that a user could write: processes that are mixtures or need random numbers, objectives that are more than a value."""

import jax
import jax.numpy as jnp

import mercer as mc
from mercer.objectives import Objective, TrainingObjective
from mercer.parameters import positive


class Either(mc.Process):
    """f is one of two processes, each with probability 1/2. Its KL is the mean of theirs, which is no less than its own."""

    first: mc.Sparse
    second: mc.Sparse

    @property
    def num_outputs(self):
        return self.first.num_outputs

    @property
    def joint_layout(self):
        return self.first.joint_layout

    @property
    def prior(self):
        return self.first.prior

    def kl(self, prior=None):
        return 0.5 * (self.first.kl(prior) + self.second.kl(prior))

    def q_parameters(self):
        return (*self.first.q_parameters(), *self.second.q_parameters())

    def _predict(self, X, covariance):
        return mc.Mixture.of([process.predict(X, covariance) for process in (self.first, self.second)])

    def _sample_function(self, key, num_features):
        process = self.first if jax.random.bernoulli(key) else self.second
        return process.sample_function(num_features, key=key)


class Shaken(mc.Process):
    """A process seen at inputs with noise, by `num` draws of it: a mixture that needs random numbers."""

    process: mc.Sparse
    scale: jax.Array = mc.param(positive, default=0.1)
    num: int = 3

    @property
    def num_outputs(self):
        return self.process.num_outputs

    @property
    def prior(self):
        return self.process.prior

    def kl(self, prior=None):
        return self.process.kl(prior)

    def _predict_with_key(self, X, covariance, key):
        noise = self.scale * jax.random.normal(key, (self.num, *X.shape), X.dtype)
        return mc.Mixture.of([self.process.predict(X + shift, covariance) for shift in noise])

    def _sample_function(self, key, num_features):
        return self.process.sample_function(num_features, key=key)


class Averaged(TrainingObjective):
    """An exponential average of another objective, which it carries from step to step."""

    objective: Objective
    rate: float = 0.1

    def checked(self, model, data):
        return self.objective.checked(model, data)

    def init(self, model, batch):
        return jnp.zeros(())

    def _value_in_training(self, model, batch, key, context):
        value = self.objective._value(model, batch, key)
        average = (1.0 - self.rate) * context.state + self.rate * value
        return value + 0.5 * (average - jax.lax.stop_gradient(value)), average


class Annealed(TrainingObjective):
    """The ELBO with a KL that counts more from step to step, up to a weight which is trained, and a look at the whole data."""

    needs_data = True
    trained = True
    temperature: jax.Array = mc.param(positive, default=2.0)
    steps: int = 10

    def _value_in_training(self, model, batch, key, context):
        share = jnp.minimum((context.step + 1.0) / self.steps, 1.0).astype(batch.Y.dtype)
        offset = jnp.mean(context.data.Y) - jnp.mean(batch.Y)
        value = mc.objectives.ELBO()._value(model, batch, key)
        extra = (share * self.temperature - 1.0) * model.posterior.kl() / batch.num_data
        return value + extra + offset**2 + (self.temperature - 1.0) ** 2, None
