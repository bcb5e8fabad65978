"""The plain computation that every process is compared with: one Gaussian over all values at all inputs and outputs.

Values f [N, P] are laid out as one vector of N P numbers, the output changing fastest.
"""

import equinox as eqx
import numpy as np

import mercer as mc

LAYOUTS = ("diag", "outputs", "inputs", "full")
LENGTHSCALE, VARIANCE = np.array([0.7, 1.3]), 0.8
KERNEL = mc.kernels.Matern32(LENGTHSCALE, VARIANCE)
N, D, M = 9, 2, 6

_rng = np.random.default_rng(0)
X, X_NEW, Z = (_rng.uniform(-1.5, 1.5, size=(rows, D)) for rows in (N, 4, M))
Y = _rng.normal(size=(N, 3))
MISSING = np.where(_rng.uniform(size=Y.shape) < 0.3, np.nan, Y)
MISSING[4] = np.nan
WEIGHTS, BIAS = _rng.normal(size=(D, 3)), np.array([0.5, -1.0, 2.0])


def k(A, B):
    r = np.sqrt((((A[:, None] - B[None]) / LENGTHSCALE) ** 2).sum(-1))
    return VARIANCE * (1.0 + np.sqrt(3.0) * r) * np.exp(-np.sqrt(3.0) * r)


def prior(P, mean=None):
    """A GP with a mean of P outputs."""
    return mc.GP(KERNEL, mc.means.Linear(WEIGHTS[:, :P], BIAS[:P]) if mean is None else mean)


def prior_mean(A, P):
    return A @ WEIGHTS[:, :P] + BIAS[:P]


def over_outputs(K, P):
    """The covariance of P independent outputs that share a kernel, [A P, B P]."""
    return np.kron(K, np.eye(P))


def posterior(A, Y, noise, mean=prior_mean):
    """The exact posterior at A given Y [N, P] at X, of which only what is not NaN was observed: [A P], [A P, A P]."""
    P = Y.shape[1]
    seen = ~np.isnan(Y.ravel())
    residual = (Y - mean(X, P)).ravel()[seen]
    noise = np.broadcast_to(noise, Y.shape).ravel()[seen]
    K = over_outputs(k(X, X), P)[np.ix_(seen, seen)] + np.diag(noise)
    cross = over_outputs(k(X, A), P)[seen]
    gain = np.linalg.solve(K, cross).T
    return mean(A, P).ravel() + gain @ residual, over_outputs(k(A, A), P) - gain @ cross


def sparse(A, q_mu, S, mean=prior_mean):
    """The posterior at A through u = f(Z), with u - m(Z) ~ N(q_mu [M, P], S [P, M, M])."""
    P = q_mu.shape[1]
    joint = np.einsum("pmn,pq->mpnq", S, np.eye(P)).reshape(M * P, M * P)
    cross = over_outputs(k(Z, A), P)
    gain = np.linalg.solve(over_outputs(k(Z, Z), P), cross).T
    return (
        mean(A, P).ravel() + gain @ q_mu.ravel(),
        over_outputs(k(A, A), P) - gain @ cross + gain @ joint @ gain.T,
    )


def slices(mean, cov, P):
    """The mean [A, P] and the four layouts of one dense covariance."""
    full = cov.reshape(len(cov) // P, P, len(cov) // P, P)
    return mean.reshape(-1, P), {
        "diag": np.einsum("npnp->np", full),
        "outputs": np.einsum("npnq->npq", full),
        "inputs": np.einsum("npmp->pnm", full),
        "full": full,
    }


def some_q(P, seed=0, size=M):
    """A mean [M, P] and lower triangular roots [P, M, M]."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(size, P)), np.tril(0.3 * rng.normal(size=(P, size, size))) + 0.5 * np.eye(size)


@eqx.filter_jit
def predictions(process, A):
    """The Gaussian at A in each layout."""
    return {layout: process.predict(A, layout) for layout in LAYOUTS}


def assert_is(process, mean, cov, P, atol=1e-7):
    """The process at X_NEW is the dense Gaussian N(mean, cov), in all layouts."""
    mean, layouts = slices(mean, cov, P)
    for layout, computed in predictions(process, X_NEW).items():
        assert computed.layout == layout
        np.testing.assert_allclose(computed.mean, mean, rtol=0, atol=atol, err_msg=layout)
        np.testing.assert_allclose(computed.cov, layouts[layout], rtol=0, atol=atol, err_msg=layout)
        np.testing.assert_allclose(computed.variance, layouts["diag"], rtol=0, atol=atol, err_msg=layout)
