"""The driver's look ahead: which messages wait, and how big they are. Needed only for a limited batch.

The broker counts entries, and an entry can hold a thousand messages; only who receives it knows. A scout is a reader
that stays open from batch to batch and runs at most one batch ahead, so a limit holds exactly, at the price of one more
delivery of what is limited.
"""

import resource
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from typing import Any

import pulsar
import structlog

from cloud_jobs.pulsar_source.admission import Piece
from cloud_jobs.pulsar_source.clients import as_our_error
from cloud_jobs.pulsar_source.errors import ReadStalled
from cloud_jobs.pulsar_source.feeds import Feed, reader_feed
from cloud_jobs.pulsar_source.isolation import isolated_feed
from cloud_jobs.pulsar_source.ledgers import TopicState
from cloud_jobs.pulsar_source.message_ids import batch_size_of
from cloud_jobs.pulsar_source.options import Cluster, PulsarOptions
from cloud_jobs.pulsar_source.planning import queue_size
from cloud_jobs.pulsar_source.position import BEGINNING, Position, Range
from cloud_jobs.pulsar_source.prefetching import SIZES
from cloud_jobs.pulsar_source.reader_process import Assignment

_log = structlog.get_logger(__name__)
_ENDLESS = 2**62

_MOST_HELD_BYTES = 1 << 30
"""Beside what the readers may prefetch."""

Opening = Callable[[Cluster, PulsarOptions, str, Position, int], AbstractContextManager[Feed]]


def resident_bytes() -> int:
    """The memory of this process; 0 where the machine does not say so."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0


class Scout:
    """One topic partition's look ahead."""

    def __init__(
        self, cluster: Cluster, options: PulsarOptions, topic: str, queue: int, opening: Opening = reader_feed
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._topic = topic
        self._queue = queue
        self._opening = opening
        self._opened = ExitStack()
        self._feed: Feed | None = None
        self._opened_for = 0
        self._seen: deque[Piece] = deque()
        self._from = BEGINNING
        self._reached = BEGINNING

    def close(self) -> None:
        """Gives the reader back."""
        self._opened.close()
        self._feed = None
        self._seen.clear()

    def ahead(self, after: Position, upto: Position, clock: Callable[[], float] = time.monotonic) -> Iterator[Piece]:
        """The messages after a position, as far as `upto` and as far as the caller asks for them."""
        self._go_to(after)
        index = 0
        while True:
            while index < len(self._seen):
                if self._seen[index].at > upto:
                    return
                yield self._seen[index]
                index += 1
            if self._reached >= upto or not self._receive(upto, clock):
                return

    def _go_to(self, after: Position) -> None:
        queue = SIZES.queue(self._topic, self._queue, self._options.prefetch_bytes)
        fits = self._feed is not None and not SIZES.differ(queue, self._opened_for)
        if not fits or not self._from <= after <= max(self._reached, self._from):
            self.close()
            self._opened_for = queue
            self._feed = self._opened.enter_context(
                self._opening(self._cluster, self._options, self._topic, after, self._queue)
            )
            self._reached = after
        self._from = after
        while self._seen and self._seen[0].at <= after:
            self._seen.popleft()

    def _receive(self, upto: Position, clock: Callable[[], float]) -> bool:
        assert self._feed is not None  # _go_to opened it
        since = clock()
        try:
            while True:
                if messages := self._feed.receive():
                    break
                if self._feed.last() <= self._reached:
                    return False
                if self._feed.connected() and self._feed.exhausted(upto):
                    # Looked at, and not to be waited for again; who reads it finds a message that began before `after`.
                    self._seen.append(Piece(upto, 0))
                    self._reached = upto
                    return True
                if clock() - since > self._options.read_timeout_seconds:
                    waited_s = clock() - since
                    raise ReadStalled(self._cluster.name, self._topic, str(self._reached), "the newest", waited_s)
        except pulsar.PulsarException as error:
            raise as_our_error(self._cluster, f"looking ahead on {self._topic}", error) from error
        for message in messages:
            self._note(message.message_id(), message.length())
        return True

    def _note(self, message_id: object, size: int) -> None:
        ledger, entry, batch = message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()  # type: ignore[attr-defined]
        alone_or_last = batch < 0 or batch + 1 >= batch_size_of(message_id)
        at = Position(ledger, entry) if alone_or_last else Position(ledger, entry, batch)
        if at > self._reached:
            self._seen.append(Piece(at, size))
            self._reached = at


class Scouts:
    """The look ahead of all topic partitions; their readers stay open from batch to batch."""

    def __init__(
        self,
        options: PulsarOptions,
        opening: Callable[[Cluster, PulsarOptions, str, int], Scout] = Scout,
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        self._options = options
        self._open = opening
        self._resident = resident
        self._scouts: dict[tuple[str, str], Scout] = {}
        self._at_rest_bytes = 0

    def close(self) -> None:
        """Gives the readers back."""
        for scout in self._scouts.values():
            scout.close()
        self._scouts.clear()

    def ahead(
        self, cluster: Cluster, states: Mapping[str, TopicState], news: Sequence[Range], *, careful: bool
    ) -> dict[str, Iterable[Piece]]:
        """Topic partition -> the messages of its range, as far as the caller asks for them."""
        if not careful:
            return {piece.topic: self._scout(cluster, states, piece).ahead(piece.start, piece.end) for piece in news}
        self.close()
        return {
            piece.topic: look_ahead_carefully(
                states[piece.topic], cluster, self._options, piece, self._queue(states[piece.topic])
            )
            for piece in news
        }

    def rest(self) -> None:
        """A batch is planned: gives the readers back where this process holds much more than they may prefetch.

        The client takes what the header of a chunk claims, up to 4 GiB, and holds it while its reader is open.
        """
        held = self._resident() - self._at_rest_bytes
        if self._scouts and held > _MOST_HELD_BYTES + 2 * len(self._scouts) * self._options.prefetch_bytes:
            _log.warning("look_ahead_closed", held_bytes=held, readers=len(self._scouts))
            self.close()

    def _scout(self, cluster: Cluster, states: Mapping[str, TopicState], piece: Range) -> Scout:
        key = (cluster.name, piece.topic)
        if not self._scouts:
            self._at_rest_bytes = self._resident()
        if key not in self._scouts:
            self._scouts[key] = self._open(cluster, self._options, piece.topic, self._queue(states[piece.topic]))
        return self._scouts[key]

    def _queue(self, state: TopicState) -> int:
        return queue_size(state, self._options.prefetch_bytes)


def look_ahead_carefully(
    state: TopicState, cluster: Cluster, options: PulsarOptions, piece: Range, queue: int
) -> list[Piece]:
    """The messages of a range as far as one batch can take them, by a client in another process.

    An entry that ends that client is a piece without size.
    """

    def opening(cluster: Cluster, options: PulsarOptions, topic: str, after: Position, queue: int) -> Any:
        work = Assignment(cluster, options, topic, after, queue, with_content=False)
        return isolated_feed(work, state.sizes_between(after, piece.end))

    messages, size = options.max_messages_per_trigger or _ENDLESS, options.max_bytes_per_trigger or _ENDLESS
    pieces: list[Piece] = []
    with closing(Scout(cluster, options, piece.topic, queue, opening)) as scout:
        for one in scout.ahead(piece.start, piece.end):
            pieces.append(one)
            messages, size = messages - 1, size - one.size
            if messages <= 0 or size < 0:
                break
    return pieces
