"""The two open functions between inducing variables and kernels, with one method for each pair of types.

A pair is added from anywhere, without touching mercer:

    @mercer.covariances.Kuu.dispatch
    def _(inducing: MyVariables, kernel: RBF): return Dense(...)
"""

from typing import Any

from plum import Dispatcher

_dispatch = Dispatcher()


def _no_method(function, inducing: Any, kernel: Any) -> ValueError:
    pairs = {tuple(getattr(t, "__name__", str(t)) for t in method.signature.types[:2]) for method in function.methods}
    return ValueError(
        f"{function.__name__} is not defined for {type(inducing).__name__} with {type(kernel).__name__}; the pairs "
        "that exist are " + ", ".join(f"({a}, {b})" for a, b in sorted(pairs - {("Any", "Any")}))
    )


@_dispatch
def Kuu(inducing: Any, kernel: Any):
    """The covariance of the inducing variables with each other, a PSD operator [M, M]."""
    raise _no_method(Kuu, inducing, kernel)


@_dispatch
def Kuf(inducing: Any, kernel: Any, X: Any):
    """The covariance of the inducing variables with the function at X, [M, N]."""
    raise _no_method(Kuf, inducing, kernel)
