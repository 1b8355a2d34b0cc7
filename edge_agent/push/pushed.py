"""Settings from the gateway: a proposal, laid over the file's, kept only when a region acknowledges with them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edge_agent.config import AgentSettings, ClassSettings, UplinkSettings
from edge_agent.process import machine_id
from waybill.daemon.durable_file import replace_durably, sync_folder
from waybill.identity.names import nearest
from waybill.settings import (
    MAX_PUSHED_BYTES,
    MAX_TOML_BYTES,
    SettingsError,
    load,
    one_line,
    parse_toml,
    read_file,
    validate,
)

# What a push may say, whatever the device's own file is: its keys, their bounds, and the check before it is signed.

ALLOW_DELETION = "allow_deletion"
"""The word, at the top of a push, without which nothing stored is deleted because of it."""
CREDENTIALS = ("tls", "username", "password_file")
PUSHABLE: Mapping[str, set[str] | None] = {
    "buffer": {
        "commit_delay_ms",
        "commit_records",
        "commit_bytes",
        "prune_delay_s",
        "max_bytes",
        "max_age_s",
        "free_space_floor_bytes",
        "downsample_above",
    },
    "classes": None,
    "drain": None,
    "link": {"link", "bytes_per_s", "burst_bytes", "bytes_per_day", "bytes_per_month", "metered", "plan_reserve"},
    "time": None,
    "uplinks": {
        *CREDENTIALS,
        "region",
        "host",
        "port",
        "keepalive_s",
        "connect_timeout_s",
        "backoff_first_s",
        "backoff_max_s",
    },
    "failover": None,
    "log": {"level"},
    ALLOW_DELETION: None,
}
"""What may be pushed; None: each of its keys. Who the device is, its files and where its data come from may not."""
BOUNDS: Mapping[str, tuple[float, float]] = {
    "buffer.prune_delay_s": (0.1, 600),
    "drain.ack_timeout_s": (2, 600),
    "drain.batching_delay_ms": (0, 60_000),
    "drain.heartbeat_s": (60, 3600),
    "drain.max_pause_s": (1, 600),
    "drain.max_refusals": (3, 100),
    "drain.refusal_backoff_s": (1, 600),
    "failover.after_s": (5, 3600),
    "failover.return_after_s": (30, 86_400),
    "failover.hold_s": (1, 3600),
    "link.bytes_per_s": (1_000, 1e12),
    "link.bytes_per_day": (1_000_000, 1e15),
    "link.bytes_per_month": (10_000_000, 1e16),
    "link.plan_reserve": (0, 0.5),
    "time.jump_s": (0.5, 3600),
    "time.same_clock_s": (1, 86_400),
    "time.grace_s": (60, 3600),
    "time.drift_ppm": (0, 10_000),
    "uplinks.backoff_max_s": (0.1, 3600),
    "uplinks.connect_timeout_s": (1, 60),
}
"""Narrower than those of the file: no pushed number silences a device."""
_ANY_DEVICE: Mapping[str, Any] = {
    "device": {"id": "any", "tenant": "any"},
    "insecure": True,
    "uplinks": [{"region": "any", "host": "localhost"}],
}
"""The least that a device's own file says."""


class PushRefused(Exception):
    """The pushed settings are not taken; the text says why."""


def pushed_tables(text: str) -> dict[str, Any]:
    """The tables of a push that names nothing but what may be pushed. Raises PushRefused."""
    try:
        pushed = parse_toml(text, MAX_PUSHED_BYTES)
    except ValueError as error:
        raise PushRefused(f"is not valid TOML: {error}"[:500]) from error
    if outside := sorted(key for key in _keys(pushed) if not _may_be_pushed(key)):
        raise PushRefused(f"{', '.join(map(_called, outside[:10]))} cannot be pushed"[:500])
    if not isinstance(pushed.get(ALLOW_DELETION, False), bool):
        raise PushRefused(f"{ALLOW_DELETION}: only true or false")
    uplinks = pushed.get("uplinks", [])
    if not isinstance(uplinks, list) or not all(isinstance(one, dict) for one in uplinks):
        raise PushRefused("uplinks: is a list of tables, and each of its items has to be a table")
    return pushed


def check_pushable(text: str) -> None:
    """Raises PushRefused for what no device takes; a device's own file may refuse more."""
    pushed = pushed_tables(text)
    pushed.pop(ALLOW_DELETION, None)
    for uplink in pushed.get("uplinks", []):
        # they have to be those of the device's own file, which is not here
        for key in CREDENTIALS:
            uplink.pop(key, None)
    try:
        settings = validate(AgentSettings, merged(_ANY_DEVICE, pushed), "pushed")
    except SettingsError as error:
        raise PushRefused("; ".join(error.problems)[:500]) from error
    check_bounds(settings, pushed)


