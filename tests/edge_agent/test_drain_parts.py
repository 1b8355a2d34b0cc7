"""The parts of the drain, each alone: the inbox of other threads, the health of the uplink, the choice of region."""

import threading
from random import Random

import pytest
from structlog.testing import capture_logs

from edge_agent.clocks import ClockJump
from edge_agent.config import AgentSettings
from edge_agent.drain.drainer import MAX_NEW_BATCHES, MAX_REPORTS, DrainInbox
from edge_agent.drain.region import LEAVE_WITHIN_S, RegionChoice, UplinkHealth
from edge_agent.errors import LinkClosed, LinkError, NoCertificate, StoreError
from edge_agent.store.batch_rows import StoredBatch, batch_row_id
from edge_agent.uplink.protocol import OutgoingBatch, UplinkEvent
from tests.edge_agent.makers import fill, open_buffer
from tests.edge_agent.scripted_region import Road, acks, drive


def batches(count: int) -> list[StoredBatch]:
    return [StoredBatch(batch_row_id(1, number), 7, number, 1, 1, 10, 0) for number in range(1, count + 1)]


def test_new_batches_are_handed_over_once_and_more_than_fit_are_looked_for_on_disk():
    inbox = DrainInbox(lambda: 0)
    inbox.on_committed(batches(3))
    assert inbox.take_batches() == (batches(3), False)
    assert inbox.take_batches() == ([], False)
    inbox.on_committed(batches(MAX_NEW_BATCHES))
    inbox.on_committed(batches(1))
    taken, missed = inbox.take_batches()
    assert (len(taken), missed) == (MAX_NEW_BATCHES, True)
    inbox.on_missed()
    assert inbox.take_batches() == ([], True)


def test_whatever_is_put_in_wakes_the_drain_where_it_waits():
    inbox = DrainInbox(lambda: 41)
    woken: list[float] = []
    actions = [
        lambda: inbox.on_committed([]),
        inbox.on_missed,
        lambda: inbox.on_jump(ClockJump("boot", 0, 1, 2)),
        lambda: inbox.report(b"{}"),
        inbox.stop,
    ]
    inbox.set_uplink(lambda: woken.append(1))
    for number, action in enumerate(actions, 1):
        action()
        assert (inbox.take_wakeup(), inbox.take_wakeup(), len(woken)) == (True, False, number)
    inbox.set_uplink(None)
    inbox.stop()
    inbox.wait(lambda event, timeout_s: woken.append(event.is_set() and timeout_s), 3.0)
    assert (woken[-1], inbox.take_wakeup()) == (3.0, False)
    assert inbox.jumps == type(inbox.jumps)([(ClockJump("boot", 0, 1, 2), 41)])


def test_an_uplink_that_cannot_be_woken_any_more_does_no_harm_and_reports_are_bounded():
    inbox = DrainInbox(lambda: 0)

    def gone() -> None:
        raise OSError("closed")

    inbox.set_uplink(gone)
    for number in range(2 * MAX_REPORTS):
        inbox.report(str(number).encode())
    assert len(inbox.reports) == MAX_REPORTS
    inbox.wait(threading.Event.wait, 60.0)
    assert not inbox.take_wakeup()


def health() -> UplinkHealth:
    it = UplinkHealth(ack_timeout_s=30, max_pause_s=100)
    it.on_connected("eu")
    return it


def test_a_connection_is_healthy_until_an_acknowledgement_is_overdue_and_again_after_one():
    it = health()
    assert (it.is_healthy, it.region_acked) == (True, None)
    it.on_sent(10.0)
    assert (it.update(39.0, is_idle=False), it.is_healthy) == (10.0, True)
    assert (it.update(40.0, is_idle=False), it.is_healthy) == (10.0, False)
    it.on_acked(41.0, more_in_flight=False)
    assert (it.update(41.0, is_idle=True), it.is_healthy, it.region_acked) == (None, True, "eu")


@pytest.mark.parametrize(("region", "since_s"), [("eu", 0.0), ("us", None)])
def test_connecting_again_ends_the_wait_for_an_answer_only_in_another_region(region, since_s):
    it = health()
    it.on_sent(0.0)
    it.on_closed()
    assert (it.is_healthy, it.connected_region) == (False, None)
    it.on_connected(region)
    assert it.update(50.0, is_idle=False) == since_s


def test_a_refusal_is_an_answer_unless_the_region_refuses_everything():
    for refuses_all, since_s in ((False, None), (True, 0.0)):
        it = health()
        it.on_sent(0.0)
        it.on_refused(5.0, more_in_flight=False, region_refuses_all=refuses_all)
        assert it.update(6.0, is_idle=False) == since_s


def test_without_a_gateway_nothing_is_healthy_until_something_is_acknowledged():
    it = health()
    it.on_no_gateway()
    it.resume_at_s = 9.0
    it.update(1.0, is_idle=True)
    assert (it.is_healthy, it.gateway_absent) == (False, True)
    it.on_acked(2.0, more_in_flight=False)
    it.update(2.0, is_idle=True)
    assert (it.is_healthy, it.gateway_absent, it.resume_at_s) == (True, False, 0.0)


