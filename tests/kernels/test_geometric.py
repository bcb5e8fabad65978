"""Kernels of spaces: functions of the Laplacian on a graph, and what geometric-kernels says of meshes, rotations and the rest.

What needs no more than the eigenpairs of a graph runs without the package geometric-kernels.
"""

import importlib.util
import logging
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg
import scipy.sparse

import mercer as mc
from mercer import io
from mercer.kernels import RBF, Geometric, geometric_package, spaces

N, KEY = 8, jax.random.key(2)
RANDOM = np.random.default_rng(0)
# A ring with two chords; all weights differ, so that no eigenvalue is repeated.
WEIGHTS = np.zeros((N, N))
for i, j in [*zip(range(N), [*range(1, N), 0], strict=True), (0, 4), (2, 7)]:
    WEIGHTS[i, j] = WEIGHTS[j, i] = RANDOM.uniform(0.5, 2.0)
LAPLACIAN = np.diag(WEIGHTS.sum(0)) - WEIGHTS
VALUES, VECTORS = np.linalg.eigh(LAPLACIAN)
GRAPH = spaces.Nodes(np.clip(VALUES, 0.0, None), np.sqrt(N) * VECTORS, 0)
NODES = np.arange(float(N))[:, None]
KERNELS = {"Matern": Geometric(GRAPH, 0.7, 1.3, 1.8), "heat": Geometric(GRAPH, 0.9, 0.6, np.inf)}


def of_laplacian(kernel):
    """The kernel as a function of the matrix, with the mean of the variances that it is to have."""
    l = float(kernel.lengthscale)
    if kernel.nu is None:
        K = scipy.linalg.expm(-0.5 * l**2 * LAPLACIAN)
    else:
        nu = float(kernel.nu)
        K = scipy.linalg.expm(-nu * scipy.linalg.logm(2.0 * nu / l**2 * np.eye(N) + LAPLACIAN))
    return float(kernel.variance) * K * N / np.trace(K)


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param]


def test_on_a_graph_the_kernel_is_a_function_of_the_laplacian(kernel):
    expected = of_laplacian(kernel)
    rows = np.array([[3.0], [0.0], [3.0]])
    np.testing.assert_allclose(kernel(NODES), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(kernel(NODES, rows), expected[:, [3, 0, 3]], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(kernel.diag(NODES), np.diag(expected), rtol=1e-10)
    np.testing.assert_allclose(eqx.filter_jit(kernel)(jnp.asarray(NODES)), expected, rtol=1e-10, atol=1e-12)
    single = kernel(NODES.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, atol=1e-5)


def test_eigenvalues_are_those_of_the_matrix_over_all_nodes(kernel):
    eigenvalues = np.linalg.eigvalsh(kernel(NODES)) / N  # for the mean over the nodes
    np.testing.assert_allclose(np.sort(kernel.eigenvalues()), eigenvalues, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(kernel.eigenvalues().sum(), kernel.variance)
    np.testing.assert_array_equal(kernel.space.multiplicities, np.ones(N))


def test_spectra_beyond_the_range_of_floating_point_numbers():
    for lengthscale in (1e-4, 1e4):
        kernel = Geometric(GRAPH, lengthscale, nu=40.0)  # S(0) is about 1e-396 and 1e244
        gradient = jax.grad(lambda k: k(NODES)[0, 1])(eqx.filter(kernel, eqx.is_inexact_array))
        assert np.isfinite(kernel(NODES)).all() and np.isfinite(gradient.lengthscale)


def test_gradients_in_the_parameters_are_those_of_finite_differences(kernel):
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(N, N)))

    def total(log):
        changed = Geometric(kernel.space, *jnp.exp(log[:2]), None if kernel.nu is None else jnp.exp(log[2]))
        return jnp.vdot(weights, changed(NODES))

    at, h = jnp.log(jnp.asarray([0.7, 1.3, 1.8])), 1e-5
    gradient = jax.jit(jax.grad(total))(at)
    expected = [(total(at + h * e) - total(at - h * e)) / (2.0 * h) for e in np.eye(3)]
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7)


