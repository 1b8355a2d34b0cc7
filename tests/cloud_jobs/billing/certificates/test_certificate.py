"""A certificate never says more than the device stated and the centre has."""

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.certificates import CertificateState, ClosedState, Decision, DeviceCounts, certify
from cloud_jobs.billing.certificates.certificate import DeviceCertificate
from cloud_jobs.lake.coverage import Coverage, TenantDevice
from cloud_jobs.lake.snapshots import Reach
from waybill.record import IntervalSet, Tombstone, new_epoch

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
BEGIN_US = 20_000 * DAY_US
"""The first day of each history; it has 10."""
DAYS = 10


@dataclass(frozen=True)
class Buffer:
    """A buffer in use: the device times of its records, in the order of their seqs, and the statements made."""

    epoch: int
    times: tuple[int, ...]
    statements: tuple[tuple[int, int], ...]

    def taken_in(self, dice: Random, *, lost: bool) -> Coverage:
        """What the ingest has of it: batches in any order, of which some never come."""
        batches = [self._batch(dice, at) for at in range(len(self.statements))]
        if lost:
            batches = [one for one in batches if dice.random() < 0.8]
        dice.shuffle(batches)
        found = Coverage()
        for one in batches:
            found = ingested(found, one)
        return found

    def _batch(self, dice: Random, at: int) -> Coverage:
        before, (stated_us, head) = self.statements[at - 1][1] if at else 0, self.statements[at]
        seqs = IntervalSet([(before + 1, head)] if head > before else [])
        if head - before > 2 and dice.random() < 0.2:
            # evicted before it was sent
            kept = IntervalSet([(before + 1, head - 1)])
            return Coverage(kept, (Tombstone(head, head, "age"),), head, stated_us, head)
        return Coverage(seqs, (), head, stated_us, head)


def ingested(known: Coverage, more: Coverage) -> Coverage:
    """What the ingest makes of coverage with what became known of a stream."""
    united = known | more
    missing = united.received.gaps(1, united.stated_head) - united.declared_lost
    return united if missing else replace(united, complete_until_us=max(united.complete_until_us, united.stated_us))