def choice(*regions: str) -> RegionChoice:
    settings = AgentSettings.model_validate(
        {
            "device": {"id": "d"},
            "uplinks": [{"region": region, "host": "127.0.0.1"} for region in regions],
            "failover": {"after_s": 20, "return_after_s": 300, "hold_s": 1, "jitter": 0},
        }
    )

    def refused(_settings):
        raise LinkError("away")

    return RegionChoice(settings, refused, Random(1))


def test_a_region_is_left_after_lasting_failure_of_the_link_and_not_for_errors_of_the_buffer():
    it = choice("eu", "us")
    for now_s in range(0, 100, 10):
        it.on_failure(now_s, StoreError("full"), "eu")
    assert it.region == "eu"
    it.on_failure(100, LinkError("gone"), "eu")
    it.on_failure(119, LinkError("gone"), None)
    assert it.region == "eu"
    it.on_failure(120, LinkError("gone"), None)
    assert it.region == "us"


def test_a_region_that_is_silent_for_long_is_left_and_named():
    it = choice("eu", "us")
    it.update(19.0, 0.0, "eu", is_acked=False)
    with pytest.raises(LinkError, match="eu is silent"):
        it.update(20.0, 0.0, "eu", is_acked=True)
    assert it.region == "us"


def test_only_an_acknowledgement_on_this_connection_ends_the_failure_that_was_before_it():
    for is_acked, region in ((False, "us"), (True, "eu")):
        it = choice("eu", "us")
        it.on_failure(0.0, LinkError("gone"), None)
        it.update(10.0, 9.0, "eu", is_acked=is_acked)
        it.on_failure(20.0, LinkError("gone"), "eu")
        assert it.region == region


def test_the_only_region_is_never_left():
    it = choice("eu")
    for now_s in range(0, 1000, 50):
        it.update(now_s, 0.0, "eu", is_acked=False)
        it.on_failure(now_s, LinkError("gone"), None)
    assert it.region == "eu"


def test_how_the_last_connection_ended_is_known_until_a_region_acknowledges():
    it = choice("eu", "us")
    assert it.last_failure == ""
    it.on_failure(0.0, LinkError("eu.example:8883: certificate revoked"), "eu")
    it.on_connected(0.5)
    it.update(1.0, None, "eu", is_acked=False)
    assert it.last_failure == "eu.example:8883: certificate revoked"
    it.on_acked()
    assert it.last_failure == ""


def test_why_there_was_no_connection_is_over_when_there_is_one_though_nothing_is_sent():
    it = choice("eu")
    it.on_failure(0.0, NoCertificate("eu: the device has no operational certificate yet; records are kept"), None)
    assert it.last_failure
    it.on_connected(1.0)
    assert it.last_failure == ""


def test_the_log_calls_a_connection_lost_only_if_there_was_one():
    it = choice("eu")
    with capture_logs() as lines:
        it.on_failure(0.0, LinkError("refused"), None)
        it.on_failure(1.0, LinkError("gone"), "eu")
    assert [line["event"] for line in lines] == ["uplink not reached", "uplink lost"]


def test_waits_grow_while_sessions_are_taken_over_though_each_connection_is_acknowledged():
    it = choice("eu")
    waits = []
    for number in range(8):
        it.takeovers.on_connected(float(number))
        it.on_acked()
        it.update(float(number), None, "eu", is_acked=True)
        it.on_failure(number + 0.5, LinkClosed("closed"), "eu")
        waits.append(it.take_delay_s())
    assert it.takeovers.is_suspected
    assert waits[-1] > 8 * waits[0]
    it.stop()


class Outages(Road):
    """A region that cannot be used in these spans of time, and acknowledges everything otherwise."""

    def __init__(self, spans: list[tuple[float, float]], until_s: float) -> None:
        super().__init__(self.speak, until_s)
        self._spans = spans
        self.failed_s: list[float] = []

    def speak(self, now_s: float, _region: str, new: list[OutgoingBatch]) -> list[UplinkEvent]:
        if any(first_s <= now_s < last_s for first_s, last_s in self._spans):
            self.failed_s.append(now_s)
            raise LinkError("away")
        return acks(new)


def test_after_a_long_outage_and_one_acknowledgement_a_short_one_waits_the_first_delay_again(tmp_path):
    buffer = open_buffer(tmp_path)
    fill(buffer, [1, 2])
    road = Outages([(0, 600), (1000, 1020)], until_s=1100)
    drive(buffer, road)
    before, after = ([at for at in road.failed_s if (at < 1000) == is_before] for is_before in (True, False))
    assert before[-1] - before[-2] > 20, "the waits of the long outage have grown"
    assert len(after) >= 2
    assert after[1] - after[0] < 3
    buffer.close()


def test_what_is_in_flight_gets_a_moment_before_the_preferred_region_is_returned_to():
    it = choice("eu", "us")
    assert not it.try_leave(0.0, in_flight=0)
    it.leave_by_s = LEAVE_WITHIN_S
    assert it.check_in_s() is not None
    assert not it.try_leave(1.0, in_flight=2)
    assert it.try_leave(1.0, in_flight=0)
    it.leave_by_s = LEAVE_WITHIN_S
    assert it.try_leave(LEAVE_WITHIN_S, in_flight=2)
    assert it.check_in_s() is None