def _keys(tables: Mapping[str, Any]) -> Iterator[str]:
    """Each pushed key as `table.key`."""
    for name, value in tables.items():
        inner = value if isinstance(value, list) else [value]
        if not any(isinstance(one, dict) for one in inner):
            yield name
        for one in inner:
            yield from (f"{name}.{key}" for key in one) if isinstance(one, dict) else ()


def _may_be_pushed(key: str) -> bool:
    table, _, name = key.partition(".")
    if table not in PUSHABLE:
        return False
    keys = PUSHABLE[table]
    return keys is None or name in keys


def _called(key: str) -> str:
    """A key that cannot be pushed, with what may be meant."""
    table, dot, name = key.partition(".")
    near, rest = (
        (table, nearest(name, PUSHABLE[table] or ())) if table in PUSHABLE else (nearest(table, PUSHABLE), name)
    )
    shown = one_line(key, 100)
    return f"{shown} (did you mean {near}{dot}{one_line(rest, 100)}?)" if near and (rest or not dot) else shown


def check_bounds(settings: AgentSettings, pushed: Mapping[str, Any]) -> None:
    """Raises PushRefused for a pushed number that may silence a device."""
    for path in set(_keys(pushed)) & BOUNDS.keys():
        table, _, key = path.partition(".")
        part = getattr(settings, table)
        least, most = BOUNDS[path]
        for one in part if isinstance(part, tuple) else (part,):
            value = getattr(one, key)
            if value is not None and not least <= value <= most:
                raise PushRefused(f"{path} = {value}: a push may set it from {least:g} to {most:g}")


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; anything else is replaced."""
    whole = dict(base)
    for key, value in over.items():
        below = whole.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        whole[key] = merged(below, value) if both and isinstance(below, dict) else value
    return whole


# The files of pushed settings beside the buffer, each replaced or moved in one synced rename.

IN_FORCE, ON_TRIAL, AGAIN, REFUSED = "pushed.toml", "pushed-trial.toml", "pushed-again.toml", "pushed-refused.toml"
ATTEMPTS, FOREIGN = "pushed-attempts.json", "pushed-foreign.toml"
_BEGIN = b"# pushed to "


class PushedFiles:
    """The files of one device on this machine; for it those of another are not there."""

    def __init__(self, settings: AgentSettings) -> None:
        device = settings.device
        self._folder = settings.buffer.path
        self._head = _BEGIN + f"{device.tenant}/{device.id} on machine {machine_id() or 'unknown'}".encode()

    def read(self, name: str) -> bytes | None:
        """The text of a file; None if there is none. Raises OSError."""
        head, text = self._parts(name)
        return text if head == self._head else None

    def archive_foreign(self) -> str:
        """Keeps what was in force for another device as FOREIGN and removes its proposals; whose they were, or ""."""
        whose = ""
        for name in (IN_FORCE, ON_TRIAL, AGAIN, REFUSED, ATTEMPTS):
            head, _ = self._parts(name)
            if head in {b"", self._head}:
                continue
            whose = whose or head.removeprefix(_BEGIN).decode("utf-8", "replace")[:200]
            if name == IN_FORCE:
                self.move(name, FOREIGN)
            else:
                self.remove(name)
        return whose

    def replace(self, name: str, text: bytes) -> None:
        """Raises OSError."""
        replace_durably(self._folder / name, self._head + b"\n" + text)

    def move(self, name: str, to: str) -> None:
        """Gives a file another meaning, which takes no room on the disk. Raises OSError."""
        (self._folder / name).replace(self._folder / to)
        sync_folder(self._folder)

    def remove(self, name: str) -> None:
        """Raises OSError."""
        (self._folder / name).unlink(missing_ok=True)

    def _parts(self, name: str) -> tuple[bytes, bytes]:
        try:
            head, _, text = (self._folder / name).read_bytes().partition(b"\n")
        except FileNotFoundError:
            return b"", b""
        return head or b"?", text


NO_ACKNOWLEDGEMENT = "no region acknowledged with them"
MAX_ATTEMPTS = 3
"""Trials that may end without an acknowledgement, or with the agent, before a proposal is refused for good."""


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """The settings that are to be in force, and what became of pushed ones.

    `pushed`: `none`, `in force`, `on trial`, or `passed over`: there are some, and `reason` says why they do not count.
    """

    settings: AgentSettings
    pushed: Literal["none", "in force", "on trial", "passed over"]
    reason: str = ""


def effective_settings(config: Path) -> EffectiveSettings:
    """The file's settings with the pushed ones that are on trial or in force laid over. Raises SettingsError.

    While settings are on trial nothing is deleted that those in force would keep.
    """
    base = load(AgentSettings, config)
    files = PushedFiles(base)
    present, reason = _laid_over(config, files, IN_FORCE)
    trial, reason_of_trial = _laid_over(config, files, ON_TRIAL)
    if trial is not None:
        return EffectiveSettings(with_present_retention(present or base, trial), "on trial")
    if present is not None:
        return EffectiveSettings(present, "in force", reason_of_trial)
    reason = reason_of_trial or reason
    return EffectiveSettings(base, "passed over" if reason else "none", reason)


def _laid_over(config: Path, files: PushedFiles, name: str) -> tuple[AgentSettings | None, str]:
    """The file's settings with those of a pushed file laid over; None if there is none, or it does not count."""
    try:
        text = files.read(name)
        return (None, "") if text is None else (merge_pushed(config, text.decode("utf-8")), "")
    except (OSError, UnicodeDecodeError, PushRefused) as error:
        return None, f"{name}: {error}"


