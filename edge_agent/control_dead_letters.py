"""Control messages that could not be handled: kept with their bytes, in a bounded folder beside the buffer."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import structlog

from waybill.daemon.durable_file import replace_durably

log = structlog.get_logger("edge_agent")

FOLDER = "control-dead-letters"
MAX_LETTERS = 64
"""Further ones are only counted, so that nobody can wear out the flash; who deletes files makes room."""
MAX_LETTER_BYTES = 64 << 10
MAX_REASON_CHARACTERS = 200


class ControlDeadLetters:
    """Files `0001.letter`, …: a line of JSON (source, reason, size) and the message's first MAX_LETTER_BYTES bytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self.count = 0
        """Messages since the agent started, kept or not."""

    def add(self, source: str, reason: str, payload: bytes) -> None:
        """Keeps a message, if there is room; counts it in any case. Never raises OSError."""
        self.count += 1
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            free = next((path for path in self._paths() if not path.exists()), None)
            if free is None:
                return
            about = {"source": source, "reason": reason[:MAX_REASON_CHARACTERS], "size": len(payload)}
            content = json.dumps(about).encode() + b"\n" + payload[:MAX_LETTER_BYTES]
            replace_durably(free, content, mode=0o600)
            log.error("dead letter of a control message", file=str(free), **about)

    def _paths(self) -> list[Path]:
        return [self._folder / f"{number:04}.letter" for number in range(1, MAX_LETTERS + 1)]
