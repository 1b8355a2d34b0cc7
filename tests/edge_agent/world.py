"""A vehicle's broker, the agent's own code and a region, in one thread on a disk that fails, all drawn from a seed.

The broker keeps the promise of QoS 1: it delivers again, marked as such and with the same message id, whatever it has
no PUBACK for. The region keeps what it received and acknowledges it. Either may be cut off at any moment.
"""

import json
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from edge_agent.clocks import ClockMonitor, CorrectionRules
from edge_agent.config import AgentSettings
from edge_agent.drain.dispatcher import Dispatcher
from edge_agent.errors import StoreError
from edge_agent.intake.record_intake import Intake, IntakeParts
from edge_agent.store.buffer import Buffer
from edge_agent.store.database import BufferOptions
from edge_agent.store.retention import BufferRetention
from tests.edge_agent.makers import missing_in
from tests.edge_agent.power import Computer, Disk, PowerCut
from waybill.mqtt.mqtt_client import MqttMessage
from waybill.record import IntervalSet, Record, decode

DEVICE = "eu-0001"
TOPICS = ("vehicle/position", "vehicle/position", "vehicle/signal", "vehicle/event", "vehicle/odd")
WINDOW = 40


def settings(**buffer: int) -> AgentSettings:
    return AgentSettings.model_validate(
        {
            "device": {"id": DEVICE},
            "uplinks": [{"region": "eu", "host": "127.0.0.1"}],
            "intake": {"receive_maximum": WINDOW},
            "buffer": {"commit_records": 25, "commit_delay_ms": 50, **buffer},
            "drain": {
                "batch_records": 60,
                "merge_below_records": 15,
                "window": 6,
                "live_s": 3,
                "ack_timeout_s": 5,
                "max_refusals": 1,
                "refusal_backoff_s": 1,
            },
        }
    )


class SteadyClocks:
    boot = "boot"

    def __init__(self) -> None:
        self.now_us = 1_000_000
        self.offset_us = 1_767_603_422_000_000

    def wall_us(self) -> int:
        return self.now_us + self.offset_us

    def monotonic_us(self) -> int:
        return self.now_us


class SimulatedBroker:
    """The vehicle's broker: messages that have no PUBACK, in order, with their ids."""

    def __init__(self) -> None:
        self.open: OrderedDict[int, tuple[int, str, bytes]] = OrderedDict()
        self.delivered: set[int] = set()
        self.acknowledged: set[int] = set()
        self.seen: set[int] = set()
        self.made = 0
        self._mid = 0

    def publish(self, draw: Random) -> None:
        self._mid = self._mid % 500 + 1
        while self._mid in self.open:
            self._mid = self._mid % 500 + 1
        topic = draw.choice(TOPICS)
        number = self.made
        self.made += 1
        body = {
            "vehicle/position": {"time": number, "latitude": 53.4, "longitude": -2.9},
            "vehicle/signal": {"time": number, "path": f"Vehicle.S{number % 3}", "value": number},
            "vehicle/event": {"time": number, "name": "door", "attributes": {"number": number}},
        }.get(topic)
        payload = json.dumps(body).encode() if body else f"not json {number}".encode()
        self.open[self._mid] = (number, topic, payload)

    def deliver(self) -> list[MqttMessage]:
        """What the window lets through and was not delivered on this connection."""
        messages = []
        for mid, (number, topic, payload) in list(self.open.items())[:WINDOW]:
            if mid not in self.delivered:
                self.delivered.add(mid)
                messages.append(MqttMessage(mid, 1, number in self.seen, topic, payload))
                self.seen.add(number)
        return messages

    def reconnect(self) -> None:
        self.delivered.clear()

    def puback(self, mid: int) -> None:
        number, _, _ = self.open.pop(mid)
        self.delivered.discard(mid)
        self.acknowledged.add(number)


class SimulatedRegion:
    """What has arrived. One record in fifty spoils the batch that it is in, until `takes_all`."""

    def __init__(self) -> None:
        self.takes_all = False
        self.records: dict[tuple[int, int], Record] = {}
        self.lost: dict[int, IntervalSet] = {}
        self.heads: dict[int, int] = {}

    def refuses(self, data: bytes) -> bool:
        return not self.takes_all and any(number_of(record) % 50 == 49 for record in decode(data).records)

    def take(self, data: bytes) -> tuple[int, IntervalSet]:
        batch = decode(data)
        self.heads[batch.epoch] = max(batch.head, self.heads.get(batch.epoch, 0))
        for record in batch.records:
            known = self.records.setdefault((batch.epoch, record.seq), record)
            assert known == record, "a name never has two contents"
        self.lost[batch.epoch] = self.lost.get(batch.epoch, IntervalSet()) | batch.header.lost_seqs
        return batch.epoch, batch.header.seqs


