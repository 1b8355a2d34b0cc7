"""A message says of a revision what consumers need."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime

from cloud_jobs.derived.outbox import encounter_message, event_message

TIME = datetime(2026, 1, 5, 10, 17, 2, 500_000, tzinfo=UTC)


def test_an_event_is_published_in_this_form() -> None:
    row = {"id": "i", "revision": 2, "tenant": "t", "device": "d", "epoch": 7, "seq": 9} | {
        "kind": "exit",
        "place": "p",
        "value": 7.5,
        "retracted": False,
    }
    text = json.dumps(event_message(row | {"time": TIME, "day": date(2026, 1, 5), "emitted_at": TIME}))
    assert text == (
        '{"id": "i", "revision": 2, "tenant": "t", "device": "d", "epoch": 7, "seq": 9, "kind": "exit", '
        '"place": "p", "value": 7.5, "retracted": false, "time": "2026-01-05T10:17:02.500Z"}'
    )


def test_an_encounter_is_published_in_this_form() -> None:
    row = {
        "id": "i",
        "revision": 1,
        "tenant": "t",
        "device_a": "a",
        "device_b": "b",
        "min_m": 1.25,
        "retracted": True,
        "parts": "[]",
    }
    text = json.dumps(encounter_message(row | dict.fromkeys(("start", "end", "min_at", "emitted_at"), TIME)))
    moment = '"2026-01-05T10:17:02.500Z"'
    assert text == (
        '{"id": "i", "revision": 1, "tenant": "t", "device_a": "a", "device_b": "b", "min_m": 1.25, "retracted": true, '
        f'"start": {moment}, "end": {moment}, "min_at": {moment}}}'
    )
