"""The partitions of a process: claimed, each evaluated in a thread of its own, and given back."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import pulsar
import structlog

from gateway.alerts.alert_sender import BATCHING_DELAY_MS, MAX_IN_FLIGHT, AlertSender
from gateway.alerts.config import STOP_S, AlertSettings
from gateway.alerts.evaluation import AlertRules, LiveEvents
from gateway.alerts.metrics import AlertMetrics
from gateway.alerts.partition import MAX_BYTES, RECEIVER_QUEUE, OwnedPartition
from gateway.alerts.partition_evaluation import MAX_MESSAGES, PartitionEvaluation, PartitionSettings
from gateway.alerts.sharing import AT_ONCE, Claims, Presence, PresenceMessage, decode_presence
from gateway.alerts.standby import PartitionStandby, PreparedState
from waybill.daemon.backoff import Backoff
from waybill.identity.sealing import Unsealer
from waybill.pulsar.pulsar_client import PulsarAccessError, close_quietly, open_pulsar_client
from waybill.pulsar.pulsar_positions import EntryPosition

# Concurrent requests to partitions: a slow one does not block others.


class AskedPartitions:
    """Calls `subscribe`, which returns a subscription or an error, in threads, so that one slow answer blocks no
    other.
    """

    def __init__(self, subscribe: Callable[[str], Any]) -> None:
        self._subscribe = subscribe
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="claims")
        self._asked: dict[Future[Any], str] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def answers(self, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Ask for some partitions; the answers that have come by now, also to earlier questions."""
        self._asked |= {self._pool.submit(self._subscribe, name): name for name in names}
        for one in [one for one in self._asked if one.done()]:
            yield self._asked.pop(one), one.result()

    def close(self) -> None:
        """Ask no more, and wait for no answer."""
        self._pool.shutdown(wait=False, cancel_futures=True)


# Presence of a region's alert processes, on a topic that is not replicated.

SAY_S: Final = 1.0
# without presence, partitions stay where they are
_RETRY_S: Final = 5.0
_MAX_READ: Final = 1000
_LOG = structlog.get_logger("alerts")


class PresenceTopic:
    """Sends and reads presence messages in a thread, so that a topic that hangs does not block the claiming.

    Without it partitions are only shared unevenly. `say`: our message; None: there is none yet.
    """

    def __init__(self, client: Any, topic: str, presence: Presence, say: Callable[[], PresenceMessage | None]) -> None:
        self._client, self._topic, self._presence, self._say = client, topic, presence, say
        self._producer: Any = None
        self._reader: Any = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hears alert processes", daemon=True)
        self.problem = ""

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            began_s = time.monotonic()
            pause_s = self.turn()
            self._stop.wait(max(began_s + pause_s - time.monotonic(), 0.0))

    def turn(self) -> float:
        """Send our message and read those of the others; returns the seconds until the next turn."""
        try:
            if (said := self._say()) is None:
                return SAY_S
            self._open()
            # of no use in other clusters
            self._producer.send_async(said.model_dump_json().encode(), None, disable_replication=True)
            self._hear()
        except (pulsar.PulsarException, ValueError, RuntimeError) as error:
            self._note(f"{self._topic}: {error}")
            return _RETRY_S
        self._note("")
        return SAY_S

    def _open(self) -> None:
        if self._producer is None:
            self._producer = self._client.create_producer(self._topic, max_pending_messages=100)
        if self._reader is None:
            self._reader = self._client.create_reader(self._topic, pulsar.MessageId.latest)

    def _hear(self) -> None:
        try:
            for _ in range(_MAX_READ):
                said = decode_presence(self._reader.read_next(1).data())
                if said is not None:
                    self._presence.note(said, time.monotonic())
        except pulsar.Timeout:
            return

    def _note(self, problem: str) -> None:
        if problem and not self.problem:
            _LOG.warning("no messages from other alert processes", problem=problem)
        self.problem = problem


