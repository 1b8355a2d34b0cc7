"""Does the steps of the core: sessions, files, one signal, sessions again, publications, in this order.

Each may be done twice. A session ends before lists are signed and read, which takes longer the more there is on them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

import structlog

from gateway.access.broker import BrokerFiles
from gateway.access.broker_process import BrokerProcess
from gateway.access.core import BrokerStep
from gateway.access.guard import SessionGuard
from gateway.access.metrics import AccessMetrics
from gateway.access.own_list import OwnList
from gateway.access.publisher import AccessPublisher
from gateway.access.revocation import RevocationList
from gateway.errors import BrokerUnreachable, GuardRefused, SessionNotEnded

__all__ = ["StepRunner"]

_LOG = structlog.get_logger("access")


class StepRunner:
    """The hands of the daemon. What it raises (OSError, BrokerUnreachable) leaves the step to be done again."""

    def __init__(
        self,
        files: BrokerFiles,
        guard: SessionGuard,
        publisher: AccessPublisher,
        metrics: AccessMetrics,
        *,
        own_list: OwnList,
        before_reload: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._files, self._guard, self._publisher, self._metrics = files, guard, publisher, metrics
        self._clock, self._before_reload = clock, before_reload
        self.own_list = own_list
        self._published: RevocationList | None = None
        self._reloaded: BrokerProcess | None = None

    @property
    def is_other_broker(self) -> bool:
        """Whether a broker runs that has had no signal to read its files since it started."""
        try:
            return self._files.process() != self._reloaded
        except BrokerUnreachable:
            return False

    def run(self, step: BrokerStep) -> BrokerStep | None:
        """Make the broker have what a step says. What is left of it: sessions that the broker does not end."""
        self._cut(step.end)
        is_changed = self._files.write_rules(step.denied)
        own = self.own_list.update(step.revoked, self._now())
        is_changed |= self._files.write_lists([own, *step.lists])
        if is_changed or self.is_other_broker:
            self._reload()
        # After the reload: who connects again at once meets the new rules.
        left = [name for name in step.end if not self._is_ended(name)]
        self._publish_list()
        if confirmed := [one for one in step.confirm if one.device not in left]:
            self._publisher.confirm(confirmed, self._clock())
        if not left:
            return None
        return step._replace(end=tuple(left), confirm=tuple(one for one in step.confirm if one.device in left))

    def renew(self) -> None:
        """Renew the region's own list where it is time, with what it has: the registry need not be reachable."""
        if not self.own_list.is_due(self._now()):
            return
        own = self.own_list.update(None, self._now())
        # From the file, as they were when the registry was last read.
        others = [one for issuer, one in sorted(self._files.lists.items()) if issuer != own.issuer]
        if self._files.write_lists([own, *others]):
            self._reload()
        self._publish_list()

    def publish_list_again(self) -> None:
        """The region's own list, behind one on the topic that does not hold: compaction keeps the last."""
        if (own := self.own_list.current) is not None and self.own_list.is_ours and own.certificate_pem:
            self._publisher.publish_list(own)

    def look(self, names: list[str]) -> list[str]:
        """Those of these devices that are there again; their sessions are ended once more."""
        with self._password_is_read():
            again = [name for name in names if self._guard.was_there(name)]
        for name in again:
            self._end(name)
            self._metrics.sessions_came_back.inc()
            _LOG.warning("a device that may not connect had a session again, and it was ended", device=name)
        return again

    def _cut(self, names: Iterable[str]) -> None:
        # Who connects again meanwhile is ended again. A broker that is away needs its files all the same.
        with contextlib.suppress(BrokerUnreachable):
            for name in names:
                with contextlib.suppress(SessionNotEnded):
                    self._end(name)

    def _is_ended(self, name: str) -> bool:
        try:
            self._end(name)
        except SessionNotEnded as error:
            # Of this one alone: those of the others end.
            _LOG.error("a session is not ended", device=name, problem=str(error))
            return False
        self._metrics.sessions_ended.inc()
        return True

    def _end(self, name: str) -> None:
        with self._password_is_read():
            self._guard.end(name)

    @contextlib.contextmanager
    def _password_is_read(self) -> Iterator[None]:
        """A broker that has another password reads its files again with the next step, ours among them."""
        try:
            yield
        except GuardRefused:
            self._reloaded = None
            raise

    def _reload(self) -> None:
        # Forgotten first: a signal that fails is sent again, though the files are written by then.
        self._reloaded = None
        self._files.write_password(self._guard.secret)
        self._before_reload()
        reloaded = self._files.reload()
        self._guard.await_reload()
        self._reloaded = reloaded
        self._metrics.reloads.inc()

    def _publish_list(self) -> None:
        if (own := self.own_list.current) is not None and own is not self._published:
            self._publisher.publish_list(own)
            self._published = own

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)
