"""What a region finds as fixes come is what the engine finds in all of them."""

import random
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.alerts.alert_sender import AckOrder, TakenMessages
from gateway.alerts.config import EvaluationSettings
from gateway.alerts.evaluation import AlertRules, LiveEvents
from gateway.alerts.fixes import IN_TABLE, FixRows, FixSource, HeldFixes
from gateway.alerts.metrics import AlertMetrics
from gateway.alerts.partition import MAX_PAUSE_S, pause_s
from gateway.alerts.partition_evaluation import UnusableBatch, read_batch
from geo.spatial import DayEvent
from tests.gateway.alerts.fixes_as_they_come import NOON, NOW, LiveFix, columns, cut, drives, engine_finds, live_rules
from waybill.identity.sealing import Sealer, Unsealer
from waybill.record import Batch, Canary, Position, Record, encode
from waybill.record.columns import RecordColumns


def evaluation(by: AlertRules | None = None, **settings: float) -> LiveEvents:
    return LiveEvents(by or live_rules(), EvaluationSettings.model_validate({"max_age_s": 86_400, **settings}))


@pytest.mark.parametrize("min_stay_s", [0.0, 15.0])
@given(fixes=drives(), sizes=st.lists(st.integers(1, 9), max_size=30))
@settings(deadline=None)
def test_in_order_everything_that_the_engine_finds_is_found_whatever_comes_together(
    min_stay_s: float, fixes: list[LiveFix], sizes: list[int]
) -> None:
    by = live_rules(min_stay_s=min_stay_s)
    live = evaluation(by)
    found: dict[str, DayEvent] = {}
    for part in cut(fixes, sizes):
        for one in live.take(columns(part), NOW, report=True):
            assert one.id not in found, "an event is said once"
            found[one.id] = one.event
    expected = engine_finds(fixes, by)
    assert not live.passed_over.cut
    # what the next fix showed to be otherwise is withdrawn by the centre
    assert expected.keys() <= found.keys()
    right = {one: event for one, event in expected.items() if event.kind != "speeding"}
    assert {one: found[one] for one in right} == right