# Standby partitions: when one is dropped, its state is forgotten or handed over.

TURN_S: Final = 1.0
KEEP_S: Final = 30.0
"""How long a partition is followed while its owner is not heard."""
_CLOSE_S: Final = 2.0


class StandbyPartitions:
    """The partitions of other processes that this one follows. `state` makes an empty state of a partition."""

    def __init__(self, client: Any, presence: Presence, state: Callable[[str], PartitionEvaluation]) -> None:
        self._client, self._presence, self._state = client, presence, state
        self._followed: dict[str, PartitionStandby] = {}
        self._kept_s: dict[str, float] = {}
        self._next_s = 0.0

    @property
    def names(self) -> list[str]:
        return sorted(self._followed)

    @property
    def ready(self) -> list[str]:
        """The partitions that could be taken over now."""
        return sorted(name for name, one in list(self._followed.items()) if one.is_ready)

    @property
    def problem(self) -> str:
        """Why a partition is not followed, or ""."""
        said = ((name, one.problem) for name, one in sorted(self._followed.items()))
        return next((f"{name} is not followed: {problem}" for name, problem in said if problem), "")

    def turn(self, taken: Iterable[str], held: int, now_s: float, *, most: int = 512) -> None:
        """Follow or drop partitions of other processes, once a second. `held`: number of our own."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + TURN_S
        for name in taken:
            if len(self._followed) >= most:
                break
            if name not in self._followed and self._presence.is_standby(name, held, now_s):
                self._follow(name)
                self._kept_s[name] = now_s
        for name in self.names:
            if self._is_wanted(name, held, now_s):
                self._kept_s[name] = now_s
            elif self._presence.is_held_elsewhere(name, now_s) or now_s - self._kept_s[name] > KEEP_S:
                self._end(name).stop()

    def take(self, name: str) -> Callable[[], PreparedState | None]:
        """Stop following a partition, as it is ours now. The returned function gives its state."""
        if name not in self._followed:
            return lambda: None
        one = self._end(name)
        one.stop()
        return one.hand_over

    def _is_wanted(self, name: str, held: int, now_s: float) -> bool:
        if self._presence.is_standby(name, held, now_s):
            return True
        # another process is chosen now: keep a ready state until that process is ready
        is_only = self._followed[name].is_ready and not self._presence.is_ready_elsewhere(name, now_s)
        return is_only and self._presence.is_held_elsewhere(name, now_s)

    def _end(self, name: str) -> PartitionStandby:
        del self._kept_s[name]
        return self._followed.pop(name)

    def close(self) -> None:
        ending = list(self._followed.values())
        for one in ending:
            one.stop()
        ends_s = time.monotonic() + _CLOSE_S
        for one in ending:
            one.wait(max(ends_s - time.monotonic(), 0.0))

    def _follow(self, name: str) -> None:
        self._followed[name] = PartitionStandby(
            self._state(name), self._client, lambda: self._presence.acknowledged(name, time.monotonic())
        )
        self._followed[name].start()


MAX_PARTITIONS: Final = 512
"""Each own or followed partition has a thread and a subscription or reader."""
MAX_KNOWN: Final = 16_384
"""The most partitions that are known."""
LOOK_S: Final = 30.0
"""How often new partitions are looked for."""
_TURN_S: Final = 0.1
# a cluster that does not answer must not delay the end of the process
_CLOSE_ALL_S: Final = 5.0
_GATHER_MS: Final = 5
"""Batches are collected for so long before one evaluation."""
_SEND_MS: Final = 10_000
"""An alert without a receipt is sent again after this time."""
_PARTITION: Final = "-partition-"


class PartitionOwner:
    """Claims partitions in a thread while `rules` returns any; `evaluate` makes an evaluation with rules."""

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
        self._tenant_of: dict[str, str] = {}
        self._held: dict[str, tuple[OwnedPartition, threading.Thread]] = {}
        self._presence = Presence(f"{settings.name}/{secrets.token_hex(8)}", settings.pulsar_tenants)
        self._claims = Claims(self._presence, random.random, time.monotonic())
        self._heard = PresenceTopic(self._client, settings.processes_topic, self._presence, self._said)
        self._asking = AskedPartitions(self._subscribed)
        self._standbys = StandbyPartitions(self._client, self._presence, self._state)
        self._acknowledged: dict[str, EntryPosition | None] = {}
        self._given: set[str] = set()
        self._evaluating = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="claims partitions", daemon=True)
        self._next_look_s, self._looked_in_vain = 0.0, False
        self.turned_s = time.monotonic()
        self.problem = "the partitions are unknown yet"

    @property
    def held(self) -> list[OwnedPartition]:
        return [owned for owned, _ in list(self._held.values())]

    @property
    def processes(self) -> int:
        """Number of alert processes of the region, this one included."""
        return 1 + len(self._presence.others(time.monotonic()))

    @property
    def standbys(self) -> StandbyPartitions:
        return self._standbys

    @property
    def hearing_problem(self) -> str:
        """Why no messages of other processes arrive, or ""."""
        return self._heard.problem

    @property
    def partitions_of_others(self) -> tuple[str, ...]:
        return tuple(self._claims.taken([*self._held], time.monotonic()))

    @property
    def partitions_unowned(self) -> tuple[str, ...]:
        return tuple(self._claims.unowned([*self._held], time.monotonic()))

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive() and self._heard.is_running

    def start(self) -> None:
        self._thread.start()
        self._heard.start()

    def close(self) -> bool:
        """Give every partition back after the receipts of what was read, within STOP_S; returns whether all were
        receipted.
        """
        self._stop.set()
        self._heard.stop()
        self._thread.join(self._settings.pulsar.operation_timeout_s + _CLOSE_ALL_S)
        self._asking.close()
        ends_s = time.monotonic() + STOP_S + _CLOSE_ALL_S
        for owned, _ in self._held.values():
            owned.stop()
        self._standbys.close()
        for _, thread in self._held.values():
            thread.join(max(ends_s - time.monotonic(), 0))
        closing = threading.Thread(target=close_quietly, args=(self._client,), name="pulsar-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_ALL_S)
        return not any(thread.is_alive() or owned.unreceipted for owned, thread in self._held.values())

    def _run(self) -> None:
        while not self._stop.wait(_TURN_S):
            self.turned_s = time.monotonic()
            self._forget_ended()
            # raise no alerts with half of the fences; another process may have them all
            if self._rules() is None:
                continue
            self._look()
            self._give()
            if self._settings.standby:
                self._standbys.turn(self.partitions_of_others, len(self._held), time.monotonic(), most=MAX_PARTITIONS)
            self._claim_due(time.monotonic())

    def _said(self) -> PresenceMessage | None:
        """Our presence message; None: we claim nothing yet."""
        if self._rules() is None:
            return None
        # one second old, so that the broker has the acknowledgements that a standby relies on
        before = self._acknowledged
        self._acknowledged = {owned.name: owned.acknowledged for owned in self.held}
        return PresenceMessage(
            instance=self._presence.instance,
            tenants=frozenset(self._settings.pulsar_tenants),
            acknowledged={name: before.get(name) for name in self._acknowledged},
            ready=frozenset(self._standbys.ready) if self._settings.standby else None,
        )

    def _give(self) -> None:
        """Give one partition to a process that holds at least two fewer."""
        now_s = time.monotonic()
        rebuilt = [name for name, (owned, _) in self._held.items() if owned.is_rebuilt]
        name = self._presence.to_give(rebuilt, len(self._held), now_s)
        if name is not None:
            self._presence.on_changed(now_s)
            self._given.add(name)
            self._held[name][0].stop()

    def _look(self) -> None:
        """Find the partitions: a topic may get more."""
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
            new = [name for name in names if name not in self._tenant_of]
            room = MAX_KNOWN - len(self._tenant_of)
            if len(new) > room:
                problem = f"{len(new) - room} partitions of {tenant} have no reader (limit {MAX_KNOWN})"
            self._tenant_of.update(dict.fromkeys(new[:room], tenant))
            self._claims.add(new[:room])
        if problem and not self._looked_in_vain:
            _LOG.warning("partitions not known", problem=problem)
        self.problem, self._looked_in_vain = problem, bool(problem)

    def _claim_due(self, now_s: float) -> None:
        """Ask for some at once: one after the other would take longer than a partition may be without an owner."""
        # a partition beyond our bound is left to another process
        is_full = len(self._held) + len(self._asking) >= MAX_PARTITIONS
        due = [] if is_full else self._claims.due(self._held.keys(), self._standbys.ready, now_s)
        for name, answer in self._asking.answers(due):
            self._on_answer(name, answer)

    def _subscribed(self, name: str) -> Any:
        try:
            return self._client.subscribe(
                name,
                self._settings.pulsar.subscription,
                consumer_name=self._settings.name,
                receiver_queue_size=RECEIVER_QUEUE,
                batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(MAX_MESSAGES, MAX_BYTES, _GATHER_MS),
            )
        except (pulsar.PulsarException, PulsarAccessError) as error:
            return error

    def _on_answer(self, name: str, answer: Any) -> None:
        now_s, is_taken = time.monotonic(), isinstance(answer, pulsar.ConsumerBusy)
        self._claims.on_answer(name, now_s, is_taken=is_taken)
        if is_taken:
            return
        if isinstance(answer, Exception):
            self.problem = f"{name} cannot be subscribed to: {answer}"
            _LOG.warning("a partition cannot be claimed", partition=name, problem=str(answer))
            return
        self.problem = ""
        # an owner that ended has left all of its partitions
        self._presence.forget_owner(name)
        self._presence.on_changed(now_s)
        owned = self._owned(name, answer)
        thread = threading.Thread(target=owned.run, args=(STOP_S,), name=_short(name), daemon=True)
        self._held[name] = owned, thread
        thread.start()

    def _state(self, name: str) -> PartitionEvaluation:
        tenant, settings = self._tenant_of[name], self._settings
        common = PartitionSettings(
            region=settings.region,
            tenants=settings.tenants_of(tenant),
            # one for each thread, as it caches keys
            unsealer=Unsealer.of_folder(settings.sealing_keys),
            rewind_ms=round(settings.rewind_s * 1000),
        )
        return PartitionEvaluation(name, common, self._rules, self._evaluate, self._metrics)

    def _owned(self, name: str, consumer: Any) -> OwnedPartition:
        backoff = Backoff(0.1, 5.0, random.random)
        sender = AlertSender(partial(self._producer, self._tenant_of[name]), backoff, self._metrics.failures.inc)
        return OwnedPartition(
            self._state(name),
            self._client,
            consumer,
            sender=sender,
            metrics=self._metrics,
            evaluating=self._evaluating,
            prepared=self._standbys.take(name),
        )

    def _producer(self, tenant: str) -> Any:
        settings = self._settings
        return self._client.create_producer(
            settings.alerts_topic(tenant),
            send_timeout_millis=_SEND_MS,
            # more than a sender has in flight, so it never blocks
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
            # given away, not lost
            if name in self._given and not owned.lost_reason:
                self._given.discard(name)
                self._claims.on_given(name, time.monotonic())
                _LOG.info("partition given to a process that holds fewer", partition=name)
                continue
            self._given.discard(name)
            self._metrics.lost.inc()
            _LOG.warning("partition lost", partition=name, problem=owned.lost_reason)


def _short(name: str) -> str:
    """The tenant and the number of a partition, for logs."""
    topic, _, number = name.removeprefix("persistent://").rpartition(_PARTITION)
    return f"alerts {topic.partition('/')[0]} {number}"
