"""Processes of several outputs against one dense computation on all N P values at once: every kernel with every kind of
inducing variables, in every layout, whitened or not, cached or not."""

import itertools
import sys
from functools import cache
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from mercer.covariances import Kuf, Kuu

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

from multioutput_instances import LATENTS, MULTIOUTPUT, W, some_inputs

from cases import mostly_slow

LAYOUTS = ("diag", "outputs", "inputs", "full")
X, Z = some_inputs(0, 4), some_inputs(1, 5)
N, P = 4, 3
KERNELS = {
    **MULTIOUTPUT,
    "square LMC": mc.kernels.LinearCoregionalisation([*LATENTS, mc.kernels.RBF(0.4)], np.eye(3) + 0.3),
}
KERNELS["OutputIndexed"] = mc.kernels.OutputIndexed(MULTIOUTPUT["LinearCoregionalisation"])
KERNELS["OutputIndexed convolution"] = mc.kernels.OutputIndexed(MULTIOUTPUT["ConvolutionProcess"])


def inner(kernel):
    return kernel.kernel if isinstance(kernel, mc.kernels.OutputIndexed) else kernel


def inducing_variables(kernel):
    points = mc.inducing.Points(Z)
    L = inner(kernel).num_latents
    latent = {
        "Shared": mc.inducing.Shared(points),
        "Separate": mc.inducing.Separate([mc.inducing.Points(Z + 0.3 * i) for i in range(L)]),
    }
    if isinstance(kernel, mc.kernels.OutputIndexed):
        return {**latent, "Points": mc.inducing.Points(long(Z)[::2])}
    return {**latent, "Points": points, "OutputPoints": mc.inducing.OutputPoints(Z, [0, 2, 1, 1, 0])}


def long(X):
    """Every output at every input, one to a row, the output changing fastest."""
    outputs = jnp.tile(jnp.arange(float(P)), len(X))
    return jnp.concatenate([jnp.repeat(X, P, axis=0), outputs[:, None]], axis=1)


PAIRS = [(name, kind) for name, kernel in KERNELS.items() for kind in inducing_variables(kernel)]
SOME = (
    ("SharedIndependent", "Shared"),
    ("SeparateIndependent", "Separate"),
    ("LinearCoregionalisation", "Points"),
    ("IntrinsicCoregionalisation", "OutputPoints"),
    ("ConvolutionProcess", "Shared"),
    ("square LMC", "Shared"),
    ("OutputIndexed convolution", "Separate"),
)
FORMS = ("whitened", "cached", "not whitened")


def process_and_law(name, kind, whiten=True):
    """A sparse posterior with a random q(u), and the mean and a root of the covariance of all of v, u = R v."""
    kernel = KERNELS[name]
    process = mc.Sparse(mc.GP(kernel), inducing_variables(kernel)[kind], whiten=whiten)
    M, L = process.q_mu.shape
    rng = np.random.default_rng(3)
    q_mu, root = rng.normal(size=(M, L)), 0.5 * np.tril(rng.normal(size=(L, M, M))) + np.eye(M)
    return (
        process.with_whitened(jnp.asarray(q_mu), jnp.asarray(root)),
        q_mu.T.ravel(),
        np.asarray(jax.scipy.linalg.block_diag(*root)),
    )


@eqx.filter_jit
def predictions(process, X, layouts):
    return {layout: process.predict(X, layout) for layout in layouts}


@eqx.filter_jit
def matrices(process, X, rows):
    """The kernel of all values, Kuf, and Kuu with a root of it."""
    operator = process.Kuu()
    return inner(process.prior.kernel)(X), process.Kuf(rows), operator.dense(), operator.colour(jnp.eye(operator.size))


