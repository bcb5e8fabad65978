"""Two other ways to the kernels of wide networks: loops over pixels with quadrature, and networks of finite width.

Both read the layers, and nothing of what the library makes of them.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import erf, ndtr

from mercer.kernels import nngp

# phi and phi', in numpy
FUNCTIONS = {
    nngp.Erf: (erf, lambda u: 2.0 / math.sqrt(math.pi) * np.exp(-(u**2))),
    nngp.Gelu: (lambda u: u * ndtr(u), lambda u: ndtr(u) + u * np.exp(-0.5 * u**2) / math.sqrt(2.0 * math.pi)),
    nngp.Elementwise: (np.tanh, lambda u: np.cosh(u) ** -2.0),  # the only function that the tests give it
}
POINTS, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)
WEIGHTS = WEIGHTS / math.sqrt(2.0 * math.pi)
ANGLES, ANGLE_WEIGHTS = np.polynomial.legendre.leggauss(40)


def expectations(layer, k11, k12, k22):
    """E[phi(u) phi(v)] and E[phi'(u) phi'(v)], by quadrature over the plane."""
    if k11 * k22 == 0.0:
        return 0.0, 0.25  # of functions with phi(0) = 0, where it matters
    t = math.acos(max(-1.0, min(1.0, k12 / math.sqrt(k11 * k22))))
    if isinstance(layer, nngp.Relu):
        # In polar coordinates E[r^2] = 2, and both are positive for angles between t - pi/2 and pi/2.
        half = (math.pi - t) / 2.0
        angle = t / 2.0 + half * ANGLES
        integral = half * np.sum(ANGLE_WEIGHTS * np.cos(angle) * np.cos(angle - t))
        return math.sqrt(k11 * k22) * integral / math.pi, 2.0 * half / (2.0 * math.pi)
    u = math.sqrt(k11) * POINTS[:, None]
    v = math.sqrt(k22) * (math.cos(t) * POINTS[:, None] + math.sin(t) * POINTS[None])
    weights = WEIGHTS[:, None] * WEIGHTS[None]
    return tuple(float(np.sum(weights * f(u) * f(v))) for f in FUNCTIONS[type(layer)])


def expectation(layer, k):
    """E[phi(u)]."""
    if isinstance(layer, nngp.Relu):
        return math.sqrt(k / (2.0 * math.pi))
    return float(np.sum(WEIGHTS * FUNCTIONS[type(layer)][0](math.sqrt(k) * POINTS)))


def reference(layers, x, y):
    """The kernels of NNGP and NTK at two rows [D] or two images [H, W, C]."""
    points = (np.atleast_3d(np.asarray(x)), np.atleast_3d(np.asarray(y)))
    if np.ndim(x) == 1:
        points = tuple(a.reshape(1, 1, -1) for a in points)
    sites = list(itertools.product(range(points[0].shape[0]), range(points[0].shape[1])))
    units = [(a, p) for a in (0, 1) for p in sites]
    K = {(s, t): float(points[s[0]][s[1]] @ points[t[0]][t[1]]) / points[0].shape[2] for s in units for t in units}
    mean = {(a, p): float(points[a][p].mean()) for a, p in units}
    K, T, _ = _through(layers, K, dict.fromkeys(K, 0.0), mean)
    ((s, t),) = [pair for pair in K if pair[0][0] == 0 and pair[1][0] == 1]
    return K[s, t], T[s, t]


def _through(layers, K, T, mean):
    for layer in layers:
        K, T, mean = _one(layer, K, T, mean)
    return K, T, mean


def _number(std):
    return 0.0 if std is None else float(std)


def _one(layer, K, T, mean):
    if isinstance(layer, nngp.Dense):
        w, b = _number(layer.weight_std) ** 2, _number(layer.bias_std) ** 2
        new = {st: w * K[st] + b for st in K}
        return new, {st: new[st] + w * T[st] for st in K}, dict.fromkeys(mean, 0.0)
    if isinstance(layer, nngp.Conv):
        return _conv(layer, K, T, mean)
    if isinstance(layer, nngp.Flatten | nngp.GlobalAveragePool):
        sites = sorted({p for _, p in mean})
        out = []
        for values in (K, T):
            pooled = {}
            for a, b in itertools.product((0, 1), repeat=2):
                pairs = [(p, q) for p in sites for q in sites if p == q or isinstance(layer, nngp.GlobalAveragePool)]
                pooled[(a, None), (b, None)] = sum(values[(a, p), (b, q)] for p, q in pairs) / len(pairs)
            out.append(pooled)
        return *out, {(a, None): sum(mean[a, p] for p in sites) / len(sites) for a in (0, 1)}
    if isinstance(layer, nngp.Residual):
        Kb, Tb, mean_b = _through(layer.layers, K, T, mean)
        total = {(s, t): K[s, t] + Kb[s, t] + mean[s] * mean_b[t] + mean_b[s] * mean[t] for s, t in K}
        return total, {st: T[st] + Tb[st] for st in T}, {s: mean[s] + mean_b[s] for s in mean}
    values = {(s, t): expectations(layer, K[s, s], K[s, t], K[t, t]) for s, t in K}
    slopes = {st: values[st][1] * T[st] for st in K}
    return {st: values[st][0] for st in K}, slopes, {s: expectation(layer, K[s, s]) for s in mean}


def _conv(layer, K, T, mean):
    (h, w), strides = layer.filter_shape, layer.strides
    sites = {p for _, p in mean}
    sizes = [1 + max(p[axis] for p in sites) for axis in (0, 1)]
    outputs, begins = [], []
    for size, window, stride in zip(sizes, (h, w), strides, strict=True):
        if layer.padding == "SAME":
            num = math.ceil(size / stride)
            begins.append(max((num - 1) * stride + window - size, 0) // 2)
        else:
            num = (size - window + 1 + stride - 1) // stride
            begins.append(0)
        outputs.append(range(num))
    new_sites = list(itertools.product(*outputs))

    def at(p, o):
        return tuple(p[axis] * strides[axis] + o[axis] - begins[axis] for axis in (0, 1))

    offsets = list(itertools.product(range(h), range(w)))
    weight, bias = _number(layer.weight_std) ** 2 / (h * w), _number(layer.bias_std) ** 2
    new_K, new_T = {}, {}
    for a, b, p, q in itertools.product((0, 1), (0, 1), new_sites, new_sites):
        pairs = [((a, at(p, o)), (b, at(q, o))) for o in offsets]
        new_K[(a, p), (b, q)] = weight * sum(K.get(st, 0.0) for st in pairs) + bias
        new_T[(a, p), (b, q)] = new_K[(a, p), (b, q)] + weight * sum(T.get(st, 0.0) for st in pairs)
    return new_K, new_T, {(a, p): 0.0 for a in (0, 1) for p in new_sites}


ACTIVATIONS = {
    nngp.Relu: jax.nn.relu,
    nngp.Erf: jax.scipy.special.erf,
    nngp.Gelu: lambda u: jax.nn.gelu(u, approximate=False),
    nngp.Elementwise: jnp.tanh,
}


def finite_network(layers, width):
    """init(key, X) -> weights, apply(weights, X) -> outputs [N, ..., width], of a network of finite width."""

    def run(layers, h, weights, key):
        """With a key, new weights are drawn and put into the list; else they are taken from its front."""
        for layer in layers:
            if isinstance(layer, nngp.Dense | nngp.Conv):
                window = layer.filter_shape if isinstance(layer, nngp.Conv) else ()
                fan_in = h.shape[-1] * math.prod(window)
                if key is not None:
                    key, k1, k2 = jax.random.split(key, 3)
                    weights.append(jax.random.normal(k1, (*window, h.shape[-1], width)))
                    weights.append(jax.random.normal(k2, (width,)))
                    W, b = weights[-2:]
                else:
                    W, b = weights.pop(0), weights.pop(0)
                W = layer.weight_std * W / math.sqrt(fan_in)
                if window:
                    h = jax.lax.conv_general_dilated(
                        h, W, layer.strides, layer.padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
                    )
                else:
                    h = h @ W
                h = h + _number(layer.bias_std) * b
            elif isinstance(layer, nngp.Flatten):
                h = h.reshape(len(h), -1)
            elif isinstance(layer, nngp.GlobalAveragePool):
                h = h.mean((1, 2))
            elif isinstance(layer, nngp.Residual):
                branch_key = None if key is None else jax.random.fold_in(key, 1)
                h = h + run(layer.layers, h, weights, branch_key)
                key = None if key is None else jax.random.fold_in(key, 2)
            else:
                h = ACTIVATIONS[type(layer)](h)
        return h

    def init(key, X):
        weights = []
        run(layers, X, weights, key)
        return weights

    return init, lambda weights, X: run(layers, X, list(weights), None)
