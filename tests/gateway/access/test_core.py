"""The access daemon's core: what the broker is to have follows from the registry, never from the way there."""

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import create_autospec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.broker import BrokerFiles, SessionGuard, StepRunner
from gateway.access.core import AccessCore, BrokerStep, Confirmation
from gateway.access.loop import SessionLooks
from gateway.access.publisher import AccessPublisher
from gateway.access.revocation import OwnList, RevocationList
from gateway.access.status import AccessMetrics
from gateway.errors import BrokerUnreachable, SessionNotEnded
from tests.identity.makers import MOMENT, active, change, expected, published
from waybill.identity.broker_conf import MAX_DENIED
from waybill.identity.registry import DeviceEntry, EnrolledCertificate, resume, revoke, suspend
from waybill.identity.registry_messages import DevicePublication

NOW_S = MOMENT.timestamp() + 10
LATER_S = NOW_S + 1
DAY_S = 86_400.0


def core() -> AccessCore:
    made = AccessCore("eu")
    made.on_ready()
    assert made.take_step(LATER_S) is not None, "the first one makes the files, even if nothing is denied"
    return made


def revoked(device: str) -> DevicePublication:
    return published(revoke(active("acme", device), change()))


def other_list(serials: set[int], number: int = 1) -> RevocationList:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
    return RevocationList("us", number, at, at + timedelta(days=30), b"pem", b"", frozenset(serials))


def test_nothing_is_decided_before_the_registry_was_read_to_its_end() -> None:
    made = AccessCore()
    made.on_device(revoked("bus-1"))
    assert made.take_step(LATER_S) is None
    made.on_ready()
    step = made.take_step(LATER_S + 1)
    assert step is not None
    assert (step.denied, step.end) == (frozenset({"acme/bus-1"}), ("acme/bus-1",))


def test_a_revoked_device_is_denied_its_certificate_listed_its_session_ended_and_looked_at_again() -> None:
    made = core()
    made.on_issued("acme/bus-1", 7, NOW_S + 1000, NOW_S)
    made.on_device(revoked("bus-1"))
    step = made.take_step(LATER_S)
    assert step is not None
    assert (step.denied, [*step.revoked], step.end) == (frozenset({"acme/bus-1"}), [7], ("acme/bus-1",))
    assert [one.device for one in step.confirm] == ["acme/bus-1"]
    assert made.is_closed("acme/bus-1")


def test_a_certificate_that_is_signed_after_the_revocation_is_listed_too() -> None:
    made = core()
    made.on_device(revoked("bus-1"))
    made.take_step(LATER_S)
    made.on_issued("acme/bus-1", 8, NOW_S + 1000, LATER_S)
    step = made.take_step(LATER_S + 1)
    assert step is not None
    assert [*step.revoked] == [8]


def test_who_is_resumed_is_on_no_list_and_its_new_session_is_left_alone() -> None:
    made, start = core(), active("acme", "bus-1")
    made.on_issued("acme/bus-1", 7, NOW_S + 1000, NOW_S)
    suspended = suspend(start, change())
    made.on_device(published(suspended))
    made.on_device(published(resume(suspended, change())))
    step = made.take_step(LATER_S)
    assert step is not None
    assert (step.denied, step.revoked, step.end) == (frozenset(), {}, ())
    assert not made.is_closed("acme/bus-1")


def listed_elsewhere(device: str, serial: int) -> DevicePublication:
    other = EnrolledCertificate(issuer="us", serial=f"{serial:x}", not_after=MOMENT + timedelta(days=90))
    return published(revoke(active("acme", device).model_copy(update={"certificates": (other,)}), change()))


