"""Kernels of infinitely wide neural networks, said layer by layer: `NNGP` of the function, `NTK` of its training."""

from mercer.kernels.nngp.activations import Activation, Erf, Gelu, Relu
from mercer.kernels.nngp.elementwise import Elementwise
from mercer.kernels.nngp.kernels import NNGP, NTK
from mercer.kernels.nngp.layers import Conv, Dense, Flatten, GlobalAveragePool, Layer, Residual

__all__ = [
    "NNGP",
    "NTK",
    "Layer",
    "Dense",
    "Conv",
    "Flatten",
    "GlobalAveragePool",
    "Residual",
    "Activation",
    "Relu",
    "Erf",
    "Gelu",
    "Elementwise",
]
