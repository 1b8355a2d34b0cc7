"""What the streaming reader does in Spark's driver: offsets, plans, acknowledgements."""

from collections.abc import Mapping
from typing import Any

import structlog

from cloud_jobs.pulsar_source.acknowledging import acknowledge
from cloud_jobs.pulsar_source.clients import forget_clients
from cloud_jobs.pulsar_source.errors import DataLoss
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.planning import States, Survey, begin_of, everything, planned_range
from cloud_jobs.pulsar_source.position import Offset, Position, ranges
from cloud_jobs.pulsar_source.reading import PlannedRange

_log = structlog.get_logger(__name__)


class Driver:
    """The state of one streaming query between Spark's calls; Spark calls from one thread."""

    def __init__(self, options: PulsarOptions) -> None:
        self._options = options
        self._survey = Survey(options.all_clusters()[0], options)
        self._states: States = {}
        self._acknowledged: dict[str, Position] = {}
        self._served: Offset | None = None
        self._target: Mapping[str, Position] | None = None

    def close(self) -> None:
        """Gives every connection back."""
        self._survey.close()
        forget_clients()

    def initial(self) -> Offset:
        """Where a query without a checkpoint begins: the cursor, created at startingPosition where there is none."""
        states = self._survey.states()
        self._survey.subscribe_missing(states, self._options.starting_position)
        return Offset(self._survey.cluster.name, begin_of({}, self._survey.states()))

    def latest(self, start: Offset, *, limited: bool) -> Offset:  # noqa: ARG002
        """The end of the next batch; `start` itself when there is nothing to read."""
        states = self._look()
        self._check_loss(start, states)
        begin = begin_of(start.positions, states)
        ends = everything(begin, states)
        if self._target is not None:
            ends = {topic: min(end, self._target.get(topic, begin[topic])) for topic, end in ends.items()}
            ends = {topic: max(end, begin[topic]) for topic, end in ends.items()}
        if ends == begin:
            # Spark asks from `start` on, so the batch that ended there is done; it says so only with the next batch.
            self.commit(start)
            return start
        return Offset(self._survey.cluster.name, ends)

    def fix_target(self) -> None:
        """Trigger.AvailableNow: nothing that arrives after this moment is read."""
        self._target = {topic: state.last for topic, state in self._look().items()}

    def newest(self) -> dict[str, Any] | None:
        """The newest offset there is, with the entries behind it, for Spark's progress report."""
        if not self._states:
            return None
        newest = Offset(self._survey.cluster.name, {topic: state.last for topic, state in self._states.items()})
        return newest.to_json()

    def plan(self, start: Offset, end: Offset) -> list[PlannedRange]:
        """The tasks of the batch between two offsets."""
        pieces = list(ranges(start, end))
        states = self._states if pieces and all(piece.topic in self._states for piece in pieces) else self._look()
        known = self._survey.known_clusters()
        self._served = end
        cluster = self._survey.cluster
        return [
            planned_range(piece, states[piece.topic], cluster, self._options, known)
            for piece in pieces
            if piece.topic in states
        ]

    def commit(self, end: Offset) -> None:
        """Everything up to `end` is processed: moves the cursor there.

        Only an end that this process planned itself: after a restart the next one takes it along.
        """
        if end != self._served:
            return
        moved = {topic: at for topic, at in end.positions.items() if self._acknowledged.get(topic) != at}
        self._acknowledged |= acknowledge(self._survey.cluster, self._options, moved)

    def _look(self) -> States:
        states = self._survey.states()
        if any(state.cursor is None for state in states.values()):
            self._survey.subscribe_missing(states, "earliest")
            states = self._survey.states()
        self._states = states
        return states

    def _check_loss(self, start: Offset, states: States) -> None:
        for topic, position in start.positions.items():
            loss = states[topic].loss_after(position) if topic in states else "the topic does not exist any more"
            if loss is None:
                continue
            if self._options.fail_on_data_loss:
                raise DataLoss(self._survey.cluster.name, topic, loss)
            _log.warning("data_loss", cluster=self._survey.cluster.name, topic=topic, detail=loss)
