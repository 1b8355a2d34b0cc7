"""Any order of what can happen to an agent, against a model: one id for each message, no loss without a word."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edge_agent.clocks import ClockJump, CorrectionRules
from edge_agent.config import AgentSettings
from edge_agent.drain.dispatcher import Dispatcher
from edge_agent.store.batch_rows import SET_CLOCK_US, StoredBatch
from edge_agent.store.buffer import Buffer
from edge_agent.store.clock_correction import ClockCorrector
from edge_agent.store.epochs import next_epoch
from tests.edge_agent.intake_parts import RING, IntakeHarness
from tests.edge_agent.makers import DEVICE, missing_in, options, stored_bytes
from tests.edge_agent.world import SteadyClocks
from waybill.mqtt.mqtt_client import MqttMessage
from waybill.record import IntervalSet, Raw, Record, Signal, decode, read_header
from waybill.settings import load

Name = tuple[int, int]


class CentreModel:
    """All that the two regions ever received, and which names each of them did not."""

    def __init__(self) -> None:
        self.records: dict[Name, Record] = {}
        self.in_images: set[Name] = set()
        self.accounted: dict[int, IntervalSet] = {}
        self.lost_on_the_way: dict[tuple[str, int], IntervalSet] = {}
        self.answers: list[tuple[str, int, IntervalSet]] = []

    def take(self, region: str, data: bytes) -> None:
        batch = decode(data)
        for record in batch.records:
            name = (batch.epoch, record.seq)
            known = self.records.setdefault(name, record)
            # A jump may have been corrected after an image was made, which then knows the time of before.
            times: dict[str, Any] = {"device_time_us": 0, "uncertainty_ms": 0} if name in self.in_images else {}
            assert replace(known, **times) == replace(record, **times), "one id, one content"
        names = batch.header.seqs
        self.accounted[batch.epoch] = self.accounted.get(batch.epoch, IntervalSet()) | names
        self.answers.append((region, batch.epoch, names))

    def never_got(self, region: str, epoch: int, names: IntervalSet) -> None:
        before = self.lost_on_the_way.get((region, epoch), IntervalSet())
        self.lost_on_the_way[region, epoch] = before | names


ELEVEN_YEARS_US = 11 * 365 * 86_400 * 1_000_000
BOUNDLESS = 1 << 40
CONFIG = """
[device]
id = "{device}"
[buffer]
path = "{folder}"
commit_records = 25
[drain]
batch_records = 60
merge_below_records = 15
window = 6
live_s = 3
ack_timeout_s = 5
[[uplinks]]
region = "eu"
host = "127.0.0.1"
[[uplinks]]
region = "us"
host = "127.0.0.1"
"""


class IntakeMachine(RuleBasedStateMachine):
    """The vehicle's broker is a list of messages without PUBACK; the centre remembers all that it was ever sent."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.folder = self.root / "buffer"
        self.config = self.root / "agent.toml"
        self.config.write_text(CONFIG.format(device=DEVICE, folder=self.folder))
        self.folder.mkdir()
        self.epochs: list[int] = []
        self.made = self.mid = 0
        self.open: list[MqttMessage] = []
        self.centre = CentreModel()
        self.region = "eu"
        self.clocks = SteadyClocks()
        self.capacity = BOUNDLESS
        self.anchors: set[int] = set()
        self.id_of: dict[int, Name] = {}
        self.given: dict[Name, int] = {}
        self.acknowledged: set[int] = set()
        self.image: tuple[Path, frozenset[Name]] | None = None
        self.gone: set[Name] = set()
        self.start(resumed=False)

    def start(self, *, resumed: bool) -> None:
        """As the agent does it."""
        if resumed:
            self.nothing_is_given_up_without_need()
        self.settings = load(AgentSettings, self.config)
        given = replace(options(RING), epoch_for=self.epoch_above)
        buffer = Buffer(self.folder, given)
        self.corrector = ClockCorrector(buffer, CorrectionRules())
        offset_us, _ = self.corrector.resume(self.clocks.boot, self.clocks.offset_us)
        self.dispatcher = Dispatcher(self.settings.drain, buffer, range(4))
        self.jumps: list[tuple[ClockJump, int]] = []
        self.intake = IntakeHarness(
            self.folder,
            buffer,
            self.settings,
            clocks=self.clocks,
            space=self.space,
            on_commit=self.committed,
            on_jump=lambda jump: self.jumps.append((jump, buffer.last_id())),
            offset_us=offset_us,
        )
        self.dispatcher.on_connected(self.region)
        self.lost_before = self.lost()
        self.doubted = buffer.counters.value("possible_duplicates")
        self.intake.connect(resumed=resumed)

    def epoch_above(self, least: int) -> int:
        """The agent's own choice: also an image that is put back again begins no epoch a second time."""
        self.epochs.append(next_epoch(least, self.clocks.wall_us() // 1000))
        assert len(set(self.epochs)) == len(self.epochs)
        return self.epochs[-1]

    def space(self, buffer: Buffer) -> int:
        stored = sum(one.size for one in buffer.depth().values())
        return self.settings.buffer.free_space_floor_bytes + self.capacity - stored

    def committed(self, blocks: Sequence[StoredBatch]) -> None:
        again = 0
        for block in blocks:
            for record in decode(block.data).records:
                name, number = (block.epoch, record.seq), number_of(record)
                assert self.given.setdefault(name, number) == number, "one id is given once"
                is_second = self.id_of.setdefault(number, name) != name
                assert not (is_second and number in self.anchors), "a time of its own distinguishes it"
                again += is_second
        counted = self.intake.buffer.counters.value("possible_duplicates")
        assert again <= counted - self.doubted, "one message, one id, unless it is counted as a possible duplicate"
        self.doubted = counted
        self.dispatcher.on_committed(self.now_s, blocks)

    @property
    def now_s(self) -> float:
        return self.clocks.now_us / 1_000_000

    def lost(self) -> Counter[str]:
        counts = self.intake.buffer.counters.stored if hasattr(self, "intake") else {}
        return Counter({name: count for name, count in counts.items() if name.startswith("lost_")})

    def teardown(self) -> None:
        self.capacity = BOUNDLESS
        self.deliver_again(dup=True)
        self.commit()
        self.dispatcher.on_disconnected()
        for _ in range(100):
            self.send(arrives=True)
            self.acknowledge(1.0)
            if not any(one.records or one.size for one in self.intake.buffer.depth().values()):
                break
        else:
            raise AssertionError(f"not drained: {self.intake.buffer.depth()}")
        assert self.acknowledged == set(range(self.made)) == self.id_of.keys(), "every message has its id"
        for name in self.given.keys() - self.gone:
            assert name[1] in self.centre.accounted[name[0]], "every id is at the region or declared lost"
        assert missing_in(self.intake.buffer) == 0
        self.intake.buffer.close()
        shutil.rmtree(self.root)

    @rule(count=st.integers(1, 8), size=st.sampled_from([0, 0, 0, 20_000]))
    def publish(self, count, size):
        for _ in range(count):
            self.mid += 1
            time_ms = self.clocks.wall_us() // 1000
            topic, payload = "vehicle/signal", b'{"time":%d,"path":"S","value":%d}' % (time_ms, self.made)
            if size:
                topic, payload = "vehicle/odd", b"%d " % self.made + Random(self.made).randbytes(size)
            elif time_ms * 1000 >= SET_CLOCK_US:
                self.anchors.add(self.made)
            self.made += 1
            self.open.append(MqttMessage(self.mid, 1, False, topic, payload))
            assert not self.intake.record_intake.receive(self.open[-1], 0.0)

    @rule()
    def commit(self):
        self.puback(self.intake.commit())

    def puback(self, mids):
        for message in [one for one in self.open if one.mid in set(mids)]:
            self.open.remove(message)
            self.acknowledged.add(number_in(message))

    @rule(dup=st.booleans())
    def deliver_again(self, dup):
        """The connection is cut before the PUBACKs arrive: what they were for comes again."""
        self.intake.connect(resumed=True)
        for message in list(self.open):
            if self.intake.record_intake.receive(message._replace(dup=dup), 0.0):
                self.puback([message.mid])

    @rule(dup=st.booleans())
    def kill(self, dup):
        self.intake.buffer.database.close()
        self.start(resumed=True)
        self.deliver_again(dup)

    @rule()
    def reload(self):
        self.intake.commit()
        self.intake.buffer.close()
        self.start(resumed=True)
        self.deliver_again(dup=True)

    @rule(arrives=st.booleans())
    def send(self, arrives):
        """As much as the window lets through, after the clock corrections that jumps call for."""
        self.clocks.now_us += 1_000_000
        self.corrector.mark_sending()
        while self.jumps:
            self.corrector.correct(*self.jumps[0], self.dispatcher.maybe_sent)
            self.jumps.pop(0)
            self.dispatcher.reload()
        self.dispatcher.retry_overdue(self.now_s)
        while (batch := self.dispatcher.take_next(self.now_s)) is not None:
            if arrives:
                self.centre.take(self.region, batch.data)
            else:
                self.centre.never_got(self.region, batch.epoch, batch.seqs)

    @rule()
    def answer_for_another_region(self):
        """What one region was sent and never got, another one says that it has: nothing of it may leave."""
        self.publish(1, 0)
        self.commit()
        self.send(arrives=False)
        self.connect("us" if self.region == "eu" else "eu")
        self.forge(0, self.intake.buffer.head, 0)

    @rule(region=st.sampled_from(["eu", "us"]))
    def connect(self, region):
        self.dispatcher.on_disconnected()
        self.region = region
        self.dispatcher.on_connected(region)

    @rule(share=st.floats(0, 1))
    def acknowledge(self, share):
        """Answers come through the connection to their region, some of them long after they were given."""
        mine = [one for one in self.centre.answers if one[0] == self.region]
        for answer in mine[: round(len(mine) * share)]:
            self.centre.answers.remove(answer)
            self.dispatcher.on_acked(*answer[1:])
        self.intake.buffer.prune_acknowledged()

    @rule(back=st.integers(0, 3), first=st.integers(1, 60), more=st.sampled_from([0, 5, 100, 10**12]))
    def forge(self, back, first, more):
        """Of names that this region was never sent, or that it has; only the latter may leave."""
        epoch = self.epochs[max(0, len(self.epochs) - 1 - back)]
        names = IntervalSet([(first, first + more)])
        names -= self.centre.lost_on_the_way.get((self.region, epoch), IntervalSet())
        has = self.centre.accounted.get(epoch, IntervalSet()) & names
        assert self.dispatcher.on_acked(epoch, names) <= has.count
        self.intake.buffer.prune_acknowledged()

    @rule(delta_us=st.sampled_from([ELEVEN_YEARS_US, -ELEVEN_YEARS_US, -3_600_000_000, 60_000_000]), busy=st.booleans())
    def jump_for_one_tick(self, delta_us, busy):
        for delta in (delta_us, -delta_us):
            self.clocks.now_us += 100_000
            self.clocks.offset_us += delta
            self.intake.record_intake.check_clocks()
            if busy:
                self.publish(2, 0)

    @rule(delta_us=st.sampled_from([-86_400_000_000, -10_000_000, 10_000_000, 60_000_000]))
    def jump(self, delta_us):
        self.clocks.offset_us += delta_us
        self.intake.record_intake.check_clocks()

    @rule(capacity=st.sampled_from([0, 300, 1_000, 50_000]))
    def fill_disk(self, capacity):
        self.capacity = capacity
        self.publish(1, 0)
        self.commit()
        self.capacity = BOUNDLESS
        self.lost_before = self.lost()

    @rule()
    def let_the_file_grow_no_more(self):
        """SQLite finds the disk full in the middle of a commit: all of it waits, and is stored once there is space."""
        writer = self.intake.buffer.database.writer
        writer.execute("PRAGMA max_page_count = 1")  # that is: as many as there are
        self.publish(3, 20_000)
        self.puback(self.intake.record_intake.commit(0.0) or ())
        writer = self.intake.buffer.database.writer
        writer.execute(f"PRAGMA max_page_count = {BOUNDLESS >> 12}")

    @rule()
    def make_image(self):
        self.commit()
        self.intake.buffer.close()
        shutil.rmtree(self.root / "image", ignore_errors=True)
        shutil.copytree(self.folder, self.root / "image")
        self.image = (self.root / "image", frozenset(self.given))
        self.start(resumed=True)

    @rule(in_place=st.booleans())
    def put_image_back(self, in_place):
        if self.image is None:
            return
        self.commit()
        self.intake.buffer.close()
        if not in_place:
            shutil.rmtree(self.folder)
        shutil.copytree(self.image[0], self.folder, dirs_exist_ok=True)
        self.gone |= self.given.keys() - self.image[1]
        self.centre.in_images |= self.image[1]
        self.start(resumed=True)

    @invariant()
    def every_id_has_its_place(self):
        assert missing_in(self.intake.buffer) == 0
        here = dict(self.centre.accounted)
        for index in range(4):
            for block in self.intake.buffer.read_after(0, index, 10_000):
                names = read_header(stored_bytes(self.intake.buffer, block.id)).seqs
                here[block.epoch] = here.get(block.epoch, IntervalSet()) | names
        for epoch, seq in self.given.keys() - self.gone:
            assert seq in here.get(epoch, IntervalSet()), "every id is at the region, in the buffer, or declared lost"

    @invariant()
    def nothing_is_given_up_without_need(self):
        assert self.lost() == self.lost_before


def number_of(record: Record) -> int:
    body = record.body
    if isinstance(body, Raw):
        return int(body.payload.split(b" ", 1)[0])
    assert isinstance(body, Signal)
    return int(body.value)


def number_in(message: MqttMessage) -> int:
    if message.topic == "vehicle/odd":
        return int(message.payload.split(b" ", 1)[0])
    return int(message.payload.rsplit(b":", 1)[1][:-1])


LONG = settings(max_examples=2_000, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))
SHORT = settings(max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("form", [SHORT, pytest.param(LONG, marks=pytest.mark.nightly)], ids=["short", "long"])
def test_any_order_of_events_keeps_one_id_for_each_message(form):
    case = IntakeMachine.TestCase
    case.settings = form
    case("runTest").runTest()