def test_who_is_on_no_list_is_denied_by_name_ahead_of_others_and_nothing_is_confirmed_of_who_finds_no_room() -> None:
    made = core()
    # Denied first, for it is the only one whom no list keeps out; all others changed later.
    made.on_device(listed_elsewhere("old", 1))
    for number in range(MAX_DENIED):
        made.on_issued(f"acme/bus-{number}", 1000 + number, NOW_S + 1000, NOW_S)
        made.on_device(published(revoke(active("acme", f"bus-{number}"), change(1))))
    step = made.take_step(LATER_S)
    assert step is not None
    assert "acme/old" in step.denied
    assert (len(step.denied), made.problem) == (MAX_DENIED, "")
    for number in range(MAX_DENIED):
        made.on_device(listed_elsewhere(f"van-{number}", 100_000 + number))
    left, confirmed = frozenset[str](), set[str]()
    while (step := made.take_step(LATER_S)) is not None:
        left, confirmed = step.left_open, confirmed | {one.device for one in step.confirm}
        assert not left & step.denied
    assert (len(left), made.left_open, len(confirmed & left)) == (1, 1, 0)
    assert made.problem.startswith("1 devices that may not connect are neither")
    # Its region's list comes: now it is in force, and confirmed.
    made.on_list(other_list({1, *range(100_000, 100_000 + MAX_DENIED)}), LATER_S)
    confirmed = set()
    while (step := made.take_step(LATER_S)) is not None:
        confirmed |= {one.device for one in step.confirm}
    assert made.problem == ""
    assert left == confirmed or "acme/old" in left


def test_a_step_that_failed_is_due_again_whole() -> None:
    made = core()
    made.on_device(revoked("bus-1"))
    step = made.take_step(LATER_S)
    assert step is not None
    made.on_failed(step)
    assert made.take_step(LATER_S + 1) == step


def test_another_regions_list_ends_again_whom_its_certificate_let_in_meanwhile() -> None:
    made = core()
    made.on_device(published(revoke(active("acme", "bus-1"), change(10))))
    made.take_step(LATER_S)
    assert made.on_list(other_list({1, 2}, 2), LATER_S)
    step = made.take_step(LATER_S + 1)
    assert step is not None
    assert step.end == ("acme/bus-1",)
    assert not made.on_list(other_list({1}, 1), LATER_S), "an older one"


def test_a_device_is_denied_by_name_until_its_last_certificate_has_ended_and_longer_by_slow_clocks() -> None:
    made = core()
    made.on_issued("acme/bus-1", 7, NOW_S + 400 * DAY_S, NOW_S)
    made.on_device(revoked("bus-1"))
    step = made.take_step(LATER_S)
    assert step is not None
    assert made.take_step(NOW_S + 400 * DAY_S) is None
    later = made.take_step(NOW_S + 400 * DAY_S + 3601)
    assert later is not None
    assert (step.denied, later.denied) == (frozenset({"acme/bus-1"}), frozenset())
    assert made.closed_devices == 1


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([suspend, resume, revoke])), max_size=20), st.randoms())
def test_a_daemon_that_was_killed_and_one_that_was_not_come_to_the_same(
    asked: list[tuple[int, Any]], rng: random.Random
) -> None:
    entries: dict[int, DeviceEntry] = {number: active("acme", f"bus-{number}") for number in range(5)}
    lasting = core()
    for seconds, (number, what) in enumerate(asked):
        try:
            entries[number] = what(entries[number], change(seconds))
        except Exception:  # noqa: BLE001, S112 - a change that is refused is none
            continue
        lasting.on_device(published(entries[number]))
        if rng.random() < 0.5:
            lasting.take_step(NOW_S + seconds + 1)
    fresh = AccessCore("eu")
    for entry in rng.sample([*entries.values()], 5):
        fresh.on_device(published(entry))
    for made in (lasting, fresh):
        made.on_ready()
        made.on_broker()
    steps = [made.take_step(NOW_S + 200) for made in (lasting, fresh)]
    assert steps[0] is not None
    assert steps[1] is not None
    assert steps[0].denied == steps[1].denied
    assert {*steps[0].end} == {*steps[1].end} == steps[0].denied


def naming(serial: int, entry: DeviceEntry | None = None) -> DeviceEntry:
    """An entry that names a certificate of this region's authority; whoever signs entries may name any."""
    named = EnrolledCertificate(issuer="eu", serial=f"{serial:x}", not_after=MOMENT + timedelta(days=1))
    return (entry or active("acme", "bus-1")).model_copy(update={"certificates": (named,)})


def step_of(made: AccessCore) -> BrokerStep:
    step = made.take_step(LATER_S + 1)
    assert step is not None
    return step