@st.composite
def buffers(draw: st.DrawFn) -> list[Buffer]:
    """One to four buffers of one device. When one is made the clock may be ahead, or not set."""
    dice = draw(st.randoms(use_true_random=False))
    changes = sorted(draw(st.lists(st.integers(1, 24 * DAYS - 1), max_size=3, unique=True)))
    made: list[Buffer] = []
    for first, end in zip([0, *changes], [*changes, 24 * DAYS], strict=True):
        clock = draw(st.sampled_from(["right", "right", "unset", "ahead", "drawn after"]))
        wall_ms = (BEGIN_US + first * HOUR_US) // 1000
        epoch = new_epoch(wall_ms, dice.getrandbits(15))
        if clock == "unset":
            epoch = new_epoch(dice.randrange(600_000), dice.getrandbits(15))
        elif clock == "ahead":
            epoch = new_epoch(wall_ms + dice.randrange(5 * 86_400_000), dice.getrandbits(15))
        elif clock == "drawn after" and made:
            epoch = made[-1].epoch + 1 + dice.getrandbits(35)
        if any(epoch == one.epoch for one in made):
            continue
        hours = range(first, draw(st.sampled_from([end, (first + end) // 2])))
        times = tuple(BEGIN_US + hour * HOUR_US + dice.randrange(HOUR_US) for hour in hours)
        stated = sorted(dice.sample([*hours], min(len(hours), 12)))
        statements = tuple((BEGIN_US + hour * HOUR_US, hour - first) for hour in stated)
        made.append(Buffer(epoch, times, statements))
    return made


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DEVICE = TenantDevice("acme", "d")
JANUARY, AUGUST, SEPTEMBER = (BillingPeriod.parse(f"2026-{month}", "UTC") for month in ("01", "08", "09"))
COMPLETE = (CertificateState.COMPLETE, CertificateState.DECLARED_LOSS)
ORDER = [*COMPLETE, CertificateState.SILENT, CertificateState.OPEN]


def us(text: str) -> int:
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def epoch_of(text: str) -> int:
    return new_epoch(us(text) // 1000, 5)


def stream(
    *received: tuple[int, int], head: int = 0, stated: str = "", stated_head: int = 0, until: str = ""
) -> Coverage:
    top = head or max((last for _, last in received), default=0)
    times = us(stated) if stated else 0, stated_head or (top if stated else 0), us(until) if until else 0
    return Coverage(IntervalSet(received), (), top, *times)


def state(period: BillingPeriod, streams: dict[int, Coverage], *decisions: Decision) -> CertificateState:
    return certify(DEVICE, period.start, period.end, streams, decisions=decisions).state


def moments() -> st.SearchStrategy[tuple[datetime, datetime]]:
    days = st.lists(st.integers(0, DAYS), min_size=2, max_size=2, unique=True).map(sorted)
    return days.map(lambda two: (moment(two[0]), moment(two[1])))


def moment(day: int) -> datetime:
    return EPOCH + timedelta(microseconds=BEGIN_US + day * DAY_US)


def unknown_times(one: Buffer, known: Coverage) -> list[int]:
    """The device times of records of a buffer of which the centre has neither the record nor a word."""
    accounted = known.received | known.declared_lost
    return [time for seq, time in enumerate(one.times, 1) if seq not in accounted]


@given(buffers(), moments(), st.randoms(use_true_random=False), st.booleans())
def test_complete_means_that_nothing_of_the_period_is_unknown(
    history: list[Buffer], period: tuple[datetime, datetime], dice: Random, lost: bool
) -> None:
    known = {one.epoch: one.taken_in(dice, lost=lost) for one in history}
    heard = {epoch: coverage for epoch, coverage in known.items() if coverage != Coverage()}
    certificate = certify(DEVICE, *period, heard)
    if certificate.state in COMPLETE:
        first, end = ((one - EPOCH) // timedelta(microseconds=1) for one in period)
        hidden = [time for one in history for time in unknown_times(one, known[one.epoch]) if first <= time < end]
        assert hidden == []
        assert certificate.since is None
        assert certificate.missing.count == 0


@given(buffers(), st.randoms(use_true_random=False), st.randoms(use_true_random=False))
def test_the_certificate_is_the_same_in_any_order_of_streams_and_arrivals(
    history: list[Buffer], dice: Random, other: Random
) -> None:
    known = {one.epoch: one.taken_in(dice, lost=False) for one in history}
    shuffled = [*known.items()]
    other.shuffle(shuffled)
    one, two = (certify(DEVICE, moment(1), moment(6), of) for of in (known, dict(shuffled)))
    assert (one.digest(), one) == (two.digest(), two)


@given(buffers(), moments(), st.randoms(use_true_random=False))
def test_what_comes_of_known_streams_never_opens_a_period_that_was_complete(
    history: list[Buffer], period: tuple[datetime, datetime], dice: Random
) -> None:
    # of one buffer: another one may show a silence that nobody knew
    first = {history[0].epoch: history[0].taken_in(dice, lost=True)}
    before = certify(DEVICE, *period, first)
    more = {epoch: ingested(known, history[0].taken_in(dice, lost=True)) for epoch, known in first.items()}
    after = certify(DEVICE, *period, more)
    if before.state in COMPLETE:
        assert after.state in COMPLETE


def test_a_device_has_to_account_for_the_time_in_which_fixes_have_a_say_in_the_period() -> None:
    reach, begun = Reach(timedelta(minutes=10), timedelta(minutes=5)), epoch_of("2026-01-01")

    def found(stated: str, period: BillingPeriod = SEPTEMBER) -> DeviceCertificate:
        return certify(DEVICE, period.start, period.end, {begun: stream((1, 5), stated=stated)}, reach=reach)

    early = found("2026-10-01T00:04")
    assert early.state is CertificateState.SILENT
    assert early.reasons == ("silent since 2026-10-01T00:04:00Z; fixes until 2026-10-01T00:05:00Z affect the period",)
    assert found("2026-09-30T23:59").reasons == ("silent since 2026-09-30T23:59:00Z",)
    assert found("2026-10-01T00:05").state is CertificateState.COMPLETE
    # a buffer that was replaced just before the period may hold the fixes that its first segments rest on
    replaced = {begun: stream((1, 3), head=5), epoch_of("2026-08-31T23:55"): stream((1, 5), stated="2026-10-02")}
    states = [certify(DEVICE, SEPTEMBER.start, SEPTEMBER.end, replaced, reach=one).state for one in (Reach(), reach)]
    assert states == [CertificateState.COMPLETE, CertificateState.OPEN]


@given(st.lists(st.sampled_from(ORDER), min_size=1, max_size=4))
def test_a_device_is_in_the_worst_state_of_its_streams(states: list[CertificateState]) -> None:
    september = "2026-09-30"
    of = {
        CertificateState.COMPLETE: stream((1, 5), stated="2026-10-02"),
        CertificateState.DECLARED_LOSS: Coverage(
            IntervalSet([(1, 4)]), (Tombstone(5, 5, "age"),), 5, us("2026-10-02"), 5
        ),
        CertificateState.SILENT: stream((1, 5), stated=september),
        CertificateState.OPEN: stream((1, 3), (5, 5), stated=september),
    }
    begun = us("2026-09-02") // 1000
    streams = {new_epoch(begun + at, 0): of[one] for at, one in enumerate(states)}
    certificate = certify(DEVICE, SEPTEMBER.start, SEPTEMBER.end, streams)
    assert certificate.state is max(states, key=ORDER.index)
    assert (certificate.since is None) == (certificate.state is not CertificateState.SILENT)


def test_a_device_that_was_never_heard_of_is_silent_and_never_complete() -> None:
    certificate = certify(DEVICE, SEPTEMBER.start, SEPTEMBER.end, {})
    assert (certificate.state, certificate.since, certificate.is_final) == (CertificateState.SILENT, None, False)
    assert certificate.reasons == ("never sent anything",)


def test_a_device_that_fell_silent_with_records_unsent_is_silent_since_its_last_statement() -> None:
    # 816 records were made, 195 of them sent: nothing is missing below the highest seq that was heard of
    known = stream((1, 195), stated="2026-09-08T12:00")
    certificate = certify(DEVICE, SEPTEMBER.start, SEPTEMBER.end, {epoch_of("2026-01-01"): known})
    assert certificate.state is CertificateState.SILENT
    assert certificate.since == datetime(2026, 9, 8, 12, tzinfo=UTC)
    assert certificate.reasons == ("silent since 2026-09-08T12:00:00Z",)
    assert not certificate.is_final


def test_a_number_that_may_have_been_drawn_by_chance_says_no_time() -> None:
    old = epoch_of("2026-08-20")
    by_chance = old + (1 << 35)
    known = stream((1, 5), stated="2026-08-20T00:01")
    streams = {old: known, by_chance: stream((1, 50), stated="2026-10-02")}
    assert state(SEPTEMBER, streams) is CertificateState.SILENT
    # nor one that was drawn upon that
    assert state(SEPTEMBER, streams | {by_chance + (1 << 35): streams[by_chance]}) is CertificateState.SILENT
    assert state(SEPTEMBER, {old: known, epoch_of("2026-08-21"): streams[by_chance]}) is CertificateState.COMPLETE


def test_loss_is_named_with_the_reasons_that_the_device_gave() -> None:
    lost = (Tombstone(3, 4, "age"), Tombstone(6, 6, "quota"), Tombstone(8, 8, "age"))
    known = Coverage(IntervalSet([(1, 2), (4, 5), (7, 7), (9, 9)]), lost, 9, us("2026-10-01"), 9)
    certificate = certify(DEVICE, SEPTEMBER.start, SEPTEMBER.end, {7: known})
    assert certificate.state is CertificateState.DECLARED_LOSS
    assert certificate.is_final
    # seq 4 was received after all
    assert certificate.document()["declared_lost"] == {"age": {"7": [[3, 3], [8, 8]]}, "quota": {"7": [[6, 6]]}}


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        (DeviceCounts(not_metered=1200), "1,200 records are not metered yet"),
        (DeviceCounts(may_be_more=True), "records that were not metered may be erased since"),
    ],
)
def test_a_complete_device_is_not_final_before_usage_covers_it(counts: DeviceCounts, reason: str) -> None:
    known = {7: stream((1, 9), stated="2026-10-01")}
    certificate = certify(DEVICE, SEPTEMBER.start, SEPTEMBER.end, known, counts=counts)
    assert (certificate.state, certificate.is_final) == (CertificateState.COMPLETE, False)
    assert certificate.reasons == (reason,)
    shown = DeviceCounts(late_positions=4, conflicts=5)
    assert certify(DEVICE, SEPTEMBER.start, SEPTEMBER.end, known, counts=shown).is_final


def test_everything_in_a_certificate_has_a_say_in_its_digest() -> None:
    known = {7: stream((1, 9), stated="2026-10-01")}
    counts = DeviceCounts(late_positions=2, not_metered=3, conflicts=4)
    certificates: list[DeviceCertificate] = [
        certify(DEVICE, SEPTEMBER.start, SEPTEMBER.end, known, counts=counts),
        certify(DEVICE, SEPTEMBER.start, SEPTEMBER.end, known),
        certify(DEVICE._replace(tenant="zeta"), SEPTEMBER.start, SEPTEMBER.end, known),
        certify(DEVICE, AUGUST.start, SEPTEMBER.end, known),
        certify(DEVICE, SEPTEMBER.start, SEPTEMBER.end, {8: known[7]}),
        certify(DEVICE, SEPTEMBER.start, SEPTEMBER.end, {7: stream((1, 8), stated="2026-10-01")}),
    ]
    # the epoch itself is in none: what was received is a number of records
    assert len({one.digest() for one in certificates}) == len(certificates) - 1
    document = certificates[0].document()
    assert json.loads(json.dumps(document)) == document
    assert (document["late_positions"], document["not_metered"], document["conflicts"]) == (2, 3, 4)


def decision(number: int = 1, kind: ClosedState = ClosedState.SILENT, **other: Any) -> Decision:
    stamp = datetime(2026, 10, 3, tzinfo=UTC)
    usual: dict[str, Any] = {**DEVICE._asdict(), "since": SEPTEMBER.start, "until": SEPTEMBER.end}
    usual |= {"decided_by": "A. Clerk", "reason": "the vehicle was sold", "decided_at": stamp}
    return Decision(number=number, kind=kind, **(usual | other))


def test_a_decision_closes_what_it_is_about_and_is_named() -> None:
    silent = {7: stream((1, 9), stated="2026-09-08")}
    certificate = certify(DEVICE, SEPTEMBER.start, SEPTEMBER.end, silent, decisions=[decision(), decision(2)])
    assert (certificate.state, certificate.stated_state) == (CertificateState.DECIDED, CertificateState.SILENT)
    assert certificate.since == datetime(2026, 9, 8, tzinfo=UTC)
    assert (certificate.is_final, certificate.reasons) == (True, ())
    named = certificate.document()["decision"]
    assert (named["number"], named["decided_by"], named["reason"]) == (2, "A. Clerk", "the vehicle was sold")
    day = BillingPeriod.parse("2026-09-30", "UTC")
    assert state(day, {}, decision()) is CertificateState.DECIDED


@pytest.mark.parametrize(
    "other",
    [
        decision(until=SEPTEMBER.end - timedelta(microseconds=1)),
        decision(since=SEPTEMBER.start + timedelta(microseconds=1)),
        decision(device="e"),
        decision(tenant="zeta"),
    ],
)
def test_a_decision_closes_no_other_device_and_no_longer_period(other: Decision) -> None:
    assert state(SEPTEMBER, {7: stream((1, 9), stated="2026-09-08")}, other) is CertificateState.SILENT


def test_a_decision_on_silence_does_not_close_a_gap_that_is_found_later() -> None:
    gap = {7: stream((1, 9), (11, 12), stated="2026-09-08")}
    assert state(SEPTEMBER, gap, decision()) is CertificateState.OPEN
    assert state(SEPTEMBER, gap, decision(kind=ClosedState.OPEN)) is CertificateState.DECIDED
    silent = {7: stream((1, 9), stated="2026-09-08")}
    assert state(SEPTEMBER, silent, decision(kind=ClosedState.OPEN)) is CertificateState.DECIDED
