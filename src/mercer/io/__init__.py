"""Files: models saved and loaded without running code."""

from mercer.io.archive import FormatError, load, save
from mercer.io.registry import register

__all__ = ["save", "load", "register", "FormatError"]
