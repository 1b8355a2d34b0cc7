"""Of each id the highest revision holds, and a message says of a row what consumers need."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.revisions import encounter_message, event_message, latest_by_id

TIME = datetime(2026, 1, 5, 10, 17, 2, 500_000, tzinfo=UTC)


class Numbered(NamedTuple):
    id: str
    revision: int


@given(st.lists(st.builds(Numbered, st.sampled_from("abc"), st.integers(1, 5))), st.randoms())
def test_the_highest_revision_holds_in_whatever_order_they_come(revisions: list[Numbered], random: object) -> None:
    shuffled = list(revisions)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    found = latest_by_id(shuffled)
    assert found == latest_by_id(revisions)
    assert {name: one.revision for name, one in found.items()} == {
        name: max(one.revision for one in revisions if one.id == name) for name in {one.id for one in revisions}
    }


def test_an_event_is_published_in_this_form() -> None:
    row = {"id": "i", "revision": 2, "device": "d", "kind": "exit", "place": "p", "value": 7.5, "retracted": False}
    text = json.dumps(event_message(row | {"time": TIME, "day": date(2026, 1, 5), "emitted_at": TIME}))
    assert text == (
        '{"id": "i", "revision": 2, "device": "d", "kind": "exit", "place": "p", "value": 7.5, "retracted": false, '
        '"time": "2026-01-05T10:17:02.500Z"}'
    )


def test_an_encounter_is_published_in_this_form() -> None:
    row = {"id": "i", "revision": 1, "device_a": "a", "device_b": "b", "min_m": 1.25, "retracted": True, "parts": "[]"}
    text = json.dumps(encounter_message(row | dict.fromkeys(("start", "end", "min_at", "emitted_at"), TIME)))
    moment = '"2026-01-05T10:17:02.500Z"'
    assert text == (
        '{"id": "i", "revision": 1, "device_a": "a", "device_b": "b", "min_m": 1.25, "retracted": true, '
        f'"start": {moment}, "end": {moment}, "min_at": {moment}}}'
    )
