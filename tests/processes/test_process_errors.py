"""What cannot work is refused at the call, with a ValueError that names the argument."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_gaussians import KERNEL, X_NEW, M, X, Y, Z, prior, some_q

import mercer as mc
from mercer.linalg import FactorisationError

GP, POINTS = prior(1), mc.inducing.Points(Z)
SPARSE, CONDITIONED = mc.Sparse(GP, POINTS), mc.Conditioned(GP, X, Y[:, :1])
NAN_X = np.where(np.arange(len(X))[:, None] == 3, np.nan, X)
Q_MU, Q_SQRT = some_q(1)


WRONG = {
    "kernel": (lambda: mc.GP("RBF"), "kernel expects a mercer kernel, got str"),
    "mean": (lambda: mc.GP(KERNEL, 1.0), "mean expects a mercer mean function, got float"),
    "Conditioned, prior": (lambda: mc.Conditioned(SPARSE, X, Y), "prior expects a mercer.GP, got Sparse"),
    "Conditioned, 1-D X": (lambda: mc.Conditioned(GP, X[:, 0], Y), r"X must be two-dimensional.*X\[:, None\]"),
    "Conditioned, 1-D Y": (lambda: mc.Conditioned(GP, X, Y[:, 0]), r"Y must be two-dimensional.*Y\[:, None\]"),
    "Conditioned, NaN in X": (lambda: mc.Conditioned(GP, NAN_X, Y), "X must be finite.*1 of 9 rows.*row 3"),
    "Conditioned, inf in Y": (lambda: mc.Conditioned(GP, X, Y * np.inf), "Y must not hold infinities"),
    "Conditioned, integers": (
        lambda: mc.Conditioned(GP, X.astype(int), Y),
        "X must be float32 or float64, got int64",
    ),
    "Conditioned, lengths": (lambda: mc.Conditioned(GP, X, Y[1:]), "same number of rows, got 9 and 8"),
    "Conditioned, negative noise": (lambda: mc.Conditioned(GP, X, Y, -0.1), "noise expects positive.*-0.1"),
    "Conditioned, noise that is zero": (lambda: mc.Conditioned(GP, X, Y, 0.0), "noise expects positive"),
    "Conditioned, noise": (
        lambda: mc.Conditioned(GP, X, Y, np.ones(9)),
        r"noise must .* \(9, 3\) of Y, got shape \(9,\)",
    ),
    "Sparse, prior": (lambda: mc.Sparse(SPARSE, POINTS), "expects a mercer.GP and inducing variables, got Sparse"),
    "Sparse, inducing": (lambda: mc.Sparse(GP, Z), "inducing variables, got GP and ndarray"),
    "Sparse, num_outputs": (lambda: mc.Sparse(GP, POINTS, 0), "num_outputs must be at least 1, got 0"),
    "Sparse, kind": (lambda: mc.Sparse(GP, POINTS, covariance="low rank"), '"full", "joint", "block" or "diag"'),
    "Sparse, blocks": (
        lambda: mc.Sparse(GP, POINTS, covariance="block", num_blocks=4),
        "num_blocks must divide the number of inducing variables, 6, got 4",
    ),
    "Sparse, no blocks": (lambda: mc.Sparse(GP, POINTS, covariance="block"), "num_blocks goes with"),
    "Sparse, blocks of full": (lambda: mc.Sparse(GP, POINTS, num_blocks=2), "num_blocks goes with"),
    "Sparse, q_mu": (lambda: mc.Sparse(GP, POINTS, q_mu=Q_MU[1:]), r"q_mu expects shape \(6, L\).*got \(5, 1\)"),
    "Sparse, 1-D q_mu": (
        lambda: mc.Sparse(GP, POINTS, q_mu=Q_MU[:, 0]),
        r"q_mu expects shape \(6, L\).*got \(6,\)",
    ),
    "Sparse, q_sqrt": (lambda: mc.Sparse(GP, POINTS, q_sqrt=Q_SQRT[0]), r"q_sqrt \(L, 6, 6\).*and \(6, 6\)"),
    "Sparse, q_sqrt of too many": (lambda: mc.Sparse(GP, POINTS, 2, q_sqrt=Q_SQRT), r"and \(1, 6, 6\)"),
    "Sparse, blocks of the wrong size": (
        lambda: mc.Sparse(GP, POINTS, q_sqrt=jnp.ones((1, 1, 4, 4)) * jnp.eye(4)),
        r"q_sqrt \(L, 6, 6\) or \(L, B, 6/B, 6/B\), got \(6, 1\) and \(1, 1, 4, 4\)",
    ),
    "Sparse, upper": (lambda: mc.Sparse(GP, POINTS, q_sqrt=Q_SQRT.swapaxes(1, 2)), "q_sqrt expects .*triangular"),
    "Points, 1-D Z": (lambda: mc.inducing.Points(Z[:, 0]), "Z must be two-dimensional"),
    "Points, NaN": (lambda: mc.inducing.Points(NAN_X), "Z.*finite"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    make, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("process", [GP, CONDITIONED, SPARSE], ids=["GP", "Conditioned", "Sparse"])
def test_wrong_inputs_and_layouts(process):
    for A, message in (
        (X_NEW[:, 0], r"X must be two-dimensional \[N, D\], got shape \(4,\)"),
        (NAN_X, "X must be finite"),
        (X_NEW.astype(int), "X must be float32 or float64"),
        ([[0, 1]], "X must be float32 or float64"),
        (X_NEW[:, :1], "columns"),
    ):
        with pytest.raises(ValueError, match=message):
            process.predict(A)
    with pytest.raises(ValueError, match=r"covariance must be one of .*'inputs'.*, got 'diagonal'"):
        process.predict(X_NEW, "diagonal")
    with pytest.raises(ValueError, match="X must be two-dimensional"):
        process.sample(X_NEW[0], key=jax.random.key(0))


def test_a_mean_with_another_number_of_outputs_is_refused():
    message = "the mean function has 3 outputs, the process has {}"
    for P in (1, 2):
        with pytest.raises(ValueError, match=message.format(P)):
            mc.Conditioned(prior(3), X, Y[:, :P]).log_marginal_likelihood()
        with pytest.raises(ValueError, match=message.format(P)):
            mc.Sparse(prior(3), POINTS, P).predict(X_NEW)


class SquaredDistance(mc.kernels.Kernel):
    """Not a kernel: its matrices have negative eigenvalues."""

    def _matrix(self, X, X2):
        X2 = X if X2 is None else X2
        return jnp.sum((X[:, None] - X2[None]) ** 2, axis=-1)

    def _diagonal(self, X):
        return jnp.zeros(len(X), X.dtype)


def test_a_factorisation_that_fails_names_its_matrix():
    wrong = mc.GP(SquaredDistance())
    conditioned = mc.Conditioned(wrong, X, Y[:, :1])
    for use in (lambda: conditioned.predict(X_NEW), conditioned.log_marginal_likelihood):
        with pytest.raises(FactorisationError, match=r"k\(X, X\) \+ noise \[9 x 9\] is not positive definite.* -"):
            use()
    with pytest.raises(FactorisationError, match=rf"Kuu \[{M} x {M}\] is not positive definite"):
        mc.Sparse(wrong, POINTS).predict(X_NEW)
    with pytest.raises(FactorisationError, match="the covariance of the sample"):
        mc.Gaussian(X_NEW[:, :1], -np.eye(4)[None], "inputs").sample(key=jax.random.key(0))


def test_overflow_is_found():
    steep = mc.kernels.RBF() * mc.kernels.Polynomial(degree=9)
    with pytest.raises(FactorisationError, match=r"k\(X, X\) \+ noise \[9 x 9\] holds NaN or inf"):
        mc.Conditioned(mc.GP(steep), 1e40 * X, Y[:, :1]).predict(X_NEW)