class SimulatedWorld:
    def __init__(self, seed: int, folder: Path, *, faults: float = 0.0, **buffer: int) -> None:
        self.draw = Random(seed)
        self.disk = Disk(self.draw)
        self.computer = Computer(self.disk)
        self.settings = settings(**buffer)
        self.folder = folder
        self.faults = faults
        self.broker = SimulatedBroker()
        self.region = SimulatedRegion()
        self.clocks = SteadyClocks()
        self.cuts = 0
        self.on_the_way: list[tuple[int, IntervalSet]] = []

    def live(self, lives: int) -> None:
        """Lives that each end with the power; then one without faults in which everything is delivered."""
        for _ in range(lives):
            self.disk.operations_left = self.draw.randint(1, 160)
            self.disk.sync_fails = self.disk.write_fails = self.faults
            try:
                self._life(rounds=60)
            except PowerCut:
                self.cuts += 1
            self.computer.restart()
            self.broker.reconnect()
            self.on_the_way.clear()
        self.disk.sync_fails = self.disk.write_fails = 0.0
        self._life(rounds=0)

    def check(self) -> None:
        """Nothing is lost undeclared, nothing is named twice, and names are in order and without a hole."""
        if self.broker.made == 0:
            return  # the power went before the first message, each time
        numbers = {}
        for name, record in sorted(self.region.records.items()):
            number = number_of(record)
            assert number not in numbers, f"message {number} has two names"
            numbers[number] = name
        (epoch,) = self.region.heads
        everything = IntervalSet.of(seq for _, seq in self.region.records) | self.region.lost[epoch]
        assert everything == IntervalSet([(1, self.region.heads[epoch])])
        missing = [number for number in range(self.broker.made) if number not in numbers]
        assert len(missing) <= self.region.lost[epoch].count
        assert self.region.lost[epoch].count + len(self.region.records) == self.broker.made
        assert self.broker.acknowledged == set(range(self.broker.made))

    def _life(self, rounds: int) -> None:
        self._start()
        for _ in range(rounds):
            self._round()
        if rounds == 0:
            self.region.takes_all = True
            self.buffer.requeue_dead_letters()
            for _ in range(400):
                self._finish_round()
                if not self.broker.open and not any(one.records or one.size for one in self.buffer.depth().values()):
                    break
            else:
                raise AssertionError(f"not drained: {self.buffer.depth()}, {len(self.broker.open)} open")
            self.buffer.close()

    def _start(self) -> None:
        for _ in range(50):
            try:
                options = BufferOptions(
                    tenant="default",
                    device=DEVICE,
                    recent_size=WINDOW + 25,
                    epoch_for=lambda least: least + 7,
                    connect=self.computer.connect,
                )
                self.buffer = Buffer(self.folder, options)
                break
            except StoreError:
                self.computer.abandon()
        else:
            raise AssertionError("the buffer does not open")
        classes = self.settings.classes
        self.dispatcher = Dispatcher(self.settings.drain, self.buffer, range(len(classes)))
        self.retention = BufferRetention(self.buffer, self.settings.buffer, classes, space=lambda _: 1 << 40)
        parts = IntakeParts(
            buffer=self.buffer,
            retention=self.retention,
            clocks=self.clocks,
            clock_monitor=ClockMonitor("boot", self.clocks.offset_us, 2_000_000),
            correction=CorrectionRules(),
            on_commit=lambda blocks: self.dispatcher.on_committed(self._now_s(), blocks),
            on_missed=self.dispatcher.on_missed,
            on_jump=lambda jump: None,
        )
        self.intake = Intake(self.settings, parts)
        self._quietly(self._account)

    def _account(self) -> None:
        found = missing_in(self.buffer)
        assert found == 0, f"{found} names are neither waiting nor acknowledged nor declared"

    def _now_s(self) -> float:
        return self.clocks.now_us / 1_000_000

    def _round(self) -> None:
        self.clocks.now_us += self.draw.randint(1_000, 400_000)
        for _ in range(self.draw.randint(0, 20)):
            self.broker.publish(self.draw)
        self._take_in(puback=0.9)
        if self.draw.random() < 0.7:
            self._drain(answers=0.8)
        if self.draw.random() < 0.1:
            self.dispatcher.on_disconnected()
            self.on_the_way.clear()
        if self.draw.random() < 0.05:
            self.intake.on_disconnected()
            self.broker.reconnect()
        if self.draw.random() < 0.3:
            self._quietly(self.buffer.prune_acknowledged)

    def _finish_round(self) -> None:
        self.clocks.now_us += 1_000_000
        self._take_in(puback=1.0)
        self._drain(answers=1.0)
        self._quietly(self.buffer.prune_acknowledged)

    def _take_in(self, puback: float) -> None:
        now_s = self._now_s()
        for message in self.broker.deliver():
            if self.intake.receive(message, now_s):
                self.broker.puback(message.mid)
        mids = self.intake.commit(now_s)
        for mid in mids or ():
            if self.draw.random() < puback:
                self.broker.puback(mid)
            else:
                self.broker.delivered.discard(mid)

    def _drain(self, answers: float) -> None:
        now_s = self._now_s()
        try:
            while (batch := self.dispatcher.take_next(now_s)) is not None:
                if self.region.refuses(batch.data):
                    self.dispatcher.on_refused(now_s, batch.epoch, batch.seqs, "spoiled")
                else:
                    self.on_the_way.append(self.region.take(batch.data))
        except StoreError:
            self.dispatcher.on_disconnected()
        for epoch, names in self.on_the_way:
            if self.draw.random() < answers:
                self.dispatcher.on_acked(epoch, names)
        self.on_the_way.clear()
        self._quietly(lambda: self.dispatcher.retry_overdue(now_s))

    @staticmethod
    def _quietly(action: Callable[[], object]) -> None:
        with suppress(StoreError):
            action()


def number_of(record: Record) -> int:
    body = record.body
    if hasattr(body, "payload"):
        return int(body.payload.split()[-1])
    if hasattr(body, "attributes"):
        return int(json.loads(body.attributes)["number"])
    return record.device_time_us // 1000
