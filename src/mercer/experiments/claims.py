"""Claims: at most one process does a piece of work that has a name on the disk.

A claim is a file that only one process can create. Its owner touches it every few seconds. One that was not touched for a minute,
or whose process is gone from this machine, is void, and another may take it over.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BEAT = 5.0  # seconds between touches
VOID = 60.0  # seconds without one


@contextlib.contextmanager
def claim(path: Path, session: str = "", died: Callable[[], bool] | None = None) -> Iterator[bool]:
    """Whether the work is ours, for as long as this lasts.

    Where its owner died in the same session, `died` is asked if it may be taken over.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    token = _taken(path, session, died)
    if token is None:
        yield False
        return
    stop = threading.Event()
    heart = threading.Thread(target=_beat, args=(path, stop), daemon=True)
    heart.start()
    try:
        yield True
    finally:
        stop.set()
        heart.join()
        if content(path).get("token") == token:
            path.unlink(missing_ok=True)


def holds(path: Path) -> bool:
    """Whether a claim is there and not void."""
    try:
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return False
    said = content(path)
    is_here = said.get("host") == socket.gethostname() and isinstance(said.get("process"), int)
    return age < VOID and not (is_here and not _is_alive(said))


def content(path: Path) -> dict[str, Any]:
    """What a small JSON file says; nothing where it is not there, or not yet written."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _taken(path: Path, session: str, died: Callable[[], bool] | None) -> str | None:
    """A token, if the claim is ours now."""
    token, process = secrets.token_hex(8), os.getpid()
    said = {
        "token": token,
        "host": socket.gethostname(),
        "process": process,
        "started": _started(process),
        "session": session,
    }
    for _ in range(2):
        # Written under another name first: a claim is never there without its content.
        mine = path.with_name(f".{path.name}.{token}")
        mine.write_text(json.dumps(said))
        try:
            os.link(mine, path)
            return token
        except FileExistsError:
            seen = content(path)
            if holds(path) or not _removed(path, seen):
                return None
            if died is not None and seen.get("session") == session and not died():
                return None
        finally:
            mine.unlink(missing_ok=True)
    return None


def _removed(path: Path, seen: dict[str, Any]) -> bool:
    """Takes a void claim away. One that is not the one that was seen is put back."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return False
    ours = content(aside).get("token") == seen.get("token")
    if not ours:
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    aside.unlink(missing_ok=True)
    return ours


def _is_alive(said: dict[str, Any]) -> bool:
    """Whether the process of a claim runs on this machine; its number may have gone to another since."""
    try:
        os.kill(said["process"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return said.get("started") == _started(said["process"])


def _started(process: int) -> str | None:
    """When a process was started, in the words of Linux; None elsewhere."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _beat(path: Path, stop: threading.Event) -> None:
    while not stop.wait(BEAT):
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)
