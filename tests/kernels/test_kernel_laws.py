"""What is true of every kernel."""

import inspect

import equinox as eqx
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from kernel_instances import DISTINCT, KERNELS, WITHOUT_FEATURES, D, some_inputs, tolerance

from cases import mostly_slow
from mercer import io, kernels
from mercer.parameters import cast


@pytest.fixture(params=mostly_slow(KERNELS, *DISTINCT), scope="module")
def name(request):
    """Of a module, so that the tests of one kernel follow each other and share what is compiled."""
    return request.param


@st.composite
def inputs(draw):
    """X [7, 3] and X2 [4, 3] on a grid, so that rows repeat or differ by more than rounding; two rows are in both."""
    grid = draw(hnp.arrays(np.int64, (9, D), elements=st.integers(-30, 30))) / 10.0
    rows = draw(st.lists(st.integers(0, 6), min_size=7, max_size=7))
    scale, offset = draw(st.sampled_from([0.05, 1.0, 20.0])), draw(st.sampled_from([0.0, 1.0, 1000.0]))
    grid = scale * grid + offset
    return jnp.asarray(grid[rows]), jnp.asarray(grid[[rows[0], rows[1], 7, 8]])


@eqx.filter_jit
def evaluate(kernel, X, X2):
    return kernel(X), kernel(X, X), kernel(X, X2), kernel(X2, X), kernel.diag(X)


@eqx.filter_jit
def derivatives(at, direction, weights):
    """Of the weighted sum of k(X), k(X, X2), k.diag(X) at (kernel, X, X2): its gradient, and its derivative by jvp."""
    arrays, static = eqx.partition(at, eqx.is_array)

    def total(arrays):
        kernel, X, X2 = eqx.combine(arrays, static)
        return sum(jnp.vdot(w, k) for w, k in zip(weights, (kernel(X), kernel(X, X2), kernel.diag(X)), strict=True))

    return jax.grad(total)(arrays), jax.jvp(total, (arrays,), (eqx.filter(direction, eqx.is_array),))[1]


def random_like(tree):
    normal = np.random.default_rng(0).normal
    return jax.tree.map(lambda leaf: jnp.asarray(normal(size=leaf.shape)), eqx.filter(tree, eqx.is_array))


WEIGHTS = random_like((jnp.ones((7, 7)), jnp.ones((7, 4)), jnp.ones(7)))


WITH_FEATURES = [name for name in KERNELS if name not in WITHOUT_FEATURES]
# Some kernels of each way to make features, where these are compiled and drawn from.
FEATURES = ("Matern32", "SpectralMixture", "Polynomial ARD", "ArcCosine order 1 depth 1", "ChangePoints")
FEATURES += ("CholeskySVGP", "Nested")
# Some kernels of each kind, for what is said of all of them in one place of the code.
some_kernels = pytest.mark.parametrize(
    "name",
    mostly_slow(
        KERNELS,
        *("RBF ARD", "Matern12", "Additive", "Periodic ARD", "SpectralMixture", "Linear ARD", "Polynomial ARD"),
        *("ArcCosine order 1 depth 1", "White", "ChangePoints", "Convolutional", "FeatureMap", "CholeskySVGP"),
        *("SparsePosterior", "NNGP tanh", "Nested"),
    ),
    scope="module",
)


def test_every_public_kernel_has_an_instance():
    public = [getattr(kernels, name) for name in kernels.__all__]
    concrete = {
        c for c in public if isinstance(c, type) and issubclass(c, kernels.Kernel) and not inspect.isabstract(c)
    }
    # The last column of the inputs of OutputIndexed is a whole number: its laws are those of the kernels of several outputs.
    # Those of zonal kernels, whose inputs are unit vectors, are in test_zonal.py, and here inside of Homogeneous; those of
    # Geometric, whose inputs are points of a space, in test_geometric.py.
    elsewhere = {kernels.OutputIndexed, kernels.Geometric} | {c for c in concrete if issubclass(c, kernels.Zonal)}
    assert concrete - elsewhere <= {type(KERNELS[name]) for name in DISTINCT}


@given(at=inputs())
def test_symmetric(name, at):
    K, _, K12, K21, _ = evaluate(KERNELS[name], *at)
    np.testing.assert_allclose(K, K.T, rtol=0, atol=tolerance(name) * np.abs(K).max())
    np.testing.assert_allclose(K12, K21.T, rtol=0, atol=tolerance(name) * np.abs(K).max())


@given(at=inputs())
def test_positive_semi_definite(name, at):
    K, *_ = evaluate(KERNELS[name], *at)
    eigenvalues = np.linalg.eigvalsh((K + K.T) / 2)
    assert eigenvalues[0] >= -tolerance(name) * eigenvalues[-1]


@given(at=inputs())
def test_diag_is_the_diagonal(name, at):
    K, *_, diag = evaluate(KERNELS[name], *at)
    np.testing.assert_allclose(diag, np.diagonal(K), rtol=1e-10)


@given(at=inputs())
def test_inputs_given_twice_are_the_inputs(name, at):
    K, twice, *_ = evaluate(KERNELS[name], *at)
    if "White" in name:
        K = K - np.diag(np.diagonal(K) - np.diagonal(twice))
    np.testing.assert_allclose(twice, K, rtol=0, atol=tolerance(name) * np.abs(K).max())


