"""A reader in a process of its own: what ends or fills its native client ends neither a Spark worker nor the driver."""

import multiprocessing
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self

import pulsar

from cloud_jobs.pulsar_source.copies import CopiedMessage
from cloud_jobs.pulsar_source.errors import PulsarSourceError
from cloud_jobs.pulsar_source.feeds import Feed, SingleMessageHandover, reader_feed
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster
from cloud_jobs.pulsar_source.position import LedgerPosition

MEMORY_BYTES = 3 << 30
"""Address space of the process, beside what it may prefetch: a header can claim that 4 GiB come out of a few bytes."""

UNKNOWN_NEWEST = LedgerPosition(2**62, 0)
"""Stands for a newest message that is not known."""

_END_S = 5.0
_Serve = Callable[[Connection, "ReaderTask"], None]


@dataclass(frozen=True, slots=True)
class ReaderTask:
    """What one process reads: the messages of a topic partition after a position.

    `first`: the entry after it, where it is known: the one at that position must not be sent again. `one_by_one`: the
    broker is asked for an entry only when all before it have been handed over, so an entry that ends the process is the
    first one that did not come. `with_content`: False copies only places and sizes. `queue`: 0 for a client that is
    sent nothing.
    """

    cluster: SourceCluster
    options: PulsarOptions
    topic: str
    after: LedgerPosition
    queue: int
    first: LedgerPosition | None = None
    one_by_one: bool = False
    with_content: bool = True


class ReaderCrashed(Exception):  # an event that is dealt with, not an error of this package
    """The process ended, or left a call unanswered and was ended. `signal`: what ended it by itself, or None."""

    def __init__(self, signal: int | None, *, started: bool) -> None:
        self.signal = signal
        self.started = started
        super().__init__(signal, started)


class ReaderFailed(Exception):  # as above
    """The client in the process raised: its words."""


class ReaderProcess:
    """The parent's end: each call is answered within `answer_s`, or the process is ended and ReaderCrashed raised."""

    def __init__(self, assignment: ReaderTask, answer_s: float, serve: _Serve | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        # What is imported before the fork need not be imported by each process.
        context.set_forkserver_preload([__name__])
        self._answer_s = answer_s
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve or serve_reader, args=(theirs, assignment), daemon=True)
        self._process.start()
        theirs.close()
        self._started = False
        self._started = self._answer() is None

    def call(self, what: str, *arguments: Any) -> Any:
        """The answer of the feed in the process."""
        try:
            self._pipe.send((what, arguments))
        except OSError:
            raise self._crashed() from None
        return self._answer()

    def _answer(self) -> Any:
        try:
            if not self._pipe.poll(self._answer_s):
                self.close()
                raise ReaderCrashed(None, started=self._started)
            ok, answer = self._pipe.recv()
        except (OSError, EOFError):
            raise self._crashed() from None
        if not ok:
            raise ReaderFailed(answer)
        return answer

    def _crashed(self) -> ReaderCrashed:
        self._process.join(_END_S)
        code = self._process.exitcode
        self.close()
        return ReaderCrashed(-code if code is not None and code < 0 else None, started=self._started)

    def close(self) -> None:
        """Ends the process; it holds nothing that has to be given back."""
        self._pipe.close()
        self._process.kill()
        self._process.join(_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve_reader(pipe: Connection, assignment: ReaderTask) -> None:
    """The process's part: opens the reader and answers until the parent goes."""
    hold_to(resource.RLIMIT_AS, MEMORY_BYTES + 2 * assignment.options.prefetch_bytes)
    hold_to(resource.RLIMIT_CORE, 0)
    pipe.send((True, None))
    one_by_one = SingleMessageHandover() if assignment.one_by_one else None
    a = assignment
    try:
        with reader_feed(a.cluster, a.options, a.topic, a.after, a.queue, first=a.first, one_by_one=one_by_one) as feed:
            while True:
                what, arguments = pipe.recv()
                pipe.send((True, _answer_of(feed, what, arguments, assignment)))
                if one_by_one:
                    one_by_one.confirm()
    except (EOFError, OSError):
        pass  # the parent is done with it
    except (PulsarSourceError, pulsar.PulsarException) as error:
        pipe.send((False, f"{type(error).__name__}: {error}"))
    finally:
        os._exit(0)  # the client's own threads may wait for what nobody will do


def hold_to(kind: int, most: int) -> None:
    """Holds this process to a limit, or to the one that it has already where that is lower, as in a Spark worker."""
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _answer_of(feed: Feed, what: str, arguments: tuple[Any, ...], assignment: ReaderTask) -> Any:
    match what:
        case "receive":
            return [CopiedMessage.of(message, with_content=assignment.with_content) for message in feed.receive()]
        case "last":
            with suppress(pulsar.PulsarException):
                return feed.last()
            return UNKNOWN_NEWEST
        case _:
            return getattr(feed, what)(*arguments)
