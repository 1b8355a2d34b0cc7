"""Where a batch ends: at the newest entry, at the target of Trigger.AvailableNow, or where its limits are used up."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from cloud_jobs.pulsar_source.cluster.survey import ClusterView
from cloud_jobs.pulsar_source.driver.crash_guard import CrashGuard
from cloud_jobs.pulsar_source.driver.lookahead import Lookahead, Lookaheads
from cloud_jobs.pulsar_source.driver.planning import (
    BatchLimits,
    PendingMessage,
    limit_batch,
    limit_to_target,
    newest_positions,
)
from cloud_jobs.pulsar_source.errors import AccessRefused, ReadStalled, SourceClusterUnreachable
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster
from cloud_jobs.pulsar_source.position import LedgerPosition, Offset, PartitionRange


def newest_offset(view: ClusterView) -> Offset:
    """The newest entry of each topic partition."""
    return Offset(view.cluster.name, {topic: state.last for topic, state in view.states.items()})


OnUnreadable = Callable[[str, str, float], None]
"""Called with a topic partition whose look ahead failed, why, and how many seconds that took."""


class BatchEnds:
    """Chooses the ends of one query's batches; keeps its readers for the look ahead, and whose turn it is."""

    def __init__(
        self,
        options: PulsarOptions,
        crash_guard: CrashGuard,
        lookahead: Callable[[SourceCluster, PulsarOptions, str, int], Lookahead] = Lookahead,
    ) -> None:
        self._options = options
        self._limits = BatchLimits(options.max_messages_per_trigger, options.max_bytes_per_trigger)
        self._crash_guard = crash_guard
        self._lookaheads = Lookaheads(options, lookahead)
        self._target: Offset | None = None
        self._round = 0

    def close(self) -> None:
        """Gives the readers back; the next look ahead opens new ones."""
        self._lookaheads.close()

    def fix_target(self, target: Offset) -> None:
        """No batch ends behind it, for as long as its cluster is read."""
        self._target = target

    def choose(
        self,
        begin: Mapping[str, LedgerPosition],
        view: ClusterView,
        *,
        limited: bool,
        on_unreadable: OnUnreadable | None = None,
    ) -> dict[str, LedgerPosition]:
        """The ends of the batch after `begin`, by topic partition; `limited`: no more than the options allow.

        A partition that cannot be read ahead is handed to `on_unreadable`, and taken as far as it was; without that
        it raises.
        """
        ends = newest_positions(begin, view.states)
        if self._target is not None:
            # Positions of another cluster mean nothing here: what this one has now is the target.
            if self._target.cluster != view.cluster.name:
                self._target = newest_offset(view)
            ends = limit_to_target(begin, ends, self._target.positions)
        if not limited or not self._limits or ends == begin:
            return ends
        return {**begin, **self._look_ahead(begin, ends, view, on_unreadable)}

    def _look_ahead(
        self,
        begin: Mapping[str, LedgerPosition],
        ends: Mapping[str, LedgerPosition],
        view: ClusterView,
        on_unreadable: OnUnreadable | None,
    ) -> dict[str, LedgerPosition]:
        """The ends within the limits, of the partitions that the batch takes something of."""
        self._round += 1
        parts = [PartitionRange(topic, begin[topic], end) for topic, end in ends.items() if end > begin[topic]]
        weights = {part.topic: float(view.states[part.topic].entries_between(part.start, part.end)) for part in parts}
        with self._crash_guard.mark_lookahead() as isolated:
            ahead = self._lookaheads.read_by_topic(view.cluster, view.states, parts, isolated=isolated)
            if on_unreadable:
                ahead = {name: self._apart(name, messages, on_unreadable) for name, messages in ahead.items()}
            taken = limit_batch(ahead, weights, self._limits, self._round)
            self._lookaheads.close_if_large()
            return taken

    def _apart(
        self, topic: str, messages: Iterable[PendingMessage], on_unreadable: OnUnreadable
    ) -> Iterator[PendingMessage]:
        """The messages of a partition, as far as they can be read."""
        began = time.monotonic()
        try:
            yield from messages
        except (ReadStalled, AccessRefused, SourceClusterUnreachable) as error:
            # Its reader is of no use any more, and is opened again for the next try.
            self._lookaheads.close_topic(topic)
            on_unreadable(topic, str(error), time.monotonic() - began)
