"""The type checker that the tests put around every function of the library: beartype, with jaxtyping's shapes."""

from typing import Any, Self

from beartype import BeartypeConf, beartype

_CONFIGURATION = BeartypeConf(is_pep484_tower=True)  # an int is a float


def checked(function: Any) -> Any:
    """`function`, which refuses arguments and results that are not what its signature says."""
    annotations = getattr(function, "__annotations__", {})
    for name, hint in annotations.items():
        if hint is Self:  # beartype knows it in classes that it decorates itself only
            annotations[name] = Any
    return beartype(conf=_CONFIGURATION)(function)
