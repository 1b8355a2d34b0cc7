"""Both brokers' logs, as the access daemon shows them, and the sessions that it ends by what they say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import structlog

from gateway.access.broker_log import BrokerLog, RefusedConnection
from gateway.access.config import AccessSettings, BrokerProcessPlace
from gateway.access.guard import SessionGuard
from gateway.access.status import RefusedPublications
from gateway.errors import BrokerUnreachable, SessionNotEnded

__all__ = ["BrokerLogs"]

_MAX_ENDED = 2000
"""Sessions that one look at the log ends."""
_LOG = structlog.get_logger("access")


class BrokerLogs:
    """Whom the brokers refused that have `log_file`. `guard`: of the devices' broker."""

    def __init__(self, settings: AccessSettings, guard: SessionGuard) -> None:
        self._logs, self._guard = dict(_logs(settings)), guard

    def read(self) -> None:
        """Count what was written since the last time. A log has at most one line of ours for each call."""
        for broker, log in self._logs.items():
            before = log.publications.total()
            log.read()
            if count := log.publications.total() - before:
                last = log.last[-1]
                _LOG.warning(
                    "publications refused", broker=broker, count=count, last_sender=last.sender, last_topic=last.topic
                )

    def end_sessions(self) -> None:
        """End what devices left behind, and sessions with too many subscriptions.

        No device of ours asks for a session that outlives its connection. Mosquitto until 2.0.22 crashes when it reads
        its files while it has one: call this before each signal.
        """
        if (log := self._logs.get("devices")) is None:
            return
        kept = list[str]()
        # A broker that is away has no sessions, and one that comes again names those that it restored.
        with suppress(BrokerUnreachable):
            for _ in range(_MAX_ENDED):
                # Read again for each: a device that has come back meanwhile keeps its connection.
                log.read()
                if (device := log.take_suspect()) is None:
                    break
                with suppress(SessionNotEnded):
                    kept += [device] * self._guard.was_there(device)
        if kept:
            log.refused[RefusedConnection.KEPT_SESSION] += len(kept)
            _LOG.warning("sessions that devices left behind were ended", count=len(kept), last_device=kept[-1])

    @property
    def status(self) -> dict[str, object]:
        """What was counted, by the keys of AccessStatus."""
        return {
            "connections_refused": {broker: dict(log.refused) for broker, log in self._logs.items()},
            "publications_refused": {broker: dict(log.publications) for broker, log in self._logs.items()},
            "last_publications_refused": [
                RefusedPublications.of(broker, one) for broker, log in self._logs.items() for one in log.last
            ],
        }


def _logs(settings: AccessSettings) -> Iterator[tuple[str, BrokerLog]]:
    places: dict[str, BrokerProcessPlace] = {"devices": settings.broker}
    if settings.enrolment is not None:
        places["claims"] = settings.enrolment.broker
    for broker, place in places.items():
        if place.log_file is not None:
            yield broker, BrokerLog(place.log_file)
