"""Activated deep processes: the layers of a trained network as those of a deep process (paper 001, section 4.2).

A network is linear maps and activations in turns. One layer of the process is the units of one activation and the map after
them: its inducing variables are `Activated` ones with the units' weights and biases, and the map is the weights of these
variables (`Sparse.with_weights`). What is left is

    V^T (sigma(w_m . x + b_m) - c g_m(x)),

with g_m the function of a variable. It is not 0: g_m has so many levels, grows linearly along each ray, and is a smooth one
whatever sigma is, as units that bend sharply have large norms or none (section 4.1.3). So it is the mean of the layer's prior,
`Remainder`, and the mean of the layer is the network's map exactly.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mercer import validation
from mercer.covariances import Kuf
from mercer.inducing import Activated
from mercer.inducing.activations import Activation, Softplus
from mercer.kernels import ArcCosine, Kernel
from mercer.linalg.products import matmul
from mercer.means import Constant, Mean
from mercer.parameters import constant, param, real
from mercer.processes.activated_units import ActivatedUnits, scale_of
from mercer.processes.base import Process
from mercer.processes.deterministic import Deterministic
from mercer.processes.prior import GP
from mercer.processes.sparse import Sparse

# Each is half of its argument plus an even function, as the units are.
_ACTIVATIONS = {"relu": jax.nn.relu, "softplus": jax.nn.softplus, "silu": jax.nn.silu, "gelu": jax.nn.gelu}
# The root of the covariance of q(u), whitened. It is 1 under the prior. Of much less, such as 1e-5, Adam makes a bad start: the
# first gradients are so large that it takes small steps for thousands of them.
_ROOT = 0.1


class Remainder(Mean):
    """weights^T (sigma(weight x + bias) - scale g(x)) + offset: what activated variables miss of a layer of a network.

    sigma is an activation of the network, g the functions of the variables under a kernel. All but the offset is constant.
    """

    weight: Float[Array, "M D"] = constant()
    bias: Float[Array, " M"] = constant()
    activation: Callable[[Array], Array] = eqx.field(static=True)
    units: Activated = constant()
    kernel: Kernel = constant()
    scale: Float[Array, ""] = constant()
    weights: Float[Array, "M P"] = constant()
    offset: Float[Array, " P"] = param(real)

    def _values(self, X):
        of_network = self.activation(matmul(X, self.weight.T) + self.bias)
        missed = of_network - self.scale * Kuf(self.units, self.kernel, X).T
        return matmul(missed, self.weights) + self.offset


def layers_of_network(
    module: Any,
    kernel: Kernel | Sequence[Kernel] | None,
    activation: Activation | None,
    levels: int,
    input_shape: tuple[int, ...] | None,
) -> list[Process]:
    """The layers of the process, as `Deep.from_network` says."""
    front, blocks = _parsed(module)
    units = Softplus() if activation is None else activation
    layers: list[Process] = []
    if front:
        layers.append(Deterministic(eqx.nn.Sequential(front), blocks[0].weight.shape[1], input_shape))
    elif input_shape is not None:
        raise ValueError("from_network: input_shape is for a network with other layers before its dense ones")
    if kernel is not None and any(isinstance(block.activation, ActivatedUnits) for block in blocks):
        raise ValueError("from_network: ActivatedUnits are those of ArcCosine; leave kernel out")
    for block, own in zip(blocks, _kernels(kernel, len(blocks)), strict=True):
        layers.append(_expected(block, units, levels) if own is None else _layer(block, own, units, levels))
    return layers


_Function = Callable[[Array], Array] | ActivatedUnits


class _Block(NamedTuple):
    """weights^T sigma(weight x + bias) + offset, with weight [M, D] and weights [M, P]."""

    weight: Array
    bias: Array
    activation: _Function  # or the units themselves, with their weight and bias
    weights: Array
    offset: Array


def _expected(block: _Block, units: Activation, levels: int) -> Sparse:
    """The process with the variance under which the block is what the prior expects: the mean square of whitened q_mu is 1."""
    square = jnp.mean(_layer(block, ArcCosine(), units, levels).q_mu ** 2)
    return _layer(block, ArcCosine(variance=jnp.where(square > 0.0, square, 1.0)), units, levels)


def _layer(block: _Block, kernel: Kernel, units: Activation, levels: int) -> Sparse:
    """The process whose mean is the block."""
    M, P = block.weights.shape
    if isinstance(block.activation, ActivatedUnits):
        units, levels = block.activation.activation, block.activation.levels
    variables = Activated.of_layer(kernel, block.weight, block.bias, units, levels)
    scale = scale_of(variables)
    mean: Mean = Constant(block.offset)
    if not isinstance(block.activation, ActivatedUnits):
        mean = Remainder(
            block.weight, block.bias, block.activation, variables, kernel, scale, block.weights, block.offset
        )
    q_sqrt = jnp.broadcast_to(_ROOT * jnp.eye(M, dtype=block.weight.dtype), (P, M, M))
    return Sparse(GP(kernel, mean), variables, P, q_sqrt=q_sqrt).with_weights(scale * block.weights)


def _kernels(kernel: Any, num: int) -> list[Kernel | None]:
    if kernel is None or isinstance(kernel, Kernel):
        return [kernel] * num
    kernels = list(kernel)
    if len(kernels) != num:
        raise ValueError(
            f"from_network: kernel expects one kernel, or one for each of {num} layers, got {len(kernels)}"
        )
    return kernels


def _parsed(module: Any) -> tuple[list[Any], list[_Block]]:
    """What comes before the dense layers, and these as blocks."""
    layers = _flattened(module)
    dense = [i for i, (_, layer) in enumerate(layers) if isinstance(layer, eqx.nn.Linear | ActivatedUnits)]
    if not dense:
        raise ValueError(f"from_network: {type(module).__name__} has no dense layer (equinox.nn.Linear) at its end")
    front = [layer for _, layer in layers[: dense[0]]]
    # Runs of linear maps, with an activation between one and the next.
    runs: list[list[tuple[str, Any]]] = [[]]
    activations: list[_Function] = []
    for name, layer in layers[dense[0] :]:
        if isinstance(layer, eqx.nn.Linear):
            runs[-1].append((name, layer))
        elif isinstance(layer, ActivatedUnits):
            if bool(activations) != bool(runs[-1]):
                raise ValueError(f"from_network: {name} has to come first, or after an activation and a Linear")
            runs[-1].append((name, layer))
            activations.append(layer)
            runs.append([])
        elif (found := _activation(name, layer)) is not None:
            if not runs[-1]:
                raise ValueError(f"from_network: {name} is an activation after another; a Linear has to stand between")
            activations.append(found)
            runs.append([])
    if not activations or (len(activations) == 1 and not runs[-1]):
        raise ValueError(
            f"from_network: {type(module).__name__} has no hidden layer: Linear, an activation, and Linear"
        )
    if not runs[-1]:
        raise ValueError("from_network: the network ends with an activation; leave it to the likelihood")
    for (name, before), (name2, after) in itertools.pairwise(itertools.chain(*runs)):
        if before.weight.shape[0] != after.weight.shape[1]:
            raise ValueError(
                f"from_network: {name} has {before.weight.shape[0]} outputs, {name2} takes {after.weight.shape[1]}"
            )
    return front, _blocks([[_map(layer) for _, layer in run] for run in runs], activations)


_Affine = tuple[Array, Array]  # weight [P, D] and bias [P]


def _blocks(runs: list[list[_Affine]], activations: list[_Function]) -> list[_Block]:
    """Of two or more linear maps between activations the first ends a layer, the others are the units of the next one.

    A single one ends a layer, without its bias. That is the bias of the next units, each of which sees one output. The map
    of `ActivatedUnits` is theirs alone, and all before it end a layer.
    """
    blocks = []
    weight, bias = _composed(runs[0])
    for run, activation, following in itertools.zip_longest(runs[1:], activations, activations[1:]):
        cut = len(run) if following is None else len(run) - 1 if isinstance(following, ActivatedUnits) else 1
        rest = run[cut:]
        V, offset = _composed(run[:cut])
        after = _composed(rest) if rest else (jnp.eye(len(V), dtype=V.dtype), offset)
        if following is not None and not rest:
            offset = jnp.zeros_like(offset)
        blocks.append(_Block(weight, bias, activation, V.T, offset))
        weight, bias = after
    return blocks


def _map(layer: Any) -> _Affine:
    weight = validation.floating(layer.weight, "weight")
    return weight, jnp.zeros(len(weight), weight.dtype) if layer.bias is None else layer.bias


def _composed(maps: Sequence[_Affine]) -> _Affine:
    """One linear map after another."""
    return functools.reduce(lambda one, two: (matmul(two[0], one[0]), matmul(two[0], one[1]) + two[1]), maps)


def _flattened(module: Any, name: str = "") -> list[tuple[str, Any]]:
    """The layers of a network, in order, each with the name of its place; without those that do nothing when it is used."""
    if isinstance(module, eqx.nn.MLP):
        layers: list[Any] = []
        for layer in module.layers:
            layers += [layer, eqx.nn.Lambda(module.activation)]
        layers[-1] = eqx.nn.Lambda(module.final_activation)
        # The activation after a layer has the number of that layer.
        names = [f"{name}layers[{i // 2}]" for i in range(len(layers))]
        return [(f"{place} ({type(layer).__name__})", layer) for place, layer in zip(names, layers, strict=True)]
    if isinstance(module, eqx.nn.Sequential):
        found = []
        for i, layer in enumerate(module.layers):
            place = f"{name}layers[{i}]"
            if isinstance(layer, eqx.nn.MLP | eqx.nn.Sequential):
                found += _flattened(layer, f"{place}.")
            elif not isinstance(layer, eqx.nn.Dropout | eqx.nn.Identity):
                found.append((f"{place} ({type(layer).__name__})", layer))
        return found
    if isinstance(module, eqx.nn.Linear):
        return [("the layer", module)]
    raise ValueError(
        f"from_network expects an equinox.nn.MLP, or an equinox.nn.Sequential that ends with dense layers, "
        f"got {type(module).__name__}"
    )


def _activation(name: str, layer: Any) -> Callable[[Array], Array] | None:
    """The activation of the table that a layer is, found by its values; None where it is the identity."""
    if not isinstance(layer, eqx.nn.Lambda):
        raise ValueError(
            f"from_network: {name} is not understood; from the first Linear on, a network is made of Linear, "
            "Lambda(activation), ActivatedUnits, Dropout and Identity"
        )
    if layer.fn in _ACTIVATIONS.values():
        return layer.fn
    t = np.linspace(-5.0, 5.0, 41, dtype=np.float32)
    try:
        with jax.ensure_compile_time_eval():
            values = np.asarray(layer.fn(jnp.asarray(t)))
    except Exception:  # it is not a function of an array, and is refused below
        values = np.zeros(0)
    if np.array_equal(values, t):
        return None
    for known in _ACTIVATIONS.values():
        if values.shape == t.shape and np.allclose(values, known(t), rtol=1e-5, atol=1e-6):
            return known
    function = getattr(layer.fn, "__name__", layer.fn)
    raise ValueError(
        f"from_network: the activation {function!r} of {name} is not supported; "
        f"those of jax.nn that are: {', '.join(_ACTIVATIONS)}"
    )
