"""Which pushes a device looks at: those that a trusted operator signed for it, none older than the newest one."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from pathlib import Path
from typing import Final

from edge_agent.config import AgentSettings
from edge_agent.pushable import PushRefused
from waybill.daemon.durable_file import replace_durably

VERSION_FILE: Final = "pushed-version.json"
"""Beside the buffer: the newest version that was taken, and what it said. It goes on after a restart."""


class PushSignatures:
    """Opens what is pushed to one device. The settings are those of its own file, which no push can change."""

    def __init__(self, settings: AgentSettings) -> None:
        self._push = settings.push
        self._device = f"{settings.device.tenant}/{settings.device.id}"
        self._file: Path = settings.buffer.path / VERSION_FILE

    def open(self, text: bytes, now: datetime) -> bytes:
        """The settings of a push that may be tried. Raises PushRefused, which says why; SettingsError; OSError.

        The newest version is noted before its settings are looked at: whatever becomes of them, no older ones follow.
        """
        if self._push.unsigned:
            return text
        if self._push.operators is None:
            raise PushRefused("this device trusts no operator's key: its own file names them, push.operators")
        # only a device that is pushed something needs the library that checks signatures
        from waybill.identity.errors import SignatureRefused  # noqa: PLC0415
        from waybill.identity.operator_files import read_operators  # noqa: PLC0415
        from waybill.identity.signed_push import read_signed_push, verify_push  # noqa: PLC0415

        try:
            push = read_signed_push(text)
            verify_push(read_operators(self._push.operators), push, self._device, now)
        except SignatureRefused as refused:
            raise PushRefused(str(refused)) from refused
        # only of what an operator signed: nobody else can make a device look at its disk
        newest, digest = self._newest()
        mine = hashlib.sha256(push.settings).hexdigest()
        if push.version < newest:
            raise PushRefused(f"older: version {push.version}, and version {newest} was taken already")
        if push.version == newest and digest != mine:
            raise PushRefused(f"older: version {newest} was taken already, and said something else")
        # a push that is known writes nothing: it comes again with every connection
        if push.version > newest:
            noted = {"device": self._device, "version": push.version, "sha256": mine}
            replace_durably(self._file, json.dumps(noted).encode())
        return push.settings

    def _newest(self) -> tuple[int, str]:
        """Of this device. What is damaged is an error: to forget the newest version would let an older one in."""
        try:
            found = json.loads(self._file.read_bytes())
            if found["device"] != self._device:
                return 0, ""
            return int(found["version"]), str(found["sha256"])
        except FileNotFoundError:
            return 0, ""
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise PushRefused(
                f"{self._file} is damaged, so it is not known which version is the newest: remove it on the device"
            ) from error
