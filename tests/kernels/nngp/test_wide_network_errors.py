"""A wrong layer, a wrong network or wrong inputs are refused by name."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from mercer.kernels.nngp import NNGP, NTK, Conv, Dense, Elementwise, Flatten, GlobalAveragePool, Relu, Residual

ROWS, IMAGES = np.ones((3, 24)), np.ones((3, 4, 3, 2))


def _opaque(u):
    return jax.pure_callback(np.tanh, jax.ShapeDtypeStruct(u.shape, u.dtype), u)


CONSTRUCTIONS = {
    "Dense: weight_std expects positive, finite values, got -1.0": lambda: Dense(-1.0),
    "Dense: weight_std expects positive, finite values, got 0.0": lambda: Dense(0.0),
    "Dense: bias_std expects positive, finite values, got -0.5": lambda: Dense(1.0, -0.5),
    "Dense: weight_std expects a number, got shape (2,)": lambda: Dense([1.0, 2.0]),
    "Conv: weight_std expects positive": lambda: Conv((3, 3), weight_std=-1.0),
    "Conv: bias_std expects positive": lambda: Conv((3, 3), bias_std=-1.0),
    "Conv: bias_std expects a number, got shape (1,)": lambda: Conv((3, 3), bias_std=[1.0]),
    "Conv: filter_shape expects two positive integers, got 3": lambda: Conv(3),
    "Conv: filter_shape expects two positive integers, got (3, 0)": lambda: Conv((3, 0)),
    "Conv: filter_shape expects two positive integers, got (3, 3, 1)": lambda: Conv((3, 3, 1)),
    "Conv: filter_shape expects two positive integers, got (1.5, 2)": lambda: Conv((1.5, 2)),
    "Conv: strides expects two positive integers, got (0, 1)": lambda: Conv((3, 3), (0, 1)),
    'Conv: padding must be "SAME" or "VALID", got ': lambda: Conv((3, 3), padding="same"),
    "Elementwise: fn expects a function of an array, got 3.0": lambda: Elementwise(3.0),
    "Elementwise: fn expects a function without parameters": lambda: Elementwise(eqx.nn.PReLU(0.1)),
    "Elementwise: fn expects to return a number for each entry": lambda: Elementwise(jnp.sum),
    "Elementwise: fn expects to return a number for each entry: ": lambda: Elementwise(jnp.isfinite),
    "Elementwise: fn fails on an array of shape (2, 3)": lambda: Elementwise(lambda u: u @ u),
    "Elementwise: num_points expects a whole number of at least 2, got 1": lambda: Elementwise(jnp.tanh, 1),
    "Elementwise: num_points expects a whole number of at least 2, got 8.0": lambda: Elementwise(jnp.tanh, 8.0),
    "Elementwise: num_points expects at most 512, got 1000": lambda: Elementwise(jnp.tanh, 1000),
    "Elementwise: the derivative of fn, which NTK needs, fails": lambda: NTK([Dense(), Elementwise(_opaque)]),
    "NNGP: layers expects a list of one or more layers, got []": lambda: NNGP([]),
    "NTK: layers expects a list of one or more layers, got Dense(": lambda: NTK(Dense()),
    "NNGP: layers expects a list of one or more layers, got 'relu' at place 1": lambda: NNGP([Dense(), "relu"]),
    "NNGP: layers expects a list of one or more layers, got the class Relu at place 1; write Relu(...)": (
        lambda: NNGP([Dense(), Relu])
    ),
    "NTK: layers expects a list of one or more layers, got a list at place 0; put its layers into the same list": (
        lambda: NTK([[Dense(), Relu()], Dense()])
    ),
    "Residual: layers expects a list of one or more layers, got []": lambda: Residual([]),
    "Residual: layers expects a list of one or more layers, got 3 at place 0": lambda: Residual([3]),
    "Residual: layers expects a Dense or a Conv among them": lambda: Residual([Relu()]),
    "Residual: layers expects a Dense or a Conv among them (not": lambda: Residual([Relu(), Residual([Dense()])]),
    "NNGP: image_shape expects positive integers (H, W, C), got (28, 28)": lambda: NNGP([Flatten()], (28, 28)),
    "NTK: image_shape expects positive integers (H, W, C), got 784": lambda: NTK([Flatten()], 784),
    "NNGP: layers expects to end with rows of features, but 4 x 3 pixels are left: add Flatten() or GlobalAveragePool()": (
        lambda: NNGP([Conv((3, 3)), Relu()], (4, 3, 2))
    ),
    'Conv: filter_shape expects a filter that fits into (4, 3) pixels with padding "VALID", got (3, 4)': (
        lambda: NNGP([Conv((3, 4), padding="VALID"), Flatten()], (4, 3, 2))
    ),
    'Conv: filter_shape expects a filter that fits into (2, 1) pixels with padding "VALID", got (3, 3)': (
        lambda: NNGP([Conv((3, 3), padding="VALID"), Conv((3, 3), padding="VALID"), Flatten()], (4, 3, 2))
    ),
    "Conv expects images, got rows of features": lambda: NNGP([Flatten(), Conv((3, 3))], (4, 3, 2)),
    "GlobalAveragePool expects images, got rows of features": lambda: NNGP([Flatten(), GlobalAveragePool()], (4, 3, 2)),
    "Residual: layers expects outputs of the shape of the inputs, images of 4 x 3 pixels, got images of 2 x 2 pixels": (
        lambda: NNGP([Residual([Conv((3, 3), (2, 2))]), Flatten()], (4, 3, 2))
    ),
    "Residual: layers expects outputs of the shape of the inputs, images of 4 x 3 pixels, got rows of features": (
        lambda: NNGP([Residual([Conv((3, 3)), Flatten()])], (4, 3, 2))
    ),
}

CNN = [Conv((3, 3)), Relu(), Flatten()]
CALLS = {
    "Conv expects images, got rows of features: give the kernel image_shape=(H, W, C) or": (NNGP(CNN), ROWS),
    "GlobalAveragePool expects images, got rows of features: give the kernel image_shape=(H, W, C) or": (
        NTK([GlobalAveragePool()]),
        ROWS,
    ),
    "NNGP: layers expects to end with rows of features, but 4 x 3 pixels are left: add": (
        NNGP([Conv((3, 3)), Relu()]),
        IMAGES,
    ),
    "NTK: layers expects to end with rows of features, but 4 x 3 pixels are left: add": (NTK([Dense()]), IMAGES),
    "Conv: filter_shape expects a filter that fits into (4, 3) pixels": (
        NNGP([Conv((5, 5), padding="VALID"), Flatten()]),
        IMAGES,
    ),
    "X expects images of shape (3, 4, 2), got (4, 3, 2)": (NNGP(CNN, (3, 4, 2)), IMAGES),
    "X expects 24 columns, those of images of 4 x 3 pixels with 2 channels, got 23": (
        NNGP(CNN, (4, 3, 2)),
        ROWS[:, :23],
    ),
    "X must be finite, got NaN or inf in 1 of 3 rows (first: row 1)": (
        NNGP(CNN),
        np.where(np.arange(3)[:, None, None, None] == 1, np.nan, IMAGES),
    ),
    "X must be float32 or float64, got int64": (NNGP(CNN), IMAGES.astype(int)),
    "X must be two-dimensional [N, D], got shape (3, 4, 6)": (NNGP(CNN), IMAGES.reshape(3, 4, 6)),
}


def raises(message):
    return pytest.raises(ValueError, match=f"^{message}".translate({ord(c): f"\\{c}" for c in "()[]."}))


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
@pytest.mark.parametrize("message", CONSTRUCTIONS)
def test_construction(message):
    with raises(message):
        CONSTRUCTIONS[message]()


@pytest.mark.parametrize("message", CALLS)
def test_calls(message):
    kernel, X = CALLS[message]
    for call in (kernel, kernel.diag):
        with raises(message):
            call(X)


def test_two_inputs():
    with raises("X2 expects images of shape (4, 3, 2), got (3, 4, 2)"):
        NNGP(CNN)(IMAGES, IMAGES.swapaxes(1, 2))
    with raises("X2 must be finite"):
        NNGP(CNN)(IMAGES, IMAGES * np.inf)
    with raises("X and X2 must have the same number of columns, got 24 and 3"):
        NNGP(CNN)(IMAGES, ROWS[:, :3])


def test_a_function_without_a_name_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match=r"layers\[1\]\.fn cannot be saved: .* has no name"):
        mc.save(tmp_path / "file", NNGP([Dense(), Elementwise(lambda u: u**3)]))
