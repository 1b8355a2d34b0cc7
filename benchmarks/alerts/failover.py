"""One of two alert processes is killed under load: `python -m benchmarks.alerts failover`.

Measured from the SIGKILL to the first alert of the partitions that it had, by another process, which was their standby.
What the region and the centre then have is compared with what one evaluation finds that nobody disturbs. At the end the
killed one is started again: what it reads to be a standby is what a new owner without one would have to read.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

from benchmarks.alerts.path import FIXES_PER_S
from benchmarks.alerts.servers import (
    CENTRE,
    RECORDS_PER_BATCH,
    REGION,
    AlertReader,
    AlertServers,
    ReadAlert,
    alert_servers,
    say,
    undisturbed,
)
from benchmarks.harness import benchmark_folder

BEFORE_S: Final = 15.0
AFTER_S: Final = 15.0
SETTLE_S: Final = 45.0
MOST_S: Final = 5.0
PARTITIONS: Final = 2


@dataclass(frozen=True, slots=True)
class FailoverFigures:
    """What was measured. `silent_s`: from the kill until the partition's alerts came again. `slowest_s`: the longest
    that any of its alerts took after the batch was in the region's topic. `taken`: how many partitions the other
    process has at the end; of the lost one it read `taken_messages` in `taken_s` before it spoke.
    `rebuilt_messages`: what a process that was started at the end read to stand by, in `rebuilt_s`: the cost of a state
    that is made anew.
    """

    fixes_per_s: int
    silent_s: float
    slowest_s: float
    taken: int
    taken_messages: int
    taken_s: float
    rebuilt_messages: int
    rebuilt_s: float
    events: int
    missing: int
    missing_at_centre: int
    invented: int
    repeated: int

    @property
    def holds(self) -> bool:
        return self.silent_s < MOST_S and self.taken == PARTITIONS and not (self.missing or self.missing_at_centre)

    @property
    def rebuilt_fixes_per_s(self) -> float:
        return self.rebuilt_messages * RECORDS_PER_BATCH / self.rebuilt_s

    def rebuild_of_s(self, rewind_s: float) -> float:
        """Seconds for the state of a partition that was busy for so long: longer than this load lasts."""
        return rewind_s * self.fixes_per_s / PARTITIONS / max(self.rebuilt_fixes_per_s, 1e-9)


def measure(fixes_per_s: int = FIXES_PER_S) -> FailoverFigures:
    with benchmark_folder("failover") as folder, alert_servers(folder, 2, 0) as servers:
        with (
            AlertReader(servers.stack, REGION) as region,
            AlertReader(servers.stack, CENTRE) as centre,
            servers.load(fixes_per_s, BEFORE_S + AFTER_S) as load,
        ):
            say(f"{fixes_per_s:,} fixes a second; the kill comes after {BEFORE_S:.0f} s")
            time.sleep(BEFORE_S)
            (lost,) = servers.status(1).partitions_held
            servers.processes[0].kill()
            killed_s = time.time()
            say("killed one of two alert processes")
            load.wait(BEFORE_S + AFTER_S + SETTLE_S)
            time.sleep(2.0)
            found, ends = undisturbed(servers.stack, 0), time.monotonic() + SETTLE_S
            while not found.ids == region.ids == centre.ids and time.monotonic() < ends:
                time.sleep(1.0)
                if not region.ids | centre.ids <= found.ids:
                    found = undisturbed(servers.stack, 0)
            taken = len(servers.status(2).partitions_held)
            took = _logged(servers.processes[1].log, "partition taken", lost)
            say("the killed one is started again, to stand by")
            servers.processes[0].start()
            rebuilt = _stands_by(servers)
        arrivals = [one for one in region.arrivals if found.partition_of[one.alert.device] == lost]
    return FailoverFigures(
        fixes_per_s=fixes_per_s,
        silent_s=silent_s(arrivals, killed_s),
        slowest_s=max((one.at_s - one.alert.received_ms / 1000 for one in arrivals), default=float("inf")),
        taken=taken,
        taken_messages=took[0],
        taken_s=took[1],
        rebuilt_messages=rebuilt[0],
        rebuilt_s=rebuilt[1],
        events=len(found.ids),
        missing=len(found.ids - region.ids),
        missing_at_centre=len(found.ids - centre.ids),
        invented=len(region.ids - found.ids),
        repeated=len(region.arrivals) - len(region.ids),
    )


def _logged(log: Path, event: str, partition: str) -> tuple[int, float]:
    """What a process said last of a partition that it took, or stands by for: messages, and seconds."""
    found = 0, math.inf
    for line in log.read_text(encoding="utf-8").splitlines():
        if f'"{event}"' in line and (said := json.loads(line))["partition"] == partition:
            found = said["messages"], said["seconds"]
    return found


def _stands_by(servers: AlertServers) -> tuple[int, float]:
    """What the first process read of the partition for which it was ready first."""
    ends = time.monotonic() + SETTLE_S
    log, began_s = servers.processes[0].log, time.time()
    while time.monotonic() < ends:
        for line in reversed(log.read_text(encoding="utf-8").splitlines()):
            if '"standby ready"' not in line:
                continue
            said = json.loads(line)
            if datetime.fromisoformat(said["timestamp"]).timestamp() > began_s:
                return said["messages"], said["seconds"]
        time.sleep(0.5)
    return 0, math.inf


def silent_s(arrivals: Iterable[ReadAlert], killed_s: float) -> float:
    """From the kill to the end of the longest silence after it; infinite when none came any more.

    An alert that was under way at the kill still comes: it is the silence after it that counts.
    """
    after = [killed_s, *sorted(at_s for at_s, _ in arrivals if at_s > killed_s)]
    longest = max(pairwise(after), key=lambda pair: pair[1] - pair[0], default=None)
    return float("inf") if longest is None else longest[1] - killed_s


def main() -> bool:
    found = measure()
    print(report(found), flush=True)
    return found.holds


def report(found: FailoverFigures) -> str:
    return (
        f"one of two alert processes killed at {found.fixes_per_s:,} fixes/s\n"
        f"  alerts of its partition again after {found.silent_s:6.2f} s   asked < {MOST_S:.0f} s\n"
        f"  slowest alert of that partition     {found.slowest_s:6.2f} s\n"
        f"  partitions of the other one         {found.taken:>6}\n"
        f"  its standby went on after           {found.taken_s:6.2f} s   of {found.taken_messages:,} messages\n"
        f"  a state made anew                   {found.rebuilt_s:6.2f} s   of {found.rebuilt_messages:,} messages:"
        f" {found.rebuilt_fixes_per_s:,.0f} fixes/s;\n"
        f"  of rewind_s = 900 of this load it would take {found.rebuild_of_s(900):,.0f} s\n"
        f"  alerts {found.events:,}; missing in the region {found.missing:,}, at the centre"
        f" {found.missing_at_centre:,}; invented {found.invented:,}; repeated, with the same ids {found.repeated:,}\n"
        + ("all limits kept" if found.holds else "a limit is NOT kept")
    )
