"""The text of pushed settings: what may be pushed, within which bounds, and the settings that result from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edge_agent.config import AgentSettings, UplinkSettings
from waybill.settings import (
    MAX_PUSHED_BYTES,
    SettingsError,
    one_line,
    parse_toml,
    validate,
)

CREDENTIALS = ("tls", "username", "password_file")
PUSHABLE: Mapping[str, set[str] | None] = {
    "buffer": {"commit_delay_ms", "commit_records"},
    "drain": None,
    "link": {"bytes_per_s", "burst_bytes", "bytes_per_day", "bytes_per_month", "plan_reserve"},
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
}
"""The tables and keys that may be pushed (None: all keys). Nothing here can delete stored records or name a file."""
BOUNDS: Mapping[str, tuple[float, float]] = {
    "drain.ack_timeout_s": (2, 600),
    "drain.heartbeat_s": (60, 3600),
    "drain.max_pause_s": (1, 600),
    "drain.max_refusals": (3, 100),
    "drain.refusal_backoff_s": (1, 600),
    "failover.after_s": (5, 3600),
    "failover.return_after_s": (30, 86_400),
    "link.bytes_per_s": (1_000, 1e12),
    "link.bytes_per_day": (1_000_000, 1e15),
    "link.bytes_per_month": (10_000_000, 1e16),
    "link.plan_reserve": (0, 0.5),
    "uplinks.backoff_max_s": (0.1, 3600),
    "uplinks.connect_timeout_s": (1, 60),
}
"""Narrower than the bounds of the settings file: no pushed number silences a device."""
_ANY_DEVICE: Mapping[str, Any] = {
    "device": {"id": "any", "tenant": "any"},
    "insecure": True,
    "uplinks": [{"region": "any", "host": "localhost"}],
}
"""A minimal settings file, for checking a push without the device."""


class PushRefused(Exception):
    """A push is refused; the text says why."""


def check_pushable(text: str) -> None:
    """Raises PushRefused for a push that every device would refuse. One device may refuse more."""
    pushed = _pushed_tables(text)
    for uplink in pushed.get("uplinks", []):
        # They must match the device's own file, which is not available here.
        for key in CREDENTIALS:
            uplink.pop(key, None)
    _validated(_ANY_DEVICE, pushed)


def merge_pushed(base: AgentSettings, tables: Mapping[str, Any], text: str) -> AgentSettings:
    """The settings of the device's own file (`base`, parsed as `tables`), overridden by pushed ones.

    Raises PushRefused.
    """
    pushed = _pushed_tables(text)
    if "uplinks" in pushed:
        pushed["uplinks"] = [_with_credentials(one, base.uplinks) for one in pushed["uplinks"]]
    return _validated(tables, pushed)


def _pushed_tables(text: str) -> dict[str, Any]:
    try:
        pushed = parse_toml(text, MAX_PUSHED_BYTES)
    except ValueError as error:
        raise PushRefused(f"is not valid TOML: {error}"[:500]) from error
    if refused := sorted(key for key in _keys(pushed) if not _may_be_pushed(key)):
        raise PushRefused(f"{', '.join(one_line(key, 100) for key in refused[:10])} cannot be pushed"[:500])
    uplinks = pushed.get("uplinks", [])
    if not isinstance(uplinks, list) or not all(isinstance(one, dict) for one in uplinks):
        raise PushRefused("uplinks: must be a list of tables")
    return pushed


def _validated(base: Mapping[str, Any], pushed: Mapping[str, Any]) -> AgentSettings:
    try:
        settings = validate(AgentSettings, _merged(base, pushed), "pushed")
    except SettingsError as error:
        raise PushRefused("; ".join(error.problems)[:500]) from error
    _check_bounds(settings, pushed)
    return settings


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


def _check_bounds(settings: AgentSettings, pushed: Mapping[str, Any]) -> None:
    for path in set(_keys(pushed)) & BOUNDS.keys():
        table, _, key = path.partition(".")
        part = getattr(settings, table)
        least, most = BOUNDS[path]
        for one in part if isinstance(part, tuple) else (part,):
            value = getattr(one, key)
            if value is not None and not least <= value <= most:
                raise PushRefused(f"{path} = {value}: a push may set it from {least:g} to {most:g}")


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; anything else is replaced."""
    whole = dict(base)
    for key, value in over.items():
        below = whole.get(key)
        whole[key] = {**below, **value} if isinstance(below, dict) and isinstance(value, dict) else value
    return whole


def _with_credentials(pushed: dict[str, Any], known: tuple[UplinkSettings, ...]) -> dict[str, Any]:
    """A pushed uplink with the credentials of the file's uplink for that region, or else of the first uplink.

    Raises PushRefused for other credentials, and where a password would go to another address unencrypted.
    """
    own = next((one for one in known if one.region == pushed.get("region")), known[0])
    for key in CREDENTIALS:
        mine = own.model_dump(mode="json", exclude_none=True).get(key)
        if key in pushed and pushed[key] != mine:
            raise PushRefused(f"uplinks.{key}: only the device's own file can set credentials")
        if mine is not None:
            pushed = {**pushed, key: mine}
    here = (own.host, own.port)
    if own.password_file and own.tls is None and (pushed.get("host"), pushed.get("port", 1883)) != here:
        raise PushRefused("uplinks: the password would go to another address in plain text")
    return pushed
