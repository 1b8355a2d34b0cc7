"""A push from its signature to its end: verified, tried, and kept or taken back."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from pydantic import BaseModel

from edge_agent.config import AgentSettings
from edge_agent.push.pushed import PushRefused, merge_pushed
from waybill.daemon.bounded_file import read_bounded
from waybill.daemon.durable_file import replace_durably
from waybill.settings import MAX_PUSHED_BYTES

RECORD_FILE: Final = "pushed.json"
"""The file of the PushRecord, in the buffer's folder."""
MAX_ATTEMPTS: Final = 3
"""A push that fails this many trials is refused for good. The region's broker retains it and delivers it again."""
_MAX_RECORD_BYTES: Final = 8 * MAX_PUSHED_BYTES


class PushRecord(BaseModel):
    """What the device remembers of pushed settings.

    `version`: the newest version accepted. `attempts_left`: how often it may still be tried; 0 once it is decided.
    `boot`: the boot of the device in which the last trial began. `trial`, `in_force`: pushed texts.
    """

    device: str
    version: int = 0
    attempts_left: int = 0
    boot: str = ""
    trial: str | None = None
    in_force: str = ""


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """The settings to run with. `pushed`: the state of pushed ones; `reason`: why they are passed over."""

    settings: AgentSettings
    pushed: Literal["none", "in force", "on trial", "passed over"]
    reason: str = ""


class PushTrial:
    """The pushed settings of one agent.

    A pushed text is effective from `begin` on, and stays so after `try_confirm`. `boot` identifies the device's boot.
    """

    def __init__(self, tables: Mapping[str, Any], settings: AgentSettings, boot: str = "") -> None:
        """`tables`: the parsed file of `settings`."""
        self._base = settings
        self._tables = tables
        self._operators = settings.push.operators
        self._file = settings.buffer.path / RECORD_FILE
        self._boot = boot
        self._problem = ""
        self._record = self._read(PushRecord(device=f"{settings.device.tenant}/{settings.device.id}"))

    @property
    def is_on(self) -> bool:
        return self._record.trial is not None

    @property
    def may_try_again(self) -> bool:
        """Whether the newest push gets another trial when the region delivers it again."""
        return self._record.attempts_left > 0

    def effective(self) -> EffectiveSettings:
        trial, in_force = self._record.trial, self._record.in_force
        if trial is None and not in_force:
            return EffectiveSettings(self._base, "passed over" if self._problem else "none", self._problem)
        try:
            settings = merge_pushed(self._base, self._tables, in_force if trial is None else trial)
        except PushRefused as refused:
            return EffectiveSettings(self._base, "passed over", str(refused))
        return EffectiveSettings(settings, "in force" if trial is None else "on trial")

    def begin(self, text: bytes, now: datetime) -> bool:
        """Puts a signed push on trial; False if this version is decided already.

        Raises PushRefused with the reason; SettingsError (of the file of keys) and OSError if it cannot be tried now.
        """
        version, settings = self._verified(text, now)
        known = self._record
        if version < known.version:
            raise PushRefused(f"older: version {version}, and version {known.version} was accepted already")
        if version == known.version and known.attempts_left == 0:
            return False
        left = MAX_ATTEMPTS if version > known.version else known.attempts_left
        try:
            pushed = settings.decode("utf-8-sig")
            merge_pushed(self._base, self._tables, pushed)
        except (PushRefused, UnicodeDecodeError) as refused:
            # Remembered too: no older version may follow, and the retained push is not checked again.
            self._write(version=version, attempts_left=0, trial=None)
            raise PushRefused(str(refused)) from refused
        self._write(version=version, attempts_left=left - 1, boot=self._boot, trial=pushed)
        return True

    def try_confirm(self) -> bool:
        """Keeps the settings on trial; False if the disk has no room for it."""
        try:
            self._write(in_force=self._record.trial or "", trial=None, attempts_left=0)
        except OSError:
            return False
        return True

    def take_back(self, *, counts: bool = True) -> None:
        """Ends the trial and restores the former settings. `counts`: the trial used up one attempt."""
        if not self.is_on:
            return
        left = self._record.attempts_left + (not counts)
        # On a full disk the file keeps the trial, and the next start takes it back.
        with suppress(OSError):
            self._write(trial=None, attempts_left=left)
        self._record = self._record.model_copy(update={"trial": None, "attempts_left": left})

    def recover(self) -> bool:
        """Takes back a trial that a restart interrupted; whether there was one. A reboot uses up no attempt."""
        was_on = self.is_on
        self.take_back(counts=self._record.boot == self._boot)
        return was_on

    def _verified(self, text: bytes, now: datetime) -> tuple[int, bytes]:
        """The version and the settings of a push that a trusted operator signed for this device."""
        if self._problem:
            raise PushRefused(self._problem)
        if self._operators is None:
            raise PushRefused("this device trusts no operator's key: set push.operators in its own file")
        # The signature library is heavy; a device that gets no push never loads it.
        from waybill.identity.errors import SignatureRefused  # noqa: PLC0415
        from waybill.identity.signatures import read_operators, read_signed_push, verify_push  # noqa: PLC0415

        if len(text) > MAX_PUSHED_BYTES:
            raise PushRefused(f"{len(text)} bytes, {MAX_PUSHED_BYTES} are allowed")
        try:
            push = read_signed_push(text)
            verify_push(read_operators(self._operators), push, self._record.device, now)
        except SignatureRefused as refused:
            raise PushRefused(str(refused)) from refused
        return push.version, push.settings

    def _read(self, own: PushRecord) -> PushRecord:
        try:
            found = PushRecord.model_validate_json(read_bounded(self._file, _MAX_RECORD_BYTES))
        except FileNotFoundError:
            return own
        except (OSError, ValueError):
            # Starting from version 0 would accept an older push.
            self._problem = f"{self._file} is damaged, so the newest version is unknown: remove it on the device"
            return own
        return found if found.device == own.device else own

    def _write(self, **changes: object) -> None:
        record = self._record.model_copy(update=changes)
        replace_durably(self._file, record.model_dump_json().encode(), mode=0o600)
        self._record = record


Verdict = Literal["running", "confirmed", "failed"]


class TrialEvaluator:
    """Judges one trial: confirmed by an acknowledgement and a quarter of `confirm_s` without an error."""

    def __init__(self, now_s: float, confirm_s: float) -> None:
        self._until_s = now_s + confirm_s
        self._steady_s = confirm_s / 4
        self._good_since_s: float | None = None

    def evaluate(self, now_s: float, *, is_acked: bool, is_well: bool, is_idle: bool) -> Verdict:
        """The verdict now.

        `is_acked`: the present connection brought an acknowledgement. `is_idle`: connected, and no record waits; such a
        trial goes on, because it says nothing about the settings yet.
        """
        if not (is_acked and is_well):
            self._good_since_s = None
        elif self._good_since_s is None:
            self._good_since_s = now_s
        if self._good_since_s is not None and now_s - self._good_since_s >= self._steady_s:
            return "confirmed"
        return "running" if now_s < self._until_s or is_idle else "failed"