def merge_pushed(config: Path, text: str) -> AgentSettings:
    """The file's settings with pushed ones laid over. Raises PushRefused; SettingsError if the file itself is wrong."""
    base, pushed = load(AgentSettings, config), pushed_tables(text)
    pushed.pop(ALLOW_DELETION, None)
    try:
        file_tables = parse_toml(read_file(config).decode("utf-8"), MAX_TOML_BYTES)
    except (OSError, ValueError) as error:
        raise SettingsError(str(config), [f"cannot be read: {error}"]) from error
    if "uplinks" in pushed:
        pushed["uplinks"] = [_with_credentials(one, base.uplinks) for one in pushed["uplinks"]]
    try:
        settings = validate(AgentSettings, merged(file_tables, pushed), "pushed")
    except SettingsError as error:
        raise PushRefused("; ".join(error.problems)[:500]) from error
    check_bounds(settings, pushed)
    if [one.name for one in settings.classes] != [one.name for one in base.classes]:
        raise PushRefused(
            "classes: a push may change what belongs to a class, not which classes there are or their order"
        )
    return settings


def allows_deletion(text: str) -> bool:
    """Whether a push that was checked says that stored records may be deleted because of it."""
    return parse_toml(text, MAX_PUSHED_BYTES).get(ALLOW_DELETION) is True


def with_present_retention(present: AgentSettings, proposed: AgentSettings) -> AgentSettings:
    """The proposed settings, but nothing stored is deleted that the present ones keep."""
    old, new = present.buffer, proposed.buffer
    buffer = new.model_copy(
        update={
            "max_bytes": max(old.max_bytes, new.max_bytes),
            "max_age_s": max(old.max_age_s, new.max_age_s),
            "downsample_above": max(old.downsample_above, new.downsample_above),
            "free_space_floor_bytes": min(old.free_space_floor_bytes, new.free_space_floor_bytes),
        }
    )
    classes = tuple(
        _class_with_present_retention(*pair) for pair in zip(present.classes, proposed.classes, strict=True)
    )
    return proposed.model_copy(update={"buffer": buffer, "classes": classes})


def _class_with_present_retention(old: ClassSettings, new: ClassSettings) -> ClassSettings:
    unbounded = float("inf")
    size, age_s = max(old.max_bytes or unbounded, new.max_bytes or unbounded), None
    if old.max_age_s is not None and new.max_age_s is not None:
        age_s = max(old.max_age_s, new.max_age_s)
    return new.model_copy(
        update={
            "max_bytes": None if size == unbounded else int(size),
            "max_age_s": age_s,
            "downsample_keep_one_in": min(old.downsample_keep_one_in, new.downsample_keep_one_in),
        }
    )


def _with_credentials(pushed: dict[str, Any], known: tuple[UplinkSettings, ...]) -> dict[str, Any]:
    """A pushed uplink with the certificates and password of the file's uplink of that region, else of the first one.

    Raises PushRefused for any others, and where a password would go to another address unencrypted.
    """
    own = next((one for one in known if one.region == pushed.get("region")), known[0])
    if own.kind != "mqtt":
        raise PushRefused(f"uplinks: {own.region} is a Pulsar cluster, which only the device's own file can change")
    for key in CREDENTIALS:
        mine = own.model_dump(mode="json", exclude_none=True).get(key)
        if key in pushed and pushed[key] != mine:
            raise PushRefused(
                f"uplinks.{key}: only the device's own file says which certificates and passwords it uses"
            )
        if mine is not None:
            pushed = {**pushed, key: mine}
    here = (own.host, own.port)
    if own.password_file and own.tls is None and (pushed.get("host"), pushed.get("port", 1883)) != here:
        raise PushRefused("uplinks: the password would go to another address in plain text")
    return pushed