@cache
def dense(name, kind):
    """The mean and the covariance of all values, from Kuu, Kuf and the kernel as plain matrices."""
    process, mean, root = process_and_law(name, kind)
    rows = long(X) if isinstance(KERNELS[name], mc.kernels.OutputIndexed) else X
    full, cross, Kuu, R = (np.asarray(matrix) for matrix in matrices(process, X, rows))
    full, cross = full.reshape(N * P, N * P), cross.reshape(len(mean), N * P)
    np.testing.assert_allclose(R @ R.T, Kuu, atol=1e-8)
    C = np.linalg.solve(R, cross)
    return C.T @ mean, full - C.T @ C + C.T @ root @ root.T @ C


def slices(covariance, layout):
    full = covariance.reshape(N, P, N, P)
    rules = {"diag": "npnp->np", "outputs": "npnq->npq", "inputs": "npmp->pnm", "full": "npmq->npmq"}
    return np.einsum(rules[layout], full)


@pytest.mark.parametrize(
    ("name", "kind", "form"),
    mostly_slow(
        [(*pair, form) for pair in PAIRS for form in FORMS],
        *((*pair, FORMS[i % 3]) for i, pair in enumerate(SOME)),  # each of these pairs in one of the forms
    ),
)
def test_sparse_is_one_dense_gaussian(name, kind, form):
    mean, covariance = dense(name, kind)
    process = process_and_law(name, kind, whiten=form != "not whitened")[0]
    process = process.cached() if form == "cached" else process
    if isinstance(KERNELS[name], mc.kernels.OutputIndexed):
        each, result = predictions(process, long(X), ("diag", "inputs")).values()
        np.testing.assert_allclose(result.mean.ravel(), mean, atol=1e-8)
        np.testing.assert_allclose(result.cov[0], covariance, atol=1e-8)
        np.testing.assert_allclose(each.cov.ravel(), np.diag(covariance), atol=1e-8)
        return
    for layout, result in predictions(process, X, LAYOUTS).items():
        np.testing.assert_allclose(result.mean, mean.reshape(N, P), atol=1e-8)
        np.testing.assert_allclose(result.cov, slices(covariance, layout), atol=1e-8)


@eqx.filter_jit
def kl(process):
    return process.kl()


@pytest.mark.parametrize(
    ("name", "kind"),
    mostly_slow(
        PAIRS,
        ("SeparateIndependent", "Separate"),
        ("LinearCoregionalisation", "Points"),
        ("OutputIndexed convolution", "Separate"),
    ),
)
def test_kl_is_that_of_dense_gaussians(name, kind):
    process, mean, root = process_and_law(name, kind)
    S = root @ root.T
    expected = 0.5 * (np.trace(S) + mean @ mean - len(mean) - np.linalg.slogdet(S)[1])
    np.testing.assert_allclose(kl(process), expected, rtol=1e-9)
    np.testing.assert_allclose(kl(process_and_law(name, kind, whiten=False)[0]), expected, rtol=1e-5)


@eqx.filter_jit
def all_layouts(kernel, X, Z):
    """The kernel in every layout, by itself and as a process; its diagonal; with a column of outputs; with other inputs."""
    own = {layout: (kernel(X, covariance=layout), mc.GP(kernel).predict(X, layout).cov) for layout in LAYOUTS}
    indexed, cross = mc.kernels.OutputIndexed(kernel), (kernel(X, Z), kernel(X, Z, covariance="inputs"))
    return kernel(X), own, kernel.diag(X), indexed(long(X)), indexed.diag(long(X)), cross


@pytest.mark.parametrize("name", MULTIOUTPUT)
def test_layouts_of_a_kernel_are_slices_of_one_object(name):
    full, own, diagonal, indexed, indexed_diagonal, (cross, by_output) = all_layouts(MULTIOUTPUT[name], X, Z)
    full = np.asarray(full).reshape(N * P, N * P)
    for layout, found in own.items():
        for covariance in found:
            np.testing.assert_allclose(covariance, slices(full, layout), atol=1e-12)
    np.testing.assert_allclose(diagonal, slices(full, "diag"), atol=1e-12)
    assert np.linalg.eigvalsh(full).min() > -1e-10
    np.testing.assert_allclose(indexed, full, atol=1e-12)
    np.testing.assert_allclose(indexed_diagonal, np.diag(full), atol=1e-12)
    np.testing.assert_allclose(by_output, np.einsum("npmp->pnm", cross), atol=1e-12)


