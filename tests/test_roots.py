import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mercer.kernels.arc_cosine import angular
from mercer.roots import safe_sqrt


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_square_root_and_its_slope(dtype):
    x = jnp.asarray([0.0, -1e-30, 1e-12, 0.25, 4.0], dtype)
    root, slope = safe_sqrt(x), jax.vmap(jax.grad(safe_sqrt))(x)
    assert root.dtype == slope.dtype == dtype
    np.testing.assert_allclose(root, [0.0, 0.0, 1e-6, 0.5, 2.0], rtol=1e-6)
    np.testing.assert_allclose(slope, [0.0, 0.0, 5e5, 1.0, 0.25], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("order", "slope"), [(0, 0.0), (1, 1.0), (2, 4.0 / 3.0)])
def test_the_angular_functions_where_the_angle_is_0_or_straight(order, slope, dtype):
    """J / J(0) is 1 at c = 1 and 0 at c = -1; where its slope is infinite (order 0) it is taken to be 0."""
    ends = jnp.asarray([1.0, -1.0], dtype)
    np.testing.assert_allclose(angular(order, ends), [1.0, 0.0], atol=1e-7)
    np.testing.assert_allclose(jax.vmap(jax.grad(lambda c: angular(order, c)))(ends), [slope, 0.0], atol=1e-6)
