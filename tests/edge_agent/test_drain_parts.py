"""The parts of the drain, each alone: the inbox of other threads, the health of the uplink, the choice of region."""

from random import Random

from edge_agent.clocks import ClockJump
from edge_agent.config import AgentSettings
from edge_agent.drain.drainer import MAX_NEW_BATCHES, DrainInbox
from edge_agent.drain.region import RegionChoice, UplinkHealth
from edge_agent.errors import LinkClosed, LinkError
from edge_agent.store.batch_rows import StoredBatch, batch_row_id
from edge_agent.uplink.protocol import OutgoingBatch, UplinkEvent
from tests.edge_agent.scripted_region import Road, acks


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


def health() -> UplinkHealth:
    it = UplinkHealth(ack_timeout_s=30, max_pause_s=100)
    it.on_connected("eu")
    return it


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
