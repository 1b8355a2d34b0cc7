"""The whole way of an alert, hop by hop, on real servers: `python -m benchmarks.alerts path`.

Vehicles' brokers, real agents, the region's broker, a gateway, Pulsar in the region and at the centre, 80 ms each way
between them, an alert process, a reader in the region and one at the centre. A fleet of made batches speaks at the
region's broker as that many agents would; of the real vehicles beside it every fix has an alert, and these are timed.
"""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.alerts.arrivals import AlertReader, TimedBatches
from benchmarks.alerts.hops import IN_REGION, WHOLE, HopTimes, hop_times, timed_fixes
from benchmarks.alerts.servers import CENTRE, RECORDS_PER_BATCH, REGION, AlertServers, alert_servers, say
from benchmarks.alerts.undisturbed import Undisturbed, undisturbed
from benchmarks.alerts.vehicles import Reporting, timed_vehicles
from benchmarks.folders import benchmark_folder
from benchmarks.gateway.servers import Spent

FIXES_PER_S: Final = 5_000
TIMED: Final = 20
WARM_UP_S: Final = 60.0
"""The Java virtual machines of two clusters compile what they run for so long, on the same two cores."""
MEASURED_S: Final = 50.0
SETTLE_S: Final = 45.0
LIMITS_MS: Final = {(WHOLE, 0.5): 400.0, (WHOLE, 0.99): 1_000.0, (IN_REGION, 0.99): 300.0}
LEAST_RATE: Final = 0.98
"""Of the fixes that were to be sent, so many must have been acknowledged to the load in time."""


@dataclass(frozen=True, slots=True)
class PathFigures:
    """What was measured. `missing`: ids that an undisturbed evaluation finds, and the centre never had; `invented`: the
    other way round. `cores`: seconds of processor a second, by what runs. `untimed`: fixes that were published, and
    never seen at one of the hops.
    """

    vehicles: int
    rate: float
    asked_rate: float
    hops: list[HopTimes]
    untimed: int
    events: int
    missing: int
    invented: int
    cores: dict[str, float]

    @property
    def holds(self) -> bool:
        """Whether every limit is kept."""
        kept = all(self.met(hop, share) is not False for hop in self.hops for share in (0.5, 0.99))
        is_whole = not (self.untimed or self.missing or self.invented)
        return kept and is_whole and self.rate >= LEAST_RATE * self.asked_rate

    def met(self, hop: HopTimes, share: float) -> bool | None:
        """Whether a limit is kept; None where there is none."""
        limit_ms = LIMITS_MS.get((hop.name, share))
        return None if limit_ms is None else hop.percentile(share) < limit_ms


def measure(fixes_per_s: int = FIXES_PER_S, measured_s: float = MEASURED_S, timed: int = TIMED) -> PathFigures:
    """All of it: about three minutes."""
    with benchmark_folder("alerts") as folder, alert_servers(folder, 1, timed) as servers:
        say(f"starting {timed} vehicles, each with its broker and agent")
        with (
            timed_vehicles(servers.stack, timed) as vehicles,
            AlertReader(servers.stack, REGION) as region,
            AlertReader(servers.stack, CENTRE) as centre,
            TimedBatches(servers.stack, [one.device for one in vehicles]) as observer,
            servers.load(fixes_per_s, WARM_UP_S + measured_s) as load,
        ):
            reporting = Reporting(vehicles)
            say(f"{fixes_per_s:,} fixes a second; {WARM_UP_S:.0f} s to warm up")
            time.sleep(WARM_UP_S)
            pids = servers.pids | {"load": load.pid}
            before, began_s = Spent.now(pids), time.time()
            say(f"measuring for {measured_s:.0f} s")
            time.sleep(measured_s)
            spent, ended_s = Spent.now(pids).since(before), time.time()
            reporting.stop()
            result = _result(load)
            say("waiting for what is under way")
            found = _settled(servers, timed, centre)
        window = {fix: at_s for fix, at_s in reporting.published_s.items() if began_s <= at_s < ended_s}
        # the first fix of a vehicle crosses nothing
        window = {fix: at_s for fix, at_s in window.items() if fix[1] > 1}
        moments = timed_fixes(window, observer.first_s, list(region.arrivals), centre.first_s)
    return PathFigures(
        vehicles=timed,
        rate=result["acknowledged"] * RECORDS_PER_BATCH / (WARM_UP_S + measured_s),
        asked_rate=fixes_per_s,
        hops=hop_times(moments.values()),
        untimed=len(window) - len(moments),
        events=len(found.ids),
        missing=len(found.ids - centre.ids),
        invented=len(centre.ids - found.ids),
        cores=_cores(spent),
    )


def _result(load: subprocess.Popen[str]) -> dict[str, Any]:
    assert load.stdout is not None
    result: dict[str, Any] = json.loads(load.stdout.readline())
    return result


def _settled(servers: AlertServers, timed: int, centre: AlertReader) -> Undisturbed:
    """What is to be there, once all of it is, or after a while."""
    time.sleep(2.0)
    found, ends = undisturbed(servers.stack, timed), time.monotonic() + SETTLE_S
    while found.ids != centre.ids and time.monotonic() < ends:
        time.sleep(1.0)
        # on a busy machine an agent may have sent its last fix only now
        if not centre.ids <= found.ids:
            found = undisturbed(servers.stack, timed)
    return found


def _cores(spent: Spent) -> dict[str, float]:
    """By what runs: all vehicles together, their brokers and agents."""
    found: dict[str, float] = {}
    for name, cpu_s in spent.cpu_s.items():
        group = "vehicles" if name.startswith(("mosquitto-timed", "agent-timed")) else name
        found[group] = found.get(group, 0.0) + cpu_s / spent.at_s
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def main() -> bool:
    """Prints what was measured; whether the limits are kept."""
    found = measure()
    print(report(found), flush=True)
    return found.holds


def report(found: PathFigures) -> str:
    """The table, and what was missed."""
    beside = f"beside {found.rate:,.0f} fixes/s (asked {found.asked_rate:,.0f})"
    lines = [
        f"{len(found.hops[0].times_ms):,} alerts of {found.vehicles} real vehicles, {beside}",
        f"{'milliseconds; 80 ms added each way to and from the centre':58}{'p50':>9}{'p99':>9}{'most':>9}",
    ]
    for hop in found.hops:
        times = "".join(f"{hop.percentile(share):9,.0f}" for share in (0.5, 0.99, 1.0))
        lines.append(f"{hop.name:58}{times}{_judgement(found, hop)}")
    ids = f"alerts of all {found.events:,}; missing at the centre {found.missing:,}; invented {found.invented:,}"
    lines += [
        f"{ids}; fixes that were not seen at a hop {found.untimed:,}",
        "cores: " + ", ".join(f"{name} {share:.2f}" for name, share in found.cores.items() if share >= 0.005),
        "all limits kept" if found.holds else "a limit is NOT kept",
    ]
    return "\n".join(lines)


def _judgement(found: PathFigures, hop: HopTimes) -> str:
    words = []
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        met = found.met(hop, share)
        if met is not None:
            words.append(f"{name} < {LIMITS_MS[hop.name, share]:,.0f} {'met' if met else 'NOT met'}")
    return "   " + ", ".join(words) if words else ""
