"""The four drills: what is lost, and what is waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cloud_jobs.ingest.coverage import Buffer
from deploy.drill.accounting import Findings, account
from deploy.drill.run import Run, running
from deploy.drill.settings import Drill
from deploy.drill.stage import Stage


@dataclass(frozen=True, slots=True)
class Outcome:
    """One drill's figures.

    `restarts`: how often the ingest ended and was started again. `lost_after_return`: what was still lost once the lost
    region was back with its disks; None where no region was lost.
    """

    drill: Drill
    found: Findings
    restarts: int
    lost_after_return: int | None = None


def play(drill: Drill, stage: Stage) -> Outcome:
    """One drill on a stage where the centre is read; failback: where the centre was lost and its standby is read."""
    return _PLAYS[drill](stage)


def _hq_loss(stage: Stage) -> Outcome:
    centre, standby = stage.topology.centres
    with running(stage, standby) as run:
        run.settle(cursor_in=standby, read=centre)
        stage.wait_for_moment()
        run.mark_loss(_everybody(run))
        stage.stack.pulsar[centre].kill()
        stage.say(f"killed {centre} with SIGKILL")
        run.see_through()
        return Outcome(Drill.HQ_LOSS, account(run.evidence()), run.restarts)


def _failback(stage: Stage) -> Outcome:
    centre, standby = stage.topology.centres
    stage.start_cluster(centre)
    with running(stage, centre) as run:
        run.settle(cursor_in=centre, read=standby)
        stage.wait_for_moment()
        run.mark_loss(_everybody(run))
        stage.ingest.order(centre)
        stage.say(f"ordered the ingest from {standby} back to {centre}")
        run.see_through()
        return Outcome(Drill.FAILBACK, account(run.evidence()), run.restarts)


def _region_loss(stage: Stage) -> Outcome:
    region = next(iter(stage.topology.regions))
    cluster = stage.region_cluster(region)
    with running(stage, stage.topology.centre, moving=True) as run:
        run.settle(cursor_in=None)
        stage.wait_for_moment()
        run.mark_loss(run.fleets[region].buffers)
        cluster.kill()
        stage.say(f"killed region {region} with SIGKILL; its devices go to the next region")
        run.see_through(only_arrived=True)
        found = account(run.evidence())
        stage.say(f"{found.lost:,} acknowledged records burnt with region {region}, unless its disks come back")
        stage.start_cluster(cluster.cluster)
        stage.waited_for("what the region still had comes through", lambda: run.lost() == 0)
        return Outcome(Drill.REGION_LOSS, found, run.restarts, run.lost())


def _link_cut(stage: Stage) -> Outcome:
    region = next(iter(stage.topology.regions))
    here, there = stage.topology.regions[region].cluster, stage.topology.centre
    links = [stage.stack.links[f"{here}->{there}"], stage.stack.links[f"{there}->{here}"]]
    with running(stage, there) as run:
        run.settle(cursor_in=None)
        stage.wait_for_moment()
        run.mark_loss(run.fleets[region].buffers)
        for link in links:
            link.cut()
        stage.say(f"cut the links between {here} and {there}")
        run.let_traffic_flow(stage.settings.cut_s)
        for link in links:
            link.heal()
        run.mark_count()
        stage.say(f"healed them after {stage.settings.cut_s:.0f} s")
        run.see_through()
        return Outcome(Drill.LINK_CUT, account(run.evidence()), run.restarts)


_PLAYS: dict[Drill, Callable[[Stage], Outcome]] = {
    Drill.HQ_LOSS: _hq_loss,
    Drill.FAILBACK: _failback,
    Drill.REGION_LOSS: _region_loss,
    Drill.LINK_CUT: _link_cut,
}


def _everybody(run: Run) -> frozenset[Buffer]:
    return frozenset(buffer for fleet in run.fleets.values() for buffer in fleet.buffers)
