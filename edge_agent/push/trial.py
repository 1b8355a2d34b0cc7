"""A push from its signature to its end: opened, tried, and kept or taken back."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from edge_agent.config import AgentSettings
from edge_agent.push.pushed import (
    ALLOW_DELETION,
    IN_FORCE,
    ON_TRIAL,
    REFUSED,
    PushedFiles,
    PushRefused,
    allows_deletion,
    effective_settings,
    merge_pushed,
    with_present_retention,
)
from waybill.daemon.backoff import Backoff
from waybill.daemon.durable_file import replace_durably
from waybill.settings import MAX_PUSHED_BYTES, SettingsError

# Pushes that a device accepts: signed by a trusted operator and not older than the newest one.

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
        from waybill.identity.signatures import (  # noqa: PLC0415
            read_operators,
            read_signed_push,
            verify_push,
        )

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
                f"{self._file} is damaged, so the newest version is unknown: remove it on the device"
            ) from error


# The trial of pushed settings: accept, reject or retry. Pure: handed the time.

Verdict = Literal["running", "confirmed", "failed", "nothing to send"]
MAX_RETRY_S = 21_600.0


class TrialEvaluator:
    """One trial: confirmed by an acknowledgement and a quarter of `confirm_s` without an error, else failed."""

    def __init__(self, now_s: float, confirm_s: float) -> None:
        self._until_s = now_s + confirm_s
        self._steady_s = confirm_s / 4
        self._good_since_s: float | None = None
        self._was_connected = False

    def evaluate(self, now_s: float, *, is_connected: bool, is_acked: bool, is_well: bool, batches: int) -> Verdict:
        """The verdict now. `is_acked`: the present connection brought an acknowledgement of `batches` that were sent.

        A trial in which nothing was there to send says nothing about the settings. One that `holds_back` what flowed
        before ends at once: what it takes in may have to wait for another link.
        """
        self._was_connected = self._was_connected or is_connected
        if not (is_acked and is_well):
            self._good_since_s = None
        elif self._good_since_s is None:
            self._good_since_s = now_s
        if self._good_since_s is not None and now_s - self._good_since_s >= self._steady_s:
            return "confirmed"
        if now_s < self._until_s:
            return "running"
        return "nothing to send" if self._was_connected and batches == 0 else "failed"


class RetryTimes:
    """When a proposal that was taken back is tried again: `first_s` later, then twice as long each time."""

    def __init__(self, first_s: float) -> None:
        # Without jitter: a trial is one device's own, and a fleet was not refused at one moment.
        self._backoff = Backoff(first_s, MAX_RETRY_S, lambda: 1.0)
        self.due_s = 0.0

    def schedule_next(self, now_s: float) -> None:
        """A trial ended without a confirmation."""
        self.due_s = now_s + self._backoff.take_delay_s()

    def reset(self) -> None:
        """A new proposal."""
        self._backoff.reset()
        self.due_s = 0.0


NO_ACKNOWLEDGEMENT = "no region acknowledged with them"
MAX_ATTEMPTS = 3
"""Trials that may end without an acknowledgement, or with the agent, before a proposal is refused for good."""
_ATTEMPT = b"# attempt "


class Trial:
    """The pushed settings of one agent. `boot` distinguishes a restart of the device from one of the agent.

    What waits to be tried again is in memory alone: after a restart the region delivers the push once more.
    """

    def __init__(self, config: Path, settings: AgentSettings, boot: str = "") -> None:
        self._config = config
        self._files = PushedFiles(settings)
        self._boot = boot
        self._attempts = 0
        self.waiting: bytes | None = None
        """The settings that wait to be tried again."""

    @property
    def is_on(self) -> bool:
        """Whether settings are on trial."""
        return self._files.read(ON_TRIAL) is not None

    def begin(self, text: bytes) -> bool:
        """Puts pushed settings on trial; False when they are known already. Raises PushRefused, each time anew."""
        if self.waiting == text:
            return False
        # A newer push ends the wait of the former one, also if it is refused itself.
        self.waiting, self._attempts = None, 0
        if self._text(IN_FORCE) == text:
            return False
        if (reason := self._refused_before(text)) is not None:
            raise PushRefused(f"refused before: {reason}"[:500])
        self._begin(text)
        return True

    def begin_again(self) -> bool:
        """Puts on trial what waits for it; False when nothing does. Raises PushRefused if it does not fit any more."""
        if self.waiting is None:
            return False
        self._begin(self.waiting)
        return True

    def confirm(self) -> None:
        """What is on trial is in force."""
        self._files.move(ON_TRIAL, IN_FORCE)

    def refuse(self, reason: str) -> None:
        """What is on trial is discarded for good, for as long as the device's own file is the same."""
        with suppress(OSError):
            self._refuse(self._text(ON_TRIAL) or b"", reason)
        self._files.remove(ON_TRIAL)

    def take_back(self, *, counts: bool = True) -> bool:
        """What is on trial is discarded: to be tried again (True), or for good after MAX_ATTEMPTS trials that count.

        A full disk does not keep a trial on: what cannot be remembered is tried once more.
        """
        text = self._text(ON_TRIAL)
        if text is None:
            return False
        self._attempts -= not counts
        if self._attempts >= MAX_ATTEMPTS:
            with suppress(OSError):
                self._refuse(text, NO_ACKNOWLEDGEMENT)
        elif self._text(IN_FORCE) != text:
            self.waiting = text
        self._files.remove(ON_TRIAL)
        return self.waiting is not None

    def recover(self) -> bool:
        """After a start: takes back a trial that was cut short; True when there was one.

        It counts if the agent ended and the device did not: who turns off the ignition refuses nothing.
        """
        if not self.is_on:
            return False
        attempt, _, boot = (
            (self._files.read(ON_TRIAL) or b"").partition(b"\n")[0].removeprefix(_ATTEMPT).partition(b" ")
        )
        self._attempts = int(attempt) if attempt.isdigit() else MAX_ATTEMPTS
        self.take_back(counts=boot == self._boot.encode())
        return True

    def _begin(self, text: bytes) -> None:
        """Whatever is wrong with a text, it is not looked at again with every connection."""
        try:
            self._check(text)
        except SettingsError:
            raise
        except Exception as error:
            self._refuse(text, str(error) if isinstance(error, PushRefused) else "it cannot be handled")
            self.waiting = None
            raise
        self._files.replace(ON_TRIAL, b"%s%d %s\n%s" % (_ATTEMPT, self._attempts + 1, self._boot.encode(), text))
        self._attempts += 1
        self.waiting = None

    def _text(self, name: str) -> bytes | None:
        """Pushed settings as they came, without the line that says of which attempt they are."""
        text = self._files.read(name)
        return text.partition(b"\n")[2] if text is not None and text.startswith(_ATTEMPT) else text

    def _refuse(self, text: bytes, reason: str) -> None:
        one_line = " ".join(reason.split())[:500].encode()
        self._files.replace(REFUSED, b"# %s\n# %s\n%s" % (self._own_digest(), one_line, text[:MAX_PUSHED_BYTES]))

    def _refused_before(self, text: bytes) -> str | None:
        """Why this text was refused with the device's own file as it is now; None if it was not."""
        try:
            digest, reason, refused = (self._files.read(REFUSED) or b"").split(b"\n", 2)
        except ValueError:
            return None
        if refused != text[:MAX_PUSHED_BYTES] or digest != b"# " + self._own_digest():
            return None
        return reason[2:].decode("utf-8", "replace")

    def _own_digest(self) -> bytes:
        try:
            return hashlib.sha256(self._config.read_bytes()).hexdigest().encode()
        except OSError:
            return b"unreadable"

    def _check(self, text: bytes) -> None:
        if len(text) > MAX_PUSHED_BYTES:
            raise PushRefused(f"{len(text)} bytes, {MAX_PUSHED_BYTES} are allowed")
        try:
            words = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise PushRefused(str(error)) from error
        proposed, present = merge_pushed(self._config, words), effective_settings(self._config).settings
        if not allows_deletion(words) and with_present_retention(present, proposed) != proposed:
            raise PushRefused(
                f"stored records could be deleted (max_bytes, max_age_s, downsampling): say {ALLOW_DELETION} = true"
            )
