"""Several factorisations in one step must not wait for each other.

jaxlib's batched LAPACK calls on the CPU block one of XLA's threads until others of them are done: two such calls at the same time
stop a process on two cores. Each case here did so, in a process of its own, before factorisations were put in order.
"""

import os
import subprocess
import sys

import pytest

PREAMBLE = """
import jax; jax.config.update("jax_enable_x64", True)
import numpy as np, mercer as mc
k, rng = mc.kernels, np.random.default_rng(0)
X = np.linspace(-1.7, 1.7, 250)[:, None]
def fit(posterior, objective, P, **options):
    Y = rng.normal(size=(250, P)); Y[3:5] = np.nan
    mc.fit(mc.Model(posterior, mc.likelihoods.Gaussian(0.1)), objective, (X, Y), steps=2, every=2, **options)
points = mc.inducing.Points(np.linspace(-1.7, 1.7, 126)[:, None])
"""
CASES = {
    "outputs with kernels of several kinds": """
kernel = k.SeparateIndependent([[k.Matern12(0.5), k.RBF(0.5)][i % 2] for i in range(14)])
fit(mc.Sparse(mc.GP(kernel), mc.inducing.Shared(points)), mc.objectives.CollapsedELBO(), 14)
""",
    "exact outputs": """
fit(mc.GP(k.SeparateIndependent([k.Matern12(0.5) for i in range(14)])), mc.objectives.MarginalLikelihood(), 14)
""",
    "two posteriors, several starts": """
class Either(mc.Process):
    first: mc.Sparse
    second: mc.Sparse
    prior = property(lambda self: self.first.prior)
    def kl(self, prior=None): return 0.5 * (self.first.kl() + self.second.kl())
    def _predict(self, X, covariance):
        return mc.Mixture.of([process.predict(X, covariance) for process in (self.first, self.second)])
    def _sample_function(self, key, num_features): return self.first.sample_function(num_features, key=key)
projected = mc.divergences.Projected(mc.divergences.KL())
gvi = mc.objectives.GVI(mc.GP(k.RBF(0.5)), mc.objectives.risks.ExpectedNegativeLogLikelihood(), projected)
fit(Either(*(mc.Sparse(mc.GP(k.Matern32(l)), points) for l in (0.5, 1.0))), gvi, 1, restarts=8)
""",
    "restarts": """
fit(mc.Sparse(mc.GP(k.Matern32(0.5)), points), mc.objectives.CollapsedELBO(), 1, restarts=12)
""",
}


# Each run stops in one way or the other by chance; by default tests/linalg/test_one_matrix_at_a_time.py looks at the programs.
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_training_ends(case):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}  # compiled as for a user
    subprocess.run([sys.executable, "-c", PREAMBLE + CASES[case]], check=True, timeout=240, env=environment)
