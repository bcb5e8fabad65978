"""The command `mercer`: its entry point, and how it fails.

What a user can mend is one sentence on standard error and the exit code 1; what should not have happened, one sentence and 70.
With MERCER_DEBUG=1 in the environment there are tracebacks, and warnings are shown.
"""

import contextlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Sequence

_INSTALL = "the command mercer needs typer and rich: pip install 'mercer[cli]'"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command, by default on the arguments of the process, and exits."""
    debug = bool(os.environ.get("MERCER_DEBUG"))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # a stream that is not a text file
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    with warnings.catch_warnings():
        if not debug:
            warnings.simplefilter("ignore")
            logging.getLogger("jax").setLevel(logging.CRITICAL)
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        try:
            _app()(arguments, prog_name="mercer")
        except Exception as error:
            if debug:
                raise
            sentence, code = _explained(error)
            print("mercer:", "".join(c if c.isprintable() else "?" for c in sentence), file=sys.stderr)
            raise SystemExit(code) from None


def _app():
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        raise ImportError(_INSTALL) from error
    from mercer.cli import sweeps

    return sweeps.app


def _explained(error: Exception) -> tuple[str, int]:
    """An error in one sentence, and the exit code."""
    from mercer.io import FormatError
    from mercer.io.tables import TableError

    said = _with_options(" ".join(str(error).split())[:1000])
    if isinstance(error, TableError | FormatError) or (isinstance(error, ImportError) and "pip install" in said):
        return said, 1
    if isinstance(error, FileNotFoundError) and error.filename is None:
        return f"{said}; check the path", 1
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'} cannot be read or written ({error.strerror or said}); check the path", 1
    if isinstance(error, MemoryError):
        return "the memory is not enough; use fewer rows, or a smaller --inducing", 1
    if isinstance(error, ValueError) and _is_ours(error):
        return said, 1
    kind = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return f"this is a bug ({kind}); run it with MERCER_DEBUG=1 for the traceback, and report it", 70


def _with_options(said: str) -> str:
    """A sentence of the library with options in the place of the arguments of `TableModel.fit`."""
    said = re.sub(r"\btask='(\w+)'", r"--task \1", said)
    return said.replace("lower max_exact", "leave out --method exact")


def _is_ours(error: Exception) -> bool:
    """Whether mercer raised an error itself, to say what is wrong with what it was given."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("mercer.")
