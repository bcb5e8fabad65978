"""Generalised variational inference: a risk on the data, and a divergence that keeps the posterior near a prior.

The generalised posterior makes E_q[sum_n loss(f, y_n)] + D[Q, P] small over processes Q (paper 000, equation 4.3; Knoblauch,
Jewson and Damoulas, 2022; Wild, Hu and Sejdinovic, 2022). Per datum this is the mean risk plus D / N, with Bayes' rule at one
corner (the log likelihood and KL), Gaussian Wasserstein inference at another (4.7, 5.11), projected inference at a third (6.2).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mercer.divergences import Divergence
from mercer.inducing.functionals import is_functional
from mercer.model import Model, align
from mercer.objectives.base import Objective
from mercer.objectives.risks import Risk
from mercer.objectives.variational import divergence_of_inputs, drawn_inputs, latent_values
from mercer.parameters import constant, dtype_of, is_concrete
from mercer.processes import Process


class GVI(Objective):
    """mean_n risk_n + weight * D[Q, P] / N, of the posterior Q of a model and a prior P.

    The risk is a mean over rows, in the risk's own units (nats, for log likelihoods). D is one number for the whole process, in
    the divergence's own units, against the N risks of all the data: weight = 1 with `risks.ExpectedNegativeLogLikelihood()` and
    `divergences.KL()` is minus the ELBO per datum. The mean risk plus the whole of D, as in the experiments of paper 000, is
    weight = N, the number of data.

    `prior` is any process, and held still; None is the posterior's own prior (`model.posterior.prior`), which is trained with
    the posterior, as under the ELBO. A prior of one output stands for each output of the posterior.

    A minibatch gives an unbiased estimate of the risk; of D where it is a mean over inputs (`Projected`, `GaussianWasserstein`
    without its trace); and the whole of D where it looks at no inputs (`KL` between a `Sparse` and a `GP`). Any other D is taken
    at the inputs of the batch (one draw of them, where they are uncertain): the divergence of the processes as the batch sees
    them. Of these, `GaussianWasserstein` estimates
    that of all inputs, with a bias; the joint ones grow with the number of inputs.
    """

    prior: Process | None = constant()
    risk: Risk
    divergence: Divergence
    weight: Array | float = constant(default=1.0)

    def __check_init__(self):
        if not (self.prior is None or isinstance(self.prior, Process)):
            raise ValueError(f"GVI: prior expects a process or None, got {type(self.prior).__name__}")
        if not isinstance(self.risk, Risk):
            raise ValueError(f"GVI: risk expects one of mercer.objectives.risks, got {type(self.risk).__name__}")
        if not isinstance(self.divergence, Divergence):
            raise ValueError(f"GVI: divergence expects one of mercer.divergences, got {type(self.divergence).__name__}")
        number = np.shape(self.weight) == () and isinstance(self.weight, jax.Array | np.generic)
        if not number or (is_concrete(self.weight) and not 0.0 <= np.asarray(self.weight) < np.inf):
            raise ValueError(f"GVI: weight expects a finite number, 0 or more, got {self.weight}")

    def checked(self, model, data):
        if not isinstance(model, Model):
            raise ValueError(f"GVI expects a Model, got {type(model).__name__}")
        self.risk.check(model.likelihood)
        batch = super().checked(model, data)
        if self.prior is None and model.posterior.prior is None:
            raise ValueError(
                f"GVI: prior=None is the posterior's own prior, and {type(model.posterior).__name__} has none; pass a process"
            )
        prior = self._prior(model, batch)
        X = drawn_inputs(model, batch, None)
        prior.check_inputs(X)
        self.divergence.check_inputs(X)
        needed = model.likelihood.num_latents(batch.Y.shape[1])
        for process, name, allowed in ((model.posterior, "posterior", (needed,)), (prior, "prior", (needed, 1))):
            given = _num_outputs(process, X)
            if given not in allowed:
                raise ValueError(f"GVI: the data need {needed} latent functions, the {name} has {given}")
        return batch

    def _prior(self, model: Model, batch: Any) -> Any:
        return model.posterior.prior if self.prior is None else align(self.prior, batch.dtype)

    def _value(self, model, batch, key):
        q, p, likelihood = model.posterior, self._prior(model, batch), model.likelihood
        layout = self.divergence.layout(q, p)
        X = drawn_inputs(model, batch, key)
        if layout is None:
            closed = self.risk.expected and likelihood.quadratic
            latent = latent_values(model, batch, key, closed_form=closed)
            divergence = self.divergence.between(q, p, X)
        else:
            # One prediction serves both terms.
            wider = "outputs" if (layout, likelihood.layout) == ("diag", "outputs") else layout
            seen = q.in_training().predict(X, wider, key=None if key is None else jax.random.fold_in(key, 1))
            latent, of_prior = seen.in_layout(likelihood.layout), p.predict(X, layout)
            divergence = self.divergence.joint(seen.in_layout(layout), of_prior)
        risk = self.risk(likelihood, latent, batch.Y, batch.inputs, key)
        weight = jnp.asarray(self.weight, risk.dtype)
        divergence = divergence_of_inputs(model, batch) + divergence / batch.num_data
        return jnp.mean(batch.weighted(risk)) + weight * divergence


def _num_outputs(process: Process, X: Any) -> int:
    """P, also where it is the mean function that says so."""
    if process.num_outputs is not None:
        return process.num_outputs
    rows = X if is_functional(X) else jax.tree.map(lambda leaf: leaf[:1], X)
    aligned = align(process, dtype_of(X))
    return eqx.filter_eval_shape(lambda process, X: process.predict(X).mean, aligned, rows).shape[1]
