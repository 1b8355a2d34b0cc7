"""Decides what is lost when reading continues, and moves the subscription's cursor.

A replicated position travels only with an acknowledgement by a consumer of the subscription, and while a batch is read
those consumers belong to the tasks. So each commit opens one consumer per partition that moved, acknowledges, and
closes it; all partitions at once, because each step waits for the broker. One thread makes all calls: coroutines double
the processor time of a commit, and in the client's own thread an acknowledgement can run before its consumer is ready.
"""

from collections.abc import Callable, Collection, Generator, Mapping
from functools import partial
from queue import Empty, Queue
from typing import Any, NamedTuple

import _pulsar
import pulsar
import structlog
from pulsar.asyncio import PulsarException
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_exponential_jitter

from cloud_jobs.pulsar_source.admin import ClusterView
from cloud_jobs.pulsar_source.cluster_monitor import ClusterMonitor
from cloud_jobs.pulsar_source.feeds import shared_client, subscription_settings
from cloud_jobs.pulsar_source.messages import id_of
from cloud_jobs.pulsar_source.options import (
    AccessRefused,
    DataLoss,
    PulsarOptions,
    SourceCluster,
    SourceClusterUnreachable,
)
from cloud_jobs.pulsar_source.position import (
    BEGINNING,
    WHOLE_ENTRY,
    LedgerPosition,
    Offset,
    PartitionRange,
    SubscriptionProperties,
    ledger_created_in,
)

# Whether a query's position is valid in the cluster, and what is lost otherwise.

_log = structlog.get_logger(__name__)
_MAX_WARNINGS = 1000


class Loss(NamedTuple):
    """A loss of records. `from_cursor`: the position belongs to a former topic of that name; reading continues at the
    subscription's cursor.
    """

    detail: str
    from_cursor: bool


class LossReporter:
    """Raises DataLoss for a loss; with failOnDataLoss=false it logs a warning instead, once per loss."""

    def __init__(self, options: PulsarOptions) -> None:
        self._options = options
        self._warned: set[tuple[str, str, str]] = set()

    def find_losses(self, start: Offset, view: ClusterView) -> dict[str, Loss]:
        """The loss after `start` per topic partition; warns about topics that the options no longer name."""
        losses: dict[str, Loss] = {}
        for topic, position in start.positions.items():
            if view.leaves_out(topic):
                continue
            if not self._options.asks_for(topic):
                self._warn_once("the topic is ignored", view.cluster.name, topic, "the options do not name it any more")
            elif (
                loss := loss_after_switch(topic, view)
                if start.cluster != view.cluster.name
                else loss_after(topic, position, start.generations.get(topic), view)
            ):
                losses[topic] = loss
        return losses

    def check_readable(self, part: PartitionRange, end: Offset, view: ClusterView) -> bool:
        """Whether a planned range can still be read; reports what it lost."""
        if not self._options.asks_for(part.topic):
            return False
        loss = loss_after(part.topic, part.start, end.generations.get(part.topic), view)
        state = view.states.get(part.topic)
        # What was compacted outlives its ledgers.
        compacted = self._options.read_compacted and state and part.end[:2] <= state.compacted[:2]
        if not loss and state and state.is_removed(part.end) and not compacted:
            # It was planned and held something; no reading of it would ever end.
            loss = Loss(f"all that was planned, {part.start} to {part.end}, is removed", from_cursor=True)
        if loss:
            self.report(view.cluster.name, {part.topic: loss})
        return not (loss and loss.from_cursor)

    def report(self, cluster: str, losses: Mapping[str, Loss]) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(cluster, ", ".join(losses), next(iter(losses.values())).detail)
        for topic, loss in losses.items():
            self._warn_once("data loss", cluster, topic, loss.detail)

    def _warn_once(self, event: str, cluster: str, topic: str, detail: str) -> None:
        # Spark asks an idle source twenty times a second.
        if (cluster, topic, detail) not in self._warned:
            # Forgotten all together at the bound: a warning that comes twice does less harm than a set that grows.
            self._warned = {*self._warned, (cluster, topic, detail)} if len(self._warned) < _MAX_WARNINGS else set()
            _log.warning(event, cluster=cluster, topic=topic, detail=detail)


def known_positions(
    start: Offset, view: ClusterView, reset_topics: Collection[str], *, from_cursor: bool
) -> dict[str, LedgerPosition]:
    """The query's position per partition, where it is still valid. See `positions_left_out` too.

    `from_cursor`: the batch up to `start` may be unread, so what the cursor keeps before it is read too. A cursor that
    was moved ahead of the query removes nothing.
    """
    if start.cluster != view.cluster.name:
        return {}
    known = {topic: at for topic, at in start.positions.items() if topic in view.states and topic not in reset_topics}
    if not from_cursor:
        return known
    return {topic: min(at, view.states[topic].cursor or BEGINNING) for topic, at in known.items()}


