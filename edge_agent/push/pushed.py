"""Settings from the gateway: a proposal, laid over the file's, kept only when a region acknowledges with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

# Keys and bounds of pushed settings, checked before they are signed.

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
IN_FORCE, ON_TRIAL, REFUSED = "pushed.toml", "pushed-trial.toml", "pushed-refused.toml"


class PushedFiles:
    """The files of one device on this machine; for it those of another are not there."""

    def __init__(self, settings: AgentSettings) -> None:
        device = settings.device
        self._folder = settings.buffer.path
        self._head = b"# pushed to " + f"{device.tenant}/{device.id} on machine {machine_id() or 'unknown'}".encode()

    def read(self, name: str) -> bytes | None:
        """The text of a file; None if there is none, or it was pushed to another device or machine. Raises OSError."""
        try:
            head, _, text = (self._folder / name).read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        return text if head == self._head else None

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
