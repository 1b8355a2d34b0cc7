"""Which cluster is read, kept in a small file beside the checkpoint; and the operator's word about it.

A position means nothing in another cluster, so after a change of cluster reading begins at the subscription's cursor
there, which followed what was acknowledged. Two things must outlive the driver, because neither the checkpoint nor the
clusters tell them: which cluster is read now (a cluster that comes back must not be rejoined by itself, it may have
missed acknowledgements), and which planned batches were closed without being read.
"""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from cloud_jobs.pulsar_source.position import Offset

_MOST_ABANDONED = 16


@dataclass(frozen=True, slots=True)
class Standing:
    """The active cluster, and the ends of batches that were planned on a cluster that then was lost. Pure."""

    active: str
    abandoned: tuple[str, ...] = ()

    def moved(self, cluster: str) -> Self:
        """Reading goes on there."""
        return replace(self, active=cluster)

    def abandoning(self, end: Offset) -> Self:
        """The batch up to `end` is closed without being read: what it held comes again from the other cluster."""
        return replace(self, abandoned=(*self.abandoned, _text(end))[-_MOST_ABANDONED:])

    def abandoned_at(self, end: Offset) -> bool:
        """Whether the batch that ended here was closed without being read."""
        return _text(end) in self.abandoned

    def from_cursor(self, start: Offset) -> bool:
        """Whether the batch after `start` begins at the active cluster's cursor and not at `start`."""
        return start.cluster != self.active or self.abandoned_at(start)


class FailoverFile:
    """The file that keeps a `Standing`, and `<file>.order`, where an operator writes the name of a cluster."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._order = path.with_name(path.name + ".order")

    def load(self, default: str) -> Standing:
        """What was kept; the default cluster when there is nothing yet."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Standing(default)
        return Standing(document["active"], tuple(document["abandoned"]))

    def save(self, standing: Standing) -> None:
        """Keeps it for good: on disk before this returns."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_name(self._path.name + ".draft")
        with draft.open("w", encoding="utf-8") as file:
            json.dump({"active": standing.active, "abandoned": list(standing.abandoned)}, file, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)

    def heard(self, standing: Standing, now_s: float) -> None:
        """Notes, as the file's time of change, that the active cluster answered at `now_s` (seconds since 1970)."""
        if not self._path.exists():
            self.save(standing)
        os.utime(self._path, (now_s, now_s))

    def heard_at(self) -> float | None:
        """When a cluster answered last, to whichever process reads it; None when that was never noted."""
        try:
            return self._path.stat().st_mtime
        except FileNotFoundError:
            return None

    def order(self) -> str | None:
        """The operator's word, if there is one."""
        try:
            return self._order.read_text(encoding="utf-8").strip() or None
        except FileNotFoundError:
            return None

    def obeyed(self) -> None:
        """The word is done with."""
        self._order.unlink(missing_ok=True)


def _text(offset: Offset) -> str:
    return json.dumps(offset.to_json(), sort_keys=True)