def test_draws_have_the_kernel_as_covariance(kernel):
    """Five standard errors: of a product of two normal variables the variance is k(x, x) k(y, y) + k(x, y)^2."""
    S, K = 20_000, np.asarray(kernel(NODES))
    values = np.asarray(kernel.draw(10, S, key=KEY)(NODES))
    error = np.sqrt((np.outer(K.diagonal(), K.diagonal()) + K**2) / S)
    assert (np.abs(values @ values.T / S - K) <= 5.0 * error).all()
    assert (np.abs(values.mean(1)) <= 5.0 * np.sqrt(K.diagonal() / S)).all()


def test_features_have_the_kernel_as_expectation():
    kernel = KERNELS["Matern"]
    num = 20_000
    for made, K in ((kernel, kernel(NODES)), (kernel * RBF(2.0), kernel(NODES) * RBF(2.0)(NODES))):
        phi = np.asarray(made.features(num, key=KEY)(NODES))
        products = num * phi[:, None] * phi[None]
        assert (np.abs(products.mean(-1) - K) <= 5.0 * products.std(-1) / num**0.5 + 1e-9).all()


def test_points_do_not_move_and_have_no_slopes():
    kernel = KERNELS["Matern"]
    gradient = jax.grad(lambda X: kernel(X).sum())(jnp.asarray(NODES))
    np.testing.assert_array_equal(gradient, 0.0)
    with pytest.raises(ValueError, match="Geometric has no derivative in the mean-square sense along column 0"):
        mc.covariances.Kuu(mc.inducing.Derivative(NODES, 0), kernel)


X = NODES[[0, 1, 1, 3, 5, 6]]
Y = np.random.default_rng(3).normal(size=(6, 1))
NOISE = 0.2


def sparse(kernel):
    return mc.Model(mc.Sparse(mc.GP(kernel), mc.inducing.Points(NODES)), mc.likelihoods.Gaussian(NOISE))


def test_points_at_all_nodes_are_exact():
    kernel = KERNELS["Matern"]
    exact, collapsed, model = mc.Conditioned(mc.GP(kernel), X, Y, NOISE), mc.objectives.CollapsedELBO(), sparse(kernel)
    np.testing.assert_allclose(collapsed.bound(model, X, Y), exact.log_marginal_likelihood(), rtol=1e-5)
    posterior = collapsed.posterior(model, X, Y)
    for a, b in zip(posterior.predict(NODES, "inputs"), exact.predict(NODES, "inputs"), strict=True):
        if not isinstance(a, str):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_fit_draw_save_and_load(tmp_path):
    kernel = KERNELS["Matern"]
    fit = mc.fit(sparse(kernel), mc.objectives.ELBO(), (X, Y), optimiser=optax.adam(0.05), steps=20, key=KEY)
    assert fit.history[-1] < fit.history[0]
    posterior = fit.model.posterior
    np.testing.assert_array_equal(posterior.inducing.Z, NODES)
    np.testing.assert_array_equal(posterior.prior.kernel.space.eigenfunctions, GRAPH.eigenfunctions)
    assert posterior.prior.kernel.lengthscale != kernel.lengthscale and posterior.prior.kernel.nu != kernel.nu

    draw = posterior.sample_function(key=KEY)
    mc.save(tmp_path / "file", (fit.model, draw))
    loaded, loaded_draw = mc.load(tmp_path / "file")
    np.testing.assert_array_equal(loaded.predict(NODES).mean, fit.model.predict(NODES).mean)
    np.testing.assert_array_equal(loaded_draw(NODES), draw(NODES))


def test_draws_of_a_posterior_have_its_mean_and_covariance():
    posterior = mc.objectives.CollapsedELBO().posterior(sparse(KERNELS["Matern"]), X, Y)
    S = 4000
    draw = jax.jit(jax.vmap(lambda key: posterior.sample_function(key=key)(jnp.asarray(NODES))[:, 0]))
    values, expected = np.asarray(draw(jax.random.split(KEY, S))), posterior.predict(NODES, "inputs")
    K = np.asarray(expected.cov[0])
    deviation = values - np.asarray(expected.mean[:, 0])
    error = np.sqrt((np.outer(K.diagonal(), K.diagonal()) + K**2) / S)
    assert (np.abs(deviation.mean(0)) <= 5.0 * np.sqrt(K.diagonal() / S)).all()
    assert (np.abs(deviation.T @ deviation / S - K) <= 5.0 * error + 1e-6).all()