@given(at=inputs())
def test_gradients_are_finite_and_those_of_forward_mode_also_at_coincident_points(name, at):
    at = (cast(KERNELS[name], float), *at)
    direction = random_like(at)
    gradient, forward = derivatives(at, direction, WEIGHTS)
    terms = [np.vdot(a, b) for a, b in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True)]
    assert np.isfinite(terms).all()
    np.testing.assert_allclose(forward, sum(terms), rtol=1e-7, atol=1e-7 * np.abs(terms).max())


@some_kernels
def test_gradients_are_those_of_finite_differences(name):
    at, h = (cast(KERNELS[name], float), some_inputs(repeat=False), some_inputs(seed=1)[:4]), 1e-5
    direction = random_like(at)
    _, forward = derivatives(at, direction, WEIGHTS)

    def total(step):
        K, _, K12, _, diag = evaluate(*eqx.apply_updates(at, jax.tree.map(lambda da: step * da, direction)))
        return sum(np.vdot(w, k) for w, k in zip(WEIGHTS, (K, K12, diag), strict=True))

    np.testing.assert_allclose(forward, (total(h) - total(-h)) / (2.0 * h), rtol=1e-5, atol=1e-5)


@some_kernels
def test_jit_and_vmap_change_nothing(name):
    kernel, X = KERNELS[name], some_inputs()
    expected, diag = kernel(X), kernel.diag(X)
    jitted, *_, jitted_diag = evaluate(kernel, X, X[:4])
    mapped, mapped_diag = jax.jit(jax.vmap(lambda X: (kernel(X), kernel.diag(X))))(jnp.stack([X + 1.0, X]))
    for computed in (jitted, mapped[1]):
        np.testing.assert_allclose(computed, expected, rtol=1e-9, atol=tolerance(name))
    for computed in (jitted_diag, mapped_diag[1]):
        np.testing.assert_allclose(computed, diag, rtol=1e-9)


@some_kernels
def test_dtype_is_that_of_the_data(name):
    kernel, X = KERNELS[name], some_inputs().astype(jnp.float32)
    computed = evaluate(kernel, X, X[:4])
    assert {values.dtype for values in computed} == {np.dtype(np.float32)}
    exact = evaluate(kernel, X.astype(float), X[:4].astype(float))[0]
    loose = 2e-4 if tolerance(name) < 1e-8 else 20 * 1.2e-7 ** (0.5 ** getattr(kernel, "depth", 1))
    np.testing.assert_allclose(computed[0], exact, rtol=0, atol=loose * np.abs(exact).max())


def _sizes(jaxpr):
    """The number of elements of every array that a computation makes, also inside its parts."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from _sizes(inner)


def test_diag_forms_no_matrix(name):
    N = 1000
    assert max(_sizes(jax.make_jaxpr(KERNELS[name].diag)(jnp.zeros((N, D))).jaxpr)) < N * N / 10
    assert max(_sizes(jax.make_jaxpr(KERNELS[name])(jnp.zeros((N, D))).jaxpr)) >= N * N


@pytest.mark.parametrize("name", mostly_slow(WITH_FEATURES, *FEATURES))
def test_features_have_the_kernel_as_expectation(name):
    num, X = 100_000, some_inputs()[:3]
    phi = np.asarray(jax.jit(KERNELS[name].features(num, key=jax.random.key(1)))(X))
    assert phi.shape == (3, num)
    products = num * phi[:, None] * phi[None]
    error = np.abs(products.mean(-1) - KERNELS[name](X))
    assert (error <= 5.0 * products.std(-1) / num**0.5 + 1e-9).all()


@pytest.mark.parametrize("name", WITH_FEATURES)
def test_features_have_the_dtype_of_the_data(name):
    for dtype in (jnp.float32, jnp.float64):
        phi = KERNELS[name].features(10, key=jax.random.key(1))
        assert jax.eval_shape(phi, jax.ShapeDtypeStruct((7, D), dtype)).dtype == dtype


@pytest.mark.parametrize("name", sorted(WITHOUT_FEATURES))
def test_kernels_without_features_say_so(name):
    with pytest.raises(ValueError, match="has no random features"):
        KERNELS[name].features(10, key=jax.random.key(0))


@pytest.mark.parametrize("name", ["RBF", "Periodic ARD", "Cosine", "SpectralMixture", "Matern32", "RationalQuadratic"])
def test_stationary_kernels_do_not_change_under_a_shift(name):
    X, X2, shift = some_inputs(), some_inputs(seed=1)[:4], jnp.asarray([2.0**20, -(2.0**19), 2.0**20])
    X, X2 = (jnp.round(A * 2.0**20) / 2.0**20 for A in (X, X2))  # so that adding the shift does not round
    kernel = KERNELS[name]
    np.testing.assert_allclose(kernel(X + shift, X2 + shift), kernel(X, X2), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", WITH_FEATURES)
def test_draws_are_values(name, tmp_path):
    """A draw is a module whose leaves are arrays, so that it passes through transformations; and it can be saved."""
    draw = KERNELS[name].draw(3, 2, key=jax.random.key(1))
    assert all(eqx.is_array(leaf) or callable(leaf) for leaf in jax.tree.leaves(draw))
    io.save(tmp_path / "draw.mercer", draw)
    loaded = io.load(tmp_path / "draw.mercer")
    assert eqx.tree_equal(loaded, draw) and loaded != draw and hash(draw) == hash(draw)
