"""Settings under their former names: each is refused with the name that it has now, and that one exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest

from cloud_jobs.config import CloudSettings
from edge_agent.config import AgentSettings
from gateway.access import AccessSettings
from gateway.alerts.config import AlertSettings
from gateway.config import GatewaySettings
from waybill.settings import Settings, SettingsError, validate

RENAMED: list[tuple[type[Settings], str, str]] = [
    (GatewaySettings, "mqtt.reconnect_max_s", "mqtt.backoff_max_s"),
    (GatewaySettings, "mqtt.password", "mqtt.password_file, a file whose first line is the password"),
    (GatewaySettings, "mqtt.tls.authority", "mqtt.tls.ca"),
    (GatewaySettings, "pulsar.retry_max_s", "pulsar.backoff_max_s"),
    (GatewaySettings, "pulsar.authority", "pulsar.tls.ca"),
    (GatewaySettings, "pulsar.ca", "pulsar.tls.ca"),
    (GatewaySettings, "observe", "status"),
    (AlertSettings, "window_ms", "batching_delay_ms"),
    (AgentSettings, "intake.backoff_most_s", "intake.backoff_max_s"),
    (AgentSettings, "intake.max_message_bytes", "intake.max_packet_bytes"),
    (AgentSettings, "buffer.settle_delay_s", "buffer.prune_delay_s"),
    (AgentSettings, "buffer.thin_above", "buffer.downsample_above"),
    (AgentSettings, "classes.0.thin_keep_one_in", "classes.0.downsample_keep_one_in"),
    (AgentSettings, "drain.fresh_s", "drain.live_s"),
    (AgentSettings, "drain.linger_ms", "drain.batching_delay_ms"),
    (AgentSettings, "drain.refusals_most", "drain.max_refusals"),
    (AgentSettings, "drain.refusal_pause_s", "drain.refusal_backoff_s"),
    (AgentSettings, "uplinks.0.backoff_most_s", "uplinks.0.backoff_max_s"),
    (AgentSettings, "health", "status"),
    (AgentSettings, "log_level", "log.level"),
    (CloudSettings, "access.tls_trust_certs_file", "access.tls_ca"),
    (CloudSettings, "access.tls_certificate_file", "access.tls_certificate"),
    (CloudSettings, "access.tls_key_file", "access.tls_key"),
]

REMOVED: list[tuple[type[Settings], str, str]] = [
    (AccessSettings, "deny_for_days", "a device is denied by name for as long as a certificate of it may be valid"),
    (GatewaySettings, "mqtt.session_expiry_s", "a gateway's session ends with its connection"),
]


def tables_with(key: str) -> Any:
    """Tables that hold nothing but this key."""
    first, _, rest = key.partition(".")
    inner = tables_with(rest) if rest else 1
    return [inner] if first == "0" else {first: inner}


@pytest.mark.parametrize(("model", "former", "now"), RENAMED, ids=[former for _, former, _ in RENAMED])
def test_a_former_key_is_refused_with_the_name_that_it_has_now(model: type[Settings], former: str, now: str) -> None:
    with pytest.raises(SettingsError) as caught:
        validate(model, tables_with(former), "x.toml")
    assert f"{former}: was renamed; it is now {now}" in caught.value.problems


@pytest.mark.parametrize(("model", "former", "instead"), REMOVED, ids=[former for _, former, _ in REMOVED])
def test_a_key_without_a_successor_is_refused_with_what_holds_now(
    model: type[Settings], former: str, instead: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        validate(model, tables_with(former), "x.toml")
    assert f"{former}: is gone; {instead}" in caught.value.problems


def model_inside(annotation: Any) -> type[Settings] | None:
    if get_origin(annotation) is None and isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    return next((inner for part in get_args(annotation) if (inner := model_inside(part))), None)


def tables_of(model: type[Settings]) -> Iterator[type[Settings]]:
    yield model
    for field in model.model_fields.values():
        if inner := model_inside(field.annotation):
            yield from tables_of(inner)


@pytest.mark.parametrize("model", [GatewaySettings, AgentSettings, CloudSettings])
def test_each_name_that_a_former_key_leads_to_is_a_setting_and_no_former_key_is_one(model: type[Settings]) -> None:
    for table in tables_of(model):
        for former, now in table.RENAMED_KEYS.items():
            assert former not in table.model_fields
            inside: type[Settings] | None = table
            for key in now.partition(",")[0].split("."):
                assert inside is not None
                assert key in inside.model_fields, (table, now)
                inside = model_inside(inside.model_fields[key].annotation)
