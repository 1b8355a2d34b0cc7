"""Spans of which positions are erased keep what was computed; what comes late for them is counted."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.derived.incremental import ErasedSpans
from cloud_jobs.lake.erasures import Erasure, Erasures

DAY_MS, HOUR_MS = 86_400_000, 3_600_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BEFORE = EPOCH + timedelta(days=10, hours=6)
ONE_DEVICE = ErasedSpans(Erasures([Erasure("acme", "d", BEFORE)]), DAY_MS, 12 * HOUR_MS)


def batch(*rows: tuple[str, str, object], name: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(("tenant", "device", name), row, strict=True)) for row in rows])


@given(st.integers(0, 30 * DAY_MS), st.sampled_from([HOUR_MS, DAY_MS]), st.integers(0, 2 * DAY_MS))
def test_a_span_is_computable_if_nothing_that_has_a_say_in_it_is_erased(
    before_ms: int, span_ms: int, margin_ms: int
) -> None:
    erasures = Erasures([Erasure(None, None, EPOCH + timedelta(milliseconds=before_ms))])
    first = ErasedSpans(erasures, span_ms, margin_ms).first_computable("acme", "d")
    assert first * span_ms - margin_ms >= before_ms
    assert (first - 1) * span_ms - margin_ms < before_ms


def test_days_of_an_erased_device_are_left_out_and_those_of_others_are_not() -> None:
    days = [("acme", "d", date(1970, 1, 11)), ("acme", "d", date(1970, 1, 12)), ("acme", "d", date(1970, 1, 2))]
    others = [("acme", "e", date(1970, 1, 2)), ("other", "d", date(1970, 1, 2))]
    (kept,) = ONE_DEVICE.keep_computable([batch(*days, *others, name="day")], "day")
    assert [tuple(row.values()) for row in kept.to_pylist()] == [days[1], *others]
    # the evening of the day before has a say in the eleventh of January, and is erased in part
    assert ONE_DEVICE.first_computable("acme", "d") == 11