class Trial:
    """The pushed settings of one agent, on disk. `boot` distinguishes a restart of the device from one of the agent."""

    def __init__(self, config: Path, settings: AgentSettings, boot: str = "") -> None:
        self._config = config
        self._files = PushedFiles(settings)
        self._boot = boot

    @property
    def is_on(self) -> bool:
        """Whether settings are on trial."""
        return self._files.read(ON_TRIAL) is not None

    @property
    def is_waiting(self) -> bool:
        """Whether settings wait to be tried again."""
        return self._files.read(AGAIN) is not None

    def is_waiting_with(self, text: bytes) -> bool:
        """Whether these settings wait to be tried again."""
        return self._files.read(AGAIN) == text

    def begin(self, text: bytes) -> bool:
        """Puts pushed settings on trial; False when they are known already. Raises PushRefused, each time anew."""
        if self._files.read(AGAIN) == text:
            return False
        # A newer push ends the wait of the former one, also if it is refused itself.
        self._files.remove(AGAIN)
        if self._files.read(IN_FORCE) == text:
            return False
        if (reason := self._refused_before(text)) is not None:
            raise PushRefused(f"refused before: {reason}"[:500])
        self._check_or_remember(text)
        # By way of AGAIN: a crash in between leaves a proposal that waits, and none on trial that was not counted.
        self._files.replace(AGAIN, text)
        self._note_attempts(0)
        return self.begin_again()

    def begin_again(self) -> bool:
        """Puts on trial what waits for it; False when nothing does. Raises PushRefused if it does not fit any more."""
        text = self._files.read(AGAIN)
        if text is None:
            return False
        self._check_or_remember(text)
        # Before the trial: one that ends the agent has counted.
        self._note_attempts(self._attempts()[0] + 1)
        self._files.move(AGAIN, ON_TRIAL)
        return True

    def confirm(self) -> None:
        """What is on trial is in force."""
        self._files.move(ON_TRIAL, IN_FORCE)

    def refuse(self, reason: str) -> None:
        """What is on trial is discarded for good, for as long as the device's own file is the same."""
        with suppress(OSError):
            self._refuse(self._files.read(ON_TRIAL) or b"", reason)
        self._files.remove(ON_TRIAL)

    def take_back(self, *, counts: bool = True) -> bool:
        """What is on trial is discarded: to be tried again, or for good after MAX_ATTEMPTS trials that count.

        True when it will be tried again; False also when nothing was on trial. A full disk does not keep it: a rename
        takes no room, and what cannot be noted is only how often it was tried, or that it was refused.
        """
        text = self._files.read(ON_TRIAL)
        if text is None:
            return False
        attempts = self._attempts()[0] - (0 if counts else 1)
        is_final = attempts >= MAX_ATTEMPTS
        with suppress(OSError):
            self._note_attempts(attempts)
            if is_final:
                self._refuse(text, NO_ACKNOWLEDGEMENT)
        if is_final or self._files.read(IN_FORCE) == text:
            self._files.remove(ON_TRIAL)
        else:
            self._files.move(ON_TRIAL, AGAIN)
        return self.is_waiting

    def archive_foreign(self) -> str:
        """What was pushed to another device, or on another machine, does not count here; whose it was, or ""."""
        return self._files.archive_foreign()

    def recover(self) -> bool:
        """After a start: takes back a trial that was cut short; True when there was one.

        It counts only if the agent ended and the device did not: the ignition is no fault of the settings.
        """
        if not self.is_on:
            return False
        self.take_back(counts=self._attempts()[1] == self._boot)
        return True

    def _check_or_remember(self, text: bytes) -> None:
        """Raises what `_check` raises; whatever it is, the text is not looked at again with every connection."""
        try:
            self._check(text)
        except SettingsError:
            raise
        except Exception as error:
            self._refuse(text, str(error) if isinstance(error, PushRefused) else "it cannot be handled")
            self._files.remove(AGAIN)
            raise

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

    def _attempts(self) -> tuple[int, str]:
        try:
            found = json.loads(self._files.read(ATTEMPTS) or b"")
            return int(found["counted"]), str(found["boot"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return 0, ""

    def _note_attempts(self, counted: int) -> None:
        self._files.replace(ATTEMPTS, json.dumps({"counted": counted, "boot": self._boot}).encode())
