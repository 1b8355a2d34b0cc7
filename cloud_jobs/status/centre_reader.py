"""One look at the centre: the lake, the topics, the note of topics left out, and what is wrong with all of it."""

from __future__ import annotations

from dataclasses import replace

from cloud_jobs.config import CloudSettings
from cloud_jobs.status.facts import CentreStatus
from cloud_jobs.status.judging import problems
from cloud_jobs.status.lake_facts import LakeReader
from cloud_jobs.status.provisional import provisional_alerts
from cloud_jobs.status.topic_lag import left_out_topics, topic_lags
from waybill.pulsar.token_watch import TokenWatch

__all__ = ["CentreReader"]


class CentreReader:
    """Looks again and again. Raises CloudError from `look`."""

    def __init__(self, settings: CloudSettings) -> None:
        self._settings = settings
        self._lake = LakeReader(settings.tables, settings.checkpoints)
        self._token = TokenWatch([settings.access])

    def look(self) -> tuple[CentreStatus, tuple[str, ...]]:
        """How the centre is, and what is wrong, by the limits of the settings."""
        lags = topic_lags(self._settings)
        token_problem = self._token.ended or self._token.ending
        provisional = provisional_alerts(self._settings)
        found = replace(self._lake.read(), lag=lags, token_problem=token_problem, provisional=provisional)
        try:
            found = replace(found, left_out=left_out_topics(self._settings))
        except ValueError as error:
            found = replace(found, errors={**found.errors, "the note of topics left out": str(error)})
        return found, problems(found, self._settings.status)
