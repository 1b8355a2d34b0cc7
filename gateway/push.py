"""Settings for devices: files that are published to them, and their answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import structlog

from gateway.config import PushFolder
from gateway.inflight import Sender
from waybill.identity.errors import SignatureRefused
from waybill.identity.operator_keys import OperatorKeys
from waybill.identity.signatures import read_operators, read_signed_push, verify_push
from waybill.record import DEVICE_PATTERN, InvalidJson, parse_json
from waybill.settings import MAX_PUSHED_BYTES, SettingsError, open_file, parse_toml

OUTCOMES = ("applied", "refused", "taken back")
UNKNOWN = "unknown"
MAX_RESULT_BYTES = 16 << 10
_MAX_RESULT_DEPTH = 4
_MAX_REASON = 500
_LOG = structlog.get_logger("gateway")


class PushedFile(NamedTuple):
    sender: Sender
    text: bytes


class PushQueue:
    """The files that must be published. Devices ignore settings that they have, so a file may be published twice."""

    def __init__(self, settings: PushFolder, on_refused: Callable[[], object] = lambda: None) -> None:
        self._settings, self._on_refused = settings, on_refused
        self._waiting: deque[Path] = deque()
        self._keys: OperatorKeys | None = None
        self.load()

    def load(self) -> None:
        """Queue all files, and read the trusted keys again."""
        folder, operators = self._settings.folder, self._settings.operators
        # Without readable keys nothing can be checked, so nothing is published.
        self._waiting.clear()
        if folder is None or operators is None:
            return
        try:
            self._keys = read_operators(operators)
            self._waiting.extend(sorted(folder.glob("*/*.toml")))
        except SettingsError as error:
            self._on_refused()
            _LOG.error("settings not pushed", file=str(operators), problem=str(error))

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def take_next(self) -> PushedFile | None:
        """The next file; None if it cannot be published, which is logged, or if none waits."""
        if self._keys is None or not self._waiting:
            return None
        path = self._waiting.popleft()
        try:
            push = read_push(path)
            verify_push(self._keys, read_signed_push(push.text), "/".join(push.sender), datetime.now(UTC))
            return push
        except (OSError, ValueError, SignatureRefused) as error:
            self._on_refused()
            _LOG.error("settings not pushed", file=str(path), problem=str(error))
            return None


def read_push(path: Path) -> PushedFile:
    """Read `{tenant}/{device}.toml`. Raises OSError, and ValueError for content that no device would accept."""
    device = Sender(path.parent.name, path.stem)
    if not all(DEVICE_PATTERN.fullmatch(name) for name in device):
        raise ValueError(f"{device.tenant}/{device.device} is not a valid device name")
    if not path.is_file():
        raise ValueError("not a file")
    with open_file(path) as file:
        # One more byte shows whether the file is too large.
        text = file.read(MAX_PUSHED_BYTES + 1)
    if len(text) > MAX_PUSHED_BYTES:
        raise ValueError(f"more than {MAX_PUSHED_BYTES} bytes, more than a device accepts")
    parse_toml(text.decode("utf-8"), MAX_PUSHED_BYTES)  # by the device's own measure
    # An empty retained message would delete the former one; a blank line means the same to a device.
    return PushedFile(device, text or b"\n")


def parse_config_result(payload: bytes) -> tuple[str, str]:
    """Outcome (one of OUTCOMES, or UNKNOWN) and reason in a `config-result`. Never raises."""
    try:
        answer = parse_json(payload, max_bytes=MAX_RESULT_BYTES, max_depth=_MAX_RESULT_DEPTH)
    except InvalidJson as error:
        return UNKNOWN, f"not an answer: {error}"[:_MAX_REASON]
    if not isinstance(answer, dict) or answer.get("outcome") not in OUTCOMES:
        return UNKNOWN, f"not one of the outcomes that are known: {payload[:100]!r}"
    return answer["outcome"], str(answer.get("reason", ""))[:_MAX_REASON]
