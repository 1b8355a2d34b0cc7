"""One alert process: fences, partitions, status and threads."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import structlog

from gateway.alerts.config import AlertSettings
from gateway.alerts.evaluation import AlertRules, LiveEvents
from gateway.alerts.metrics import AlertMetrics
from gateway.alerts.owner import PartitionOwner
from gateway.alerts.status import AlertsStatus, Lag, lag_of
from gateway.reference_follower import ReferencePublications, follow_reference
from geo.reference.in_force import InForce, usable_fence
from geo.spatial import Fence, FenceError, FenceSet, Gate, GateSet
from waybill.daemon.service import STUCK_AFTER_S, run_components, serve_status
from waybill.pulsar.pulsar_client import TokenWatch

# the longest delay of a signal
_TURN_S = 0.2
# unpacking a batch releases the interpreter, and waits this long to get it back from a computing thread; with
# Python's default (5 ms) that is more than all else a batch costs
_SWITCH_S = 0.0005
_LOG = structlog.get_logger("alerts")


class AlertService:
    """One alert process. `log_suppressed` logs how many lines were left out."""

    def __init__(self, settings: AlertSettings, log_suppressed: Callable[[], object] = lambda: None) -> None:
        """Raises SettingsError, SealingKeyError, PulsarAccessError."""
        self._settings, self._log_suppressed = settings, log_suppressed
        source = settings.pulsar
        self._metrics = AlertMetrics()
        make = partial(_rules, settings)
        self._fences = follow_reference(
            source, settings.fences, partial(ReferencePublications, "fence", usable_fence, (FenceError,)), make
        )
        self._owner = PartitionOwner(
            settings, lambda: self._fences.rules, partial(_evaluation, settings), self._metrics
        )
        self._tokens = TokenWatch([source.access])
        self._began_s = time.monotonic()
        self._first = AlertsStatus(
            process=settings.name,
            region=settings.region,
            pid=os.getpid(),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self._status = self._first

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then give the partitions back."""
        sys.setswitchinterval(_SWITCH_S)
        registry = self._metrics.registry
        with serve_status(self._settings.status, registry, lambda: self._status, self._is_alive) as server:
            _LOG.info("started", process=self._settings.name, region=self._settings.region)
            try:
                run_components(
                    [self._fences, self._owner], server, turn=lambda stop: stop.wait(_TURN_S), update=self._update
                )
            finally:
                self._status = self._status.model_copy(update={"state": "stopping", "healthy": False})
                all_receipted = self._owner.close()
                self._fences.close()
            # nothing is lost: the next owner publishes their alerts with the same ids
            _LOG.info("stopped", all_receipted=all_receipted)

    def _update(self, now_s: float) -> None:
        held, facts, counts = self._owner.held, self._fences.reference_facts, self._metrics.counts
        unowned = self._owner.partitions_unowned
        # first: an ended token shows as time-outs, and causes the other problems
        standbys = self._owner.standbys
        lag = lag_of((one.name, one.lag_s(time.time())) for one in held)
        problem = self._tokens.ended or self._problem(now_s, facts.problem, unowned, lag) or self._tokens.ending
        in_force = self._fences.in_force
        gates = 0 if in_force is None else sum(isinstance(one.made, Gate) for one in in_force.held)
        known: dict[str, object] = {
            "state": self._state(bool(held)),
            "healthy": False if problem else (True if held and not lag.unknown else None),
            "last_error": problem or lag.doubt,
            "processes": self._owner.processes,
            "partitions_held": tuple(sorted(one.name for one in held)),
            "partitions_of_others": self._owner.partitions_of_others,
            "partitions_unowned": unowned,
            "partitions_standby": tuple(standbys.names),
            "partitions_ready": tuple(standbys.ready),
            "standby_problem": standbys.problem or self._owner.hearing_problem,
            "lag_s": lag.said_s,
            "devices_known": sum(one.device_count for one in held),
            "alerts_waiting": sum(one.unreceipted for one in held),
            "fences_current": not facts.problem,
            "fences_unreachable_since_s": facts.unreachable_since_s,
            "fences": facts.held - gates,
            "gates": gates,
            "fences_refused": len(facts.refused),
            "fence_last_refused": facts.last_refused,
        }
        status = self._first.model_copy(update={**counts, **known})
        self._metrics.set_gauges(status)
        self._status = status
        self._log_suppressed()

    def _state(self, holds: bool) -> str:
        if self._fences.rules is None:
            return "waiting for fences"
        return "running" if holds else "standby"

    def _problem(self, now_s: float, fences: str, unowned: tuple[str, ...], lag: Lag) -> str:
        """Why alerts may be late, missing or wrong, or ""."""
        if self._fences.rules is None:
            waited_s = now_s - self._began_s
            late = f" for {waited_s:.0f} s: no alert is raised" if waited_s > self._settings.fences.wait_s else ""
            return f"fences are unknown{late}: {fences or 'rules are being made of them'}"
        of_partitions = (one.problem for one in self._owner.held if one.problem)
        if problem := self._owner.problem or next(of_partitions, ""):
            return problem
        if unowned:
            return f"of {len(unowned)} partitions no owner is known, of {unowned[0]} for instance"
        if lag.problem:
            return lag.problem
        return f"fences: {fences}" if fences else ""

    def _is_alive(self) -> bool:
        turned = [self._owner.turned_s, *(one.turned_s for one in self._owner.held)]
        return time.monotonic() - min(turned) < STUCK_AFTER_S


def _rules(settings: AlertSettings, in_force: InForce[Fence | Gate]) -> AlertRules:
    places = [one.made for one in in_force.held]
    fences = FenceSet([one for one in places if isinstance(one, Fence)])
    gates = GateSet([one for one in places if isinstance(one, Gate)])
    return AlertRules(fences, gates, settings.tracks, settings.events)


def _evaluation(settings: AlertSettings, rules: AlertRules) -> LiveEvents:
    return LiveEvents(rules, settings.evaluation)
