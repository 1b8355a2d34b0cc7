"""The partitions of a process: claimed one by one, each served by a thread of its own, and given back."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pulsar
import structlog

from gateway.alerts.alert_sender import BATCHING_DELAY_MS, MAX_IN_FLIGHT, AlertSender
from gateway.alerts.claims import Claims, ClaimState
from gateway.alerts.config import AlertSettings
from gateway.alerts.evaluation import LiveEvents
from gateway.alerts.evaluation_part import MAX_MESSAGES
from gateway.alerts.metrics import AlertMetrics
from gateway.alerts.partition import (
    MAX_BYTES,
    RECEIVER_QUEUE,
    OwnedPartition,
    PartitionSettings,
)
from gateway.alerts.presence import Presence
from gateway.alerts.presence_topic import PresenceTopic
from gateway.alerts.rules import AlertRules
from identity import Unsealer
from runtime.backoff import Backoff
from runtime.pulsar_client import PulsarAccessError, open_pulsar_client

__all__ = ["MAX_PARTITIONS", "PartitionOwner"]

MAX_PARTITIONS: Final = 512
"""Each has a thread and a subscription."""
LOOK_S: Final = 30.0
"""How often the topics are asked for their partitions."""
# a partition that is free is taken by the next turn
_TURN_S: Final = 0.05
# a cluster that does not answer must not hold up the end of the process
_CLOSE_S: Final = 5.0
_PARTITION: Final = "-partition-"
_LOG = structlog.get_logger("alerts")


class PartitionOwner:
    """Claims in a thread of its own while `rules` gives any; `evaluate` makes an evaluation with rules."""

    def __init__(
        self,
        settings: AlertSettings,
        rules: Callable[[], AlertRules | None],
        evaluate: Callable[[AlertRules], LiveEvents],
        metrics: AlertMetrics,
    ) -> None:
        """Raises SealingKeyError, PulsarAccessError."""
        self._settings, self._rules, self._evaluate, self._metrics = settings, rules, evaluate, metrics
        Unsealer.of_folder(settings.sealing_keys)
        source = settings.pulsar
        self._client = open_pulsar_client(source.service_url, source.access, timeout_s=source.operation_timeout_s)
        self._claims = Claims(random.random)
        self._tenant_of: dict[str, str] = {}
        self._held: dict[str, tuple[OwnedPartition, threading.Thread]] = {}
        self._presence = Presence(f"{settings.name}/{secrets.token_hex(8)}")
        self._heard = PresenceTopic(self._client, settings.processes_topic, self._presence)
        self._given: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="claims partitions", daemon=True)
        self._next_look_s = 0.0
        self.turned_s = time.monotonic()
        self.problem = "the partitions are not known yet"

    @property
    def held(self) -> list[OwnedPartition]:
        """The partitions of this process."""
        return [owned for owned, _ in list(self._held.values())]

    @property
    def processes(self) -> int:
        """How many alert processes of the region are heard, with this one."""
        return 1 + len(self._presence.others(time.monotonic()))

    def of_state(self, state: ClaimState) -> tuple[str, ...]:
        """The names of the partitions in a state."""
        return tuple(self._claims.of_state(state))

    @property
    def is_running(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begins to claim."""
        self._thread.start()

    def close(self) -> bool:
        """Gives every partition back once what was read is receipted, within the stop time-out; whether all were."""
        self._stop.set()
        self._thread.join(self._settings.pulsar.operation_timeout_s + _CLOSE_S)
        ends_s = time.monotonic() + self._settings.stop_timeout_s + _CLOSE_S
        for owned, _ in self._held.values():
            owned.stop()
        for _, thread in self._held.values():
            thread.join(max(ends_s - time.monotonic(), 0))
        closing = threading.Thread(target=_close_client, args=(self._client,), name="pulsar-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        return not any(thread.is_alive() or owned.unreceipted for owned, thread in self._held.values())

    def _run(self) -> None:
        while not self._stop.wait(_TURN_S):
            self.turned_s = time.monotonic()
            self._forget_ended()
            # Nobody is alerted by half of the fences, and another process may have them all.
            if self._rules() is None:
                continue
            self._look()
            self._heard.turn(len(self._held))
            self._give()
            name = self._claims.due(time.monotonic())
            if name is not None:
                self._claim(name)

    def _give(self) -> None:
        """Give one back to a process that holds two fewer, and wait until it has been heard to have it."""
        now_s = time.monotonic()
        ready = [name for name, (owned, _) in self._held.items() if owned.is_rebuilt]
        if not ready or not self._presence.is_to_give(len(self._held), now_s):
            return
        self._presence.on_changed(now_s)
        self._given.add(ready[-1])
        self._held[ready[-1]][0].stop()

    def _look(self) -> None:
        """Which partitions there are: more may come while we run."""
        if time.monotonic() < self._next_look_s:
            return
        self._next_look_s = time.monotonic() + LOOK_S
        problem = ""
        for tenant in self._settings.pulsar_tenants:
            try:
                names = self._client.get_topic_partitions(self._settings.batches_topic(tenant))
            except (pulsar.PulsarException, PulsarAccessError) as error:
                problem = f"the partitions of {self._settings.batches_topic(tenant)} are not known: {error}"
                self._next_look_s = time.monotonic() + 1.0
                continue
            room = MAX_PARTITIONS - len(self._tenant_of)
            new = [name for name in names if name not in self._tenant_of][: max(room, 0)]
            self._tenant_of.update(dict.fromkeys(new, tenant))
            self._claims.add(new, time.monotonic())
        if problem and not self.problem:
            _LOG.warning("partitions not known", problem=problem)
        self.problem = problem

    def _claim(self, name: str) -> None:
        try:
            consumer = self._client.subscribe(
                name,
                self._settings.pulsar.subscription,
                consumer_name=self._settings.name,
                receiver_queue_size=RECEIVER_QUEUE,
                batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(
                    MAX_MESSAGES, MAX_BYTES, self._settings.window_ms
                ),
            )
        except pulsar.ConsumerBusy:
            now_s = time.monotonic()
            self._claims.on_taken(name, now_s, yields=not self._presence.comes_first(len(self._held), now_s))
            return
        except (pulsar.PulsarException, PulsarAccessError) as error:
            self._claims.on_failed(name, time.monotonic())
            self.problem = f"{name} cannot be subscribed to: {error}"
            _LOG.warning("a partition cannot be claimed", partition=name, problem=str(error))
            return
        self.problem = ""
        now_s = time.monotonic()
        self._claims.on_held(name, now_s, yields=not self._presence.comes_first(len(self._held) + 1, now_s))
        self._presence.on_changed(now_s)
        owned = self._owned(name, consumer)
        thread = threading.Thread(
            target=owned.run, args=(self._settings.stop_timeout_s,), name=_short(name), daemon=True
        )
        self._held[name] = owned, thread
        thread.start()

    def _owned(self, name: str, consumer: Any) -> OwnedPartition:
        tenant, settings = self._tenant_of[name], self._settings
        common = PartitionSettings(
            region=settings.region,
            tenants=settings.tenants_of(tenant),
            # One for each thread: it keeps agreements.
            unsealer=Unsealer.of_folder(settings.sealing_keys),
            rewind_ms=round(settings.rewind_s * 1000),
        )
        backoff = Backoff(0.1, 5.0, random.random)
        sender = AlertSender(partial(self._producer, tenant), backoff, self._metrics.on_publish_failed)
        return OwnedPartition(
            name,
            common,
            self._client,
            consumer,
            sender=sender,
            rules=self._rules,
            evaluate=self._evaluate,
            metrics=self._metrics,
        )

    def _producer(self, tenant: str) -> Any:
        settings = self._settings
        return self._client.create_producer(
            settings.alerts_topic(tenant),
            send_timeout_millis=round(settings.pulsar.send_timeout_s * 1000),
            # More than an sender ever has in flight, so it never blocks.
            max_pending_messages=2 * MAX_IN_FLIGHT + 1,
            block_if_queue_full=True,
            batching_enabled=True,
            batching_max_publish_delay_ms=BATCHING_DELAY_MS,
            properties={"process": settings.name},
        )

    def _forget_ended(self) -> None:
        for name, (owned, thread) in list(self._held.items()):
            if thread.is_alive():
                continue
            del self._held[name]
            # given away, and not lost: nothing is wrong with it
            if name in self._given and not owned.lost_reason:
                self._given.discard(name)
                self._claims.on_given(name, time.monotonic())
                _LOG.info("partition given to a process that holds fewer", partition=name)
                continue
            self._given.discard(name)
            self._metrics.on_lost()
            self._claims.on_failed(name, time.monotonic())
            _LOG.warning("partition lost", partition=name, problem=owned.lost_reason)


def _short(name: str) -> str:
    """What distinguishes a partition in a log: its tenant and number."""
    topic, _, number = name.removeprefix("persistent://").rpartition(_PARTITION)
    return f"alerts {topic.partition('/')[0]} {number}"


def _close_client(client: Any) -> None:
    try:
        client.close()
    except pulsar.PulsarException:
        return