@given(fixes=drives(), random=st.randoms(use_true_random=False), sizes=st.lists(st.integers(1, 9), max_size=30))
@settings(deadline=None)
def test_in_any_order_and_repeated_each_event_is_said_once_and_what_is_kept_is_bounded(
    fixes: list[LiveFix], random: Random, sizes: list[int]
) -> None:
    live, said = evaluation(), set[str]()
    shuffled = fixes + random.sample(fixes, k=len(fixes) // 3)
    random.shuffle(shuffled)
    for part in cut(shuffled, sizes):
        found = [one.id for one in live.take(columns(part), NOW, report=True)]
        assert len(set(found)) == len(found)
        said.update(found)
    for one in live.take(columns(fixes), NOW, report=True):
        assert one.id not in said
    assert live.device_count <= 1


@given(fixes=drives(most=80), first=st.integers(1, 40))
@settings(deadline=None)
def test_a_state_that_is_made_again_of_the_fixes_before_finds_what_the_other_finds(
    fixes: list[LiveFix], first: int
) -> None:
    by = live_rules()
    lasting, again = evaluation(by), evaluation(by)
    lasting.take(columns(fixes[:first]), NOW, report=True)
    assert again.take(columns(fixes[:first]), NOW, report=False) == []
    if fixes[first:]:
        rest = columns(fixes[first:])
        assert again.take(rest, NOW, report=True) == lasting.take(rest, NOW, report=True)


def along(seconds: Sequence[int], *, east: float, step: float = 0.0001) -> list[LiveFix]:
    """A way to the east through the depot, a fix for each of these seconds."""
    return [LiveFix("bus-1", NOON + 1000 * s, s + 1, 0.0025, east + step * s) for s in seconds]


def test_a_backlog_of_yesterday_raises_nothing_and_the_state_goes_on() -> None:
    live = evaluation(max_age_s=300)
    drive = along(range(80), east=-0.002)
    assert live.take(columns(drive[:50]), NOON + 86_400_000, report=True) == []
    assert live.passed_over.too_old == 2  # into the depot, and over the gate
    found = live.take(columns(drive[50:]), NOON + 81_000, report=True)
    assert [(one.event.kind, one.event.place, round(one.event.value)) for one in found] == [
        ("enter", "beside", 0),
        ("exit", "depot", 40),
    ]


def test_the_devices_heard_least_recently_are_forgotten() -> None:
    live = evaluation(max_devices=50)
    for number in range(120):
        live.take(columns([LiveFix(f"bus-{number}", NOON, 1, 0.002, 0.002)]), NOON + number, report=True)
    assert live.device_count <= 50
    assert live.passed_over.forgotten >= 70


def test_a_device_at_a_border_for_hours_is_cut_and_counted() -> None:
    live = evaluation()
    # 3 m inside: nobody knows whether it is
    at_border = [LiveFix("bus-1", NOON + 1000 * s, s + 1, 0.002, 0.00003 if s else -0.0005) for s in range(300)]
    for at in range(0, 300, 5):
        live.take(columns(at_border[at : at + 5]), NOW, report=True)
    assert live.passed_over.cut > 0
    assert live.nbytes < 100_000


def test_an_alert_that_is_seen_by_fixes_of_two_buffers_says_so_of_each() -> None:
    live = evaluation()
    drive = along(range(30), east=-0.002)
    live.take(columns(drive[:18]), NOON + 18_000, report=True)
    both = columns([*drive[18:22], *(fix._replace(seq=fix.seq - 22) for fix in drive[22:26])])
    of_two = replace(
        both, sources=[*both.sources, FixSource("acme", "bus-1", 8)], source=np.array([0] * 4 + [1] * 4, dtype=np.int64)
    )
    (enter,) = live.take(of_two, NOON + 26_000, report=True)
    assert sorted(enter.seen_until) == [(7, 22), (8, 4)]


@given(st.lists(st.integers(0, 4), max_size=30), st.randoms(use_true_random=False))
def test_in_whatever_order_receipts_come_a_position_is_acknowledged_when_all_before_it_are_receipted(
    alerts: list[int], order: random.Random
) -> None:
    known: AckOrder[int] = AckOrder()
    open_: list[TakenMessages[int]] = []
    receipted, acknowledged, waiting = [0] * len(alerts), -1, list(enumerate(alerts))
    while waiting or open_:
        if waiting and (not open_ or order.random() < 0.5):
            position, count = waiting.pop(0)
            open_ += [known.take(position, count)] * count
        else:
            one = open_.pop(order.randrange(len(open_)))
            known.on_receipt(one)
            receipted[one.position] += 1
        position_now = known.pop_done()
        if position_now is not None:
            assert position_now > acknowledged
            acknowledged = position_now
        assert all(receipted[at] == alerts[at] for at in range(acknowledged + 1))
        assert known.unreceipted == len(open_)
    assert acknowledged == len(alerts) - 1, "and in the end all of it is"
    assert len(known) == 0


NOW_MS = 1_767_603_422_000
ACME = frozenset({"acme"})


def batch(*times_ms: int, device: str = "d-1") -> bytes:
    records = [
        Record(seq, t_ms * 1000, Position(latitude=50.0, longitude=8.0, speed_mps=3.0))
        for seq, t_ms in enumerate(times_ms, 1)
    ]
    last = Record(len(times_ms) + 1, NOW_MS * 1000, Canary(id="c"))
    return encode(Batch(device, 7, len(times_ms) + 1, (*records, last)))


def read(payload: bytes, tenant: str = "acme", region: str = "eu", unsealer: Unsealer | None = None) -> RecordColumns:
    said = {"tenant": tenant, "region": region}
    named, columns = read_batch(payload, said, tenants=ACME, unsealer=unsealer or Unsealer())
    assert named == tenant
    return columns


def test_a_batch_of_another_tenant_and_one_of_none_are_passed_over() -> None:
    for said in ({"tenant": "other"}, {}):
        with pytest.raises(UnusableBatch) as passed:
            read_batch(batch(NOW_MS), said, tenants=ACME, unsealer=Unsealer())
        assert passed.value.reason == "tenant"


def test_a_sealed_batch_is_opened_by_the_tenants_key_and_passed_over_without_it() -> None:
    key = X25519PrivateKey.generate()
    sealed = Sealer(key.public_key(), X25519PrivateKey.generate(), "acme", "eu").seal(batch(NOW_MS))
    assert read(sealed, unsealer=Unsealer([key])).seq.tolist() == [1, 2]
    for region, unsealer, reason in (("eu", None, "sealed"), ("us", Unsealer([key]), "sealed"), ("", None, "region")):
        with pytest.raises(UnusableBatch) as passed:
            read(sealed, region=region, unsealer=unsealer)
        assert passed.value.reason == reason


@given(st.floats(0, 10), st.integers(0, 1_000))
def test_evaluations_of_few_messages_take_a_third_of_a_thread_and_no_alert_waits_long(took_s, messages):
    pause = pause_s(took_s, messages, 1_001)
    assert pause <= MAX_PAUSE_S
    assert took_s <= (took_s + pause) / 3 + 1e-9 or pause == MAX_PAUSE_S


_SLOTS = 5
_LENGTHS = st.integers(0, 2 * IN_TABLE)
_WRITES = st.lists(st.dictionaries(st.integers(0, _SLOTS - 1), _LENGTHS, min_size=1), min_size=1, max_size=6)


def _rows(lengths: list[int], first: int) -> FixRows:
    """Of so many fixes each, all numbers different; reals that are not numbers among them."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    numbers = first + np.arange(len(owner))
    reals = np.where(numbers % 3 == 0, np.nan, numbers / 7.0)
    return FixRows(owner, numbers, numbers + 1, numbers + 2, reals, reals + 1, reals + 2, reals + 3)


def _plain(rows: FixRows) -> list[list[tuple[str, ...]]]:
    found: list[list[tuple[str, ...]]] = [[] for _ in range(_SLOTS)]
    for owner, *values in zip(*(column.tolist() for column in rows), strict=True):
        found[owner].append(tuple(map(str, values)))
    return found


@given(_WRITES)
def test_what_is_read_is_what_was_written_last_and_the_newest_is_its_end(writes: list[dict[int, int]]) -> None:
    held, kept, first = HeldFixes(), [list[tuple[str, ...]]() for _ in range(_SLOTS)], 0
    held.reserve(_SLOTS)
    for lengths in writes:
        slots = np.array(sorted(lengths), dtype=np.int64)
        rows = _rows([lengths[slot] for slot in slots.tolist()], first)
        first += len(rows.owner)
        held.write(slots, rows)
        for slot, fixes in zip(slots.tolist(), _plain(rows), strict=False):
            kept[slot] = fixes
    everyone = np.arange(_SLOTS)
    assert _plain(held.read(everyone)) == kept
    newest = _plain(held.last(everyone))
    assert [fixes[-1] for fixes in kept if fixes] == [newest[slot][0] for slot in range(_SLOTS) if kept[slot]]
    assert held.lengths(everyone).tolist() == [len(fixes) for fixes in kept]


def test_what_never_happened_is_a_zero_for_prometheus_and_nothing_in_the_status() -> None:
    metrics = AlertMetrics()
    value = metrics.registry.get_sample_value
    assert value("waybill_alerts_published_total", {"kind": "enter"}) == 0
    assert value("waybill_alerts_fixes_passed_over_total", {"reason": "too_old"}) == 0
    assert value("waybill_alerts_passed_over_total", {"reason": "internal-error"}) == 0
    assert value("waybill_alerts_passed_over_total", {"reason": "checksum"}) == 0
    assert metrics.counts["alerts_published"] == 0
    assert metrics.counts["fixes_passed_over"] == {}
