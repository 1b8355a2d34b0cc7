"""What the topics of the reference data hold becomes versions, whatever else is in them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from cloud_jobs.reference import versions_in

AT = datetime(2026, 1, 5, tzinfo=UTC)
GOOD: dict[str, Any] = {
    "key": "fence-1@2026-01-01",
    "value": b'{"type": "Feature"}',
    "publish_time": AT,
    "message_id": "1:2:-1",
    "malformed": None,
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": None},
        {"key": None, "malformed": "key not UTF-8: ff"},
        {"value": None},
        {"value": b""},
        {"value": b"\xff"},
        {"value": b"no JSON"},
        {"value": b"[]"},
        {"value": b"[" * 100_000},
        {"publish_time": None, "malformed": "publish_time not a time of the years 1970 to 9999: 0 ms"},
    ],
)
def test_a_message_that_is_no_version_is_left_out_and_stops_no_other(wrong: dict[str, Any]):
    rows = versions_in("fence", [GOOD | wrong, GOOD])
    assert rows == [{"kind": "fence", "id": "fence-1", "body": '{"type": "Feature"}', "published_at": AT}]