def test_what_is_no_node_is_refused_and_in_compiled_code_not_a_number():
    kernel = KERNELS["Matern"]
    message = "X expects the numbers of nodes, whole numbers from 0 to 7; row 1 is"
    for wrong in (8.0, -1.0, 0.5):
        rows = np.array([[0.0], [wrong]])
        for call in (
            kernel,
            kernel.diag,
            lambda X: kernel(NODES, X),
            kernel.features(3, key=KEY),
            kernel.draw(3, key=KEY),
        ):
            with pytest.raises(ValueError, match=message):
                call(rows)
        np.testing.assert_array_equal(
            np.isnan(eqx.filter_jit(lambda k, X: k.diag(X))(kernel, jnp.asarray(rows))), [False, True]
        )
    with pytest.raises(ValueError, match="X expects 1 columns: the numbers of nodes"):
        kernel(np.zeros((2, 3)))


CONSTRUCTIONS = {
    "Geometric: lengthscale expects positive, finite values": lambda: Geometric(GRAPH, -1.0),
    "Geometric: nu expects positive, finite values": lambda: Geometric(GRAPH, nu=0.0),
    "Geometric: nu expects positive, finite values, got -inf": lambda: Geometric(GRAPH, nu=-np.inf),
    "Geometric: lengthscale expects a number, got shape": lambda: Geometric(GRAPH, [1.0, 2.0]),
    "Geometric: space expects a space of mercer, got str": lambda: Geometric("graph"),
    "Nodes: laplacian and eigenfunctions expect shapes": lambda: spaces.Nodes(VALUES[:3], VECTORS, 0),
    "Nodes: laplacian expects eigenvalues that are not negative": lambda: spaces.Nodes(-VALUES, VECTORS, 0),
    "SpecialOrthogonal expects a size of 3 or more": lambda: Geometric.rotations(2),
    "Hyperbolic expects a size of 2 or more": lambda: Geometric.hyperbolic(1),
    "adjacency expects a square matrix, got shape": lambda: Geometric.graph(WEIGHTS[:3]),
    "adjacency expects a symmetric matrix": lambda: Geometric.graph(np.triu(WEIGHTS)),
    "adjacency expects finite weights that are not negative": lambda: Geometric.graph(-WEIGHTS),
    "vertices expects finite numbers": lambda: Geometric.mesh(np.zeros((4, 2)), np.zeros((1, 3), int)),
    "faces expects whole numbers": lambda: Geometric.mesh(np.zeros((4, 3)), np.zeros((1, 3))),
    "faces expects numbers of vertices, from 0 to 3": lambda: Geometric.mesh(np.zeros((4, 3)), np.full((1, 3), 4)),
}


@pytest.mark.parametrize("message", CONSTRUCTIONS)
def test_constructions(message):
    with pytest.raises(ValueError, match=f"^{message}"):
        CONSTRUCTIONS[message]()


POINTS = {
    "the entries of rotation matrices": (Geometric.rotations(3), np.diag([1.0, 1.0, -1.0]).reshape(1, 9)),
    "points of the hyperboloid": (Geometric.hyperbolic(2), np.array([[1.0, 0.1, 0.0]])),
    "unit vectors of 3 entries": (Geometric(spaces.CompactSpace("Hypersphere", 2, 5)), np.ones((1, 3))),
    "the entries of positive definite matrices": (
        Geometric(spaces.SymmetricSpace("SymmetricPositiveDefiniteMatrices", 2, 10, KEY)),
        np.array([[1.0, 2.0, 2.0, 1.0]]),
    ),
}


@pytest.mark.parametrize("expected", POINTS)
def test_what_is_no_point_is_refused(expected):
    kernel, X = POINTS[expected]
    with pytest.raises(ValueError, match=f"X expects {expected}.*row 0 is"):
        kernel(X)
    with pytest.raises(ValueError, match=f"X expects {X.shape[1]} columns: {expected}"):
        kernel(np.ones((1, 2)))


def test_without_the_package_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "geometric_kernels.jax", None)  # as if it were not there
    with pytest.raises(ImportError, match=r"pip install 'mercer\[geometric\]'"):
        geometric_package.package.__wrapped__()


# From here on with the package.


@pytest.fixture(scope="module")
def gk():
    if importlib.util.find_spec("geometric_kernels") is None:
        pytest.skip("geometric-kernels is not installed")
    return geometric_package.package()