@pytest.mark.parametrize("owner", ["", "zeta/bus-9", "gateway@eu-1"])
def test_a_certificate_is_on_the_list_by_what_its_authority_says_and_by_no_entry_that_names_it(owner: str) -> None:
    for is_known_first in (True, False):
        made = core()
        steps = [lambda made=made: owner and made.on_issued(owner, 7, NOW_S + 1000, NOW_S)]
        steps += [lambda made=made: made.on_device(published(revoke(naming(7), change())))]
        for one in steps if is_known_first else reversed(steps):
            one()
        step = step_of(made)
        assert (dict(step.revoked), step.denied) == ({}, frozenset({"acme/bus-1"})), "by its own name it is kept out"
    made.on_issued("acme/bus-1", 8, NOW_S + 1000, NOW_S)
    assert [*step_of(made).revoked] == [8]


def test_one_that_never_used_its_claim_has_no_certificate_to_keep_out() -> None:
    made = core()
    for number in range(MAX_DENIED + 1):
        made.on_device(published(revoke(expected("acme", f"bus-{number}"), change())))
    assert (len(step_of(made).denied), made.left_open) == (MAX_DENIED, 0)


def test_a_session_that_the_broker_does_not_end_holds_up_no_other_and_is_left_to_be_done_again() -> None:
    def end(name: str) -> None:
        if name == "acme/odd":
            raise SessionNotEnded("reason 0x85")

    guard, publisher = create_autospec(SessionGuard), create_autospec(AccessPublisher)
    guard.end.side_effect = end
    own = create_autospec(OwnList, current=None)
    runner = StepRunner(create_autospec(BrokerFiles), guard, publisher, AccessMetrics(), own_list=own)
    names = ("acme/odd", "acme/bus-1")
    confirm = tuple(Confirmation(name, name) for name in names)
    left = runner.run(BrokerStep(frozenset(names), {}, (), names, confirm))
    assert [call.args[0] for call in guard.end.call_args_list] == [*names, *names]
    assert left is not None
    assert (left.end, left.confirm) == (("acme/odd",), confirm[:1])
    publisher.confirm.assert_called_once()
    assert publisher.confirm.call_args.args[0] == [confirm[1]]


def test_a_session_ends_before_the_list_is_signed_and_read_and_once_more_behind_it() -> None:
    done: list[str] = []
    guard, files, own = (
        create_autospec(SessionGuard),
        create_autospec(BrokerFiles),
        create_autospec(OwnList, current=None),
    )
    guard.end.side_effect = lambda _: done.append("ended")
    own.update.side_effect = lambda *_: done.append("signed")
    files.reload.side_effect = lambda: done.append("reloaded")
    runner = StepRunner(files, guard, create_autospec(AccessPublisher), AccessMetrics(), own_list=own)
    assert runner.run(BrokerStep(frozenset({"acme/bus-1"}), {}, (), ("acme/bus-1",), ())) is None
    assert done == ["ended", "signed", "reloaded", "ended"]


def test_a_broker_that_is_away_finds_its_files_when_it_comes() -> None:
    guard, files, own = (
        create_autospec(SessionGuard),
        create_autospec(BrokerFiles),
        create_autospec(OwnList, current=None),
    )
    guard.end.side_effect = files.reload.side_effect = BrokerUnreachable("no socket")
    runner = StepRunner(files, guard, create_autospec(AccessPublisher), AccessMetrics(), own_list=own)
    with pytest.raises(BrokerUnreachable):
        runner.run(BrokerStep(frozenset({"acme/bus-1"}), {}, (), ("acme/bus-1",), ()))
    files.write_rules.assert_called_once()
    files.write_lists.assert_called_once()


def test_a_session_that_was_ended_is_looked_for_longer_than_a_connection_without_a_connect_stands() -> None:
    looks = SessionLooks()
    looks.add(["acme/bus-1"], 100.0)
    assert looks.due_s() == 101.0
    assert [seconds for seconds in range(600) if looks.take(100.0 + seconds)] == [1, 3, 7, 15, 31, 63, 127, 255]
    assert looks.due_s() == math.inf
