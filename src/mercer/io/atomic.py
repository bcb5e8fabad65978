"""Files that are replaced as a whole: a reader, and a run after a crash, finds the old file or the new one."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write bytes to. It becomes `path` where the block ends without an error, and vanishes otherwise.

    Its bytes are on the disk before it takes the name, and the name is before this returns, where the platform can say so. Its
    permissions are those of the file that was there, or of any new file.
    """
    path = Path(path)
    name = path.name.encode(errors="ignore")[:200].decode(errors="ignore")  # file systems take 255 bytes
    temporary = path.with_name(f".{name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Puts the names in a folder on the disk; on some platforms and file systems a folder cannot be opened, or synced."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