def theirs(kernel, gk_kernel, X, X2=None):
    """What geometric-kernels says, with NumPy."""
    nu = np.inf if kernel.nu is None else float(kernel.nu)
    parameters = {"lengthscale": np.array([float(kernel.lengthscale)]), "nu": np.array([nu])}
    return float(kernel.variance) * gk_kernel.K(parameters, X, X2)


def icosphere():
    """The corners of an icosahedron and the middles of its edges, on the unit sphere: 42 vertices and 80 faces."""
    g = (1.0 + 5.0**0.5) / 2.0
    corners = np.array([[0.0, a, b * g] for a in (-1, 1) for b in (-1, 1)])
    vertices = np.concatenate([np.roll(corners, k, axis=1) for k in range(3)])
    distances = np.linalg.norm(vertices[:, None] - vertices, axis=-1)
    near = np.isclose(distances, 2.0)
    faces = [
        (i, j, k) for i in range(12) for j in range(i) for k in range(j) if near[i, j] and near[j, k] and near[i, k]
    ]
    points, index, split = list(vertices), {}, []
    for a, b, c in faces:
        middles = []
        for pair in ((a, b), (b, c), (a, c)):
            if pair not in index:
                index[pair] = len(points)
                points.append(vertices[list(pair)].sum(0))
            middles.append(index[pair])
        ab, bc, ac = middles
        split += [(a, ab, ac), (b, ab, bc), (c, bc, ac), (ab, bc, ac)]
    points = np.stack(points)
    return points / np.linalg.norm(points, axis=1, keepdims=True), np.array(split)


@pytest.mark.parametrize("nu", [1.5, np.inf])
@pytest.mark.parametrize("num", [None, 5])
def test_graph_is_theirs(gk, nu, num):
    for normalised in (False, True):
        kernel = Geometric.graph(WEIGHTS, 0.8, 1.2, nu, normalised=normalised, num=num)
        expected = gk.kernels.MaternGeometricKernel(gk.spaces.Graph(WEIGHTS, normalised), num)
        K = theirs(kernel, expected, NODES.astype(int))
        np.testing.assert_allclose(kernel(NODES), K, rtol=1e-9, atol=1e-12)
    if num is None:
        np.testing.assert_allclose(
            Geometric.graph(WEIGHTS, 0.9, 0.6, np.inf)(NODES), KERNELS["heat"](NODES), atol=1e-10
        )
        sparse = Geometric.graph(scipy.sparse.csr_array(WEIGHTS), 0.8, 1.2, nu, normalised=True)
        np.testing.assert_allclose(sparse(NODES), K, rtol=1e-7, atol=1e-9)


def test_mesh_is_theirs_and_nearly_a_sphere(gk, tmp_path):
    vertices, faces = icosphere()
    X = np.arange(42.0)[:, None]
    kernel = Geometric.mesh(vertices, faces, 0.6, 1.4, 2.5)
    space = gk.spaces.Mesh(vertices, faces)
    expected = theirs(kernel, gk.kernels.MaternGeometricKernel(space), X.astype(int))
    np.testing.assert_allclose(kernel(X), expected, rtol=1e-8, atol=1e-10)
    assert np.linalg.eigvalsh(kernel(X))[0] > -1e-10
    # The Laplacian of the sphere has the eigenvalues 0, then 2 three times, then 6 five times.
    np.testing.assert_allclose(kernel.space.laplacian[:9], [0.0, *[2.0] * 3, *[6.0] * 5], rtol=0.15, atol=1e-6)
    io.save(tmp_path / "mesh", kernel)
    np.testing.assert_array_equal(io.load(tmp_path / "mesh")(X), kernel(X))
    np.testing.assert_allclose(Geometric.of(space, 0.6, 1.4, 2.5)(X), kernel(X), rtol=1e-8)


def rotations(num, n=3):
    R = np.linalg.qr(np.random.default_rng(4).normal(size=(num, n, n)))[0]
    R[:, :, 0] *= np.linalg.det(R)[:, None]
    return R


