"""Cells on the disk: finished, failed, running or missing, told apart by files alone.

    cells/HASH/            finished: all that a run gives but the picture
    cells/HASH.failed      why it failed, and when
    cells/HASH.claim       somebody runs it
    cells/HASH.partial     what is there of it so far
    cells/HASH.deaths      how many processes died while they ran it

A cell at which processes of one session die again and again has failed, and the others go on. That a whole session was killed is
no fault of the cells that it ran.
"""

import contextlib
import dataclasses
import json
import os
import socket
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from mercer.experiments.claims import claim, content, holds
from mercer.experiments.running import scores_in
from mercer.io.atomic import replacing

State = Literal["finished", "failed", "running", "missing"]
MOST_DEATHS = 3


@dataclasses.dataclass(frozen=True)
class Store:
    """The cells and stages of a folder."""

    root: Path

    @property
    def stages(self) -> Path:
        """Where stages lie."""
        return self.root / "stages"

    def folder(self, identity: str) -> Path:
        """Of a finished cell."""
        return self.root / "cells" / identity

    def _beside(self, identity: str, suffix: str) -> Path:
        return self.root / "cells" / f"{identity}.{suffix}"

    def state(self, identity: str) -> State:
        """What the files say."""
        if scores_in(self.folder(identity)) is not None:
            return "finished"
        if self._beside(identity, "failed").exists():
            return "failed"
        return "running" if holds(self._beside(identity, "claim")) else "missing"

    def is_left(self, identity: str) -> bool:
        """Whether a cell is neither finished nor failed."""
        return scores_in(self.folder(identity)) is None and not self._beside(identity, "failed").exists()

    def over(self, identities: Iterable[str]) -> dict[str, State]:
        """Of these cells, those that are finished or failed; only what is new in the folder is opened."""
        folder = self.root / "cells"
        names = set(os.listdir(folder)) if folder.is_dir() else set[str]()
        new = [one for one in identities if names & {one, f"{one}.failed"}]
        return {one: self.state(one) for one in new if not self.is_left(one)}

    def deaths(self, identity: str) -> int:
        """How many processes died while they ran a cell."""
        return content(self._beside(identity, "deaths")).get("deaths", 0)

    def scores(self, identity: str) -> dict[str, dict[str, float]] | None:
        """Of a finished cell."""
        return scores_in(self.folder(identity))

    def failure(self, identity: str) -> dict[str, Any]:
        """Why a cell failed: a sentence, and a traceback if there is one."""
        return json.loads(self._beside(identity, "failed").read_text())

    def fail(self, identity: str, reason: str, trace: str = "") -> None:
        """Says that a cell failed."""
        said = {
            "reason": reason,
            "traceback": trace,
            "time": time.strftime("%Y-%m-%d %H:%M:%S"),
            "host": socket.gethostname(),
        }
        self._write(self._beside(identity, "failed"), said)

    def forget_failure(self, identity: str) -> None:
        """Makes a failed cell a missing one."""
        for suffix in ("failed", "deaths"):
            self._beside(identity, suffix).unlink(missing_ok=True)

    def claim(self, identity: str, session: str = "") -> contextlib.AbstractContextManager[bool]:
        """Whether this process may run a cell, for as long as it lasts."""
        return claim(self._beside(identity, "claim"), session, lambda: self._survived(identity))

    def _survived(self, identity: str) -> bool:
        """Counts the death of a process that ran a cell; whether another may try."""
        deaths = 1 + self.deaths(identity)
        self._write(self._beside(identity, "deaths"), {"deaths": deaths})
        if deaths >= MOST_DEATHS:
            self.fail(identity, f"{deaths} processes died while they ran it: not enough memory?")
        return deaths < MOST_DEATHS

    def _write(self, path: Path, content: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps(content, indent=1).encode())


def error_in_words(error: BaseException) -> tuple[str, str]:
    """A sentence, and the traceback."""
    sentence = " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: {sentence}"[:500], "".join(traceback.format_exception(error))
