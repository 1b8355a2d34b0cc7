"""Reads the health of everything that the settings name, each part bounded in time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cloud_jobs.config import CloudSettings
from cloud_jobs.status.centre_reader import LakeReader, left_out_topics, provisional_alerts, topic_lags
from cloud_jobs.status.facts import CentreStatus, ProvisionalStatus, TopicLag
from console.health.bounded import Answer, BoundedReads, plain
from console.health.canaries import CanaryState, asking, read_canaries
from console.health.centre import CentreAnswers, checks_of_centre, read_quarantined
from console.health.checks import Check, Health, LinkLag, check_bills, read_bills
from console.health.running import (
    TOPOLOGY,
    asking_daemon,
    check_address,
    check_canary,
    check_registered,
    check_replication,
    observe_links,
)
from console.lake import OpenLake
from waybill.daemon.stack_folder import Registration, registrations
from waybill.pulsar.pulsar_client import TokenWatch

LAKE_WAIT_S: Final = 10.0
"""The lake is asked longer than a cluster: without it hardly anything is known."""


@dataclass
class HealthReader:
    """Reads everything, each part bounded in time. Any thread may ask. `folder`: of the settings file, or None."""

    settings: CloudSettings
    lake: OpenLake
    folder: Path | None
    now: Callable[[], datetime]
    reads: BoundedReads = field(default_factory=BoundedReads)

    def __post_init__(self) -> None:
        self._lake_reader = LakeReader(self.lake.lake, self.settings.checkpoints, now=self.now, compares_clocks=False)
        self._token = TokenWatch([self.settings.access])

    def canaries(self) -> tuple[CanaryState, ...]:
        return read_canaries(self.settings, self.folder, self.reads, datetime.now(UTC))

    def read(self) -> Health:
        """The health now. Raises nothing: what cannot be read is unknown."""
        now = self.now()
        known, fault = self._registered()
        answers = self._answers(known, now)
        bills = answers["bills"]
        checks, left_out = list[Check](), list[str]()
        for one in checks_of_centre(self._centre_answers(answers), self.settings, bills):
            if isinstance(one, Check):
                checks.append(one)
            else:
                left_out.append(one)
        checks.append(check_bills(bills))
        links: tuple[LinkLag, ...] = ()
        if "replication" in answers:
            check, links = check_replication(answers["replication"], bills)
            checks.append(check)
        else:
            left_out.append(f"Replication between regions: there is no {TOPOLOGY} beside the settings")
        for daemon in known:
            if daemon.is_running and not daemon.status:
                left_out.append(f"{daemon.program}: process {daemon.pid} runs and serves no status")
            else:
                checks.append(check_registered(daemon, bills, answers[_name_of(daemon)]))
        checks += [check_address(one, answers[f"health {one}"]) for one in self.settings.console.daemons]
        canaries = [one for one in self.canaries() if one.device is not None]
        checks += [check_canary(one) for one in canaries]
        left_out += [] if canaries else ["Canaries: none is known here"]
        left_out += [fault] if fault else []
        left_out.append("The clock of the lake's store: `cloud-jobs status` compares it")
        return Health(now, tuple(replace(one, found=plain(one.found)) for one in checks), links, tuple(left_out))

    def _answers(self, known: list[Registration], now: datetime) -> dict[str, Answer[Any]]:
        quick: dict[str, Callable[[], Any]] = {
            "topics": lambda: topic_lags(self.settings, pause=lambda _: None),
            "alerts": lambda: provisional_alerts(self.settings),
            **{_name_of(one): asking_daemon(one) for one in known},
            **{f"health {one}": asking(one, "health") for one in self.settings.console.daemons},
        }
        if self.folder is not None and (self.folder / TOPOLOGY).is_file():
            folder = self.folder
            quick["replication"] = lambda: observe_links(folder)
        slow: dict[str, Callable[[], Any]] = {
            "lake": self._lake_reader.read,
            "bills": lambda: read_bills(self.lake, now),
            "quarantine": lambda: read_quarantined(self.lake, now),
        }
        return self.reads.ask(quick) | self.reads.ask(slow, LAKE_WAIT_S)

    def _registered(self) -> tuple[list[Registration], str]:
        if self.folder is None:
            return [], ""
        try:
            return registrations(self.folder), ""
        except OSError as error:
            return [], f"Daemons of this folder: {error}"

    def _centre_answers(self, answers: Mapping[str, Answer[Any]]) -> CentreAnswers:
        lake, lags, alerts = answers["lake"], answers["topics"], answers["alerts"]
        status = CentreStatus(now=self.now()) if lake.error else lake.get()
        if lags.error:
            cluster = self.settings.clusters[0].name
            lag = tuple(
                TopicLag(topic, cluster, error=lags.error, answered=False) for topic in self.settings.batch_topics
            )
        else:
            lag = lags.get()
        provisional = (
            ProvisionalStatus(self.settings.verdicts.max_provisional_s, error=alerts.error)
            if alerts.error
            else alerts.get()
        )
        status = replace(
            status, lag=lag, provisional=provisional, token_problem=self._token.ended or self._token.ending
        )
        try:
            status = replace(status, left_out=left_out_topics(self.settings))
        except (ValueError, OSError) as error:
            status = replace(status, errors={**status.errors, "the note of topics left out": str(error)})
        return CentreAnswers(lake, status, answers["quarantine"])


def _name_of(one: Registration) -> str:
    return f"daemon {one.program} {one.config}"