def test_rotations_are_theirs(gk, tmp_path):
    R = rotations(6)
    X = R.reshape(6, 9)
    kernel = Geometric.rotations(3, 0.7, 1.3, 2.5, levels=8)
    expected = theirs(kernel, gk.kernels.MaternGeometricKernel(gk.spaces.SpecialOrthogonal(3), 8), R)
    compute = eqx.filter_jit(lambda k, X: (k(X), k(X, X[:2]), k.diag(X)))
    K, cross, diagonal = compute(kernel, jnp.asarray(X))
    np.testing.assert_allclose(K, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(cross, expected[:, :2], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(diagonal, np.diag(expected), rtol=1e-10)
    assert np.linalg.eigvalsh(K)[0] > 0.0
    # Level l is a representation of 2 l + 1 dimensions.
    np.testing.assert_array_equal(kernel.space.multiplicities, (2 * np.arange(8) + 1) ** 2)
    np.testing.assert_allclose(kernel.eigenvalues() @ kernel.space.multiplicities, 1.3)

    io.save(tmp_path / "rotations", kernel)
    np.testing.assert_allclose(compute(io.load(tmp_path / "rotations"), jnp.asarray(X))[0], K)

    # In blocks of rows, and its derivatives.
    def value(lengthscale):
        return Geometric.rotations(3, lengthscale, 1.3, 2.5, levels=8)(X).sum()

    at, h = jnp.asarray(0.7), 1e-5
    slope = (value(at + h) - value(at - h)) / (2.0 * h)
    before, spaces._MOST_VALUES = spaces._MOST_VALUES, 100
    try:
        in_blocks, gradient = jax.jit(jax.value_and_grad(value))(at)
    finally:
        spaces._MOST_VALUES = before
    np.testing.assert_allclose(in_blocks, K.sum(), rtol=1e-10)
    np.testing.assert_allclose(gradient, slope, rtol=1e-6)


def test_features_of_rotations(gk):
    X, num = jnp.asarray(rotations(3).reshape(3, 9)), 5000
    kernel = Geometric.rotations(3, 1.0, 1.3, 2.5, levels=4)
    phi, K = eqx.filter_jit(lambda k, X: (k.features(num, key=KEY)(X), k(X)))(kernel, X)
    products = num * np.asarray(phi)[:, None] * np.asarray(phi)[None]
    assert (np.abs(products.mean(-1) - K) <= 5.0 * products.std(-1) / num**0.5).all()
    assert mc.GP(kernel).sample_function(20, key=KEY)(X).shape == (3, 1)


def hyperboloid(num, n):
    x = np.random.default_rng(5).normal(size=(num, n))
    return np.concatenate([np.sqrt(1.0 + (x**2).sum(1, keepdims=True)), x], axis=1)


def test_hyperbolic_space_is_theirs(gk, tmp_path):
    X, num = hyperboloid(5, 2), 1000
    kernel, compute = Geometric.hyperbolic(2, 0.8, 1.3, 1.5, num=num, key=KEY), eqx.filter_jit(lambda k, X: k(X))
    K = compute(kernel, jnp.asarray(X))
    # The same frequencies and phases, by their own kernel of random phases.
    space = gk.spaces.Hyperbolic(2)
    phases = gk.feature_maps.RandomPhaseFeatureMapNoncompact(space, num)
    same = gk.kernels.MaternFeatureMapKernel(space, phases, spaces.raw_key(KEY))
    parameters = {"lengthscale": jnp.asarray([0.8]), "nu": jnp.asarray([1.5])}
    np.testing.assert_allclose(K, 1.3 * same.K(parameters, jnp.asarray(X)), rtol=1e-9)
    # Others, drawn by rejection: an entry has an error of at most about 1 / sqrt(num) in both; four of the difference's.
    other = gk.kernels.MaternGeometricKernel(space, num, key=np.random.RandomState(0))
    np.testing.assert_allclose(K, theirs(kernel, other, X), atol=1.3 * 4.0 * (2.0 / num) ** 0.5)
    assert np.linalg.eigvalsh(K)[0] > 0.0
    np.testing.assert_allclose(np.diag(K), 1.3)
    np.testing.assert_allclose(compute(kernel, jnp.asarray(X, jnp.float32)), K, atol=1e-5)
    with pytest.raises(ValueError, match="no known discrete spectrum"):
        kernel.eigenvalues()
    io.save(tmp_path / "hyperbolic", kernel)
    np.testing.assert_array_equal(compute(io.load(tmp_path / "hyperbolic"), jnp.asarray(X)), K)


def test_heat_kernel_of_hyperbolic_space_of_three_dimensions(gk):
    """(r / sinh r) exp(-r^2 / (2 lengthscale^2)), r the distance (Grigor'yan and Noguchi, 1998)."""
    X, num = hyperboloid(4, 3), 20_000
    r = np.arccosh(np.maximum(1.0, np.outer(X[:, 0], X[:, 0]) - X[:, 1:] @ X[:, 1:].T)) + 1e-9 * np.eye(4)

    def heat(lengthscale):
        return r / np.sinh(r) * np.exp(-(r**2) / (2.0 * lengthscale**2))

    def ours(lengthscale):
        return Geometric.hyperbolic(3, lengthscale, 1.0, np.inf, num=num)(X)

    K, slope = jax.jit(lambda l: jax.jvp(ours, (l,), (jnp.ones(()),)))(jnp.asarray(1.1))
    np.testing.assert_allclose(K, heat(1.1), atol=5.0 / num**0.5)
    np.testing.assert_allclose(slope, (heat(1.1 + 1e-5) - heat(1.1 - 1e-5)) / 2e-5, atol=15.0 / num**0.5)


def test_any_other_space_or_kernel(gk, tmp_path):
    kernels, circle = gk.kernels, gk.spaces.Circle()
    angles = np.array([[0.1], [1.0], [3.0]])
    on_circle = Geometric.of(circle, 0.6, 1.3, 1.5)
    np.testing.assert_allclose(
        on_circle(angles), theirs(on_circle, kernels.MaternGeometricKernel(circle), angles), rtol=1e-9
    )
    phi = on_circle.features(4000, key=KEY)(angles)
    np.testing.assert_allclose(phi @ phi.T, on_circle(angles), atol=5.0 * 1.3 * (2.0 / 4000) ** 0.5)
    with pytest.raises(ValueError, match=r"model\.space\.kernel cannot be saved.*MaternKarhunenLoeveKernel"):
        io.save(tmp_path / "circle", on_circle)

    graph = kernels.MaternGeometricKernel(gk.spaces.Graph(WEIGHTS))
    product = kernels.ProductGeometricKernel(kernels.MaternGeometricKernel(circle), graph)
    X = np.concatenate([angles, [[0.0], [2.0], [5.0]]], axis=1)
    both = Geometric.of(product, [0.6, 0.7], 1.3, [1.5, 2.5])
    expected = on_circle.on(0)(X) * Geometric.of(graph, 0.7)(X[:, 1:])
    np.testing.assert_allclose(both(X), expected, rtol=1e-9)
    np.testing.assert_allclose(both.diag(X), np.diag(expected), rtol=1e-9)
    with pytest.raises(ValueError, match="ProductGeometricKernel has no random features"):
        both.features(3, key=KEY)(X)

    assert isinstance(Geometric.of(gk.spaces.Hypersphere(2)).space, spaces.CompactSpace)
    assert Geometric.of(gk.spaces.SpecialOrthogonal(3), num=7).space == spaces.CompactSpace("SpecialOrthogonal", 3, 7)
    matrices = Geometric.of(gk.spaces.SymmetricPositiveDefiniteMatrices(2), num=30)
    np.testing.assert_allclose(matrices.diag(np.array([[1.0, 0.2, 0.2, 0.7]])), 1.0)
    hyperbolic = kernels.MaternGeometricKernel(gk.spaces.Hyperbolic(2), 10, key=np.random.RandomState(0))
    with pytest.raises(ValueError, match="thing is a kernel of random features"):
        Geometric.of(hyperbolic)
    with pytest.raises(ValueError, match="thing expects a space or a kernel of geometric-kernels, got int"):
        Geometric.of(3)
    with pytest.raises(ValueError, match="num expects a number of eigenpairs from 1 to 8, got 9"):
        Geometric.graph(WEIGHTS, num=9)


def test_the_import_leaves_no_traces(gk):
    assert not any(type(handler) is logging.NullHandler for handler in logging.root.handlers)
    assert logging.root.manager.disable == logging.NOTSET
    assert ("trapz" in vars(np)) == (tuple(map(int, np.__version__.split(".")[:2])) < (2, 4))
