"""The certificates of a lake at a snapshot: many devices at once, and the same for years."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from cloud_jobs.billing.certificates import (
    CertificateState,
    DeviceCertificate,
    certificates_from,
    certificates_of_spans,
    refused_fences,
)
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.erasures import Erasure
from cloud_jobs.lake.snapshots import LakeState, take_snapshot
from cloud_jobs.lake.tables import Lake
from tests.cloud_jobs.ingest.centre import DAY_US, NOON_US, batch, new_ingest, take_in
from tests.cloud_jobs.lake.metered import HOUR, meter
from tests.cloud_jobs.maintenance.test_snapshots_kept import grow_old
from tests.cloud_jobs.maintenance.upkeep import positions, run
from tests.cloud_jobs.publications import row_of
from tests.new_lakes import new_lake
from waybill.record import Batch, encode

NOW = datetime(2026, 2, 3, tzinfo=UTC)
DAY, MINUTE, SECOND = timedelta(days=1), timedelta(minutes=1), timedelta(seconds=1)
NOON = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=NOON_US)
D, E, F, NEVER = (TenantDevice("acme", name) for name in ("d", "e", "f", "never"))


class Span(NamedTuple):
    start: datetime
    end: datetime


PERIOD = Span(datetime(2026, 1, 4, tzinfo=UTC), datetime(2026, 1, 5, tzinfo=UTC))


def of_day(*seqs: int, device: str = "d", word: str = "x") -> bytes:
    return batch(*seqs, device=device, word=word, day=-1)


def stated(head: int, device: str = "d") -> bytes:
    """A heartbeat from long after the period; the centre believes it up to the moment when it was received."""
    return encode(Batch(device, 7, head, (), (), NOON_US + DAY_US))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Two devices with records of a day and one of the next, of which they have stated all."""
    made = new_lake(tmp_path)
    sent = [of_day(1, 2, 3), of_day(1, device="e"), batch(4), stated(4), stated(1, "e")]
    take_in(made, new_ingest(made), sent)
    return made


def not_metered(lake: Lake, period: Span) -> int:
    return certificates_from(lake, take_snapshot(lake, NOW), [D], period)[D].counts.not_metered


def certified(lake: Lake, snapshot: LakeState, device: TenantDevice = D) -> DeviceCertificate:
    return certificates_from(lake, snapshot, [device], PERIOD)[device]


def test_each_device_that_is_asked_for_has_one_also_when_nobody_heard_of_it(lake: Lake) -> None:
    found = certificates_from(lake, take_snapshot(lake, NOW), [NEVER, E, D], PERIOD)
    assert [*found] == [D, E, NEVER]
    assert [one.received for one in found.values()] == [4, 1, 0]
    assert [one.state.value for one in found.values()] == ["complete", "complete", "silent"]
    assert certificates_from(lake, take_snapshot(lake, NOW), [], PERIOD) == {}


def test_a_bill_before_the_usage_run_is_provisional_and_says_by_how_many_records(lake: Lake) -> None:
    early = take_snapshot(lake, NOW)
    certificate = certified(lake, early)
    assert (certificate.state, certificate.is_final) == (CertificateState.COMPLETE, False)
    assert certificate.reasons == ("3 records are not metered yet",)
    meter(lake, {})
    now = take_snapshot(lake, NOW)
    assert certified(lake, now).is_final
    # a record of the day that comes later makes what was final no less so, and a new snapshot provisional
    take_in(lake, new_ingest(lake), [of_day(5), batch(6)])
    assert certified(lake, now).is_final
    assert certified(lake, take_snapshot(lake, NOW)).reasons == ("1 records are not metered yet",)
    assert certified(lake, early) == certificate


def test_a_position_before_the_period_has_a_say_in_its_first_segment(lake: Lake) -> None:
    meter(lake, {})
    take_in(lake, new_ingest(lake), [positions(11, day=-2), batch(13, day=-2)])
    # of noon of the day before, that is 12 hours
    assert not_metered(lake, PERIOD) == 0
    assert not_metered(lake, Span(NOON - 2 * DAY + 10 * MINUTE, PERIOD.end)) == 1


