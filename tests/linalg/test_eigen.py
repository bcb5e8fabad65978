import jax
import jax.numpy as jnp
import numpy as np

from mercer.linalg import eigh


def test_of_many_matrices_with_derivatives():
    A = np.random.default_rng(0).normal(size=(3, 5, 5))
    A = jnp.asarray(A + A.swapaxes(1, 2))
    values, vectors = eigh(A)
    np.testing.assert_allclose(vectors * values[:, None] @ vectors.mT, A, atol=1e-12)

    def smooth(decomposition):
        def total(A):
            values, vectors = decomposition(A)
            return jnp.sum((vectors * jnp.tanh(values)[..., None, :]) @ vectors.mT * jnp.arange(25.0).reshape(5, 5))

        return jax.grad(total)(A)

    np.testing.assert_allclose(smooth(eigh), smooth(jnp.linalg.eigh), atol=1e-11)