def positions_left_out(start: Offset, view: ClusterView, *, from_cursor: bool) -> dict[str, LedgerPosition]:
    """The query's positions in topics that cannot be read now; reading continues there later.

    `from_cursor`: as for `known_positions`. The cursor of such a topic is unknown, so its position is the beginning,
    which means the cursor once the topic is read again.
    """
    if start.cluster != view.cluster.name:
        return {}
    return {topic: BEGINNING if from_cursor else at for topic, at in start.positions.items() if view.leaves_out(topic)}


def loss_after(topic: str, position: LedgerPosition, read_through: str | None, view: ClusterView) -> Loss | None:
    """The loss after a position of the generation `read_through`; None: nothing is lost."""
    state = view.states.get(topic)
    if state is None:
        return Loss("the topic does not exist any more", from_cursor=True)
    properties = view.properties.get(topic)
    if not is_same_generation(properties, read_through):
        detail = (
            "its subscription is not the one that the query read (the topic was deleted and created anew, the cluster "
            "came back with empty or older disks, or the subscription was deleted)"
        )
        return Loss(detail, from_cursor=True)
    detail_of_gap = state.loss_after(position)
    if detail_of_gap:
        return Loss(detail_of_gap, from_cursor=state.ends_before(position))
    if state.is_removed(position) and properties and properties.acknowledged_after(read_through or ""):
        detail = (
            f"what came after {position} was read once, the checkpoint was set back since, and the ledger is removed"
        )
        return Loss(detail, from_cursor=False)
    return None


def is_same_generation(properties: SubscriptionProperties | None, generation: str | None) -> bool:
    """Whether a position of that generation was read through the present subscription, on these disks."""
    return properties is None if generation is None else properties is not None and properties.has_read(generation)


