"""What a push may say, whatever the device's own file is: its keys, their bounds, and the check before it is signed.

Pure, and apart from the device's files: an operator has neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edge_agent.config import AgentSettings
from waybill.identity.names import nearest
from waybill.settings import MAX_PUSHED_BYTES, SettingsError, one_line, parse_toml, validate

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
