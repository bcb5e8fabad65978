"""Inducing points and any kernel: the covariances are the kernel's own values."""

from jaxtyping import Array

from mercer.covariances.dispatch import Kuf, Kuu, size
from mercer.inducing.points import Points
from mercer.kernels.base import Kernel
from mercer.linalg.operators import PSD, Dense


@Kuu.dispatch
def _(inducing: Points, kernel: Kernel) -> PSD:
    return Dense(kernel(inducing.Z))


@Kuf.dispatch
def _(inducing: Points, kernel: Kernel, X) -> Array:
    return kernel(inducing.Z, X)


@size.dispatch
def _(inducing: Points, kernel: Kernel) -> int:
    return inducing.num