@pytest.mark.parametrize("name", MULTIOUTPUT)
def test_variables_of_latent_functions_and_of_outputs_have_one_law(name):
    """The joint covariance of u and f(X) is that of a larger process of the same kind, which has g among its outputs."""
    kernel = MULTIOUTPUT[name]
    L = kernel.num_latents
    identity = np.eye(L)
    if name == "ConvolutionProcess":
        narrow = jnp.full((L, L), 1e-9)
        larger = mc.kernels.ConvolutionProcess(
            kernel.kernels,
            np.concatenate([identity, kernel.W]),
            np.concatenate([narrow, kernel.widths]),
            np.concatenate([np.zeros((L, L, 2)), kernel.delays]),
        )
    else:
        mixed = np.concatenate([identity, kernel.W]) if hasattr(kernel, "W") else np.concatenate([identity, identity])
        parts = kernel.latent.parts * (L // len(kernel.latent.parts))
        larger = mc.kernels.LinearCoregionalisation(parts, mixed)
    shared = mc.inducing.Shared(mc.inducing.Points(Z))

    @eqx.filter_jit
    def both(larger, kernel):
        return (larger(Z, X), larger(Z)), (Kuf(shared, kernel, X), Kuu(shared, kernel).dense())

    (joint, own), (cross, covariance) = both(larger, kernel)
    np.testing.assert_allclose(cross, np.moveaxis(joint[:, :L, :, L:], 1, 0), atol=1e-9)
    own = np.moveaxis(own[:, :L, :, :L], (1, 3), (0, 2)).reshape(L * len(Z), L * len(Z))
    np.testing.assert_allclose(covariance, own, atol=1e-9)


def test_intrinsic_is_linear_coregionalisation_with_equal_kernels():
    intrinsic = mc.kernels.IntrinsicCoregionalisation(LATENTS[0], W)
    linear = mc.kernels.LinearCoregionalisation([LATENTS[0]] * 2, W)
    np.testing.assert_allclose(intrinsic(X, Z), linear(X, Z), atol=1e-12)


def test_coregionalisation_by_the_identity_is_independence():
    kernels = [*LATENTS, mc.kernels.RBF(0.4)]
    linear = mc.kernels.LinearCoregionalisation(kernels, np.eye(3))
    np.testing.assert_allclose(linear(X, Z), mc.kernels.SeparateIndependent(kernels)(X, Z), atol=1e-12)
    intrinsic = mc.kernels.IntrinsicCoregionalisation(kernels[0], np.eye(3))
    np.testing.assert_allclose(intrinsic(X, Z), mc.kernels.SharedIndependent(kernels[0], 3)(X, Z), atol=1e-12)


def test_shared_and_own_functions_add_up():
    kernel = MULTIOUTPUT["SharedAndOwn"]
    shared = mc.kernels.LinearCoregionalisation(kernel.kernels[:1], kernel.shared)
    alone = mc.kernels.SeparateIndependent(
        [mc.kernels.Scaled(k, float(w) ** 2) for k, w in zip(kernel.kernels[1:], kernel.own, strict=True)]
    )
    np.testing.assert_allclose(kernel(X, Z), shared(X, Z) + alone(X, Z), atol=1e-12)
    start = mc.kernels.SharedAndOwn.of(LATENTS[0], 3, 2, key=jax.random.key(0))
    assert start.shared.shape == (3, 2) and start.num_latents == 5 and start.num_outputs == 3


def test_a_delayed_copy_is_a_convolution_process():
    """f_2(x) = f_1(x - d): all of their covariances agree after the shift."""
    kernel = mc.kernels.ConvolutionProcess([mc.kernels.RBF(0.5)], np.ones((2, 1)), 0.3, [[0.0], [0.8]])
    x = jnp.linspace(-1.0, 1.0, 5)[:, None]
    later, now = np.asarray(kernel(x, x - 0.8)), np.asarray(kernel(x, x))
    np.testing.assert_allclose(later[:, 1, :, 0], now[:, 0, :, 0], atol=1e-12)
    variance = kernel.diag(x)
    np.testing.assert_allclose(np.diagonal(later[:, 1, :, 0]), variance[:, 0], atol=1e-12)  # correlation 1


def test_convolution_process_is_its_integral():
    widths, delays = [[0.3], [0.6]], [[0.2], [-0.5]]
    weights = np.array([[1.2], [-0.7]])
    latent = mc.kernels.RBF(0.5, 0.9)
    kernel = mc.kernels.ConvolutionProcess([latent], weights, widths, delays)
    nodes, masses = np.polynomial.hermite_e.hermegauss(60)
    masses = masses / masses.sum()
    x, x2 = jnp.array([[0.1], [0.9]]), jnp.array([[-0.4], [0.3], [1.5]])
    for p, q in itertools.product(range(2), range(2)):
        left = (np.asarray(x) - delays[p][0] - widths[p][0] * nodes).ravel()[:, None]
        right = (np.asarray(x2) - delays[q][0] - widths[q][0] * nodes).ravel()[:, None]
        values = np.asarray(latent(left, right)).reshape(2, 60, 3, 60)
        expected = weights[p] * weights[q] * np.einsum("nimj,i,j->nm", values, masses, masses)
        np.testing.assert_allclose(kernel(x, x2)[:, p, :, q], expected, atol=1e-9)


@pytest.mark.parametrize("name", mostly_slow(MULTIOUTPUT, "ConvolutionProcess"))
def test_draws_of_functions_have_the_covariance_of_the_process(name):
    """Monte Carlo over 3,000 draws: a tolerance of five standard errors."""
    kernel = MULTIOUTPUT[name]
    draw = jax.jit(jax.vmap(lambda key: kernel.draw(64, key=key)(X[:2])))
    flat = np.asarray(draw(jax.random.split(jax.random.key(0), 3000))).reshape(3000, -1)
    expected = np.asarray(kernel(X[:2])).reshape(6, 6)
    np.testing.assert_allclose(flat.T @ flat / 3000, expected, atol=5 * 2 * expected.max() / np.sqrt(3000))


@eqx.filter_jit
def draws(process, X):
    keys = jax.random.split(jax.random.key(1), 3000)
    return jax.vmap(lambda key: process.sample_function(64, key=key)(X))(keys)


@pytest.mark.parametrize(
    ("name", "kind"),
    mostly_slow(
        [pair for pair in PAIRS if pair[0] != "square LMC"],
        ("ConvolutionProcess", "Shared"),
        ("IntrinsicCoregionalisation", "OutputPoints"),
    ),
)
def test_functions_drawn_from_a_sparse_posterior_follow_its_law(name, kind):
    mean, covariance = dense(name, kind)
    process = process_and_law(name, kind)[0]
    rows = long(X) if isinstance(KERNELS[name], mc.kernels.OutputIndexed) else X
    flat = np.asarray(draws(process, rows)).reshape(3000, -1)
    scale = np.diag(covariance).max()
    np.testing.assert_allclose(flat.mean(0), mean, atol=5 * np.sqrt(scale / 3000))
    np.testing.assert_allclose(np.cov(flat.T), covariance, atol=5 * 2 * scale / np.sqrt(3000))


def test_joint_samples_of_coregionalised_outputs_are_correlated():
    kernel = MULTIOUTPUT["LinearCoregionalisation"]
    draws = np.asarray(mc.GP(kernel).sample(X[:2], 4000, key=jax.random.key(0))).reshape(4000, -1)
    np.testing.assert_allclose(draws.T @ draws / 4000, np.asarray(kernel(X[:2])).reshape(6, 6), atol=0.15)


def test_latent_functions_are_a_process():
    process, *_ = process_and_law("LinearCoregionalisation", "Shared")
    latent, outputs = process.latents().predict(X, "full"), process.predict(X, "full")
    assert latent.mean.shape == (N, 2)
    np.testing.assert_allclose(latent.mean @ W.T, outputs.mean, atol=1e-10)
    np.testing.assert_allclose(np.einsum("pl,nlmk,qk->npmq", W, latent.cov, W), outputs.cov, atol=1e-10)
    prior = mc.GP(MULTIOUTPUT["LinearCoregionalisation"]).latents().predict(X, "inputs")
    np.testing.assert_allclose(prior.cov, [np.asarray(k(X)) for k in LATENTS], atol=1e-12)


def test_one_output_with_several_copies_is_shared_independence():
    kernel = LATENTS[0]
    single = mc.Sparse(mc.GP(kernel), mc.inducing.Points(Z), num_outputs=3)
    shared = mc.Sparse(mc.GP(mc.kernels.SharedIndependent(kernel, 3)), mc.inducing.Shared(mc.inducing.Points(Z)))
    where = lambda q: (q.q_mu, q.q_sqrt)  # noqa: E731
    single = eqx.tree_at(where, single, (single.q_mu + 0.3, 0.5 * single.q_sqrt))
    shared = eqx.tree_at(where, shared, where(single))
    for layout in LAYOUTS:
        np.testing.assert_allclose(single.predict(X, layout).cov, shared.predict(X, layout).cov, atol=1e-12)


TRAINED = [
    ("LinearCoregionalisation", "Separate"),
    ("ConvolutionProcess", "Shared"),
    ("SeparateIndependent", "Points"),
]


@pytest.mark.parametrize(
    ("layout", "name", "kind"),
    mostly_slow(
        [(layout, *case) for layout in LAYOUTS for case in TRAINED],
        ("outputs", *TRAINED[1]),
        ("full", *TRAINED[0]),
    ),
)
def test_gradients_reach_every_parameter(layout, name, kind):
    """Of each parameter of the kernel, the variables and q: finite, and not all zero."""

    @eqx.filter_jit
    @eqx.filter_grad
    def gradient(process):
        result = process._predict(X, layout)
        return jnp.sum(jnp.sin(result.mean)) + jnp.sum(jnp.cos(result.cov))

    gradients = jax.tree.leaves(gradient(process_and_law(name, kind)[0]))
    assert all(bool(jnp.isfinite(g).all()) and bool(jnp.any(g != 0.0)) for g in gradients)


KERNEL = MULTIOUTPUT["LinearCoregionalisation"]
POINTS = mc.inducing.Points(Z)
ERRORS = {
    "num_outputs": (lambda: mc.Sparse(mc.GP(KERNEL), POINTS, 2), "num_outputs is 2, but LinearCoregionalisation has 3"),
    "W, columns": (
        lambda: mc.kernels.LinearCoregionalisation(LATENTS, np.ones((3, 4))),
        r"W expects the shape \(P, 2\)",
    ),
    "W, vector": (
        lambda: mc.kernels.IntrinsicCoregionalisation(LATENTS[0], np.ones(3)),
        r"W expects the shape \(P, L\)",
    ),
    "own, length": (
        lambda: mc.kernels.SharedAndOwn([*LATENTS, *LATENTS], W, np.ones(2)),
        r"shared and own expect the shapes \(P, R\) and \(P,\), got \(3, 2\) and \(2,\)",
    ),
    "own, kernels": (
        lambda: mc.kernels.SharedAndOwn([*LATENTS, *LATENTS], W, np.ones(3)),
        r"W expects the shape \(P, R \+ P\) with P = 3 and 4 kernels, got \(3, 5\)",
    ),
    "own, none shared": (
        lambda: mc.kernels.SharedAndOwn.of(LATENTS[0], 3, 0, key=jax.random.key(0)),
        "SharedAndOwn.of expects at least 1 of each, got 3 and 0",
    ),
    "kernels": (lambda: mc.kernels.SeparateIndependent([]), "at least one"),
    "kernel of outputs": (lambda: mc.kernels.SharedIndependent(KERNEL, 2), "kernels of one output"),
    "no copies": (lambda: mc.kernels.SharedIndependent(LATENTS[0], 0), "num_outputs must be at least 1"),
    "latents": (lambda: mc.kernels.ConvolutionProcess([mc.kernels.Matern32()], np.ones((2, 1))), "RBF kernels"),
    "widths": (lambda: mc.kernels.ConvolutionProcess(LATENTS[:1], np.ones((2, 1)), np.ones(3)), "widths expects"),
    "delays": (
        lambda: mc.kernels.ConvolutionProcess(LATENTS[:1], np.ones((2, 1)), 1.0, np.ones((2, 1)))(X),
        r"delays expects the shape \(2, 1, 2\)",
    ),
    "layout": (lambda: KERNEL(X, Z, covariance="diag"), "leave out X2"),
    "output number": (lambda: mc.kernels.OutputIndexed(KERNEL)(3.0 + 0.0 * X), "0 to 2, got 3"),
    "fraction": (lambda: mc.kernels.OutputIndexed(KERNEL)(0.5 + 0.0 * X), "number of an output"),
    "one column": (lambda: mc.kernels.OutputIndexed(KERNEL)(X[:, :1]), "one of outputs"),
    "indexed kernel": (lambda: mc.kernels.OutputIndexed(LATENTS[0]), "expects a multioutput kernel"),
    "unequal numbers": (lambda: mc.inducing.Separate([POINTS, mc.inducing.Points(Z[:2])]), "as many variables"),
    "too few parts": (lambda: mc.Sparse(mc.GP(KERNEL), mc.inducing.Separate([POINTS])), "each of 2 latent functions"),
    "nested": (lambda: mc.inducing.Shared(mc.inducing.Shared(POINTS)), "of one function"),
    "outputs": (lambda: mc.inducing.OutputPoints(Z, [0, 1]), "each of 5 points, got 2"),
    "output of points": (
        lambda: mc.Sparse(mc.GP(KERNEL), mc.inducing.OutputPoints(Z, [0, 1, 2, 3, 0])),
        "from 0 to 2, got 3",
    ),
    "no pair": (
        lambda: mc.Sparse(mc.GP(LATENTS[0]), mc.inducing.Shared(POINTS)),
        r"Kuu is not defined for Shared with RBF; the pairs that exist are .*\(Points, MultioutputKernel\)",
    ),
    "latents of points": (lambda: mc.Sparse(mc.GP(KERNEL), POINTS).latents(), "needs inducing variables of the latent"),
    "latents of a kernel": (lambda: mc.GP(LATENTS[0]).latents(), "is not made of latent functions"),
    "q_mu": (
        lambda: mc.Sparse(mc.GP(KERNEL), mc.inducing.Shared(POINTS), q_mu=np.ones((5, 3))),
        r"expects shape \(5, 2\)",
    ),
    "columns of Y": (
        lambda: mc.elbo(mc.Model(mc.Sparse(mc.GP(KERNEL), POINTS), mc.likelihoods.Gaussian()), X, np.ones((4, 2))),
        "needs 2 latent functions, the posterior has 3",
    ),
    "columns of Y, exact": (lambda: mc.Conditioned(mc.GP(KERNEL), X, np.ones((4, 2))), "Y expects 3 columns"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case):
    call, message = ERRORS[case]
    with pytest.raises(ValueError, match=message):
        call()