def test_a_position_after_the_period_has_a_say_in_its_last_segment(lake: Lake) -> None:
    meter(lake, {})
    take_in(lake, new_ingest(lake), [positions(11, day=0), batch(12)])
    # a place without noise depends on the fixes of the next 24 minutes
    ends = (NOON, NOON - 24 * MINUTE + SECOND, NOON - 24 * MINUTE)
    found = [not_metered(lake, Span(PERIOD.start, end)) for end in ends]
    # a record of another kind has none, and later nothing has
    assert found == [1, 1, 0]


def test_of_each_device_is_counted_what_is_of_its_own_time(lake: Lake) -> None:
    take_in(lake, new_ingest(lake), [batch(1, 2, device="f"), batch(2, 3, device="e")])
    now = take_snapshot(lake, NOW)
    day, next_day = (PERIOD.start, PERIOD.end), (PERIOD.end, PERIOD.end + DAY)
    for spans in ({D: day, E: next_day, F: day}, {D: next_day, E: day, F: next_day}):
        found = certificates_of_spans(lake, now, spans)
        by_itself = {of: certificates_from(lake, now, [of], Span(*span))[of] for of, span in spans.items()}
        assert found == by_itself
        assert [(one.start, one.end) for one in found.values()] == [*spans.values()]
    # three and one record of either day of the first device; of the last one, which never stated anything, two
    assert [found[of].counts.not_metered for of in (D, E, F)] == [1, 1, 2]


def test_conflicts_and_records_of_a_clock_far_off_are_counted_as_of_the_snapshot(lake: Lake) -> None:
    take_in(lake, new_ingest(lake), [of_day(1, word="other"), batch(7, day=-5000)])
    one = take_snapshot(lake, NOW)
    take_in(lake, new_ingest(lake), [of_day(2, 3, word="other"), batch(8, day=-5000), of_day(1, device="e", word="o")])
    then = certified(lake, one)
    assert (then.counts.conflicts, then.observed.far_off) == (1, 1)
    later = certificates_from(lake, take_snapshot(lake, NOW), [D, E], PERIOD)
    assert [(found.counts.conflicts, found.observed.far_off) for found in later.values()] == [(3, 2), (1, 0)]


def test_records_that_were_not_metered_and_are_erased_since_keep_a_bill_from_being_final(lake: Lake) -> None:
    take_in(lake, new_ingest(lake), [positions(5), stated(5)])
    one = take_snapshot(lake, NOW)
    assert certified(lake, one).counts.not_metered == 4
    meter(lake, {"hour": HOUR - DAY, "seq_ranges": '{"7":[[1,3],[5,5]]}'})
    two = take_snapshot(lake, NOW)
    assert run(lake, Erasure("acme", "d", PERIOD.end), hot_days=1).erased["records"] == 1
    lost = certified(lake, one)
    assert (lost.counts.not_metered, lost.counts.may_be_more, lost.is_final) == (3, True, False)
    # what usage covered is not looked for in the records
    assert certified(lake, two).is_final
    assert certified(lake, take_snapshot(lake, NOW)).is_final


def test_certificates_of_a_snapshot_are_the_same_bytes_after_months_of_maintenance(lake: Lake) -> None:
    take_in(lake, new_ingest(lake), [of_day(1, word="other"), batch(7, day=-5000)])
    meter(lake, {})
    take_in(lake, new_ingest(lake), [of_day(5)])
    one = take_snapshot(lake, NOW)
    before = [found.digest() for found in certificates_from(lake, one, [D, E], PERIOD).values()]
    for seq in range(20, 40):
        take_in(lake, new_ingest(lake), [of_day(seq), of_day(seq, device="e")])
        meter(lake, {})
    take_in(lake, new_ingest(lake), [of_day(2, word="other")])
    grow_old(lake)
    assert not run(lake, history_days=1, removed_files_kept_hours=0, hot_days=1).all_errors
    assert [found.digest() for found in certificates_from(lake, one, [D, E], PERIOD).values()] == before
    now = certificates_from(lake, take_snapshot(lake, NOW), [D, E], PERIOD)
    assert not {found.digest() for found in now.values()} & {*before}


def test_fences_that_cannot_be_used_are_named_as_of_the_snapshot(lake: Lake) -> None:
    lake.append("reference", [row_of("fence", "a", "no fence", 0)])
    one = take_snapshot(lake, NOW)
    lake.append("reference", [row_of("fence", "b", "no fence", 1)])
    assert [refused.id for refused in refused_fences(lake, one)] == ["a"]