def generations_of(
    advanced: Mapping[str, str], view: ClusterView, old: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Topic partition -> the generation of its position. `advanced`: the opening of each partition with a batch."""
    generations = {
        topic: properties.generation(advanced.get(topic, "")) for topic, properties in view.properties.items()
    }
    return generations | {
        topic: generation for topic, generation in (old or {}).items() if topic in generations and topic not in advanced
    }


def loss_after_switch(topic: str, view: ClusterView) -> Loss | None:
    """The loss after a change of cluster: the old position means nothing here, so the cursor decides, if there was
    one.
    """
    if topic not in view.states:
        return Loss("the topic does not exist there", from_cursor=False)
    if topic in view.created:
        return Loss("its subscription did not exist there, so nothing was kept for it", from_cursor=False)
    return None


_MAX_CONSUMERS = 500
"""How many partitions have a consumer of ours at one moment."""
_MARGIN_S = 1.0
"""How much longer than the client's own bound of a call an answer is waited for."""
_CLIENT_NAMES = {"initial_position": "subscription_initial_position", "is_read_compacted": "read_compacted"}
"""Settings that the client's configuration calls otherwise than its `subscribe`."""

SendAcks = Callable[[SourceCluster, PulsarOptions, Mapping[str, LedgerPosition]], Mapping[str, LedgerPosition]]
"""As `acknowledge`."""

_Answer = Callable[[Any], None]
_Steps = Generator[None, Any, PulsarException | None]


class Acknowledger:
    """Moves the cursors of a query's clusters behind the batches that Spark has written."""

    def __init__(
        self,
        options: PulsarOptions,
        monitor: ClusterMonitor,
        send: SendAcks | None = None,
    ) -> None:
        self._options = options
        self._monitor = monitor
        self._send = send or acknowledge
        self._moved_to: dict[tuple[str, str], LedgerPosition] = {}

    def move_cursors(self, end: Offset, view: ClusterView | None) -> bool:
        """Acknowledges everything up to `end`; False when its cluster accepted nothing. `view`: the cluster's state, if
        known.
        """
        properties = view.properties if view else {}
        moved = {
            topic: position
            for topic, position in end.positions.items()
            # In another life of the topic the same place holds other messages, which nobody has read.
            if self._moved_to.get((end.cluster, topic)) != position
            and is_same_generation(properties.get(topic), end.generations.get(topic))
        }
        if not moved:
            return True
        done = self._send_recorded(end, moved)
        # Only what the broker took: the next commit tries the rest again.
        self._moved_to |= {(end.cluster, topic): position for topic, position in done.items()}
        return bool(done)

    def _send_recorded(self, end: Offset, moved: Mapping[str, LedgerPosition]) -> Mapping[str, LedgerPosition]:
        created_times = {
            topic: created for topic in moved if (created := ledger_created_in(end.generations.get(topic, "")))
        }
        try:
            # First the note: once the cursor has moved, the ledger can be gone.
            self._monitor.record_acknowledged(end.cluster, created_times)
        except (SourceClusterUnreachable, AccessRefused) as error:
            # Nothing is acknowledged without the note: a checkpoint that is set back later would not be recognised.
            _log.warning("not acknowledged", cluster=end.cluster, topics=len(moved), first_error=str(error))
            return {}
        return self._send(self._options.cluster_named(end.cluster), self._options, moved)


def acknowledge(
    cluster: SourceCluster, options: PulsarOptions, ends: Mapping[str, LedgerPosition]
) -> dict[str, LedgerPosition]:
    """Acknowledges each topic partition cumulatively up to its position; returns those that the broker accepted.

    Waits for a cancelled task that still holds the subscription. Failures are logged only: the next acknowledgement is
    cumulative and includes them.
    """
    # Entry -1 is before a ledger's first entry: there is nothing to acknowledge.
    positions = {topic: position for topic, end in ends.items() if (position := to_whole_entry(end)).entry >= 0}
    failed = _acknowledge_once(cluster, options, positions)
    if _busy(failed):
        failed = _acknowledge_busy(cluster, options, positions, failed)
    if failed:
        topic, error = next(iter(failed.items()))
        _log.warning(
            "not acknowledged", cluster=cluster.name, topics=len(failed), first_topic=topic, first_error=str(error)
        )
    return {topic: end for topic, end in ends.items() if topic not in failed}


def _acknowledge_busy(
    cluster: SourceCluster,
    options: PulsarOptions,
    positions: Mapping[str, LedgerPosition],
    failed: dict[str, PulsarException],
) -> dict[str, PulsarException]:
    """Retries the partitions whose subscription is held by another consumer, within `operationTimeoutSeconds`."""

    def again() -> bool:
        nonlocal failed
        busy = _busy(failed)
        failed = {topic: error for topic, error in failed.items() if topic not in busy}
        failed |= _acknowledge_once(cluster, options, {topic: positions[topic] for topic in busy})
        return bool(_busy(failed))

    Retrying(
        retry=retry_if_result(bool),
        stop=stop_after_delay(options.operation_timeout_seconds),
        wait=wait_exponential_jitter(multiplier=0.05, max=1.0, jitter=0.05),
        retry_error_callback=lambda _: None,
    )(again)
    return failed


def _busy(failed: Mapping[str, PulsarException]) -> list[str]:
    return [topic for topic, error in failed.items() if error.error() == pulsar.Result.ConsumerBusy]


def _acknowledge_once(
    cluster: SourceCluster, options: PulsarOptions, positions: Mapping[str, LedgerPosition]
) -> dict[str, PulsarException]:
    """Topic partition -> why its acknowledgement failed."""
    # The client's public calls wait for one answer at a time.
    subscribe = shared_client(cluster, options)._client.subscribe_async_v2  # noqa: SLF001
    name, settings = options.subscription_name(), _configuration(options)
    answers: Queue[tuple[str, Any]] = Queue()
    waiting, under_way, failed = list(positions), dict[str, _Steps](), dict[str, PulsarException]()
    while waiting or under_way:
        while waiting and len(under_way) < _MAX_CONSUMERS:
            topic = waiting.pop()
            under_way[topic] = _steps(
                partial(subscribe, topic, name, settings), positions[topic], partial(_put, answers, topic)
            )
            next(under_way[topic])
        try:
            topic, answer = answers.get(timeout=options.call_timeout_s() + _MARGIN_S)
            under_way[topic].send(answer)
        except StopIteration as ended:
            del under_way[topic]
            failed |= {topic: ended.value} if ended.value else {}
        except Empty:
            return failed | dict.fromkeys((*under_way, *waiting), PulsarException(pulsar.Result.Timeout))
    return failed


def _put(answers: Queue[tuple[str, Any]], topic: str, answer: Any) -> None:
    answers.put((topic, answer))


def _steps(subscribe: Callable[[_Answer], Any], position: LedgerPosition, answer: _Answer) -> _Steps:
    """A generator that is sent the answer to each call; returns the broker's error, or None for success."""
    consumer = yield subscribe(answer)
    if isinstance(consumer, _pulsar.Error):
        return PulsarException(consumer.error, consumer.message)
    acknowledged = yield consumer.acknowledge_cumulative_async(id_of(position)._msg_id, answer)  # noqa: SLF001
    # The broker takes one command after the other: when it has closed the consumer, it has the acknowledgement.
    closed = yield consumer.close_async(answer)
    result = closed if acknowledged == pulsar.Result.Ok else acknowledged
    return None if result == pulsar.Result.Ok else PulsarException(result)


def _configuration(options: PulsarOptions) -> Any:
    """The consumers' settings as the client's object; without a queue the broker sends them nothing."""
    configuration = _pulsar.ConsumerConfiguration()
    for name, value in (subscription_settings(options) | {"receiver_queue_size": 0}).items():
        getattr(configuration, _CLIENT_NAMES.get(name, name))(value)
    return configuration


def to_whole_entry(position: LedgerPosition) -> LedgerPosition:
    """The position, one entry earlier if it ends inside an entry: the broker's cursor moves by whole entries."""
    return position if position.batch == WHOLE_ENTRY else LedgerPosition(position.ledger, position.entry - 1)
