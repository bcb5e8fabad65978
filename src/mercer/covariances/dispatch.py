"""The open functions between inducing variables and kernels, with one method for each pair of types.

A pair is added from anywhere, without touching mercer:

    @mercer.covariances.Kuu.dispatch
    def _(inducing: MyVariables, kernel: RBF): return Dense(...)

Variables are linear functionals of the process, u = A f, so that `Kuf` is A applied to one argument of the kernel, `Kuu` to
both (paper 004, equations 23 and 24), and the covariance `Kuv` of two different kinds is the one applied to the other's `Kuf`.
"""

import itertools
import typing
import warnings
from typing import Any

import equinox as eqx
from plum import Dispatcher

_dispatch = Dispatcher()


def _no_method(function, inducing: Any, kernel: Any) -> ValueError:
    pairs = {
        pair for method in function.methods for pair in itertools.product(*map(_names, method.signature.types[:2]))
    }
    return ValueError(
        f"{function.__name__} is not defined for {type(inducing).__name__} with {type(kernel).__name__}; the pairs "
        "that exist are " + ", ".join(f"({a}, {b})" for a, b in sorted(pairs - {("Any", "Any")}))
    )


def _names(annotation: Any) -> list[str]:
    """The names of a type, or of the members of a union."""
    return [getattr(t, "__name__", str(t)) for t in typing.get_args(annotation) or (annotation,)]


@_dispatch
def Kuu(inducing: Any, kernel: Any):
    """The covariance of the inducing variables with each other, a PSD operator [M, M]."""
    raise _no_method(Kuu, inducing, kernel)


@_dispatch
def size(inducing: Any, kernel: Any) -> int:
    """M, the number of variables under a kernel: that of the rows of `Kuu`."""
    return eqx.filter_eval_shape(Kuu, inducing, kernel).size


@_dispatch
def has_fixed_features(inducing: Any, kernel: Any) -> bool:
    """Whether `Kuf` has no parameters, nor the ratio of the kernel's variances at two inputs."""
    if getattr(inducing, "fixed", False):
        kind = type(inducing).__name__
        warnings.warn(f"{kind}.fixed: add a method to mercer.covariances.has_fixed_features", DeprecationWarning, 2)
        return True
    return False


@_dispatch
def feature_parameters(inducing: Any, kernel: Any) -> Any:
    """The parameters that `Kuf`, and the ratio of the kernel's variances at two inputs, depend on.

    Where they are held still, `CollapsedELBO` needs no more of the data than the sums Kuf Kfu and Kuf y. None where it is all of
    them, or where these sums would lose too much: they are whitened by Kuu afterwards, which must be well conditioned.
    """
    return () if has_fixed_features(inducing, kernel) else None


@_dispatch
def Kuf(inducing: Any, kernel: Any, X: Any):
    """The covariance of the inducing variables with the function at X, [M, N].

    With a kernel of P outputs it is [L, M, N, P]: L groups of M variables that are independent of each other a priori.
    """
    raise _no_method(Kuf, inducing, kernel)


@_dispatch
def Kuv(first: Any, kernel: Any, second: Any):
    """The covariance of two sets of inducing variables of one process (of one output), [M1, M2]."""
    if getattr(second, "pointwise", False):
        return second.of_function(lambda X: Kuf(first, kernel, X).T).T
    if getattr(first, "pointwise", False):
        return Kuv(second, kernel, first).T
    raise ValueError(
        f"the covariance of {type(first).__name__} with {type(second).__name__} under {type(kernel).__name__} is not known; "
        "add a method to mercer.covariances.Kuv"
    )
