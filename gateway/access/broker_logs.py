"""Both brokers' logs, as the access daemon shows them."""

from __future__ import annotations

from collections.abc import Iterator

import structlog

from gateway.access.broker_log import BrokerLog
from gateway.access.config import AccessSettings, BrokerProcessPlace
from gateway.access.status import RefusedPublications

__all__ = ["BrokerLogs"]

_LOG = structlog.get_logger("access")


class BrokerLogs:
    """Whom the brokers refused that have `log_file`."""

    def __init__(self, settings: AccessSettings) -> None:
        self._logs = dict(_logs(settings))

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
