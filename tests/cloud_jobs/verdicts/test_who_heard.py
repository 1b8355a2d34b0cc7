"""Whoever may have heard of something hears that it is not so, whatever it became: a verdict names what was said."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.verdicts.run import verdict_message
from gateway.webhooks.notification import verdict_notification
from gateway.webhooks.rule_book import AccountDevices, RuleBook, routes, usable_devices
from geo.alerts import usable_rule
from geo.reference.in_force import HeldVersion
from tests.cloud_jobs.geofence.centre import GeofenceCentre, GeofenceFix, rules
from tests.cloud_jobs.geofence.test_event_revisions import NOON, THROUGH
from tests.cloud_jobs.verdicts.centre import VerdictCentre, alert_of

EARLIER_MS = 120_000
"""So a region sees something before noon, where a device changes hands, that happened after it."""
QUARTER_MS = 900_000
LONG_AGO = "2000-01-01T00:00:00Z"


@pytest.fixture
def centre(tmp_path: Path) -> VerdictCentre:
    return VerdictCentre(tmp_path / "lake", rules(dwell_s=None))


def seen(*fixes: GeofenceFix) -> list[dict[str, Any]]:
    region = GeofenceCentre(rules(dwell_s=None))
    region.take(fixes)
    return region.table


def newest_message(centre: VerdictCentre, name: str) -> dict[str, Any]:
    return verdict_message(centre.in_force()[name])


def hear(message: dict[str, Any], until_ms: int) -> list[str]:
    """The accounts that hear of a message where `a` had the device until a moment, and `b` from then on."""
    assigned = {"tenant": "acme", "device": "d", "region": "eu"}
    spans = {"a": {"begin": LONG_AGO, "end": _moment(until_ms)}, "b": {"begin": _moment(until_ms)}}
    accounts, book = [], []
    for name, span in spans.items():
        body = {"id": name, "effective_from": LONG_AGO, "devices": [assigned | span]}
        begin_ms, made = usable_devices(json.dumps(body))
        accounts.append(HeldVersion({}, made, begin_ms))
        rule = {"id": f"{name}/all", "effective_from": LONG_AGO, "webhook": name}
        begin_ms, by = usable_rule(json.dumps(rule))
        book.append(HeldVersion({}, by, begin_ms))
    return sorted(routes(verdict_notification(json.dumps(message).encode()), RuleBook(book), AccountDevices(accounts)))


def _moment(t_ms: int) -> str:
    return datetime.fromtimestamp(t_ms / 1000, UTC).isoformat()


def decided(centre: VerdictCentre, *fixes: GeofenceFix) -> None:
    centre.ingest(fixes)
    centre.compute_events()
    centre.decide()


def test_a_corrected_verdict_says_what_the_region_had_said_and_both_owners_hear_of_it(centre: VerdictCentre) -> None:
    enter, *_ = seen(*THROUGH)
    so_ms = enter["time"] // 1000
    centre.collect(alert_of(enter, t_ms=so_ms - EARLIER_MS))
    decided(centre, *THROUGH)
    message = newest_message(centre, enter["id"])
    assert (message["verdict"], message["event"]["t_ms"]) == ("corrected", so_ms)
    assert message["alerted"]["t_ms"] == so_ms - EARLIER_MS
    assert hear(message, NOON) == ["a", "b"]
    assert (hear(message, NOON - QUARTER_MS), hear(message, NOON + QUARTER_MS)) == (["b"], ["a"])
