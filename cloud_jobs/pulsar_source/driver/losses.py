"""Whether a query's position still means something in the cluster that is read, and what is gone where it does not."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import structlog

from cloud_jobs.pulsar_source.cluster.partition_state import SubscriptionProperties
from cloud_jobs.pulsar_source.cluster.survey import ClusterView
from cloud_jobs.pulsar_source.errors import DataLoss
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerPosition, Offset, PartitionRange

_log = structlog.get_logger(__name__)
_MAX_WARNINGS = 1000


class Loss(NamedTuple):
    """`from_cursor`: the position is of another life of the topic; reading goes on at the subscription's cursor."""

    detail: str
    from_cursor: bool


class LossReporter:
    """Reports what is lost: DataLoss, or with failOnDataLoss=false a warning, once for each loss."""

    def __init__(self, options: PulsarOptions) -> None:
        self._options = options
        self._warned: set[tuple[str, str, str]] = set()

    def find_losses(self, start: Offset, view: ClusterView) -> dict[str, Loss]:
        """What is lost after `start`, by topic partition; warns of topics that the options do not name any more."""
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
        """Whether a range that was planned can still be read where it was planned; reports what it lost."""
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
        """Reports the losses of topic partitions; there is one at least."""
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
    """Where the query stands, as far as its positions mean something. See `positions_left_out` too.

    `from_cursor`: the batch up to `start` may be unread, so what the cursor keeps before it is read too. A cursor that
    somebody moved ahead of the query takes nothing away from it.
    """
    if start.cluster != view.cluster.name:
        return {}
    known = {topic: at for topic, at in start.positions.items() if topic in view.states and topic not in reset_topics}
    if not from_cursor:
        return known
    return {topic: min(at, view.states[topic].cursor or BEGINNING) for topic, at in known.items()}


def positions_left_out(start: Offset, view: ClusterView, *, from_cursor: bool) -> dict[str, LedgerPosition]:
    """Where the query stands in topics that cannot be read now: their reading goes on there.

    `from_cursor`: as for `known_positions`; where the cursor stands nobody says, so they are at the beginning, which
    means that cursor when they are read again.
    """
    if start.cluster != view.cluster.name:
        return {}
    return {topic: BEGINNING if from_cursor else at for topic, at in start.positions.items() if view.leaves_out(topic)}


def loss_after(topic: str, position: LedgerPosition, read_through: str | None, view: ClusterView) -> Loss | None:
    """What is gone after a position of the generation `read_through`; None when nothing is."""
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
    """Whether a position of that generation was read through the subscription that is there, on these disks."""
    return properties is None if generation is None else properties is not None and properties.has_read(generation)


def generations_of(
    advanced: Mapping[str, str], view: ClusterView, old: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Topic partition -> the generation of its position; `advanced`: the opening of each one that has a batch."""
    generations = {
        topic: properties.generation(advanced.get(topic, "")) for topic, properties in view.properties.items()
    }
    return generations | {
        topic: generation for topic, generation in (old or {}).items() if topic in generations and topic not in advanced
    }


def loss_after_switch(topic: str, view: ClusterView) -> Loss | None:
    """After a change of cluster: the position speaks of another one, the cursor here decides, if there was one."""
    if topic not in view.states:
        return Loss("the topic does not exist there", from_cursor=False)
    if topic in view.created:
        return Loss("its subscription did not exist there, so nothing was kept for it", from_cursor=False)
    return None
