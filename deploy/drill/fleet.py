"""The devices of one region as the drill simulates them: a steady stream of batches, and what was acknowledged.

The batches are real (`telemetry.encode`), and a device counts a record as delivered by the rule of the gateway: when
Pulsar has persisted it. What was not acknowledged stays with the device and is sent again, in the next region when its
own is silent.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import pulsar

from cloud_jobs.lake.coverage import DeviceStream
from deploy.drill.course import position_at
from deploy.drill.record_ids import SeenRange
from deploy.drill.settings import FleetSettings
from waybill.pulsar.pulsar_client import PulsarAccess, open_pulsar_client
from waybill.record import Batch, Record, encode

TENANT = "fleet"
# devices send evenly, not in a burst a second
_TICK_S = 0.02
_CLIENT_S = 5
_CRAWL_S = 0.5


@dataclass(frozen=True, slots=True)
class _Sent:
    """One batch of consecutive records."""

    stream: DeviceStream
    first: int
    last: int
    payload: bytes


class Fleet:
    """The devices of one region. `regions`: its name and Pulsar address, then those of the regions to go to next.

    `start`, `speed_up`, then `pause` to stop making records, then `stop`. `receipts` may be read at any time.
    """

    def __init__(
        self, regions: Sequence[tuple[str, str]], epoch: int, settings: FleetSettings, access: PulsarAccess
    ) -> None:
        self._regions = list(regions)
        self._access = access
        self._at = 0
        self._settings = settings
        home = regions[0][0]
        self.streams = [
            DeviceStream(TENANT, f"{home}-{number:04d}", epoch) for number in range(1, settings.devices + 1)
        ]
        self.receipts: list[SeenRange] = []
        self.resent = 0
        self._lock = threading.Lock()
        self._unanswered: dict[int, _Sent] = {}
        self._again: deque[_Sent] = deque()
        self._making, self._stopping, self._slow = threading.Event(), threading.Event(), threading.Event()
        self._heard_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"fleet-{home}", daemon=True)

    def start(self) -> None:
        """Begin to make and send records, at a crawl: `speed_up` when there is somebody to read them."""
        self._slow.set()
        self._making.set()
        self._thread.start()

    def speed_up(self) -> None:
        """From now on at the rate of the settings."""
        self._slow.clear()

    def pause(self) -> None:
        """Make no more records; what is unanswered is still sent until it is answered."""
        self._making.clear()

    @property
    def idle(self) -> bool:
        """Whether every record that was made has been acknowledged."""
        with self._lock:
            return not self._making.is_set() and not self._unanswered and not self._again

    def stop(self) -> None:
        """Send nothing more."""
        self._making.clear()
        self._stopping.set()
        # join() of a thread that was never started raises.
        if self._thread.is_alive():
            self._thread.join(3 * _CLIENT_S)

    def _run(self) -> None:
        made = self._batches()
        while not self._stopping.is_set():
            # A region that gives no producer is silent too, and the next one is tried.
            with contextlib.suppress(pulsar.PulsarException), self._producer() as producer:
                self._heard_s = time.monotonic()
                self._send_while_answered(producer, made)
            self._give_up_waiting()

    def _send_while_answered(self, producer: Any, made: Iterator[_Sent]) -> None:
        """Sends at the pace of the settings until nothing is answered any more."""
        period_s = self._settings.records_per_batch / self._settings.records_per_s
        due_s = time.monotonic()
        while not self._stopping.wait(_TICK_S):
            while self._again and self._has_room():
                self._send(producer, self._again.popleft())
            # A device does not make up for time in which it could not send: what it measures comes at its own pace.
            due_s = max(due_s, time.monotonic() - 10 * period_s)
            while self._making.is_set() and due_s <= time.monotonic() and self._has_room():
                due_s += max(period_s, _CRAWL_S) if self._slow.is_set() else period_s
                self._send(producer, next(made))
            if self._unanswered_s() > self._settings.silence_s:
                return

    def _unanswered_s(self) -> float:
        with self._lock:
            return time.monotonic() - self._heard_s if self._unanswered else 0.0

    def _has_room(self) -> bool:
        with self._lock:
            return len(self._unanswered) < self._settings.unanswered_batches

    def _send(self, producer: Any, sent: _Sent) -> None:
        token = id(sent)
        with self._lock:
            # Silence counts from the first batch that is not answered, not from the last answer before a pause.
            if not self._unanswered:
                self._heard_s = time.monotonic()
            self._unanswered[token] = sent
        properties = {
            "tenant": sent.stream.tenant,
            "device": sent.stream.device,
            "epoch": str(sent.stream.epoch),
            "region": self._regions[self._at][0],
        }
        producer.send_async(
            sent.payload, partial(self._on_receipt, token), properties=properties, partition_key=sent.stream.device
        )

    def _on_receipt(self, token: int, result: Any, _: Any) -> None:
        with self._lock:
            sent = self._unanswered.get(token)
            if sent is None or result != pulsar.Result.Ok:
                return  # a failure: silence decides when it is sent again
            del self._unanswered[token]
            self._heard_s = time.monotonic()
            self.receipts.append(SeenRange(time.time(), sent.stream, sent.first, sent.last))

    def _give_up_waiting(self) -> None:
        """Whatever is unanswered goes to the next region."""
        with self._lock:
            left = list(self._unanswered.values())
            self._again.extend(left)
            self.resent += sum(one.last - one.first + 1 for one in left)
            self._unanswered.clear()
        self._at = (self._at + 1) % len(self._regions)

    @contextlib.contextmanager
    def _producer(self) -> Iterator[Any]:
        region, service_url = self._regions[self._at]
        client = open_pulsar_client(service_url, self._access, timeout_s=_CLIENT_S)
        try:
            yield client.create_producer(
                f"persistent://{TENANT}/telemetry-{region}/batches",
                send_timeout_millis=30_000,
                # More than may be unanswered: the client's own queue never refuses a batch.
                max_pending_messages=2 * self._settings.unanswered_batches,
                batching_enabled=True,
                batching_max_publish_delay_ms=5,
            )
        finally:
            # A region that burnt cannot be said good-bye to; the devices do not wait for it.
            closing = threading.Thread(target=_close_quietly, args=(client,), daemon=True)
            closing.start()
            closing.join(0.2 if not self._stopping.is_set() else _CLIENT_S)

    def _batches(self) -> Iterator[_Sent]:
        size = self._settings.records_per_batch
        spacing_us = round(1e6 * self._settings.devices / self._settings.records_per_s)
        made = dict.fromkeys(self.streams, 0)
        for number, stream in cycle(enumerate(self.streams)):
            first = made[stream] + 1
            made[stream] += size
            yield _Sent(stream, first, made[stream], _payload(stream, first, made[stream], spacing_us, number))


def _payload(stream: DeviceStream, first: int, last: int, spacing_us: int, phase: float) -> bytes:
    """One fix a record, the last one measured now."""
    now_us = time.time_ns() // 1000
    times_us = [now_us + spacing_us * (seq - last) for seq in range(first, last + 1)]
    records = tuple(
        Record(seq, time_us, position_at(time_us, phase)) for seq, time_us in enumerate(times_us, start=first)
    )
    return encode(Batch(stream.device, stream.epoch, last, records))


def _close_quietly(client: Any) -> None:
    with contextlib.suppress(pulsar.PulsarException):
        client.close()
