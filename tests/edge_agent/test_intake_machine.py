"""Any order of intake, commits, acknowledgements, redelivery, kills, clones and images: one id for each message."""

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edge_agent.mqtt import Message
from edge_agent.store.buffer import Buffer
from telemetry import IntervalSet, Record, decode
from tests.edge_agent.intake_parts import RING, Intake
from tests.edge_agent.makers import options

FIRST_MS = 1_767_603_422_000
Name = tuple[int, int]


class IntakeMachine(RuleBasedStateMachine):
    """The vehicle's broker is a list of messages without PUBACK; the region remembers all that it was ever sent."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.folder = self.root / "buffer"
        self.machine = 0
        self.made = self.mid = self.restored = 0
        self.open: list[Message] = []
        self.region: dict[Name, Record] = {}
        self.declared: dict[int, IntervalSet] = {}
        self.acknowledged: set[int] = set()
        self.image: tuple[Path, frozenset[int]] | None = None
        self.gone: set[int] = set()
        self.start(resumed=False)

    def start(self, *, resumed: bool) -> None:
        number = self.machine
        given = replace(options(RING), machine=f"machine {number}", epoch_for=lambda least: least + 11)
        self.intake = Intake(self.folder, Buffer(self.folder, given))
        self.intake.connect(resumed=resumed)

    def teardown(self) -> None:
        self.deliver_again(dup=True)
        self.commit()
        self.send()
        numbers = {}
        for name, record in self.region.items():
            number = record.device_time_us // 1000 - FIRST_MS
            assert numbers.setdefault(number, name) == name, "one message, one id"
        lost = self.acknowledged - numbers.keys()
        assert lost <= self.gone, "only what an image never had may be missing"
        assert self.intake.buffer.unaccounted() == 0
        self.intake.buffer.close()
        shutil.rmtree(self.root)

    @rule(count=st.integers(1, 8))
    def publish(self, count):
        for _ in range(count):
            self.mid += 1
            payload = json.dumps({"time": FIRST_MS + self.made, "path": "S", "value": 1}).encode()
            self.made += 1
            self.open.append(Message(self.mid, 1, False, "vehicle/signal", payload))
            assert not self.intake.reception.take(self.open[-1], 0.0)

    @rule()
    def commit(self):
        self.puback(self.intake.commit())

    def puback(self, mids):
        for message in [one for one in self.open if one.mid in set(mids)]:
            self.open.remove(message)
            self.acknowledged.add(json.loads(message.payload)["time"] - FIRST_MS)

    @rule(dup=st.booleans())
    def deliver_again(self, dup):
        """The connection is cut before the PUBACKs arrive: what they were for comes again."""
        self.intake.connect(resumed=True)
        for message in list(self.open):
            if self.intake.reception.take(message._replace(dup=dup), 0.0):
                self.puback([message.mid])

    @rule(dup=st.booleans())
    def kill(self, dup):
        self.intake.buffer._life.close()
        self.start(resumed=True)
        self.deliver_again(dup)

    @rule()
    def send(self):
        for index in range(4):
            for block in self.intake.buffer.read_after(0, index, 10_000):
                batch = decode(self.intake.buffer.load(block.id))
                for record in batch.records:
                    known = self.region.setdefault((batch.epoch, record.seq), record)
                    assert known == record, "one id, one content"
                lost = self.declared.get(batch.epoch, IntervalSet()) | batch.header.declared
                self.declared[batch.epoch] = lost

    @rule(share=st.floats(0, 1))
    def acknowledge(self, share):
        self.send()
        epoch = self.intake.buffer.epoch
        seqs = sorted(seq for its, seq in self.region if its == epoch)
        self.intake.buffer.acknowledge(epoch, IntervalSet.of(seqs[: int(len(seqs) * share)]))
        self.intake.buffer.settle()

    @rule()
    def clone(self):
        self.commit()
        self.intake.buffer.close()
        self.machine += 1
        epoch = self.intake.buffer.epoch
        self.start(resumed=True)
        assert self.intake.buffer.epoch != epoch

    @rule()
    def make_image(self):
        self.commit()
        self.intake.buffer.close()
        shutil.rmtree(self.root / "image", ignore_errors=True)
        shutil.copytree(self.folder, self.root / "image")
        self.image = (self.root / "image", frozenset(self.acknowledged))
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
        self.gone |= self.acknowledged - self.image[1]
        self.start(resumed=True)

    @invariant()
    def every_id_has_its_place(self):
        assert self.intake.buffer.unaccounted() == 0


LONG = settings(max_examples=2_000, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))
SHORT = settings(max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("form", [SHORT, pytest.param(LONG, marks=pytest.mark.nightly)], ids=["short", "long"])
def test_any_order_of_events_keeps_one_id_for_each_message(form):
    case = IntakeMachine.TestCase
    case.settings = form
    case("runTest").runTest()
