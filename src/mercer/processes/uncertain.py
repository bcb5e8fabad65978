"""A process at inputs that nobody observed, or of which some columns are latent (paper 004, section 7).

f(x_n) with x_n unknown and a Gaussian q(x_n) for each row of data: latent inputs alone make a latent variable model (GPLVM),
latent columns [x_n, w_n] beside observed ones a conditional density, p(y | x) = E p(y | f(x, w)), which may have several modes.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mercer.inducing.functionals import is_array
from mercer.inputs import Latent, LatentInputs
from mercer.parameters import is_concrete
from mercer.processes.base import Process
from mercer.validation import AnyArray


class Uncertain(Process):
    """A process whose inputs are latent, or whose last columns of inputs are: `inputs` gives their q(x_n) and their prior.

    It is trained with data (None, Y), or (X, Y) where other columns are observed; any process that bounds on the evidence
    know can be inside. Asked at all columns of the inputs it is that process. Asked at the observed ones it is a mixture over
    `num_samples` draws of the latent ones from their prior. Asked at None it is at q(x_n) of each row of the data (`Latent`). A
    bound on the evidence takes `training_samples` draws of q(x_n), where it has no closed form.
    """

    process: Process
    inputs: LatentInputs
    num_samples: int = eqx.field(static=True, default=100)
    training_samples: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        if not isinstance(self.process, Process) or not isinstance(self.inputs, LatentInputs):
            kinds = f"{type(self.process).__name__} and {type(self.inputs).__name__}"
            raise ValueError(f"Uncertain expects a process and latent inputs (Latent or Amortised), got {kinds}")
        for name in ("num_samples", "training_samples"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"Uncertain: {name} expects a whole number, at least 1, got {getattr(self, name)!r}")

    @property
    def num_outputs(self):
        return self.process.num_outputs

    @property
    def joint_layout(self):
        return self.process.joint_layout

    @property
    def prior(self):  # type: ignore[override]
        """The prior of the function."""
        return self.process.prior

    def is_own_prior(self, prior):
        return self.process.is_own_prior(prior)

    def knows_kl(self, prior=None):
        return self.process.knows_kl(prior)

    def kl(self, prior=None):
        """KL of the process inside; that of the inputs belongs to the rows of data, and is added by objectives."""
        return self.process.kl(prior)

    def q_parameters(self):
        return self.process.q_parameters()

    def in_training(self):
        return self.with_process(self.process.in_training())

    def cached(self):
        return self.with_process(self.process.cached())

    def with_process(self, process: Process) -> "Uncertain":
        """The same inputs of another process."""
        return Uncertain(process, self.inputs, self.num_samples, self.training_samples)

    def given_draw(self, *, key):
        return self.with_process(self.process.given_draw(key=key))

    def latent_inputs(self, X, Y, index):
        return self.inputs.of_rows(X, Y, index, self.training_samples)

    def check_data(self, X, Y, num_data):
        if X is not None and not is_array(X):
            raise ValueError(f"Uncertain expects X to be None or an array of observed columns, got {type(X).__name__}")
        self.inputs.check(X, Y, num_data)
        check_observed(Y)
        given = 0 if X is None else X.shape[1]
        self._check_width(given + self.inputs.dimension)

    def _takes(self, width: int) -> str | None:
        """None if the process takes inputs of so many columns, else what it says of them."""
        try:
            eqx.filter_eval_shape(lambda process, X: process.predict(X), self.process, jnp.zeros((1, width)))
        except Exception as error:  # whatever it says of them
            return (str(error).strip() or type(error).__name__).splitlines()[0]
        return None

    def _check_width(self, width: int) -> None:
        complaint = self._takes(width)
        if complaint is not None:
            raise ValueError(
                f"Uncertain: {type(self.process).__name__} does not take inputs of {width} columns, of which "
                f"{self.inputs.dimension} are latent ({type(self.inputs).__name__}): {complaint}"
            )

    def as_inputs(self, X: Any) -> Any:
        """All columns as they are; beside observed columns the prior of the latent ones; at None q(x_n) of each row."""
        if X is None:
            return self.inputs.of_rows(None, None, None).inputs()
        X = super().as_inputs(X)
        if isinstance(X, jax.Array) and self._takes(X.shape[1]) is not None:
            self._check_width(X.shape[1] + self.inputs.dimension)
            return self.inputs.from_prior(X, self.num_samples)
        return X

    def check_inputs(self, X):
        self.process.check_inputs(X)

    def _check_prediction(self, result):
        self.process._check_prediction(result)

    def _predict_with_key(self, X, covariance, key):
        return self.process._predict_with_key(X, covariance, key)

    def _predict_uncertain(self, x, covariance, key):
        return self.process._predict_uncertain(x, covariance, key)

    def along_paths(self, values, covariance, *, key):
        return self.process.along_paths(values, covariance, key=key)

    def _sampled(self, X, num, key):
        return self.process._sampled(X, num, key)

    def _sample_function(self, key, num_features):
        """A draw of the process inside, a function of all columns."""
        return self.process._sample_function(key, num_features)

    def weighted_inputs(self, X, Y, *, key):
        own = isinstance(self.inputs, Latent) and X is None and len(Y) == len(self.inputs)
        if isinstance(self.inputs, Latent) and not own:
            return None
        self.check_data(X, Y, len(Y))
        rows = self.inputs.of_rows(X, Y, None)
        draws = rows.proposals(self.num_samples, key=key)
        return rows.with_given(draws), rows.log_weights(draws)


def check_observed(Y: Float[AnyArray, "N P"]) -> None:
    """Refuses rows without an entry, which say nothing about their latent inputs."""
    empty = np.isnan(np.asarray(Y)).all(axis=1) if is_concrete(Y) else np.zeros(1, bool)
    if empty.any():
        raise ValueError(
            f"nothing is observed in {empty.sum()} of {len(Y)} rows of Y (first: row {np.argmax(empty)}), which say nothing "
            "about their latent inputs; leave them out"
        )
