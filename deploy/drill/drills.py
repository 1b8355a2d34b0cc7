"""The four drills: what is lost, and what is waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cloud_jobs.lake.coverage import DeviceStream
from deploy.drill.alert_audit import AlertAudit
from deploy.drill.environment import DrillEnvironment
from deploy.drill.findings import Findings, compute_findings
from deploy.drill.run import DrillRun, drill_run
from deploy.drill.settings import Drill


@dataclass(frozen=True, slots=True)
class Outcome:
    """One drill's figures.

    `restarts`: how often the ingest ended and was started again. `lost_after_return`: what was still lost once the lost
    region was back with its disks; None where no region was lost. `alerts`: None where there were to be none.
    """

    drill: Drill
    found: Findings
    restarts: int
    lost_after_return: int | None = None
    alerts: AlertAudit | None = None

    @property
    def passed(self) -> bool:
        """Whether all figures hold; what is unknown does not."""
        return self.found.passed and (self.alerts is None or self.alerts.holds is True)


def run_drill(drill: Drill, environment: DrillEnvironment) -> Outcome:
    """One drill where the centre is read; failback: where the centre was lost and its standby is read."""
    return _DRILLS[drill](environment)


def _hq_loss(environment: DrillEnvironment) -> Outcome:
    centre, standby = environment.topology.centres
    with drill_run(environment, standby) as run:
        run.wait_until_steady(cursor_in=standby, read=centre)
        environment.wait_for_moment()
        run.mark_loss(_all_streams(run))
        # Killed after the mark: the seconds to the first record are never measured too short.
        environment.stack.pulsar[centre].kill()
        environment.say(f"killed {centre} with SIGKILL")
        if environment.alerts is not None:
            environment.alerts.kill_verdicts()
        run.wait_until_through()
        return _outcome(Drill.HQ_LOSS, run)


def _failback(environment: DrillEnvironment) -> Outcome:
    centre, standby = environment.topology.centres
    environment.start_cluster(centre)
    with drill_run(environment, centre) as run:
        run.wait_until_steady(cursor_in=centre, read=standby)
        environment.wait_for_moment()
        run.mark_loss(_all_streams(run))
        environment.ingest.request_switchover(centre)
        environment.say(f"ordered the ingest from {standby} back to {centre}")
        run.wait_until_through()
        return _outcome(Drill.FAILBACK, run)


def _region_loss(environment: DrillEnvironment) -> Outcome:
    region = next(iter(environment.topology.regions))
    cluster = environment.region_cluster(region)
    with drill_run(environment, environment.topology.centre, moving=True) as run:
        run.wait_until_steady(cursor_in=None)
        environment.wait_for_moment()
        run.mark_loss(run.fleets[region].streams)
        cluster.kill()
        environment.say(f"killed region {region} with SIGKILL; its devices go to the next region")
        run.wait_until_through(only_arrived=True)
        # Counted before the disks come back: they bring what was not replicated.
        findings = compute_findings(run.observations())
        environment.say(
            f"{findings.lost:,} acknowledged records burnt with region {region}, unless its disks come back"
        )
        environment.start_cluster(cluster.cluster)
        environment.wait_for_or_timeout("what the region still had comes through", lambda: run.lost() == 0)
        return Outcome(Drill.REGION_LOSS, findings, run.restarts, run.lost(), environment.audit_alerts())


def _link_cut(environment: DrillEnvironment) -> Outcome:
    region = next(iter(environment.topology.regions))
    here, there = environment.topology.regions[region].cluster, environment.topology.centre
    links = [environment.stack.links[f"{here}->{there}"], environment.stack.links[f"{there}->{here}"]]
    with drill_run(environment, there) as run:
        run.wait_until_steady(cursor_in=None)
        environment.wait_for_moment()
        run.mark_loss(run.fleets[region].streams)
        for link in links:
            link.cut()
        environment.say(f"cut the links between {here} and {there}")
        run.let_traffic_flow(environment.settings.cut_s)
        for link in links:
            link.heal()
        # The seconds count from here: nothing can come through while the link is cut.
        run.mark_count()
        environment.say(f"healed them after {environment.settings.cut_s:.0f} s")
        run.wait_until_through()
        return _outcome(Drill.LINK_CUT, run)


_DRILLS: dict[Drill, Callable[[DrillEnvironment], Outcome]] = {
    Drill.HQ_LOSS: _hq_loss,
    Drill.FAILBACK: _failback,
    Drill.REGION_LOSS: _region_loss,
    Drill.LINK_CUT: _link_cut,
}


def _outcome(drill: Drill, run: DrillRun) -> Outcome:
    found = compute_findings(run.observations())
    return Outcome(drill, found, run.restarts, alerts=run.environment.audit_alerts())


def _all_streams(run: DrillRun) -> frozenset[DeviceStream]:
    return frozenset(stream for fleet in run.fleets.values() for stream in fleet.streams)
